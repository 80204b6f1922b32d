"""Airflow's states of tasks, and states of our own for tasks that Airflow has no state of and never starts. Pure."""

from __future__ import annotations

from dataclasses import dataclass

DELETED = "deleted"
NOT_BEGUN = frozenset({None, "up_for_retry", "up_for_reschedule"})
"""In these states a task only starts when its upstream tasks are done."""
YET_TO_COME = NOT_BEGUN | {"removed", DELETED}
"""Of tasks of a queued run: when it has begun, the tasks that a deploy put in their place look after the work."""
STARTABLE = NOT_BEGUN | {"scheduled"}
"""In these states a task is where the scheduler starts it, if it looks at its run at all."""

STUCK_STATES = frozenset({None, "scheduled", "queued"})
"""In these states a task waits for nothing but Airflow."""

NO_ROOM = "in a run that is queued until a run of its DAG has ended"
"""Not a state of Airflow: see :func:`airflow_trident.tasks.liveness.answers_about`."""
NOT_STARTED = "not started: "
RUN_ENDED = f"{NOT_STARTED}its run has ended"
DAG_GONE = f"{NOT_STARTED}its DAG is in no DAG file any more"
DAG_PAUSED = f"{NOT_STARTED}its DAG is paused"
"""Not states of Airflow: see :func:`never_started`, and :func:`stuck`."""

OVER = frozenset(
    {"success", "failed", "upstream_failed", "skipped", "removed", DELETED, RUN_ENDED, DAG_GONE, DAG_PAUSED}
)
"""In these states a task does nothing more by itself. Success, too: a person may have marked the task so."""

MAY_HAVE_SUCCEEDED = frozenset({"success", "removed", DELETED})
"""A task in these states may have succeeded. One in another state has not, or was cleared since."""


def is_over(state: str | None) -> bool:
    """Does a task in this state do nothing more by itself, or has Airflow not started it for too long?"""
    return state in OVER or (state is not None and state.startswith(NOT_STARTED))


_CURES = {DAG_PAUSED: "Unpause that DAG", DAG_GONE: "Bring that DAG back", DELETED: "", "removed": ""}


def never_started(state: str | None, *, run_ended: bool, dag_gone: bool, dag_paused: bool) -> str | None:
    """The state of a task, or why the scheduler does not start it: that looks only at running and queued runs, and at
    DAGs that are in a DAG file and not paused. All others keep their state.

    :param dag_gone: Airflow calls such a DAG stale. What is scheduled already is started even so.
    """
    if dag_gone and state in NOT_BEGUN:
        return DAG_GONE
    if state in STARTABLE and (run_ended or dag_paused):
        return RUN_ENDED if run_ended else DAG_PAUSED
    return state


@dataclass(frozen=True, slots=True, kw_only=True)
class Unstarted:
    """What Airflow's database says of a task that is not running, and of what it may wait for.

    :param for_s: seconds since its state, or that of its transaction, last changed.
    :param pool: the name of its pool; `counts_deferred`: a deferred task holds a slot there.
    :param run_queued: its run has not begun.
    :param before: the task that must end first; empty if none is known.
    :param triggerer: is a triggerer alive?
    """

    state: str | None
    for_s: float
    pool: str
    counts_deferred: bool = False
    run_queued: bool = False
    before: str = ""
    before_state: str = ""
    triggerer: bool = True


def stuck(task: Unstarted, limit_s: float) -> str | None:
    """The state of a task, or why it counts as never started: Airflow leaves it where it is for longer than `limit_s`.
    A task that waits for a time that a person chose (a retry, a reschedule) is not stuck."""
    if task.state not in STUCK_STATES or task.for_s < limit_s:
        return task.state
    since = f"for {task.for_s / 60:.0f} minutes"
    if task.state == "queued":
        return f"{NOT_STARTED}queued {since}: no worker of its executor takes it"
    if task.state == "scheduled":
        also = ", where deferred tasks hold slots" if task.counts_deferred else ""
        return f"{NOT_STARTED}scheduled {since}: pool '{task.pool}'{also} or a limit of its DAG or executor has no slot"
    if task.run_queued:
        return f"{NOT_STARTED}its run has been queued {since}: as many runs of its DAG are active as may be"
    if task.before_state == "deferred" and not task.triggerer:
        return f"{NOT_STARTED}{task.before} is deferred, and no triggerer runs"
    if task.before:
        return f"{NOT_STARTED}{task.before} has to end first, {since}: it is {task.before_state}"
    return f"{NOT_STARTED}without a state {since}: a task before it, or its run's predecessor, has to end first"


def cure_of(state: str | None) -> str:
    """What a person can do in Airflow about a task that is over; "" if that is nothing."""
    if state not in OVER and is_over(state):
        return "Give it what it lacks (a slot, a worker, a triggerer, the end of the run before)"
    return _CURES.get(state or "", "Clear that task")
