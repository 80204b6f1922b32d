"""The part of the oracle for decisions of a person, or after a look at the states, and its lists."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from airflow_trident.errors import TransitionError
from airflow_trident.ledger.refusals import may_be_held, nothing_to_take_back, passed_over
from airflow_trident.ledger.verbs.commits import ticket_of
from airflow_trident.ledger.verbs.topology import noted, require_closable
from airflow_trident.ledger.workers import Worker
from airflow_trident.protocol.decide import MendedSources, SeenTransaction, accepted, cannot_skip
from airflow_trident.protocol.partition_keys import has_failed
from airflow_trident.protocol.records import (
    CommitTicket,
    Exceptions,
    LedgerView,
    Loss,
    Owner,
    Status,
    TopologyRecord,
    TxRecord,
    move,
)
from airflow_trident.protocol.txids import Txids


class OracleStates:
    """A base of :class:`~tests.oracle.ledger.OracleLedger`."""

    topology_name: str
    _changed: threading.Condition
    _topology: TopologyRecord | None
    _committed: int
    _fence: int
    _failed: set[int]
    _skipped: set[int]
    _late: set[int]
    _replaying: set[int]
    _closed: set[int]
    _accepted_partition: Callable[[TxRecord], None]
    _records: dict[int, TxRecord]
    _next: int
    _closed_partition: Callable[[TxRecord], None]

    def note_states(self, *, since: Mapping[str, int] | None = None, lost: Sequence[Loss] = ()) -> TopologyRecord:
        with self._changed:
            self._topology = noted(self.topology(), since or {}, lost, at_ms=time.time_ns() // 1_000_000)
            return self._topology

    def note_told(self, told: Txids | None) -> TopologyRecord:
        with self._changed:
            before = self.topology().told
            self._topology = replace(self.topology(), told=told if told is None or before is None else before | told)
            return self._topology

    def take_fence(self) -> int:
        with self._changed:
            self.topology()
            self._fence += 1
            return self._fence

    def close_transaction(self, txid: int, reason: str, *, seen: SeenTransaction | None = None) -> TxRecord:
        with self._changed:
            record = self._seen(txid, seen)
            if record.status is Status.CLOSED:
                return record
            require_closable(record, self._committed)
            self._skipped.discard(txid)
            self._closed.add(txid)
            self._closed_partition(record)
            return self._store(record, status=move(record.status, Status.CLOSED, txid=txid), error=reason[:4_000])

    def bar(self, txid: int, *, owner: Owner | str) -> CommitTicket:
        with self._changed:
            record = self._existing(txid)
            if not record.touched or record.status is Status.COMMITTED:
                raise nothing_to_take_back(record)
            return self._given(ticket_of(self.view(txid), record, None), owner, record.status)

    def take_back(self, ticket: CommitTicket, reason: str) -> TxRecord:
        with self._changed:
            record = self._of_ticket(ticket)
            if not ticket.bars or not record.touched:
                raise nothing_to_take_back(record)
            if record.status is not Status.FAILED:
                move(record.status, Status.FAILED, txid=ticket.txid)
            self._list_as(self._failed, ticket.txid)
            return self._store(record.with_error(reason), status=Status.FAILED, touched=False)

    def skip(self, txid: int, reason: str, *, seen: SeenTransaction | None = None) -> TxRecord:
        with self._changed:
            record = self._seen(txid, seen)
            if record.status is Status.SKIPPED:
                if not has_failed(record):
                    return record
                later_ms = record.times_ms[Status.FAILED] + 1
                return self._store(record.with_error(reason), times_ms={**record.times_ms, Status.SKIPPED: later_ms})
            if record.invalidated:
                raise cannot_skip(txid)
            if record.touched and record.status is not Status.COMMITTED:
                raise may_be_held(self.topology_name, txid)
            target = move(record.status, Status.SKIPPED, txid=txid)
            self._list_as(self._skipped, txid)
            self._pass_skipped()
            return self._store(record.with_error(reason), status=target)

    def accept_source(
        self, txid: int, sources: MendedSources, reason: str, *, seen: SeenTransaction | None = None
    ) -> TxRecord:
        with self._changed:
            record = self._seen(txid, seen)
            self._require_not_passed_over(record)
            later = [self._records[one] for one in sorted(self._records) if one > txid]
            found, followed = accepted(record, later, sources, committed=self._committed, reason=reason)
            for one in followed:
                self._store(one)
            self._accepted_partition(found)
            if record.status in (Status.FAILED, Status.SKIPPED):
                return self._store(found)
            self._list_as(self._failed, txid)
            return self._store(found, status=move(record.status, Status.FAILED, txid=txid))

    def _require_not_passed_over(self, record: TxRecord) -> None:
        if record.status is Status.SKIPPED and record.txid > self._committed:
            touched = [one for one in self._records if one > record.txid and self._records[one].touched]
            if touched:
                raise passed_over(self.topology_name, record.txid, min(touched))

    def _seen(self, txid: int, seen: SeenTransaction | None) -> TxRecord:
        record = self._existing(txid)
        if seen is not None:
            seen.require(record)
        return record

    def _exceptions(self) -> Exceptions:
        return Exceptions(
            failed=tuple(sorted(self._failed)),
            skipped=Txids.of(*self._skipped),
            late=tuple(sorted(self._late)),
            replaying=tuple(sorted(self._replaying)),
            closed=Txids.of(*self._closed),
        )

    def _list_as(self, kind: set[int] | None, txid: int) -> None:
        for txids in (self._failed, self._skipped, self._late, self._replaying):
            txids.discard(txid)
        if kind is not None:
            kind.add(txid)

    def _pass_skipped(self) -> None:
        while self._committed + 1 in self._skipped:
            self._committed += 1

    def _existing(self, txid: int) -> TxRecord:
        self.topology()
        if txid in self._records:
            return self._records[txid]
        what = "is committed and pruned" if 1 <= txid < self._next else "was never begun"
        raise TransitionError(f"transaction {txid} {what} (the next one is {self._next})", "Look at the txid.")

    def enlist(self, worker: Worker, *, wait: bool = True) -> str:
        return ""

    def retire(self, name: str) -> None: ...

    def workers(self) -> Sequence[Worker]:
        return ()

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None: ...

    @abstractmethod
    def topology(self) -> TopologyRecord: ...

    @abstractmethod
    def view(self, txid: int, *, remembered: bool = False, ahead: bool = False) -> LedgerView: ...

    @abstractmethod
    def _store(self, record: TxRecord, **changes: Any) -> TxRecord: ...

    @abstractmethod
    def _given(self, ticket: CommitTicket, owner: Owner | str, target: Status) -> CommitTicket: ...

    @abstractmethod
    def _of_ticket(self, ticket: CommitTicket) -> TxRecord: ...
