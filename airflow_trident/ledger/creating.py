"""The nodes of a new incarnation of a topology, and of a transaction that is imported or seeded."""

from __future__ import annotations

import uuid
from itertools import starmap

from airflow_trident.ledger.paths import LedgerPaths
from airflow_trident.ledger.znodes import Create
from airflow_trident.protocol import codec
from airflow_trident.protocol.large_metadata import BlobRef, Earlier, pack_metadata, share_metadata
from airflow_trident.protocol.records import CommitPointer, Exceptions, TopologyRecord, TxRecord
from airflow_trident.protocol.topology_definition import Definition


def new_topology(
    name: str, path: str, definition: Definition, *, op: str, now_ms: int
) -> tuple[TopologyRecord, list[Create]]:
    """Its record, and all its nodes, to be created in one step.

    :param path: of the record.
    :param op: marks the record as written by this operation.
    """
    incarnation = uuid.uuid4().hex[:8]
    paths = LedgerPaths(path, incarnation)
    record = TopologyRecord(
        name=name,
        incarnation=incarnation,
        definition=definition,
        created_ms=now_ms,
        since=dict.fromkeys(definition.states, 1),
    )
    folders = [Create(folder) for folder in paths.folders()]
    shared = shared_records(paths, 1, CommitPointer(committed=0, fence=0), Exceptions())
    return record, [Create(path, codec.encode_topology(record, op=op)), *folders, *starmap(Create, shared.items())]


def shared_records(
    paths: LedgerPaths, next_txid: int, pointer: CommitPointer, exceptions: Exceptions
) -> dict[str, bytes]:
    """Path -> content of the records that all transactions share."""
    return {
        paths.head: codec.encode_head(next_txid),
        paths.commit: codec.encode_pointer(pointer),
        paths.exceptions: codec.encode_exceptions(exceptions),
    }


def nodes_of(paths: LedgerPaths, tx: TxRecord) -> list[Create]:
    """Its record, and chunks for metadata that is too large for it."""
    ref, chunks = kept_apart(paths, tx)
    return [Create(paths.tx(tx.txid), codec.encode_tx(tx, ref)), *chunks]


def kept_apart(paths: LedgerPaths, tx: TxRecord, earlier: Earlier | None = None) -> tuple[BlobRef | None, list[Create]]:
    """Where metadata too large for its record is kept, and what creates its chunks; None and nothing if it fits.

    :param earlier: metadata that it may share.
    """
    ref, chunks = (earlier and share_metadata(tx, earlier)) or pack_metadata(tx) or (None, [])
    if ref is None:
        return None, []
    new = ref if ref.chunks or ref.base is None else ref.base
    return ref, list(map(Create, paths.chunks_of(tx.txid, new), chunks))
