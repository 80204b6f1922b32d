"""Runs that are red in Airflow although all transactions that they began are committed, by another run or a replay. For
the API server only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from airflow_trident.protocol.records import TxRecord
from airflow_trident.protocol.statuses import Status

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
    found: dict[RunOfDag, RunTasks] = defaultdict(RunTasks)
    for record in records:
        claim = record.claim
        if claim.dag_id:
            run = found[claim.dag_id, claim.run_id]
            run.statuses.add(record.status)
            run.workers |= set(claim.task_ids.values())
            run.coordinators |= {claim.coordinator} - {""}
    return {run: tasks for run, tasks in sorted(found.items()) if tasks.statuses == {Status.COMMITTED}}


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
        mine = runs[run].workers | runs[run].coordinators
        if not failed <= mine:
            mine |= _turn_sensors(latest[run[0]], runs[run])
        if failed and failed <= mine:
            red[run] = frozenset(task_id for task_id, _ in states)
    return dict(sorted(red.items()))


def failed_among(runs: Iterable[RunOfDag]) -> list[RunOfDag]:
    """The runs whose state in Airflow is failed."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from sqlalchemy import select

    asked = set(runs)
    if not asked:
        return []
    wanted = select(DagRun.dag_id, DagRun.run_id).where(
        DagRun.state == DagRunState.FAILED,
        DagRun.dag_id.in_({dag_id for dag_id, _ in asked}),
        DagRun.run_id.in_({run_id for _, run_id in asked}),
    )
    with create_session() as session:
        return sorted(asked.intersection((dag_id, run_id) for dag_id, run_id in session.execute(wanted)))


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

    found: dict[RunOfDag, set[tuple[str, str]]] = {run: set() for run in runs}
    if not found:
        return found
    wanted = select(TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.state).where(
        TaskInstance.state.in_((TaskInstanceState.FAILED, TaskInstanceState.UPSTREAM_FAILED)),
        TaskInstance.dag_id.in_({dag_id for dag_id, _ in found}),
        TaskInstance.run_id.in_({run_id for _, run_id in found}),
    )
    with create_session() as session:
        for dag_id, run_id, task_id, state in session.execute(wanted):
            if (dag_id, run_id) in found:
                found[dag_id, run_id].add((task_id, str(getattr(state, "value", state))))
    return found


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
