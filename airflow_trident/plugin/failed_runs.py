"""Runs that are red in Airflow although another run, or a replay, committed all they began. For the API server only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from airflow_trident.protocol.records import TxRecord
from airflow_trident.protocol.statuses import Status

RunOfDag = tuple[str, str]
"""(dag_id, run_id)"""


def committed_runs(records: Iterable[TxRecord]) -> list[RunOfDag]:
    """Of those, the runs whose transactions are all COMMITTED; by DAG and run. Pure."""
    statuses: dict[RunOfDag, set[Status]] = defaultdict(set)
    for record in records:
        if record.claim.dag_id:
            statuses[record.claim.dag_id, record.claim.run_id].add(record.status)
    return sorted(run for run, found in statuses.items() if found == {Status.COMMITTED})


def failed_among(runs: Iterable[RunOfDag]) -> list[RunOfDag]:
    """Those that Airflow calls failed."""
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


def clear(runs: Iterable[RunOfDag]) -> None:
    """Their failed tasks run again, as Airflow's own Clear lets them: they find their transaction committed."""
    from airflow.models.dagbag import DBDagBag
    from airflow.utils.session import create_session

    bag = DBDagBag()
    with create_session() as session:
        for dag_id, run_id in runs:
            dag: Any = bag.get_latest_version_of_dag(dag_id, session=session)
            if dag is not None:
                dag.clear(run_id=run_id, only_failed=True, session=session)
