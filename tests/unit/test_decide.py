"""Decisions: from what the ledger holds to what a phase does. Every answer, and who gets it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_trident.protocol.decide import (
    AlreadyCommitted,
    Begin,
    Blocked,
    Commit,
    CommitUnderWay,
    Full,
    Paused,
    Process,
    Unknown,
    Wait,
    decide_begin,
    decide_commit,
    decide_process,
)
from airflow_trident.protocol.records import (
    NO_ATTEMPT,
    Claim,
    Command,
    CommitPointer,
    Exceptions,
    LedgerView,
    StagedRef,
    Status,
    TopologyRecord,
    TxRecord,
)
from airflow_trident.protocol.topologies import Definition
from airflow_trident.protocol.txids import Txids

STAGED = StagedRef(manifest="m", rows_read=1, rows={"s": 1}, bytes=1)


def tx(txid: int, status: Status, attempt: int = 0, **more: Any) -> TxRecord:
    return TxRecord(
        txid=txid, status=status, attempt=attempt, metadata={"s": txid}, claim=Claim(key=str(txid)), op="x", **more
    )


def view(
    next_txid: int, committed: int, record: TxRecord | None = None, *, command: Command = Command.RUN, **lists: Any
) -> LedgerView:
    return LedgerView(
        topology=TopologyRecord(
            name="t", incarnation="i", definition=Definition(spouts={}, states={}), command=command
        ),
        next_txid=next_txid,
        pointer=CommitPointer(committed=committed, fence=committed),
        exceptions=Exceptions(**lists),
        tx=record,
    )


# ---- coordinator -----------------------------------------------------------------------------------------------


def test_a_transaction_begins_while_the_window_has_room() -> None:
    assert decide_begin(view(1, 0), max_pending=1) == Begin(1)
    assert decide_begin(view(6, 4), max_pending=2) == Begin(6)


def test_p5_a_full_window_waits_for_the_oldest() -> None:
    assert decide_begin(view(6, 3), max_pending=2) == Full(oldest=4, pending=2)


def test_a_failed_transaction_blocks_only_when_the_window_is_full() -> None:
    assert decide_begin(view(6, 3, failed=(4,)), max_pending=3) == Begin(6)
    assert decide_begin(view(6, 3, failed=(4,)), max_pending=2) == Blocked(by=4)


def test_a_late_replay_that_failed_does_not_block_the_coordinator() -> None:
    assert decide_begin(view(6, 3, failed=(2,)), max_pending=2) == Full(oldest=4, pending=2)


@pytest.mark.parametrize("command", [Command.PAUSE, Command.SHUTDOWN])
def test_a_held_topology_begins_nothing(command: Command) -> None:
    assert decide_begin(view(1, 0, command=command), max_pending=1) == Paused(command)


# ---- emitter ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [Status.PROCESSING, Status.PROCESSED, Status.FAILED, Status.SKIPPED])
def test_an_emitter_starts_the_next_attempt(status: Status) -> None:
    assert decide_process(view(3, 0, tx(2, status, 4)), 2) == Process(5)
    assert decide_process(view(3, 0, tx(2, Status.PROCESSING, NO_ATTEMPT)), 2) == Process(0)


def test_an_emitter_leaves_alone_what_is_committing_or_committed() -> None:
    assert decide_process(view(3, 0, tx(2, Status.COMMITTING)), 2) == CommitUnderWay(2)
    assert decide_process(view(3, 2, tx(2, Status.COMMITTED)), 2) == AlreadyCommitted(2)
    assert decide_process(view(9, 8), 2) == AlreadyCommitted(2, pruned=True)


@pytest.mark.parametrize("txid", [0, -1, 3, 4])
def test_a_txid_that_was_never_begun_is_unknown_to_every_phase(txid: int) -> None:
    assert decide_process(view(3, 0), txid) == Unknown(txid, 3)
    assert decide_commit(view(3, 0), txid) == Unknown(txid, 3)


# ---- committer -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [Status.PROCESSED, Status.COMMITTING])
def test_p6_the_next_one_commits_when_its_batch_is_staged(status: Status) -> None:
    assert decide_commit(view(9, 4, tx(5, status, staged=STAGED)), 5) == Commit(5)


def test_p6_a_committer_waits_for_the_nearest_lower_one_that_is_not_done() -> None:
    assert decide_commit(view(9, 2, tx(5, Status.PROCESSED)), 5) == Wait(4, "transaction 4 is not committed yet")
    waits = decide_commit(view(9, 2, tx(5, Status.PROCESSED), skipped=Txids.of(4)), 5)
    assert waits == Wait(3, "transaction 3 is not committed yet")
    assert decide_commit(view(9, 2, tx(5, Status.PROCESSED), skipped=Txids.of(3, 4)), 5) == Commit(5)


def test_a_committer_waits_for_its_own_batch() -> None:
    assert decide_commit(view(9, 4, tx(5, Status.PROCESSING, 1)), 5) == Wait(
        5, "attempt 1 of transaction 5 is still processing"
    )
    assert decide_commit(view(9, 4, tx(5, Status.PROCESSING, NO_ATTEMPT)), 5) == Wait(
        5, "transaction 5 has not been attempted yet"
    )


def test_p6_a_failed_lower_one_ends_the_wait_at_once() -> None:
    assert decide_commit(view(9, 2, tx(5, Status.PROCESSED), failed=(3, 4)), 5) == Blocked(3)
    assert decide_commit(view(9, 2, tx(5, Status.PROCESSED), failed=(7,)), 5) == Wait(
        4, "transaction 4 is not committed yet"
    )


@pytest.mark.parametrize("status", [Status.FAILED, Status.SKIPPED])
def test_a_committer_of_a_failed_or_skipped_one_is_blocked_by_it(status: Status) -> None:
    assert decide_commit(view(9, 4, tx(5, status)), 5) == Blocked(5, skipped=status is Status.SKIPPED)


def test_what_is_committed_is_a_success_also_when_its_record_is_pruned() -> None:
    assert decide_commit(view(9, 5, tx(5, Status.COMMITTED)), 5) == AlreadyCommitted(5)
    assert decide_commit(view(9, 8), 5) == AlreadyCommitted(5, pruned=True)


def test_a_late_backfill_waits_for_nobody() -> None:
    late = view(9, 8, tx(3, Status.PROCESSED), late=(3,), failed=(2,))
    assert (late.waits_for(3), late.blocked_by(3), late.pending) == (None, None, 0)
    assert decide_commit(late, 3) == Commit(3)


# ---- properties ------------------------------------------------------------------------------------------------


@st.composite
def windows(draw: st.DrawFn) -> tuple[LedgerView, dict[int, Status]]:
    """A ledger as its verbs leave it: the pointer never stands before a skipped one."""
    committed = draw(st.integers(0, 5))
    above = draw(st.lists(st.sampled_from(list(Status)).filter(lambda one: not one.is_final), max_size=6))
    if above and above[0] is Status.SKIPPED:
        above[0] = Status.PROCESSED
    now = {committed + 1 + index: status for index, status in enumerate(above)}

    def listed(status: Status) -> tuple[int, ...]:
        return tuple(txid for txid, its in now.items() if its is status)

    record_of = draw(st.sampled_from([None, *now]))
    record = tx(record_of, now[record_of], staged=STAGED) if record_of else None
    lists = {"failed": listed(Status.FAILED), "skipped": Txids.of(*listed(Status.SKIPPED))}
    return view(committed + 1 + len(above), committed, record, **lists), now


@given(windows())
def test_p6_a_commit_is_decided_exactly_when_all_lower_ones_let_it_pass(window: tuple[LedgerView, dict]) -> None:
    found, now = window
    if found.tx is None:
        return
    txid = found.tx.txid
    lower_pass = all(now[lower].lets_others_pass for lower in now if lower < txid)
    staged = now[txid] in (Status.PROCESSED, Status.COMMITTING)
    assert (decide_commit(found, txid) == Commit(txid)) == (lower_pass and staged)


@given(windows(), st.integers(1, 8))
def test_p5_nothing_begins_beyond_the_window(window: tuple[LedgerView, dict], max_pending: int) -> None:
    found, now = window
    decision = decide_begin(found, max_pending=max_pending)
    assert isinstance(decision, Begin) == (len(now) < max_pending)
    if isinstance(decision, Begin):
        assert decision.txid == found.next_txid
