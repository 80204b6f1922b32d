"""The drain: one process, one Spark application, many transactions, pipelined.

The processing of later transactions overlaps the commit of earlier ones, and the JVM starts once. Ledger, promises and
states are those of every other task; only one thread speaks to the ledger, the others run the engine.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from airflow_trident.engine.base import Engine, quiet
from airflow_trident.errors import FencedError, InvalidatedError, Outcome, TransitionError, TridentError
from airflow_trident.ledger.base import DEFAULT_RETENTION, Ledger
from airflow_trident.protocol.decide import AlreadyCommitted, Begin, Blocked, Full, Wait, decide_begin
from airflow_trident.protocol.records import Claim, LedgerView, TxRecord
from airflow_trident.protocol.statuses import Status
from airflow_trident.runtime.attempts import start_attempt
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.coordinators import OpenCoordinators
from airflow_trident.runtime.drains.drain_passes import Passed, named, parts_of, run_pass, still_ours
from airflow_trident.runtime.drains.group_size import GroupSize
from airflow_trident.runtime.drains.limits import DrainLimits, require_groups
from airflow_trident.runtime.group_phases import (
    coordinate_many,
    new_records,
    publish_group,
    record_processed_many,
    restart,
    size_of,
)
from airflow_trident.runtime.open_states import OpenStates
from airflow_trident.runtime.phases import (
    Attempts,
    Progress,
    job_of,
    note_failure,
    publish,
    record_processed,
)
from airflow_trident.runtime.waiting import blocked, nobody_looks, wait_while_undecided
from airflow_trident.runtime.waiting_runs import MOST_TOGETHER
from airflow_trident.runtime.workers import at_work
from airflow_trident.staging.manifest import Manifest
from airflow_trident.topology.topology import Topology

__all__ = ["Drain", "DrainLimits", "DrainResult"]

AT_ONCE = 2
"""Passes that are at work at the same time, where nobody says how much may be pending: one is processed while the other
commits."""

LAG_EVERY_S = 30.0

LOOK_EVERY_S = 30.0
"""So often a drain that waits sweeps again though nothing has changed: somebody's commit may be left by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainResult:
    """`committed`: txids that this drain committed, in order. `rows_read`: rows from the sources in those that it
    processed itself."""

    committed: tuple[int, ...]
    rows_read: int


