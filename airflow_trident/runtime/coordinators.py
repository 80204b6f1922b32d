"""The coordinators of a topology's spouts, open for one transaction or for many."""

from __future__ import annotations

from airflow_trident.closeable import OpenTogether
from airflow_trident.contracts.spout import Coordinator
from airflow_trident.topology.topology import Topology


class OpenCoordinators(OpenTogether[Coordinator]):
    """Stream name -> coordinator. A spout in another program starts once."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(lambda: ((name, spout.coordinator()) for name, spout in topology.spouts.items()))
