"""What all Trident tasks share: their topology, their ledger, and what Airflow does after an error.

Arguments of tasks, as templates and XComs give them.
"""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    Asset,
    BaseOperator,
    TaskDeferred,
)
from airflow.sdk import timezone
from airflow.sdk.bases.operator import db_safe_priority

from airflow_trident import settings
from airflow_trident.errors import BlockedError, ConfigurationError, FailedException, Outcome, PlanError, TridentError
from airflow_trident.links import TransactionLink
from airflow_trident.names import require_conn_id, require_name
from airflow_trident.protocol.records import Claim, Owner
from airflow_trident.protocol.txids import Txids
from airflow_trident.settings import parse_txid
from airflow_trident.tasks.airflow_versions import DEFERS, AirflowRescheduleException, weight_rule
from airflow_trident.tasks.waits import COMMIT, EMIT, WAITING, Asker, Rank, TaskOfRun, Until, next_look, told_by_dag
from airflow_trident.topology.topology import Topology

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperatorLink, Context

    from airflow_trident.ledger.ledger import Ledger
    from airflow_trident.protocol.decide import Blocked
    from airflow_trident.triggers.transaction import TridentTurnTrigger

_log = logging.getLogger(__name__)

INCARNATION = "incarnation"
"""XCom key of a coordinator: the incarnation of the topology that its txids belong to."""
COORDINATE = "coordinate"
_DEPENDS_ON_PAST = (
    "depends_on_past and wait_for_downstream can block a topology: after a failed run the next runs keep their places "
    "among max_active_runs, and the failed run stays queued behind them when it is cleared. Leave them out: the ledger "
    "commits transactions in order without them."
)
WAIT_TIMEOUT = timedelta(days=7)
"""The longest total wait of a task for others, over all its starts in workers: the default of Airflow's sensors."""


def require_topology(topology: Topology | str) -> Topology:
    """Check, while the DAG is built, that tasks can run the topology.

    :raises PlanError: a mistake in the plan, or a state that does not outlive one task.
    :raises ConfigurationError: only the topology's name was given.
    """
    if not isinstance(topology, Topology):
        raise ConfigurationError(
            f"{topology!r} is not a topology, and this task runs one",
            "Give it the Topology object; a name is enough only for sensors that wait for a turn.",
        )
    topology.compile()
    require_durable(topology)
    return topology


def require_takes_new(topology: Topology, task: str) -> None:
    """:raises ConfigurationError: the topology is bound to partitions, and this task takes what is new."""
    if topology.partitions is not None:
        raise ConfigurationError(
            f"topology {topology.name!r} is bound to partitions, and {task} takes what is new",
            "Use trident_transaction, whose runs have partition keys.",
        )


def require_durable(topology: Topology) -> None:
    """:raises PlanError: a state does not outlive one task."""
    for name, spec in topology.states.items():
        if not spec.factory.capabilities.durable:
            raise PlanError(
                f"state {name!r} of topology {topology.name!r} is a {spec.factory.describe()}, which lives in one "
                "process; the tasks of a DAG are many",
                "Keep it in a SqliteState or another durable state.",
            )


def topology_name(topology: Topology | str) -> str:
    """The name, for tasks that need no Topology. :raises PlanError: it is not a valid name."""
    return require_topology(topology).name if isinstance(topology, Topology) else require_name("topology", topology)


class airflow_outcome:  # noqa: N801 - used as contextlib's own are
    """The one table from errors to what Airflow does. RETRY: the error is raised as it is, so Airflow may retry. FAIL:
    the task fails without a retry, and the text begins with the error's class, by which the reference of errors is
    sorted. Inside the block, states and spouts find Airflow's connections.

    Airflow prints an error above its stack trace, and then its causes with theirs, so the log would end in frames of a
    driver or of Java. So the causes are logged before. The last text that Airflow prints is the error, its cure and
    a few frames.

    For a FailedException Airflow logs only the text: a SystemExit is a failure like any other for Airflow, but without
    a stack trace, which would show only our code. Callbacks find the original error in ``__cause__``.
    """

    def __enter__(self) -> None:
        from airflow_trident.tasks.engines import install_resolver

        install_resolver()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not isinstance(error, TridentError):
            return
        again = error.outcome is Outcome.RETRY
        if isinstance(error, FailedException):
            raise (SystemExit if again else AirflowFailException)(str(error)) from error.with_traceback(None)
        _log.info("what led to the %s below", type(error).__name__, exc_info=error)
        error.__cause__, error.__suppress_context__ = None, True
        if again:
            raise error.with_traceback(None)
        raise AirflowFailException(f"{type(error).__name__}: {error}") from error.with_traceback(None)


