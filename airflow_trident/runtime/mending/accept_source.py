"""``airflow trident accept-source``: a transaction takes its mended source."""

from __future__ import annotations

from airflow_trident.contracts.spout import Coordinator
from airflow_trident.errors import spout_code
from airflow_trident.ledger.base import Ledger
from airflow_trident.protocol.accepted_source import MendedSources
from airflow_trident.protocol.records import TxRecord
from airflow_trident.protocol.seen_by_person import SeenTransaction
from airflow_trident.runtime.coordinators import OpenCoordinators
from airflow_trident.topology.topology import Topology
from airflow_trident.types import Json


def accept_source(
    ledger: Ledger, topology: Topology, txid: int, reason: str, *, seen: SeenTransaction | None = None
) -> TxRecord:
    """See :meth:`Ledger.accept_source`."""
    with OpenCoordinators(topology) as coordinators:
        return ledger.accept_source(txid, _Sources(coordinators.opened()), reason, seen=seen)


class _Sources(MendedSources):
    """If the topology no longer has a stream, the recorded metadata stays."""

    def __init__(self, coordinators: dict[str, Coordinator]) -> None:
        self._coordinators = coordinators

    def accept(self, stream: str, metadata: Json) -> Json:
        coordinator = self._coordinators.get(stream)
        if coordinator is None:
            return metadata
        with spout_code(stream):
            return coordinator.accept_source(metadata)

    def follow(self, stream: str, later: Json, accepted: Json) -> Json:
        with spout_code(stream):
            return self._coordinators[stream].follow_source(later, accepted)
