"""The checkpoint protocol of stateful functions: one table of states, and the decisions of a store's steps. Pure.

After Storm's CheckpointSpout and KeyValueState. A checkpoint of txid n first prepares the states of all partitions,
then commits them all. A durable :class:`CheckpointRecord` keeps its progress. After a crash, the next run follows the
recovery column of :data:`TABLE`:

============  ==========================  ==========================================
state         normal: action -> next      recovering: action -> next
============  ==========================  ==========================================
PREPARING n   PREPARE -> COMMITTING n     ROLLBACK -> COMMITTED, the transaction before n
COMMITTING n  COMMIT -> COMMITTED n       COMMIT -> COMMITTED n
COMMITTED n   none: wait for `begin`      INITSTATE -> COMMITTED n, recovery is over
============  ==========================  ==========================================

Writing COMMITTING is the decision: before it, nothing of n is visible; after it, all of n will be committed. Unlike
Storm's txids, ours may have gaps (skipped transactions), so the record names the transaction before. Every step carries
a fence, so a zombie cannot prepare or commit over a newer committer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from airflow_trident.errors import FencedError, TransitionError
from airflow_trident.protocol.durable_format import Format
from airflow_trident.types import Json

VERSION = 1
FORMAT = Format(
    noun="the checkpoint record of",
    version=VERSION,
    cure="Nothing is guessed: restore the store from a copy, or rebuild the state.",
)


class CheckpointState(StrEnum):
    """How far the checkpoint of a transaction is."""

    PREPARING = "PREPARING"
    """Some partitions may have prepared; nothing counts yet."""
    COMMITTING = "COMMITTING"
    """All partitions have prepared, so the commit is decided; some may have committed."""
    COMMITTED = "COMMITTED"
    """All partitions have committed."""


class Action(StrEnum):
    """What is asked of every partition (Storm: CheckPointState.Action)."""

    PREPARE = "PREPARE"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    INITSTATE = "INITSTATE"


class Mode(StrEnum):
    """RECOVERING: another run left this checkpoint unfinished. It ends with INITSTATE."""

    NORMAL = "normal"
    RECOVERING = "recovering"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """Durable; one per stateful node. `previous`: the transaction that was committed before `txid`, 0 for none."""

    txid: int = 0
    state: CheckpointState = CheckpointState.COMMITTED
    previous: int = 0


@dataclass(frozen=True, slots=True)
class Transition:
    """Do `action` in every partition, then write `then`. `recovered`: nothing is left to recover after it."""

    action: Action
    then: CheckpointRecord
    recovered: bool = False


TABLE: dict[tuple[CheckpointState, Mode], tuple[Action, CheckpointState] | None] = {
    (CheckpointState.PREPARING, Mode.NORMAL): (Action.PREPARE, CheckpointState.COMMITTING),
    (CheckpointState.COMMITTING, Mode.NORMAL): (Action.COMMIT, CheckpointState.COMMITTED),
    (CheckpointState.COMMITTED, Mode.NORMAL): None,
    (CheckpointState.PREPARING, Mode.RECOVERING): (Action.ROLLBACK, CheckpointState.COMMITTED),
    (CheckpointState.COMMITTING, Mode.RECOVERING): (Action.COMMIT, CheckpointState.COMMITTED),
    (CheckpointState.COMMITTED, Mode.RECOVERING): (Action.INITSTATE, CheckpointState.COMMITTED),
}
"""The only table. None: there is nothing to do until a transaction begins."""


def begin(record: CheckpointRecord, txid: int) -> CheckpointRecord:
    """The record of a new checkpoint of `txid`.

    :raises TransitionError: the last checkpoint has not ended, or `txid` is not above it.
    """
    if record.state is not CheckpointState.COMMITTED or txid <= record.txid:
        raise TransitionError(
            f"the checkpoint of transaction {txid} cannot begin where {record.txid} is {record.state}",
            "Recover what was left first; a transaction is checkpointed once, in the order of txids.",
        )
    return CheckpointRecord(txid=txid, state=CheckpointState.PREPARING, previous=record.txid)


def decide(record: CheckpointRecord, mode: Mode) -> Transition | None:
    """The next step; None if there is none."""
    row = TABLE[record.state, mode]
    if row is None:
        return None
    action, state = row
    if action is Action.INITSTATE:
        return Transition(action, record, recovered=True)
    if action is Action.ROLLBACK:
        return Transition(action, CheckpointRecord(txid=record.previous, state=state, previous=record.previous))
    return Transition(action, replace(record, state=state))


# ---- the record as JSON ----------------------------------------------------------------------------------------


def encode_checkpoint(record: CheckpointRecord) -> dict[str, Json]:
    return {"v": VERSION, "txid": record.txid, "state": str(record.state), "previous": record.previous}


def decode_checkpoint(value: Any, subject: str) -> CheckpointRecord:
    """:param subject: names the record in errors.
    :raises CorruptRecordError: it is not a record.
    :raises NewerRecordError: a newer version wrote it.
    """
    body = FORMAT.open(value, subject)
    record = FORMAT.build(CheckpointRecord, body, subject, needed=("txid", "state", "previous"))
    txid, previous, state = record.txid, record.previous, record.state
    in_order = 0 <= previous <= txid if state is CheckpointState.COMMITTED else 0 <= previous < txid
    if not in_order:
        raise FORMAT.damaged(subject, f"{state} {txid} after {previous}")
    return record


# ---- the steps of one namespace --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What a namespace records about itself. Its store changes this in the same step as the data.

    `prepared`: the txid whose writes wait for commit or rollback, prepared under `fence`; `committed`: the last
    committed txid, 0 for none; `fence`: the highest one seen.
    """

    prepared: int | None = None
    committed: int = 0
    fence: int = 0


