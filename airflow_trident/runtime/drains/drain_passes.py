"""Passes over several transactions, and what happens when one fails. Used by a drain, a backfill, and a task with
several transactions."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from typing import TypeAlias

from airflow_trident.engine.engine import Engine, Job
from airflow_trident.errors import (
    FencedError,
    GateFailedError,
    InvalidatedError,
    Outcome,
    PassedOverError,
    SourceChangedError,
    TransitionError,
    TridentError,
)
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.protocol.records import StagedRef, Status, TxRecord
from airflow_trident.runtime import timeouts
from airflow_trident.runtime.drains.limits import GroupSize
from airflow_trident.runtime.drains.pass_threads import PassThreads
from airflow_trident.runtime.merge_limit import require_mergeable
from airflow_trident.runtime.milestones import Milestone, reached
from airflow_trident.runtime.open_resources import OpenCoordinators
from airflow_trident.runtime.phases import (
    REFRESHES,
    Attempts,
    Progress,
    job_of,
    note_failure,
    publish,
    record_processed,
    refreshed,
    size_of,
    start_attempts,
)
from airflow_trident.runtime.timeouts import run_in_time, timed_out
from airflow_trident.staging.manifest import Manifest
from airflow_trident.topology.topology import Topology

CANCEL_S = 3.0
"""How long cancelled passes may take to end after a time-out of Airflow, Ctrl-C or an order to end. Then they are left
to themselves: nobody takes their results, and the end of the process ends their threads."""

WAKE_S = 1.0
"""The main thread does not wait for longer at a time. A signal does not wake it if it comes just before the wait, or to
another thread; Python raises its error (Ctrl-C, a time-out of Airflow) when the main thread runs next."""

Gate: TypeAlias = Callable[[Sequence[TxRecord], Manifest], bool]
"""Gets the transactions of a pass, as they are when they are PROCESSED, and its manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """What a pass staged, how many seconds it took, and whether it began before any pass of the drain had ended."""

    manifest: Manifest
    took_s: float
    cold: bool


@dataclass(kw_only=True)
class _Running:
    """A pass. `began`: by the monotonic clock; None: it waits for a thread."""

    records: list[TxRecord]
    jobs: Sequence[Job]
    began: float | None = None


def run_pass(engine: Engine, jobs: Sequence[Job], limit_s: float | None, ended: Event) -> Passed:
    """See :func:`~airflow_trident.runtime.timeouts.run_in_time`.

    :param ended: set when the first pass has ended.
    """
    cold, began = not ended.is_set(), time.monotonic()
    manifest = run_in_time(engine, jobs, limit_s)
    ended.set()
    return Passed(manifest=manifest, took_s=time.monotonic() - began, cold=cold)


def parts_of(records: Sequence[TxRecord], named_txid: int | None) -> list[list[TxRecord]]:
    """The passes after a failed one: the transaction that its error names, alone, and the others; without a name, two
    halves. One bad transaction among n costs at most 2 log2(n) + 1 passes."""
    alone = [record for record in records if record.txid == named_txid]
    others = [record for record in records if record.txid != named_txid]
    if alone and others:
        return [alone, others]
    half = len(records) // 2
    return [part for part in (list(records[:half]), list(records[half:])) if part]


def still_ours(ledger: Ledger, records: Sequence[TxRecord]) -> list[TxRecord]:
    """The transactions whose attempt is still the current one and has not ended: nobody has taken, skipped or committed
    them."""
    attempts = {record.txid: record.attempt for record in records}
    current = ledger.transactions(records[0].txid, records[-1].txid) if records else ()
    return [
        record
        for record in current
        if record.status is Status.PROCESSING and attempts.get(record.txid) == record.attempt
    ]


def named(records: Sequence[TxRecord]) -> str:
    first, last = records[0].txid, records[-1].txid
    return f"transactions {first} to {last} ({len(records)} of them)" if len(records) > 1 else f"transaction {first}"


