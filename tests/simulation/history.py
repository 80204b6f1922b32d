"""One history: processes of an imagined Airflow that run the production code against each other, then a clean end.

python -m tests.simulation 4711        runs one seed and prints what happened
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from airflow_trident.protocol import codec
from airflow_trident.runtime import commit, phases, rebuild
from airflow_trident.runtime.crash import CrashPoint
from tests.simulation import jobs
from tests.simulation.clock import instead_of_time
from tests.simulation.judge import Broken
from tests.simulation.kinds import KINDS
from tests.simulation.people import WORKERS, calm_down
from tests.simulation.world import MAX_STEPS, World, world_of

JOBS_PER_WORKER = (10, 40)


@dataclass(frozen=True)
class Verdict:
    """What became of a history. `broken` is empty if every promise held."""

    seed: int
    broken: str
    steps: int
    transactions: int
    trace: tuple[str, ...]


def work(world: World, place: int, do_one: Callable[[World, int], None]) -> None:
    """A slot of the scheduler: one process after another."""
    for _ in range(world.random.randint(*JOBS_PER_WORKER)):
        world.scheduler.step(safe=True)
        if world.calm:
            return
        do_one(world, place)


@contextmanager
def instead_of_the_world(world: World) -> Iterator[None]:
    """Production code, but for the disk: crash points and the staging folder are simulated."""

    def point(where: CrashPoint, txid: int) -> None:
        world.note(f"crash point {where} of {txid}")
        world.scheduler.step()

    with ExitStack() as stack:
        stack.enter_context(instead_of_time(world.clock))
        for module in (phases, commit, rebuild):
            stack.enter_context(mock.patch.object(module, "crash_point", point))
            stack.enter_context(mock.patch.object(module, "StagingArea", world.area))
        for name in ("decode_topology", "decode_head", "decode_pointer", "decode_exceptions", "decode_tx"):
            stack.enter_context(mock.patch.object(codec, name, _remembering(getattr(codec, name))))
        yield


def _remembering(decode: Callable[..., Any]) -> Callable[..., Any]:
    """Frozen records need decoding once: that is half of what a history costs."""
    known: dict[tuple[bytes, str], Any] = {}

    @functools.wraps(decode)
    def decoded(data: bytes, path: str, *more: Any) -> Any:
        key = (data, path)
        if key not in known:
            known[key] = decode(data, path, *more)
        return known[key]

    return decoded


def play(seed: int, kind: str = "transactional") -> Verdict:
    """Play the history of a seed: always the same one."""
    world = world_of(seed, KINDS[kind])
    broken = ""
    do_one = jobs.do_one
    if world.kind.tasks:
        from tests.simulation import shell_jobs  # Airflow takes seconds to import

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
        except Exception as error:  # noqa: BLE001 - whatever it is, no interleaving may lead to it
            broken = f"P11: {type(error).__name__}: {error}"
    if world.scheduler.out_of_steps and not broken:
        broken = f"P9: no end after {MAX_STEPS} steps"
    return Verdict(seed, broken, world.scheduler.steps, world.judge.next_txid - 1, tuple(world.trace))