class Step(StrEnum):
    """What a step did."""

    DONE = "done"
    ALREADY = "already done"


def admit_prepare(marks: Marks, txid: int, fence: int, namespace: str) -> tuple[Marks, Step]:
    """May the writes be kept as prepared for `txid`? ALREADY: it is committed, so the writes are dropped.

    :raises FencedError, TransitionError: see the promises of `states.keyvalue.base.KeyValueState`.
    """
    require_fence(marks, fence, namespace, f"prepare {txid}")
    if txid < 1:
        raise _refused(namespace, marks, f"transaction {txid} cannot be prepared", "Txids begin at 1.")
    if marks.prepared is not None and fence != marks.fence:
        raise _refused(
            namespace, marks, f"transaction {txid} cannot be prepared", "Commit or roll back what another left."
        )
    if marks.prepared not in (None, txid):
        raise _refused(namespace, marks, f"transaction {txid} cannot be prepared", "Commit or roll back first.")
    if txid < marks.committed:
        raise _refused(namespace, marks, f"transaction {txid} cannot be prepared", "Txids only rise.")
    if txid == marks.committed:
        return replace(marks, fence=fence), Step.ALREADY
    return Marks(prepared=txid, committed=marks.committed, fence=fence), Step.DONE


def admit_commit(marks: Marks, txid: int, fence: int, namespace: str) -> tuple[Marks, Step]:
    """May the prepared writes become the committed data?

    :raises FencedError, TransitionError: as above.
    """
    require_fence(marks, fence, namespace, f"commit {txid}")
    if marks.prepared == txid:
        return Marks(prepared=None, committed=txid, fence=fence), Step.DONE
    if marks.prepared is None and marks.committed == txid:
        return replace(marks, fence=fence), Step.ALREADY
    raise _refused(namespace, marks, f"transaction {txid} cannot be committed", "Prepare it first.")


def admit_direct(marks: Marks, fence: int, namespace: str) -> Marks:
    """May writes become committed data at once, without a txid?

    :raises FencedError, TransitionError: as above.
    """
    require_fence(marks, fence, namespace, "commit")
    if marks.prepared is not None:
        raise _refused(namespace, marks, "writes cannot be committed without a txid", "Commit or roll back first.")
    return replace(marks, fence=fence)


def admit_rollback(marks: Marks, fence: int, namespace: str) -> Marks:
    """May the prepared writes be dropped?

    :raises FencedError: a newer committer was here.
    """
    require_fence(marks, fence, namespace, "roll back")
    return Marks(prepared=None, committed=marks.committed, fence=fence)


def require_fence(marks: Marks, fence: int, namespace: str, action: str) -> None:
    """:raises FencedError: a newer committer was here."""
    if fence < marks.fence:
        raise FencedError(
            f"namespace {namespace!r} was reached by a newer committer (fence {marks.fence}) than the one that wants "
            f"to {action} (fence {fence})",
            "Nothing was changed; the newer committer finishes the work.",
        )


def _refused(namespace: str, marks: Marks, problem: str, cure: str) -> TransitionError:
    prepared = f"transaction {marks.prepared} is prepared" if marks.prepared is not None else "nothing is prepared"
    return TransitionError(
        f"{problem} in namespace {namespace!r}: {prepared} and {marks.committed} committed (fence {marks.fence})", cure
    )
