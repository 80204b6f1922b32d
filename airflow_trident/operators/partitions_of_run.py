"""The coordinator of a topology that is bound to partitions: its run asks for a partition, and gets a transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import timezone

from airflow_trident import settings
from airflow_trident.errors import EmptyPartitionError, IncompletePartitionError, SourceGoneError, TransitionError
from airflow_trident.ledger.answers import Begun, NextBatches
from airflow_trident.operators.base import WAIT_TIMEOUT, owner
from airflow_trident.protocol.decide import Blocked, Full, Paused, Wait
from airflow_trident.protocol.outcomes import OutcomeKind
from airflow_trident.protocol.partition_keys import is_committed
from airflow_trident.protocol.partitions import Partition
from airflow_trident.protocol.records import Status
from airflow_trident.runtime.outcomes import tell, telling
from airflow_trident.runtime.partitions import (
    PartitionRequest,
    PartitionResult,
    PartitionUnchanged,
    PartitionUnderWay,
    begin_partition,
    bound_to,
    not_begun,
)
from airflow_trident.runtime.phases import Attempts, require_definition
from airflow_trident.runtime.waiting import paused
from airflow_trident.tasks import asset_events
from airflow_trident.tasks.airflow_versions import AirflowRescheduleException
from airflow_trident.tasks.partition_runs import RunOrder, key_of_run, order_of_run

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_trident.engine.engine import Engine
    from airflow_trident.ledger.ledger import Ledger
    from airflow_trident.operators.coordinating import CoordinatingOperator


@dataclass(frozen=True, slots=True)
class PartitionsOfRun:
    """The partitions that one run of a coordinator asks for."""

    task: CoordinatingOperator
    context: Context
    ledger: Ledger

    def txids(self) -> list[int]:
        """The transactions of the run. The first is that of its own partition. If the topology looks back, and no
        person asked for the run, those of earlier partitions follow whose sources have changed.

        :raises AirflowSkipException: there is nothing to do.
        """
        task = self.task
        partitions = bound_to(task.topology)
        partition = partitions.parse(key_of_run(self.context, task.topology_name, partitions, task.partition))
        order = order_of_run(self.context, task.redo)
        with telling(self.ledger, task.claim_of_key(self.context, 0), rows_in_errors=_rows_in_errors()):
            require_definition(self.ledger, task.topology, check_states=True)
        own = self._begin(partition, order)
        txids = [own.txid] if isinstance(own, Begun) else []
        if not order.redo:
            txids += self._changed_before(partition, order, len(txids))
        if isinstance(own, PartitionUnchanged):
            text = (
                f"the partition {own.key} of topology {task.topology_name} is COMMITTED as transaction {own.txid}, and "
                "its sources are as they were"
            )
            if not txids:
                raise AirflowSkipException(f"{text}: no transaction is begun.")
            task.log.info("%s", text)
        return txids

    def _begin(self, partition: Partition, order: RunOrder) -> Begun | PartitionUnchanged:
        """Waits as long as the partition is not complete, a commit of it has begun, or there is no room."""
        room = 0
        while True:
            outcome = self._asked(partition, order, room=room)
            if isinstance(outcome, Begun | PartitionUnchanged):
                return outcome
            if isinstance(outcome, IncompletePartitionError):
                self._wait_until_complete(partition, outcome)
            if isinstance(outcome, Paused):
                raise AirflowSkipException(paused(self.task.topology_name, outcome.command))
            if isinstance(outcome, PartitionUnderWay):
                self.task.log.info("%s", not_begun(self.task.topology_name, partition.key, outcome))
                left = self.task.wait_until_passed(self.context, self.ledger, outcome.txid)
                if left is not None:
                    self._commit(left.by)
                continue
            if isinstance(outcome, Blocked):
                reviewed = self.task.review(self.context, self.ledger)(outcome)
                if not isinstance(reviewed, Wait):
                    raise self.task.blocked(outcome)
                outcome = Full(oldest=outcome.by, pending=self.ledger.view(0).pending)
            if not isinstance(outcome, Full):
                raise not_begun(self.task.topology_name, partition.key, outcome)
            left = self.task.wait_for_room(self.context, self.ledger, outcome)
            if left is not None:  # this run's own committer commits it, too: it needs a place beside it
                room += 1

    def _asked(
        self, partition: Partition, order: RunOrder, *, number: int = 0, position: int = 0, room: int = 0
    ) -> PartitionResult | IncompletePartitionError:
        """:param number: of the partition in the run; 0 is its own.
        :param room: for transactions that no other task commits."""
        claim = self.task.claim_of_key(self.context, number, position)
        request = PartitionRequest(key=partition.key, claim=claim, redo=order.redo, gone=order.gone, empty=order.empty)
        with telling(self.ledger, claim, rows_in_errors=_rows_in_errors()) as note:
            try:
                outcome = begin_partition(
                    self.ledger, self.task.topology, request, max_pending=self.task.pending_limit() + room
                )
            except IncompletePartitionError as error:
                return error
            if isinstance(outcome, Begun):
                self.task.log_begun([outcome])
            elif isinstance(outcome, PartitionUnchanged):
                tell(self.ledger, claim, OutcomeKind.NOTHING_NEW)
            elif not isinstance(outcome, PartitionUnderWay):
                note(outcome)
        return outcome

    def _changed_before(self, own: Partition, order: RunOrder, count: int) -> list[int]:
        """Transactions of the COMMITTED partitions before the run's own whose sources changed. A partition that has
        none is not begun, and an unfinished or failed one is not retried."""
        partitions = bound_to(self.task.topology)
        before: dict[int, Partition] = {}
        partition = own
        for number in range(1, partitions.lookback + 1):
            partition = partitions.before(partition)
            if partition.start < partitions.first.start:
                break
            before[number] = partition
        # Those that an earlier try of the task has begun come first, so that each keeps its place in the list.
        txids = [txid for number in before if (txid := self._claimed(number))]
        for number, partition in before.items():
            seen = self.ledger.partition(partition.key)
            if self._claimed(number) or not is_committed(seen.entry, seen.tx):
                continue
            try:
                outcome = self._asked(partition, order, number=number, position=count + len(txids))
            except (EmptyPartitionError, SourceGoneError) as error:  # of another day: no reason to fail this one
                self.task.log.warning(
                    "partition %s, %d before this run's, stays as it is: %s", partition.key, number, error
                )
                continue
            if isinstance(outcome, Begun):
                txids.append(outcome.txid)
            elif not isinstance(outcome, PartitionUnchanged):
                self.task.log.warning("partition %s is left to the next run: %s", partition.key, outcome)
        return txids

    def _claimed(self, number: int) -> int:
        begun = self.ledger.begin(NextBatches([self.task.claim_of_key(self.context, number)]))
        return begun[0].txid if isinstance(begun, tuple) and begun else 0

    # ---- waiting ---------------------------------------------------------------------------------------------------

    def _wait_until_complete(self, partition: Partition, error: IncompletePartitionError) -> NoReturn:
        """Give the worker slot back: until the moment that is known, or for a while, if a source decides."""
        tell(self.ledger, self.task.claim_of_key(self.context, 0), OutcomeKind.WAITING)
        complete = bound_to(self.task.topology).complete_at(partition)
        self.task.log.info("%s This task waits without a worker slot.", error.message)
        if timezone.utcnow() < complete:
            raise AirflowRescheduleException(complete)
        self.task.look_again_later(self.context, f"the partition {partition.key}", WAIT_TIMEOUT)

    def _commit(self, txid: int) -> None:
        """Ends a commit that has begun, and that no task will end before this one: the request is served after it."""
        from airflow_trident.runtime.commit import Committer

        self.task.log.info("no task ends the commit of transaction %d: it is ended here", txid)
        asset_events.begin(self.task.topology, self.ledger)

        def no_engine() -> Engine:
            raise TransitionError(
                f"the staged batch of transaction {txid} of topology {self.task.topology_name!r} is gone",
                "Clear its emit task.",
            )

        committer = Committer(
            ledger=self.ledger,
            topology=self.task.topology,
            staging_root=settings.staging_root(self._of_committer("staging_dir")),
            attempts=Attempts(owner=owner(self.context)),
            engine=no_engine,
            retention=settings.retention(self._of_committer("retention")),
            progress=lambda line: self.task.log.info("%s", line),
        )
        committer.commit(txid, take_over=True)
        record = self.ledger.view(txid).tx
        if record is not None and record.status is Status.COMMITTING:
            raise TransitionError(
                f"transaction {txid} of topology {self.task.topology_name!r} is still COMMITTING", "Clear its run."
            )

    def _of_committer(self, name: str) -> Any:
        """An argument of the task behind this one that commits."""
        for part in self.task.tasks_behind():
            if part.phase == "commit":
                committer: Any = self.task.dag.get_task(part.task_id)
                value = getattr(committer, "partial_kwargs", {}).get(name, getattr(committer, name, None))
                return self.task.render_template(value, self.context) if isinstance(value, str) else value
        return None


def _rows_in_errors() -> bool:
    return settings.flag(settings.ROWS_IN_ERRORS)
