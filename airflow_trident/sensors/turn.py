"""The turn sensor: have all lower transactions been committed?"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperator, BaseSensorOperator, TaskDeferred
from airflow.sdk.definitions.xcom_arg import PlainXComArg
from airflow.triggers.base import StartTriggerArgs

from airflow_trident import settings
from airflow_trident.errors import ConfigurationError
from airflow_trident.links import TransactionLink
from airflow_trident.operators.base import (
    INCARNATION,
    LedgerTask,
    airflow_outcome,
    deferrable_default,
    require_known_conn_id,
    topology_name,
)
from airflow_trident.operators.transaction import TridentCoordinatorOperator
from airflow_trident.protocol.decide import Blocked, Unknown, Wait
from airflow_trident.protocol.records import OnFailure
from airflow_trident.runtime.drains.limits import on_failure_of
from airflow_trident.tasks.airflow_versions import STARTS_IN_TRIGGERER, checked_deferrable
from airflow_trident.tasks.waits import Abandoned, Over, Rank, Until, commits_behind, wait_in_worker

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_trident.topology.topology import Topology

_OF_POKING = frozenset(
    {"mode", "poke_interval", "exponential_backoff", "max_wait", "soft_fail", "silent_fail", "never_fail"}
)
"""Sensor arguments that have no meaning here. They may be in `default_args`, which other tasks use, too."""


class TridentTurnSensor(LedgerTask, BaseSensorOperator):
    """Succeeds when every transaction below `txid` is COMMITTED or SKIPPED, or when `txid` is committed itself.

    A transaction that is staged, and that nobody is left to commit, does not hold up a sensor with a committer behind
    it, which commits that one first. Fails at once, with the reason and the cure, when a lower one is FAILED. The
    sensor does not poll: it blocks on a ZooKeeper watch. Since Airflow 3.3 it starts in the triggerer and needs no slot
    at all. Not deferrable, it blocks in the worker for `turn_wait_s`, then gives the slot back and looks again after
    ``[trident] reschedule_s`` or more.

    :param topology: the Topology, or its name.
    :param txid: the transaction that waits (templated).
    :param deferrable: None: ``[trident] deferrable``.
    :param turn_wait_s: how long to block in the worker; None: ``[trident] turn_wait_s``.
    :param on_failure: what happens to a lower transaction whose tasks were killed: ``block`` or ``skip``; None: as
        of the emitter, if the topology is no name.
    :param zookeeper_conn_id: connection of type ``zookeeper`` (templated); None: ``[trident] zookeeper_conn_id``.
    :param coordinator_task_id: the coordinator that claimed `txid`. It is needed if `txid` is a text and the sensor
        starts in the triggerer, which then refuses a transaction of an earlier incarnation of the topology. Not needed
        for ``coordinator.output``.
    :raises ConfigurationError: an argument for sensors that poke was given; of those only ``timeout`` has a meaning.
    """

    # `incarnation`, too: Airflow renders only those arguments of a trigger that are template fields of the operator.
    template_fields: Sequence[str] = ("txid", "zookeeper_conn_id", "incarnation")
    shallow_copy_attrs: Sequence[str] = ("topology",)
    operator_extra_links = (TransactionLink(),)
    ui_color = "#eeeeee"

    def __init__(
        self,
        *,
        topology: Topology | str,
        txid: Any,
        deferrable: bool | None = None,
        turn_wait_s: timedelta | float | None = None,
        on_failure: OnFailure | str | None = None,
        zookeeper_conn_id: str | None = None,
        coordinator_task_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        useless = sorted(_OF_POKING & kwargs.keys())
        if useless:
            raise ConfigurationError(
                f"TridentTurnSensor does not poke, so {', '.join(useless)} would do nothing",
                "Leave it out: the sensor blocks on a watch for turn_wait_s, then waits without a worker slot, for "
                "timeout in all.",
            )
        super().__init__(**kwargs)
        self.topology = topology
        self.topology_name = topology_name(topology)
        self.txid = txid
        self.coordinator_task_id = coordinator_task_id
        self.incarnation = self._incarnation_for_triggerer()
        self.turn_wait_s = settings.parse_seconds("turn_wait_s", turn_wait_s, zero=True)
        self.on_failure = on_failure_of({} if isinstance(topology, str) else topology.states, on_failure)
        require_known_conn_id(self, zookeeper_conn_id, "zookeeper_conn_id")
        self.zookeeper_conn_id = zookeeper_conn_id
        self.rank_as(Rank.TURN)
        text = self._txid_for_triggerer()
        self.deferrable = deferrable_default(checked_deferrable(deferrable), auto=text is not None)
        if self.deferrable and text is not None:
            self._begin_in_triggerer(text)

    def _txid_for_triggerer(self) -> str | None:
        """The txid as a text if Airflow can start this sensor in the triggerer (since 3.3), which then renders the
        text. None: the sensor starts in a worker, and the worker may defer it.

        Airflow's triggerer fetches what a text names by a path that has the ids, and fails if they are not ASCII.
        """
        dag_id = self.dag.dag_id if self.has_dag() else ""  # type: ignore[no-untyped-call]
        text = text_for_triggerer(self.txid, self)
        if not STARTS_IN_TRIGGERER or text is None:
            return None
        return text if f"{dag_id}{self.task_id}{text}{self.incarnation or ''}".isascii() else None

    def _begin_in_triggerer(self, txid: str) -> None:
        # While the DAG is built, the tasks behind this one are not known yet: the triggerer finds them.
        trigger = self.turn_trigger(
            txid,
            Until.TURN,
            skip_gone=self._skips,
            ends_task=True,
            incarnation=self.incarnation,
            behind=None,
            max_active_runs=None,
            commits=None,
        )
        trigger_cls, trigger_kwargs = trigger.serialize()
        self.start_from_trigger = True
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls=trigger_cls,
            trigger_kwargs=trigger_kwargs,
            next_method="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    def _incarnation_for_triggerer(self) -> str | None:
        """A text that the triggerer renders to the incarnation of `txid`; None if no coordinator is known."""
        above: Any = self.txid.operator if isinstance(self.txid, PlainXComArg) else None
        task_id = self.coordinator_task_id
        if task_id is not None:
            above = self.dag.task_dict.get(task_id) if self.has_dag() else None  # type: ignore[no-untyped-call]
        elif isinstance(above, TridentCoordinatorOperator):
            task_id = str(above.task_id)
        index = "-1" if above is None else map_index_for_triggerer(above, self)
        if task_id is None or index is None:
            return None
        return _pulled(task_id, INCARNATION, index)

    @property
    def _skips(self) -> bool:
        return self.on_failure is OnFailure.SKIP

    def commits_what_is_left(self) -> bool:
        return commits_behind(self)

    def execute(self, context: Context) -> int:
        from airflow_trident.tasks.asking_airflow import ask_airflow, review_blocked

        with airflow_outcome():
            txid = settings.parse_txid(self.txid)
            self.current_txids = (txid,)
            with self.ledger_of_run(context) as ledger:
                stories: list[str] = []

                def say(story: str) -> None:
                    if not stories:  # a task that need not wait is not listed
                        self.enlist(ledger, context, txid)
                    stories.append(story)
                    self.log.info("%s", story)

                verdict = wait_in_worker(
                    ledger,
                    txid,
                    Until.TURN,
                    wait_s=self.seconds_in_worker(context, self.turn_wait_s),
                    look_every_s=settings.number(settings.POLL_S, least=0.1),
                    look=ask_airflow(ledger, skip=self._skips, asker=self.asker(context)),
                    say=say,
                    review=review_blocked(ledger, self.asker(context)),
                )
            subject = f"transaction {txid} of topology {self.topology_name}"
            if isinstance(verdict, Blocked):
                raise self.blocked(verdict)
            if isinstance(verdict, Unknown):
                from airflow_trident.runtime.phases import unknown_transaction

                raise unknown_transaction(self.topology_name, verdict)
            if isinstance(verdict, Wait):
                self.log.info("%s goes on waiting without a worker slot", subject)
                self._wait_elsewhere(context, txid)
        if isinstance(verdict, Over) and verdict.committed:
            self.log.info("%s is committed already", subject)
        elif isinstance(verdict, Abandoned):
            self.log.info("the turn of %s has come: transaction %d is left, and %s", subject, verdict.by, verdict.why)
        else:
            self.log.info("the turn of %s has come", subject)
        return txid

    def _wait_elsewhere(self, context: Context, txid: int) -> None:
        timeout = timedelta(seconds=self.timeout)
        # If the sensor should have started in the triggerer but did not, as in `dag.test()`, there is no triggerer: its
        # stand-in would wait here for tasks that come after this one.
        if self.deferrable and not self.start_from_trigger:
            commits = self.commits_what_is_left()
            trigger = self.turn_trigger(
                txid, Until.TURN, context, skip_gone=self._skips, ends_task=True, commits=commits
            )
            raise TaskDeferred(trigger=trigger, method_name="execute_complete", timeout=timeout)
        self.look_again_later(context, f"transaction {txid}", timeout)

    def execute_complete(self, context: Context, event: Any = None) -> int:
        """Called only if the triggerer could not end the task itself: read the ledger again."""
        return self.execute(context)


def map_index_for_triggerer(above: Any, below: Any) -> str | None:
    """The map index under which `below` finds what `above` returned, as the triggerer renders it: in one mapped task
    group both have the same. None if it cannot be told before the run."""
    if not isinstance(above, BaseOperator):  # it is mapped by itself
        return None
    group = above.get_closest_mapped_task_group()
    if group is None:
        return "-1"
    return "ti.map_index" if below.get_closest_mapped_task_group() is group else None


def _pulled(task_id: str, key: str, index: str) -> str:
    return f"{{{{ ti.xcom_pull(task_ids={task_id!r}, key={key!r}, map_indexes={index}) }}}}"


def text_for_triggerer(txid: Any, task: Any) -> str | None:
    """`txid` as a text that Airflow's triggerer can render for `task`; None if there is no such text.

    The triggerer answers a pull of an XCom only for a given map index: without one Airflow 3.3 never answers, and the
    wait would never end. The argument of a mapped task group has no text at all.
    """
    if isinstance(txid, PlainXComArg):
        index = map_index_for_triggerer(txid.operator, task)
        return None if index is None else _pulled(str(txid.operator.task_id), txid.key, index)
    if isinstance(txid, int):
        return str(txid)
    if not isinstance(txid, str) or ("xcom_pull" in txid and "map_indexes" not in txid):
        return None
    return txid
