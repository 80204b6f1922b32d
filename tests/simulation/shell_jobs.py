"""The jobs in histories of tasks: workers of the simulated Airflow, people who act on its runs, and accidents."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_trident import settings
from airflow_trident.errors import TridentError, UnknownTopologyError
from airflow_trident.operators import base
from airflow_trident.operators.base import TridentOperator
from airflow_trident.protocol.records import Command
from airflow_trident.runtime.backfill import Selection
from airflow_trident.runtime.drains import drain_passes
from airflow_trident.sensors.turn import TridentTurnSensor
from tests.simulation.accidents import clock_moves, store_accident, topology_removed
from tests.simulation.jobs import deliver, expected, give_back, lose_staged, replay
from tests.simulation.kinds import Kind
from tests.simulation.pieces import batch_of
from tests.simulation.pool import SimPool, sim_wait
from tests.simulation.scheduler import Killed
from tests.simulation.shell import AGAIN, DAG_ID, DRAINED, OVER, Airflow, Task, deployed
from tests.simulation.shell_judge import judge_error, judge_ready, seen_by, waits_for_itself
from tests.simulation.swaps import swapped
from tests.simulation.triggerer import AGAIN_S, instead_of_a_triggerer, look_of_triggerer
from tests.simulation.world import Process, World

TIDY_ROUNDS = 6
OPTIONS = {"poll_s": "1", "reschedule_s": "0", "turn_wait_s": "4", "staging_dir": "/staged"}


class _Log:
    """Lines of task logs become lines of the history."""

    def __init__(self, world: World) -> None:
        self._world = world

    def info(self, text: str, *arguments: object, **_: object) -> None:
        if "outside of the Task Runner" not in text:
            self._world.note(f"    {text % arguments if arguments else text}"[:300])

    warning = error = debug = info


def instead_of_airflow(world: World) -> AbstractContextManager[None]:
    """The operators' own code, except for its requests to Airflow."""

    def states(*, dag_id: str, run_ids: Any = (), task_ids: Any = (), **_: Any) -> dict[str, Any]:
        world.scheduler.step()
        return dict(world.airflow.states(dag_id, run_ids, task_ids))

    def count(*, dag_id: str, run_ids: Any = (), states: Any = ()) -> int:
        world.scheduler.step()
        return int(world.airflow.count(dag_id, run_ids, states))

    def text(option: settings.Option) -> str:
        return {**OPTIONS, "retention": str(world.retention)}.get(option.name, option.default)

    chance = world.random
    if world.kind.ready:
        world.triggered = chance.random() < 0.5
    world.airflow = Airflow(world.topology, _deploy(world), max_active_runs=chance.choice((1, 2, 4)))
    world.airflow.knows_unmapped = world.kind.ready
    log = _Log(world)
    return swapped(
        [
            (RuntimeTaskInstance, "get_task_states", staticmethod(states)),
            (RuntimeTaskInstance, "get_dr_count", staticmethod(count)),
            (settings, "text", text),
            (TridentOperator, "log", log),
            (TridentTurnSensor, "log", log),
            *(instead_of_a_triggerer(world, log) if world.kind.ready else ()),
            (base, "_log", log),
            (drain_passes, "PassThreads", lambda _most: SimPool(world)),
            (drain_passes, "wait", sim_wait),
            (base, "os", SimpleNamespace(getpid=lambda: world.process.number)),
            (base, "socket", SimpleNamespace(gethostname=lambda: f"worker-{world.process.place}")),
        ]
    )


def _deploy(world: World) -> Any:
    chance = world.random
    most = chance.choice((1, 1, 1, 2))
    world.judge.max_pending = max(world.judge.max_pending, most)
    return deployed(
        world.topology,
        max_transactions=most,
        retries=chance.choice((0, 1, 2)),
        group_id=chance.choice(("plays", "plays", "renamed")),
        max_pending=world.judge.max_pending,
        on_failure=chance.choice(("block", "block", "skip")) if not world.kind.in_order else "block",
        turn_sensor=chance.random() < 0.7,
        retention=world.retention,
        ready=world.kind.ready and not world.triggered,
    )


# ---- what a worker does ------------------------------------------------------------------------------------------


