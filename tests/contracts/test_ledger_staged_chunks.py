"""Small staged batches in the ledger: what every ledger over ZooKeeper's nodes promises about them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_trident.errors import StaleAttemptError
from airflow_trident.ledger.answers import StagedAttempt
from airflow_trident.ledger.layout import LedgerPaths
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.protocol.codec import staged_chunk_name
from airflow_trident.protocol.records import StagedRef, Status
from tests.fixtures import single
from tests.fixtures.ledger import OVER_ZNODES, STAGED, Place, begun

pytestmark = pytest.mark.parametrize("place", OVER_ZNODES, indirect=True)
CONTENT = b"rows" * 1000


@pytest.fixture
def ledger(place: Place) -> ZNodeLedger:
    made = place.registered()
    assert isinstance(made, ZNodeLedger)
    return made


def small(txid: int, attempt: int, content: bytes = CONTENT) -> StagedRef:
    return replace(STAGED, chunk=staged_chunk_name(txid, attempt), content=content)


def chunks(ledger: ZNodeLedger) -> list[str]:
    paths: LedgerPaths = ledger.paths()
    return sorted(ledger.znodes.read([], [paths.chunks]).folders[paths.chunks] or ())


def attempted(ledger: ZNodeLedger, number: int) -> int:
    return single.attempt(ledger, begun(ledger, number), owner="emitter").txid


def group(ledger: ZNodeLedger, many: int) -> list[StagedAttempt]:
    """Attempts of transactions that were staged together: in the chunk of the last one."""
    txids = [attempted(ledger, number) for number in range(1, many + 1)]
    staged = small(txids[-1], 0)
    return [StagedAttempt(txid=txid, attempt=0, staged=staged) for txid in txids]


def committed(ledger: ZNodeLedger, number: int, retention: int) -> None:
    txid = attempted(ledger, number)
    single.processed(ledger, txid, 0, small(txid, 0))
    single.committed(ledger, single.gate(ledger, txid, owner="committer"), retention=retention)


def test_what_the_step_of_processed_brought_everybody_reads_until_it_is_committed(
    place: Place, ledger: ZNodeLedger
) -> None:
    txid = attempted(ledger, 1)
    record = single.processed(ledger, txid, 0, small(txid, 0))
    assert record.staged == small(txid, 0)
    assert record.staged.content == b""
    ticket = single.gate(ledger, txid, owner="committer")
    for reader in (ledger, place.open()):
        assert reader.view(txid).tx.staged.content == b""  # type: ignore[union-attr]
        assert reader.staged_content(ticket.staged) == CONTENT
    assert single.processed(ledger, txid, 0, small(txid, 0)).status is Status.COMMITTING  # said again: nothing new
    assert chunks(ledger) == [staged_chunk_name(txid, 0)]


def test_p4_an_attempt_that_is_not_the_current_one_brings_nothing(ledger: ZNodeLedger) -> None:
    txid = attempted(ledger, 1)
    single.attempt(ledger, txid, owner="newer")
    with pytest.raises(StaleAttemptError):
        single.processed(ledger, txid, 0, small(txid, 0))
    assert chunks(ledger) == []
    record = single.processed(ledger, txid, 1, small(txid, 1, b"newer"))
    assert record.staged is not None
    assert ledger.staged_content(record.staged) == b"newer"
    assert ledger.staged_content(small(txid, 0)) is None


def test_an_attempt_after_a_processed_one_has_a_chunk_of_its_own(ledger: ZNodeLedger) -> None:
    txid = attempted(ledger, 1)
    single.processed(ledger, txid, 0, small(txid, 0, b"older"))
    single.attempt(ledger, txid, owner="again")
    record = single.processed(ledger, txid, 1, small(txid, 1, b"newer"))
    assert record.staged is not None
    assert ledger.staged_content(record.staged) == b"newer"


def test_p10_chunks_go_with_their_transactions(ledger: ZNodeLedger) -> None:
    for number in range(1, 6):
        committed(ledger, number, retention=2)
    assert chunks(ledger) == [staged_chunk_name(txid, 0) for txid in (4, 5)]


def test_p10_a_chunk_that_a_committer_had_not_seen_goes_with_a_later_commit(place: Place, ledger: ZNodeLedger) -> None:
    committed(ledger, 1, retention=1)
    committed(ledger, 2, retention=1)
    ledger.znodes.ensure(ledger.paths().chunk(staged_chunk_name(1, 7)))
    assert len(chunks(ledger)) == 2
    other = place.open()
    assert isinstance(other, ZNodeLedger)
    committed(other, 3, retention=1)
    assert chunks(ledger) == [staged_chunk_name(3, 0)]


def test_a_group_has_one_chunk(ledger: ZNodeLedger) -> None:
    done = group(ledger, 3)
    records = ledger.processed(done).records
    assert [record.status for record in records] == [Status.PROCESSED] * 3
    assert chunks(ledger) == [staged_chunk_name(3, 0)]
    assert {ledger.staged_content(record.staged) for record in records if record.staged} == {CONTENT}


def test_a_group_comes_to_its_gate_with_its_chunk_in_one_step(ledger: ZNodeLedger) -> None:
    tickets = ledger.processed(group(ledger, 3), gate_by="drain").tickets
    assert [ledger.staged_content(ticket.staged) for ticket in tickets] == [CONTENT] * 3
    assert chunks(ledger) == [staged_chunk_name(3, 0)]


def test_p4_a_refused_group_brings_nothing_and_those_that_go_on_bring_its_chunk(ledger: ZNodeLedger) -> None:
    done = group(ledger, 3)
    single.attempt(ledger, 3, owner="somebody else")
    with pytest.raises(StaleAttemptError):
        ledger.processed(done)
    assert chunks(ledger) == []
    for one in done[:2]:
        record = single.processed(ledger, one.txid, one.attempt, one.staged)
        assert record.staged is not None
        assert ledger.staged_content(record.staged) == CONTENT


@pytest.mark.parametrize("gate_by", ["", "drain"])
def test_a_group_that_does_not_fit_into_a_step_is_whole_for_whom_the_first_step_took(
    gate_by: str, place: Place, ledger: ZNodeLedger
) -> None:
    done = group(ledger, 6)
    wide = {f"state-{number:04d}": number for number in range(4_000)}
    done = [replace(one, staged=replace(one.staged, rows=wide, content=b"x" * 250_000)) for one in done]
    taken = ledger.processed(done, gate_by=gate_by)
    assert 0 < len(taken.tickets if gate_by else taken.records) < 6
    assert place.open().staged_content(done[0].staged) == b"x" * 250_000
    ledger.processed(done[3:])
    assert chunks(ledger) == [staged_chunk_name(6, 0)]


def test_a_name_that_is_no_chunks_reads_nothing(ledger: ZNodeLedger) -> None:
    for name in ("", "../commit", "0" * 19 + "-staged-0/x"):
        assert ledger.staged_content(replace(STAGED, chunk=name)) is None
