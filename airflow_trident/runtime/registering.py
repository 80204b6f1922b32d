"""What everybody does who commits, before the first transaction."""

from __future__ import annotations

from airflow_trident.ledger.announcements import begin_events
from airflow_trident.ledger.base import Ledger
from airflow_trident.topology.topology import Topology


def register(ledger: Ledger, topology: Topology) -> None:
    """Creates or checks the topology's ledger, and calls :func:`ask_for_events`.

    :raises DefinitionChangedError: the ledger belongs to another definition of the topology.
    """
    ledger.register(topology.definition())
    ask_for_events(ledger, topology)


def ask_for_events(ledger: Ledger, topology: Topology) -> None:
    """If the topology has an asset, each commit from now on needs an event. A program cannot bring it, but what it
    commits must be on the list for the next task that can.

    :raises UnknownTopologyError: there is no ledger yet.
    """
    if topology.asset:
        begin_events(ledger)
