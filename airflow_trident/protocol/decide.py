"""Decisions as values. Pure: each function reads a view and says what to do; `runtime.phases` does it."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_trident.protocol.records import NO_ATTEMPT, Command, LedgerView
from airflow_trident.protocol.statuses import Status

# ---- coordinator -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """A new transaction may begin as `txid`."""

    txid: int


@dataclass(frozen=True, slots=True)
class Full:
    """Wait for `oldest`: `max_pending` transactions are uncommitted (P5), or the last has no batch (invalidated)."""

    oldest: int
    pending: int


@dataclass(frozen=True, slots=True)
class Paused:
    """The lifecycle command forbids new transactions."""

    command: Command


@dataclass(frozen=True, slots=True)
class Blocked:
    """Transaction `by` is FAILED: waiting does not help until a person replays or skips it. `skipped`: it is the asking
    transaction itself, and is SKIPPED."""

    by: int
    skipped: bool = False


def decide_begin(view: LedgerView, *, max_pending: int) -> Begin | Full | Paused | Blocked:
    """May a new transaction begin?


    A FAILED transaction blocks only when the window is full. Until then later ones may be processed, and the replay's
    commit sweep commits them too.
    """
    if view.topology.command is not Command.RUN:
        return Paused(view.topology.command)
    if view.pending >= max_pending:
        blocked = view.blocked_by(view.next_txid)
        if blocked is not None:
            return Blocked(blocked)
        return Full(oldest=view.pointer.committed + 1, pending=view.pending)
    return Begin(view.next_txid)


# ---- emitter ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Process:
    """Start a new attempt with the number `attempt`."""

    attempt: int


@dataclass(frozen=True, slots=True)
class AlreadyCommitted:
    """Nothing to do, which is a success. `pruned`: its record is gone already."""

    txid: int
    pruned: bool = False


@dataclass(frozen=True, slots=True)
class CommitUnderWay:
    """Processing is over and a state may have been touched: only the committer may go on."""

    txid: int


@dataclass(frozen=True, slots=True)
class Closed:
    """A person closed it for good: it is neither processed nor committed."""

    txid: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """No such transaction was ever begun."""

    txid: int
    next_txid: int


ProcessDecision = Process | AlreadyCommitted | CommitUnderWay | Closed | Unknown


def decide_process(view: LedgerView, txid: int) -> ProcessDecision:
    """What does an emitter do about `txid`?


    Every run of an emitter is a new attempt, even if a staged batch exists: whoever clears a task wants it to run
    again, perhaps with a corrected function.
    """
    if view.tx is None:
        if txid >= view.next_txid or txid < 1:
            return Unknown(txid, view.next_txid)
        return AlreadyCommitted(txid, pruned=True)
    if view.tx.status is Status.COMMITTED:
        return AlreadyCommitted(txid)
    if view.tx.status is Status.CLOSED:
        return Closed(txid)
    if view.tx.status is Status.COMMITTING:
        return CommitUnderWay(txid)
    return Process(view.tx.attempt + 1)


# ---- committer -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Commit:
    """The turn of `txid` has come and its staged batch is recorded."""

    txid: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Not yet: `on` must change first."""

    on: int
    why: str


@dataclass(frozen=True, slots=True)
class EmitAgain:
    """The turn of `txid` has come, but it lost its batch: whoever commits it emits it again first."""

    txid: int


CommitDecision = Commit | EmitAgain | Wait | Blocked | AlreadyCommitted | Closed | Unknown


def decide_commit(view: LedgerView, txid: int) -> CommitDecision:
    """What does a committer of `txid` do now?"""
    tx = view.tx
    if tx is None:
        if txid >= view.next_txid or txid < 1:
            return Unknown(txid, view.next_txid)
        return AlreadyCommitted(txid, pruned=True)
    if tx.status is Status.COMMITTED:
        return AlreadyCommitted(txid)
    if tx.status is Status.CLOSED:
        return Closed(txid)
    blocked = view.blocked_by(txid)
    if blocked is not None:
        return Blocked(blocked)
    if tx.status in (Status.FAILED, Status.SKIPPED):
        return Blocked(txid, skipped=tx.status is Status.SKIPPED)
    predecessor = view.waits_for(txid)
    if predecessor is not None:
        return Wait(on=predecessor, why=f"transaction {predecessor} is not committed yet")
    if tx.status is Status.PROCESSING:
        if tx.invalidated:
            return EmitAgain(txid)
        if tx.attempt == NO_ATTEMPT:
            return Wait(on=txid, why=f"transaction {txid} has not been attempted yet")
        return Wait(on=txid, why=f"attempt {tx.attempt} of transaction {txid} is still processing")
    return Commit(txid)
