"""The index of a bound topology: partition key -> its last transaction. Pure.

``keys/<period>`` has the keys of a month of days, a day of hours, or a year of weeks or months. A commit writes nothing
here: whether the last transaction is COMMITTED is in its record, and a pruned one is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from airflow_trident.protocol.durable_format import RECORDS, require
from airflow_trident.protocol.records import Status, TxRecord
from airflow_trident.types import Json

NO_TXID = 0
BOUND_METADATA = frozenset({"partition", "batch"})
"""The metadata of a stream of a bound topology: the key of its partition, and those of the spout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionEntry:
    """The entry of a key in the index.

    `n`: the number of its last transaction; it only rises. `tx`: the txid of this one, unless it is CLOSED. `src`:
    digest of its sources. `looks`: how many requests have looked at them since it began. `before` and `before_src`: of
    the last one that was COMMITTED when it began. `NO_TXID`: there is none.
    """

    n: int
    tx: int = NO_TXID
    src: str = ""
    looks: int = 0
    before: int = NO_TXID
    before_src: str = ""


NO_ENTRY = PartitionEntry(n=0)


@dataclass(frozen=True, slots=True)
class SeenPartition:
    """A key as it was read. `tx`: the record of its last transaction; `committed`: that of the last COMMITTED one;
    None: there is none, or it is pruned. `committed_txid`: of the latter in any case."""

    entry: PartitionEntry
    tx: TxRecord | None = None
    committed: TxRecord | None = None
    committed_txid: int = NO_TXID

    @classmethod
    def of(cls, entry: PartitionEntry, records: Mapping[int, TxRecord]) -> SeenPartition:
        """:param records: those of the entry's transactions that are kept."""
        tx = records.get(entry.tx)
        txid = entry.tx if is_committed(entry, tx) else entry.before
        return cls(entry, tx, records.get(txid), txid)

    @property
    def committed_src(self) -> str:
        return self.entry.src if self.committed_txid == self.entry.tx else self.entry.before_src


def is_committed(entry: PartitionEntry, tx: TxRecord | None) -> bool:
    """:param tx: the record of the entry's transaction; None: it is pruned, and only what is COMMITTED is."""
    return entry.tx != NO_TXID and (tx is None or tx.status is Status.COMMITTED)


def may_be_outdated(entry: PartitionEntry, records: Mapping[int, TxRecord]) -> bool:
    """Is its transaction pruned? If it was CLOSED after the entry was read, this is another one now.

    :param records: those that were read after the entry.
    """
    return entry.tx != NO_TXID and entry.tx not in records


def has_failed(tx: TxRecord) -> bool:
    """Has its last attempt failed? Then it is FAILED, or SKIPPED by the same step. One that a person skips is not."""
    failed_ms, skipped_ms = (tx.times_ms.get(status.value) for status in (Status.FAILED, Status.SKIPPED))
    return tx.status is Status.FAILED or (
        tx.status is Status.SKIPPED and failed_ms is not None and failed_ms == skipped_ms
    )


def may_begin(entry: PartitionEntry, tx: TxRecord | None) -> bool:
    """May a new transaction of the key begin? Not while the last one may still be committed by itself."""
    return entry.tx == NO_TXID or tx is None or tx.status.lets_others_pass


def may_refresh(entry: PartitionEntry, tx: TxRecord | None) -> bool:
    """May the key's last transaction take its sources as they are now? As long as no state can have it."""
    return (
        tx is not None
        and entry.tx == tx.txid
        and tx.status in (Status.PROCESSING, Status.PROCESSED, Status.FAILED)
        and not tx.touched
    )


def is_superseded(entry: PartitionEntry, tx: TxRecord) -> bool:
    """Has a newer transaction its partition? Only what is SKIPPED can be superseded. An entry that is lost, or of a
    restored ledger, stops nothing."""
    return tx.status is Status.SKIPPED and entry.tx > tx.txid


def begun(entry: PartitionEntry, tx: TxRecord | None, txid: int, src: str) -> PartitionEntry:
    """The entry after a new transaction of the key.

    :param tx: the record of its last one.
    """
    last, last_src = (entry.tx, entry.src) if is_committed(entry, tx) else (entry.before, entry.before_src)
    return PartitionEntry(n=entry.n + 1, tx=txid, src=src, before=last, before_src=last_src)


def looked(entry: PartitionEntry, src: str) -> PartitionEntry:
    """The entry after a request has looked at the sources of its transaction.

    It is written on condition that the entry is as before the look. So an older look never replaces a newer one, which
    may serve another request.
    """
    return replace(entry, src=src, looks=entry.looks + 1)


def closed(entry: PartitionEntry, txid: int) -> PartitionEntry:
    """The entry after its transaction was CLOSED."""
    return entry if entry.tx != txid else replace(entry, tx=entry.before, src=entry.before_src)


def source_digest(metadata: Mapping[str, Json]) -> str:
    """Digest of the sources of a partition: 8 bytes, hexadecimal."""
    text = json.dumps(metadata, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def period_of(key: str) -> str:
    """The name of the record that has the key: the month of a day, the day of an hour, the year of others."""
    return {19: key[:10], 10: key[:7]}.get(len(key), key[:4])


# ---- bytes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Period:
    keys: dict[str, PartitionEntry]


def keys_body(keys: Mapping[str, PartitionEntry]) -> dict[str, Any]:
    """The entries as JSON, without what is not set."""
    return {key: {name: value for name, value in asdict(keys[key]).items() if value} for key in sorted(keys)}


def encode_keys(keys: Mapping[str, PartitionEntry]) -> bytes:
    return RECORDS.dump({"keys": keys_body(keys)}, "index of partitions")


def decode_keys(data: bytes, path: str) -> Mapping[str, PartitionEntry]:
    """:raises NewerRecordError, CorruptRecordError: see :func:`airflow_trident.protocol.codec.decode_topology`."""
    entries = RECORDS.build(_Period, RECORDS.load(data, path), path).keys
    for key, entry in entries.items():
        require(entry.n >= 1 and entry.tx >= 0 and entry.before >= 0, path, f"its entry of {key} is {entry}")
    return entries
