"""The drain: one process, one Spark application, many transactions, pipelined.

Later transactions are processed while earlier ones commit, and the JVM starts only once. Ledger, promises and states
are the same as for every other task. Only one thread speaks to the ledger; the others run the engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from airflow_trident.engine.engine import Engine, quiet
from airflow_trident.errors import (
    FencedError,
    LedgerUnavailableError,
    OutcomeUnknownError,
    TridentError,
    guarded,
)
from airflow_trident.ledger.answers import BeginResult, Begun
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.ledger.workers import is_alive
from airflow_trident.names import DEFAULT_RETENTION
from airflow_trident.protocol.decide import AlreadyCommitted, Begin, Blocked, Full, Paused, Wait, decide_begin
from airflow_trident.protocol.records import Claim, Command, CommitTicket, LedgerView, Status
from airflow_trident.runtime.commit import MOST_TOGETHER, Committer
from airflow_trident.runtime.drains.drain_passes import Passes
from airflow_trident.runtime.drains.keys import AskedPartitions, KeyQueue, KeyResult
from airflow_trident.runtime.drains.limits import DrainLimits, GroupSize, on_failure_of, pending_of, require_groups
from airflow_trident.runtime.open_resources import OpenCoordinators, OpenStates
from airflow_trident.runtime.outcomes import register, tell_plan, tell_success, telling
from airflow_trident.runtime.phases import (
    Attempts,
    Progress,
    began,
    commit_and_coordinate,
    coordinate,
    new_records,
    require_definition,
)
from airflow_trident.runtime.waiting import blocked, nobody_looks, wait_while_undecided
from airflow_trident.runtime.workers import at_work
from airflow_trident.topology.topology import Topology

AT_ONCE = 2
"""How many passes run at the same time, unless `max_pending` says otherwise: one is processed while one commits."""

ALONE_AT_ONCE = 3
"""The same where each transaction goes alone: such a pass is so short that two leave a core idle while one commits."""

LAG_EVERY_S = 30.0

LOOK_EVERY_S = 30.0
"""A waiting drain sweeps again after this time even without changes: another's commit may have been abandoned by
then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainResult:
    """`committed`: txids that this drain committed, in order. `rows_read`: from sources, in passes of this drain.
    `paused_by`: the command that forbids new transactions, if that ended it. `keys`: of a drain of partitions, in the
    order in which they were asked for."""

    committed: tuple[int, ...]
    rows_read: int
    paused_by: Command | None = None
    keys: tuple[KeyResult, ...] = ()


