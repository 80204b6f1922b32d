"""The verbs about a whole topology: its definition, its lifecycle, what belongs to its states and what they lack."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from airflow_trident.errors import TransitionError
from airflow_trident.ledger.refusals import definition_changed
from airflow_trident.ledger.snapshot import Snapshot, Write
from airflow_trident.ledger.transact import Change, Unchanged
from airflow_trident.ledger.verbs import deployments
from airflow_trident.protocol import codec
from airflow_trident.protocol.records import Command, Loss, TopologyRecord, TxRecord
from airflow_trident.protocol.seen import SeenTopology
from airflow_trident.protocol.statuses import Status
from airflow_trident.protocol.topology_definition import Definition


def redefine(
    snap: Snapshot, definition: Definition, *, accept_change: bool = False, empty: Collection[str] = ()
) -> Change[TopologyRecord] | Unchanged[TopologyRecord]:
    """Another definition for the topology; see :meth:`Ledger.register`."""
    topology = snap.topology()
    differences = topology.definition.differences(definition)
    if topology.definition == definition:
        return Unchanged(topology)
    if differences and not accept_change:
        raise definition_changed(topology.name, differences)
    # Without differences it says more than an older version recorded, which is known from now on.
    return _new_topology(snap, redefined(topology, definition, snap.pointer().committed, empty))


def set_command(
    snap: Snapshot, command: Command, *, seen: SeenTopology | None = None, by: str = ""
) -> Change[TopologyRecord]:
    """Change the lifecycle command, raising its epoch by one. The workers on which the topology is deployed are told in
    the same step.

    :param seen: what it was when the person decided; else whatever it is.
    :param by: who, for people.
    :raises TransitionError: it was given another command since it was seen; or RUN for workers that have not all
        confirmed that they are initialised.
    """
    topology = snap.topology()
    if seen is not None:
        seen.require(topology)
    change = _new_topology(snap, replace(topology, command=command, epoch=topology.epoch + 1))
    return replace(change, writes=(*change.writes, *deployments.obeyed(snap, topology, command, by)))


def _new_topology(snap: Snapshot, record: TopologyRecord) -> Change[TopologyRecord]:
    path = snap.paths.topology
    return Change(writes=(snap.set(path, codec.encode_topology(record, op=snap.op)),), witness=path, result=record)


def redefined(record: TopologyRecord, definition: Definition, committed: int, empty: Collection[str]) -> TopologyRecord:
    """The topology with another definition. A state that is new, or was changed and holds nothing, belongs to it from
    the next commit on.

    :param committed: the commit pointer.
    :param empty: the names of the states that hold nothing.
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
    )


def noted(record: TopologyRecord, since: Mapping[str, int], lost: Sequence[Loss], *, at_ms: int) -> TopologyRecord:
    """The topology with what a look at its states, or a person, said."""
    return replace(
        record,
        since={**record.since, **since},
        lost=(*record.lost, *(replace(loss, at_ms=loss.at_ms or at_ms) for loss in lost)),
    )


def note_states(
    snap: Snapshot, *, since: Mapping[str, int] | None = None, lost: Sequence[Loss] = ()
) -> Change[TopologyRecord]:
    """Note since when states belong to the topology, and what they were given up for (L13)."""
    return _new_topology(snap, noted(snap.topology(), since or {}, lost, at_ms=snap.now_ms))


def take_fence(snap: Snapshot) -> Change[int]:
    """A fence above all that were given out, for who brings a state up to its ledger, outside of a commit.

    The topology's record is written with it as it is: the commit pointer has no place for an op id.
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
