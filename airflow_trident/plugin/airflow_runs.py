"""Runs of the mending DAG: starts them, and lists the latest. Imported by the API server only.

Runs that are red in Airflow although all transactions that they began are committed, by another run or a replay. For
the API server only.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias

from airflow_trident.errors import ConfigurationError, TransitionError, begun, error_text
from airflow_trident.names import Composed
from airflow_trident.plugin.rows import Sight
from airflow_trident.protocol.records import Status, TxRecord
from airflow_trident.tasks.mending_order import MENDING_DAG, MendingOrder, partition_words

LATEST = 50
"""How many of the latest runs that do the same are looked at."""
SHOWN = 5
DEADLINE_S = 5.0
"""Limit for reading what an XCom backend keeps elsewhere: the page soon asks again, and does not wait for it."""
_OVER = ("success", "failed")
_RUNS = Composed(joint="__", longest=230)
"""Airflow takes 250 characters."""
MOST_READ = 16
"""The most values that are read at a time, those included whose place does not answer."""
_reading: dict[str, Future[Any]] = {}
"""Run id -> the reading of its lines, until it ends."""

_log = logging.getLogger(__name__)


def start(order: MendingOrder) -> str:
    """Start a run that does the order, and return its id.

    :raises ConfigurationError: there is no mending DAG, or it is paused, or no DAG has the topology.
    :raises TransitionError: a run that does the same has not ended.
    """
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.exceptions import DagRunAlreadyExists
    from airflow.utils.types import DagRunTriggeredByType
    from sqlalchemy.exc import IntegrityError

    _require_startable(order)
    scope = order.txid if order.txid is not None else f"{order.first}-{order.last}" if order.first else "unfinished"
    if order.partition:
        scope = "_".join(filter(None, (order.partition, order.to, order.choice)))
    # Airflow keeps ids that begin with "backfill__" for its own backfills.
    prefix = f"{_RUNS.of('page', order.action, order.topology, scope)}__"
    before = _runs(prefix)
    going = next((run for run in before if run["state"] not in _OVER), None)
    if going is not None:
        raise TransitionError(f"run {going['run_id']} does that already: it is {going['state']}", "Wait for it.")
    numbers = [int(tail) for run in before if (tail := run["run_id"].removeprefix(prefix)).isdigit()]
    run_id = f"{prefix}{max(numbers, default=0) + 1}"
    try:
        trigger_dag(
            MENDING_DAG,
            triggered_by=DagRunTriggeredByType.UI,
            triggering_user_name=order.by,
            run_id=run_id,
            conf=order.conf(),
            note=order.reason,
        )
    except (DagRunAlreadyExists, IntegrityError) as error:
        raise TransitionError(f"run {run_id} was started by somebody else at this moment", "Wait for it.") from error
    return run_id


def latest(topology: str, sight: Sight) -> list[dict[str, Any]]:
    """The latest runs that mend a topology, newest first, with their state. The lines that they returned, and the
    reason that a person gave, may quote data: they are for those who may see the order's DAG."""
    runs = _runs(topology=topology, limit=SHOWN)
    visible = {run["run_id"] for run in runs if sight.may_see([run["conf"].get("dag_id", "")])}
    lines_by_run = _said(sorted(visible))
    return [
        {
            "dag_id": MENDING_DAG,
            "run_id": run["run_id"],
            "state": run["state"],
            "by": run["conf"].get("by", "") if run["run_id"] in visible else "",
            "reason": run["conf"].get("reason", "") if run["run_id"] in visible else "",
            "action": run["conf"].get("action", ""),
            "txid": run["conf"].get("txid"),
            "partitions": partition_words(**run["conf"]),
            "said": lines_by_run.get(run["run_id"], []),
        }
        for run in runs
    ]


def _require_startable(order: MendingOrder) -> None:
    from airflow.models.dag import DagModel

    if not order.dag_id:
        raise ConfigurationError(
            f"no DAG has taken transactions of topology {order.topology}, so where its code is, is not known",
            f"Use the command: `{order.command}`.",
        )
    dag = DagModel.get_current(MENDING_DAG)
    if dag is None or dag.is_stale:
        raise ConfigurationError(
            f"{order.action} needs the topology's code, which runs in the DAG {MENDING_DAG}, and there is none",
            "Put `from airflow_trident import trident_mending_dag` and `dag = trident_mending_dag()` into a file of "
            f"the DAGs folder, or use the command: `{order.command}`.",
        )
    if dag.is_paused:
        raise ConfigurationError(f"the DAG {MENDING_DAG} is paused, so its run would not start", "Unpause it first.")


