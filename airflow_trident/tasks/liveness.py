"""Does a task still work on a transaction? The ledger cannot know, since a killed worker writes nothing. Airflow does.

A transaction's claim names the DAG run and its tasks. The record names the task that began the current attempt or
commit, which may be another one during a replay. Tasks ask Airflow's Execution API for the states of all of them
(:mod:`airflow_trident.tasks.asking_airflow`), commands and the page its database
(:mod:`airflow_trident.tasks.task_instances`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from airflow_trident.errors import FencedError, TransitionError
from airflow_trident.protocol.decide import Blocked, Wait
from airflow_trident.protocol.records import NO_ATTEMPT, Owner, Status, TxRecord
from airflow_trident.tasks.task_states import (
    DAG_PAUSED,
    DELETED,
    NO_ROOM,
    OVER,
    cure_of,
    is_over,
)
from airflow_trident.tasks.waits import COMMIT, EMIT, Abandoned, Asker, TaskOfRun

if TYPE_CHECKING:
    from airflow_trident.ledger.ledger import Ledger
    from airflow_trident.protocol.diagnosis import Stalled

T = TypeVar("T")

UNFINISHED = frozenset({Status.PROCESSING, Status.PROCESSED, Status.COMMITTING})
"""A transaction in these statuses is somebody's work. One in another is done, or a person decides about it."""


Answers: TypeAlias = Mapping[tuple[str, str], Mapping[str, Any]]
"""(dag_id, run_id) -> {:func:`instance_name`: state or None}; what was asked and is not there is DELETED."""


def claimed_by(record: TxRecord, key: str) -> TaskOfRun | None:
    """The task of the claim for `key` (:data:`EMIT`, :data:`COMMIT`), if a run has the claim."""
    claim = record.claim
    task_id = claim.task_ids.get(key)
    return TaskOfRun(claim.dag_id, claim.run_id, task_id, claim.map_index) if claim.dag_id and task_id else None


def owned_by(record: TxRecord) -> TaskOfRun | None:
    """The task that began the current attempt or commit; None if it was a command or program."""
    return task_of(record.owner)


def began_by(owner: Owner) -> Callable[[TxRecord], bool]:
    """Did this task, perhaps in an earlier try, begin the attempt? It waits now, so nobody works on the attempt.

    :param owner: the task as an owner in records.
    """
    return lambda record: record.owner.is_same_task(owner)


def task_of(owner: Owner) -> TaskOfRun | None:
    return TaskOfRun(owner.dag_id, owner.run_id, owner.task_id, owner.map_index) if owner.is_task else None


def questions(record: TxRecord) -> list[dict[str, Any]]:
    """Arguments of ``RuntimeTaskInstance.get_task_states``: one call for each run, none if no task is named."""
    tasks_by_run: dict[tuple[str, str], set[str]] = {}
    for worker in (claimed_by(record, EMIT), claimed_by(record, COMMIT), owned_by(record)):
        if worker is not None:
            tasks_by_run.setdefault((worker.dag_id, worker.run_id), set()).add(worker.task_id)
    return [
        {"dag_id": dag_id, "run_ids": [run_id], "task_ids": together}
        for (dag_id, run_id), task_ids in tasks_by_run.items()
        for together in _told_apart(sorted(task_ids))
    ]


def _told_apart(task_ids: Sequence[str]) -> list[list[str]]:
    """The tasks for one question each: Airflow's answer has one name for task ``a_1`` and for the mapped task ``a``."""
    alone = [task_id for task_id in task_ids if any(_mapped(task_id, other) for other in task_ids)]
    return [[task_id for task_id in task_ids if task_id not in alone], *([task_id] for task_id in alone)]


def _mapped(name: str, task_id: str) -> str:
    """The map index of the task's instance that Airflow's answer calls `name`; "" if `name` is no such instance."""
    index = name.removeprefix(f"{task_id}_")
    return index if index != name and index.isdecimal() else ""


def instance_name(task_id: str, map_index: int) -> str:
    """The name of a task instance in :data:`Answers`. No task id has a bracket."""
    return task_id if map_index < 0 else f"{task_id}[{map_index}]"


def answered(question: Mapping[str, Any], answer: Mapping[str, Any]) -> Answers:
    """An answer of ``get_task_states``, in the form for :func:`judge`."""
    (run_id,) = question["run_ids"]
    states = answer.get(run_id) or {}
    answers: dict[str, Any] = {}
    for task_id in question["task_ids"]:
        instances = {
            name: int(_mapped(name, task_id) or -1) for name in states if name == task_id or _mapped(name, task_id)
        }
        answers |= {instance_name(task_id, index): states[name] for name, index in instances.items()} or {
            task_id: DELETED
        }
    return {(question["dag_id"], run_id): answers}


