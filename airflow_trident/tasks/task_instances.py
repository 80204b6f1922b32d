"""The states of transactions' tasks from Airflow's metadata database, which commands and the page may read.

Tasks ask the Execution API instead (:mod:`airflow_trident.tasks.liveness`).
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_trident import settings
from airflow_trident.contracts.wing import Beside
from airflow_trident.ledger.announcements import announced_events
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.ledger.workers import Worker, is_alive, programs
from airflow_trident.protocol.diagnosis import Evidence, Stalled
from airflow_trident.protocol.records import LedgerView, TxRecord
from airflow_trident.protocol.txids import NO_TXIDS, Txids
from airflow_trident.tasks.liveness import UNFINISHED, Answers, instance_name, judge, questions, state_in
from airflow_trident.tasks.task_states import (
    MAY_HAVE_SUCCEEDED,
    STUCK_STATES,
    Unstarted,
    never_started,
    stuck,
)
from airflow_trident.tasks.waits import TaskOfRun

_log = logging.getLogger(__name__)


def abandoned(records: Iterable[TxRecord], workers: Sequence[Worker]) -> dict[int, Stalled]:
    """Txid -> why no task will continue it by itself, for unfinished transactions.

    :param workers: the live workers of the topology.
    """
    return abandoned_of({"": (records, workers)})[""]


def abandoned_of(
    topologies: Mapping[str, tuple[Iterable[TxRecord], Sequence[Worker]]],
) -> dict[str, dict[int, Stalled]]:
    """:func:`abandoned` for several topologies, by name, with one database query."""
    unfinished = {
        name: [record for record in records if record.status in UNFINISHED and not is_alive(workers, record.owner)]
        for name, (records, workers) in topologies.items()
    }
    tasks_by_run: dict[tuple[str, str], set[str]] = defaultdict(set)
    changed_ms: dict[tuple[str, str], int] = defaultdict(int)
    for record in (record for records in unfinished.values() for record in records):
        for question in questions(record):
            for run_id in question["run_ids"]:
                run = question["dag_id"], run_id
                tasks_by_run[run] |= set(question["task_ids"])
                changed_ms[run] = max(changed_ms[run], *record.times_ms.values(), 0)
    answers = _states(tasks_by_run, changed_ms)
    abandoned_by_topology: dict[str, dict[int, Stalled]] = {}
    for name, records in unfinished.items():
        live = programs(topologies[name][1])
        judgements = ((record.txid, judge(record, answers, live)) for record in records)
        abandoned_by_topology[name] = {txid: stalled for txid, stalled in judgements if stalled is not None}
    return abandoned_by_topology


def known_abandoned(records: Iterable[TxRecord], workers: Sequence[Worker]) -> dict[int, Stalled]:
    """:func:`abandoned` for commands, which also run where there is no database of Airflow: there nothing is."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return abandoned(records, workers)
    except SQLAlchemyError as error:
        _log.warning("Airflow's database does not say whether anybody works on transactions (%s)", type(error).__name__)
        return {}


def evidence_of(ledger: Ledger, beside: Beside) -> Evidence:
    """All that commands see of a topology: its ledger, the records of wings, and Airflow's database."""
    view, outcome = ledger.view(0), ledger.coordinator()
    records = {record.txid: record for record in ledger.transactions(view.pointer.committed + 1)}
    stalled = known_abandoned(records.values(), ledger.workers())
    if stalled:  # a transaction that changed while Airflow's database was asked is not stalled
        now = {record.txid: record for record in ledger.records(sorted(stalled))}
        stalled = {txid: why for txid, why in stalled.items() if now.get(txid) == records[txid]}
    return Evidence(
        view=view, outcome=outcome, records=records, stalled=stalled, workers=beside.standstill(view.topology)
    )


def without_event(ledger: Ledger, view: LedgerView) -> Txids:
    """Committed transactions that lack an event of the topology's asset: no task has announced it, or the task has not
    succeeded. Empty if the topology has no asset. See :mod:`airflow_trident.tasks.asset_events`."""
    events = announced_events(ledger)
    if events is None:
        return NO_TXIDS
    missing = events.due(view)
    for announcement in events.announced:
        task = TaskOfRun(
            announcement.by.dag_id, announcement.by.run_id, announcement.by.task_id, announcement.by.map_index
        )
        if state_in(task, _states({(task.dag_id, task.run_id): {task.task_id}}, {})) not in MAY_HAVE_SUCCEEDED:
            missing |= announcement.txids
    return missing


