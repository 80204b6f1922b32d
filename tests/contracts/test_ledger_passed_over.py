"""What every ledger promises of a SKIPPED transaction that the commit of a group goes over: until that commit has
ended, it can be taken up neither before it nor late (P6)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_trident.errors import Outcome, PassedOverError, TransitionError
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.protocol.records import CommitTicket, Status
from tests.contracts.test_ledger_accepting import Mended
from tests.contracts.test_ledger_groups import begun_many, everything, staged
from tests.fixtures import single
from tests.fixtures.ledger import Place, commit, statuses


def gone_over(ledger: Ledger) -> tuple[CommitTicket, ...]:
    """The gate of 1 and 3 is open, 2 is SKIPPED between them, 4 waits."""
    begun_many(ledger, 1, 4)
    ledger.skip(2, "x")
    return ledger.processed(staged([1, 3]), gate_by="drain").tickets


def at_the_gate(ledger: Ledger, ticket: CommitTicket) -> None:
    """Its committer sleeps, or was killed."""


def attempted_again(ledger: Ledger, ticket: CommitTicket) -> None:
    single.attempt(ledger, ticket, owner="drain")


def failed(ledger: Ledger, ticket: CommitTicket) -> None:
    ledger.fail(ticket.txid, ticket.attempt, "used up")


@pytest.mark.parametrize("since", [at_the_gate, attempted_again, failed])
def test_p6_what_a_group_went_over_is_not_taken_up_before_a_state_may_hold_what_is_above_it(
    ledger: Ledger, since: Callable[[Ledger, CommitTicket], None]
) -> None:
    since(ledger, gone_over(ledger)[-1])
    before = everything(ledger)
    steps: list[Callable[[], object]] = [
        lambda: single.attempt(ledger, 2, owner="a backfill"),
        lambda: ledger.attempt([2, 4], owner="a backfill", replays=True),
        lambda: ledger.accept_source(2, Mended(), "mended"),
    ]
    for step in steps:
        with pytest.raises(PassedOverError, match=r"the commit of transaction 3 went over it .*--txid 3`") as refused:
            step()
        assert refused.value.outcome is Outcome.RETRY
        assert everything(ledger) == before
    with pytest.raises(TransitionError, match="cannot be closed yet"):
        ledger.close_transaction(2, "nobody wants it")
    assert everything(ledger) == before


def test_p6_it_comes_late_from_when_the_pointer_has_passed_it(ledger: Ledger) -> None:
    first, last = gone_over(ledger)
    single.committed(ledger, first)
    assert single.attempt(ledger, 2, owner="a backfill").status is Status.PROCESSING
    assert (ledger.view(0).pointer.committed, ledger.view(0).exceptions.late) == (2, (2,))
    single.committed(ledger, last)
    assert commit(ledger, 2).status is Status.COMMITTED


def test_p6_it_comes_before_what_was_taken_back(ledger: Ledger) -> None:
    first, last = gone_over(ledger)
    ledger.take_back(ledger.bar(3, owner="a person"), "no state holds it")
    assert single.attempt(ledger, 2, owner="a backfill").status is Status.PROCESSING
    assert ledger.view(0).exceptions.replaying == (2,)
    single.committed(ledger, first)
    with pytest.raises(TransitionError):
        single.gate(ledger, 3, owner="c")
    commit(ledger, 2)
    assert commit(ledger, 3).status is Status.COMMITTED
    assert last.fence < first.fence + 1


def test_p6_what_no_commit_went_over_is_taken_up_at_any_time(ledger: Ledger) -> None:
    """A commit of one transaction goes over nothing: the pointer passes what is SKIPPED in its very step."""
    begun_many(ledger, 1, 3)
    ledger.skip(2, "x")
    (ticket,) = ledger.processed(staged([1]), gate_by="drain").tickets
    single.attempt(ledger, 2, owner="a backfill")
    single.committed(ledger, ticket)
    assert ledger.view(0).pointer.committed == 1
    assert statuses(ledger)[2] is Status.PROCESSING


def test_p6_who_looked_before_the_gate_finds_out_that_a_group_went_over_it_meanwhile(place: Place) -> None:
    ledger, other = place.registered(), place.registered()
    begun_many(ledger, 1, 3)
    ledger.skip(2, "x")
    assert len(other.transactions()) == 3
    assert other.view(2, remembered=True).tx == ledger.view(2).tx
    ledger.processed(staged([1, 3]), gate_by="drain")
    before = everything(ledger)
    with pytest.raises(PassedOverError):
        single.attempt(other, 2, owner="a backfill")
    assert everything(ledger) == before
