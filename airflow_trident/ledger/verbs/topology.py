"""The ledger's verbs about a whole topology, as pure functions: see `transactions` in this room."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from airflow_trident.ledger.refusals import definition_changed
from airflow_trident.ledger.transact import Done, Snapshot, Step
from airflow_trident.ledger.verbs.states import redefined
from airflow_trident.protocol import codec
from airflow_trident.protocol.records import Command, Definition, TopologyRecord


def redefine(
    snap: Snapshot, definition: Definition, accept_change: bool, empty: Collection[str] = ()
) -> Step[TopologyRecord] | Done[TopologyRecord]:
    topology = snap.topology()
    differences = topology.definition.differences(definition)
    if topology.definition == definition:
        return Done(topology)
    if differences and not accept_change:
        raise definition_changed(topology.name, differences)
    # Without differences it says more than an older version recorded, which is known from now on.
    return _new_topology(snap, redefined(topology, definition, snap.pointer().committed, empty))


def set_command(snap: Snapshot, command: Command) -> Step[TopologyRecord]:
    topology = snap.topology()
    return _new_topology(snap, replace(topology, command=command, epoch=topology.epoch + 1))


def _new_topology(snap: Snapshot, record: TopologyRecord) -> Step[TopologyRecord]:
    path = snap.life.topology
    return Step(writes=(snap.set(path, codec.encode_topology(record, op=snap.op)),), witness=path, result=record)
