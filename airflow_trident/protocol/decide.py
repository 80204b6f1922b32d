"""Decisions as values. Pure: each function reads a view and says what to do; `runtime.phases` does it.

Opaque streams: a new attempt may choose another batch, and later batches behind the old one become invalid (P2).
Pure.

Above the commit pointer each new attempt chooses the batch of the opaque streams anew, behind the batch of the
transaction before. If it is another batch, the same step invalidates all later transactions: they have no batch until
they are attempted again. So invalidated transactions are always the last ones, up to the head. At and below the pointer
a batch is frozen, because later ones have gone on behind it.

After Storm's OpaquePartitionedTridentSpoutExecutor, which also forgets the metadata of later transactions.

Accepts a mended source: on a person's word, an uncommitted transaction takes what its source holds now (P2). Pure.

The transaction keeps its txid and gets a new attempt, so reports from attempts with the old batch come too late. Later
transactions keep their batches; where they record the position before them, that position follows the change.

What a person saw when they asked for an action: if it has changed since, the action is refused. Pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_trident.errors import ConfigurationError, InvalidatedError, TransitionError
from airflow_trident.protocol.records import (
    NO_ATTEMPT,
    NOBODY,
    Command,
    LedgerView,
    Status,
    TopologyRecord,
    TxRecord,
    move,
)
from airflow_trident.protocol.topologies import Definition
from airflow_trident.types import Json

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
    transaction itself, and is SKIPPED. `passed`: it is the asking transaction itself, and higher ones are committed."""

    by: int
    skipped: bool = False
    passed: bool = False


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
    if tx.status is Status.SKIPPED:
        return Blocked(txid, skipped=True)
    if tx.status is Status.FAILED:
        return Blocked(txid, passed=txid <= view.pointer.committed)
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


Position = dict[str, Json]


def is_decided_anew(definition: Definition, record: TxRecord, committed: int) -> bool:
    """Must the next attempt of a transaction choose its batch? Not the first attempt: its batch was just recorded.

    :param committed: the commit pointer.
    """
    untouched = record.attempt == NO_ATTEMPT and not record.invalidated
    return bool(definition.opaque) and not untouched and record.txid > committed


def with_batch(
    definition: Definition,
    record: TxRecord,
    position: Position,
    metadata_of: Callable[[int, Position], Position | None] | None,
) -> TxRecord:
    """Gives the record a batch of its opaque streams that begins at `position`; the other streams keep theirs.

    :raises ConfigurationError: there is no `metadata_of`.
    """
    from airflow_trident.protocol import codec

    if metadata_of is None:
        raise ConfigurationError(
            f"transaction {record.txid} has an opaque spout, and this attempt cannot choose its batch",
            "Start its attempts with the topology at hand (metadata_of).",
        )
    before = {stream: value for stream, value in position.items() if stream in definition.opaque}
    # A copy: a spout may change its argument, and the change must not get into what is carried on.
    batch = metadata_of(record.txid, codec.require_json(before, "the position")) or {}
    chosen = {
        stream: codec.require_json(value, f"the metadata of stream {stream!r}")
        for stream, value in batch.items()
        if stream in definition.opaque
    }
    metadata = _without_opaque(definition, record.metadata) | chosen
    carried = {stream: value for stream, value in position.items() if stream not in metadata}
    return replace(record, metadata=metadata, carried=carried, invalidated=False)


def invalidated(definition: Definition, record: TxRecord) -> TxRecord:
    """Removes the batch of the opaque streams. FAILED and SKIPPED go too: they were about that batch."""
    return replace(
        record.with_past_attempt(),
        status=move(record.status, Status.PROCESSING, txid=record.txid),
        attempt=record.attempt + 1,
        metadata=_without_opaque(definition, record.metadata),
        carried=_without_opaque(definition, record.carried),
        staged=None,
        checks={},
        invalidated=True,
        owner=NOBODY,
        error="",
    )


def require_batch(record: TxRecord, txid: int) -> Position:
    """The position behind `record`, where transaction `txid` begins.

    :raises InvalidatedError: `record` has no batch.
    """
    if record.invalidated:
        raise InvalidatedError(
            f"transaction {txid} cannot be attempted: it goes on behind transaction {record.txid}, which has no batch "
            "since a lower one was attempted again",
            f"Attempt transaction {record.txid} first; its committer does so when its turn comes.",
        )
    return record.position


def cannot_skip(txid: int) -> InvalidatedError:
    return InvalidatedError(
        f"transaction {txid} cannot be skipped: it has no batch since a lower one was attempted again, and later ones "
        "could not go on behind it",
        "Attempt it first.",
    )


