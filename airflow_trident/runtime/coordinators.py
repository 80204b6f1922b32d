"""The coordinators of a topology's spouts, open for one transaction or for many."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_trident.closeable import OpenTogether
from airflow_trident.contracts.spout import Coordinator
from airflow_trident.errors import spout_code
from airflow_trident.topology.topology import Topology


class OpenCoordinators(OpenTogether[Coordinator]):
    """Stream name -> coordinator. A spout in another program starts once."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(lambda: _each(topology))


def _each(topology: Topology) -> Iterator[tuple[str, Coordinator]]:
    for name, spout in topology.spouts.items():
        with spout_code(name):
            coordinator = spout.coordinator()
        yield name, coordinator
