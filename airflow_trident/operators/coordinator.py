"""The coordinator task: decides what the next batch is, and records it before any task works on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException, AirflowTaskTimeout

from airflow_trident import settings
from airflow_trident.errors import BlockedError, ConfigurationError, UnknownTopologyError
from airflow_trident.ledger.begin_result import BeginResult, Begun, NextBatches, NothingNew
from airflow_trident.operators.arguments import is_known
from airflow_trident.operators.base import (
    COORDINATE,
    INCARNATION,
    TaskPart,
    TridentOperator,
    airflow_outcome,
    backfill_run_refused,
    deferrable_default,
    is_backfill_run,
    part_of,
)
from airflow_trident.protocol.decide import Blocked, Full, Paused, Wait
from airflow_trident.protocol.outcomes import OutcomeKind
from airflow_trident.protocol.records import Claim, claim_key
from airflow_trident.protocol.statuses import OnFailure, Status
from airflow_trident.runtime.drains.limits import on_failure_of, pending_of
from airflow_trident.runtime.waiting import Look, blocked, paused
from airflow_trident.tasks.airflow_versions import checked_deferrable
from airflow_trident.tasks.asking_airflow import ask_airflow, review_blocked
from airflow_trident.tasks.liveness import COMMIT, EMIT, lowest_left_alone
from airflow_trident.tasks.waits import Abandoned, Rank, Until, wait_in_worker

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_trident.ledger.base import Ledger
    from airflow_trident.topology.topology import Topology

T = TypeVar("T")

_TEMPORARY_RUN = "__airflow_temporary_run_"
"""So begin the ids of the runs that ``airflow tasks test`` makes and deletes."""


class TridentCoordinatorOperator(TridentOperator):
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
    :param on_failure: what happens to transactions whose tasks were killed: ``block`` or ``skip``.
    :param allow_backfill_runs: let runs of an Airflow backfill (``airflow backfill create``) take new data. Otherwise
        they are skipped: a source has no batch for their date, so they would take the data that is new today.
    """

    template_fields: Sequence[str] = ("zookeeper_conn_id", "max_pending")
    phase = COORDINATE

    def __init__(
        self,
        *,
        topology: Topology,
        max_transactions: int = 1,
        max_pending: int | str | None = None,
        deferrable: bool | None = None,
        turn_wait_s: float | None = None,
        on_failure: OnFailure | str = OnFailure.BLOCK,
        allow_backfill_runs: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(topology=topology, **kwargs)
        if max_transactions < 1:
            raise ConfigurationError(f"max_transactions = {max_transactions} is below 1", "Claim at least one.")
        pending_of(topology.states, max_transactions)
        if is_known(max_pending):
            pending_of(topology.states, settings.parse_limit("max_pending", max_pending))
        self.max_transactions = max_transactions
        self.max_pending = max_pending
        self.deferrable = checked_deferrable(deferrable)
        self.turn_wait_s = turn_wait_s
        self.on_failure = on_failure_of(topology.states, on_failure)
        self.allow_backfill_runs = allow_backfill_runs
        self.rank_as(Rank.COORDINATE)

    def execute(self, context: Context) -> int | list[int]:
        from airflow_trident.runtime.outcomes import tell, tell_plan

        if context["ti"].run_id.startswith(_TEMPORARY_RUN):
            raise AirflowFailException(
                f"`airflow tasks test` runs one task in a run that Airflow then deletes: the transaction of topology "
                f"{self.topology_name} that it began would have no tasks, and would block the others. "
                f"`airflow dags test {context['ti'].dag_id}` runs all tasks."
            )
        for note in self.topology.compile().notes:
            self.log.warning("%s", note)
        with airflow_outcome(), self.open_ledger() as ledger:
            if is_backfill_run(context) and not self.allow_backfill_runs:
                txids = self._claimed_before(context, ledger)
            else:
                try:
                    txids = self._claim_all(context, ledger)
                except (BlockedError, AirflowTaskTimeout) as error:
                    kind = OutcomeKind.BLOCKED if isinstance(error, BlockedError) else OutcomeKind.ERROR
                    tell(ledger, next(self._claims(context)), kind, f"{type(error).__name__}: {error}")
                    raise
            tell_plan(ledger, self.topology)
            context["ti"].xcom_push(key=INCARNATION, value=ledger.view(0, remembered=True).topology.incarnation)
        self.current_txids = txids
        return txids if self.max_transactions > 1 else txids[0]

    def _claim_all(self, context: Context, ledger: Ledger) -> list[int]:
        while True:
            txids, result = self._begin(context, ledger)
            if txids:
                return txids
            left = None
            if isinstance(result, Blocked) and isinstance(self._review(context, ledger)(result), Wait):
                result = Full(oldest=result.by, pending=ledger.view(0).pending)
            if isinstance(result, NothingNew):
                left = self._left_behind(context, ledger)
            elif isinstance(result, Full):
                left = self._wait_for_room(context, ledger, result)
            if left is not None:
                self.log.info("transaction %d waits to be committed, and %s: this run commits it", left.by, left.why)
                return [left.by]
            if not isinstance(result, Full):
                raise self._why_nothing(context, ledger, result)

    def _begin(self, context: Context, ledger: Ledger) -> tuple[list[int], BeginResult]:
        """The transactions of this run, with those that began now, and the reason why there are no more."""
        from airflow_trident.runtime.coordinators import OpenCoordinators
        from airflow_trident.runtime.phases import coordinate

        claims, txids = list(self._claims(context)), list[int]()
        result: BeginResult = ()
        with OpenCoordinators(self.topology) as coordinators:
            while claims:  # one step may take only some of the claims
                result = coordinate(
                    ledger,
                    self.topology,
                    claims[:1] if claims[0].cleared and not txids else claims,
                    max_pending=self._max_pending(),
                    attempt_by="",
                    check_states=not txids,
                    ask_lag=True,
                    rows_in_errors=settings.flag(settings.ROWS_IN_ERRORS),
                    coordinators=coordinators,
                )
                if not isinstance(result, tuple):
                    break
                self._log_begun(result)
                txids += [begun.txid for begun in result]
                if claims[0].cleared and len(txids) == 1 and not result[0].new:
                    return txids + self._known(context, ledger)[1:], result
                claims = claims[len(result) :]
        return txids, result

    def _left_behind(self, context: Context, ledger: Ledger) -> Abandoned | None:
        """The transaction that all others wait for, if it is staged and nobody is left to commit it, or if the run that
        could go on with it only starts when this one has ended. A run without new data must not pass it by. If a task
        that is gone was processing it, it becomes FAILED."""
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
        claims = list(self._claims(context))
        result = ledger.begin(NextBatches(claims, max_pending=self._max_pending()))
        return [begun.txid for begun in result] if isinstance(result, tuple) else []

    def _why_nothing(self, context: Context, ledger: Ledger, result: object) -> Exception:
        if isinstance(result, Blocked):
            return blocked(self.topology_name, result)
        if isinstance(result, Paused):
            return AirflowSkipException(paused(self.topology_name, result.command))
        assert isinstance(result, NothingNew)
        view = ledger.view(0)
        last, failed = view.next_txid - 1, view.blocked_by(view.next_txid)
        # A run without new data says by its state that the topology is blocked.
        if failed is not None and isinstance(still := self._review(context, ledger)(Blocked(failed)), Blocked):
            return blocked(self.topology_name, still)
        after = f"after transaction {last}" if last else "yet"
        return AirflowSkipException(f"nothing new for topology {self.topology_name} {after}: no transaction is begun.")

    def _wait_for_room(self, context: Context, ledger: Ledger, full: Full) -> Abandoned | None:
        """Return when the oldest uncommitted transaction has passed; if nobody is left to commit it, return it.

        :raises BlockedError: it will never pass.
        """
        from airflow_trident.runtime.outcomes import tell

        self.log.info(
            "%d transactions of topology %s are uncommitted, as many as may be", full.pending, self.topology_name
        )
        verdict = wait_in_worker(
            ledger,
            full.oldest,
            Until.PASSED,
            wait_s=self.seconds_in_worker(context, self.turn_wait_s),
            look_every_s=settings.number(settings.POLL_S, least=0.1),
            look=self._look(context, ledger),
            say=lambda story: self.log.info("%s", story),
            review=self._review(context, ledger),
        )
        if isinstance(verdict, Blocked):
            raise blocked(self.topology_name, verdict)
        if isinstance(verdict, Wait):
            tell(ledger, next(self._claims(context)), OutcomeKind.WAITING)
            self.give_back_slot(
                context,
                full.oldest,
                Until.PASSED,
                deferrable=deferrable_default(self.deferrable),
                skip_gone=self.on_failure is OnFailure.SKIP,
            )
        return verdict if isinstance(verdict, Abandoned) else None

    def _look(self, context: Context, ledger: Ledger) -> Look[Abandoned]:
        return ask_airflow(ledger, skip=self.on_failure is OnFailure.SKIP, asker=self.asker(context))

    def _review(self, context: Context, ledger: Ledger) -> Callable[[T], T | Wait]:
        return review_blocked(ledger, self.asker(context))

    def _max_pending(self) -> int:
        given = pending_of(self.topology.states, settings.parse_limit("max_pending", self.max_pending))
        return given or max(settings.max_pending(), self.max_transactions, self._runs_at_once())

    def _runs_at_once(self) -> int:
        """How many active runs the DAG itself allows. 1 if that number is only Airflow's default: the default says
        nothing about this DAG."""
        from airflow.providers.common.compat.sdk import conf

        if not self.has_dag():  # type: ignore[no-untyped-call]
            return 1
        runs = self.dag.max_active_runs
        return 1 if runs == conf.getint("core", "max_active_runs_per_dag") else runs

    def _claims(self, context: Context) -> Iterator[Claim]:
        """One claim for each transaction of this run. The key identifies this task in this run; retries, clears and
        another `max_transactions` do not change it."""
        ti, dag_run = context["ti"], context["dag_run"]
        own_index = ti.map_index if ti.map_index is not None else -1
        tasks = self._tasks_behind()
        task_ids = {task.phase: task.task_id for task in tasks}
        mapped = self.max_transactions > 1 and not any(task.takes_several for task in tasks)
        for index in range(self.max_transactions):
            yield Claim(
                key=claim_key(ti.dag_id, ti.task_id, ti.run_id, own_index, index),
                dag_id=ti.dag_id,
                run_id=ti.run_id,
                map_index=index if mapped else own_index,
                run_ms=int(dag_run.run_after.timestamp() * 1000),
                cleared=bool(dag_run.clear_number),
                task_ids=task_ids,
                coordinator=ti.task_id,
            )

    def _tasks_behind(self) -> list[TaskPart]:
        """The downstream tasks that process and commit. Others that wait use them to find out who is at work."""
        parts = (part_of(task) for task in self.get_flat_relatives(upstream=False))
        return [
            part
            for part in parts
            if part is not None and part.phase in (EMIT, COMMIT) and part.topology_name == self.topology_name
        ]

    def _log_begun(self, found: Sequence[Begun]) -> None:
        from airflow_trident.runtime.drains.drain_passes import named

        new = [begun.record for begun in found if begun.new and begun.record is not None]
        if new:
            streams = ", ".join(dict.fromkeys(stream for record in new for stream in record.metadata))
            begun = f"{named(new)} of topology {self.topology_name} {'are' if len(new) > 1 else 'is'} begun"
            self.log.info("%s (%s)", begun, streams)
        for one in found:
            if not one.new:
                status = one.record.status if one.record is not None else f"{Status.COMMITTED} and pruned"
                self.log.info(
                    "this run has transaction %d of topology %s already; it is %s", one.txid, self.topology_name, status
                )
