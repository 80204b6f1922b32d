"""What every ledger promises of a mended source: new metadata and a new attempt for what is committed nowhere (P2), and
errors that are not lost by those that follow from them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_trident.errors import StaleAttemptError, TransitionError
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.protocol.decide import MendedSources
from airflow_trident.protocol.records import Status, TxRecord
from airflow_trident.types import Json
from tests.fixtures import single
from tests.fixtures.ledger import STAGED, begun, brought_to, commit, gated, processed


class Mended(MendedSources):
    """Line numbers with what is in them now."""

    def __init__(self, now: str = "mended", pad: int = 0) -> None:
        self.now = now + "." * pad

    def accept(self, stream: str, metadata: Json) -> Json:
        assert stream == "lines"
        assert isinstance(metadata, dict)
        return {**metadata, "now": self.now} if self.now else metadata

    def follow(self, stream: str, later: Json, accepted: Json) -> Json:
        assert isinstance(later, dict)
        assert isinstance(accepted, dict)
        return {**later, "behind": accepted["now"]}


def tx(ledger: Ledger, txid: int) -> TxRecord:
    found = ledger.view(txid).tx
    assert found is not None
    return found


def lines(ledger: Ledger, txid: int) -> Any:
    return tx(ledger, txid).metadata["lines"]


def position(txid: int) -> dict[str, int]:
    return {"from": txid - 1, "until": txid}


@pytest.mark.parametrize("status", [Status.PROCESSING, Status.PROCESSED, Status.FAILED])
def test_p2_a_mended_source_gives_new_metadata_and_a_new_attempt_and_fails_until_it_is_replayed(
    ledger: Ledger, status: Status
) -> None:
    for number in (1, 2, 3):
        begun(ledger, number)
    brought_to(ledger, 1, status)
    processed(ledger, 2)
    before = tx(ledger, 1)
    record = ledger.accept_source(1, Mended(), "line 3 had no amount")
    assert record == tx(ledger, 1)
    assert (record.status, record.attempt, record.staged) == (Status.FAILED, before.attempt + 1, None)
    assert record.accepted == ("line 3 had no amount",)
    assert lines(ledger, 1) == {**position(1), "now": "mended"}
    assert ledger.view(0).exceptions.failed == (1,)
    # what was under way with the old batch comes too late (P4)
    with pytest.raises(StaleAttemptError):
        single.processed(ledger, 1, before.attempt, STAGED)
    # later ones keep their batch, and know what was read before it
    assert [lines(ledger, txid) for txid in (2, 3)] == [{**position(txid), "behind": "mended"} for txid in (2, 3)]
    assert (tx(ledger, 2).status, tx(ledger, 2).staged) == (Status.PROCESSED, STAGED)
    commit(ledger, 1)
    assert single.committed(ledger, single.gate(ledger, 2, owner="c")).status is Status.COMMITTED
    assert tx(ledger, 1).accepted == ("line 3 had no amount",)


def test_p2_a_mended_source_may_be_mended_again_whatever_its_size(ledger: Ledger) -> None:
    begun(ledger, 1)
    begun(ledger, 2)
    for number, pad in enumerate((0, 100_000, 120_000, 0)):
        ledger.accept_source(1, Mended(f"mended {number}", pad), f"reason {number}")
    assert lines(ledger, 1) == {**position(1), "now": "mended 3"}
    assert lines(ledger, 2) == {**position(2), "behind": "mended 3"}
    assert (tx(ledger, 1).attempt, tx(ledger, 1).accepted) == (3, tuple(f"reason {number}" for number in range(4)))


def test_p2_a_skipped_one_that_others_wait_for_stays_skipped(ledger: Ledger) -> None:
    begun(ledger, 1)
    begun(ledger, 2)
    ledger.skip(2, "withdrawn")
    assert ledger.accept_source(2, Mended(), "mended").status is Status.SKIPPED
    assert lines(ledger, 2)["now"] == "mended"
    commit(ledger, 1)
    assert ledger.view(0).pointer.committed == 2


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("committed", "it is COMMITTED: the states have its batch"),
        ("touched", "a commit of it has begun"),
        ("emitted again", "a commit of it has begun"),
        ("passed", "later ones have gone on behind its batch"),
        ("same", "is as it was recorded: there is nothing to accept"),
        ("unknown", "was never begun"),
    ],
)
def test_p2_a_batch_that_a_state_may_have_is_never_changed(ledger: Ledger, case: str, said: str) -> None:
    begun(ledger, 1)
    if case == "committed":
        commit(ledger, 1)
    elif case in ("touched", "emitted again"):
        ticket = gated(ledger, 1)
        if case == "emitted again":
            single.attempt(ledger, ticket, owner="c")
    elif case == "passed":
        ledger.skip(1, "withdrawn")
    before = ledger.transactions()
    with pytest.raises(TransitionError, match=said):
        ledger.accept_source(7 if case == "unknown" else 1, Mended("" if case == "same" else "mended"), "mended")
    assert ledger.transactions() == before


def test_what_failed_first_is_kept_until_an_attempt_goes_well(ledger: Ledger) -> None:
    begun(ledger, 1)
    for text in ("a bad row", "a bad row", "the file changed", "it changed again"):
        ledger.fail(1, single.attempt(ledger, 1, owner="e").attempt, text, retry=True)
    assert (tx(ledger, 1).error, tx(ledger, 1).first_error) == ("it changed again", "a bad row")
    ledger.fail(1, tx(ledger, 1).attempt, "used up")
    assert (tx(ledger, 1).error, tx(ledger, 1).first_error) == ("used up", "a bad row")
    assert tx(ledger, 1).all_errors == "used up\nThe first error was: a bad row"
    ledger.skip(1, "withdrawn")
    assert (tx(ledger, 1).error, tx(ledger, 1).first_error) == ("withdrawn", "a bad row")
    record = processed(ledger, 1)
    assert (record.error, record.first_error) == ("", "")