class LedgerTask:
    """A mixin for operators and sensors that work on a topology's ledger. It opens nothing by itself."""

    topology_name: str
    zookeeper_conn_id: str | None
    current_txids: Sequence[int] = ()
    """The transactions that the task works on, lowest first, once known: for the extra link and for lineage."""
    current_incarnation: str = ""
    """The incarnation of the topology that `current_txids` belong to, if the run's coordinator gave it."""

    def rank_as(self, rank: Rank) -> None:
        """Give the task its place among the topology's tasks that wait for slots, whatever the weight rule of the DAG
        is: rules count the tasks above or below, which says nothing of who waits for whom. `priority_weight` moves all
        tasks of a topology together.

        A task that waits has no limit of its instances: Airflow counts deferred ones, too. They would keep the instance
        that they wait for from its slot."""
        task: Any = self
        if rank in WAITING:
            task.max_active_tis_per_dag = task.max_active_tis_per_dagrun = None
        highest = max(Rank)
        base = db_safe_priority(task.priority_weight + highest) - highest  # so no rank is cut off at the top
        base = vars(self).setdefault("_weight_without_rank", base)
        task.weight_rule = weight_rule("absolute")
        task.priority_weight = base + rank

    def open_ledger(self, incarnation: str = "") -> Ledger:
        """The topology's ledger, opened through the connection; the caller closes it.

        :param incarnation: the expected incarnation of the topology, if known: any other is refused.
        """
        from airflow_trident.hooks.zookeeper import ZooKeeperHook
        from airflow_trident.tasks import telemetry

        hook = ZooKeeperHook(self.zookeeper_conn_id or None)
        staging_dir = getattr(self, "staging_dir", None)
        ledger = hook.get_ledger(self.topology_name, incarnation=incarnation, staging_dir=staging_dir)
        ledger.listener = telemetry.listen
        return ledger

    def ledger_of_run(self, context: Context) -> Ledger:
        """:meth:`open_ledger`, for the incarnation of the topology in which this run's coordinator claimed its txids.

        In another incarnation the same txid is another batch. If a person or a task that is no coordinator gave the
        txid, the ledger of the present incarnation is opened.
        """
        self.current_incarnation = incarnation_of_run(self, context)
        return self.open_ledger(self.current_incarnation) if self.current_incarnation else self.open_ledger()

    def enlist(self, ledger: Ledger, context: Context, txid: int | None = None) -> None:
        """Add the task to the list of live workers that people see. An error here never fails the task."""
        from airflow_trident.ledger.workers import Worker

        with suppress(Exception):
            ledger.enlist(Worker.of(owner(context), txid), wait=False)

    def asker(self, context: Context) -> Asker:
        """This task instance, as the waiting task of a look."""
        me = owner(context)
        task = TaskOfRun(me.dag_id, me.run_id, me.task_id, me.map_index)
        return Asker(task, *self._told(context), commits=self.commits_what_is_left())

    def commits_what_is_left(self) -> bool:
        """:attr:`Asker.commits`, of this task."""
        return True

    def _told(self, context: Context | None) -> tuple[frozenset[str], int]:
        """:func:`told_by_dag`; but how many runs of an Airflow backfill may be active, nobody says, and this one is: so
        each that is queued is taken to be so behind this one."""
        behind, max_active_runs = told_by_dag(self)
        return behind, 1 if context is not None and is_backfill_run(context) else max_active_runs

    def turn_trigger(
        self, txid: Any, until: Until, context: Context | None = None, **kwargs: Any
    ) -> TridentTurnTrigger:
        """The trigger with which this task waits in the triggerer.

        :param context: of the run; None while the DAG is built.
        """
        from airflow_trident.triggers.transaction import TridentTurnTrigger

        kwargs.setdefault("incarnation", self.current_incarnation or None)
        behind, max_active_runs = self._told(context)
        kwargs = {"behind": sorted(behind), "max_active_runs": max_active_runs, **kwargs}
        return TridentTurnTrigger(
            topology=self.topology_name, txid=txid, until=until, zookeeper_conn_id=self.zookeeper_conn_id, **kwargs
        )

    def blocked(self, by: Blocked) -> BlockedError:
        """The error of a wait that this transaction, or its own, makes useless."""
        from airflow_trident.runtime.waiting import blocked

        return blocked(self.topology_name, by)

    def seconds_in_worker(self, context: Context, turn_wait_s: float | None) -> float:
        """How long this start of a waiting task holds its slot: a task that gave it back once only looks."""
        again = context["ti"].get_first_reschedule_date(context) is not None
        return 0.0 if again else settings.turn_wait_s(turn_wait_s)

    def look_again_later(self, context: Context, subject: str, timeout: timedelta) -> NoReturn:
        """Give the worker slot back without using a triggerer, and check again later.

        :raises AirflowSensorTimeout: the task has waited for `timeout` in all.
        """
        now = timezone.utcnow()
        began = context["ti"].get_first_reschedule_date(context) or now
        if now - began > timeout:
            raise AirflowSensorTimeout(
                f"waited for {timeout} for {subject} of topology {self.topology_name}. "
                f"See `airflow trident ledger list {self.topology_name}` for what holds it up."
            )
        raise AirflowRescheduleException(now + next_look(now - began, settings.number(settings.RESCHEDULE_S, least=0)))


