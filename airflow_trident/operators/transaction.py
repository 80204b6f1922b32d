"""The coordinator task: decides what the next batch is, and records it before any task works on it.

The emitter task: the processing phase of one transaction, with a new attempt each time it runs.

The committer task: the commit phase. If it succeeds, its transaction is committed.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException, AirflowTaskTimeout

from airflow_trident import settings
from airflow_trident.errors import BlockedError, ConfigurationError, TransitionError, UnknownTopologyError
from airflow_trident.links import SparkUiLink, TransactionLink
from airflow_trident.names import Redo, parse_redo, require_flags
from airflow_trident.operators.base import (
    COORDINATE,
    INCARNATION,
    airflow_outcome,
    backfill_run_refused,
    coordinator_above,
    deferrable_default,
    first_try,
    human_bytes,
    is_backfill_run,
    is_known,
    is_last_try,
    listed,
    note_assets,
    owner,
    parse_txids,
    require_unskipped,
)
from airflow_trident.operators.coordinating import CoordinatingOperator
from airflow_trident.operators.engine_operator import EngineOperator
from airflow_trident.protocol.decide import AlreadyCommitted, Blocked, Full, Paused, Wait
from airflow_trident.protocol.records import OnFailure, Status
from airflow_trident.runtime.drains.limits import on_failure_of, parse_group, pending_of, require_groups
from airflow_trident.tasks.airflow_versions import checked_deferrable
from airflow_trident.tasks.waits import COMMIT, EMIT, Abandoned, Rank, Until

if TYPE_CHECKING:
    from datetime import timedelta

    from airflow.providers.common.compat.sdk import Context

    from airflow_trident.engine.engine import Engine
    from airflow_trident.ledger.answers import BeginResult
    from airflow_trident.ledger.ledger import Ledger
    from airflow_trident.protocol.records import LedgerView, TxRecord
    from airflow_trident.runtime.commit import Committer
    from airflow_trident.runtime.phases import Attempts, ProcessResult
    from airflow_trident.topology.topology import Topology

T = TypeVar("T")

_OUTLETS_OF_PARTITIONS = (
    "outlets of a topology that is bound to partitions have an event for each run, and two runs may share a "
    "transaction. Topology(asset=...) has one event with the key for each commit of a partition."
)
_TEMPORARY_RUN = "__airflow_temporary_run_"
"""So begin the ids of the runs that ``airflow tasks test`` makes and deletes."""
MOST_TRANSACTIONS = 10_000
"""Of one run: the coordinator claims all of them before it looks for data."""


class TridentCoordinatorOperator(CoordinatingOperator):
    """Claims transactions for this DAG run. The same run always gets the same ones, no matter how often it runs again.

    Returns the txid; if `max_transactions` is above 1, the list of txids. When nothing is new, or there is no room, and
    a processed transaction of another run has nobody left to commit it, returns that transaction: the tasks of this run
    commit it. Skips when nothing is new or the topology is paused. Waits while `max_pending` transactions are
    uncommitted. Fails at once when they wait for a FAILED one, and when nothing is new and a transaction is FAILED: a
    topology that is blocked has red runs.

    :param topology: the Topology.
    :param max_transactions: at most this number of batches in one run, if the source has them.
    :param max_pending: how many transactions may be uncommitted at once; None: ``[trident] max_pending``, but at least
        `max_transactions`, and at least ``max_active_runs`` of a DAG that sets it.
    :param deferrable: wait in the triggerer after `turn_wait_s` in the worker; None: ``[trident] deferrable``.
    :param turn_wait_s: how long to wait in the worker; None: ``[trident] turn_wait_s``.
    :param on_failure: what happens to transactions whose tasks were killed: ``block`` or ``skip``. None: ``skip`` if
        the topology is bound to partitions, else ``block``.
    :param partition: of a bound topology: the key of the run's partition (templated); None: the key that the run has.
    :param redo: of a bound topology. ``asked``: a manual run, one of an Airflow backfill and a cleared one do a
        COMMITTED partition again. ``changed``: only if its sources have changed, as scheduled runs do.
    :param allow_backfill_runs: let runs of an Airflow backfill (``airflow backfill create``) take new data. Otherwise
        they are skipped: a source has no batch for their date, so they would take the data that is new today.

    The run of a bound topology asks for one partition. It waits until the partition is complete, and while a commit of
    it is under way. It gets the unfinished transaction of the partition, if there is one. It is skipped if the
    partition is COMMITTED and its sources have not changed, unless a person asked for it.
    """

    template_fields: Sequence[str] = ("zookeeper_conn_id", "max_pending", "partition")
    phase = COORDINATE

    def __init__(
        self,
        *,
        topology: Topology,
        max_transactions: int = 1,
        max_pending: int | str | None = None,
        deferrable: bool | None = None,
        turn_wait_s: timedelta | float | None = None,
        on_failure: OnFailure | str | None = None,
        allow_backfill_runs: bool = False,
        partition: str | None = None,
        redo: Redo | str = Redo.ASKED,
        **kwargs: Any,
    ) -> None:
        super().__init__(topology=topology, **kwargs)
        self._require_followers()
        max_transactions = settings.parse_count("max_transactions", max_transactions, most=MOST_TRANSACTIONS)
        pending_of(topology.states, max_transactions)
        if is_known(max_pending):
            pending_of(topology.states, settings.parse_limit("max_pending", max_pending))
        self.max_transactions = max_transactions
        self.max_pending = max_pending
        self.deferrable = checked_deferrable(deferrable)
        self.turn_wait_s = settings.parse_seconds("turn_wait_s", turn_wait_s, zero=True)
        self.on_failure = on_failure_of(topology.states, on_failure)
        require_flags(type(self).__name__, allow_backfill_runs=allow_backfill_runs)
        self.allow_backfill_runs = allow_backfill_runs
        self.partition = partition
        self.redo = parse_redo(redo)
        self.rank_as(Rank.COORDINATE)
        self._require_partition_of_runs()

    def _require_partition_of_runs(self) -> None:
        """:raises ConfigurationError: an argument means nothing for this topology, or the runs of the DAG have no keys
        of its partitions."""
        if self.topology.partitions is not None:
            from airflow_trident.tasks.partition_runs import require_coordinator

            require_coordinator(self, self.topology.partitions)
        elif self.partition is not None or self.redo is not Redo.ASKED:
            raise ConfigurationError(
                f"partition= or redo=, and topology {self.topology_name!r} is not bound to partitions",
                "Leave it out, or give Topology(partitions=...).",
            )

    def _require_followers(self) -> None:
        """:raises ConfigurationError: the tasks behind this one would not get the txid, or a failure would not show."""
        for name, needed in (("do_xcom_push", True), ("multiple_outputs", False)):
            if getattr(self, name) is not needed:
                raise ConfigurationError(
                    f"{name}={not needed} for task {self.task_id}: the tasks after it get the txid from its XCom",
                    f"Give this task {name}={needed}; default_args of the DAG may have another value.",
                )
        if self.has_dag() and self.dag.fail_fast:  # type: ignore[no-untyped-call]
            raise ConfigurationError(
                f"DAG {self.dag_id} has fail_fast=True: Airflow skips the tasks after a failed one, and a run is green "
                "although its transaction is FAILED",
                "Leave out fail_fast. The tasks of a transaction end each other anyway.",
            )

    def execute(self, context: Context) -> int | list[int]:
        from airflow_trident.protocol.outcomes import OutcomeKind
        from airflow_trident.runtime.outcomes import tell, tell_plan

        if context["ti"].run_id.startswith(_TEMPORARY_RUN):
            raise AirflowFailException(
                f"`airflow tasks test` runs one task in a run that Airflow then deletes: the transaction of topology "
                f"{self.topology_name} that it began would have no tasks, and would block the others. "
                f"`airflow dags test {context['ti'].dag_id}` runs all tasks."
            )
        for note in self.topology.compile().notes:
            self.log.warning("%s", note)
        with airflow_outcome():
            require_unskipped(self)
        with airflow_outcome(), self.open_ledger() as ledger:
            try:
                txids = self._txids(context, ledger)
            except (BlockedError, AirflowTaskTimeout) as error:
                kind = OutcomeKind.BLOCKED if isinstance(error, BlockedError) else OutcomeKind.ERROR
                tell(ledger, self._claim(context), kind, f"{type(error).__name__}: {error}")
                raise
            tell_plan(ledger, self.topology)
            context["ti"].xcom_push(key=INCARNATION, value=ledger.view(0, remembered=True).topology.incarnation)
        self.current_txids = txids
        return txids if self.most > 1 else txids[0]

    def _txids(self, context: Context, ledger: Ledger) -> list[int]:
        if self.topology.partitions is not None:
            from airflow_trident.operators.partitions_of_run import PartitionsOfRun

            return PartitionsOfRun(self, context, ledger).txids()
        if is_backfill_run(context) and not self.allow_backfill_runs:
            return self._claimed_before(context, ledger)
        return self._claim_all(context, ledger)

    def _claim_all(self, context: Context, ledger: Ledger) -> list[int]:
        from airflow_trident.ledger.answers import NothingNew

        while True:
            txids, begun = self._begin(context, ledger)
            if txids:
                return txids
            orphan = None
            if isinstance(begun, Blocked) and isinstance(self.review(context, ledger)(begun), Wait):
                begun = Full(oldest=begun.by, pending=ledger.view(0).pending)
            if isinstance(begun, NothingNew):
                orphan = self._left_behind(context, ledger)
            elif isinstance(begun, Full):
                orphan = self.wait_for_room(context, ledger, begun)
            if orphan is not None:
                self.log.info(
                    "transaction %d waits to be committed, and %s: this run commits it", orphan.by, orphan.why
                )
                return [orphan.by]
            if not isinstance(begun, Full):
                raise self._why_nothing(context, ledger, begun)

    def _begin(self, context: Context, ledger: Ledger) -> tuple[list[int], BeginResult]:
        """The transactions of this run, with those that began now, and the reason why there are no more."""
        from airflow_trident.runtime.open_resources import OpenCoordinators
        from airflow_trident.runtime.phases import coordinate

        claims, txids = list(self._claims(context)), list[int]()
        outcome: BeginResult = ()
        with OpenCoordinators(self.topology, ledger) as coordinators:
            while claims:  # one step may take only some of the claims
                outcome = coordinate(
                    ledger,
                    self.topology,
                    claims[:1] if claims[0].cleared and not txids else claims,
                    max_pending=self.pending_limit(),
                    attempt_by="",
                    check_states=not txids,
                    ask_lag=True,
                    rows_in_errors=settings.flag(settings.ROWS_IN_ERRORS),
                    coordinators=coordinators,
                )
                if not isinstance(outcome, tuple):
                    break
                self.log_begun(outcome)
                txids += [begun.txid for begun in outcome]
                if claims[0].cleared and len(txids) == 1 and not outcome[0].new:
                    return txids + self._known(context, ledger)[1:], outcome
                claims = claims[len(outcome) :]
        return txids, outcome

    def _left_behind(self, context: Context, ledger: Ledger) -> Abandoned | None:
        """The transaction that all others wait for, if it is staged and nobody is left to commit it, or if the run that
        could go on with it only starts when this one has ended. A run without new data must not pass it by. If a task
        that is gone was processing it, it becomes FAILED."""
        from airflow_trident.tasks.liveness import lowest_left_alone

        record = lowest_left_alone(ledger)
        if record is None:
            return None
        return self._look(context, ledger)(record)

    def _claimed_before(self, context: Context, ledger: Ledger) -> list[int]:
        """The transactions that a backfill run claimed earlier, when it was still allowed to.

        :raises AirflowSkipException: there are none.
        """
        with suppress(UnknownTopologyError):
            txids = self._known(context, ledger)
            if txids:
                return txids
        raise backfill_run_refused(self.topology_name, context)

    def _known(self, context: Context, ledger: Ledger) -> list[int]:
        """The transactions that a cleared run claimed before. It replays these and takes no new ones."""
        from airflow_trident.ledger.answers import NextBatches

        claims = list(self._claims(context))
        begun_before = ledger.begin(NextBatches(claims, max_pending=self.pending_limit()))
        return [begun.txid for begun in begun_before] if isinstance(begun_before, tuple) else []

    def _why_nothing(self, context: Context, ledger: Ledger, begun: object) -> Exception:
        from airflow_trident.ledger.answers import NothingNew
        from airflow_trident.runtime.waiting import paused

        if isinstance(begun, Blocked):
            return self.blocked(begun)
        if isinstance(begun, Paused):
            return AirflowSkipException(paused(self.topology_name, begun.command))
        assert isinstance(begun, NothingNew)
        view = ledger.view(0)
        last, failed = view.next_txid - 1, view.blocked_by(view.next_txid)
        # A run without new data says by its state that the topology is blocked.
        if failed is not None and isinstance(still := self.review(context, ledger)(Blocked(failed)), Blocked):
            return self.blocked(still)
        after = f"after transaction {last}" if last else "yet"
        return AirflowSkipException(f"nothing new for topology {self.topology_name} {after}: no transaction is begun.")


class TridentEmitterOperator(EngineOperator):
    """Reads the batch of a transaction, runs the topology's processing phase over it and stages the result.

    Each run is a new attempt, recorded before anything is read. The task's `retries` are the attempts. When they are
    used up, or when another try would be in vain, the transaction is FAILED, or SKIPPED with ``on_failure="skip"``.

    :param topology: the Topology.
    :param txid: the coordinator's output (templated).
    :param on_failure: ``block``: later transactions wait until this one is replayed; ``skip``: they pass. None: as of
        the coordinator.
    :param group: process all transactions from the coordinator in this task, at most this number in a pass; ``auto``:
        chosen by how much there is to read and how long it takes. None: there is one, or the task is mapped over them.
    :raises ConfigurationError: `group` is a number, but the topology or one of its states takes one at a time.
    """

    template_fields: Sequence[str] = ("txid", *EngineOperator.template_fields)
    operator_extra_links = (TransactionLink(), SparkUiLink())
    ui_color = "#d9ecd9"
    phase = EMIT

    def __init__(
        self,
        *,
        topology: Topology,
        txid: Any,
        on_failure: OnFailure | str | None = None,
        group: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(topology=topology, **kwargs)
        self.txid = txid
        self.on_failure = on_failure_of(topology.states, on_failure)
        self.group = None if group is None else parse_group(group)
        if self.group is not None:
            require_groups(topology.compile(), self.group)
            self.takes_several, self.one_batch = True, False

    def execute(self, context: Context) -> int | list[int]:
        if self.group is not None:
            return self._execute_all(context, self.group)
        with airflow_outcome():
            txid = settings.parse_txid(self.txid)
            self.current_txids = (txid,)
            began = time.monotonic()
            with self.ledger_of_run(context) as ledger:
                self.enlist(ledger, context, txid)
                processed = self._process(context, ledger, txid)
            self.log.info("%s", self._story(processed, time.monotonic() - began))
        return txid

    def _process(self, context: Context, ledger: Ledger, txid: int) -> ProcessResult:
        from airflow_trident.runtime.phases import ProcessOutcome, ProcessResult, process

        attempts = self.attempts(context, last_try=is_last_try(context))

        def progress(line: str) -> None:
            self.log.info("%s", line)

        seen = ledger.view(txid)
        if self._is_left_behind(context, seen.tx):
            return ProcessResult(txid=txid, outcome=ProcessOutcome.ALREADY_PROCESSED)
        if self._stays_skipped(context, seen.tx):
            return ProcessResult(txid=txid, outcome=ProcessOutcome.LEFT_SKIPPED)
        try:
            with self.open_engine(context) as engine, self.watching_ui(context):
                staging_root = settings.staging_root(self.staging_dir)
                return process(ledger, self.topology, txid, engine, staging_root, attempts, progress, seen=seen)
        except AirflowTaskTimeout as error:
            record = ledger.view(txid).tx
            _note_timeout(ledger, [record] if record is not None else [], error, attempts)
            raise
        finally:
            self._running = None

    # ---- all of a run ----------------------------------------------------------------------------------------------

    def _execute_all(self, context: Context, group: int | str) -> list[int]:
        with airflow_outcome():
            self.current_txids = txids = parse_txids(self.txid)
            began = time.monotonic()
            with self.ledger_of_run(context) as ledger:
                self.enlist(ledger, context)
                rows_read = self._process_all(context, ledger, txids, group)
            self.log.info(
                "transactions %d to %d of topology %s (%d in all): %s rows read in %.1f s",
                txids[0],
                txids[-1],
                self.topology_name,
                len(txids),
                f"{rows_read:,}",
                time.monotonic() - began,
            )
        return txids

    def _process_all(self, context: Context, ledger: Ledger, txids: Sequence[int], group: int | str) -> int:
        """:raises TridentError: of the first transaction that failed and blocks others. The others are processed."""
        from airflow_trident.runtime.drains.process_many import first_to_raise, known_records, process_many

        attempts = self.attempts(context, last_try=is_last_try(context))
        rows_read, failures, skipped = 0, dict[int, Exception](), dict[int, Exception]()
        try:
            with self.open_engine(context) as engine, self.watching_ui(context):
                staging_root = settings.staging_root(self.staging_dir)
                for ended in process_many(
                    ledger,
                    self.topology,
                    txids,
                    engine,
                    staging_root,
                    attempts,
                    lambda line: self.log.info("%s", line),
                    group=group,
                    is_free=lambda record: not self._is_done(context, record),
                ):
                    rows_read += ended.rows_read
                    failures.update(ended.failures)
                    skipped.update(ended.skipped)
        except AirflowTaskTimeout as error:
            _note_timeout(ledger, known_records(ledger, txids), error, attempts)
            raise
        finally:
            self._running = None
        for txid, why in skipped.items():
            self.log.warning("transaction %d is SKIPPED: %s", txid, why)
        after = known_records(ledger, txids)
        worst = first_to_raise(failures) or (first_to_raise(skipped) if len(skipped) == len(after) else None)
        if worst is not None:
            raise worst
        failed = next((record.txid for record in after if record.status is Status.FAILED), None)
        if failed is not None:  # it failed in an earlier try of this task
            raise self.blocked(Blocked(failed))
        return rows_read

    def _is_done(self, context: Context, record: TxRecord) -> bool:
        """Is there nothing to process? True if its commit has begun, if it is here only to be committed, if it stays
        SKIPPED, or if an earlier try of this task, since a person last cleared the task, brought it to an end."""
        status = record.status
        if status in (Status.COMMITTING, Status.COMMITTED, Status.CLOSED) or self._is_left_behind(context, record):
            return True
        if self._stays_skipped(context, record):
            return True
        return self._began_since_clear(context, record) and status is not Status.PROCESSING

    def _began_since_clear(self, context: Context, record: TxRecord) -> bool:
        """Is its last attempt that of an earlier try of this task, since a person last cleared the task?"""
        me = owner(context)
        is_own = record.owner.is_same_task(me) and record.owner.try_number < me.try_number
        return is_own and record.owner.try_number >= first_try(context, self.retries or 0)

    def _is_left_behind(self, context: Context, record: TxRecord | None) -> bool:
        """Did another run process it, and is it here only to be committed? Its staged batch is good as it is."""
        ti = context["ti"]
        if record is None or record.status is not Status.PROCESSED or coordinator_above(self) is None:
            return False
        return (record.claim.dag_id, record.claim.run_id) != (ti.dag_id, ti.run_id)

    def _stays_skipped(self, context: Context, record: TxRecord | None) -> bool:
        """Was a transaction of this run SKIPPED, and has nobody cleared the task since? A retry that Airflow makes by
        itself does not undo what a person decided; in another run the task is there to replay it. A clear counts until
        the task has begun an attempt."""
        ti = context["ti"]
        if record is None or record.status is not Status.SKIPPED:
            return False
        cleared = first_try(context, self.retries or 0) > 1 or bool(context["dag_run"].clear_number)
        cleared = cleared and not self._began_since_clear(context, record)
        return not cleared and (record.claim.dag_id, record.claim.run_id) == (ti.dag_id, ti.run_id)

    def _story(self, processed: ProcessResult, took_s: float) -> str:
        from airflow_trident.runtime.phases import ProcessOutcome

        subject = f"transaction {processed.txid} of topology {self.topology_name}"
        if processed.outcome is not ProcessOutcome.PROCESSED or processed.staged is None:
            return f"{subject}: {processed.outcome}, nothing to process"
        staged = processed.staged
        rows = ", ".join(f"{count:,} for state {name}" for name, count in staged.rows.items())
        read = f"{staged.rows_read:,} rows read" if staged.rows_read >= 0 else "rows read"
        size = human_bytes(staged.bytes)
        return f"{subject}, attempt {processed.attempt}: {read}, staged {rows} ({size}) in {took_s:.1f} s"


def _note_timeout(ledger: Ledger, records: Sequence[TxRecord], error: AirflowTaskTimeout, attempts: Attempts) -> None:
    """Record the timeout. AirflowTaskTimeout is no Exception in Airflow 3, so no code below has recorded it."""
    from airflow_trident.runtime.phases import note_failure

    failure = TimeoutError(f"execution_timeout of the task: {error}")
    for record in records:
        if record.owner == attempts.owner and record.status is Status.PROCESSING:
            note_failure(ledger, record.txid, record.attempt, failure, attempts)


class TridentCommitterOperator(EngineOperator):
    """Commits, in order, every transaction whose turn has come, until its own is committed.

    If the commit sweep of another task has already committed its transaction, the task succeeds. If a lower transaction
    is FAILED, the task fails at once and says what to do. If a lower one is still under way, the task waits: first in
    the worker, then without a worker slot.

    :param topology: the Topology.
    :param txid: the transaction that must be committed when the task succeeds, or several (templated). Of several,
        SKIPPED ones are left out, unless all are SKIPPED.
    :param retention: committed transactions to keep; None: ``[trident] retention``.
    :param deferrable: wait in the triggerer after `turn_wait_s` in the worker; None: ``[trident] deferrable``.
    :param turn_wait_s: how long to wait in the worker; None: ``[trident] turn_wait_s``.
    :param on_failure: as for the emitter; also what happens to transactions whose tasks were killed.
    """

    template_fields: Sequence[str] = ("txid", *EngineOperator.template_fields)
    ui_color = "#f5e3c8"
    phase = COMMIT
    brings_events = True

    def __init__(
        self,
        *,
        topology: Topology,
        txid: Any,
        retention: int | None = None,
        deferrable: bool | None = None,
        turn_wait_s: timedelta | float | None = None,
        on_failure: OnFailure | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(topology=topology, **kwargs)
        self.txid = txid
        self.retention = settings.parse_limit("retention", retention)
        self.deferrable = checked_deferrable(deferrable)
        self.turn_wait_s = settings.parse_seconds("turn_wait_s", turn_wait_s, zero=True)
        self.on_failure = on_failure_of(topology.states, on_failure)
        self.rank_as(Rank.COMMIT)
        if topology.partitions is not None and [outlet for outlet in self.outlets if outlet != self.asset]:
            warnings.warn(_OUTLETS_OF_PARTITIONS, UserWarning, stacklevel=1)

    def execute(self, context: Context) -> int | list[int]:
        from airflow_trident.tasks import asset_events

        with airflow_outcome():
            self.current_txids = txids = parse_txids(self.txid)
            began = time.monotonic()
            alone = len(txids) == 1 and not isinstance(self.txid, list)
            with self.ledger_of_run(context) as ledger:
                self.enlist(ledger, context, txids[0])
                asset_events.begin(self.topology, ledger)
                if alone:
                    committed = self._commit(context, ledger, txids[0])
                    self.log.info("%s", self._story(ledger, txids[0], committed, time.monotonic() - began))
                    if self.outlets:
                        self._tell_assets(context, ledger, txids[0])
                else:
                    txids = self._commit_all(context, ledger, txids)
                    subject = f"{len(txids)} transactions of topology {self.topology_name}, {txids[0]} to {txids[-1]},"
                    self.log.info("%s are committed after %.1f s", subject, time.monotonic() - began)
                    note_assets(self, context, {"topology": self.topology_name, "txids": listed(txids)})
                asset_events.bring(self, self.topology, ledger, context, owner(context))
        return txids[0] if alone else txids

    def _commit_all(self, context: Context, ledger: Ledger, txids: Sequence[int]) -> list[int]:
        """The committed txids: all that are not SKIPPED. :raises BlockedError: one cannot be committed now."""
        from airflow_trident.runtime.drains.process_many import known_records

        while remaining := [record for record in known_records(ledger, txids) if not record.status.lets_others_pass]:
            self._commit(context, ledger, remaining[0].txid, others=True)
        passed = {
            record.txid: record.status
            for record in known_records(ledger, txids)
            if record.status is not Status.COMMITTED
        }
        if len(passed) == len(txids):
            raise self.blocked(Blocked(txids[0], skipped=True))
        for txid, status in passed.items():
            self.log.warning("transaction %d of topology %s is %s: left out", txid, self.topology_name, status)
        return [txid for txid in txids if txid not in passed]

    def _tell_assets(self, context: Context, ledger: Ledger, txid: int) -> None:
        """Tell the assets of the outlets what was committed, for the DAGs that they schedule."""
        record = ledger.view(txid, remembered=True).tx
        staged = record.staged if record is not None else None
        extra: dict[str, Any] = {"topology": self.topology_name, "txid": txid}
        if record is not None and staged is not None:
            extra |= {"attempt": record.attempt, "rows_read": staged.rows_read, "rows": dict(staged.rows)}
        note_assets(self, context, extra)

    def _commit(self, context: Context, ledger: Ledger, txid: int, *, others: bool = False) -> tuple[int, ...]:
        """Wait and commit until `txid` is committed. Returns the txids that this task committed.

        :param others: of the task may follow: it is no error if somebody skips this one meanwhile.
        :raises BlockedError: `txid` cannot be committed now.
        """
        from airflow_trident.runtime.waiting import wait_while_undecided
        from airflow_trident.tasks.asking_airflow import ask_airflow, review_blocked
        from airflow_trident.tasks.liveness import began_by

        is_own, abandoned = began_by(owner(context)), set[tuple[int, int]]()
        committer = self._committer(context, ledger, lambda tx: is_own(tx) or (tx.txid, tx.attempt) in abandoned)
        asker = self.asker(context)
        ask_about = ask_airflow(ledger, skip=self.on_failure is OnFailure.SKIP, asker=asker)
        review = review_blocked(ledger, asker)
        committed: list[int] = []
        take_over = False

        def sweep() -> tuple[AlreadyCommitted | Wait | Blocked, LedgerView]:
            nonlocal take_over
            sweep_result = committer.commit(txid, take_over=take_over)
            committed.extend(sweep_result.committed)
            take_over = False
            return review(sweep_result.own), sweep_result.view

        def look(culprit: TxRecord) -> None:
            nonlocal take_over
            if culprit.txid != txid or not self._take_up(context, ledger, culprit):
                take_over = ask_about(culprit) is not None
                if take_over:  # with its attempt: another one is somebody's who is at work
                    abandoned.add((culprit.txid, culprit.attempt))

        verdict = wait_while_undecided(
            ledger,
            txid,
            sweep,
            wait_s=self.seconds_in_worker(context, self.turn_wait_s),
            look_every_s=settings.number(settings.POLL_S, least=0.1),
            look=look,
            say=lambda story: self.log.info("%s", story),
        )
        if isinstance(verdict, Blocked) and not (verdict.skipped and others):
            raise self.blocked(verdict)
        if isinstance(verdict, Wait):
            self._stand_back(context, txid)
        return tuple(committed)

    def _take_up(self, context: Context, ledger: Ledger, record: TxRecord) -> bool:
        """Process the task's own transaction if its emitter has left it unprocessed. Returns whether it has."""
        from airflow_trident.runtime.phases import process
        from airflow_trident.tasks.asking_airflow import ask
        from airflow_trident.tasks.liveness import left_to_committer

        txid, answers = record.txid, ask(record)
        is_left = answers is not None and left_to_committer(record, answers)
        if is_left:
            self.log.info("transaction %d is not processed and its emitter is done: processing it here", txid)
            attempts = self.attempts(context, last_try=is_last_try(context))
            try:
                with self.open_engine(context) as engine:
                    process(ledger, self.topology, txid, engine, settings.staging_root(self.staging_dir), attempts)
            except TransitionError:
                now = ledger.view(txid).tx
                if now is None or now.status is Status.PROCESSING:
                    raise
                self.log.info("transaction %d is %s meanwhile", txid, now.status)  # the next sweep says what follows
        return is_left

    def _stand_back(self, context: Context, txid: int) -> None:
        self.log.info("transaction %d goes on waiting without a worker slot", txid)
        self.give_back_slot(
            context,
            txid,
            Until.READY,
            deferrable=deferrable_default(self.deferrable),
            skip_gone=self.on_failure is OnFailure.SKIP,
        )

    def _committer(self, context: Context, ledger: Ledger, takes_up: Callable[[TxRecord], bool]) -> Committer:
        from airflow_trident.runtime.commit import Committer

        def engine() -> Engine:
            return self.open_engine(context)

        return Committer(
            ledger=ledger,
            topology=self.topology,
            staging_root=settings.staging_root(self.staging_dir),
            attempts=self.attempts(context, last_try=is_last_try(context)),
            engine=engine,
            retention=settings.retention(self.retention),
            progress=lambda line: self.log.info("%s", line),
            takes_up=takes_up,
        )

    def _story(self, ledger: Ledger, txid: int, committed: tuple[int, ...], took_s: float) -> str:
        subject = f"transaction {txid} of topology {self.topology_name}"
        others = [str(other) for other in committed if other != txid]
        also = f"; its sweep also committed {', '.join(others)}" if others else ""
        if txid not in committed:
            return f"{subject} is committed already, by another task{also}"
        record = ledger.view(txid, remembered=True).tx
        if record is None or record.staged is None:
            return f"{subject} is committed{also}"
        rows = ", ".join(f"{count:,} rows in state {name}" for name, count in record.staged.rows.items())
        size = human_bytes(record.staged.bytes)
        return f"{subject}, attempt {record.attempt}, is committed: {rows} ({size}) in {took_s:.1f} s{also}"
