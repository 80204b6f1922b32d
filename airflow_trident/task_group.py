"""All tasks of a transaction in one call of a DAG file."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import TaskGroup, TriggerRule, task_group

from airflow_trident import settings
from airflow_trident.errors import ConfigurationError
from airflow_trident.io.paths import AnyPath
from airflow_trident.names import Composed, EngineKind, Redo, require_flags
from airflow_trident.operators.base import require_topology
from airflow_trident.operators.transaction import (
    TridentCommitterOperator,
    TridentCoordinatorOperator,
    TridentEmitterOperator,
)
from airflow_trident.protocol.records import OnFailure
from airflow_trident.runtime.drains.limits import parse_group
from airflow_trident.sensors.turn import TridentTurnSensor, map_index_for_triggerer
from airflow_trident.tasks.waits import Rank

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from airflow_trident.topology.topology import Topology

COORDINATE, EMIT, TURN, COMMIT = "coordinate", "emit", "turn", "commit"
_MAP_INDEX = "transaction {{ task.txid }}"

_GROUPS = Composed(joint="__", characters="A-Za-z0-9_-")


def trident_transaction(
    topology: Topology,
    *,
    group_id: str | None = None,
    max_transactions: int = 1,
    group: int | str | None = None,
    spark_conn_id: str | None = None,
    engine: EngineKind | str = EngineKind.SPARK,
    spark_conf: Mapping[str, str] | None = None,
    zookeeper_conn_id: str | None = None,
    staging_dir: AnyPath | None = None,
    attempt_timeout: timedelta | float | None = None,
    max_pending: int | str | None = None,
    retention: int | None = None,
    on_failure: OnFailure | str | None = None,
    turn_sensor: bool = True,
    deferrable: bool | None = None,
    turn_wait_s: timedelta | float | None = None,
    allow_backfill_runs: bool = False,
    partition: str | None = None,
    redo: Redo | str = Redo.ASKED,
    **task_args: Any,
) -> TaskGroup:
    """A task group ``coordinate -> emit -> turn -> commit`` for a topology.

    If several runs may be active at once (``max_active_runs`` of the DAG), or one run takes several transactions
    (`max_transactions`), many transactions are processed at a time while their commits stay in order.

    :param topology: the Topology.
    :param group_id: None: the topology's name.
    :param max_transactions: above 1 a run takes at most this number of batches; the other tasks are mapped over them.
    :param group: instead of that, one emit and one commit task take all transactions of a run: at most this number in
        a pass, or ``auto``, chosen by how much there is to read and how long it takes. Processed transactions are
        committed even if others of the run failed.
    :param spark_conn_id: see :class:`EngineOperator`, as for `engine`, `spark_conf`, `staging_dir` and
        `attempt_timeout`, which with `group` is the limit of a pass.
    :param max_pending: see :class:`TridentCoordinatorOperator`.
    :param retention: see :class:`TridentCommitterOperator`.
    :param on_failure: ``block``: a transaction that keeps failing blocks the later ones; ``skip``: they pass.
        None: ``skip`` if the topology is bound to partitions, else ``block``.
    :param turn_sensor: wait for the turn in a task of its own; without it the committer waits.
    :param deferrable: wait in the triggerer; None: as configured, and since Airflow 3.3 the turn sensor waits there.
    :param allow_backfill_runs: see :class:`TridentCoordinatorOperator`, as for `partition` and `redo`.
    :param task_args: arguments of every task, such as ``retries``; only the committer gets ``outlets``. A
        `trigger_rule`, also one in `default_args`, is for the coordinator alone. The tasks rank themselves, so a
        `weight_rule` has no effect: if there are few slots, a task that waits goes behind each task that it may wait
        for (:class:`~airflow_trident.tasks.waits.Rank`). `priority_weight` raises all of them.
    :raises ConfigurationError: `group` has nothing to take together, or no room; or the topology takes one at a time;
        or tasks are to be mapped in a task group that is mapped itself.
    """
    require_topology(topology)
    max_transactions = settings.parse_count("max_transactions", max_transactions)
    require_flags("trident_transaction", turn_sensor=turn_sensor)
    partitions = topology.partitions
    most = max_transactions if partitions is None else partitions.lookback + 1
    _require_group(group, most, max_pending)
    outlets = task_args.pop("outlets", None)
    begins = {"trigger_rule": task_args.pop("trigger_rule")} if "trigger_rule" in task_args else {}
    for name in ("task_id", "txid", "task_group"):
        if name in task_args:
            raise ConfigurationError(f"{name} cannot be the same for all tasks of a group", f"Leave out {name}.")
    ledger: dict[str, Any] = {
        "topology": topology,
        "zookeeper_conn_id": zookeeper_conn_id,
        "on_failure": on_failure,
        **task_args,
    }
    waits: dict[str, Any] = {"deferrable": deferrable, "turn_wait_s": turn_wait_s}
    runs: dict[str, Any] = {
        "spark_conn_id": spark_conn_id,
        "engine": engine,
        "spark_conf": spark_conf,
        "staging_dir": staging_dir,
        "attempt_timeout": attempt_timeout,
    }
    commits: dict[str, Any] = {"retention": retention, "outlets": outlets or []}

    def work(txid: Any, turn_txid: Any, **mapped: Any) -> None:
        # Explicit, because a rule in the DAG's default_args could skip what is begun, and the run would be green.
        after: dict[str, Any] = {"trigger_rule": TriggerRule.ALL_SUCCESS}
        # Processed transactions are committed, no matter how others of the run ended.
        behind = after if group is None else {"trigger_rule": TriggerRule.ALL_DONE_MIN_ONE_SUCCESS}
        emit = TridentEmitterOperator(task_id=EMIT, txid=txid, group=group, **after, **ledger, **runs, **mapped)
        commit = partial(TridentCommitterOperator, task_id=COMMIT, txid=txid, **runs, **waits, **commits, **mapped)
        if turn_sensor:
            turn = TridentTurnSensor(
                task_id=TURN,
                txid=turn_txid,
                coordinator_task_id=coordinate.task_id,
                **behind | ledger,
                **waits,
                **mapped,
            )
            committer = commit(**after | ledger)
            committer.rank_as(Rank.COMMIT_AFTER_TURN)
            emit >> turn >> committer
            if group is not None:
                coordinate >> turn
        else:
            emit >> commit(**behind | ledger)

    with TaskGroup(group_id=group_id or _GROUPS.of(topology.name)) as made:
        coordinate = TridentCoordinatorOperator(
            task_id=COORDINATE,
            max_transactions=max_transactions,
            max_pending=max_pending,
            allow_backfill_runs=allow_backfill_runs,
            partition=partition,
            redo=redo,
            **begins | ledger,
            **waits,
        )
        if group is not None:
            work(coordinate.output, f"{{{{ ({_pulled(coordinate)} or [None])[0] }}}}")
        elif most == 1:
            work(coordinate.output, coordinate.output)
        else:
            _map_over(coordinate, work)
    return made


def _require_group(group: int | str | None, max_transactions: int, max_pending: int | str | None) -> None:
    """:raises ConfigurationError: these values contradict each other."""
    if group is None:
        return
    size = parse_group(group)
    if max_transactions < 2:
        raise ConfigurationError(
            f"group={group!r} and max_transactions={max_transactions}: a run takes one transaction, which is no group",
            "Give max_transactions, the most that a run takes; or leave out group.",
        )
    if isinstance(size, int) and size > max_transactions:
        raise ConfigurationError(
            f"group={size} is above max_transactions={max_transactions}, the most that a run takes",
            "Make the group smaller, or let a run take more.",
        )
    pending = str(max_pending).strip()
    if isinstance(size, int) and pending.isdecimal() and int(pending) < size:
        raise ConfigurationError(
            f"group={size} and max_pending={pending}: {size} transactions are uncommitted at once when they are "
            "processed together",
            "Leave out max_pending (it is at least max_transactions then), or make it no smaller than the group.",
        )


def _pulled(coordinate: TridentCoordinatorOperator) -> str:
    """A text that the triggerer can render for the other tasks of the transaction; it cannot render the argument of a
    mapped group: see text_for_triggerer."""
    index = map_index_for_triggerer(coordinate, coordinate)
    return f"ti.xcom_pull(task_ids='{coordinate.task_id}', map_indexes={index})"


def _map_over(coordinate: TridentCoordinatorOperator, work: Any) -> None:
    """:raises ConfigurationError: Airflow does not map so many tasks, or never by what the coordinator returns."""
    from airflow.providers.common.compat.sdk import conf

    most = conf.getint("core", "max_map_length", fallback=1024)
    if coordinate.max_transactions > most:
        raise ConfigurationError(
            f"max_transactions={coordinate.max_transactions} is above [core] max_map_length={most}: Airflow maps no "
            "tasks over a longer list",
            "Give group, so that one emit and one commit task take all transactions, or a lower max_transactions.",
        )
    around = coordinate.get_closest_mapped_task_group()
    if around is not None:
        raise ConfigurationError(
            f"{coordinate.most} transactions of a run in the mapped task group {around.group_id!r}: Airflow "
            "does not map tasks over what a task of such a group returns",
            "Give group, so that one emit and one commit task take all transactions, or leave out max_transactions "
            "(or lookback).",
        )
    turn_txid = f"{{{{ {_pulled(coordinate)}[ti.map_index] }}}}"

    @task_group(group_id="transaction")
    def transaction(txid: Any) -> None:
        work(txid, turn_txid, map_index_template=_MAP_INDEX)

    transaction.expand(txid=coordinate.output)
