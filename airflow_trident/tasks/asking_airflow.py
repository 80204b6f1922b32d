"""Asks Airflow's Execution API, from a task or a trigger, how the tasks of a transaction stand.

What the answers mean is decided in :mod:`airflow_trident.tasks.liveness`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_trident.protocol.decide import Blocked, Wait
from airflow_trident.protocol.records import Owner, TxRecord
from airflow_trident.tasks.liveness import (
    Answers,
    after_asking,
    answered,
    judge,
    live_names,
    questions,
    state_in,
    task_of,
    unless_replayed,
)
from airflow_trident.tasks.task_states import DELETED, NO_ROOM, OVER, RUN_ENDED, STARTABLE, YET_TO_COME
from airflow_trident.tasks.waits import Abandoned, Asker

if TYPE_CHECKING:
    from airflow_trident.ledger.ledger import Ledger

T = TypeVar("T")

_log = logging.getLogger(__name__)


def ask_airflow(ledger: Ledger, *, skip: bool, asker: Asker | None = None) -> Callable[[TxRecord], Abandoned | None]:
    """The look of a task that waits in its worker: see :data:`airflow_trident.tasks.waits.Look`."""
    return lambda record: after_asking(ledger, record, ask(record, asker), skip=skip, asker=asker)


def review_blocked(ledger: Ledger, asker: Asker) -> Callable[[T], T | Wait]:
    """:func:`unless_replayed`, for a task that waits in its worker."""

    def review(decision: T) -> T | Wait:
        if not isinstance(decision, Blocked) or decision.skipped:
            return decision
        record = ledger.view(decision.by).tx
        return unless_replayed(decision, record, None if record is None else ask(record, asker), asker)

    return review


def ask(record: TxRecord, asker: Asker | None = None) -> Answers | None:
    """Ask Airflow, from a worker. None: it does not answer now; the wait then simply goes on."""
    try:
        return answers_about(record, asker)
    except Exception as error:  # noqa: BLE001 - an error tells nothing about the tasks
        reason = f"{type(error).__name__}: {error}"
        _log.warning("Airflow does not say whether anybody works on transaction %d (%s)", record.txid, reason)
        return None


def orphans(ledger: Ledger, records: Iterable[TxRecord]) -> list[int]:
    """The txids of those of these transactions that no task will continue, as Airflow says."""
    answers_by_record = ((record, ask(record)) for record in records)
    return [
        record.txid
        for record, answers in answers_by_record
        if answers is not None and judge(record, answers, live_names(ledger, record)) is not None
    ]


def answers_about(record: TxRecord, asker: Asker | None) -> Answers:
    """Ask Airflow's Execution API, whose client blocks, about the tasks of a transaction."""
    answers = _in_ended_runs(_answers(questions(record)))
    return answers if asker is None else _in_queued_runs(answers, asker)


def _in_ended_runs(answers: Answers) -> Answers:
    """Replace the state of tasks by :data:`RUN_ENDED` if they wait to be started in a run that has ended: a person
    cleared them and not the run. Airflow only says that they have no state."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    count = RuntimeTaskInstance.get_dr_count
    ended = [
        (dag_id, run_id)
        for (dag_id, run_id), states in answers.items()
        if any(state in STARTABLE for state in states.values())
        and all(state in STARTABLE or state in OVER for state in states.values())  # else the run is at work
        and count(dag_id=dag_id, run_ids=[run_id], states=["success", "failed"])
    ]
    return {**answers, **_marked(answers, ended, STARTABLE, RUN_ENDED)}


def _marked(
    answers: Answers, runs: Iterable[tuple[str, str]], states: Collection[str | None], mark: str
) -> dict[tuple[str, str], dict[str, Any]]:
    """The answers about these runs, with `mark` in the place of these states."""
    return {
        run: {task_id: mark if state in states else state for task_id, state in answers[run].items()} for run in runs
    }


def _in_queued_runs(answers: Answers, asker: Asker) -> Answers:
    """Replace the state of tasks by :data:`NO_ROOM` if they wait in a queued run of the asker's DAG, and that DAG has
    as many active runs as it may have; the asker's run is one of them. Airflow only says that they have no state.

    The runs of an Airflow backfill count like others here, although Airflow counts them apart. So the work of a run for
    which there is room may be done twice; the newer attempt then fences the older one.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    dag_id = asker.task.dag_id
    idle = [
        key
        for key, states in answers.items()
        if key[0] == dag_id and key[1] != asker.task.run_id and any(state in YET_TO_COME for state in states.values())
    ]
    count = RuntimeTaskInstance.get_dr_count
    if not idle or not asker.max_active_runs or count(dag_id=dag_id, states=["running"]) < asker.max_active_runs:
        return answers
    queued = [key for key in idle if count(dag_id=dag_id, run_ids=[key[1]], states=["queued"])]
    return {**answers, **_marked(answers, queued, YET_TO_COME, NO_ROOM)}


def state_of_task(owner: Owner) -> str | None:
    """Airflow's state of a task instance, asked from a worker; "deleted" if it does not exist. None: it has no state
    now, or Airflow does not answer."""
    task = task_of(owner)
    if task is None:
        return DELETED
    try:
        question = {"dag_id": task.dag_id, "run_ids": [task.run_id], "task_ids": [task.task_id]}
        return state_in(task, _answers([question]))
    except Exception as error:  # noqa: BLE001 - an error tells nothing about the task
        _log.warning("Airflow does not say how %s stands (%s: %s)", task, type(error).__name__, error)
        return None


def _answers(calls: Iterable[dict[str, Any]]) -> Answers:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    answers: dict[tuple[str, str], dict[str, Any]] = {}
    for question in calls:
        for run, states in answered(question, RuntimeTaskInstance.get_task_states(**question)).items():
            answers.setdefault(run, {}).update(states)
    return answers
