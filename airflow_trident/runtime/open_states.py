"""The states of a topology, open for one transaction or for many."""

from __future__ import annotations

from airflow_trident.closeable import OpenTogether
from airflow_trident.contracts.state import State
from airflow_trident.topology.topology import Topology


class OpenStates(OpenTogether[State]):
    """Name -> state."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(lambda: ((name, spec.factory.make_state(spec)) for name, spec in topology.states.items()))
