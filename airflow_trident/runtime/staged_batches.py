"""What is staged, as states take it: rows, or the files as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_trident.contracts.state import Applied, StagedFiles, State
from airflow_trident.errors import ConfigurationError, StagingError
from airflow_trident.plan.graph import SinkNode
from airflow_trident.plan.nodes import PersistNode
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest

if TYPE_CHECKING:
    import pyarrow as pa


def staged_batch(area: StagingArea, manifest: Manifest, ticket: CommitTicket, sink: SinkNode) -> pa.Table | StagedFiles:
    """The rows of one transaction; its files, where the state takes those, nobody else's rows are in
    them, and they are on a file system.

    :raises StagingError: they cannot be read.
    """
    slot, alone = manifest.slot, not manifest.group
    taken = isinstance(sink, PersistNode) and sink.state.factory.capabilities.by_reference
    if taken and alone and area.storage.is_local and (slot.txid, slot.attempt) == (ticket.txid, ticket.attempt):
        files = area.files(manifest, sink.name, sink.schema)
        return StagedFiles(paths=tuple(file.path for file in files), num_rows=sum(file.rows for file in files))
    return area.read_each(manifest, {ticket.txid: ticket.attempt}, sink.name, sink.schema)[0]


def apply_batch(state: State, ticket: CommitTicket, batch: pa.Table | StagedFiles) -> Applied:
    return state.apply_files(ticket, batch) if isinstance(batch, StagedFiles) else state.apply(ticket, batch)


def gone_again(ticket: CommitTicket, times: int, error: StagingError) -> ConfigurationError:
    return ConfigurationError(
        f"transaction {ticket.txid} of topology {ticket.topology!r} was emitted again {times} times, and its staged "
        f"batch still cannot be read: {error.message}",
        "Look who empties the staging folder ([trident] staging_dir), and whether all workers, drivers and executors "
        "have the same one.",
    )
