"""The verbs for a whole topology: its definition, its lifecycle command, and what its states hold and lack.

The verbs for one transaction that only a person asks for.

The coordinator's last outcome, as a record beside `head` and `commit`.

A reader ignores records that it cannot read: they are for people, and what a newer version wrote must not stop an older
one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from airflow_trident.contracts.wing import wings
from airflow_trident.errors import CorruptError, TransitionError
from airflow_trident.ledger.refusals import bound_otherwise, definition_changed, may_be_held
from airflow_trident.ledger.snapshot import Snapshot, Write
from airflow_trident.ledger.transact import Change, Unchanged
from airflow_trident.ledger.verbs import common
from airflow_trident.ledger.verbs.announcements import settled
from airflow_trident.ledger.verbs.opaque import rewrite
from airflow_trident.ledger.verbs.partitions import accepted_writes, closing_writes
from airflow_trident.protocol import codec
from airflow_trident.protocol.decide import MendedSources, SeenTopology, SeenTransaction, accepted, cannot_skip
from airflow_trident.protocol.durable_format import Format, plain_fields
from airflow_trident.protocol.exceptional_txids import closed, over_skipped, shifted
from airflow_trident.protocol.outcomes import CoordinatorOutcome, Lag, OutcomeKind
from airflow_trident.protocol.partition_keys import has_failed
from airflow_trident.protocol.records import (
    ERROR_CHARACTERS,
    Claim,
    Command,
    FormerState,
    Loss,
    Status,
    TopologyRecord,
    TxRecord,
)
from airflow_trident.protocol.topologies import Definition
from airflow_trident.protocol.txids import Txids


def redefine(
    snap: Snapshot, definition: Definition, *, accept_change: bool = False, empty: Collection[str] = ()
) -> Change[TopologyRecord] | Unchanged[TopologyRecord]:
    """Gives the topology another definition; see :meth:`Ledger.register`."""
    topology = snap.topology()
    differences = topology.definition.differences(definition)
    if topology.definition == definition:
        return Unchanged(topology)
    if topology.definition.partitions != definition.partitions:
        raise bound_otherwise(topology.name, differences[0])
    if differences and not accept_change:
        raise definition_changed(topology.name, differences)
    # What differs may be no change, such as the stream that a note names: keep what is written now.
    change = _new_topology(snap, redefined(topology, definition, snap.pointer().committed, empty, _open_commits(snap)))
    # No gate opens meanwhile: each checks the pointer.
    return replace(change, writes=(*change.writes, snap.set(snap.paths.commit, codec.encode_pointer(snap.pointer()))))


def _open_commits(snap: Snapshot) -> Txids:
    """The transactions that a state may hold although they are not COMMITTED."""
    unfinished = [*snap.exceptions().late, *range(snap.pointer().committed + 1, snap.next_txid())]
    snap.prefetch_transactions(unfinished)
    records = (tx for tx in map(snap.tx, unfinished) if tx is not None)
    return Txids.of(*(tx.txid for tx in records if tx.touched and not tx.status.is_final))


def set_command(
    snap: Snapshot, command: Command, *, seen: SeenTopology | None = None, by: str = ""
) -> Change[TopologyRecord]:
    """Changes the lifecycle command and raises its epoch by one. If the topology is deployed on workers, the same step
    tells them.

    :param seen: the topology as it was when the person decided; without it any is accepted.
    :param by: who, for people.
    :raises TransitionError: it was given another command since `seen`; or RUN, but not all workers have confirmed that
        they are initialised.
    """
    topology = snap.topology()
    if seen is not None:
        seen.require(topology)
    change = _new_topology(snap, replace(topology, command=command, epoch=topology.epoch + 1))
    following = (write for wing in wings() for write in wing.obeying(snap, topology, command, by))
    return replace(change, writes=(*change.writes, *following))


def _new_topology(snap: Snapshot, record: TopologyRecord) -> Change[TopologyRecord]:
    path = snap.paths.topology
    return Change(writes=(snap.set(path, codec.encode_topology(record, op=snap.op)),), witness=path, result=record)


def redefined(
    record: TopologyRecord, definition: Definition, committed: int, empty: Collection[str], open_commits: Txids
) -> TopologyRecord:
    """The topology with another definition. A new state, or a changed one that holds nothing, belongs to the topology
    from the next commit on.

    :param committed: the commit pointer.
    :param empty: the names of the states that hold nothing.
    :param open_commits: the transactions whose commits have begun and not ended.
    """
    before = record.definition
    anew = {
        name
        for name in definition.states
        if name not in before.states or (name in empty and not before.same_state(definition, name))
    }
    kept = definition.states.keys() - anew
    since = {name: first for name, first in record.since.items() if name in kept}
    return replace(
        record,
        definition=definition,
        since={**since, **dict.fromkeys(sorted(anew), committed + 1)},
        lost=tuple(loss for loss in record.lost if loss.state in kept),
        former=_former(record, definition, open_commits),
    )


def _former(record: TopologyRecord, definition: Definition, open_commits: Txids) -> tuple[FormerState, ...]:
    """The states that are no longer in the topology and may hold one of these transactions. A state that is back is
    asked itself."""
    leaving = (
        FormerState(state=name, place=old.place, txids=open_commits) for name, old in record.definition.states.items()
    )
    before = (replace(former, txids=former.txids & open_commits) for former in record.former)
    now = {(name, state.place) for name, state in definition.states.items()}
    return tuple(former for former in (*before, *leaving) if former.txids and (former.state, former.place) not in now)


def noted(record: TopologyRecord, since: Mapping[str, int], lost: Sequence[Loss], *, at_ms: int) -> TopologyRecord:
    """The topology with what its states, or a person, said."""
    return replace(
        record,
        since={**record.since, **since},
        lost=(*record.lost, *(replace(loss, at_ms=loss.at_ms or at_ms) for loss in lost)),
    )


def note_states(
    snap: Snapshot, *, since: Mapping[str, int] | None = None, lost: Sequence[Loss] = ()
) -> Change[TopologyRecord]:
    """Notes since when states belong to the topology, and which transactions a person gave up for them (L13)."""
    return _new_topology(snap, noted(snap.topology(), since or {}, lost, at_ms=snap.now_ms))


def note_told(snap: Snapshot, notified: Txids | None) -> Change[TopologyRecord] | Unchanged[TopologyRecord]:
    """Notes which transactions the spouts have been told of. From then on a commit prunes no other ones (L8).

    :param notified: COMMITTED or CLOSED ones, and any that are pruned; None: no spout wants to be told any more.
    """
    topology = snap.topology()
    after = notified if notified is None or topology.told is None else topology.told | notified
    return Unchanged(topology) if after == topology.told else _new_topology(snap, replace(topology, told=after))


def take_fence(snap: Snapshot) -> Change[int]:
    """A fence above all earlier ones, for a caller that brings a state up to its ledger outside of a commit.

    The topology's record is written unchanged with it, because the commit pointer has no place for an op id.
    """
    pointer, path = snap.pointer(), snap.paths.topology
    writes: list[Write] = [
        snap.set(path, codec.encode_topology(snap.topology(), op=snap.op)),
        snap.set(snap.paths.commit, codec.encode_pointer(replace(pointer, fence=pointer.fence + 1))),
    ]
    return Change(writes=tuple(writes), witness=path, result=pointer.fence + 1)


def require_closable(tx: TxRecord, committed: int) -> None:
    """:raises TransitionError: it is not SKIPPED, or a lower transaction is not committed yet."""
    if tx.status is not Status.SKIPPED:
        raise TransitionError(
            f"transaction {tx.txid} is {tx.status}, and only what is SKIPPED can be closed", "Skip it first."
        )
    if tx.txid > committed:
        raise TransitionError(
            f"transaction {tx.txid} cannot be closed yet: all up to {committed} are done, and one in between is not",
            "Close it when those before it are committed.",
        )


def skip(
    snap: Snapshot, txid: int, reason: str, *, seen: SeenTransaction | None = None
) -> Change[TxRecord] | Unchanged[TxRecord]:
    """-> SKIPPED: other transactions may pass it; the pointer moves over it when it can.

    :param seen: the transaction as it was when the person decided; without it any is accepted.
    :raises TransitionError: a commit of it has begun (`touched`), so a state may hold it; or it has changed since
        `seen`.
    :raises InvalidatedError: it has no batch to leave out.
    """
    tx = _as_seen(snap, txid, seen)
    if tx.status is Status.SKIPPED:
        if not has_failed(tx):
            return Unchanged(tx)
        # The policy of its tasks skipped it: from now on a person does, and it counts as failed no more.
        skipped_ms = max(snap.now_ms, tx.times_ms[Status.FAILED] + 1)
        given_up = replace(tx.with_error(reason), op=snap.op, times_ms={**tx.times_ms, Status.SKIPPED: skipped_ms})
        return Change(writes=(snap.set_tx(given_up),), witness=snap.paths.tx(txid), result=given_up)
    if tx.invalidated:
        raise cannot_skip(txid)
    if tx.touched and not tx.status.is_final:
        raise may_be_held(snap.topology().name, txid)
    record = common.moved(snap, tx.with_error(reason), Status.SKIPPED)
    pointer, exceptions = snap.pointer(), snap.exceptions()
    writes: list[Write] = [snap.set_tx(record), *common.exceptions_write(snap, txid, "skipped")]
    passed = over_skipped(pointer.committed, shifted(exceptions, txid, "skipped"))
    if passed != pointer.committed:
        writes.append(snap.set(snap.paths.commit, codec.encode_pointer(replace(pointer, committed=passed))))
    return Change(writes=tuple(writes), witness=snap.paths.tx(txid), result=record)


def accept_source(
    snap: Snapshot, txid: int, sources: MendedSources, reason: str, *, seen: SeenTransaction | None = None
) -> Change[TxRecord]:
    """A transaction that is not committed anywhere takes its source as it is now: new metadata, attempt + 1, nothing
    staged, FAILED (or SKIPPED, as it was), `reason` in the record. Later transactions keep their batch (P2).

    :param sources: asked for every stream of its batch; may be asked again, so it has no side effects.
    :param seen: as for :func:`skip`.
    :raises TransitionError: see :func:`airflow_trident.protocol.decide.accepted`; or it has changed since
        `seen`.
    :raises PassedOverError: it is SKIPPED, and a commit that went over it has not ended. The metadata of that later
        transaction may follow from it.
    """
    tx, above = _as_seen(snap, txid, seen), range(txid + 1, snap.next_txid())
    common.require_not_passed_over(snap, tx)
    snap.prefetch_transactions(above)
    later = [later_record for later_record in map(snap.tx, above) if later_record is not None]
    seen_entry = None if tx.partition is None else snap.entry(tx.partition.key)  # before the sources are looked at
    accepted_record, followed = accepted(tx, later, sources, committed=snap.pointer().committed, reason=reason)
    listed = tx.status in (Status.FAILED, Status.SKIPPED)
    record = replace(accepted_record, op=snap.op) if listed else common.moved(snap, accepted_record, Status.FAILED)
    writes: list[Write] = [
        write
        for rewritten in (record, *(replace(rewritten, op=snap.op) for rewritten in followed))
        for write in rewrite(snap, rewritten)
    ]
    writes += accepted_writes(snap, record, seen_entry)
    if not listed:
        writes += common.exceptions_write(snap, txid, "failed")
    return Change(writes=tuple(writes), witness=snap.paths.tx(txid), result=record)


def close_transaction(
    snap: Snapshot, txid: int, reason: str, *, seen: SeenTransaction | None = None
) -> Change[TxRecord] | Unchanged[TxRecord]:
    """SKIPPED -> CLOSED: it will never be replayed, so nobody has to remember it (P10, L14).

    :param seen: as for :func:`skip`.
    :raises TransitionError: it is not SKIPPED, or the pointer has not passed it; or it has changed since `seen`.
    """
    tx = _as_seen(snap, txid, seen)
    if tx.status is Status.CLOSED:
        return Unchanged(tx)
    require_closable(tx, snap.pointer().committed)
    record = common.moved(snap, tx, Status.CLOSED, error=reason[:ERROR_CHARACTERS])
    after = codec.encode_exceptions(closed(snap.exceptions(), txid))
    writes = (
        snap.set_tx(record),
        snap.set(snap.paths.exceptions, after),
        *settled(snap, Txids.of(txid)),
        *closing_writes(snap, tx),
    )
    return Change(writes=writes, witness=snap.paths.tx(txid), result=record)


def _as_seen(snap: Snapshot, txid: int, seen: SeenTransaction | None) -> TxRecord:
    tx = common.existing(snap, txid)
    if seen is not None:
        seen.require(tx)
    return tx


_OUTCOME_FORMAT = Format(noun="the coordinator's outcome", version=1, cure="The next run writes it anew.")


def note(snap: Snapshot, outcome: CoordinatorOutcome) -> Change[None] | Unchanged[None]:
    """Writes the outcome, in a step of its own."""
    last_outcome = outcome.after(outcome_at(snap), now_ms=snap.now_ms)
    if last_outcome is None:
        return Unchanged(None)
    path = snap.paths.coordinator
    return Change(
        writes=(written(snap, last_outcome),), witness=path, result=None, unchecked=frozenset({snap.paths.head})
    )


def begun(snap: Snapshot, claim: Claim, lag: dict[str, Lag]) -> Write:
    """The write that says that a transaction was begun, as a part of the step that begins it."""
    outcome = CoordinatorOutcome(kind=OutcomeKind.BEGUN, dag_id=claim.dag_id, run_id=claim.run_id, lag=lag)
    last_outcome = outcome.after(outcome_at(snap), now_ms=snap.now_ms)
    assert last_outcome is not None
    return written(snap, last_outcome)


def outcome_at(snap: Snapshot) -> CoordinatorOutcome | None:
    """None: there is no outcome, or this version cannot read it."""
    path = snap.paths.coordinator
    data = snap.data(path)
    if data is None:
        return None
    try:
        return _OUTCOME_FORMAT.build(CoordinatorOutcome, _OUTCOME_FORMAT.load(data, path), path)
    except CorruptError:
        return None


def written(snap: Snapshot, outcome: CoordinatorOutcome) -> Write:
    """The record, as a part of a step."""
    body = {"op": snap.op, **plain_fields(outcome)}
    return snap.put(snap.paths.coordinator, _OUTCOME_FORMAT.dump(body, "the coordinator's outcome"))