class Passes:
    """Processes transactions, several in a pass if possible; those of a failed pass again, in smaller passes.

    Threads run the engine; only the caller's thread speaks to the ledger. Used as a context manager, it cancels running
    passes when the context ends with an error. A pass that does not end when it is cancelled is left to itself: after
    its limit; `GRACE_S` after an error; or `CANCEL_S` after it if the whole process is to end. It cannot publish
    anything; its attempt is superseded.

    :param attempts: `last_try`: nobody will try again when a transaction has no tries left here.
    :param size: how many transactions go together; each pass corrects it.
    :param tries: attempts of a transaction by itself. A failed pass of several does not count as a try of its members.
    :param workers: how many passes run at a time.
    :param gate: if it is their turn, says PROCESSED for the transactions of an ended pass and opens their gate, in one
        step, and returns True. False: it did nothing, or only a part.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        topology: Topology,
        engine: Engine,
        staging_root: str,
        attempts: Attempts,
        size: GroupSize,
        coordinators: OpenCoordinators,
        tries: int,
        workers: int,
        progress: Progress,
        gate: Gate = lambda _records, _manifest: False,
    ) -> None:
        self.ledger = ledger
        self.topology = topology
        self.engine = engine
        self.staging_root = staging_root
        self.attempts = attempts
        self.size = size
        self.tries = tries
        self.progress = progress
        self.rows_read = 0
        self.failures: dict[int, Exception] = {}
        """Txid -> error, for transactions without further tries that hold up others or cannot be taken up yet."""
        self.skipped: dict[int, Exception] = {}
        """The same for transactions that others may pass."""
        self._coordinators = coordinators
        self._gate = gate
        self._workers = workers
        self._at_gate = False
        self._ended = Event()
        self._threads: PassThreads[Passed] = PassThreads(workers)
        self._running: dict[Future[Passed], _Running] = {}
        self._tries: Counter[int] = Counter()
        self._refreshes: Counter[int] = Counter()

    def __enter__(self) -> Passes:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._threads.close(self._limit_s)
            return
        closed = Event()
        canceller = timeouts.canceller(self.engine.cancel, closed)
        if self._running:
            canceller.start()
        try:
            self._threads.close(timeouts.GRACE_S if issubclass(kind, Exception) else CANCEL_S)
        finally:
            closed.set()
        if canceller.ident is not None:  # else its last call could meet what this engine runs next
            canceller.join(timeouts.AGAIN_S)

    @property
    def _limit_s(self) -> float | None:
        """After so many seconds nobody waits for a pass."""
        return None if self.attempts.timeout_s is None else self.attempts.timeout_s + timeouts.GRACE_S

    @property
    def running(self) -> bool:
        return bool(self._running)

    @property
    def idle(self) -> int:
        """How many more passes can run at the same time."""
        return max(0, self._workers - len(self._running))

    # ---- begin one -------------------------------------------------------------------------------------------------

    def begin(self, records: Sequence[TxRecord]) -> None:
        """Runs passes over transactions whose attempts have begun, in order."""
        opened = self._coordinators.opened() if len(records) > 1 else {}
        for group in self.size.cut(records, partial(size_of, opened)) if len(records) > 1 else [records]:
            if group:
                self._submit(group)

    def again(self, records: Sequence[TxRecord]) -> None:
        """New attempts: together if possible, else one by one. Transactions that others have taken meanwhile are left
        to them."""
        if self.size.together and len(records) > 1:
            with suppress(FencedError, TransitionError):
                txids = [record.txid for record in records]
                owner, replays = self.attempts.owner, self.attempts.replays
                self.begin(start_attempts(self.ledger, self.topology, txids, owner=owner, replays=replays))
                return
        for record in records:
            try:
                self.alone(record.txid)
            except PassedOverError as error:
                self.failures[record.txid] = error
            except TransitionError as error:
                now = self.ledger.view(record.txid).tx
                if now is not None and now.status is Status.PROCESSING:
                    raise
                self.progress(f"transaction {record.txid}: {error}")

    def alone(self, txid: int) -> None:
        """A new attempt of one transaction. With an opaque spout, later transactions may lose their batch by it."""
        with suppress(InvalidatedError):  # its turn comes with the one before it
            attempts = self.attempts
            owner, replays = attempts.owner, attempts.replays
            self._submit(start_attempts(self.ledger, self.topology, [txid], owner=owner, replays=replays))

    def afresh(self, txid: int) -> None:
        """Does the same as :meth:`alone` for a transaction that lost its batch: it has as many tries as a new one."""
        self._tries[txid] = 0
        self.alone(txid)

    def _submit(self, records: Sequence[TxRecord]) -> None:
        if len(records) == 1:
            self._tries[records[0].txid] += 1
        jobs = [
            job_of(
                self.ledger,
                self.topology,
                record,
                self.staging_root,
                self.progress,
                self.attempts.max_partition_keys,
            )
            for record in records
        ]
        running = _Running(records=list(records), jobs=jobs)

        def run() -> Passed:
            running.began = time.monotonic()
            return run_pass(self.engine, jobs, self.attempts.timeout_s, self._ended)

        self._running[self._threads.submit(run)] = running

    # ---- end one ---------------------------------------------------------------------------------------------------

    def take_results(self) -> None:
        """Waits until a pass has ended, records what it staged, and begins the passes that follow a failed one.

        If a pass is at the gate now, the caller commits it before it takes the next result, whose turn may have come
        then.
        """
        if not self._running:
            return
        self._at_gate = False
        for future in sorted(self._over(), key=lambda ended: self._running[ended].records[0].txid):
            running = self._running.pop(future)
            records, error = running.records, self._ended_with(future, running)
            if self._at_gate:
                return
            if error is None:
                continue
            if not isinstance(error, Exception):
                raise error
            if len(records) > 1:
                self._group_failed(records, error)
            elif isinstance(error, FencedError) or not self._is_current(records[0]):
                self.progress(f"transaction {records[0].txid}: {error}")
            else:
                self._failed(records[0], error)

    def _over(self) -> Collection[Future[Passed]]:
        """Waits for passes that have ended, or that have not though their limit is over."""
        while True:
            remaining_s = self._left_s()
            wait_s = WAKE_S if remaining_s is None else min(remaining_s, WAKE_S)
            done, _ = wait(self._running, timeout=wait_s, return_when=FIRST_COMPLETED)
            over = done or [future for future, running in self._running.items() if self._left_s(running) == 0]
            if over:
                return over

    def _left_s(self, *running: _Running) -> float | None:
        """In how many seconds the first of these passes (none given: of all) is left to itself; None: never."""
        if self._limit_s is None:
            return None
        now = time.monotonic()
        begun = [
            now if running_pass.began is None else running_pass.began
            for running_pass in running or self._running.values()
        ]
        return max(0.0, min(begun) + self._limit_s - now)

    def _ended_with(self, future: Future[Passed], running: _Running) -> BaseException | None:
        """The error of a pass that is over; None: what it staged is recorded."""
        if future.done():
            return future.exception() or self._record(running.records, future.result())
        assert self.attempts.timeout_s is not None
        self._threads.forget(future)
        return timed_out(running.jobs, self.attempts.timeout_s)

    def _is_current(self, record: TxRecord) -> bool:
        """False: a lower transaction took its batch, or another request its partition, and so the attempt ended."""
        is_bound = self.topology.partitions is not None
        shares = is_bound or self.topology.opaque
        tx = self.ledger.view(record.txid, remembered=not is_bound).tx if shares else None
        return tx is None or tx.attempt == record.attempt

    def _may_refresh(self, txid: int) -> bool:
        """May a transaction of a partition take its sources as they are, once more?"""
        self._refreshes[txid] += 1
        return self.topology.partitions is not None and self._refreshes[txid] <= REFRESHES

    def _record(self, records: Sequence[TxRecord], passed: Passed) -> TridentError | None:
        manifest = passed.manifest
        try:
            self._stage(records, manifest)
        except TridentError as error:
            return error
        self.rows_read += max(manifest.rows_read, 0)
        self.size.staged(manifest)
        self.size.passed(len(records), passed.took_s, cold=passed.cold)
        return None

    def _gated(self, records: Sequence[TxRecord], manifest: Manifest, staged: Mapping[int, StagedRef]) -> bool:
        """Did one step make all of them PROCESSED and open their gate? If not, some may be PROCESSED."""
        processed = [replace(record, status=Status.PROCESSED, staged=staged[record.txid]) for record in records]
        try:
            done = self._gate(processed, manifest)
        except TransitionError:
            return False  # the step without the gate says why, if it is refused, too
        self._at_gate = done
        for record in records if done else ():
            reached(Milestone.PROCESSED, record.txid)
        return done

    def _stage(self, records: Sequence[TxRecord], manifest: Manifest) -> None:
        """Publishes the result of a pass and records it. Of several transactions, those that others have taken
        meanwhile are left to them. Then a batch merged by key counts for nobody."""
        plan = self.topology.compile()
        require_mergeable(manifest, plan, self.attempts.max_merge_rows)
        staged = publish(
            manifest,
            self.staging_root,
            plan,
            self.ledger.chunk_bytes,
            self.progress,
            enforce=not any(record.touched for record in records),
        )
        try:
            if not self._gated(records, manifest, staged):
                record_processed(self.ledger, records, staged)
        except (FencedError, TransitionError) as error:
            if len(records) == 1:
                raise
            self.progress(f"{named(records)}: {error}")
            ours = still_ours(self.ledger, records)
            if manifest.inseparable:
                self.again(ours)
                return
            for record in ours:
                with suppress(FencedError, TransitionError):
                    record_processed(self.ledger, [record], staged)

    def _group_failed(self, records: Sequence[TxRecord], error: Exception) -> None:
        """The error of a group says nothing about any one transaction, unless it names one: that one runs alone, and
        the others again. Of one that broke rules all that did are known: they are over, and the others run again."""
        if isinstance(error, GateFailedError) and error.others:
            broken = [record for record in records if record.txid in error.others]
            for record in broken:
                self._failed(record, error.others[record.txid])
            self.again(still_ours(self.ledger, [record for record in records if record not in broken]))
            return
        self.size.failed()
        parts = parts_of(records, getattr(error, "txid", None))
        how = " and ".join(named(part) for part in parts)
        self.progress(f"{named(records)}, in one pass, failed: {error}; passing {how}")
        for part in parts:
            self.again(still_ours(self.ledger, part))

    def _failed(self, record: TxRecord, error: Exception) -> None:
        if isinstance(error, SourceChangedError) and self._may_refresh(record.txid):
            why_not = refreshed(self.ledger, self.topology, record, error)
            if why_not is None:
                self.progress(f"transaction {record.txid}: its sources have changed, and it takes them as they are")
                self._tries[record.txid] -= 1
                self.alone(record.txid)
                return
            error = why_not
        hopeless = isinstance(error, TridentError) and error.outcome is Outcome.FAIL
        used_up = hopeless or self._tries[record.txid] >= self.tries
        last = hopeless or (used_up and self.attempts.last_try)
        note_failure(self.ledger, record.txid, record.attempt, error, replace(self.attempts, last_try=last))
        self.progress(f"transaction {record.txid}, attempt {record.attempt} failed: {error}")
        if not used_up:
            self.alone(record.txid)
            return
        tx = self.ledger.view(record.txid).tx
        if tx is None or tx.attempt != record.attempt:
            return  # somebody else has it now
        if tx.status is Status.FAILED or (tx.status is Status.PROCESSING and not last):
            self.failures[record.txid] = error
        elif tx.status.lets_others_pass:
            self.skipped[record.txid] = error