def _without_opaque(definition: Definition, streams: Mapping[str, Json]) -> Position:
    return {stream: value for stream, value in streams.items() if stream not in definition.opaque}


class MendedSources(ABC):
    """The coordinators of the streams: see `Coordinator.accept_source` and `Coordinator.follow_source`."""

    @abstractmethod
    def accept(self, stream: str, metadata: Json) -> Json: ...

    @abstractmethod
    def follow(self, stream: str, later: Json, accepted: Json) -> Json: ...


def accepted(
    record: TxRecord, later: Sequence[TxRecord], sources: MendedSources, *, committed: int, reason: str
) -> tuple[TxRecord, list[TxRecord]]:
    """The record with its new metadata (to be moved to FAILED unless it is SKIPPED), and the later records that change.

    :param later: the records above it, in txid order.
    :param committed: the commit pointer.
    :raises TransitionError: a state has or may have its batch, later transactions have gone on behind it, or its source
        has not changed.
    """
    from airflow_trident.protocol import codec

    _require_uncommitted(record, committed)
    new_metadata = {
        stream: codec.require_json(sources.accept(stream, value), f"the metadata of stream {stream!r}")
        for stream, value in record.metadata.items()
    }
    changed = {stream: value for stream, value in new_metadata.items() if value != record.metadata[stream]}
    if not changed:
        raise TransitionError(
            f"the source of transaction {record.txid} is as it was recorded: there is nothing to accept",
            "Replay it: `airflow trident backfill TOPOLOGY --txid TXID`.",
        )
    after = replace(
        record.with_past_attempt(),
        metadata={**record.metadata, **changed},
        attempt=record.attempt + 1,
        staged=None,
        checks={},
        accepted=(*record.accepted, reason),
    )
    if record.status is not Status.SKIPPED:  # its error says what to do before the source was accepted
        replay = f"`airflow trident backfill TOPOLOGY --txid {record.txid}`, or clear its run"
        after = replace(after, error=f"The source was accepted as it is now. Replay it: {replay}.", first_error="")
    followed = []
    for above in later:
        follower = replace(
            above,
            metadata=_following(above.metadata, changed, sources),
            carried=_following(above.carried, changed, sources),
        )
        if follower != above:
            followed.append(follower)
    return after, followed


def _following(position: dict[str, Json], changed: dict[str, Json], sources: MendedSources) -> dict[str, Json]:
    return {
        stream: sources.follow(stream, value, changed[stream]) if stream in changed else value
        for stream, value in position.items()
    }


def _require_uncommitted(record: TxRecord, committed: int) -> None:
    anew = "Put what is to be corrected into new files (or records) of the source."
    if record.status is Status.COMMITTED:
        why, cure = "it is COMMITTED: the states have its batch", anew
    elif record.touched or record.status is Status.COMMITTING:
        why = "a commit of it has begun, so a state may hold its batch"
        cure = "Put the source back as it was and replay it: its commit finds out what the states hold."
    elif record.txid <= committed:
        why, cure = "it was SKIPPED, and later ones have gone on behind its batch", anew
    elif record.invalidated:
        why, cure = "it has no batch at the moment", "Attempt it: its opaque spout chooses the batch anew."
    else:
        return
    raise TransitionError(f"transaction {record.txid} cannot take its source as it is now: {why}", cure)


@dataclass(frozen=True, slots=True)
class SeenTransaction:
    """A transaction as it was shown; `attempt` is NO_ATTEMPT for one that was never attempted."""

    status: Status
    attempt: int = NO_ATTEMPT

    def require(self, tx: TxRecord) -> None:
        """:raises TransitionError: the transaction has changed since; the text names its status now."""
        if (tx.status, tx.attempt) != (self.status, self.attempt):
            raise TransitionError(
                f"transaction {tx.txid} has moved: it is {tx.status}{_attempt(tx.attempt)} now, and was "
                f"{self.status}{_attempt(self.attempt)} when this was asked for; nothing was changed",
                "Look at it again.",
            )


@dataclass(frozen=True, slots=True)
class SeenTopology:
    """A topology as it was shown: the epoch of its lifecycle command."""

    epoch: int

    def require(self, topology: TopologyRecord) -> None:
        """:raises TransitionError: it was given another command since."""
        if topology.epoch != self.epoch:
            raise TransitionError(
                f"topology {topology.name!r} was given another command meanwhile: it is {str(topology.command)!r} now; "
                "nothing was changed",
                "Look at it again.",
            )


def _attempt(attempt: int) -> str:
    return "" if attempt == NO_ATTEMPT else f", attempt {attempt}"
