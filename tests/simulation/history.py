"""One history: processes of a simulated Airflow run the production code against each other, then comes a clean end.

python -m tests.simulation 4711        runs one seed and prints what happened
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from airflow_trident.protocol import codec
from airflow_trident.runtime import commit, downstream, phases, repair
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.mending import rebuild
from airflow_trident.runtime.milestones import Milestone, told
from tests.simulation import jobs, levels
from tests.simulation.clock import instead_of_time
from tests.simulation.days import SLOW
from tests.simulation.judge import Broken, Sweep
from tests.simulation.kinds import KINDS
from tests.simulation.people import WORKERS, calm_down
from tests.simulation.scheduler import Killed
from tests.simulation.swaps import swapped
from tests.simulation.world import MAX_STEPS, World, world_of

JOBS_PER_WORKER = (10, 40)
DECODERS = ("decode_topology", "decode_head", "decode_pointer", "decode_exceptions", "decode_tx")
STAGE = (phases, commit, commit, rebuild, repair)
"""The modules that open the staging folder."""
MID_COMMIT = (Milestone.GATE_OPENED, Milestone.APPLIED)
BETWEEN_LEVELS = (Milestone.APPLIED, Milestone.NEW_VALUES, Milestone.APPLIED_DOWNSTREAM)


@dataclass(frozen=True)
class Verdict:
    """The result of a history. `broken` is empty if every promise held."""

    seed: int
    broken: str
    steps: int
    transactions: int
    trace: tuple[str, ...]


def work(world: World, place: int, do_one: Callable[[World, int], None]) -> None:
    """One slot of the scheduler: it runs one process after another."""
    for _ in range(world.random.randint(*JOBS_PER_WORKER)):
        world.scheduler.step(safe=True)
        if world.calm:
            return
        do_one(world, place)


@contextmanager
def instead_of_the_world(world: World) -> Iterator[None]:
    """Production code, except for the disk: milestones and the staging folder are simulated."""

    def point(where: Milestone, txid: int) -> None:
        world.note(f"milestone {where} of {txid}")
        world.scheduler.step()
        if world.kind.taken_back and where in MID_COMMIT and not world.calm:
            _stops_halfway(world)
        if world.kind.bound and where in MID_COMMIT and not world.calm and world.random.random() < SLOW:
            world.scheduler.doze(world.random.choice((20, 60)))  # somebody asks for the day meanwhile
        if world.kind.levels and where in BETWEEN_LEVELS and not world.calm:
            _stops_between_levels(world)

    def sweep(self: Committer, own: int, states: Any, take_over: bool, remembered: bool) -> list[int]:
        process = world.process
        process.sweep = None if take_over else Sweep(own, world.judge.step)
        try:
            return original(self, own, states, take_over, remembered)
        finally:
            process.sweep = None

    original = Committer._sweep
    # Kept for longer than its history, a world would be frozen by the runner, which would have it for ever.
    swaps: list[tuple[Any, str, Any]] = [(World, "played", world), (Committer, "_sweep", sweep)]
    swaps += [(module, "StagingArea", world.area) for module in STAGE]
    swaps += [(codec, name, _remembering(getattr(codec, name))) for name in DECODERS]
    swaps.append((downstream, "LocalEngine", levels.RememberingEngine))
    with instead_of_time(world.clock), told(point), swapped(swaps):
        yield


def _stops_halfway(world: World) -> None:
    """A committer that somebody gives up, and that wakes up after its commit was taken back."""
    luck = world.random.random()
    if luck < 0.15:
        raise Killed
    if luck < 0.6:
        world.scheduler.doze(world.random.choice((20, 60, 120)))


def _stops_between_levels(world: World) -> None:
    """A committer that is killed, or sleeps, when some levels are fed and others not. What was staged may be gone then,
    so an opaque batch is chosen anew."""
    luck = world.random.random()
    if luck < 0.06:
        jobs.lose_staged(world, None)  # type: ignore[arg-type]
    if luck < 0.12:
        raise Killed
    if luck < 0.2:
        world.scheduler.doze(world.random.choice((20, 60)))


def _remembering(decode: Callable[..., Any]) -> Callable[..., Any]:
    """Decodes each record only once, which saves half of the time of a history; records are frozen."""
    known: dict[tuple[bytes, str], Any] = {}

    @functools.wraps(decode)
    def decoded(data: bytes, path: str, *more: Any) -> Any:
        key = (data, path)
        found = known.get(key)
        if found is None:
            found = known[key] = decode(data, path, *more)
        return found

    return decoded


def play(seed: int, kind: str = "transactional") -> Verdict:
    """Play the history of a seed. The same seed always gives the same history."""
    world = world_of(seed, KINDS[kind])
    broken = ""
    do_one = jobs.do_one
    if world.kind.tasks:
        # Airflow takes seconds to import. Whatever is imported later than the history begins has another clock.
        from tests.simulation import follower, shell_jobs  # noqa: F401

        do_one = shell_jobs.do_one
    with ExitStack() as stack:
        stack.enter_context(instead_of_the_world(world))
        if world.kind.tasks:
            stack.enter_context(shell_jobs.instead_of_airflow(world))
        bodies: dict[str, Callable[[], None]] = {"end": lambda: calm_down(world)}
        for number in range(WORKERS):
            bodies[f"worker-{number}"] = functools.partial(work, world, number, do_one)
        try:
            world.scheduler.play(bodies)
        except Broken as error:
            broken = str(error)
        except Exception as error:  # noqa: BLE001 - no interleaving may lead to any such error
            broken = f"P11: {type(error).__name__}: {error}"
    if world.scheduler.out_of_steps and not broken:
        broken = f"P9: no end after {MAX_STEPS} steps"
    return Verdict(seed, broken, world.scheduler.steps, world.judge.next_txid - 1, tuple(world.trace))
