"""The triggerer of a history: it runs the production code of a batch trigger, whose events make runs."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.sensors.ready import TridentReadySensor
from airflow_trident.triggers import batch
from airflow_trident.triggers.batch import TridentBatchTrigger
from tests.simulation.scheduler import Killed
from tests.simulation.shell import DAG_ID
from tests.simulation.world import Process, World

AGAIN_S = 20
"""After this time an event of which nothing came is sent again; a step takes a second."""
RESTARTS = 0.05


class _Hub:
    """The session of a triggerer, which is never lost here: what it loses is found in the tests of the hub."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ledger: Any = None

    async def __aenter__(self) -> _Hub:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def ledger(self, _topology: str) -> _Hub:
        self._ledger = self._world.ledger()
        return self

    async def call(self, action: Callable[[ZNodeLedger], Any]) -> Any:
        return action(self._ledger)


@types.coroutine
def _sleep(seconds: float) -> Iterator[float]:
    """The only place where the trigger gives up its turn."""
    yield seconds


async def _here(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def instead_of_a_triggerer(world: World, log: Any) -> Sequence[tuple[Any, str, Any]]:
    """Swaps: the trigger's own code, without threads and an event loop."""

    def unexpected(text: str, *arguments: object) -> None:
        world.judge.broken("P11", f"the batch trigger: {text % arguments}")

    told = SimpleNamespace(info=log.info, warning=log.warning, exception=unexpected)
    return [
        (TridentReadySensor, "log", log),
        (TridentBatchTrigger, "log", told),
        (TridentBatchTrigger, "hub", lambda _self: _Hub(world)),
        (TridentBatchTrigger, "_found", world.topology),
        (batch, "asyncio", SimpleNamespace(to_thread=_here, sleep=_sleep)),
        (batch, "install_resolver", lambda: None),
    ]


class _Trigger:
    """A trigger that runs. `coming`: its next event, for which it looks and sleeps."""

    def __init__(self) -> None:
        made = TridentBatchTrigger("simulated", "a:topology", poll_s=1.0, again_s=float(AGAIN_S))
        self._events: Any = made.run()
        self._coming: Any = self._events.__anext__()

    def look(self) -> Any:
        """The event of one look, or None."""
        try:
            self._coming.send(None)
        except StopIteration as event:
            self._coming = self._events.__anext__()
            self._coming.send(None)  # to the pause behind the event
            return event.value.payload
        return None


def look_of_triggerer(world: World, place: int) -> bool:
    """One look of the trigger. Did it send an event? Airflow makes a run of that, or has one in the queue already."""
    if not world.calm and world.random.random() < RESTARTS:
        world.trigger = None
    trigger, world.trigger = world.trigger or _Trigger(), None  # nobody else goes on with it meanwhile
    try:
        with world.running(Process(place=place)):
            sent = trigger.look()
    except Killed:
        world.note("the triggerer is killed")
        return False
    except Exception as error:  # noqa: BLE001 - Airflow would not start it again soon
        world.judge.broken("P11", f"the batch trigger ends with {type(error).__name__}: {error}")
    world.trigger = trigger
    if sent is None:
        return False
    airflow = world.airflow
    if not any(run.queued and run.dag_id == DAG_ID for run in airflow.runs):
        queued = not airflow.has_room(DAG_ID)
        run = airflow.new_run(DAG_ID, world.clock.time())
        run.queued = queued
        world.note(f"the event {sent} makes run {run.run_id!r}{', which is queued' * queued}")
    return True
