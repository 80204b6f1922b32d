"""The part of the oracle for groups: all that their members would do one after the other, or nothing."""

from __future__ import annotations

import copy
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from airflow_trident.ledger.answers import (
    BeginResult,
    Begun,
    Committed,
    NextBatches,
    NotBegun,
    Processed,
    StagedAttempt,
)
from airflow_trident.ledger.verbs.begin import require_different, require_different_partitions
from airflow_trident.ledger.verbs.group_steps import require_order
from airflow_trident.protocol.records import CommitTicket, Owner, TxRecord

_PLACES = (
    *("_topology", "_next", "_committed", "_fence", "_records", "_claims", "_outcome", "_entries"),
    *("_failed", "_skipped", "_late", "_replaying", "_closed"),
)


class OracleGroups:
    """A base of :class:`~tests.oracle.ledger.OracleLedger`."""

    _changed: threading.Condition
    _fence: int
    _claims: dict[str, tuple[int, int]]

    _begin: Callable[..., Begun | NotBegun]
    _attempt: Callable[..., TxRecord]
    _processed: Callable[..., TxRecord]
    _gate: Callable[..., CommitTicket]
    _committed: int
    _commit: Callable[..., tuple[TxRecord, bool]]

    def begin(self, batches: NextBatches) -> BeginResult:
        found: list[Begun] = []
        with self._all_or_nothing():
            new = [claim for claim in batches.claims if claim.key not in self._claims]
            require_different(new)
            require_different_partitions(batches, new)
            for claim in batches.claims:
                result = self._begin(claim, batches)
                if not isinstance(result, Begun):
                    return tuple(found) or result
                found.append(result)
        return tuple(found)

    def attempt(self, members: Sequence[int | CommitTicket], **named: Any) -> tuple[TxRecord, ...]:
        require_order([one if isinstance(one, int) else one.txid for one in members])
        with self._all_or_nothing():
            return tuple(self._attempt(one, **named) for one in members)

    def processed(self, done: Sequence[StagedAttempt], *, gate_by: Owner | str = "") -> Processed:
        require_order([one.txid for one in done])
        with self._all_or_nothing():
            records = tuple(map(self._processed, done))
            tickets = self.gate([record.txid for record in records], owner=gate_by) if gate_by else ()
        return Processed(records=records, tickets=tickets)

    def gate(self, members: Sequence[int | TxRecord], *, owner: Owner | str) -> tuple[CommitTicket, ...]:
        require_order([one.txid if isinstance(one, TxRecord) else one for one in members])
        tickets: list[CommitTicket] = []
        with self._all_or_nothing():
            committed, fence = self._committed, self._fence
            for member in members:
                self._fence = fence
                tickets.append(self._gate(member, owner))
                self._committed = max(self._committed, tickets[-1].txid)
            self._committed = committed
        return tuple(tickets)

    def committed(
        self,
        tickets: Sequence[CommitTicket],
        *,
        retention: int = 50,
        late_rows: Mapping[int, Mapping[str, int]] | None = None,
        then: NextBatches | None = None,
    ) -> Committed:
        require_order([ticket.txid for ticket in tickets])
        late = late_rows or {}
        with self._all_or_nothing():
            done = [self._commit(ticket, retention, dict(late.get(ticket.txid, {}))) for ticket in tickets]
            new = [record.txid for record, is_new in done if is_new]
            if new:
                self._prune(retention, just_committed=new)
            begun: BeginResult = self.begin(then) if then is not None else ()
        records = tuple(record for record, _ in done)
        if isinstance(begun, tuple):
            return Committed(records=records, begun=begun)
        return Committed(records=records, why_not=begun)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        with self._changed:
            before = {name: copy.copy(getattr(self, name)) for name in _PLACES}
            try:
                yield
            except BaseException:
                for name, value in before.items():
                    setattr(self, name, value)
                raise

    @abstractmethod
    def _prune(self, retention: int, *, just_committed: Sequence[int]) -> None: ...
