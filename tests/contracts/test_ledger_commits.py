"""What every ledger promises, over every implementation: the gate, the pointer, what is unfinished (L6, L7,
L11, L12)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_trident.errors import (
    FencedError,
    TransitionError,
)
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.protocol.partition_keys import has_failed
from airflow_trident.protocol.records import Exceptions, Status
from airflow_trident.protocol.txids import NO_TXIDS, Txids
from tests.fixtures import single
from tests.fixtures.ledger import (
    OTHER_STAGED,
    STAGED,
    Place,
    begun,
    brought_to,
    commit,
    gated,
    processed,
    statuses,
)

# ---- L6, P6, P7: the gate --------------------------------------------------------------------------------------


def test_l6_p6_a_commit_starts_only_after_every_lower_one_committed_or_was_skipped(ledger: Ledger) -> None:
    for number in (1, 2, 3, 4):
        processed(ledger, begun(ledger, number))
    for early in (2, 3, 4):
        with pytest.raises(TransitionError, match=rf"transaction {early - 1} is not committed yet"):
            single.gate(ledger, early, owner="c")
    single.committed(ledger, single.gate(ledger, 1, owner="c"))
    ledger.skip(2, "x")
    with pytest.raises(TransitionError, match="transaction 3 is not committed yet"):
        single.gate(ledger, 4, owner="c")
    single.committed(ledger, single.gate(ledger, 3, owner="c"))
    single.committed(ledger, single.gate(ledger, 4, owner="c"))
    assert list(statuses(ledger).values()) == [Status.COMMITTED, Status.SKIPPED, Status.COMMITTED, Status.COMMITTED]


def test_l6_p6_a_failed_transaction_blocks_every_later_one_until_it_is_replayed(ledger: Ledger) -> None:
    for number in (1, 2, 3):
        processed(ledger, begun(ledger, number))
    ledger.fail(1, 0, "used up")
    for later in (2, 3):
        with pytest.raises(TransitionError, match="transaction 1 is FAILED"):
            single.gate(ledger, later, owner="c")
    assert ledger.view(3).blocked_by(3) == 1
    for txid in (1, 2, 3):
        commit(ledger, txid)
    assert ledger.view(0).exceptions.failed == ()
    assert ledger.view(0).pointer.committed == 3


def test_l6_p7_each_opening_has_a_higher_fence_and_voids_the_former_ticket(place: Place) -> None:
    one, two = place.registered(), place.registered()
    old = gated(one, begun(one, 1))
    new = single.gate(two, 1, owner="second")
    assert new.fence > old.fence
    assert (old.late, new.late) == (False, False)
    with pytest.raises(FencedError, match=rf"fence {old.fence}.*transaction 1"):
        single.committed(one, old)
    with pytest.raises(FencedError):
        single.attempt(one, old, owner="first")
    assert single.committed(two, new).status is Status.COMMITTED
    with pytest.raises(FencedError):
        single.committed(one, old)


def test_l6_of_many_committers_at_once_exactly_one_ticket_stays_valid(place: Place) -> None:
    clients = [place.registered() for _ in range(4)]
    processed(clients[0], begun(clients[0], 1))
    start = threading.Barrier(len(clients))

    def open_gate(client: Ledger) -> object:
        start.wait(30)
        return single.gate(client, 1, owner="c")

    with ThreadPoolExecutor(len(clients)) as pool:
        tickets = list(pool.map(open_gate, clients))
    fences = [ticket.fence for ticket in tickets]
    # A gate whose lost answer another one wrote over is opened again: then a fence more is given out.
    assert len(set(fences)) == len(clients)
    assert min(fences) >= 1
    for client, ticket in zip(clients, tickets, strict=True):
        if ticket.fence != max(fences):
            with pytest.raises(FencedError):
                single.committed(client, ticket)
    winner = fences.index(max(fences))
    assert single.committed(clients[winner], tickets[winner]).fence == max(fences) == clients[0].view(0).pointer.fence


@pytest.mark.parametrize("status", [Status.PROCESSED, Status.COMMITTING])
def test_l6_whoever_decided_by_an_older_record_does_not_open_the_gate(place: Place, status: Status) -> None:
    """Else a committer that remembers a record would fence one that is at work."""
    ledger, other = place.registered(), place.registered()
    seen = [processed(ledger, begun(ledger, number)) for number in (1, 2)]
    if status is Status.COMMITTING:
        ticket = single.gate(other, 1, owner="c")
    else:
        brought_to(other, 1, status)  # under another attempt
    found = other.view(1).tx
    with pytest.raises(FencedError, match=r"transaction 1 was taken up by .* since"):
        single.gate(ledger, seen[0], owner="d")
    with pytest.raises(FencedError, match=r"transaction 1 was taken up by .* since"):
        ledger.gate(seen, owner="d")
    assert other.view(1).tx == found
    if status is Status.COMMITTING:
        single.committed(other, ticket)
    else:
        single.committed(other, single.gate(other, found or 1, owner="c"))
    assert single.gate(ledger, seen[1], owner="d").txid == 2


def test_the_ticket_says_what_is_to_be_committed(ledger: Ledger) -> None:
    ticket = gated(ledger, begun(ledger, 1))
    record = ledger.view(1).tx
    assert record is not None
    topology = ledger.topology()
    assert (ticket.topology, ticket.incarnation) == ("words", topology.incarnation)
    assert (ticket.attempt, ticket.staged, ticket.position) == (0, STAGED, {"lines": {"from": 0, "until": 1}})
    assert (record.fence, record.touched, str(record.owner)) == (ticket.fence, True, "committer")


def test_a_commit_without_its_staged_batch_goes_back_and_its_ticket_is_void(ledger: Ledger) -> None:
    ticket = gated(ledger, begun(ledger, 1))
    record = single.attempt(ledger, ticket, owner="c")
    assert (record.status, record.attempt, record.staged, record.touched) == (Status.PROCESSING, 1, None, True)
    with pytest.raises(FencedError):
        single.committed(ledger, ticket)
    single.processed(ledger, 1, 1, OTHER_STAGED)
    again = single.gate(ledger, 1, owner="c")
    assert (again.attempt, again.staged) == (1, OTHER_STAGED)
    assert single.committed(ledger, again).status is Status.COMMITTED


# ---- L7, P8: the pointer ---------------------------------------------------------------------------------------


def test_l7_p8_status_and_pointer_change_together_and_the_pointer_passes_skipped_ones(ledger: Ledger) -> None:
    for number in range(1, 6):
        begun(ledger, number)
    ledger.skip(2, "x")
    ledger.skip(3, "x")
    assert ledger.view(0).pointer.committed == 0
    commit(ledger, 1)
    assert ledger.view(0).pointer.committed == 3
    ledger.skip(4, "x")
    assert ledger.view(0).pointer.committed == 4
    commit(ledger, 5)
    assert ledger.view(0).pointer.committed == 5
    assert ledger.view(0).exceptions.skipped == Txids.of(2, 3, 4)


def test_one_that_a_policy_skipped_counts_as_given_up_once_a_person_skips_it(ledger: Ledger) -> None:
    begun(ledger, 1)
    attempt = single.attempt(ledger, 1, owner="e").attempt
    failed = ledger.fail(1, attempt, "boom", skip="on_failure=skip")
    assert (failed.status, has_failed(failed)) == (Status.SKIPPED, True)
    given_up = ledger.skip(1, "no such day")
    assert (given_up.status, given_up.error, given_up.first_error) == (Status.SKIPPED, "no such day", "boom")
    assert not has_failed(given_up)
    assert ledger.skip(1, "again").error == "no such day"


def test_a_skipped_one_that_waits_again_holds_the_others_back(ledger: Ledger) -> None:
    for number in (1, 2, 3):
        processed(ledger, begun(ledger, number))
    ledger.skip(2, "x")
    single.attempt(ledger, 2, owner="replay")
    commit(ledger, 1)
    assert ledger.view(0).pointer.committed == 1
    with pytest.raises(TransitionError, match="transaction 2 is not committed yet"):
        single.gate(ledger, 3, owner="c")


def test_a_skipped_transaction_is_backfilled_late_and_holds_nobody_back(ledger: Ledger) -> None:
    begun(ledger, 1)
    ledger.skip(1, "x")
    committed_two = commit(ledger, begun(ledger, 2))
    processed(ledger, begun(ledger, 3))
    replay = single.attempt(ledger, 1, owner="backfill")
    view = ledger.view(3)
    assert (view.waits_for(3), view.pending, view.blocked_by(3), view.exceptions.late) == (None, 1, None, (1,))
    single.processed(ledger, 1, replay.attempt, STAGED)
    late = single.gate(ledger, 1, owner="backfill")
    assert (late.late, late.fence > committed_two.fence) == (True, True)
    single.committed(ledger, single.gate(ledger, 3, owner="c"))
    assert single.committed(ledger, late).status is Status.COMMITTED
    view = ledger.view(0)
    assert (view.pointer.committed, view.exceptions.late, view.exceptions.skipped) == (3, (), NO_TXIDS)


def test_a_late_replay_that_fails_blocks_nobody_and_can_be_replayed_again(ledger: Ledger) -> None:
    begun(ledger, 1)
    ledger.skip(1, "x")
    replay = single.attempt(ledger, 1, owner="backfill")
    ledger.fail(1, replay.attempt, "again")
    assert ledger.view(0).exceptions.failed == (1,)
    commit(ledger, begun(ledger, 2))
    assert commit(ledger, 1).status is Status.COMMITTED
    assert ledger.view(0).pointer.committed == 2


def touched_in_every_way(ledger: Ledger, status: Status) -> None:
    """Transaction 1 is begun and its commit too; then it came to `status`."""
    ticket = gated(ledger, begun(ledger, 1))
    if status is not Status.COMMITTING:
        attempt = single.attempt(ledger, ticket, owner="c").attempt
        if status is Status.PROCESSED:
            single.processed(ledger, 1, attempt, OTHER_STAGED)
        elif status is Status.FAILED:
            ledger.fail(1, attempt, "used up")


TOUCHED = [Status.COMMITTING, Status.PROCESSING, Status.PROCESSED, Status.FAILED]


@pytest.mark.parametrize("status", TOUCHED)
def test_l12_what_is_taken_back_is_failed_as_if_no_commit_had_begun(ledger: Ledger, status: Status) -> None:
    touched_in_every_way(ledger, status)
    before = ledger.view(1)
    ticket = ledger.bar(1, owner="a person")
    assert before.tx is not None
    assert (ticket.bars, ticket.fence) == (True, before.pointer.fence + 1)
    assert statuses(ledger) == {1: status}
    done = ledger.take_back(ticket, "the field is too small")
    assert (done.status, done.touched, done.error) == (Status.FAILED, False, "the field is too small")
    assert ledger.view(0).exceptions == Exceptions(failed=(1,))
    assert ledger.view(1).tx == done
    assert ledger.skip(1, "let the others pass").status is Status.SKIPPED
    assert ledger.view(0).pointer.committed == 1
    assert commit(ledger, 1).status is Status.COMMITTED


@pytest.mark.parametrize("status", TOUCHED)
def test_l12_a_bar_leaves_an_attempt_to_whoever_began_it(ledger: Ledger, status: Status) -> None:
    touched_in_every_way(ledger, status)
    ledger.bar(1, owner="a person")
    tx = ledger.view(1).tx
    assert tx is not None
    assert str(tx.owner) == ("a person" if status is Status.COMMITTING else "c")


def test_l12_a_bar_voids_every_ticket_before_it(ledger: Ledger) -> None:
    old = gated(ledger, begun(ledger, 1))
    ledger.bar(1, owner="a person")
    for use in (lambda: single.committed(ledger, old), lambda: single.attempt(ledger, old, owner="c")):
        with pytest.raises(FencedError):
            use()
    newer = single.gate(ledger, 1, owner="c")
    assert newer.fence == old.fence + 2
    assert single.committed(ledger, newer).status is Status.COMMITTED


def test_l12_whoever_opens_the_gate_after_the_bar_keeps_the_commit(place: Place) -> None:
    ledger, committer = place.registered(), place.registered()
    gated(ledger, begun(ledger, 1))
    ticket = ledger.bar(1, owner="a person")
    newer = single.gate(committer, 1, owner="c")
    with pytest.raises(FencedError):
        ledger.take_back(ticket, "x")
    assert single.committed(committer, newer).status is Status.COMMITTED
    with pytest.raises(FencedError):
        ledger.take_back(ticket, "x")


def test_l12_only_the_ticket_of_a_bar_takes_back(ledger: Ledger) -> None:
    ticket = gated(ledger, begun(ledger, 1))
    with pytest.raises(TransitionError, match="nothing to take back"):
        ledger.take_back(ticket, "x")
    assert statuses(ledger) == {1: Status.COMMITTING}


@pytest.mark.parametrize("status", [None, Status.PROCESSING, Status.PROCESSED, Status.FAILED, Status.SKIPPED])
def test_l12_there_is_nothing_to_take_back_where_no_commit_has_begun(ledger: Ledger, status: Status | None) -> None:
    begun(ledger, 1)
    if status is not None:
        brought_to(ledger, 1, status)
    with pytest.raises(TransitionError, match=r"nothing to take back"):
        ledger.bar(1, owner="a person")
    commit(ledger, 1)
    with pytest.raises(TransitionError, match=r"every state has it.*nothing to take back"):
        ledger.bar(1, owner="a person")


# ---- L11, P12: what is replayed is on a list -------------------------------------------------------------------


def unfinished(ledger: Ledger) -> tuple[int, ...]:
    return ledger.view(0).exceptions.unfinished


@pytest.mark.parametrize("source", [None, Status.PROCESSING, Status.PROCESSED, Status.FAILED, Status.SKIPPED])
def test_l11_p12_a_replay_is_on_a_list_until_its_batch_is_staged_or_it_fails_again(
    ledger: Ledger, source: Status | None
) -> None:
    for number in (1, 2, 3):
        begun(ledger, number)
    if source is not None:
        brought_to(ledger, 2, source)
    for end in ("fail", "skip", "another attempt"):
        replay = single.attempt(ledger, 2, owner="a backfill", replays=source not in (Status.FAILED, Status.SKIPPED))
        assert (unfinished(ledger), ledger.view(0).exceptions.replaying) == ((2,), (2,))
        assert ledger.view(3).blocked_by(3) is None  # who waits for it waits, and is not refused
        assert ledger.view(3).waits_for(3) == 2
        if end == "fail":
            ledger.fail(2, replay.attempt, "again")
            assert (unfinished(ledger), ledger.view(3).blocked_by(3)) == ((2,), 2)
        elif end == "skip":
            ledger.skip(2, "let the others pass")
            assert unfinished(ledger) == ()
        source = Status.FAILED if end == "fail" else Status.SKIPPED
    replay = single.attempt(ledger, 2, owner="an emitter that was cleared meanwhile")
    assert unfinished(ledger) == (2,)
    single.processed(ledger, 2, replay.attempt, STAGED)
    assert unfinished(ledger) == ()
    commit(ledger, 1)
    single.committed(ledger, single.gate(ledger, 2, owner="c"))
    assert commit(ledger, 3).status is Status.COMMITTED
    assert ledger.view(0).exceptions == Exceptions()


def test_l11_p12_a_late_replay_is_on_a_list_until_it_is_committed(ledger: Ledger) -> None:
    begun(ledger, 1)
    ledger.skip(1, "x")
    commit(ledger, begun(ledger, 2))
    single.attempt(ledger, 1, owner="a backfill")
    assert unfinished(ledger) == (1,)
    ticket = gated(ledger, 1)
    assert unfinished(ledger) == (1,)
    single.committed(ledger, ticket)
    assert ledger.view(0).exceptions == Exceptions()


def test_a_transaction_that_a_state_may_hold_cannot_be_skipped(ledger: Ledger) -> None:
    ticket = gated(ledger, begun(ledger, 1))
    for step in (
        lambda: None,
        lambda: single.attempt(ledger, ticket, owner="c"),
        lambda: ledger.fail(1, 1, "used up"),
    ):
        step()
        with pytest.raises(TransitionError, match="has begun"):
            ledger.skip(1, "x")
