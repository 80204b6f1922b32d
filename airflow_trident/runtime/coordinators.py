"""The coordinators of a topology's spouts, open for one transaction or for many."""

from __future__ import annotations

from contextlib import ExitStack, closing

from airflow_trident.closing import Closing
from airflow_trident.contracts.spout import Coordinator
from airflow_trident.topology.topology import Topology


class OpenCoordinators(Closing):
    """Made when first needed and closed together; may be made again. A spout in another program starts once."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._stack = ExitStack()
        self._open: dict[str, Coordinator] = {}

    def opened(self) -> dict[str, Coordinator]:
        """Stream name -> coordinator: all of them, or none: when one cannot be made, those that were are closed."""
        if not self._open:
            with ExitStack() as opening:
                found = {
                    name: opening.enter_context(closing(spout.coordinator()))
                    for name, spout in self._topology.spouts.items()
                }
                self._stack, self._open = opening.pop_all(), found
        return self._open

    def close(self) -> None:
        self._open = {}
        self._stack.close()
