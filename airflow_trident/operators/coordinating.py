"""The part of a coordinator for any kind of batch: the claims of its run, and waits for other transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from airflow_trident import settings
from airflow_trident.names import Redo
from airflow_trident.operators.base import COORDINATE, TaskPart, TridentOperator, deferrable_default, part_of
from airflow_trident.protocol.decide import Blocked, Full, Wait
from airflow_trident.protocol.records import Claim, OnFailure, Status, claim_key
from airflow_trident.runtime.drains.limits import pending_of
from airflow_trident.tasks.waits import COMMIT, EMIT, Abandoned, Until, wait_in_worker

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_trident.ledger.answers import Begun
    from airflow_trident.ledger.ledger import Ledger
    from airflow_trident.runtime.waiting import Look

T = TypeVar("T")


class CoordinatingOperator(TridentOperator):
    """A task that claims the transactions of its run."""

    phase = COORDINATE
    max_transactions: int
    max_pending: int | str | None
    deferrable: bool | None
    turn_wait_s: float | None
    on_failure: OnFailure
    partition: str | None
    redo: Redo

    @property
    def most(self) -> int:
        """The most transactions of one run."""
        partitions = self.topology.partitions
        return self.max_transactions if partitions is None else partitions.lookback + 1

    def wait_for_room(self, context: Context, ledger: Ledger, full: Full) -> Abandoned | None:
        """:meth:`wait_until_passed`, for the oldest uncommitted transaction."""
        self.log.info(
            "%d transactions of topology %s are uncommitted, as many as may be", full.pending, self.topology_name
        )
        return self.wait_until_passed(context, ledger, full.oldest)

    def wait_until_passed(self, context: Context, ledger: Ledger, txid: int) -> Abandoned | None:
        """Return when a transaction has passed; return it if no task is left to commit it.

        :raises BlockedError: it will never pass.
        """
        from airflow_trident.protocol.outcomes import OutcomeKind
        from airflow_trident.runtime.outcomes import tell

        verdict = wait_in_worker(
            ledger,
            txid,
            Until.PASSED,
            wait_s=self.seconds_in_worker(context, self.turn_wait_s),
            look_every_s=settings.number(settings.POLL_S, least=0.1),
            look=self._look(context, ledger),
            say=lambda story: self.log.info("%s", story),
            review=self.review(context, ledger),
        )
        if isinstance(verdict, Blocked):
            raise self.blocked(verdict)
        if isinstance(verdict, Wait):
            tell(ledger, self._claim(context), OutcomeKind.WAITING)
            self.give_back_slot(
                context,
                txid,
                Until.PASSED,
                deferrable=deferrable_default(self.deferrable),
                skip_gone=self.on_failure is OnFailure.SKIP,
            )
        return verdict if isinstance(verdict, Abandoned) else None

    def _look(self, context: Context, ledger: Ledger) -> Look[Abandoned]:
        from airflow_trident.tasks.asking_airflow import ask_airflow

        return ask_airflow(ledger, skip=self.on_failure is OnFailure.SKIP, asker=self.asker(context))

    def review(self, context: Context, ledger: Ledger) -> Callable[[T], T | Wait]:
        """Changes a decision that the ledger alone cannot make."""
        from airflow_trident.tasks.asking_airflow import review_blocked

        return review_blocked(ledger, self.asker(context))

    def pending_limit(self) -> int:
        """How many transactions may be uncommitted at once."""
        limit = pending_of(self.topology.states, settings.parse_limit("max_pending", self.max_pending))
        return limit or max(settings.max_pending(), self.most, self._runs_at_once())

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
        for index in range(self.max_transactions):
            yield self._claim(context, index, index)

    def claim_of_key(self, context: Context, number: int, position: int = 0) -> Claim:
        """The claim of a run for a partition. A cleared run makes a new request, and its retries do not.

        :param number: of the partition in the run; 0 is that of the run's own key.
        :param position: of its transaction in the list that the task returns.
        """
        index = f"p{context['dag_run'].clear_number or 0}{f'.{number}' if number else ''}"
        # Clears make new claims, and a partition that is done again counts nothing twice: so one is never too old.
        return replace(self._claim(context, index, position), cleared=False)

    def _claim(self, context: Context, index: int | str = 0, position: int = 0) -> Claim:
        ti, dag_run = context["ti"], context["dag_run"]
        own_index = ti.map_index if ti.map_index is not None else -1
        tasks = self.tasks_behind()
        mapped = self.most > 1 and not any(task.takes_several for task in tasks)
        return Claim(
            key=claim_key(ti.dag_id, ti.task_id, ti.run_id, own_index, index),
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            map_index=position if mapped else own_index,
            run_ms=int(dag_run.run_after.timestamp() * 1000),
            cleared=bool(dag_run.clear_number),
            task_ids={task.phase: task.task_id for task in tasks},
            coordinator=ti.task_id,
        )

    def tasks_behind(self) -> list[TaskPart]:
        """The downstream tasks that process and commit. Others that wait use them to find out who is at work."""
        parts = (part_of(task) for task in self.get_flat_relatives(upstream=False))
        return [
            part
            for part in parts
            if part is not None and part.phase in (EMIT, COMMIT) and part.topology_name == self.topology_name
        ]

    def log_begun(self, claimed: Sequence[Begun]) -> None:
        """Tells which transactions the run has, and which of them it had before."""
        from airflow_trident.runtime.drains.drain_passes import named

        new = [begun.record for begun in claimed if begun.new and begun.record is not None]
        if new:
            streams = ", ".join(dict.fromkeys(stream for record in new for stream in record.metadata))
            begun = f"{named(new)} of topology {self.topology_name} {'are' if len(new) > 1 else 'is'} begun"
            self.log.info("%s (%s)", begun, streams)
        for claim in claimed:
            if not claim.new:
                status = claim.record.status if claim.record is not None else f"{Status.COMMITTED} and pruned"
                self.log.info(
                    "this run has transaction %d of topology %s already; it is %s",
                    claim.txid,
                    self.topology_name,
                    status,
                )