def incarnation_of_run(task: Any, context: Context) -> str:
    """The incarnation from the nearest coordinator above, in this run; "" without one, or if its version gives none."""
    coordinator = coordinator_above(task)
    if coordinator is None:
        return ""
    ti = context["ti"]
    incarnation = None
    # A coordinator may be mapped, too; all instances of it in one run have the same incarnation.
    for index in dict.fromkeys((-1, -1 if ti.map_index is None else ti.map_index, 0)):
        incarnation = incarnation or ti.xcom_pull(task_ids=coordinator, key=INCARNATION, map_indexes=index)
    return settings.parse_incarnation(incarnation)


def coordinator_above(task: Any, topology: str = "") -> str | None:
    """The task id of the nearest upstream coordinator of the same topology.

    :param topology: its name, for a mapped task, which is not made yet.
    """
    wanted = (COORDINATE, topology or task.topology_name)
    seen: set[str] = set()
    level = list(task.upstream_list) if task.has_dag() else []
    while level:
        for task_above in sorted(level, key=lambda task_above: str(task_above.task_id)):
            part = part_of(task_above)
            if part is not None and (part.phase, part.topology_name) == wanted:
                return part.task_id
        seen |= {task_above.task_id for task_above in level}
        level = [above for task_above in level for above in task_above.upstream_list if above.task_id not in seen]
    return None


def require_unskipped(coordinator: Any) -> None:
    """
    :raises ConfigurationError: a branch or short circuit can skip tasks of the coordinator's transaction. Airflow would
        call such a run a success.
    """
    name = coordinator.topology_name
    behind = coordinator.get_flat_relatives(upstream=False) if coordinator.has_dag() else ()
    for task in behind:
        if not getattr(task, "inherits_from_skipmixin", False) or isinstance(task, LedgerTask):
            continue
        for skipped in task.get_flat_relatives(upstream=False):
            part = part_of(skipped)
            if part is None or part.phase not in (EMIT, COMMIT) or part.topology_name != name:
                continue
            if coordinator_above(skipped, name) == coordinator.task_id:
                raise ConfigurationError(
                    f"task {task.task_id} can skip {skipped.task_id}, which works on the transaction that "
                    f"{coordinator.task_id} has begun",
                    f"Put it before {coordinator.task_id}, or behind the last task of the transaction.",
                )


class TaskPart(NamedTuple):
    """What a task of a DAG does of a topology's transactions; the last three are those of :class:`TridentOperator`."""

    task_id: str
    phase: str
    topology_name: str
    takes_several: bool


