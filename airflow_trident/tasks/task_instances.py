"""The states of transactions' tasks from Airflow's metadata database, which commands and the page may read.

Tasks ask the Execution API instead (:mod:`airflow_trident.tasks.liveness`).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_trident.ledger.announcements import announced_events
from airflow_trident.ledger.base import Ledger
from airflow_trident.ledger.deployments import Deployed
from airflow_trident.ledger.workers import Worker, is_alive, programs
from airflow_trident.protocol.records import Command, LedgerView, TxRecord
from airflow_trident.protocol.txids import NO_TXIDS, Txids
from airflow_trident.runtime.waiting import lowest_uncommitted
from airflow_trident.tasks.liveness import UNFINISHED, Answers, Gone, TaskOfRun, judge, questions, state_in
from airflow_trident.tasks.task_states import MAY_HAVE_SUCCEEDED, never_started

_log = logging.getLogger(__name__)


def abandoned(records: Iterable[TxRecord], workers: Sequence[Worker]) -> dict[int, Gone]:
    """Txid -> why no task will continue it by itself, for unfinished transactions.

    :param workers: the live workers of the topology.
    """
    return abandoned_of({"": (records, workers)})[""]


def abandoned_of(topologies: Mapping[str, tuple[Iterable[TxRecord], Sequence[Worker]]]) -> dict[str, dict[int, Gone]]:
    """:func:`abandoned` for several topologies, by name, with one database query."""
    unfinished = {
        name: [record for record in records if record.status in UNFINISHED and not is_alive(workers, record.owner)]
        for name, (records, workers) in topologies.items()
    }
    asked: dict[tuple[str, str], set[str]] = defaultdict(set)
    for record in (record for records in unfinished.values() for record in records):
        for question in questions(record):
            for run_id in question["run_ids"]:
                asked[question["dag_id"], run_id] |= set(question["task_ids"])
    answers = _states(asked)
    found: dict[str, dict[int, Gone]] = {}
    for name, records in unfinished.items():
        live = programs(topologies[name][1])
        gone = ((record.txid, judge(record, answers, live)) for record in records)
        found[name] = {txid: one for txid, one in gone if one is not None}
    return found


def known_abandoned(records: Iterable[TxRecord], workers: Sequence[Worker]) -> dict[int, Gone]:
    """:func:`abandoned` for commands, which also run where there is no database of Airflow: there nothing is."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return abandoned(records, workers)
    except SQLAlchemyError as error:
        _log.warning("Airflow's database does not say whether anybody works on transactions (%s)", type(error).__name__)
        return {}


def standstill(ledger: Ledger, view: LedgerView, deployed: Deployed) -> str:
    """Why a topology stands still until somebody acts, beside what its records say of a FAILED transaction and of the
    coordinator: no worker runs what is deployed on workers, or nobody works on the transaction that all others wait
    for. "" if it does not. The page says so, too."""
    idle = deployed.standstill(view.topology)
    lowest = lowest_uncommitted(view, view.next_txid)
    if idle or lowest is None or view.topology.command is not Command.RUN:
        return idle
    record = ledger.view(lowest).tx
    gone = known_abandoned([record], ledger.workers()).get(lowest) if record is not None else None
    if record is None or gone is None or ledger.view(lowest).tx != record:
        return ""  # it went on while Airflow's database was asked
    return f"nobody works on transaction {lowest}, which is {record.status}: {gone.why}"


def without_event(ledger: Ledger, view: LedgerView) -> Txids:
    """Committed transactions that lack an event of the topology's asset: no task has announced it, or the task has not
    succeeded. Empty if the topology has no asset. See :mod:`airflow_trident.tasks.asset_events`."""
    events = announced_events(ledger)
    if events is None:
        return NO_TXIDS
    found = events.due(view)
    for one in events.announced:
        task = TaskOfRun(one.by.dag_id, one.by.run_id, one.by.task_id, one.by.map_index)
        if state_in(task, _states({(task.dag_id, task.run_id): {task.task_id}})) not in MAY_HAVE_SUCCEEDED:
            found |= one.txids
    return found


def eventless_text(txids: Txids) -> str:
    """For people."""
    return f"committed, and without an event of its asset so far: {txids}; the next task that commits brings it"


def _states(asked: dict[tuple[str, str], set[str]]) -> Answers:
    """In the form of the Execution API: ``task_id``, with ``_index`` for a mapped task, -> state; or why Airflow never
    starts the task, which the Execution API does not tell: see :func:`never_started`."""
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import and_, select

    answers: dict[tuple[str, str], dict[str, Any]] = {run: {} for run in asked}
    if not asked:
        return answers
    one = TaskInstance
    of_run = and_(DagRun.dag_id == one.dag_id, DagRun.run_id == one.run_id)
    wanted = (
        select(one.dag_id, one.run_id, one.task_id, one.map_index, one.state, DagRun.state, DagModel)
        .join(DagRun, of_run)
        .outerjoin(DagModel, DagModel.dag_id == one.dag_id)
        .where(one.dag_id.in_({dag_id for dag_id, _ in asked}), one.run_id.in_({run for _, run in asked}))
    )
    with create_session() as session:
        for dag_id, run_id, task_id, index, state, run_state, dag in session.execute(wanted):
            if task_id in asked.get((dag_id, run_id), ()):
                answers[dag_id, run_id][task_id if index < 0 else f"{task_id}_{index}"] = never_started(
                    state,
                    run_ended=run_state in ("success", "failed"),
                    dag_gone=dag is None or dag.is_stale,
                    dag_paused=dag is not None and dag.is_paused,
                )
    return answers