def judge(record: TxRecord, answers: Answers, live: Collection[str] | None = None) -> Stalled | None:
    """Is the transaction abandoned, by the states of its tasks and the live workers? In doubt it is not, unless its
    batch is staged: taking over a commit is always safe.

    :param live: names of the programs among the live workers of the topology (:attr:`Owner.worker`); None: not known.
    """
    from airflow_trident.protocol.diagnosis import Stalled

    program = record.owner.worker if not record.owner.is_task and live is not None else ""
    if _is_at_program(record):
        disconnected = program and live is not None and program not in live
        return Stalled(f"{record.owner} is no longer connected to the ledger") if disconnected else None
    if record.status is Status.COMMITTING and program and live is not None and program in live:
        return None
    workers = _workers(record, answers)
    if not workers:
        # Its record does not say who is to go on with it: one of the programs that are at work, or, for a coordinator
        # without tasks of ours behind it, whatever its run starts elsewhere.
        processing, unattempted = record.status is Status.PROCESSING, not record.invalidated
        if processing and (live or (unattempted and (live is None or record.claim.dag_id))):
            return None
        if processing and unattempted:
            return Stalled("it was not attempted, and the program that began it is not connected to the ledger")
        return Stalled("no task of Airflow is to commit it")
    states = [(worker, state_in(worker, answers)) for worker in workers]
    if any(not is_over(state) for _, state in states):
        return None
    worker, state = next((pair for pair in states if pair[1] == DAG_PAUSED), states[-1])
    return Stalled(f"{worker} is {state}", cure_of(state))


def _is_at_program(record: TxRecord) -> bool:
    """Does a command or a program process it? Airflow does not know about those."""
    begun = record.attempt != NO_ATTEMPT and not record.invalidated
    return record.status is Status.PROCESSING and begun and not record.owner.is_task


def _workers(record: TxRecord, answers: Answers) -> list[TaskOfRun]:
    """The tasks that are to go on with it: the one of its claim, and the one that began the attempt or commit."""
    named, owner = claimed_by(record, COMMIT), owned_by(record)
    if record.status in (Status.PROCESSING, Status.FAILED):
        emit = claimed_by(record, EMIT)
        if emit is None or state_in(emit, answers) != "success":
            named = emit  # else the committer processes what is unprocessed
    elif record.status is not Status.COMMITTING:
        owner = None
    return [worker for worker in (named, owner) if worker is not None]


def left_to_committer(record: TxRecord, answers: Answers) -> bool:
    """Is a transaction unprocessed although its emitter succeeded, or was marked so by a person?"""
    emit, owner = claimed_by(record, EMIT), owned_by(record)
    if record.status is not Status.PROCESSING or emit is None or state_in(emit, answers) != "success":
        return False
    return record.attempt == NO_ATTEMPT or (owner is not None and state_in(owner, answers) in OVER)


def held_up_by_asker(record: TxRecord, answers: Answers, asker: Asker) -> Abandoned | None:
    """The task that is to go on with the transaction only starts after the asking task, or its run, has ended. Either
    it comes after the asking task, and a person cleared both; or its run was cleared and is queued, because the DAG has
    as many active runs as it may have. Waiting for it would never end."""
    owner, processing = owned_by(record), record.status is Status.PROCESSING
    if _is_at_program(record) or (record.status is Status.COMMITTING and owner is None):
        return None
    states = [(worker, state_in(worker, answers)) for worker in _workers(record, answers)]
    unfinished = [(worker, state) for worker, state in states if state not in OVER]
    held_up = [(worker, state) for worker, state in unfinished if asker.holds_up(worker, state)]
    attempt_is_held = processing and record.attempt != NO_ATTEMPT and any(worker == owner for worker, _ in held_up)
    if not held_up or (len(held_up) < len(unfinished) and not attempt_is_held):
        return None
    worker, state = held_up[-1]
    return Abandoned(record.txid, f"{worker} {'comes after this task' if state != NO_ROOM else f'is {state}'}")


def unless_replayed(decision: T, record: TxRecord | None, answers: Answers | None, asker: Asker | None) -> T | Wait:
    """A task that a FAILED transaction blocks waits instead if a task that is to replay the transaction was cleared and
    has not ended. So it is enough to clear the failed run, whichever of its tasks begins first.

    :param record: of the transaction that blocks.
    :param answers: Airflow's; None: it does not say now.
    :param asker: the task that waits; None: not known, so it might wait for itself.
    """
    if not isinstance(decision, Blocked) or decision.skipped or record is None or answers is None or asker is None:
        return decision
    for worker in _workers(record, answers) if record.status is Status.FAILED else ():
        state = state_in(worker, answers)
        if worker != asker.task and state not in OVER and not asker.holds_up(worker, state):
            return Wait(on=record.txid, why=f"transaction {record.txid} is FAILED, and {worker} is to replay it")
    return decision


