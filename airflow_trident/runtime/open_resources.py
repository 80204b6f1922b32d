"""The states of a topology and the coordinators of its spouts, open for one transaction or for many."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_trident.closeable import OpenTogether
from airflow_trident.contracts.spout import Coordinator
from airflow_trident.contracts.state import State
from airflow_trident.errors import spout_code, state_code
from airflow_trident.topology.topology import Topology


class OpenStates(OpenTogether[State]):
    """Name -> state."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(lambda: _each_state(topology))


def _each_state(topology: Topology) -> Iterator[tuple[str, State]]:
    for name, spec in topology.states.items():
        with state_code(name):
            state = spec.factory.make_state(spec)
        yield name, state


class OpenCoordinators(OpenTogether[Coordinator]):
    """Stream name -> coordinator. A spout in another program starts once."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(lambda: _each_coordinator(topology))


def _each_coordinator(topology: Topology) -> Iterator[tuple[str, Coordinator]]:
    for name, spout in topology.spouts.items():
        with spout_code(name):
            coordinator = spout.coordinator()
        yield name, coordinator
