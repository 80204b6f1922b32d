"""The states of a topology, open for one transaction or for many."""

from __future__ import annotations

from contextlib import ExitStack

from airflow_trident.closing import Closing
from airflow_trident.contracts.state import State
from airflow_trident.topology.topology import Topology


class OpenStates(Closing):
    """The topology's states, opened when first needed and closed together; then they may be opened again."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._stack = ExitStack()
        self._open: dict[str, State] = {}

    def opened(self) -> dict[str, State]:
        """All of them, or none: when one cannot be opened, those that were are closed again."""
        if not self._open:
            with ExitStack() as opening:
                found = {
                    name: opening.enter_context(spec.factory.make_state(spec))
                    for name, spec in self._topology.states.items()
                }
                self._stack, self._open = opening.pop_all(), found
        return self._open

    def close(self) -> None:
        self._open = {}
        self._stack.close()
