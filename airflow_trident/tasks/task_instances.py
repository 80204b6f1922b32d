"""What Airflow's metadata database says of the tasks of transactions: for commands and the page, which may read it.

Tasks ask the Execution API instead (:mod:`airflow_trident.tasks.liveness`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from airflow_trident.ledger.workers import Worker, is_alive
from airflow_trident.protocol.records import TxRecord
from airflow_trident.protocol.statuses import Status
from airflow_trident.tasks.liveness import Answers, judge, questions

_AT_WORK = (Status.PROCESSING, Status.PROCESSED, Status.COMMITTING)


def abandoned(records: Iterable[TxRecord], workers: Sequence[Worker]) -> dict[int, str]:
    """txid -> why nobody will take it further by itself; of those that somebody should.

    :param workers: who works on the topology now.
    """
    unfinished = [record for record in records if record.status in _AT_WORK and not is_alive(workers, record.owner)]
    asked: dict[tuple[str, str], set[str]] = defaultdict(set)
    for record in unfinished:
        for question in questions(record):
            for run_id in question["run_ids"]:
                asked[question["dag_id"], run_id] |= set(question["task_ids"])
    answers = _states(asked)
    live = {worker.name for worker in workers}
    gone = ((record.txid, judge(record, answers, live)) for record in unfinished)
    return {txid: found.why for txid, found in gone if found is not None}


def _states(asked: dict[tuple[str, str], set[str]]) -> Answers:
    """As the Execution API answers: ``task_id``, with ``_index`` where a task is mapped, -> state."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    answers: dict[tuple[str, str], dict[str, Any]] = {run: {} for run in asked}
    if not asked:
        return answers
    wanted = select(
        TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.map_index, TaskInstance.state
    ).where(
        TaskInstance.dag_id.in_({dag_id for dag_id, _ in asked}), TaskInstance.run_id.in_({run for _, run in asked})
    )
    with create_session() as session:
        for dag_id, run_id, task_id, index, state in session.execute(wanted):
            if task_id in asked.get((dag_id, run_id), ()):
                answers[dag_id, run_id][task_id if index < 0 else f"{task_id}_{index}"] = state
    return answers
