"""The drain task: many transactions in one task and one Spark application."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowSkipException, TaskDeferred

from airflow_trident import settings
from airflow_trident.names import require_flags
from airflow_trident.operators.backfill import claim_of_clear, require_done
from airflow_trident.operators.base import (
    airflow_outcome,
    backfill_run_refused,
    claim_of,
    deferrable_default,
    is_backfill_run,
    is_known,
    listed,
    note_assets,
    owner,
)
from airflow_trident.operators.engine_operator import EngineOperator
from airflow_trident.protocol.decide import Blocked
from airflow_trident.protocol.records import OnFailure
from airflow_trident.protocol.txids import NO_TXIDS, Txids
from airflow_trident.runtime.drains.limits import AUTO, DrainLimits, on_failure_of, pending_of, require_groups
from airflow_trident.runtime.waiting import paused
from airflow_trident.tasks import asset_events
from airflow_trident.tasks.airflow_versions import checked_deferrable, recall, remember, remembers

if TYPE_CHECKING:
    from datetime import timedelta

    from airflow.providers.common.compat.sdk import Context

    from airflow_trident.ledger.ledger import Ledger
    from airflow_trident.ledger.workers import Worker
    from airflow_trident.protocol.records import Claim
    from airflow_trident.runtime.drains.drain import DrainResult
    from airflow_trident.runtime.drains.keys import AskedPartitions
    from airflow_trident.tasks.submitted_drain import Submission, SubmittedDrain
    from airflow_trident.topology.topology import Topology


SUBMISSION_KEY = "trident_drain"
"""Key in the task's own state store, which outlives its tries, of the drain that runs in the cluster."""
TRY_KEY = "trident_drain_try"
"""Key there of the number of the try that submitted it. Not a part of the submission, which older versions read."""


