"""A simulated Airflow: DAG runs, task instances, tries, clears, deploys. Its tasks run the production code of the
operators. This module only decides which task runs when, in which try, and what its outcome means."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException, AirflowSkipException

from airflow_trident import (
    TridentBackfillOperator,
    TridentCommitterOperator,
    TridentCoordinatorOperator,
    TridentDrainOperator,
    TridentEmitterOperator,
    TridentReadySensor,
    TridentTurnSensor,
    trident_transaction,
)
from airflow_trident.topology.topology import Topology

DAG_ID, DRAINED, AGAIN = "plays", "drained", "again"
OVER = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})
VERBS = {
    TridentReadySensor: "ready",
    TridentCoordinatorOperator: "coordinate",
    TridentEmitterOperator: "emit",
    TridentTurnSensor: "turn",
    TridentCommitterOperator: "commit",
    TridentDrainOperator: "drain",
    TridentBackfillOperator: "backfill",
}
BEHIND = {
    "ready": None,
    "coordinate": "ready",
    "emit": "coordinate",
    "turn": "emit",
    "commit": "turn",
    "drain": None,
    "backfill": None,
}
"""Verb -> the verb before it; without a turn sensor the commit comes after the emitter, without a ready sensor the
coordinator is the first."""
OF_RUN = ("ready", "coordinate")
"""These come before all transactions of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deploy:
    """The present DAG files: verb -> operator."""

    max_transactions: int
    retries: int
    group_id: str
    operators: Mapping[str, Any]

    def behind(self, verb: str) -> str | None:
        before = BEHIND[verb]
        return before if before is None or before in self.operators else BEHIND[before]


@functools.cache
def deployed(topology: Topology, *, ready: bool, **arguments: Any) -> Deploy:
    """Histories with the same arguments share the operators: building DAGs took a twelfth of a history's time.

    :param ready: with a ready sensor.
    :param arguments: `retries`, `max_transactions`, `group_id`, and all other arguments of :func:`trident_transaction`.
    """
    common = {"topology": topology, "engine": "local", "retries": arguments["retries"]}
    on_failure, retention = arguments["on_failure"], arguments["retention"]
    with DAG(DAG_ID, schedule=None) as dag:
        group = trident_transaction(topology, engine="local", deferrable=False, turn_wait_s=4, **arguments)
        if ready:
            TridentReadySensor(task_id="ready", topology=topology, retries=arguments["retries"]) >> group
    with DAG(DRAINED, schedule=None) as drained:
        TridentDrainOperator(
            task_id="drain", on_failure=on_failure, retention=retention, max_pending=arguments["max_pending"], **common
        )
    with DAG(AGAIN, schedule=None) as again:
        TridentBackfillOperator(task_id="backfill", **common)
    return Deploy(
        max_transactions=arguments["max_transactions"],
        retries=arguments["retries"],
        group_id=arguments["group_id"],
        operators={VERBS[type(task)]: task for one in (dag, drained, again) for task in one.tasks},
    )


@dataclass(eq=False, slots=True)
class Task:
    """A task instance. `process`: the one whose outcome counts; None if none runs, or if it is known to be dead."""

    run: Run
    verb: str
    task_id: str
    map_index: int
    max_tries: int
    state: str | None = None
    try_number: int = 0
    again: bool = False
    process: object | None = None
    xcom: Any = None

    @property
    def name(self) -> str:
        return f"{self.run.run_id}/{self.task_id}" + (f"[{self.map_index}]" if self.map_index >= 0 else "")


@dataclass(eq=False, slots=True)
class Run:
    """A DAG run and its task instances. `let_on`: what its ready sensor may have seen when it let the run go on."""

    dag_id: str
    run_id: str
    run_after: datetime
    tasks: list[Task] = field(default_factory=list)
    xcoms: dict[tuple[str, int, str], Any] = field(default_factory=dict)
    over: bool = False
    queued: bool = False
    clear_number: int = 0
    let_on: object = None

    def live(self) -> list[Task]:
        return [task for task in self.tasks if task.state != "removed"]

    def queue(self) -> None:
        """A run that has ended goes on, when there is room for it."""
        self.queued, self.over = self.queued or self.over, False


def _poke_once(sensor: TridentReadySensor, context: Any) -> None:
    """A sensor in mode reschedule."""
    if not sensor.poke(context):
        raise AirflowRescheduleException(datetime.now(UTC))


