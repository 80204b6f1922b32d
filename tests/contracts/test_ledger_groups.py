"""What every ledger promises about groups: their steps are those of their members, in one (L15, P6)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

import pytest

from airflow_trident.errors import ConfigurationError, FencedError, StaleAttemptError, TransitionError
from airflow_trident.ledger.answers import Begun, NextBatches, NothingNew, StagedAttempt
from airflow_trident.ledger.ledger import Ledger, ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.protocol.decide import Full, Paused
from airflow_trident.protocol.records import Command, CommitTicket, Status
from airflow_trident.types import Json
from tests.fixtures import single
from tests.fixtures.ledger import (
    DEFINITION,
    OTHER_STAGED,
    STAGED,
    Interrupted,
    Place,
    begun,
    claim,
    commit,
    committed_up_to,
    lines,
    processed,
    statuses,
)

ALL = 100


def some_lines(txid: int, position: dict[str, Json], most: int) -> list[dict[str, Json]]:
    found: list[dict[str, Json]] = []
    for number in range(most):
        found.append(lines(txid + number, position))
        position = found[-1]
    return found


def none_at_all(txid: int, position: dict[str, Json], most: int) -> list[dict[str, Json]]:
    return []


def begun_many(ledger: Ledger, first: int, last: int, **named: object) -> list[int]:
    claims = [claim(number) for number in range(first, last + 1)]
    result = ledger.begin(NextBatches(claims, some_lines, **{"max_pending": ALL, "attempt_by": "drain", **named}))
    assert isinstance(result, tuple), result
    return [one.txid for one in result]


def staged(txids: Sequence[int], attempt: int = 0) -> list[StagedAttempt]:
    return [StagedAttempt(txid=txid, attempt=attempt, staged=STAGED) for txid in txids]


def gated_many(ledger: Ledger, first: int, last: int) -> tuple[CommitTicket, ...]:
    return ledger.processed(staged(begun_many(ledger, first, last)), gate_by="drain").tickets


def everything(ledger: Ledger) -> tuple[object, ...]:
    """What the ledger holds."""
    return ledger.view(0), tuple(ledger.transactions()), ledger.export()["claims"]


# ---- begin -----------------------------------------------------------------------------------------------------


def test_l15_p1_a_group_gets_the_txids_and_batches_that_its_members_would_get(ledger: Ledger) -> None:
    commit(ledger, begun(ledger, 1))
    assert begun_many(ledger, 2, 4) == [2, 3, 4]
    records = [ledger.view(txid).tx for txid in (2, 3, 4)]
    assert [record.metadata for record in records] == [{"lines": {"from": at, "until": at + 1}} for at in (1, 2, 3)]
    assert {(record.status, record.attempt, str(record.owner)) for record in records} == {
        (Status.PROCESSING, 0, "drain")
    }
    assert begun(ledger, 5) == 5


def test_l15_p1_a_claim_of_a_group_gets_the_same_txid_again_alone_and_in_another_group(ledger: Ledger) -> None:
    assert begun_many(ledger, 1, 3) == [1, 2, 3]
    again = ledger.begin(NextBatches([claim(2), claim(3), claim(4), claim(1), claim(5)], some_lines, max_pending=ALL))
    assert isinstance(again, tuple)
    assert [(one.txid, one.new) for one in again] == [(2, False), (3, False), (4, True), (1, False), (5, True)]
    assert single.begin(ledger, claim(1), lines) == Begun(record=ledger.view(1).tx, txid=1, new=False)


def test_l15_p5_a_group_is_as_large_as_there_is_room_and_as_there_are_batches(ledger: Ledger) -> None:
    def of_five(txid: int, position: dict[str, Json], most: int) -> list[dict[str, Json]]:
        return some_lines(txid, position, min(most, 5 - position["lines"]["until"]))

    claims = [claim(number) for number in range(1, 10)]
    assert begun_many(ledger, 1, 9, max_pending=3) == [1, 2, 3]
    known = ledger.begin(NextBatches(claims, some_lines, max_pending=3))
    assert isinstance(known, tuple)
    assert [one.new for one in known] == [False] * 3
    assert ledger.begin(NextBatches(claims[3:], some_lines, max_pending=3)) == Full(oldest=1, pending=3)
    assert ledger.begin(NextBatches(claims[3:], none_at_all, max_pending=9)) == NothingNew()
    result = ledger.begin(NextBatches(claims[3:], of_five, max_pending=9))
    assert isinstance(result, tuple)
    assert [one.txid for one in result] == [4, 5]
    ledger.set_command(Command.PAUSE)
    assert ledger.begin(NextBatches(claims[5:], some_lines, max_pending=9)) == Paused(Command.PAUSE)


def test_l15_p1_of_groups_that_begin_at_once_each_transaction_has_one_claim_and_one_batch(place: Place) -> None:
    clients = [place.registered() for _ in range(3)]
    start = threading.Barrier(len(clients))

    def begin(number: int) -> list[int]:
        start.wait(30)
        return begun_many(clients[number], 10 * number + 1, 10 * number + 3)

    with ThreadPoolExecutor(len(clients)) as pool:
        groups = list(pool.map(begin, range(len(clients))))
    assert sorted(txid for group in groups for txid in group) == list(range(1, 10))
    assert all(group == list(range(group[0], group[0] + 3)) for group in groups)
    found = [tx.metadata["lines"] for tx in clients[0].transactions()]
    assert found == [{"from": at, "until": at + 1} for at in range(9)]


def test_two_claims_of_a_group_that_are_the_same_are_refused(ledger: Ledger) -> None:
    with pytest.raises(ConfigurationError, match="another key"):
        ledger.begin(NextBatches([claim(1), claim(1)], some_lines, max_pending=ALL))


# ---- attempts --------------------------------------------------------------------------------------------------


def test_l15_p3_new_attempts_of_a_group_are_those_of_its_members_whatever_they_were_at(ledger: Ledger) -> None:
    tickets = gated_many(ledger, 1, 2)
    begun_many(ledger, 3, 5)
    ledger.fail(4, 0, "used up")
    records = ledger.attempt([*tickets, 3, 4, 5], owner="drain")
    assert [(one.txid, one.attempt, one.status) for one in records] == [
        (txid, 1, Status.PROCESSING) for txid in (1, 2, 3, 4, 5)
    ]
    assert (ledger.view(0).exceptions.failed, ledger.view(0).exceptions.replaying) == ((), (4,))
    with pytest.raises(FencedError):
        ledger.committed(tickets)


def test_l15_l11_a_group_that_is_replayed_is_on_the_list_until_it_is_processed(ledger: Ledger) -> None:
    begun_many(ledger, 1, 4)
    ledger.fail(2, 0, "used up")
    records = ledger.attempt([1, 2, 3], owner="a person", replays=True)
    assert ledger.view(0).exceptions.replaying == (1, 2, 3)
    ledger.processed([replace(one, attempt=1) for one in staged([1, 2])])
    assert ledger.view(0).exceptions.replaying == (3,)
    ledger.fail(3, records[2].attempt, "again")
    assert (ledger.view(0).exceptions.failed, ledger.view(0).exceptions.replaying) == ((3,), ())


def test_l15_p4_a_member_that_somebody_else_attempts_again_keeps_the_whole_group_from_being_processed(
    place: Place,
) -> None:
    ledger, other = place.registered(), place.registered()
    txids = begun_many(ledger, 1, 5)
    single.attempt(other, 3, owner="somebody")
    before = everything(other)
    for step in (ledger.processed, lambda done: ledger.processed(done, gate_by="drain")):
        with pytest.raises(StaleAttemptError, match="transaction 3"):
            step(staged(txids))
        assert everything(other) == before
    assert [one.txid for one in ledger.processed(staged([1, 2, 4, 5])).records] == [1, 2, 4, 5]


def test_l15_p4_a_member_that_a_person_skips_keeps_the_whole_group_from_being_processed(place: Place) -> None:
    ledger, other = place.registered(), place.registered()
    txids = begun_many(ledger, 1, 3)
    other.skip(2, "let the others pass")
    before = everything(other)
    with pytest.raises(TransitionError, match="transaction 2 is SKIPPED"):
        ledger.processed(staged(txids), gate_by="drain")
    assert everything(other) == before


# ---- gate ------------------------------------------------------------------------------------------------------


def test_l15_p6_a_group_is_gated_with_one_fence_and_no_ticket_waits_for_another(ledger: Ledger) -> None:
    commit(ledger, begun(ledger, 1))
    fence = ledger.view(0).pointer.fence
    tickets = gated_many(ledger, 2, 4)
    assert [(one.txid, one.attempt, one.fence, one.late) for one in tickets] == [
        (txid, 0, fence + 1, False) for txid in (2, 3, 4)
    ]
    assert [one.position for one in tickets] == [{"lines": {"from": at, "until": at + 1}} for at in (1, 2, 3)]
    assert [list(one.needed["counts"]) for one in tickets] == [[1], [1, 2], [1, 2, 3]]
    records = ledger.transactions(2)
    assert {(one.status, one.fence, one.touched, str(one.owner)) for one in records} == {
        (Status.COMMITTING, fence + 1, True, "drain")
    }
    assert ledger.view(0).pointer.fence == fence + 1
    assert ledger.view(0).pointer.committed == 1


def test_l15_p6_a_group_is_not_gated_before_its_turn_nor_with_a_gap(ledger: Ledger) -> None:
    txids = begun_many(ledger, 1, 4)
    ledger.processed(staged(txids))
    before = everything(ledger)
    for group, waits in (((2, 3), 1), ((1, 3), 2), ((1, 2, 4), 3)):
        with pytest.raises(TransitionError, match=f"transaction {waits} is not committed yet"):
            ledger.gate(group, owner="c")
    with pytest.raises(TransitionError, match="never begun"):
        ledger.gate([1, 2, 3, 4, 5], owner="c")
    assert everything(ledger) == before


def test_l15_p6_a_member_that_is_not_processed_keeps_the_whole_group_from_the_gate(ledger: Ledger) -> None:
    txids = begun_many(ledger, 1, 3)
    ledger.processed(staged(txids))
    single.attempt(ledger, 2, owner="somebody")
    before = everything(ledger)
    with pytest.raises(TransitionError, match="transaction 2 is still processing"):
        ledger.gate(txids, owner="c")
    assert everything(ledger) == before
    assert [one.txid for one in ledger.gate([1], owner="c")] == [1]


def test_l15_p6_a_group_goes_over_a_skipped_transaction(ledger: Ledger) -> None:
    begun_many(ledger, 1, 4)
    ledger.skip(2, "x")
    ledger.skip(4, "x")
    tickets = ledger.processed(staged([1, 3]), gate_by="drain").tickets
    assert [list(one.needed["counts"]) for one in tickets] == [[], [1]]
    ledger.committed(tickets)
    assert ledger.view(0).pointer.committed == 4
    assert list(statuses(ledger).values()) == [Status.COMMITTED, Status.SKIPPED, Status.COMMITTED, Status.SKIPPED]


def test_l15_p6_a_group_that_goes_over_a_skipped_transaction_finds_out_that_it_is_replayed_meanwhile(
    place: Place,
) -> None:
    ledger, other = place.registered(), place.registered()
    begun_many(ledger, 1, 3)
    ledger.skip(2, "x")
    single.attempt(other, 2, owner="a backfill")
    before = everything(other)
    with pytest.raises(TransitionError, match="transaction 2 is not committed yet"):
        ledger.processed(staged([1, 3]), gate_by="drain")
    assert everything(other) == before


@pytest.mark.parametrize("group", [(2, 1), (1, 1)])
def test_a_group_that_is_not_in_the_order_of_its_txids_is_refused(ledger: Ledger, group: Sequence[int]) -> None:
    begun_many(ledger, 1, 2)
    tickets = [ledger.processed(staged([1, 2]), gate_by="c").tickets[txid - 1] for txid in group]
    before = everything(ledger)
    steps: list[Callable[[], object]] = [
        lambda: ledger.attempt(group, owner="c"),
        lambda: ledger.processed(staged(group)),
        lambda: ledger.gate(group, owner="c"),
        lambda: ledger.committed(tickets),
    ]
    for step in steps:
        with pytest.raises(ConfigurationError, match="order of its txids"):
            step()
    assert everything(ledger) == before


def test_a_group_of_nobody_changes_nothing(ledger: Ledger) -> None:
    before = everything(ledger)
    assert ledger.begin(NextBatches([], some_lines)) == ()
    assert ledger.attempt([], owner="c") == ledger.processed([]).records == ()
    assert ledger.gate([], owner="c") == ledger.committed([]).records == ()
    assert everything(ledger) == before


# ---- committed -------------------------------------------------------------------------------------------------


def test_l15_p8_the_members_of_a_group_and_the_pointer_change_together(ledger: Ledger) -> None:
    tickets = gated_many(ledger, 1, 3)
    records = ledger.committed(tickets).records
    assert [(one.txid, one.status) for one in records] == [(txid, Status.COMMITTED) for txid in (1, 2, 3)]
    assert ledger.view(0).pointer.committed == 3
    before = everything(ledger)
    assert [one.txid for one in ledger.committed(tickets).records] == [1, 2, 3]
    assert everything(ledger) == before


@pytest.mark.parametrize("member", [1, 2, 3])
def test_l15_p7_a_newer_ticket_of_one_member_voids_the_commit_of_the_whole_group(place: Place, member: int) -> None:
    ledger, other = place.registered(), place.registered()
    tickets = gated_many(ledger, 1, 3)
    others = other.bar(member, owner="a person")
    before = everything(other)
    with pytest.raises(FencedError, match=f"transaction {member}"):
        ledger.committed(tickets)
    assert everything(other) == before
    assert others.fence == tickets[0].fence + 1
    assert not any(others.needed.values()), "none of them is committed"


def test_l15_p6_a_ticket_of_a_group_moves_the_pointer_over_no_other_one(ledger: Ledger) -> None:
    tickets = gated_many(ledger, 1, 4)
    before = everything(ledger)
    steps: list[Callable[[], object]] = [
        lambda: single.committed(ledger, tickets[1]),
        lambda: ledger.committed(tickets[1:]),
        lambda: ledger.committed([tickets[0], tickets[2]]),
    ]
    for step in steps:
        with pytest.raises(TransitionError, match=r"cannot be COMMITTED|is not the next one"):
            step()
        assert everything(ledger) == before
    single.committed(ledger, tickets[0])
    ledger.committed(tickets[1:3])
    assert ledger.committed(tickets).records == tuple(ledger.transactions())
    assert ledger.view(0).pointer.committed == 4


def test_l15_p9_what_a_killed_group_left_at_the_gate_is_committed_one_by_one_by_somebody_else(place: Place) -> None:
    ledger, other = place.registered(), place.registered()
    tickets = gated_many(ledger, 1, 3)
    for txid in (1, 2, 3):
        with pytest.raises(TransitionError) if txid < 3 else nullcontext():
            single.gate(other, 3, owner="somebody")
        single.committed(other, single.gate(other, txid, owner="somebody"))
    before = everything(other)
    with pytest.raises(FencedError):
        ledger.committed(tickets)
    assert everything(other) == before


def test_l15_p9_a_group_that_was_left_is_gated_again_as_another_group(place: Place) -> None:
    ledger, other = place.registered(), place.registered()
    tickets = gated_many(ledger, 1, 3)
    ledger.processed(staged(begun_many(ledger, 4, 5)))
    again = other.gate([1, 2, 3, 4], owner="somebody")
    assert {one.fence for one in again} == {tickets[0].fence + 1}
    with pytest.raises(FencedError):
        ledger.committed(tickets)
    other.committed(again)
    assert other.view(0).pointer.committed == 4


def test_l15_a_member_without_its_staged_batch_takes_the_group_back_and_its_tickets_are_void(ledger: Ledger) -> None:
    tickets = gated_many(ledger, 1, 2)
    records = ledger.attempt(tickets, owner="c")
    assert [(one.status, one.attempt, one.staged, one.touched) for one in records] == [
        (Status.PROCESSING, 1, None, True)
    ] * 2
    again = ledger.processed(
        [StagedAttempt(txid=txid, attempt=1, staged=OTHER_STAGED) for txid in (1, 2)], gate_by="c"
    ).tickets
    assert [one.staged for one in again] == [OTHER_STAGED] * 2
    assert [one.status for one in ledger.committed(again).records] == [Status.COMMITTED] * 2


# ---- pruning ---------------------------------------------------------------------------------------------------


def test_l15_p10_a_commit_of_a_group_prunes_what_came_before_it_and_none_of_its_own(ledger: Ledger) -> None:
    committed_up_to(ledger, 3)
    ledger.committed(gated_many(ledger, 4, 7), retention=2)
    assert list(statuses(ledger)) == [4, 5, 6, 7]
    ledger.committed(gated_many(ledger, 8, 8), retention=2)
    assert list(statuses(ledger)) == [7, 8]


def test_l15_p10_groups_that_are_larger_than_what_one_commit_prunes_leave_the_ledger_bounded(ledger: Ledger) -> None:
    size = 60
    for first in range(1, 4 * size, size):
        ledger.committed(gated_many(ledger, first, first + size - 1), retention=1)
        assert list(statuses(ledger)) == list(range(first, first + size))


def test_l15_late_rows_are_those_of_their_transactions_also_in_a_step_that_begins_others(ledger: Ledger) -> None:
    tickets = gated_many(ledger, 1, 3)
    then = NextBatches([claim(4)], some_lines, max_pending=9)
    result = ledger.committed(tickets, late_rows={2: {"counts": 5}}, then=then)
    assert [one.late_rows for one in result.records] == [{}, {"counts": 5}, {}]
    assert [one.txid for one in result.begun] == [4]


# ---- committed, and then begin ---------------------------------------------------------------------------------


def test_l15_p5_what_is_committed_makes_room_for_what_the_same_step_begins(ledger: Ledger) -> None:
    tickets = gated_many(ledger, 1, 3)
    claims = [claim(number) for number in range(4, 9)]
    result = ledger.committed(
        tickets, retention=1, then=NextBatches(claims, some_lines, max_pending=3, attempt_by="drain")
    )
    assert [one.status for one in result.records] == [Status.COMMITTED] * 3
    assert [(one.txid, one.new) for one in result.begun] == [(4, True), (5, True), (6, True)]
    assert [one.record for one in result.begun] == list(ledger.transactions(4))
    assert (ledger.view(0).pointer.committed, ledger.view(0).next_txid) == (3, 7)


def test_l15_what_cannot_be_begun_keeps_nobody_from_committing(ledger: Ledger) -> None:
    tickets = gated_many(ledger, 1, 2)
    result = ledger.committed(tickets[:1], then=NextBatches([claim(3)], some_lines, max_pending=1))
    assert (len(result.records), result.begun, result.why_not) == (1, (), Full(oldest=2, pending=1))
    result = ledger.committed(tickets[1:], then=NextBatches([claim(3)], none_at_all, max_pending=9))
    assert (len(result.records), result.begun, result.why_not) == (1, (), NothingNew())
    assert ledger.view(0).pointer.committed == 2


def test_l15_a_source_that_cannot_be_asked_leaves_both_undone(ledger: Ledger) -> None:
    def broken(txid: int, position: dict[str, Json], most: int) -> list[dict[str, Json]]:
        raise OSError("the folder is gone")

    tickets = gated_many(ledger, 1, 2)
    before = everything(ledger)
    with pytest.raises(OSError, match="the folder is gone"):
        ledger.committed(tickets, then=NextBatches([claim(3)], broken, max_pending=9))
    assert everything(ledger) == before
    assert len(ledger.committed(tickets).records) == 2


def test_l15_a_ticket_that_is_void_begins_nothing(place: Place) -> None:
    ledger, other = place.registered(), place.registered()
    tickets = gated_many(ledger, 1, 2)
    single.gate(other, 1, owner="somebody")
    before = everything(other)
    with pytest.raises(FencedError):
        ledger.committed(tickets, then=NextBatches([claim(3)], some_lines, max_pending=9))
    assert everything(other) == before


def test_what_single_steps_left_waiting_is_committed_as_a_group(ledger: Ledger) -> None:
    for number in (1, 2, 3):
        processed(ledger, begun(ledger, number))
    tickets = ledger.gate([1, 2, 3], owner="c")
    assert [one.status for one in ledger.committed(tickets).records] == [Status.COMMITTED] * 3


def test_l15_p10_what_is_committed_and_pruned_between_two_looks_of_a_group_is_not_called_damaged() -> None:
    tree = MemoryTree()
    slow = ZNodeLedger(Interrupted(tree, before="/tx/0000000000000000002"), "words")
    others = ZNodeLedger(MemoryZNodes(tree), "words")
    others.register(DEFINITION)
    tickets = gated_many(others, 1, 1)
    begun(others, 2)

    def overtake() -> None:
        slow.znodes.happens = lambda: None
        single.committed(others, single.gate(others, 1, owner="others"))
        commit(others, 2)
        begun(others, 3)
        commit(others, 3, retention=1)

    slow.znodes.happens = overtake
    with pytest.raises(FencedError, match="its record is gone"):
        slow.committed(tickets, then=NextBatches([claim(4)], some_lines, max_pending=9))
    assert [tx.txid for tx in slow.transactions()] == [3]
