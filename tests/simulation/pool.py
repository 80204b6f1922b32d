"""A drain's pool of threads, played in one thread: a job runs when somebody waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from tests.simulation.world import World


class SimPool:
    def __init__(self, world: World) -> None:
        self.world = world

    def submit(self, job: Callable[[], Any]) -> Later:
        return Later(self, job)

    def close(self, _wait_s: float | None) -> None:
        """Does nothing: no job runs by itself."""


class Later(Future[Any]):
    def __init__(self, pool: SimPool, run: Callable[[], Any]) -> None:
        super().__init__()
        self.pool = pool
        self.run = run


def sim_wait(futures: Iterable[Later], **_: Any) -> tuple[set[Later], set[Later]]:
    """A randomly chosen job runs to its end."""
    known = list(futures)
    one = known[0].pool.world.random.choice(known)
    try:
        one.set_result(one.run())
    except Exception as error:  # noqa: BLE001 - as a pool does
        one.set_exception(error)
    return {one}, set(known) - {one}
