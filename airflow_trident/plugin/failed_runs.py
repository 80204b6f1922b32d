"""Runs that are red in Airflow although all transactions that they began are committed, by another run or a replay. For
the API server only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from airflow_trident.protocol.records import TxRecord
from airflow_trident.protocol.statuses import Status

RunOfDag = tuple[str, str]
"""(dag_id, run_id)"""


def committed_runs(records: Iterable[TxRecord]) -> list[RunOfDag]:
    """The runs of these records whose transactions are all COMMITTED, sorted by DAG and run. Pure."""
    statuses: dict[RunOfDag, set[Status]] = defaultdict(set)
    for record in records:
        if record.claim.dag_id:
            statuses[record.claim.dag_id, record.claim.run_id].add(record.status)
    return sorted(run for run, found in statuses.items() if found == {Status.COMMITTED})


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


def clear(runs: Iterable[RunOfDag]) -> None:
    """Clear the failed tasks of the runs, as Airflow's own Clear does. They run again and find their work committed."""
    from airflow.models.dagbag import DBDagBag
    from airflow.utils.session import create_session

    bag = DBDagBag()
    with create_session() as session:
        for dag_id, run_id in runs:
            dag: Any = bag.get_latest_version_of_dag(dag_id, session=session)
            if dag is not None:
                dag.clear(run_id=run_id, only_failed=True, session=session)