def work_on(world: World, task: Task, place: int) -> None:
    """Run one process of a task, from its begin to the effect of its outcome."""
    airflow = world.airflow
    process = Process(place=place, task=task, later=world.kind.versions and world.random.random() < 0.5)
    mark = airflow.begins(task)
    world.note(f"{task.name} try {task.try_number} of {task.max_tries + 1} begins")
    before, failed, held_by_own = set(world.judge.done), world.judge.failed(), waits_for_itself(world, task)
    seen = seen_by(world, task.run) if world.kind.ready else None
    outcome: Any
    try:
        with world.running(process):
            operator = airflow.operator(task, world.ledger, lambda _context: world.engine())
            outcome = operator.execute(airflow.context(task))
    except Killed:
        world.note(f"{task.name} is killed")
        world.dead.append((task, mark))
        return
    except (Exception, SystemExit) as error:  # noqa: BLE001 - as Airflow does
        outcome = error
        judge_error(world, task, error)
    became = airflow.ends(task, mark, outcome)
    world.note(f"{task.name}: {became}, {outcome!r}"[:400])
    if became == "up_for_reschedule" and held_by_own and held_by_own == waits_for_itself(world, task):
        world.judge.broken("P9", f"{task.name} waits for {held_by_own}, which cannot begin before it has ended")
    if task.verb == "ready" or (became == "skipped" and "nothing new" in str(outcome)):
        judge_ready(world, task, became, seen)
    if became == "success" and task.verb == "coordinate":
        world.judge.coordinated(task, outcome, before, failed)
    if became == "success" and task.verb == "commit":
        world.judge.green(task, outcome)


def _some_task(world: World, place: int) -> None:
    ready = world.airflow.runnable()
    if not world.triggered and world.airflow.has_room(DAG_ID) and (not ready or world.random.random() < 0.3):
        world.note(f"run {world.airflow.new_run(DAG_ID, world.clock.time()).run_id!r} is scheduled")
        ready = world.airflow.runnable()
    if ready:
        work_on(world, world.random.choice(ready), place)


def _other_run(world: World, place: int) -> None:
    """A person starts the DAG of the backfill, or of the drain."""
    dag_id = world.random.choice((AGAIN, DRAINED))
    if world.airflow.has_room(dag_id):
        world.airflow.new_run(dag_id, world.clock.time())
        _some_task(world, place)


def _notice_dead(world: World, place: int) -> None:
    """The scheduler finds tasks whose worker is gone. Sometimes it is wrong, and the process goes on."""
    if world.dead:
        task, mark = world.dead.pop(world.random.randrange(len(world.dead)))
        world.note(f"{task.name} is found dead: {world.airflow.ends(task, mark, RuntimeError('no heartbeat'))}")
        return
    running = list(world.airflow.running())
    if running and world.random.random() < 0.3:
        task = world.random.choice(running)
        became = world.airflow.ends(task, task.process, RuntimeError("no heartbeat"))
        world.note(f"{task.name} is taken for dead: {became}")


def _clear(world: World, place: int) -> None:
    tasks = [task for run in world.airflow.runs for task in run.live() if task.state is not None]
    if tasks:
        task = world.random.choice(tasks)
        world.note(f"a person clears {[one.name for one in world.airflow.clear(task)]}")


def _mark(world: World, place: int) -> None:
    """A person marks a task as successful."""
    tasks = [task for task in world.airflow.failed() if task.verb in ("emit", "turn")]
    if tasks:
        task = world.random.choice(tasks)
        task.state = "success"
        for one in task.run.live():
            if one.state == "upstream_failed":
                one.state = None
        task.run.queue()
        world.note(f"a person marks {task.name} success")


def _forget_run(world: World, place: int) -> None:
    """A person deletes a run that is over."""
    over = [run for run in world.airflow.runs if run.over]
    if over:
        run = world.random.choice(over)
        world.airflow.runs.remove(run)
        world.note(f"a person deletes run {run.run_id!r}")


def _type(world: World, place: int) -> None:
    """A person types a command."""
    chance = world.random
    with world.running(Process(place=place, later=world.kind.versions and chance.random() < 0.5)):
        ledger = world.ledger()
        view = ledger.view(0)
        what = chance.choice(("failed", "txid", "skip", "back", "pause", "resume", "resume"))
        last = view.next_txid - 1
        if what == "failed":
            replay(world, ledger, Selection(failed=True))
        elif what == "txid" and last:
            txid = chance.randint(1, last)
            replay(world, ledger, Selection(first=txid, last=txid))
        elif what == "skip" and last and (not world.kind.in_order or chance.random() < 0.2):
            txid = chance.randint(1, last)
            world.note(f"skip {txid}: {ledger.skip(txid, 'a person said so').status}")
        elif what == "back" and last:
            give_back(world, ledger)
        elif what in ("pause", "resume"):
            ledger.set_command(Command.PAUSE if what == "pause" else Command.RUN)


