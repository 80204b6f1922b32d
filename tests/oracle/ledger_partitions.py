"""The part of the oracle for partitions of a bound topology."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from airflow_trident.errors import LateBatchError, SupersededError
from airflow_trident.ledger.answers import AskedPartition, Begun
from airflow_trident.protocol.partition_keys import NO_ENTRY, PartitionEntry, SeenPartition, source_digest
from airflow_trident.protocol.records import NOBODY, Claim, PartitionRevision, Status, TxRecord, move
from airflow_trident.types import Json


class OraclePartitions:
    """A base of :class:`~tests.oracle.ledger.OracleLedger`."""

    _changed: threading.Condition
    _entries: dict[str, PartitionEntry]
    _records: dict[int, TxRecord]
    _claims: dict[str, tuple[int, int]]
    _committed: int
    _replaying: set[int]
    close_transaction: Callable[..., TxRecord]

    def partitions(self) -> dict[str, PartitionEntry]:
        return dict(sorted(self._entries.items()))

    def partition(self, key: str) -> SeenPartition:
        entry = self._entries.get(key, NO_ENTRY)
        txid = entry.tx if self._status(entry) is Status.COMMITTED else entry.before
        return SeenPartition(entry, self._records.get(entry.tx), self._records.get(txid), txid)

    def _status(self, entry: PartitionEntry) -> Status | None:
        """Of the last transaction; None: the key has none."""
        if not entry.tx:
            return None
        return self._records[entry.tx].status if entry.tx in self._records else Status.COMMITTED

    def _is_as_seen(self, asked: AskedPartition) -> bool:
        entry = self._entries.get(asked.partition.key, NO_ENTRY)
        return entry == asked.seen and self._status(entry) in (
            *(None, Status.COMMITTED),
            *(Status.SKIPPED, Status.CLOSED),
        )

    def _begun_partition(self, record: TxRecord, asked: AskedPartition) -> TxRecord:
        """The new transaction with its partition, after the one before it has made room for it."""
        partition, entry = asked.partition, asked.seen
        before, before_src = entry.before, entry.before_src
        status = self._status(entry)
        if status is Status.COMMITTED:
            before, before_src = entry.tx, entry.src
        if status is Status.SKIPPED and entry.tx <= self._committed:
            self.close_transaction(entry.tx, "closed: a newer transaction has its partition")
        self._entries[partition.key] = PartitionEntry(
            n=entry.n + 1, tx=record.txid, src=source_digest(record.metadata), before=before, before_src=before_src
        )
        start, end = (round(moment.timestamp() * 1000) for moment in (partition.start, partition.end))
        revision = PartitionRevision(key=partition.key, n=entry.n + 1, start_ms=start, end_ms=end)
        return replace(record, carried={}, partition=revision)

    def _closed_partition(self, record: TxRecord) -> None:
        for key in record.partitions:
            entry = self._entries[key]
            if entry.tx == record.txid:
                self._entries[key] = replace(entry, tx=entry.before, src=entry.before_src)

    def _accepted_partition(self, record: TxRecord) -> None:
        for key in record.partitions:
            entry = self._entries[key]
            if entry.tx == record.txid:
                self._entries[key] = replace(entry, src=source_digest(record.metadata), looks=entry.looks + 1)

    def _require_may_come(self, record: TxRecord) -> None:
        for key in record.partitions:
            entry = self._entries[key]
            if record.status is Status.SKIPPED and entry.tx > record.txid:
                raise SupersededError(f"transaction {entry.tx} has the partition {key}", "Ask for it.")
            if record.status is Status.SKIPPED and record.txid <= self._committed:
                raise LateBatchError(f"transaction {record.txid} was passed", "Ask for its partition.")

    def join(self, seen: PartitionEntry, key: str, *, claim: Claim) -> Begun | None:
        with self._changed:
            if claim.key not in self._claims:
                if not self._is_unfinished(seen, key):
                    return None
                self._claims[claim.key] = (seen.tx, claim.run_ms)
                self._entries[key] = replace(seen, looks=seen.looks + 1)
            return self._of_claim(claim)

    def refresh(
        self, seen: PartitionEntry, key: str, metadata: dict[str, Json], reason: str, *, claim: Claim | None = None
    ) -> Begun | None:
        txid = seen.tx
        with self._changed:
            if claim is not None and claim.key in self._claims:
                return self._of_claim(claim)
            record = self._records.get(txid)
            if record is None or not self._is_unfinished(seen, key):
                return None
            if record.touched or record.status is Status.COMMITTING:
                return None
            if record.status is Status.FAILED:
                self._list_as(self._replaying, txid)
            changes = {"metadata": metadata, "staged": None, "owner": NOBODY, "error": "", "first_error": ""}
            changes |= {"claim": claim or record.claim, "checks": {}}
            accepted = (*record.accepted, reason)[-10:]
            status = move(record.status, Status.PROCESSING, txid=txid)
            over = record.with_past_attempt()
            stored = self._store(over, status=status, attempt=record.attempt + 1, accepted=accepted, **changes)
            self._entries[key] = replace(seen, src=source_digest(metadata), looks=seen.looks + 1)
            if claim is not None:
                self._claims[claim.key] = (txid, claim.run_ms)
            return Begun(record=stored, txid=txid, new=False)

    def _is_unfinished(self, seen: PartitionEntry, key: str) -> bool:
        done = (None, Status.COMMITTED, Status.SKIPPED, Status.CLOSED)
        return self._entries.get(key, NO_ENTRY) == seen and self._status(seen) not in done

    def _of_claim(self, claim: Claim) -> Begun:
        txid = self._claims[claim.key][0]
        return Begun(record=self._records.get(txid), txid=txid, new=False)

    @abstractmethod
    def _store(self, record: TxRecord, **changes: Any) -> TxRecord: ...

    @abstractmethod
    def _list_as(self, kind: set[int] | None, txid: int) -> None: ...