@dataclass(kw_only=True)
class Drain:
    """Runs a topology until nothing is new; or does the partitions of a bound one. Each object is used once.

    :param claim: whose claims they are; the txid, or the key of the partition, is added to its key.
    :param partitions: of a bound topology; for others None.
    :param stopping: asked before each transaction begins; True ends the drain as its limits do.
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
    partitions: AskedPartitions | None = None

    def __post_init__(self) -> None:
        plan = self.topology.compile()
        require_groups(plan, self.limits.group)
        on_failure_of(self.topology.states, self.attempts.on_failure)
        self.limits = replace(self.limits, max_pending=pending_of(self.topology.states, self.limits.max_pending))
        self._begun = 0
        self._committed: list[int] = []
        self._ended: Exception | None = None
        self._paused_by: Command | None = None
        self._states_checked = False
        self._lag_due = 0.0
        self._goes_on = False
        self._ahead: BeginResult | None = None
        self._size = GroupSize(self.limits, together=self.engine.coalesces(plan).passes)
        self._at_once = AT_ONCE if self._size.together else ALONE_AT_ONCE
        self._states = OpenStates(self.topology)
        self._coordinators = OpenCoordinators(self.topology, self.ledger)
        self._keys: KeyQueue | None = None
        if self.partitions is not None:
            self._keys = KeyQueue(
                ledger=self.ledger,
                topology=self.topology,
                asked=self.partitions,
                claim=self.claim,
                coordinators=self._coordinators,
            )
        self._committer = Committer(
            ledger=self.ledger,
            topology=self.topology,
            staging_root=self.staging_root,
            attempts=self.attempts,
            engine=lambda: self.engine,
            retention=self.retention,
            progress=self.progress,
            most_together=1 if self.limits.group == 1 else MOST_TOGETHER,
            go_on=self._commit_and_begin,
        )

    def run(self) -> DrainResult:
        """Finishes unfinished transactions, then goes on with new ones.

        :raises UserCodeError, SparkJobError, ...: a transaction has no tries left; everything that can commit is
            committed.
        :raises BlockedError: a FAILED transaction of somebody else is in the way.
        """
        self._stop_at = None if self.limits.max_time_s is None else time.monotonic() + self.limits.max_time_s
        with telling(self.ledger, self.claim, rows_in_errors=self.attempts.rows_in_errors):
            register(self.ledger, self.topology)
        tell_plan(self.ledger, self.topology)
        with at_work(self.ledger, self.attempts.owner) as me:
            self.attempts = replace(self.attempts, owner=me)
            self._committer = replace(self._committer, attempts=self.attempts)
            return self._run()

    def _run(self) -> DrainResult:
        for note in self.topology.compile().notes:
            self.progress(note)
        with self._states, self._coordinators, self._open_passes() as self._passes:
            self._recover()
            full = True
            while full:
                full = self._fill()
                while self._passes.running:
                    self._passes.take_results()
                    self._emit_again()
                    self._commit(wait_s=0.0)
                    full = self._fill()
                # Other workers have the rest. When they are done, the window may have room again.
                self._commit(wait_s=self.limits.wait_s)
        if self._error is not None:
            raise self._error
        return DrainResult(
            committed=tuple(self._committed),
            rows_read=self._passes.rows_read,
            paused_by=self._paused_by,
            keys=() if self._keys is None else self._keys.results(self._committed, self._passes.skipped),
        )

    @property
    def errors(self) -> list[Exception]:
        """The errors of partitions that are not done, after :meth:`run`."""
        return [] if self._keys is None else list(self._keys.raised(self._passes.skipped))

    def _open_passes(self) -> Passes:
        return Passes(
            ledger=self.ledger,
            topology=self.topology,
            engine=self.engine,
            staging_root=self.staging_root,
            attempts=replace(self.attempts, last_try=True),
            size=self._size,
            coordinators=self._coordinators,
            tries=self.limits.tries,
            workers=self.limits.max_pending or self._at_once,
            progress=self.progress,
            gate=lambda records, manifest: self._committer.processed_at_gate(records, manifest, self._states),
        )

    @property
    def _error(self) -> Exception | None:
        """The error that the drain raises after everything that can commit is committed."""
        return next(iter(self._passes.failures.values()), None) or self._ended

    # ---- processing --------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        view = self.ledger.view(0)
        first = view.pointer.committed + 1
        pending = self.ledger.transactions(first) if first < view.next_txid else ()
        processing = [tx for tx in pending if tx.status is Status.PROCESSING]
        if self._keys is not None and processing:
            workers = self.ledger.workers()
            processing = [tx for tx in processing if not is_alive(workers, tx.owner)]
        self._passes.again(processing)
        self._commit(wait_s=0.0, take_over=True)

    @property
    def _max_pending(self) -> int:
        return self.limits.max_pending or self._at_once * self._size.now

    def _fill(self) -> bool:
        """Begins transactions; True if it could begin more, but the window of pending ones is full."""
        while self._ahead is not None or self._may_begin():
            begun, self._ahead = self._ahead, None
            seen = self.ledger.view(0, remembered=True)
            if begun is None:
                if self._passes.running and self._has_no_room(seen):
                    return True  # while others run: neither ask the ledger nor begin small groups
                begun = self._coordinate(seen) if self._keys is None else self._begin_keys(self._keys)
            else:  # as `coordinate` does
                tell_success(self.ledger, seen.topology, self._coordinators.opened())
            if isinstance(begun, Blocked):
                self._ended = self._ended or blocked(self.topology.name, begun)
                return False
            if not isinstance(begun, tuple):
                self._paused_by = begun.command if isinstance(begun, Paused) else None
                return isinstance(begun, Full)
            self._begun += len(begun)
            self._passes.begin([began(record) for record in new_records(begun)])
            for begun_now in begun:
                if not self._is_at_work(begun_now):
                    self._passes.alone(begun_now.txid)
        return False

    def _is_at_work(self, begun: Begun) -> bool:
        """Has somebody the transaction already? Of a claim that has one, that is an earlier try of this task."""
        record = begun.record
        if begun.new or record is None or record.status in (Status.COMMITTING, Status.COMMITTED):
            return True
        if self._keys is None:
            return False
        return record.status is Status.PROCESSED or is_alive(self.ledger.workers(), record.owner)

    def _begin_keys(self, keys: KeyQueue) -> BeginResult:
        with telling(self.ledger, self.claim, rows_in_errors=self.attempts.rows_in_errors):
            require_definition(self.ledger, self.topology, check_states=not self._states_checked)
        self._states_checked = True
        return keys.begin(self._most(), self._max_pending, self.attempts.owner)

    def _coordinate(self, seen: LedgerView) -> BeginResult:
        claims = self._next_claims(seen)
        begun = coordinate(
            self.ledger,
            self.topology,
            claims,
            max_pending=self._max_pending,
            attempt_by=self.attempts.owner,
            check_states=not self._states_checked,
            rows_in_errors=self.attempts.rows_in_errors,
            ask_lag=self._asks_lag(len(claims)),
            coordinators=self._coordinators,
        )
        self._states_checked = True
        return begun

    def _commit_and_begin(self, tickets: Sequence[CommitTicket]) -> int:
        """Commits, and in the same step begins groups for the idle passes, at least one. Returns how many are
        COMMITTED; 0 if nothing can begin, or if it failed: then the two single steps say why."""
        goes_on = self._goes_on and self._states_checked and self._ahead is None and self._keys is None
        if not goes_on or not self._may_begin():
            return 0
        seen = self.ledger.view(0, remembered=True)
        pointer = max(seen.pointer.committed, tickets[-1].txid)
        seen = replace(seen, pointer=replace(seen.pointer, committed=pointer))
        if self._has_no_room(seen):
            return 0
        room = (self._max_pending - seen.pending) // self._most()
        claims = self._next_claims(seen, groups=max(1, min(self._passes.idle, room)))
        try:
            with guarded("the coordinators"):
                both = commit_and_coordinate(
                    self.ledger,
                    self.topology,
                    tickets,
                    claims,
                    retention=self.retention,
                    max_pending=self._max_pending,
                    attempt_by=self.attempts.owner,
                    ask_lag=self._asks_lag(len(claims)),
                    coordinators=self._coordinators,
                )
        except (FencedError, LedgerUnavailableError, OutcomeUnknownError):
            raise
        except TridentError:
            return 0
        self._ahead = both.begun or both.why_not
        return len(both.records)

    def _has_no_room(self, seen: LedgerView) -> bool:
        """Is there no room for a group of the present size?"""
        decision = decide_begin(seen, max_pending=self._max_pending)
        return isinstance(decision, Full) or (
            isinstance(decision, Begin) and self._max_pending - seen.pending < self._most()
        )

    def _next_claims(self, seen: LedgerView, groups: int = 1) -> list[Claim]:
        first, many = seen.next_txid, self._most(groups)
        return [replace(self.claim, key=f"{self.claim.key}/{first + number}") for number in range(many)]

    def _most(self, groups: int = 1) -> int:
        """How many transactions begin together."""
        many, most = groups * self._size.now, self.limits.max_transactions
        if self._keys is not None:
            many = min(many, max(1, len(self._keys)))
        return many if most is None else min(many, most - self._begun)

    def _asks_lag(self, count: int) -> bool:
        """Only from time to time, because it reads the sources; and at the last transaction that this drain may
        begin."""
        if time.monotonic() < self._lag_due and self._begun + count != self.limits.max_transactions:
            return False
        self._lag_due = time.monotonic() + LAG_EVERY_S
        return True

    def _may_begin(self) -> bool:
        if self._error is not None or self.stopping():
            return False
        if self.limits.max_transactions is not None and self._begun >= self.limits.max_transactions:
            return False
        return self._stop_at is None or time.monotonic() < self._stop_at

    def _emit_again(self) -> None:
        """Processes transactions that lost their batch to a lower one, lowest first; each has as many tries as a new
        one."""
        if not self.topology.opaque:
            return
        view = self.ledger.view(0, remembered=True)
        for txid in range(view.pointer.committed + 1, view.next_txid):
            tx = self.ledger.view(txid, remembered=True).tx
            if tx is not None and tx.invalidated and tx.status is Status.PROCESSING:
                self._passes.afresh(txid)

    # ---- commit ------------------------------------------------------------------------------------------------

    def _commit(self, *, wait_s: float, take_over: bool = False) -> None:
        """Sweeps; with `wait_s` until the last transaction that must commit is committed, or a failed one blocks it."""
        remembered = not (wait_s or take_over)
        view = self.ledger.view(0, remembered=remembered)
        first, skipped = view.pointer.committed + 1, view.exceptions.skipped
        last = next((txid for txid in reversed(range(first, view.next_txid)) if txid not in skipped), None)
        if last is None:
            return
        target = last if wait_s else first

        self._goes_on = remembered  # at the end nobody would process the next transactions

        def sweep() -> tuple[AlreadyCommitted | Wait | Blocked, LedgerView]:
            swept = self._committer.commit(target, take_over=take_over, states=self._states, remembered=remembered)
            self._committed += swept.committed
            return swept.own, swept.view

        if not wait_s:
            sweep()
            return
        verdict = wait_while_undecided(
            self.ledger, target, sweep, wait_s=wait_s, look_every_s=LOOK_EVERY_S, look=nobody_looks, say=self.progress
        )
        if isinstance(verdict, Blocked):
            tx = self.ledger.view(verdict.by).tx
            if tx is not None and tx.status is Status.FAILED:
                self._ended = self._ended or blocked(self.topology.name, verdict)
        elif isinstance(verdict, Wait):
            self._ended = self._ended or TridentError(
                f"transaction {target} of topology {self.topology.name!r} is not committed: {verdict.why}",
                f"See `airflow trident ledger list {self.topology.name}` for who holds it.",
            )
