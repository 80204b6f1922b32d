"""A worker initialises a topology: it finds everything that can be wrong before the first batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_trident.ledger.base import Ledger
from airflow_trident.runtime.state_agreement import require_agreement
from airflow_trident.storm.components.bolt import BoltNode, ChildBolt
from airflow_trident.storm.components.bolt_sink import BoltSink
from airflow_trident.storm.components.component_trial import try_bolt
from airflow_trident.topology.topology import Topology
from airflow_trident.types import names_of


def initialise(topology: Topology, ledger: Ledger, *, children_here: bool) -> None:
    """Compiles the topology, compares its definition with the ledger's, asks its states, and starts and stops each of
    its bolts in other programs once.

    Spouts in other programs are not started: a started one may take something from its source.

    :param children_here: bolts of the processing phase run on this machine, not on the machines of a cluster.
    :raises DefinitionChangedError: the ledger belongs to another definition.
    :raises LedgerBehindStateError, StateBehindLedgerError, StoreUnavailableError: the states are not as they must be.
    :raises ConfigurationError, ChildError, UserCodeError: a bolt cannot be started.
    """
    topology.compile()
    ledger.register(topology.definition())
    require_agreement(ledger, topology)
    for bolt, fields in bolts_of(topology, children_here=children_here):
        try_bolt(bolt, fields, (), _unheard)


def bolts_of(topology: Topology, *, children_here: bool = True) -> Iterator[tuple[ChildBolt, tuple[str, ...]]]:
    """The bolts in other programs that run on this machine, with the fields that they read."""
    plan = topology.compile()
    processing = plan.stages if children_here else ()
    for stage in (*processing, *(stage for level in plan.commit for stage in level.stages)):
        for node in stage.nodes:
            if isinstance(node, BoltNode):
                yield node.bolt, node.reads
    for spec in topology.states.values():
        if isinstance(spec.factory, BoltSink):
            yield spec.factory.bolt, names_of(spec.staged)


def _unheard(_said: dict[str, Any]) -> None:
    """Drops what the bolt says: nobody asked for it."""
