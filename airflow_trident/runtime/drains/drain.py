"""The drain: one process, one Spark application, many transactions, pipelined.

The processing of later transactions overlaps the commit of earlier ones, and the JVM starts once. Ledger, promises and
states are those of every other task; only one thread speaks to the ledger, the others run the engine.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace

from airflow_trident.engine.base import Engine, quiet
from airflow_trident.errors import FencedError, InvalidatedError, Outcome, TridentError
from airflow_trident.ledger.base import DEFAULT_MAX_PENDING, DEFAULT_RETENTION, Begun, Ledger
from airflow_trident.protocol.decide import AlreadyCommitted, Blocked, Full, Wait, decide_begin
from airflow_trident.protocol.records import Claim, LedgerView, TxRecord
from airflow_trident.protocol.statuses import Status
from airflow_trident.runtime.attempts import start_attempt
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.coordinators import OpenCoordinators
from airflow_trident.runtime.open_states import OpenStates
from airflow_trident.runtime.phases import (
    Attempts,
    Progress,
    coordinate,
    job_of,
    note_failure,
    publish,
    record_processed,
)
from airflow_trident.runtime.timeouts import run_in_time
from airflow_trident.runtime.waiting import blocked, nobody_looks, wait_while_undecided
from airflow_trident.runtime.workers import at_work
from airflow_trident.staging.manifest import Manifest
from airflow_trident.topology.topology import Topology

LAG_EVERY_S = 30.0

LOOK_EVERY_S = 30.0
"""So often a drain that waits sweeps again though nothing has changed: somebody's commit may be left by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainLimits:
    """When a drain begins no more transactions: after so many, after so many seconds, or (always) without new data.

    `tries`: attempts of one transaction before it is FAILED or SKIPPED. `wait_s`: how long it waits in the end for
    transactions that other workers hold.
    """

    max_transactions: int | None = None
    max_time_s: float | None = None
    max_pending: int = DEFAULT_MAX_PENDING
    tries: int = 3
    wait_s: float = 600.0


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
        self._running: dict[Future[Manifest], TxRecord] = {}
        self._tries: Counter[int] = Counter()
        self._begun = 0
        self._rows_read = 0
        self._committed: list[int] = []
        self._ended: Exception | None = None
        self._states_checked = False
        self._lag_due = 0.0
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
        pool = ThreadPoolExecutor(max_workers=self.limits.max_pending, thread_name_prefix="trident-drain")
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
        for txid in range(view.pointer.committed + 1, view.next_txid):
            tx = self.ledger.view(txid).tx
            if tx is not None and tx.status is Status.PROCESSING:
                self._attempt(pool, txid)
        self._commit(wait_s=0.0, take_over=True)

    def _fill(self, pool: ThreadPoolExecutor) -> bool:
        """Begin transactions; True when only the window of pending ones keeps it from beginning more."""
        while self._may_begin():
            seen = self.ledger.view(0, remembered=True)
            if self._running and isinstance(decide_begin(seen, max_pending=self.limits.max_pending), Full):
                return True  # the ledger need not be asked while there is other work
            claim = replace(self.claim, key=f"{self.claim.key}/{seen.next_txid}")
            begun = coordinate(
                self.ledger,
                self.topology,
                claim,
                max_pending=self.limits.max_pending,
                attempt_by=self.attempts.owner,
                check_states=not self._states_checked,
                rows_in_errors=self.attempts.rows_in_errors,
                ask_lag=self._asks_lag(),
                coordinators=self._coordinators,
            )
            self._states_checked = True
            if isinstance(begun, Blocked):
                self._ended = self._ended or blocked(self.topology.name, begun)
                return False
            if not isinstance(begun, Begun) or begun.record is None:
                return isinstance(begun, Full)
            self._begun += 1
            record = begun.record
            if not begun.new and record.status in (Status.COMMITTING, Status.COMMITTED):
                continue  # an earlier try of this very task still runs
            if begun.new:
                self._submit(pool, record)
            else:
                self._attempt(pool, begun.txid)
        return False

    def _asks_lag(self) -> bool:
        """Now and then, since it costs a look at the sources; and when no further transaction will tell."""
        if time.monotonic() < self._lag_due and self._begun + 1 != self.limits.max_transactions:
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
            self._submit(pool, start_attempt(self.ledger, self.topology, txid, owner=self.attempts.owner))

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

    def _submit(self, pool: ThreadPoolExecutor, record: TxRecord) -> None:
        self._tries[record.txid] += 1
        incarnation = self.ledger.view(0, remembered=True).topology.incarnation
        job = job_of(incarnation, self.topology, record, self.staging_root, self.progress)
        self._running[pool.submit(run_in_time, self.engine, job, self.attempts.timeout_s)] = record

    def _take_results(self, pool: ThreadPoolExecutor) -> None:
        if not self._running:
            return
        done, _ = wait(self._running, return_when=FIRST_COMPLETED)
        for future in sorted(done, key=lambda one: self._running[one].txid):
            record = self._running.pop(future)
            error = future.exception() or self._record(record, future.result())
            if isinstance(error, FencedError) or (error is not None and not self._is_current(record)):
                self.progress(f"transaction {record.txid}: {error}")
            elif isinstance(error, Exception):
                self._failed(pool, record, error)
            elif error is not None:
                raise error

    def _is_current(self, record: TxRecord) -> bool:
        """False: a lower transaction took its batch meanwhile, and with it the attempt."""
        tx = self.ledger.view(record.txid, remembered=True).tx if self.topology.opaque else None
        return tx is None or tx.attempt == record.attempt

    def _record(self, record: TxRecord, manifest: Manifest) -> TridentError | None:
        try:
            record_processed(self.ledger, record, publish(manifest, self.staging_root))
        except TridentError as error:
            return error
        self._rows_read += max(manifest.rows_read, 0)
        return None

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
