"""What a process of the simulated Airflow may come to: which errors, waits and ends are right."""

from __future__ import annotations

import traceback

from airflow.sdk.exceptions import AirflowException, AirflowRescheduleException, AirflowSkipException

from airflow_trident.errors import BlockedError, ConfigurationError, TransitionError, TridentError
from airflow_trident.protocol.records import Status, TxRecord
from tests.simulation.jobs import expected, expected_text
from tests.simulation.shell import DAG_ID, OF_RUN, OVER, VERBS, Run, Task
from tests.simulation.world import World


def seen_by(world: World, run: Run) -> object:
    """All that decides whether there is something to do for a run, but for its own tasks."""
    judge, others = world.judge, (one for one in world.airflow.runs if one is not run)
    states = [(one.queued, one.over, [task.state for task in one.tasks]) for one in others]
    return judge.next_txid, dict(judge.records), world.total, states


def judge_ready(world: World, task: Task, became: str, before: object) -> None:
    """A ready sensor lets a run go on only when something waits: if nothing has changed since, its coordinator finds
    that. What is FAILED the run leaves to another one; and a coordinator that was renamed knows no claims of its run.

    :param before: what could be seen when the process began.
    """
    run, judge = task.run, world.judge
    seen = seen_by(world, run)
    lowest = judge.records.get(judge.pointer.committed + 1)
    failed = lowest is not None and lowest.status is Status.FAILED
    if task.verb == "ready":
        run.let_on = seen if became == "success" and seen == before else None
        has = [one.txid for one in judge.records.values() if one.claim.run_id == run.run_id]
        if became == "up_for_reschedule" and run.clear_number and has and seen == before:
            judge.broken("P12", f"{task.name} waits for data, and its run was cleared and has {has}")
        if became == "up_for_reschedule" and world.random.random() < 0.3:
            task.state = "skipped"  # it has waited for long enough
    elif run.let_on == seen == before and not run.clear_number and not failed:
        judge.broken("P9", f"the ready sensor of {run.run_id!r} let it go on, and nothing waits")


def waits_for_itself(world: World, task: Task) -> str:
    """At the end of a history: what all others wait for, if it is an attempt of a task behind this one that has not
    begun again, or if it is left to a run that is queued until one like this has ended; otherwise ""."""
    judge = world.judge
    lowest = judge.records.get(judge.pointer.committed + 1)
    if not world.calm or lowest is None:
        return ""
    queued = _left_to_queued(world, task, lowest)
    if queued or lowest.status is not Status.PROCESSING or lowest.attempt < 0:
        return queued
    owner, order = lowest.owner, list(VERBS.values())
    behind = [
        one
        for one in task.run.live()
        if (one.task_id, one.map_index) == (owner.task_id, owner.map_index)
        and order.index(one.verb) > order.index(task.verb)
        and (task.verb in OF_RUN or one.map_index == task.map_index)
    ]
    waits = owner.run_id == task.run.run_id and behind and behind[0].state in (None, "up_for_retry")
    return f"attempt {lowest.attempt} of {lowest.txid} by {behind[0].name}" if waits else ""


def _left_to_queued(world: World, task: Task, lowest: TxRecord) -> str:
    """What is to be processed or committed by a run for which there is no room."""
    staged = lowest.status is Status.PROCESSED
    if (
        not (staged or lowest.status is Status.PROCESSING)
        or task.run.dag_id != DAG_ID
        or world.airflow.has_room(DAG_ID)
    ):
        return ""
    by = lowest.claim if staged or lowest.attempt < 0 else lowest.owner
    claimed = [run for run in world.airflow.runs if run.queued and run.run_id == lowest.claim.run_id]
    left = [run for run in claimed if run.run_id == by.run_id and run.dag_id == by.dag_id == DAG_ID]
    if left and _has_ended(left[0], lowest):
        return ""  # the run does nothing for it when it begins: a person, or the next transaction's turn, decides
    return f"{lowest.status} {lowest.txid} of {left[0].run_id}, which is queued" if left else ""


def _has_ended(run: Run, record: TxRecord) -> bool:
    """Are its own tasks over that are to go on with the transaction, although others of the run were cleared? Behind an
    emitter that is over, but did not succeed, no committer starts. Those that a deploy removed come again."""
    own = [task for task in run.live() if task.map_index == record.claim.map_index]
    emitters = [task.state for task in own if task.verb == "emit"]
    states = [*emitters, *(task.state for task in own if task.verb == "commit")]
    if record.status is Status.PROCESSING and emitters and "success" not in emitters:
        states = emitters
    return bool(states) and OVER.issuperset(states)


def judge_error(world: World, task: Task, error: BaseException) -> None:
    """:raises Broken: no interleaving may lead to this error."""
    if isinstance(error, AirflowSkipException | AirflowRescheduleException):
        return
    cause = error if isinstance(error, TridentError) else error.__cause__
    if isinstance(cause, BlockedError):
        return
    if task.verb == "drain" and type(cause) is TridentError:
        return  # it waited long enough for transactions that others hold
    if isinstance(cause, ConfigurationError) and "is not a txid" in cause.message:
        return  # a deploy changed how many transactions a run takes, and the run's coordinator has not run again
    if isinstance(cause, TridentError):
        if isinstance(cause, TransitionError) and "never began" in cause.message:
            if not world.judge.lives:
                world.judge.broken("P11", f"{task.name}: {cause}")
            return
        expected(world, task.verb, cause, also=world.may_refuse)
    elif isinstance(error, AirflowException | SystemExit):
        expected_text(world, str(error))
    else:
        place = traceback.extract_tb(error.__traceback__)[-1]
        world.judge.broken("P11", f"{task.name}: {type(error).__name__}: {error} ({place.filename}:{place.lineno})")
