"""Watches every step of a history and checks the promises P1 to P10. The first broken promise ends the history."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_trident.contracts.state import Applied
from airflow_trident.ledger.znodes import Create, Delete, Op, Set
from airflow_trident.protocol import codec
from airflow_trident.protocol.records import TRANSITIONS, CommitPointer, CommitTicket, Exceptions, Status, TxRecord
from airflow_trident.protocol.txids import Ranges, Txids
from airflow_trident.staging.manifest import Slot
from tests.simulation.levels import FED, contents
from tests.simulation.pieces import batch_of
from tests.simulation.stores import Rows, Store

ATTEMPTS_OF_ONE = 20
"""The most attempts of one process at one transaction: a drain makes several, and opaque ones lose their batch."""
LEFT_S = 60
"""A commit is left to the process that began it for this time."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One sweep of a committer that takes nothing over: its own transaction, and the step at which the sweep began."""

    own: int
    began: int


class Broken(KeyboardInterrupt):
    """A promise is broken. No border takes this for an error of users' code."""


@dataclass
class Judge:
    """
    :param restored: the ledger was restored from an old copy: from then on it knows less than the states.
    :param group: at most this number of transactions begin in one step.
    :param ordered: the states that depend on the order of batches. `levels`: they depend on values of others, too.
    :param damaged: a store went back, vanished, or is two: states lack COMMITTED transactions, and nobody has noticed
        yet.
    :param done: the batch of each COMMITTED transaction, also after its record was pruned.
    :param skips: a transaction was SKIPPED at some time.
    :param first_of: the first transaction that each run and coordinator claimed; `heard`: the first that it was given,
        perhaps one that another task left. `told`: all that coordinators gave to their runs.
    :param lost: transactions that states go on without, because nothing could bring them back and a person said so.
    :param now_ms: the clock of everybody; None if clocks jump.
    :param step: how many steps of the ledger were applied.
    :param batches: txid -> all records that were ever to come with it. `gone`: those that nobody knew any more when the
        ledger was repaired.
    :param gated: txid -> the step that opened its gate, and the process that did. `workers`: name -> the step that
        listed it, and host/process. `listed`: the names of all that ever were.
    """

    stores: dict[str, Store]
    max_pending: int
    retention: int
    opaque: bool = False
    next_txid: int = 1
    pointer: CommitPointer = field(default_factory=lambda: CommitPointer(committed=0, fence=0))
    exceptions: Exceptions = field(default_factory=Exceptions)
    records: dict[int, TxRecord] = field(default_factory=dict)
    claims: dict[str, int] = field(default_factory=dict)
    attempts: set[tuple[int, int]] = field(default_factory=set)
    restored: bool = False
    silent: bool = False
    applications: int = 0
    group: int = 1
    ordered: set[str] = field(default_factory=set)
    levels: bool = False
    damaged: bool = False
    two: bool = False
    lives: bool = False
    skips: bool = False
    done: dict[int, tuple[int, ...]] = field(default_factory=dict)
    first_of: dict[tuple[str, str], int] = field(default_factory=dict)
    heard: dict[tuple[str, str], int] = field(default_factory=dict)
    told: dict[str, set[int]] = field(default_factory=dict)
    lost: dict[str, set[int]] = field(default_factory=dict)
    process: Callable[[], Any] = lambda: None
    now_ms: Callable[[], int] | None = None
    step: int = 0
    gated: dict[int, tuple[int, Any]] = field(default_factory=dict)
    batches: dict[int, set[int]] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    workers: dict[str, tuple[int, str]] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)

    def reborn(self) -> None:
        """A person deleted the topology: nothing of its former incarnation counts any more."""
        self.next_txid, self.pointer, self.exceptions = 1, CommitPointer(committed=0, fence=0), Exceptions()
        self.skips = False
        for kept in (self.records, self.claims, self.attempts, self.done, self.first_of, self.heard, self.told):
            kept.clear()
        self.gated.clear()

    def repaired(self, tree: Any, claims: dict[str, int], lost: Ranges) -> None:
        """A person seeded the ledger from the states: from now on it must be right again.

        :param lost: what it says to be lost: skipped transactions that were known to it or to the ledger before.
        """
        self.reborn()
        self.gone = {one for txid in Txids(lost) for one in self.batches.get(txid, ())}
        for path in tree.paths():
            self._take_in(Create(path, tree.get(path).data))
        self.claims.update(claims)
        self.restored = self.silent = False

    def broken(self, promise: str, what: str) -> None:
        raise Broken(f"{promise}: {what}")

    # ---- the ledger ----------------------------------------------------------------------------------------------

    def ledger_step(self, ops: Sequence[Op]) -> None:
        """Check one applied `multi`: what it changed, and what must hold after it."""
        before, pointer = dict(self.records), self.pointer
        self.step += 1
        self._workers_of(ops)
        begun = [op for op in ops if isinstance(op, Create) and "/tx/" in op.path]
        for op in ops:
            if isinstance(op, Create | Set):
                self._take_in(op)
            elif isinstance(op, Delete) and "/tx/" in op.path:
                self._pruned(int(op.path.rpartition("/")[2]))
        if self.silent:
            return
        if len(begun) > self.group:
            self.broken("P1", f"one step began {len(begun)} transactions")
        if begun and self.next_txid - 1 - self.pointer.committed > self.max_pending:
            self.broken("P5", f"{self.next_txid - 1 - self.pointer.committed} transactions are pending")
        for txid, record in self.records.items():
            if record is not before.get(txid):
                self._changed(txid, before.get(txid), record, pointer)
        self._pointer_moved(pointer)
        if self.opaque:
            self._batches_follow_each_other()

    def _batches_follow_each_other(self) -> None:
        """No batch is skipped or doubled in the ledger, and transactions without a batch are the last ones."""
        for txid, record in sorted(self.records.items()):
            before = self.records.get(txid - 1)
            if record.invalidated and (record.staged is not None or record.status.lets_others_pass):
                self.broken("P2", f"{txid} is {record.status} without a batch")
            if before is None or record.invalidated:
                continue
            if before.invalidated:
                self.broken("P2", f"{txid} has a batch and {before.txid} has none")
            batch = batch_of(record.metadata)
            until: Any = before.position.get("records", {"to": 0})
            begins = batch[0] if batch else until["to"]
            if begins < until["to"] or not self.gone.issuperset(range(until["to"], begins)):
                self.broken("P2", f"{txid} begins at {batch[0]} and the one before ends at {until['to']}")

    def _take_in(self, op: Create | Set) -> None:
        kind, _, name = op.path.rpartition("/")
        if name == "head":
            following = codec.decode_head(op.data, op.path)
            if following not in (1, *range(self.next_txid + 1, self.next_txid + self.group + 1)) and not self.silent:
                self.broken("P1", f"the next txid went from {self.next_txid} to {following}")
            self.next_txid = following
        elif name == "commit":
            self.pointer = codec.decode_pointer(op.data, op.path)
        elif name == "exceptions":
            self.exceptions = codec.decode_exceptions(op.data, op.path)
        elif kind.endswith("/tx"):
            record = self.records[int(name)] = codec.decode_tx(op.data, op.path)
            self.batches.setdefault(record.txid, set()).update(batch_of(record.metadata))

    def _changed(self, txid: int, old: TxRecord | None, new: TxRecord, pointer: CommitPointer) -> None:
        if old is None:
            if not self.next_txid - self.group <= txid < self.next_txid:
                self.broken("P1", f"transaction {txid} was begun and the next one is {self.next_txid}")
            if self.claims.setdefault(new.claim.key, txid) != txid:
                self.broken("P1", f"claim {new.claim.key} has {self.claims[new.claim.key]} and {txid}")
            return
        if (old.metadata, old.carried, old.claim) != (new.metadata, new.carried, new.claim):
            again = new.attempt == old.attempt + 1
            if not (self._may_change(old, new) and again and txid > pointer.committed):
                self.broken("P2", f"the batch of {txid} changed from {old.metadata} to {new.metadata}")
        self._attempt_changed(txid, old, new)
        both = self.group > 1 and (old.status, new.status) == (Status.PROCESSING, Status.COMMITTING)
        if new.status is not old.status and new.status not in TRANSITIONS[old.status] and not both:
            self.broken("P4", f"{txid} went from {old.status} to {new.status}")
        if new.staged is not None and not self._is_of(txid, new.attempt, new.staged.manifest):
            self.broken("P4", f"{txid} is {new.status} with {new.staged.manifest}; its attempt is {new.attempt}")
        if new.status is Status.COMMITTING and old.fence != new.fence:
            self._gate_opened(txid, old, new, pointer)
        if new.status is Status.COMMITTED and old.status is not Status.COMMITTED:
            self._committed(txid, new)
        self.skips |= new.status is Status.SKIPPED
        if old.touched and not new.touched and any(self._has(store, txid) for store in self._all()):
            self.broken("P8", f"the commit of {txid} was taken back and a state has it")
        if new.status is Status.SKIPPED and (new.touched or any(self._has(store, txid) for store in self._all())):
            self.broken("P8", f"{txid} is SKIPPED and a state may hold it")

    def _may_change(self, old: TxRecord, new: TxRecord) -> bool:
        """May a new attempt have another batch?"""
        return self.opaque and new.claim == old.claim

    @staticmethod
    def _is_of(txid: int, attempt: int, manifest: str) -> bool:
        """Is it the manifest of the attempt? The manifest of a group is in the slot of its last transaction."""
        *_, slot, of_attempt, _ = manifest.split("/")
        return int(slot) > txid or (int(slot), int(of_attempt)) == (txid, attempt)

    def _attempt_changed(self, txid: int, old: TxRecord, new: TxRecord) -> None:
        if new.attempt not in (old.attempt, old.attempt + 1):
            self.broken("P3", f"the attempt of {txid} went from {old.attempt} to {new.attempt}")
        if new.attempt != old.attempt and not new.invalidated:
            self._is_of_own_run(new)
            self._is_noticed(new)
        if new.owner != old.owner and new.attempt == old.attempt and new.status is not Status.COMMITTING:
            self.broken("P4", f"attempt {new.attempt} of {new.txid}, {new.status}, is no longer that of {old.owner}")

    def _is_of_own_run(self, record: TxRecord) -> None:
        """An emitter works on the transaction of its own run, in whatever incarnation of the topology it is."""
        task = self.process().task
        if task is not None and task.verb == "emit" and not self._is_given(task, record.txid):
            self.broken("P1", f"{task.name} attempts {record.txid}, which belongs to {record.claim.run_id!r}")

    def _is_noticed(self, record: TxRecord) -> None:
        """Airflow knows its tasks. When a command is killed, only its session tells so, and whom that was."""
        if self.now_ms is None and record.owner.program and record.owner.worker not in self.listed:
            self.broken("P9", f"attempt {record.attempt} of {record.txid} is of {record.owner}, who is not listed")

    def _takes_over(self, txid: int, old: TxRecord) -> None:
        """A sweep leaves a commit to the process that began it, for some time and while that process is alive:
        otherwise a slow process would never come to an end."""
        sweep = self.process().sweep
        if old.status is not Status.COMMITTING or sweep is None or sweep.own == txid:
            return
        opened, by = self.gated.get(txid, (self.step, None))
        if opened > sweep.began or by is self.process():
            return  # another process took it only after the sweep had looked, or the sweep's own process gated it
        if self.now_ms is not None:
            age_s = (self.now_ms() - old.times_ms[Status.COMMITTING.value]) / 1000
            if age_s < LEFT_S:
                self.broken("P9", f"the commit of {txid} was taken over after {age_s:.0f} s from whom nobody asked")
        who = f"{old.owner.host}/{old.owner.pid}"
        listed = {name for name, (since, _) in self.workers.items() if since <= sweep.began}
        if any(name == old.owner.worker if old.owner.worker else self.workers[name][1] == who for name in listed):
            self.broken("P9", f"the commit of {txid} was taken over from {who}, who is listed as alive")

    def _workers_of(self, ops: Sequence[Op]) -> None:
        for op in ops:
            if "/workers/" in op.path and isinstance(op, Create):
                body = json.loads(op.data)
                self.listed.add(op.path.rpartition("/")[2])
                self.workers[op.path.rpartition("/")[2]] = (self.step, f"{body['host']}/{body['pid']}")
            elif isinstance(op, Delete):
                self.workers.pop(op.path.rpartition("/")[2], None)

    def _gate_opened(self, txid: int, old: TxRecord, record: TxRecord, pointer: CommitPointer) -> None:
        if record.fence <= pointer.fence or self.pointer.fence != record.fence:
            self.broken("P7", f"fence {record.fence} was given out after {pointer.fence}")
        self._takes_over(txid, old)
        self.gated[txid] = self.step, self.process()
        if old.status is Status.COMMITTING and old.times_ms == record.times_ms:
            return  # a bar: no gate is opened
        for lower in range(pointer.committed + 1, txid):
            found = self.records.get(lower)
            with_it = found is not None and found.status is Status.COMMITTING and found.fence == record.fence
            if found is not None and not found.status.lets_others_pass and not with_it:
                self.broken("P6", f"the commit of {txid} began while {lower} is {found.status}")

    def _committed(self, txid: int, record: TxRecord) -> None:
        if self.pointer.committed < txid:
            self.broken("P8", f"{txid} is COMMITTED and the pointer is at {self.pointer.committed}")
        self.done[txid] = batch_of(record.metadata)
        if self.damaged:
            return
        if len(self._all()) < 2:
            self.broken("P8", f"{txid} is COMMITTED and a state was never written")
        for name, store in self.stores.items():
            missing = [one for one in batch_of(record.metadata) if store.records[one] != 1]
            if not self._has(store, txid) or (missing and not self.levels):
                self.broken("P8", f"{txid} is COMMITTED, and state {name} has not records {missing}")
            if self.levels:
                self._follows("P8", name, store, txid)

    def _pointer_moved(self, before: CommitPointer) -> None:
        if self.pointer.committed < before.committed or self.pointer.fence < before.fence:
            self.broken("P8", f"the pointer went back from {before} to {self.pointer}")
        away = {*self.exceptions.late, *self.exceptions.failed}
        for txid, record in self.records.items():
            passed = txid <= self.pointer.committed
            if passed and not record.status.lets_others_pass and txid not in away:
                self.broken("P6", f"the pointer {self.pointer.committed} passed {txid}, which is {record.status}")
            if not passed and record.status is Status.COMMITTED:
                self.broken("P8", f"{txid} is COMMITTED above the pointer {self.pointer.committed}")
        first = self.records.get(self.pointer.committed + 1)
        if first is not None and first.status.lets_others_pass:
            self.broken("P8", f"the pointer did not pass {first.txid}, which is {first.status}")
        done = sum(record.status is Status.COMMITTED for record in self.records.values())
        if done > self.retention + max(1, self.max_pending):  # a step does not prune what it commits
            self.broken("P10", f"{done} committed records are kept instead of {self.retention}")

    def _pruned(self, txid: int) -> None:
        record = self.records.pop(txid, None)
        if record is not None and not record.status.is_final and not self.silent:
            self.broken("P10", f"the record of {txid} was pruned while it was {record.status}")

    # ---- the rest of the world -----------------------------------------------------------------------------------

    def attempt_begins(self, slot: Slot) -> None:
        if self.silent:
            return
        mine = self.process().attempts
        mine[slot.txid] += 1
        if mine[slot.txid] > ATTEMPTS_OF_ONE:
            self.broken("P9", f"one process begins {mine[slot.txid]} attempts of {slot.txid}, and sees no end")
        who = (slot.txid, slot.attempt)
        record = self.records.get(slot.txid)
        if record is not None and record.attempt < slot.attempt:
            self.broken("P3", f"attempt {who} is at work and the ledger knows {record.attempt} only")
        if who in self.attempts:
            self.broken("P3", f"attempt {who} is at work a second time")
        self.attempts.add(who)

    def _is_replaced_soon(self, ticket: CommitTicket) -> bool:
        """Has a newer attempt begun, with an opaque batch of its own? What a state behind others gets of an older one
        is new values that the newer one may have replaced already: they may be those of an earlier transaction."""
        own = self.records.get(ticket.txid)
        return self.levels and self.opaque and own is not None and ticket.attempt < own.attempt

    def state_step(self, name: str, store: Store, ticket: CommitTicket, batch: Rows, applied: Applied) -> None:
        self.applications += applied is Applied.APPLIED
        twice = [record for record, count in store.records.items() if count > 1]
        if twice and not self._is_replaced_soon(ticket):
            self.broken("P7", f"state {name} has records {twice} twice, the last time by transaction {ticket.txid}")
        if self.silent or self.restored or applied is Applied.ALREADY:
            return
        own = self.records.get(ticket.txid)
        if own is not None and not own.touched:
            self.broken("P8", f"state {name} got {ticket.txid}, whose commit was taken back, by fence {ticket.fence}")
        if self.levels and not self.opaque:  # an opaque batch may be one that a newer attempt replaces
            self._follows("P7", name, store, ticket.txid)
        lacks = self._lacks(name, store, ticket.txid)
        if lacks and not (self.levels and name in FED):
            self.broken("P11", f"state {name} got {ticket.txid} and lacks {lacks}, which are COMMITTED")
        if name in self.ordered and not self.levels and list(store.order) != sorted(store.order):
            self.broken("P6", f"state {name} depends on the order and has {store.order}")
        for lower in range(1, ticket.txid):
            found = self.records.get(lower)
            waits = found is not None and not found.status.lets_others_pass and lower > self.pointer.committed
            if waits and not self._has(store, lower):
                self.broken("P6", f"state {name} got {ticket.txid} before {lower}")

    def step_ended(self, name: str, store: Store) -> None:
        """A step of a state has ended, of one transaction or of a group."""

    def _lacks(self, name: str, store: Store, txid: int) -> list[int]:
        lost = self.lost.get(name, ())
        lower = {one: batch for one, batch in self.done.items() if one < txid and one not in lost}
        return [one for one, batch in lower.items() if any(not store.records[record] for record in batch)]

    def _follows(self, promise: str, name: str, store: Store, txid: int) -> None:
        """The state has what follows from the COMMITTED transactions up to this one, and from this one."""
        below = {lower: batch for lower, batch in self.done.items() if lower < txid}
        wanted = contents({**below, txid: batch_of(self.records[txid].metadata)})[name]
        if +store.records != wanted:
            self.broken(promise, f"state {name} has {dict(store.records)} after {txid}, and not {dict(wanted)}")

    def claimed(self, key: str, txid: int) -> None:
        if not self.restored and self.claims.setdefault(key, txid) != txid:
            self.broken("P1", f"claim {key} was given {txid} after {self.claims[key]}")

    def _is_given(self, task: Any, txid: int) -> bool:
        """Is it a transaction of the task's run, in this incarnation of the topology?"""
        record, run_id = self.records.get(txid), task.run.run_id
        return record is None or record.claim.run_id == run_id or txid in self.told.get(run_id, ())

    def _all(self) -> list[Store]:
        return list(self.stores.values())

    @staticmethod
    def _has(store: Store, txid: int) -> bool:
        """Reads the marker as it is written. The store's own reading of it is production code, or a mutant."""
        marker = store.marker
        if marker is None or txid > marker.high:
            return False
        return not any(first <= txid <= last for first, last in marker.holes)
