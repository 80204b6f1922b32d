"""Handles on states, which streams can query."""

from __future__ import annotations

from airflow_trident.contracts.state import StateSpec
from airflow_trident.topology.node_graph import NodeGraph


class StateHandle:
    """A state, and the topology that updates it (None for a static state)."""

    def __init__(self, spec: StateSpec, topology: NodeGraph | None) -> None:
        self.spec = spec
        self._topology = topology

    @property
    def topology(self) -> NodeGraph | None:
        return self._topology

    @property
    def name(self) -> str:
        return self.spec.name


class StaticState(StateHandle):
    """A handle on a state that streams can query but not update (Trident: newStaticState)."""

    def __init__(self, spec: StateSpec) -> None:
        super().__init__(spec, None)
