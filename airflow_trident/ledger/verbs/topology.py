"""The verbs for a whole topology: its definition, its lifecycle command, and what its states hold and lack."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from airflow_trident.contracts.wing import wings
from airflow_trident.errors import TransitionError
from airflow_trident.ledger.refusals import definition_changed
from airflow_trident.ledger.snapshot import Snapshot, Write
from airflow_trident.ledger.transact import Change, Unchanged
from airflow_trident.protocol import codec
from airflow_trident.protocol.records import Command, FormerState, Loss, TopologyRecord, TxRecord
from airflow_trident.protocol.seen_by_person import SeenTopology
from airflow_trident.protocol.statuses import Status
from airflow_trident.protocol.topology_definition import Definition
from airflow_trident.protocol.txids import Txids


def redefine(
    snap: Snapshot, definition: Definition, *, accept_change: bool = False, empty: Collection[str] = ()
) -> Change[TopologyRecord] | Unchanged[TopologyRecord]:
    """Gives the topology another definition; see :meth:`Ledger.register`."""
    topology = snap.topology()
    differences = topology.definition.differences(definition)
    if topology.definition == definition:
        return Unchanged(topology)
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
    before = (replace(one, txids=one.txids & open_commits) for one in record.former)
    now = {(name, state.place) for name, state in definition.states.items()}
    return tuple(one for one in (*before, *leaving) if one.txids and (one.state, one.place) not in now)


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


def note_told(snap: Snapshot, told: Txids | None) -> Change[TopologyRecord] | Unchanged[TopologyRecord]:
    """Notes which transactions the spouts have been told of. From then on a commit prunes no other ones (L8).

    :param told: COMMITTED or CLOSED ones, and any that are pruned; None: no spout wants to be told any more.
    """
    topology = snap.topology()
    after = told if told is None or topology.told is None else topology.told | told
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