def _runs(prefix: str = "", *, topology: str = "", limit: int = LATEST) -> list[dict[str, Any]]:
    """The latest runs, newest first, whose id begins with `prefix`, and that mend this topology."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    wanted = select(DagRun.run_id, DagRun.state, DagRun.conf).where(DagRun.dag_id == MENDING_DAG)
    if prefix:
        wanted = wanted.where(DagRun.run_id.startswith(prefix, autoescape=True))
    if topology:
        wanted = wanted.where(DagRun.conf["topology"].as_string() == topology)
    with create_session() as session:
        rows = session.execute(wanted.order_by(DagRun.id.desc()).limit(limit)).all()
    return [{"run_id": run_id, "state": str(state), "conf": conf or {}} for run_id, state, conf in rows]


def _said(run_ids: list[str]) -> dict[str, list[str]]:
    """The lines for people that the task of each run returned."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    if not run_ids:
        return {}
    wanted = select(XComModel.run_id, XComModel.value).where(
        XComModel.dag_id == MENDING_DAG, XComModel.run_id.in_(run_ids), XComModel.key == "return_value"
    )
    with create_session() as session:
        values = {run_id: _decoded(value) for run_id, value in session.execute(wanted)}
    elsewhere = {run_id: value for run_id, value in values.items() if not isinstance(value, list)}
    if elsewhere:
        values |= _fetched(elsewhere)
    return {run_id: [str(line) for line in value] for run_id, value in values.items() if isinstance(value, list)}


def _decoded(value: Any) -> Any:
    with suppress(ValueError):
        return json.loads(value) if isinstance(value, str) else value
    return value  # the path of an object


def _fetched(values: dict[str, Any]) -> dict[str, Any]:
    """What these values stand for. An XCom backend keeps values elsewhere, and that place may not answer: then the runs
    are shown without their lines."""
    for run_id in [run_id for run_id, reading in _reading.items() if reading.done()]:
        _reading.pop(run_id, None)
    for run_id, value in values.items():
        if run_id not in _reading and len(_reading) < MOST_READ:
            _reading[run_id] = begun(partial(_of_backend, value))
    readings = {run_id: _reading[run_id] for run_id in values if run_id in _reading}
    done, _ = wait(readings.values(), timeout=DEADLINE_S)
    errors = [error_text(error) for reading in done if (error := reading.exception())]
    errors += ["no answer"] * (len(values) - len(done))
    if errors:
        _log.warning("what %d runs of %s said cannot be read: %s", len(errors), MENDING_DAG, errors[0])
    return {
        run_id: reading.result() for run_id, reading in readings.items() if reading in done and not reading.exception()
    }


def _of_backend(value: Any) -> Any:
    from airflow.sdk.execution_time.xcom import XCom

    return XCom.deserialize_value(SimpleNamespace(value=value))


RunOfDag = tuple[str, str]
"""(dag_id, run_id)"""
RedRuns: TypeAlias = Mapping[RunOfDag, frozenset[str]]
"""Run -> the ids of the tasks that a clear runs again; sorted by DAG and run."""

_TURN_SENSOR = "TridentTurnSensor"


@dataclass
class RunTasks:
    """The tasks of one topology in a run, as the claims of its transactions name them."""

    coordinators: set[str] = field(default_factory=set)
    workers: set[str] = field(default_factory=set)
    statuses: set[Status] = field(default_factory=set)


def committed_runs(records: Iterable[TxRecord]) -> dict[RunOfDag, RunTasks]:
    """The runs of these records whose transactions are all COMMITTED, sorted by DAG and run. Pure."""
    tasks_by_run: dict[RunOfDag, RunTasks] = defaultdict(RunTasks)
    for record in records:
        claim = record.claim
        if claim.dag_id:
            run = tasks_by_run[claim.dag_id, claim.run_id]
            run.statuses.add(record.status)
            run.workers |= set(claim.task_ids.values())
            run.coordinators |= {claim.coordinator} - {""}
    return {run: tasks for run, tasks in sorted(tasks_by_run.items()) if tasks.statuses == {Status.COMMITTED}}