@dataclass(kw_only=True)
class Drain:
    """Runs a topology until nothing is new. One use each.

    :param claim: whose claims they are; the txid is added to its key.
    :param stopping: asked before each transaction is begun; true ends the drain as its limits do.
    """

    ledger: Ledger
    topology: Topology
    engine: Engine
    staging_root: str
    attempts: Attempts
    claim: Claim
    limits: DrainLimits = field(default_factory=DrainLimits)
    retention: int = DEFAULT_RETENTION
    progress: Progress = quiet
    stopping: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        plan = self.topology.compile()
        require_groups(plan, self.limits.group)
        self._running: dict[Future[Passed], list[TxRecord]] = {}
        self._tries: Counter[int] = Counter()
        self._begun = 0
        self._rows_read = 0
        self._committed: list[int] = []
        self._ended: Exception | None = None
        self._states_checked = False
        self._lag_due = 0.0
        self._size = GroupSize(self.limits, together=self.engine.coalesces(plan).passes)
        self._states = OpenStates(self.topology)
        self._coordinators = OpenCoordinators(self.topology)
        self._committer = Committer(
            ledger=self.ledger,
            topology=self.topology,
            staging_root=self.staging_root,
            attempts=self.attempts,
            engine=lambda: self.engine,
            retention=self.retention,
            progress=self.progress,
            most_together=1 if self.limits.group == 1 else MOST_TOGETHER,
        )

    def run(self) -> DrainResult:
        """Recover what is unfinished, then go on with new transactions.

        :raises UserCodeError, SparkJobError, ...: a transaction's tries are used up; what could commit is committed.
        :raises BlockedError: a FAILED transaction of somebody else stands in the way.
        """
        self._stop_at = None if self.limits.max_time_s is None else time.monotonic() + self.limits.max_time_s
        self.ledger.register(self.topology.definition())
        with at_work(self.ledger, self.attempts.owner) as me:
            self.attempts = replace(self.attempts, owner=me)
            self._committer = replace(self._committer, attempts=self.attempts)
            return self._run()

    def _run(self) -> DrainResult:
        for note in self.topology.compile().notes:
            self.progress(note)
        workers = self.limits.max_pending or AT_ONCE
        pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="trident-drain")
        with self._states, self._coordinators:
            try:
                self._recover(pool)
                full = True
                while full:
                    full = self._fill(pool)
                    while self._running:
                        self._take_results(pool)
                        self._emit_again(pool)
                        self._commit(wait_s=0.0)
                        full = self._fill(pool)
                    # What is left is in other workers' hands. When they are done the window may have room again.
                    self._commit(wait_s=self.limits.wait_s)
            except BaseException:
                self.engine.cancel()
                raise
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        if self._ended is not None:
            raise self._ended
        return DrainResult(committed=tuple(self._committed), rows_read=self._rows_read)

    # ---- processing --------------------------------------------------------------------------------------------

    def _recover(self, pool: ThreadPoolExecutor) -> None:
        view = self.ledger.view(0)
        first = view.pointer.committed + 1
        pending = self.ledger.transactions(first) if first < view.next_txid else ()
        self._again(pool, [tx for tx in pending if tx.status is Status.PROCESSING])
        self._commit(wait_s=0.0, take_over=True)

    @property
    def _max_pending(self) -> int:
        return self.limits.max_pending or AT_ONCE * self._size.now

    def _fill(self, pool: ThreadPoolExecutor) -> bool:
        """Begin transactions; True when only the window of pending ones keeps it from beginning more."""
        while self._may_begin():
            seen, most = self.ledger.view(0, remembered=True), self._most()
            decision = decide_begin(seen, max_pending=self._max_pending)
            scarce = isinstance(decision, Begin) and self._max_pending - seen.pending < most
            if self._running and (isinstance(decision, Full) or scarce):
                return True  # the ledger need not be asked while there is other work; nor are small groups begun
            begun = coordinate_many(
                self.ledger,
                self.topology,
                [replace(self.claim, key=f"{self.claim.key}/{seen.next_txid + number}") for number in range(most)],
                self._coordinators,
                max_pending=self._max_pending,
                attempt_by=self.attempts.owner,
                check_states=not self._states_checked,
                rows_in_errors=self.attempts.rows_in_errors,
                ask_lag=self._asks_lag(most),
            )
            self._states_checked = True
            if isinstance(begun, Blocked):
                self._ended = self._ended or blocked(self.topology.name, begun)
                return False
            if not isinstance(begun, tuple):
                return isinstance(begun, Full)
            self._begun += len(begun)
            self._submit_all(pool, new_records(begun))
            for one in begun:
                if one.new or one.record is None or one.record.status in (Status.COMMITTING, Status.COMMITTED):
                    continue  # an earlier try of this very task still runs
                self._attempt(pool, one.txid)
        return False

    def _most(self) -> int:
        """How many are begun together."""
        left = self.limits.max_transactions
        return self._size.now if left is None else min(self._size.now, left - self._begun)

    def _asks_lag(self, most: int) -> bool:
        """Now and then, since it costs a look at the sources; and when no further transaction will tell."""
        if time.monotonic() < self._lag_due and self._begun + most != self.limits.max_transactions:
            return False
        self._lag_due = time.monotonic() + LAG_EVERY_S
        return True

    def _may_begin(self) -> bool:
        if self._ended is not None or self.stopping():
            return False
        if self.limits.max_transactions is not None and self._begun >= self.limits.max_transactions:
            return False
        return self._stop_at is None or time.monotonic() < self._stop_at

    def _attempt(self, pool: ThreadPoolExecutor, txid: int) -> None:
        """A new attempt. Where a spout is opaque, later transactions may lose their batch by it: see `_emit_again`."""
        with suppress(InvalidatedError):  # its turn comes with that of the one before it
            self._submit(pool, [start_attempt(self.ledger, self.topology, txid, owner=self.attempts.owner)])

    def _again(self, pool: ThreadPoolExecutor, records: Sequence[TxRecord]) -> None:
        """New attempts: together where that can be, else of each; what is in other hands by now is left there."""
        if self._size.together and len(records) > 1:
            with suppress(FencedError, TransitionError):
                txids = [one.txid for one in records]
                self._submit_all(pool, restart(self.ledger, self.topology, txids, self.attempts.owner))
                return
        for one in records:
            try:
                self._attempt(pool, one.txid)
            except TransitionError as error:
                now = self.ledger.view(one.txid).tx
                if now is not None and now.status is Status.PROCESSING:
                    raise
                self.progress(f"transaction {one.txid}: {error}")

    def _emit_again(self, pool: ThreadPoolExecutor) -> None:
        """Process what lost its batch to a lower transaction, lowest first; each is tried as often as a new one."""
        if not self.topology.opaque:
            return
        view = self.ledger.view(0, remembered=True)
        for txid in range(view.pointer.committed + 1, view.next_txid):
            tx = self.ledger.view(txid, remembered=True).tx
            if tx is not None and tx.invalidated and tx.status is Status.PROCESSING:
                self._tries[txid] = 0
                self._attempt(pool, txid)

    def _submit_all(self, pool: ThreadPoolExecutor, records: Sequence[TxRecord]) -> None:
        opened = self._coordinators.opened() if len(records) > 1 else {}
        for group in self._size.cut(records, partial(size_of, opened)) if len(records) > 1 else [records]:
            if group:
                self._submit(pool, group)

    def _submit(self, pool: ThreadPoolExecutor, records: Sequence[TxRecord]) -> None:
        if len(records) == 1:
            self._tries[records[0].txid] += 1
        incarnation = self.ledger.view(0, remembered=True).topology.incarnation
        jobs = [job_of(incarnation, self.topology, one, self.staging_root, self.progress) for one in records]
        self._running[pool.submit(run_pass, self.engine, jobs, self.attempts.timeout_s)] = list(records)

    def _take_results(self, pool: ThreadPoolExecutor) -> None:
        if not self._running:
            return
        done, _ = wait(self._running, return_when=FIRST_COMPLETED)
        for future in sorted(done, key=lambda one: self._running[one][0].txid):
            records = self._running.pop(future)
            error = future.exception() or self._record(pool, records, future.result())
            if error is None:
                continue
            if not isinstance(error, Exception):
                raise error
            if len(records) > 1:
                self._group_failed(pool, records, error)
            elif isinstance(error, FencedError) or not self._is_current(records[0]):
                self.progress(f"transaction {records[0].txid}: {error}")
            else:
                self._failed(pool, records[0], error)

    def _is_current(self, record: TxRecord) -> bool:
        """False: a lower transaction took its batch meanwhile, and with it the attempt."""
        tx = self.ledger.view(record.txid, remembered=True).tx if self.topology.opaque else None
        return tx is None or tx.attempt == record.attempt

    def _record(self, pool: ThreadPoolExecutor, records: Sequence[TxRecord], passed: Passed) -> TridentError | None:
        manifest = passed.manifest
        try:
            if len(records) == 1:
                record_processed(self.ledger, records[0], publish(manifest, self.staging_root))
            else:
                self._record_group(pool, records, manifest)
        except TridentError as error:
            return error
        self._rows_read += max(manifest.rows_read, 0)
        self._size.passed(len(records), passed.took_s)
        return None

    def _record_group(self, pool: ThreadPoolExecutor, records: Sequence[TxRecord], manifest: Manifest) -> None:
        """What of it is in other hands by now is left there. Merged by key it counts for nobody then."""
        staged = publish_group(manifest, self.staging_root)
        try:
            record_processed_many(self.ledger, records, staged)
        except (FencedError, TransitionError) as error:
            self.progress(f"{named(records)}: {error}")
            ours = still_ours(self.ledger, records)
            if manifest.inseparable:
                self._again(pool, ours)
                return
            for one in ours:
                with suppress(FencedError, TransitionError):
                    record_processed(self.ledger, one, staged[one.txid])

    def _group_failed(self, pool: ThreadPoolExecutor, records: Sequence[TxRecord], error: Exception) -> None:
        """No evidence against any one, unless the error names it: that one is passed alone, and the others again."""
        self._size.failed()
        parts = parts_of(records, getattr(error, "txid", None))
        how = " and ".join(named(part) for part in parts)
        self.progress(f"{named(records)}, in one pass, failed: {error}; passing {how}")
        for part in parts:
            self._again(pool, still_ours(self.ledger, part))

    def _failed(self, pool: ThreadPoolExecutor, record: TxRecord, error: Exception) -> None:
        hopeless = isinstance(error, TridentError) and error.outcome is Outcome.FAIL
        last = hopeless or self._tries[record.txid] >= self.limits.tries
        note_failure(self.ledger, record.txid, record.attempt, error, replace(self.attempts, last_try=last))
        self.progress(f"transaction {record.txid}, attempt {record.attempt} failed: {error}")
        if not last:
            self._attempt(pool, record.txid)
            return
        tx = self.ledger.view(record.txid).tx
        if tx is not None and tx.status is Status.FAILED:
            self._ended = self._ended or error

    # ---- commit ------------------------------------------------------------------------------------------------

    def _commit(self, *, wait_s: float, take_over: bool = False) -> None:
        """Sweep; with `wait_s` until the last transaction that was begun is committed, or a failed one blocks it."""
        remembered = not (wait_s or take_over)
        view = self.ledger.view(0, remembered=remembered)
        last = view.next_txid - 1
        if last <= view.pointer.committed:
            return
        target = last if wait_s else view.pointer.committed + 1

        def sweep() -> tuple[AlreadyCommitted | Wait | Blocked, LedgerView]:
            result = self._committer.commit(target, take_over=take_over, states=self._states, remembered=remembered)
            self._committed += result.committed
            return result.own, result.view

        if not wait_s:
            sweep()
            return
        own = wait_while_undecided(
            self.ledger, target, sweep, wait_s=wait_s, look_every_s=LOOK_EVERY_S, look=nobody_looks, say=self.progress
        )
        if isinstance(own, Blocked):
            tx = self.ledger.view(own.by).tx
            if tx is not None and tx.status is Status.FAILED:
                self._ended = self._ended or blocked(self.topology.name, own)
        elif isinstance(own, Wait):
            self._ended = self._ended or TridentError(
                f"transaction {target} of topology {self.topology.name!r} is not committed: {own.why}",
                f"See `airflow trident ledger list {self.topology.name}` for who holds it.",
            )
