"""A whole transaction in one line of a DAG file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import TaskGroup, task_group

from airflow_trident.errors import ConfigurationError
from airflow_trident.operators.base import require_topology
from airflow_trident.operators.committer import TridentCommitterOperator
from airflow_trident.operators.coordinator import TridentCoordinatorOperator
from airflow_trident.operators.emitter import TridentEmitterOperator
from airflow_trident.runtime.phases import OnFailure
from airflow_trident.sensors.turn import TridentTurnSensor
from airflow_trident.tasks.engines import EngineKind

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from airflow_trident.topology.topology import Topology

COORDINATE, EMIT, TURN, COMMIT = "coordinate", "emit", "turn", "commit"
_MAP_INDEX = "transaction {{ task.txid }}"


def trident_transaction(
    topology: Topology,
    *,
    group_id: str | None = None,
    max_transactions: int = 1,
    spark_conn_id: str | None = None,
    engine: EngineKind | str = EngineKind.SPARK,
    spark_conf: Mapping[str, str] | None = None,
    zookeeper_conn_id: str | None = None,
    staging_dir: str | None = None,
    attempt_timeout: timedelta | float | None = None,
    max_pending: int | str | None = None,
    retention: int | None = None,
    on_failure: OnFailure | str = OnFailure.BLOCK,
    turn_sensor: bool = True,
    deferrable: bool | None = None,
    turn_wait_s: float | None = None,
    allow_backfill_runs: bool = False,
    **task_args: Any,
) -> TaskGroup:
    """A task group ``coordinate -> emit -> turn -> commit`` for a topology.

    Let several runs be active at once (``max_active_runs`` of the DAG), or several transactions in one run
    (`max_transactions`), and the processing of many goes on while their commits stay in order.

    :param topology: the Topology.
    :param group_id: None: the topology's name.
    :param max_transactions: above 1 a run takes up to so many batches; the rest is mapped over them.
    :param spark_conn_id: see :class:`EngineOperator`, as for `engine`, `spark_conf`, `staging_dir` and
        `attempt_timeout`.
    :param max_pending: see :class:`TridentCoordinatorOperator`.
    :param retention: see :class:`TridentCommitterOperator`.
    :param on_failure: ``block``: a transaction that keeps failing holds up the later ones; ``skip``: they pass.
    :param turn_sensor: wait for the turn in a task of its own; without it the committer waits itself.
    :param deferrable: wait in the triggerer; None: as configured.
    :param allow_backfill_runs: see :class:`TridentCoordinatorOperator`.
    :param task_args: arguments of every task, such as ``retries``; ``outlets`` go to the committer alone. Without
        `weight_rule` it is ``upstream``: where slots are few, commits of older runs go before new batches.
    """
    require_topology(topology)
    outlets = task_args.pop("outlets", None)
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
        emit = TridentEmitterOperator(task_id=EMIT, txid=txid, **ledger, **runs, **mapped)
        commit = TridentCommitterOperator(task_id=COMMIT, txid=txid, **ledger, **runs, **waits, **commits, **mapped)
        if turn_sensor:
            turn = TridentTurnSensor(
                task_id=TURN, txid=turn_txid, coordinator_task_id=coordinate.task_id, **ledger, **waits, **mapped
            )
            emit >> turn >> commit
        else:
            emit >> commit

    with TaskGroup(group_id=group_id or re.sub(r"[^A-Za-z0-9_-]", "_", topology.name)) as group:
        if "weight_rule" not in {**group.dag.default_args, **group.default_args}:
            ledger.setdefault("weight_rule", "upstream")
        coordinate = TridentCoordinatorOperator(
            task_id=COORDINATE,
            max_transactions=max_transactions,
            max_pending=max_pending,
            allow_backfill_runs=allow_backfill_runs,
            **ledger,
            **waits,
        )
        if max_transactions == 1:
            work(coordinate.output, coordinate.output)
        else:
            _map_over(coordinate, work)
    return group


def _map_over(coordinate: TridentCoordinatorOperator, work: Any) -> None:
    # The triggerer can render a text, but not the argument of a mapped group: see text_for_triggerer.
    turn_txid = f"{{{{ ti.xcom_pull(task_ids='{coordinate.task_id}', map_indexes=-1)[ti.map_index] }}}}"

    @task_group(group_id="transaction")
    def transaction(txid: Any) -> None:
        work(txid, turn_txid, map_index_template=_MAP_INDEX)

    transaction.expand(txid=coordinate.output)