class TridentDrainOperator(EngineOperator):
    """Begins, processes and commits transactions until nothing is new: one task, one Spark application.

    The processing of later transactions overlaps the commit of earlier ones, and Spark starts once. The promises are
    those of the task group. The next drain, or a backfill, continues what a killed drain left. Skips when there is
    nothing to do. Fails when a FAILED transaction blocks the topology, also if nothing is new. Returns the txids that
    it committed; of more than 100, their count and ranges.

    :param topology: the Topology.
    :param max_transactions: begin at most this number; None: as long as there is data.
    :param max_time_s: begin no more after this number of seconds; transactions that have begun are finished.
    :param group: how many transactions are begun, processed and committed together: at most this number; ``auto``:
        chosen by how much there is to read and how long it takes; 1: each alone.
    :param max_pending: how many are uncommitted at once; None: twice the group, and three where each goes alone.
    :param allow_backfill_runs: let runs of an Airflow backfill take new data; otherwise they are skipped.
    :param tries: attempts of one transaction within one run of the task.
    :param on_failure: ``block``: a transaction that keeps failing ends the drain; ``skip``: the others go on. None:
        ``skip`` if the topology is bound to partitions, else ``block``.
    :param retention: committed transactions to keep; None: ``[trident] retention``.
    :param deferrable: wait in the triggerer while the driver runs in a cluster; None: ``[trident] deferrable``.

    For a topology that is bound to partitions it does the missing ones. It fails when one of them failed, after the
    others.

    With a connection of type ``spark`` the whole drain is submitted. A retry takes up the driver that still runs and
    submits no second one, even if the task was killed between the submission and its answer (Airflow 3.3).
    """

    template_fields: Sequence[str] = (
        "max_transactions",
        "max_time_s",
        "max_pending",
        "group",
        *EngineOperator.template_fields,
    )
    ui_color = "#e3dcf2"
    one_batch = False
    brings_events = True

    def __init__(
        self,
        *,
        topology: Topology,
        max_transactions: int | str | None = None,
        max_time_s: timedelta | float | str | None = None,
        max_pending: int | str | None = None,
        group: int | str = AUTO,
        tries: int = 3,
        on_failure: OnFailure | str | None = None,
        retention: int | None = None,
        deferrable: bool | None = None,
        allow_backfill_runs: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(topology=topology, **kwargs)
        self.max_transactions = max_transactions
        self.max_time_s = max_time_s
        self.max_pending = max_pending
        self.group = group
        self.tries = settings.parse_count("tries", tries)
        self.on_failure = on_failure_of(topology.states, on_failure)
        self.retention = settings.parse_limit("retention", retention)
        self.deferrable = checked_deferrable(deferrable)
        require_flags(type(self).__name__, allow_backfill_runs=allow_backfill_runs)
        self.allow_backfill_runs = allow_backfill_runs
        self._submitted: SubmittedDrain | None = None
        if all(map(is_known, (max_transactions, max_time_s, max_pending, group))):
            require_groups(topology.compile(), self._limits().group)
            pending_of(topology.states, self._limits().max_pending)

    def execute(self, context: Context) -> list[int] | dict[str, Any]:
        if is_backfill_run(context) and not self.allow_backfill_runs:
            raise backfill_run_refused(self.topology_name, context)
        with airflow_outcome():
            drained = self._drain_submitted(context) if self._is_submitted() else self._drain(context)
        return self._done(context, drained)

    def execute_complete(self, context: Context, event: Any = None) -> Any:
        """Called when the trigger saw that the driver has ended: check that, and take its result."""
        with airflow_outcome():
            drained = self._drain_submitted(context, resumed=True)
        return self._done(context, drained)

    def on_kill(self) -> None:
        """Cancel a submitted drain in the cluster. This saves work; correctness never needs it."""
        if self._submitted is not None:
            with suppress(Exception):
                self._submitted.cancel()
        super().on_kill()

    def _is_submitted(self) -> bool:
        """Is the whole drain submitted as an application? Otherwise this task drains."""
        from airflow_trident.tasks.submitted_drain import is_submitted

        return is_submitted(self.engine, self.spark_conn_id)

    def _done(self, context: Context, drained: DrainResult) -> list[int] | dict[str, Any]:
        brought = self._bring_events(context)
        if drained.paused_by is None:
            require_done(drained.keys, self.log, is_named=False)
        if not drained.committed:
            if drained.paused_by is None:
                self._require_unblocked()
            nothing = (
                paused(self.topology_name, drained.paused_by)
                if drained.paused_by is not None
                else f"nothing new for topology {self.topology_name}: no transaction is begun."
            )
            if not brought:
                raise AirflowSkipException(nothing)
            self.log.info("%s", nothing)  # no skip: a skipped task brings no events
            return []
        self.current_txids = drained.committed
        extra = {"topology": self.topology_name, "txids": listed(drained.committed), "rows_read": drained.rows_read}
        note_assets(self, context, extra)
        first, last = drained.committed[0], drained.committed[-1]
        many = f"transactions {first} to {last} are committed ({len(drained.committed)} in all)"
        done = many if last > first else f"transaction {first} is committed"
        self.log.info("topology %s: %s, %s rows read", self.topology_name, done, f"{drained.rows_read:,}")
        if drained.paused_by is not None:
            self.log.info("%s", paused(self.topology_name, drained.paused_by))
        return listed(drained.committed)

    def _require_unblocked(self) -> None:
        """:raises BlockedError: nothing may commit before a FAILED transaction does."""
        with airflow_outcome(), self.open_ledger() as ledger:
            view = ledger.view(0)
            failed = view.blocked_by(view.next_txid)
            if failed is not None:
                raise self.blocked(Blocked(failed))

    def _bring_events(self, context: Context) -> Txids:
        if not self.topology.asset:
            return NO_TXIDS
        with airflow_outcome(), self.open_ledger() as ledger:
            return asset_events.bring(self, self.topology, ledger, context, owner(context))

    def _drain(self, context: Context) -> DrainResult:
        from airflow_trident.runtime.drains.drain import Drain

        def progress(line: str) -> None:
            self.note_ui(context)
            self.log.info("%s", line)

        try:
            with self.open_ledger() as ledger, self.open_engine(context) as engine:
                self.enlist(ledger, context)
                asked = self._missing(ledger)
                return Drain(
                    ledger=ledger,
                    topology=self.topology,
                    engine=engine,
                    staging_root=settings.staging_root(self.staging_dir),
                    attempts=self.attempts(context),
                    claim=self._claim(context),
                    limits=self._limits(),
                    retention=settings.retention(self.retention),
                    progress=progress,
                    partitions=asked,
                ).run()
        finally:
            self._running = None

    # ---- submitted -------------------------------------------------------------------------------------------------

    def _drain_submitted(self, context: Context, *, resumed: bool = False) -> DrainResult:
        """Submit the drain, or take up the one that an earlier try submitted, and wait for its end. If that one is
        killed meanwhile, this try submits its own.

        :param resumed: after a wait in the triggerer.
        """
        from airflow_trident.tasks.submitted_drain import Submission, SubmittedDrain

        drain = self._submitted = SubmittedDrain(
            topology=self.topology,
            conn_id=str(self.spark_conn_id),
            conf=self.conf_of_run(context),
            app_name=f"trident {self.topology_name}",
            zookeeper_conn_id=self.zookeeper_conn_id,
            staging_root=settings.staging_root(self.staging_dir),
            say=self.log.info,
            workers=self._workers,
        )
        stored = recall(context, SUBMISSION_KEY)
        this_try = context["ti"].try_number if remembers(context) else None
        submission = Submission.from_json(stored) if stored else None
        is_own = resumed and recall(context, TRY_KEY) in (None, this_try)
        if submission is not None and not is_own:
            submission = drain.looked_up(submission)

        def note(submission: Submission) -> None:
            remember(context, SUBMISSION_KEY, submission.as_json())

        try:
            if submission is not None:
                self.log.info("taking up the drain that was submitted: its driver is %s", submission.driver_name)
                note(submission)
                self._wait_deferred(context, submission)
                drained = drain.finish(submission) if is_own else drain.finish_of_another(submission)
                if drained is not None:
                    return drained
                self.log.warning("%s was killed and left no result: another is submitted", submission.driver_name)
            if not remembers(context):
                self.log.warning(
                    "Airflow before 3.3 keeps nothing for a later try: a retry of this task submits another drain "
                    "beside this one. The ledger lets one of them commit; the work of the other is lost."
                )
            remember(context, TRY_KEY, this_try)
            limits, retention = self._limits(), settings.retention(self.retention)
            if self.topology.partitions is not None:
                with self.open_ledger() as ledger:
                    drain.partitions = self._missing(ledger)
            submission = drain.start(self.attempts(context), self._claim(context), limits, retention, note)
            self._wait_deferred(context, submission)
            return drain.finish(submission)
        finally:
            if drain.ended:  # the next try starts a new drain
                remember(context, SUBMISSION_KEY, None)

    def _wait_deferred(self, context: Context, submission: Submission) -> None:
        """Wait in the triggerer while the driver runs, if the submission is remembered: otherwise (before Airflow 3.3)
        the resumed task would submit again."""
        from airflow_trident.triggers.driver import TridentDriverTrigger

        if not deferrable_default(self.deferrable) or recall(context, SUBMISSION_KEY) is None:
            return
        if submission.driver is not None and submission.driver.active():
            trigger = TridentDriverTrigger(
                topology=self.topology_name,
                driver_id=submission.driver_id,
                masters=list(submission.masters),
                cluster=submission.cluster,
                zookeeper_conn_id=self.zookeeper_conn_id,
            )
            raise TaskDeferred(trigger=trigger, method_name="execute_complete", timeout=None)

    def _claim(self, context: Context) -> Claim:
        return claim_of(context, "drain") if self.topology.partitions is None else claim_of_clear(context, "drain")

    def _missing(self, ledger: Ledger) -> AskedPartitions | None:
        """The missing partitions of a bound topology."""
        if self.topology.partitions is None:
            return None
        from airflow_trident.runtime.drains.keys import AskedPartitions
        from airflow_trident.runtime.outcomes import register
        from airflow_trident.runtime.partition_status import KeyChoice, KeySelection

        register(ledger, self.topology)
        return AskedPartitions(keys=KeySelection(choice=KeyChoice.MISSING).keys_of(ledger, self.topology))

    def _workers(self) -> Sequence[Worker]:
        with self.open_ledger() as ledger:
            return ledger.workers()

    def _limits(self) -> DrainLimits:
        return DrainLimits(
            max_transactions=settings.parse_limit("max_transactions", self.max_transactions),
            max_time_s=settings.parse_seconds("max_time_s", self.max_time_s, zero=True),
            max_pending=settings.parse_limit("max_pending", self.max_pending),
            group=self.group,
            tries=self.tries,
        )