def _new_deploy(world: World, place: int) -> None:
    world.airflow.install(_deploy(world))
    world.airflow.deploys += 1
    world.note(f"deployed: {world.airflow.deploy.max_transactions} a run, group {world.airflow.deploy.group_id}")


def _network(world: World, place: int) -> None:
    deliver(world, None)  # type: ignore[arg-type]


def _staging(world: World, place: int) -> None:
    lose_staged(world, None)  # type: ignore[arg-type]


def _triggerer(world: World, place: int) -> None:
    if world.triggered:
        look_of_triggerer(world, place)


JOBS: dict[Callable[[World, int], None], float] = {
    _some_task: 14,
    _notice_dead: 2,
    _clear: 0.7,
    _other_run: 0.7,
    _type: 0.8,
    _mark: 0.3,
    _forget_run: 0.1,
    _new_deploy: 0.3,
    _network: 0.7,
    _staging: 0.2,
    clock_moves: 0.2,
    store_accident: 0.5,
    topology_removed: 0.5,
    _triggerer: 4,
}
ROUGH = (_clear, _other_run, _type, _mark, _notice_dead)


def do_one(world: World, place: int) -> None:
    job = world.random.choices(list(JOBS), cum_weights=_chances(world.kind, world.rough))[0]
    world.at_work += 1
    try:
        job(world, place)
    except Killed:
        world.note(f"{job.__name__.strip('_')}: killed")
    except TridentError as error:
        expected(world, job.__name__, error, also=(UnknownTopologyError, *world.may_refuse))
    finally:
        world.at_work -= 1


@functools.cache
def _chances(kind: Kind, rough: float) -> list[float]:
    """The cumulative weights of the jobs."""
    return list(accumulate(weight * _often(kind, rough, job) for job, weight in JOBS.items()))


def _often(kind: Kind, rough: float, job: Callable[[World, int], None]) -> float:
    if job is store_accident:
        return 6.0 * kind.stores
    if job is _triggerer:
        return float(kind.ready)
    if job is topology_removed:
        return 10.0 * kind.lives
    return rough if job in ROUGH else 1.0


# ---- the end -----------------------------------------------------------------------------------------------------


def tidy_up(world: World) -> None:
    """Airflow ends all tasks that it can, and takes sleeping ones for dead. Then a person looks at the red tasks."""
    for task in list(world.airflow.running()):
        world.note(f"{task.name} is found dead: {world.airflow.ends(task, task.process, RuntimeError('no heartbeat'))}")
    _until_idle(world)
    for task in world.airflow.failed():
        if task.state == "failed" and world.clears:
            # Its coordinator knows how many transactions the run has now, and the topology's present incarnation.
            first = task.run.live()[0] if world.airflow.deploys > 1 or world.judge.lives else task
            world.note(f"a person clears {[one.name for one in world.airflow.clear(first)]}, which was red")
    _until_idle(world)


def _until_idle(world: World) -> None:
    for _ in range(TIDY_ROUNDS):
        while world.dead:
            _notice_dead(world, 0)
        ready = world.airflow.runnable()
        if not ready:
            return
        for task in ready:
            if task.state in (None, "up_for_retry", "up_for_reschedule"):
                work_on(world, task, 0)


def give_up_runs(world: World) -> None:
    """A person marks all runs failed, and never looks at them again. No more data come."""
    world.clears = False
    while world.tree.held:
        world.tree.deliver(0)
    batches = [*world.judge.done.values(), *(batch_of(one.metadata) for one in world.judge.records.values())]
    world.total = max((record + 1 for batch in batches for record in batch), default=world.total)
    for run in world.airflow.runs:
        for task in run.live():
            if task.state not in OVER:
                task.state, task.process = "failed", None
        run.queued, run.over = False, True  # also one that had been cleared, and had no room yet
    world.note("a person marks all runs failed")


def scheduled(world: World) -> bool:
    """Run the next scheduled run, or that of the next event. True: its coordinator found nothing new, its ready sensor
    waits, or no event came though it was time to send the last one again."""
    if world.triggered:
        world.scheduler.doze(AGAIN_S)
        if not look_of_triggerer(world, 0):
            return True
        _until_idle(world)
        return False
    waiting = (one.run for run in world.airflow.runs if not run.over for one in run.live() if _is_waiting(one))
    run = next(waiting, None) or world.airflow.new_run(DAG_ID, world.clock.time())
    _until_idle(world)
    first = next(task for task in run.tasks if task.verb == "coordinate")
    return first.state == "skipped" or any(_is_waiting(task) for task in run.live())


def _is_waiting(task: Task) -> bool:
    return task.verb == "ready" and task.state == "up_for_reschedule"