def part_of(task: Any) -> TaskPart | None:
    """The part of a task; None if it is none of ours. A mapped task is not made before it runs: until then Airflow has
    its class and the arguments that all its instances get."""
    if isinstance(task, TridentOperator):
        return TaskPart(str(task.task_id), task.phase, task.topology_name, task.takes_several)
    made, arguments = getattr(task, "operator_class", None), getattr(task, "partial_kwargs", {})
    topology = arguments.get("topology")
    if not (isinstance(made, type) and issubclass(made, TridentOperator) and isinstance(topology, Topology)):
        return None
    return TaskPart(
        str(task.task_id), made.phase, topology.name, made.takes_several or arguments.get("group") is not None
    )


class TridentOperator(LedgerTask, BaseOperator):
    """Base of the operators. Opens nothing before ``execute``.

    :param topology: the Topology, checked here; not templated.
    :param zookeeper_conn_id: connection of type ``zookeeper`` (templated); None: ``[trident] zookeeper_conn_id``.
    """

    template_fields: Sequence[str] = ("zookeeper_conn_id",)
    shallow_copy_attrs: Sequence[str] = ("topology",)
    operator_extra_links: Collection[BaseOperatorLink] = (TransactionLink(),)
    ui_color = "#dbe7f5"
    phase = ""
    """The part of a transaction's work that the task does: COORDINATE, EMIT or COMMIT; "" for all of it."""
    takes_several = False
    """Does one instance of the task work on all transactions of a run?"""
    brings_events = False
    """Does the task commit, and bring the events of the topology's asset?"""

    def __init__(self, *, topology: Topology, zookeeper_conn_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topology = require_topology(topology)
        self.topology_name = topology.name
        require_known_conn_id(self, zookeeper_conn_id, "zookeeper_conn_id")
        self.zookeeper_conn_id = zookeeper_conn_id
        if self.depends_on_past or self.wait_for_downstream:
            warnings.warn(_DEPENDS_ON_PAST, UserWarning, stacklevel=1)  # of one place, so it is said once for a DAG
        self.asset: Asset | None = None
        if self.brings_events and topology.asset != "":
            from airflow_trident.tasks.asset_events import asset_of

            self.asset = asset_of(topology)
            self.outlets = self.outlets if self.asset in self.outlets else [*self.outlets, self.asset]

    def give_back_slot(
        self, context: Context, txid: int, until: Until, *, deferrable: bool, skip_gone: bool
    ) -> NoReturn:
        """Continue the wait without a worker slot: in the triggerer, or by a reschedule."""
        if deferrable:
            now_ms = int(timezone.utcnow().timestamp() * 1000)
            trigger = self.turn_trigger(txid, until, context, skip_gone=skip_gone, deferred_ms=now_ms)
            raise TaskDeferred(trigger=trigger, method_name="execute_complete", timeout=WAIT_TIMEOUT)
        self.look_again_later(context, f"transaction {txid}", WAIT_TIMEOUT)

    def execute_complete(self, context: Context, event: Any = None) -> Any:
        """Called after a wait in the triggerer: read the ledger again and continue. The event is only a hint."""
        return self.execute(context)

    def get_openlineage_facets_on_complete(self, _task_instance: Any) -> Any:
        """Airflow's OpenLineage provider calls this when the task has ended, with success or not.

        :return: `OperatorLineage`; None if the task did not learn its transactions.
        """
        from airflow_trident.tasks.lineage import lineage_of

        if not self.current_txids:
            return None
        lowest, highest = min(self.current_txids), max(self.current_txids)
        with airflow_outcome(), self.open_ledger(self.current_incarnation) as ledger:
            own_txids = set(self.current_txids)
            records = [record for record in ledger.transactions(lowest, highest) if record.txid in own_txids]
            reads = self.phase != COORDINATE
            return lineage_of(self.topology, ledger, records, reads=reads, writes=reads and self.phase != EMIT)


def deferrable_default(deferrable: bool | None, *, auto: bool = False) -> bool:
    """The task's own argument, else ``[trident] deferrable``, else ``[operators] default_deferrable``. False if this
    Airflow cannot defer tasks: they give their slot back instead.

    :param auto: the answer if neither a person nor the configuration says anything.
    """
    if not DEFERS:
        return False
    configured = settings.deferrable() if deferrable is None else deferrable
    if configured is not None:
        return configured
    from airflow.providers.common.compat.sdk import conf

    return auto or conf.getboolean("operators", "default_deferrable", fallback=False)


def owner(context: Context) -> Owner:
    """The writer of records in the ledger: the task, its try and its process."""
    ti = context["ti"]
    return Owner(
        dag_id=ti.dag_id,
        run_id=ti.run_id,
        task_id=ti.task_id,
        map_index=-1 if ti.map_index is None else ti.map_index,
        try_number=ti.try_number,
        host=socket.gethostname(),
        pid=os.getpid(),
    )


def claim_of(context: Context, kind: str) -> Claim:
    """The claim of a task that processes and commits by itself."""
    me = owner(context)
    return Claim(
        key=f"{me.dag_id}/{me.run_id}/{me.task_id}/{me.map_index}/{kind}",
        dag_id=me.dag_id,
        run_id=me.run_id,
        map_index=me.map_index,
        task_ids={"emit": me.task_id, "commit": me.task_id},
    )


def note_assets(task: TridentOperator, context: Context, extra: dict[str, Any]) -> None:
    """Add `extra` to the events of the task's outlets, but not for an alias, which has no event without an asset, nor
    for the topology's own asset, whose events say more (:mod:`airflow_trident.tasks.asset_events`)."""
    from airflow_trident.tasks.asset_events import asset_of

    for outlet in task.outlets:
        if isinstance(outlet, Asset) and outlet != asset_of(task.topology):
            context["outlet_events"][outlet].extra.update(extra)


LISTED = 100
"""The most txids, or ranges of txids, that an XCom or the event of an asset names one by one."""


def listed(txids: Iterable[int]) -> list[int] | dict[str, Any]:
    """Transactions as a value of bounded size: a list of txids; of more than 100, their `count` and the first 100
    `ranges`, both ends included."""
    every = sorted(txids)
    if len(every) <= LISTED:
        return every
    ranges = Txids.of(*every).ranges
    return {"count": len(every), "ranges": [list(pair) for pair in ranges[:LISTED]]}


def is_backfill_run(context: Context) -> bool:
    """Is the run part of an Airflow backfill (``airflow backfill create``)? The Execution API gives its type."""
    kind = getattr(context["dag_run"], "run_type", "")
    return str(getattr(kind, "value", kind)) == "backfill"


def backfill_run_refused(topology: str, context: Context) -> AirflowSkipException:
    """Skips a task of an Airflow backfill run: a source has no batch for the run's date, only data that is new now."""
    return AirflowSkipException(
        f"run {context['dag_run'].run_id!r} is part of an Airflow backfill, and topology {topology} takes what its "
        "source has now, whatever the date of the run: no transaction is begun. "
        f"`airflow trident backfill {topology} --failed` replays transactions; allow_backfill_runs=True lets backfill "
        "runs take new data all the same."
    )


def is_last_try(context: Context) -> bool:
    """Will Airflow not retry the task by itself if it fails now? Airflow's own rule, with data of the Execution API."""
    ti = context["ti"]
    return ti.max_tries == 0 or ti.try_number > ti.max_tries


def first_try(context: Context, retries: int) -> int:
    """The number of the task's first try since it was last cleared. By Airflow's rule a clear increases `max_tries`.

    :param retries: of the task.
    """
    return int(context["ti"].max_tries) - retries + 1


def human_bytes(count: int) -> str:
    """``1536`` -> ``1.5 KB``."""
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TB"


def parse_txids(value: Any) -> list[int]:
    """One txid or several from a template or an XCom: lowest first, each once.

    :raises ConfigurationError: one of them is not a number from 1 upwards, or there is none.
    """
    if isinstance(value, str) and value.strip().startswith("["):
        value = value.strip().removeprefix("[").removesuffix("]").split(",")
    values = value if isinstance(value, list | tuple) else [value]
    return sorted({parse_txid(txid) for txid in values or [None]})


def require_known_conn_id(task: Any, conn_id: Any, name: str) -> None:
    """:raises ConfigurationError: it is known while the DAG is built, and is no id of a connection."""
    if is_known(conn_id) and conn_id not in (None, ""):
        require_conn_id(type(task).__name__, conn_id, name)


def is_known(value: Any) -> bool:
    """Is the value known while the DAG is built, so neither a template nor the output of another task?"""
    return not hasattr(value, "resolve") and not (isinstance(value, str) and "{" in value)