def eventless_text(txids: Txids) -> str:
    """For people."""
    return f"committed, and without an event of its asset so far: {txids}; the next task that commits brings it"


def _states(tasks_by_run: Mapping[tuple[str, str], set[str]], changed_ms: Mapping[tuple[str, str], int]) -> Answers:
    """The state of each task; or why Airflow does not start it, which the Execution API does not tell: see
    :func:`never_started` and :func:`stuck`.

    :param changed_ms: when the transactions of a run last changed.
    """
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import and_, select

    answers: dict[tuple[str, str], dict[str, Any]] = {run: {} for run in tasks_by_run}
    if not tasks_by_run:
        return answers
    instance = TaskInstance
    of_run = and_(DagRun.dag_id == instance.dag_id, DagRun.run_id == instance.run_id)
    wanted = (
        select(
            *(instance.dag_id, instance.run_id, instance.task_id, instance.map_index, instance.state, instance.pool),
            *(
                instance.scheduled_dttm,
                instance.queued_dttm,
                instance.updated_at,
                DagRun.state.label("run_state"),
                DagModel,
            ),
        )
        .join(DagRun, of_run)
        .outerjoin(DagModel, DagModel.dag_id == instance.dag_id)
        .where(
            instance.dag_id.in_({dag_id for dag_id, _ in tasks_by_run}),
            instance.run_id.in_({run for _, run in tasks_by_run}),
        )
    )
    with create_session() as session:
        tasks = [row for row in session.execute(wanted) if (row.dag_id, row.run_id) in tasks_by_run]
        places = _Places.of(session, {task.pool for task in tasks if task.state in STUCK_STATES})
        for task in tasks:
            run = task.dag_id, task.run_id
            if task.task_id not in tasks_by_run[run]:
                continue
            dag = task.DagModel
            state = never_started(
                None if task.state is None else str(task.state),
                run_ended=task.run_state in ("success", "failed"),
                dag_gone=dag is None or dag.is_stale,
                dag_paused=dag is not None and dag.is_paused,
            )
            if state in STUCK_STATES:
                before = None if state else _held_up_by(tasks, task)
                unstarted = places.unstarted(task, before, changed_ms.get(run, 0))
                state = stuck(unstarted, settings.number(settings.STUCK_AFTER_S, least=0))
            answers[run][instance_name(task.task_id, task.map_index)] = state
    return answers


def _held_up_by(tasks: Sequence[Any], task: Any) -> Any:
    """A task of the same run that has not ended and that Airflow does not run either: the probable reason why `task`
    has no state. None if there is none."""
    waiting = [
        other
        for other in tasks
        if other.state in ("deferred", "scheduled", "queued")
        and (other.dag_id, other.run_id) == (task.dag_id, task.run_id)
        and other.map_index in (-1, task.map_index)
    ]
    return min(waiting, key=lambda other: str(other.task_id), default=None)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where tasks wait for Airflow: pools in which deferred tasks hold slots, and whether a triggerer is alive."""

    counting_deferred: frozenset[str]
    triggerer: bool

    @classmethod
    def of(cls, session: Any, pools: Collection[str]) -> _Places:
        from airflow.jobs.job import most_recent_job
        from airflow.models.pool import Pool
        from sqlalchemy import select

        if not pools:
            return cls(frozenset(), True)
        counting = select(Pool.pool).where(Pool.pool.in_(pools), Pool.include_deferred)
        job = most_recent_job("TriggererJob", session=session)
        return cls(frozenset(session.scalars(counting)), job is not None and job.is_alive())

    def unstarted(self, task: Any, before: Any, changed_ms: int) -> Unstarted:
        entered = {"scheduled": task.scheduled_dttm, "queued": task.queued_dttm}.get(task.state) or task.updated_at
        since_s = max(changed_ms / 1000, entered.timestamp() if entered is not None else 0.0)
        return Unstarted(
            state=None if task.state is None else str(task.state),
            for_s=time.time() - since_s,
            pool=task.pool,
            counts_deferred=task.pool in self.counting_deferred,
            run_queued=task.run_state == "queued",
            before=f"task '{before.task_id}'" if before is not None else "",
            before_state=str(before.state) if before is not None else "",
            triggerer=self.triggerer,
        )
