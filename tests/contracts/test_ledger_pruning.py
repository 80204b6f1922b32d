"""What every ledger promises, over every implementation: it stays bounded, and keeps what is needed (L8)."""

from __future__ import annotations

import pytest

from airflow_trident.errors import (
    ConfigurationError,
    TransitionError,
)
from airflow_trident.ledger.answers import Begun
from airflow_trident.ledger.ledger import Ledger, ZNodeLedger
from airflow_trident.protocol.records import Status
from airflow_trident.protocol.txids import NO_TXIDS, Txids
from tests.fixtures import single
from tests.fixtures.ledger import (
    Place,
    begun,
    claim,
    commit,
    committed_up_to,
    gated,
    lines,
    statuses,
)


def test_l8_p10_only_the_last_committed_ones_are_kept(ledger: Ledger) -> None:
    committed_up_to(ledger, 7, retention=3)
    assert list(statuses(ledger)) == [5, 6, 7]
    view = ledger.view(2)
    assert (view.tx, view.next_txid, view.pointer.committed) == (None, 8, 7)


def test_l8_p10_a_smaller_retention_takes_the_older_ones_along(ledger: Ledger) -> None:
    committed_up_to(ledger, 6)
    commit(ledger, begun(ledger, 7), retention=2)
    assert list(statuses(ledger)) == [6, 7]


def test_l8_p10_failed_skipped_and_uncommitted_ones_are_kept_however_old(ledger: Ledger) -> None:
    for number in (1, 2, 3):
        begun(ledger, number)
    for txid in (1, 2, 3):
        ledger.skip(txid, "x")
    single.attempt(ledger, 2, owner="late")
    ledger.fail(3, single.attempt(ledger, 3, owner="late").attempt, "x")
    for number in range(4, 10):
        commit(ledger, begun(ledger, number), retention=1)
    begun(ledger, 10)
    assert statuses(ledger) == {
        1: Status.SKIPPED,
        2: Status.PROCESSING,
        3: Status.FAILED,
        9: Status.COMMITTED,
        10: Status.PROCESSING,
    }
    assert commit(ledger, 2, retention=1).status is Status.COMMITTED
    commit(ledger, 10, retention=1)
    assert list(statuses(ledger)) == [1, 3, 10]


def test_l8_what_a_spout_has_to_be_told_of_is_kept_until_it_was(ledger: Ledger) -> None:
    ledger.note_told(NO_TXIDS)
    committed_up_to(ledger, 2, retention=1)
    begun(ledger, 3)
    ledger.skip(3, "x")
    for number in (4, 5):
        commit(ledger, begun(ledger, number), retention=1)
    assert list(statuses(ledger)) == [1, 2, 3, 4, 5]
    ledger.note_told(Txids.span(1, 5) - Txids.of(3))
    commit(ledger, 3, retention=1)
    commit(ledger, begun(ledger, 6), retention=1)
    assert list(statuses(ledger)) == [3, 6], "3 was committed late, and nobody was told of it"
    ledger.note_told(Txids.of(3))
    commit(ledger, begun(ledger, 7), retention=1)
    assert list(statuses(ledger)) == [6, 7]
    assert ledger.topology().told == Txids.span(1, 5)


def test_l8_when_no_spout_wants_to_be_told_any_more_what_was_kept_for_it_goes(ledger: Ledger) -> None:
    ledger.note_told(NO_TXIDS)
    committed_up_to(ledger, 3, retention=1)
    ledger.note_told(None)
    commit(ledger, begun(ledger, 4), retention=1)
    assert (list(statuses(ledger)), ledger.topology().told) == ([4], None)


def test_the_last_begun_transaction_is_never_pruned_because_the_next_goes_on_from_it(ledger: Ledger) -> None:
    committed_up_to(ledger, 5, retention=1)
    assert begun(ledger, 6) == 6
    record = ledger.view(6).tx
    assert record is not None
    assert record.metadata == {"lines": {"from": 5, "until": 6}}


def test_a_retention_below_one_is_refused(ledger: Ledger) -> None:
    with pytest.raises(ConfigurationError, match="at least 1"):
        single.committed(ledger, gated(ledger, begun(ledger, 1)), retention=0)


def test_p10_claim_keys_are_pruned_at_last_and_then_cleared_runs_are_refused(place: Place) -> None:
    keep, rounds = 3, 40
    ledger = place.registered(keep_claims=keep)
    if isinstance(ledger, ZNodeLedger):
        # One bucket of 256 is swept every 32 commits: look at them all here.
        committed_up_to(ledger, rounds, retention=1)
        for number in range(256):
            ledger.sweep_claims(32 * (256 + number))
    else:
        committed_up_to(ledger, rounds, retention=1)
    claims = ledger.export()["claims"]
    assert sorted(claims.values()) == list(range(rounds - keep + 1, rounds + 1))
    assert ledger.topology().floor_ms == 1_000 * (rounds - keep) + 1
    with pytest.raises(TransitionError, match=r"run-5.*pruned"):
        single.begin(ledger, claim(5, cleared=True), lines)
    assert single.begin(ledger, claim(rounds, cleared=True), lines) == Begun(
        record=ledger.view(rounds).tx, txid=rounds, new=False
    )
    assert single.begin(ledger, claim(rounds + 1, cleared=True), lines).txid == rounds + 1