def state_in(worker: TaskOfRun, answers: Answers) -> str | None:
    """Airflow's name of the state; None: the task has no state now."""
    states = answers.get((worker.dag_id, worker.run_id), {})
    for name in (instance_name(worker.task_id, worker.map_index), worker.task_id):
        if name in states:
            state = states[name]
            return None if state is None else str(getattr(state, "value", state))
    return DELETED


def note_gone(ledger: Ledger, record: TxRecord, stalled: Stalled, *, skip: bool) -> Abandoned | None:
    """Set the transaction to FAILED (or SKIPPED), as the killed task could not.

    A staged batch, or one that the next sweep emits again (`invalidated`), needs no task of its own. It is not changed;
    :class:`Abandoned` tells the next commit sweep to include it.
    """
    if record.status is not Status.PROCESSING or record.invalidated:
        return Abandoned(record.txid, stalled.why)
    with suppress(FencedError, TransitionError):  # its status changed meanwhile: somebody works on it
        reason = f"on_failure=skip: {stalled.why}" if skip else ""
        ledger.fail(record.txid, record.attempt, f"nobody works on it any more: {stalled.why}", skip=reason)
    return None


def live_names(ledger: Ledger, record: TxRecord) -> frozenset[str] | None:
    """The programs connected to the ledger now; None if the record leaves it to tasks, or to nobody."""
    from airflow_trident.ledger.workers import programs

    unclaimed = not record.claim.dag_id and not questions(record)
    begun_by_nobody = unclaimed and record.attempt == NO_ATTEMPT and not record.invalidated
    return programs(ledger.workers()) if record.owner.worker or begun_by_nobody else None


def commit_left(ledger: Ledger, record: TxRecord) -> Abandoned | None:
    """A begun commit that the next sweep takes over, no matter what Airflow says about its task."""
    from airflow_trident.runtime.waiting import is_left_to_its_committer

    if record.status is not Status.COMMITTING or is_left_to_its_committer(ledger, record):
        return None
    return Abandoned(record.txid, f"{record.owner or 'who began its commit'} is not connected to the ledger any more")


def lowest_left_alone(ledger: Ledger) -> TxRecord | None:
    """The transaction that all others wait for, unless the owner in its record is connected to the ledger."""
    from airflow_trident.ledger.workers import is_alive

    view = ledger.view(0)
    lowest = view.lowest_uncommitted(view.next_txid)
    record = None if lowest is None else ledger.view(lowest).tx
    return None if record is None or is_alive(ledger.workers(), record.owner) else record


def left_to_anybody(ledger: Ledger, record: TxRecord, answers: Answers | None, asker: Asker | None) -> Abandoned | None:
    """Is the transaction that all others wait for a reason to let a run begin, or go on? If it is staged, or lost its
    batch, and nobody is left to commit it; if nobody is left to process it: the run then writes FAILED and is red; or
    if the asking task holds up the task that is to go on with it, also one that is to replay it where it is FAILED: the
    run then only ends, and makes room. Writes nothing.

    :param record: from :func:`lowest_left_alone`.
    :param answers: Airflow's; None: it does not say now.
    :param asker: the task that waits; None: there is none.
    """
    if record.status in (Status.PROCESSING, Status.FAILED) and not record.invalidated:
        if answers is None:
            return None
        held_up = held_up_by_asker(record, answers, asker) if asker is not None else None
        processing = held_up is None and record.status is Status.PROCESSING
        stalled = judge(record, answers, live_names(ledger, record)) if processing else None
        return held_up if stalled is None else Abandoned(record.txid, stalled.why)
    return after_asking(ledger, record, answers, skip=False, asker=asker)  # it writes about none of these


def after_asking(
    ledger: Ledger, record: TxRecord, answers: Answers | None, *, skip: bool, asker: Asker | None
) -> Abandoned | None:
    """What a look comes to, of every task that waits, in a worker or in the triggerer.

    :param record: what holds everybody up.
    :param answers: Airflow's; None: it does not say now.
    :param skip: a transaction whose tasks are gone is SKIPPED, else FAILED.
    :param asker: the task that waits, if that is known.
    :return: None also for a FAILED one, which a person decides about: whoever waits ends with that. None, too, if the
        wait is of a task that commits nothing: what is left is not committed by its end.
    """
    if record.status not in UNFINISHED:
        return None
    orphan = _left(ledger, record, answers, skip=skip, asker=asker)
    return orphan if asker is None or asker.commits else None


def _left(
    ledger: Ledger, record: TxRecord, answers: Answers | None, *, skip: bool, asker: Asker | None
) -> Abandoned | None:
    if answers is not None:
        held_up = held_up_by_asker(record, answers, asker) if asker is not None else None
        if held_up is not None:
            return held_up
        stalled = judge(record, answers, live_names(ledger, record))
        if stalled is not None:
            return note_gone(ledger, record, stalled, skip=skip)
    return commit_left(ledger, record)