class Airflow:
    """The knowledge of the scheduler and the Execution API. It takes no steps, because Airflow itself is never at
    fault."""

    def __init__(self, topology: Topology, deploy: Deploy, *, max_active_runs: int) -> None:
        self.topology = topology
        self.max_active_runs = max_active_runs
        self.install(deploy)
        self.runs: list[Run] = []
        self.deploys = 1
        self.knows_unmapped = False
        self._number = 0

    def install(self, deploy: Deploy) -> None:
        """Other histories may have used its DAGs before, with another limit."""
        self.deploy = deploy
        for verb, operator in deploy.operators.items():
            operator.dag.max_active_runs = self.max_active_runs if verb not in ("drain", "backfill") else 1

    # ---- runs ----------------------------------------------------------------------------------------------------

    def new_run(self, dag_id: str, time_s: float) -> Run:
        self._number += 1
        run = Run(dag_id, f"run {self._number}", datetime.fromtimestamp(time_s, UTC))
        self.runs.append(run)
        first = {DAG_ID: "coordinate", DRAINED: "drain", AGAIN: "backfill"}[dag_id]
        if dag_id == DAG_ID and "ready" in self.deploy.operators:
            self._add(run, "ready", -1)
        self._add(run, first, -1)
        return run

    def has_room(self, dag_id: str) -> bool:
        return self.count(dag_id, states=["running"]) < (self.max_active_runs if dag_id == DAG_ID else 1)

    def count(self, dag_id: str, run_ids: Sequence[str] = (), states: Sequence[str] = ()) -> int:
        """The Execution API's answer: how many runs there are in these states."""
        asked = (run for run in self.runs if run.dag_id == dag_id and (not run_ids or run.run_id in run_ids))
        return sum(not run.over and ("queued" if run.queued else "running") in states for run in asked)

    def runnable(self) -> list[Task]:
        """Task instances that a worker may take now, after the states of others have had their effects."""
        found: list[Task] = []
        for run in sorted(self.runs, key=lambda run: run.run_after):
            run.queued = run.queued and not self.has_room(run.dag_id)
        for run in self.runs:
            if not run.over and not run.queued:
                found += self._ready(run)
                run.over = all(task.state in OVER for task in run.tasks)
        return found

    def _ready(self, run: Run) -> list[Task]:
        self._grow(run)
        ready = []
        for task in run.live():
            before = self._before(task)
            if task.state not in (None, "up_for_retry", "up_for_reschedule"):
                continue
            if before is None or before.state == "success":
                ready.append(task)
            elif before.state in ("failed", "upstream_failed"):
                task.state = "upstream_failed"
            elif before.state == "skipped":
                task.state = "skipped"
        return ready

    def _grow(self, run: Run) -> None:
        """Add the tasks of the present DAG: a deploy removes some tasks of a run and adds others."""
        for task in run.live():
            if task.task_id != self.deploy.operators[task.verb].task_id if task.verb in self.deploy.operators else True:
                task.state, task.process = "removed", None
        first = next((task for task in run.live() if task.verb in ("coordinate", "drain", "backfill")), None)
        if first is None:
            first = self._add(run, "coordinate", -1)
        if first.verb != "coordinate" or first.state in (None, "skipped"):
            return
        many = first.xcom if isinstance(first.xcom, list) else None
        wanted = range(len(many)) if self.deploy.max_transactions > 1 and many is not None else (-1,)
        for task in run.live():
            if task.verb not in OF_RUN and task.map_index not in wanted and first.state == "success":
                task.state, task.process = "removed", None
        if first.state != "success" and self.deploy.max_transactions > 1:
            return
        have = {(task.verb, task.map_index) for task in run.live()}
        for verb in ("emit", "turn", "commit"):
            for index in wanted:
                if verb in self.deploy.operators and (verb, index) not in have:
                    self._add(run, verb, index)

    def _add(self, run: Run, verb: str, index: int) -> Task:
        task_id = self.deploy.operators[verb].task_id
        task = next((one for one in run.tasks if (one.task_id, one.map_index) == (task_id, index)), None)
        if task is None:
            task = Task(run, verb, task_id, index, self.deploy.retries)
            run.tasks.append(task)
        task.state = None
        return task

    def _before(self, task: Task) -> Task | None:
        verb = self.deploy.behind(task.verb)
        index = -1 if verb in OF_RUN else task.map_index
        return next((one for one in task.run.live() if (one.verb, one.map_index) == (verb, index)), None)

    # ---- what people do ------------------------------------------------------------------------------------------

    def clear(self, task: Task) -> list[Task]:
        """Clear a task and those behind it, so that they run again."""
        order = list(VERBS.values())
        cleared = [
            one
            for one in task.run.live()
            if order.index(one.verb) >= order.index(task.verb)
            and (task.verb in OF_RUN or one.map_index == task.map_index)
        ]
        for one in cleared:
            one.state, one.process, one.again = None, None, False
            one.max_tries = one.try_number + self.deploy.retries
        task.run.clear_number += task.run.over
        task.run.queue()
        return cleared

    # ---- what tasks are told and say -----------------------------------------------------------------------------

    def states(self, dag_id: str, run_ids: Sequence[str], task_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The answer of the Execution API."""
        found: dict[str, dict[str, Any]] = {}
        for run in self.runs:
            if run.dag_id == dag_id and run.run_id in run_ids:
                for task in run.tasks:
                    if task.task_id in task_ids:
                        index = f"_{task.map_index}" if task.map_index >= 0 else ""
                        found.setdefault(run.run_id, {})[f"{task.task_id}{index}"] = task.state
                if self.knows_unmapped:
                    found[run.run_id] = self._unmapped(run, task_ids) | found.get(run.run_id, {})
        return found

    def _unmapped(self, run: Run, task_ids: Sequence[str]) -> dict[str, Any]:
        """The tasks that a run will have when its coordinator has succeeded."""
        first = next((task.state for task in run.live() if task.verb == "coordinate"), "success")
        if first == "success":
            return {}
        behind = {"failed": "upstream_failed", "upstream_failed": "upstream_failed", "skipped": "skipped"}.get(first)
        operators = (self.deploy.operators.get(verb) for verb in ("emit", "turn", "commit"))
        return {one.task_id: behind for one in operators if one is not None and one.task_id in task_ids}

    def context(self, task: Task) -> Any:
        run = task.run
        ti = SimpleNamespace(
            dag_id=run.dag_id,
            run_id=run.run_id,
            task_id=task.task_id,
            map_index=task.map_index,
            try_number=task.try_number,
            max_tries=task.max_tries,
            xcom_push=lambda *, key, value: run.xcoms.update({(task.task_id, task.map_index, key): value}),
            xcom_pull=lambda *, task_ids, key, map_indexes: run.xcoms.get((task_ids, map_indexes, key)),
            get_first_reschedule_date=lambda _context: None,
        )
        number = SimpleNamespace(run_after=run.run_after, clear_number=run.clear_number, run_id=run.run_id)
        return {"ti": ti, "dag_run": number, "run_id": run.run_id}

    def operator(self, task: Task, open_ledger: Any, open_engine: Any) -> Any:
        """A copy of the operator for one process, with rendered arguments."""
        operator = copy.copy(self.deploy.operators[task.verb])
        # Not by setattr: that also changes the operator's arguments, which all copies share.
        own: dict[str, Any] = vars(operator)
        if task.verb in ("emit", "turn", "commit"):
            given = next(one for one in task.run.live() if one.verb == "coordinate").xcom
            own["txid"] = given[task.map_index] if task.map_index >= 0 else given
        own["topology"] = self.topology
        own["open_ledger"] = open_ledger
        own["open_engine"] = open_engine
        own["watching_ui"] = lambda _context: nullcontext()
        if task.verb == "ready":
            own["execute"] = partial(_poke_once, operator)
        return operator

    def begins(self, task: Task) -> object:
        task.try_number += not task.again
        task.again = False
        task.state, task.process = "running", object()
        return task.process

    def ends(self, task: Task, process: object, outcome: Any) -> str:
        """End a task whose process has returned (`outcome`: the value) or raised (`outcome`: the exception)."""
        if task.process is not process or task.state != "running":
            return "its word comes too late"
        task.process = None
        if isinstance(outcome, AirflowRescheduleException):
            task.state, task.again = "up_for_reschedule", True
        elif isinstance(outcome, AirflowSkipException):
            task.state = "skipped"
        elif isinstance(outcome, AirflowFailException):
            task.state = "failed"
        elif isinstance(outcome, BaseException):
            task.state = "up_for_retry" if task.try_number <= task.max_tries else "failed"
        else:
            task.state, task.xcom = "success", outcome
        return task.state

    def running(self) -> Iterator[Task]:
        return (task for run in self.runs for task in run.tasks if task.state == "running")

    def failed(self) -> list[Task]:
        """The tasks that a person sees red: the first failed task of each line."""
        return [task for run in self.runs for task in run.tasks if task.state == "failed"]
