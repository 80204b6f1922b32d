"""Opaque streams over znodes: applies `protocol.decide` to a snapshot and gives the writes."""

from __future__ import annotations

from dataclasses import replace

from airflow_trident.errors import CorruptRecordError
from airflow_trident.ledger.answers import MetadataOf
from airflow_trident.ledger.snapshot import Snapshot, Write
from airflow_trident.ledger.znodes import Delete
from airflow_trident.protocol import codec
from airflow_trident.protocol.decide import Position, invalidated, is_decided_anew, require_batch, with_batch
from airflow_trident.protocol.records import Status, TxRecord


def before(snap: Snapshot, txid: int) -> TxRecord | None:
    """The transaction before `txid`; None for the first."""
    if txid == 1:
        return None
    previous = snap.tx(txid - 1)
    if previous is None:
        raise CorruptRecordError(
            f"the ledger record {snap.paths.tx(txid - 1)} of the transaction before {txid} is missing",
            "Restore the ledger from a back-up; nothing is guessed.",
        )
    return previous


def of_next_attempt(snap: Snapshot, tx: TxRecord, metadata_of: MetadataOf | None) -> TxRecord:
    """The record with the batch of its next attempt.

    :raises InvalidatedError: the previous transaction has no batch.
    """
    definition = snap.topology().definition
    if not definition.opaque or not is_decided_anew(definition, tx, snap.pointer().committed):
        return tx
    previous = before(snap, tx.txid)
    position: Position = {} if previous is None else require_batch(previous, tx.txid)
    return with_batch(definition, tx, position, metadata_of)


def invalidated_above(snap: Snapshot, txid: int) -> list[TxRecord]:
    """The records of the transactions above `txid`; they lose their batch."""
    definition, later = snap.topology().definition, range(txid + 1, snap.next_txid())
    snap.prefetch_transactions(later)
    records = [tx for tx in map(snap.tx, later) if tx is not None and not tx.invalidated]
    return [
        replace(invalidated(definition, tx), op=snap.op, times_ms={**tx.times_ms, Status.PROCESSING.value: snap.now_ms})
        for tx in records
    ]


def rewrite(snap: Snapshot, record: TxRecord) -> list[Write]:
    """The writes of a record whose metadata may have changed. They replace its chunks, if it has any; other
    transactions share its metadata no longer."""
    old = snap.blob_ref(record.txid)
    ref, chunks = snap.keep_apart(record)
    if old is not None and ref is not None and ref.sha256 == old.sha256:
        return [snap.set_tx(record)]
    writes: list[Write] = [snap.set(snap.paths.tx(record.txid), codec.encode_tx(record, ref))]
    if old is not None:
        writes += map(Delete, snap.paths.chunks_of(record.txid, old))
    return [*writes, *chunks]
