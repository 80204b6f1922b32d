"""Airflow's states of tasks, and states of our own for tasks that Airflow has no state of and never starts. Pure."""

from __future__ import annotations

DELETED = "deleted"
NOT_BEGUN = frozenset({None, "up_for_retry", "up_for_reschedule"})
"""In these states a task only starts when its upstream tasks are done."""
YET_TO_COME = NOT_BEGUN | {"removed", DELETED}
"""Of tasks of a queued run: when it has begun, the tasks that a deploy put in their place look after the work."""
STARTABLE = NOT_BEGUN | {"scheduled"}
"""In these states a task is where the scheduler starts it, if it looks at its run at all."""

NO_ROOM = "in a run that is queued until a run of its DAG has ended"
"""Not a state of Airflow: see :func:`airflow_trident.tasks.liveness.answers_about`."""
RUN_ENDED = "not started: its run has ended"
DAG_GONE = "not started: its DAG is in no DAG file any more"
DAG_PAUSED = "not started: its DAG is paused"
"""Not states of Airflow: see :func:`never_started`."""

OVER = frozenset(
    {"success", "failed", "upstream_failed", "skipped", "removed", DELETED, RUN_ENDED, DAG_GONE, DAG_PAUSED}
)
"""In these states a task does nothing more by itself. Success, too: a person may have marked the task so."""

MAY_HAVE_SUCCEEDED = frozenset({"success", "removed", DELETED})
"""A task in these states may have succeeded. One in another state has not, or was cleared since."""

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


def cure_of(state: str | None) -> str:
    """What a person can do in Airflow about a task that is over; "" if that is nothing."""
    return _CURES.get(state or "", "Clear that task")
