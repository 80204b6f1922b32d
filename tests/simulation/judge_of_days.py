"""Watches a topology that is bound to days: whose look at the source a store has, and what the index says of a day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_trident.contracts.state import Applied
from airflow_trident.ledger.znodes import Create, Op, Set
from airflow_trident.protocol import codec
from airflow_trident.protocol.partition_keys import PartitionEntry, decode_keys
from airflow_trident.protocol.records import CommitPointer, CommitTicket, Status, TxRecord
from tests.simulation.days import KEYS, Look, Requests, Source, key_of, looked_at
from tests.simulation.judge_of_tasks import JudgeOfTasks
from tests.simulation.stores import Rows, Store


@dataclass
class JudgeOfDays(JudgeOfTasks):
    """
    :param content: state -> day -> the records of its last batch.
    :param newest: day -> txid and number of its last COMMITTED transaction. `looks`: what each COMMITTED one read.
    """

    source: Source = field(default_factory=Source)
    requests: Requests = field(default_factory=Requests)
    entries: dict[str, PartitionEntry] = field(default_factory=dict)
    content: dict[str, dict[str, tuple[int, ...]]] = field(default_factory=dict)
    newest: dict[str, tuple[int, int]] = field(default_factory=dict)
    looks: dict[int, Look] = field(default_factory=dict)

    # ---- the ledger ----------------------------------------------------------------------------------------------

    def ledger_step(self, ops: Sequence[Op]) -> None:
        super().ledger_step(ops)
        unfinished = Counter(
            tx.partition.key
            for tx in self.records.values()
            if tx.partition is not None and not tx.status.lets_others_pass
        )
        for key, many in unfinished.items():
            if many > 1:
                self.broken("P1", f"{key} has {many} unfinished transactions")

    def _take_in(self, op: Create | Set) -> None:
        super()._take_in(op)
        if "/run/" in op.path and op.data:
            claim = codec.decode_claim(op.data, op.path)
            if self.claims.setdefault(claim.key, claim.txid) != claim.txid:
                self.broken("P1", f"claim {claim.key} was given {claim.txid} after {self.claims[claim.key]}")
            self.requests.served[claim.txid].add(claim.key)
        elif "/keys/" in op.path and op.data:
            for key, entry in decode_keys(op.data, op.path).items():
                before = self.entries.get(key, PartitionEntry(n=0))
                if entry.n not in (before.n, before.n + 1):
                    self.broken("P1", f"the number of {key} went from {before.n} to {entry.n}")
                self.entries[key] = entry

    def _changed(self, txid: int, old: TxRecord | None, new: TxRecord, pointer: CommitPointer) -> None:
        super()._changed(txid, old, new, pointer)
        assert new.partition is not None
        key, n = new.partition.key, new.partition.n
        entry = self.entries[key]
        if old is None and (entry.n, entry.tx) != (n, txid):
            self.broken("P1", f"{txid} is number {n} of {key}, and the index has {entry}")
        for claim in self.requests.served[txid] if old is not None and new.metadata != old.metadata else ():
            self._is_served(claim, txid, looked_at(new.metadata) or {})
        begins = old is not None and new.status is Status.PROCESSING and old.status is Status.SKIPPED
        if begins and entry.tx > txid:
            self.broken("P6", f"{txid} is attempted, and {entry.tx} has {key}")

    def _may_change(self, old: TxRecord, new: TxRecord) -> bool:
        return not old.touched and not new.touched and old.status is not Status.SKIPPED

    def _committed(self, txid: int, record: TxRecord) -> None:
        super()._committed(txid, record)
        assert record.partition is not None
        key, n = record.partition.key, record.partition.n
        look = looked_at(record.metadata)
        assert look is not None
        self.looks[txid] = look
        if self.newest.get(key, (0, 0)) > (txid, n):
            self.broken("P6", f"number {n} of {key} is COMMITTED as {txid}, after {self.newest[key]}")
        self.newest[key] = (txid, n)
        for name, store in self.stores.items():
            stored = {item for item in +store.records if key_of(item) == key}
            if stored != {*look.values()}:
                self.broken("P8", f"{txid} is COMMITTED with {look} of {key}, and state {name} has {stored}")
        for claim in self.requests.served[txid]:
            self._is_served(claim, txid, look)

    def is_unchanged(self, key: str, txid: int, since: int) -> None:
        """A request is told that the day is COMMITTED as this transaction, and its source as it was."""
        look = self.looks.get(txid)
        if look is None or not self.source.was(key, look, since):
            self.broken("P2", f"{key} is called unchanged since {txid}, which has {look}")

    def _is_served(self, claim: str, txid: int, look: Look) -> None:
        """Is the look of the claim's transaction one from after the request began?"""
        key, since = self.requests.begun[claim]
        if not self.source.was(key, look, since):
            self.broken("P2", f"{claim} asked for {key}, and {txid} has an older look: {look}")

    def _lacks(self, name: str, store: Store, txid: int) -> list[int]:
        return []  # newer ones replace what lower ones brought

    # ---- the stores ----------------------------------------------------------------------------------------------

    def state_step(self, name: str, store: Store, ticket: CommitTicket, batch: Rows, applied: Applied) -> None:
        super().state_step(name, store, ticket, batch, applied)
        if applied is Applied.ALREADY or ticket.bars:
            return
        content = self.content.setdefault(name, dict.fromkeys(KEYS, ()))
        own = self.records.get(ticket.txid)
        if own is not None and own.partition is not None:
            key = own.partition.key
            content[key] = tuple((looked_at(own.metadata) or {}).values())

    def step_ended(self, name: str, store: Store) -> None:
        content = self.content.get(name, {})
        wanted = Counter(record for records in content.values() for record in records)
        if +store.records != wanted:
            self.broken("P7", f"state {name} has {dict(store.records)}, and not {dict(wanted)}")
