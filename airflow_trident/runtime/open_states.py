"""The states of a topology, open for one transaction or for many."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_trident.closeable import OpenTogether
from airflow_trident.contracts.state import State
from airflow_trident.errors import state_code
from airflow_trident.topology.topology import Topology


class OpenStates(OpenTogether[State]):
    """Name -> state."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(lambda: _each(topology))


def _each(topology: Topology) -> Iterator[tuple[str, State]]:
    for name, spec in topology.states.items():
        with state_code(name):
            state = spec.factory.make_state(spec)
        yield name, state
