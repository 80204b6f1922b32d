"""``airflow trident accept-source``: a transaction takes its mended source."""

from __future__ import annotations

from contextlib import ExitStack, closing

from airflow_trident.contracts.spout import Coordinator
from airflow_trident.ledger.base import Ledger
from airflow_trident.protocol.accepted_source import MendedSources
from airflow_trident.protocol.records import TxRecord
from airflow_trident.protocol.seen_by_person import SeenTransaction
from airflow_trident.topology.topology import Topology
from airflow_trident.types import Json


def accept_source(
    ledger: Ledger, topology: Topology, txid: int, reason: str, *, seen: SeenTransaction | None = None
) -> TxRecord:
    """See :meth:`Ledger.accept_source`."""
    with ExitStack() as opened:
        coordinators = {
            name: opened.enter_context(closing(spout.coordinator())) for name, spout in topology.spouts.items()
        }
        return ledger.accept_source(txid, _Sources(coordinators), reason, seen=seen)


class _Sources(MendedSources):
    """If the topology no longer has a stream, the recorded metadata stays."""

    def __init__(self, coordinators: dict[str, Coordinator]) -> None:
        self._coordinators = coordinators

    def accept(self, stream: str, metadata: Json) -> Json:
        coordinator = self._coordinators.get(stream)
        return metadata if coordinator is None else coordinator.accept_source(metadata)

    def follow(self, stream: str, later: Json, accepted: Json) -> Json:
        return self._coordinators[stream].follow_source(later, accepted)