def red_runs(records: Iterable[TxRecord]) -> RedRuns:
    """The runs whose state in Airflow is failed, whose transactions are all committed, and whose failed tasks are all
    tasks of this topology.

    A run may have other failed tasks: those of another topology, whose transaction a person has SKIPPED, or a user's
    own. To clear them would do their work again, which nobody on this topology's page has decided.
    """
    runs = committed_runs(records)
    red: dict[RunOfDag, frozenset[str]] = {}
    latest = _LatestDags()
    for run, states in _bad_tasks(failed_among(runs)).items():
        failed = {task_id for task_id, state in states if state == "failed"}
        own_tasks = runs[run].workers | runs[run].coordinators
        if not failed <= own_tasks:
            own_tasks |= _turn_sensors(latest[run[0]], runs[run])
        if failed and failed <= own_tasks:
            red[run] = frozenset(task_id for task_id, _ in states)
    return dict(sorted(red.items()))


def failed_among(runs: Iterable[RunOfDag]) -> list[RunOfDag]:
    """The runs whose state in Airflow is failed."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from sqlalchemy import select

    wanted_runs = set(runs)
    if not wanted_runs:
        return []
    wanted = select(DagRun.dag_id, DagRun.run_id).where(
        DagRun.state == DagRunState.FAILED,
        DagRun.dag_id.in_({dag_id for dag_id, _ in wanted_runs}),
        DagRun.run_id.in_({run_id for _, run_id in wanted_runs}),
    )
    with create_session() as session:
        return sorted(wanted_runs.intersection((dag_id, run_id) for dag_id, run_id in session.execute(wanted)))


def clear(runs: RedRuns) -> None:
    """Clear these tasks, if they are still failed, as Airflow's own Clear does. They run again and find their work
    committed. No other task is cleared, also if one has failed meanwhile."""
    from airflow.utils.session import create_session

    latest = _LatestDags()
    with create_session() as session:
        for (dag_id, run_id), task_ids in runs.items():
            dag = latest[dag_id]
            if dag is not None:
                dag.clear(task_ids=sorted(task_ids), run_id=run_id, only_failed=True, session=session)


def _bad_tasks(runs: Iterable[RunOfDag]) -> dict[RunOfDag, set[tuple[str, str]]]:
    """The (task id, state) of all tasks of the runs that Airflow's Clear takes as failed: those, and those behind."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import select

    states_by_run: dict[RunOfDag, set[tuple[str, str]]] = {run: set() for run in runs}
    if not states_by_run:
        return states_by_run
    wanted = select(TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.state).where(
        TaskInstance.state.in_((TaskInstanceState.FAILED, TaskInstanceState.UPSTREAM_FAILED)),
        TaskInstance.dag_id.in_({dag_id for dag_id, _ in states_by_run}),
        TaskInstance.run_id.in_({run_id for _, run_id in states_by_run}),
    )
    with create_session() as session:
        for dag_id, run_id, task_id, state in session.execute(wanted):
            if (dag_id, run_id) in states_by_run:
                states_by_run[dag_id, run_id].add((task_id, str(getattr(state, "value", state))))
    return states_by_run


class _LatestDags(dict[str, Any]):
    """Id -> the latest version of the DAG, read when first asked for; None: it is gone."""

    def __missing__(self, dag_id: str) -> Any:
        from airflow.models.dagbag import DBDagBag
        from airflow.utils.session import create_session

        with create_session() as session:
            self[dag_id] = DBDagBag().get_latest_version_of_dag(dag_id, session=session)
        return self[dag_id]


def _turn_sensors(dag: Any, tasks: RunTasks) -> set[str]:
    """The turn sensors between the topology's coordinator and its committer: no claim names them, and they only
    wait."""
    if dag is None:
        return set()
    return {
        task_id
        for task_id, task in dag.task_dict.items()
        if task.task_type == _TURN_SENSOR
        and tasks.coordinators & set(task.get_flat_relative_ids(upstream=True))
        and tasks.workers & set(task.get_flat_relative_ids(upstream=False))
    }
