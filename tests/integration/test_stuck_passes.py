"""Passes that do not end when they are cancelled: nothing waits for them for ever, and nothing of them is taken."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.engine.engine import Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.protocol.records import Claim, Status
from airflow_trident.runtime import timeouts
from airflow_trident.runtime.backfill import Selection
from airflow_trident.runtime.drains import drain_passes
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.drains.pass_threads import PassThreads
from airflow_trident.runtime.drains.process_many import process_many
from airflow_trident.runtime.phases import Attempts
from airflow_trident.staging.manifest import Manifest
from tests.fixtures.runtime import ALL, World
from tests.integration.test_attempts import record

PROGRAM = """
import sys, threading
from pathlib import Path
from tests.integration.test_stuck_passes import Stuck, World, drain_of

engine = Stuck(lambda: print("begun", flush=True))
world = World(Path(sys.argv[1]))
try:
    drain_of(world, engine).run()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


LIMIT_S = 1.0
"""The others are far below it; if one is not, it has tries enough."""


class TimedOut(BaseException):
    """As Airflow's time-out of a task, no Exception."""


class Failed(Exception):
    """Of the ledger, or of whatever the drain does while a pass runs."""


class Stuck(LocalEngine):
    """Its first pass calls `then` and does not end before `free` is set; cancelling does not help."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self.then, self.free, self.ended = then, threading.Event(), threading.Event()
        self.first = True

    def run(self, job: Job) -> Manifest:
        if not self.first:
            return super().run(job)
        self.first = False
        self.then()
        self.free.wait()
        try:
            return super().run(job)
        finally:
            self.ended.set()


class Late(Stuck):
    """Its next pass first lets the stuck one end, so that there is a late result while the drain goes on."""

    def run(self, job: Job) -> Manifest:
        if not self.first:
            self.free.set()
            assert self.ended.wait(60)
        return super().run(job)


def drain_of(world: World, engine: LocalEngine, timeout_s: float | None = None) -> Drain:
    return Drain(
        ledger=world.ledger,
        topology=world.topology,
        engine=engine,
        staging_root=world.staging,
        attempts=Attempts(owner="drain", timeout_s=timeout_s),
        claim=Claim(key="drain/run-1"),
        limits=DrainLimits(group=1, max_pending=1, tries=9),
    )


@contextmanager
def alarm(error: type[BaseException]) -> Iterator[None]:
    def raise_it(_signal: int, _frame: object) -> None:
        raise error

    before = signal.signal(signal.SIGUSR1, raise_it)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(drain_passes, "CANCEL_S", 0.05)
    monkeypatch.setattr(drain_passes, "WAKE_S", 0.05)
    monkeypatch.setattr(timeouts, "GRACE_S", 0.05)
    return World(tmp_path)


def replay(world: World, engine: LocalEngine) -> None:
    world.begin("one")
    world.begin("two")
    replace(world.backfill(), engine=lambda: engine, group=1).run(Selection(first=1, last=2))


def emit(world: World, engine: LocalEngine) -> None:
    world.begin("one")
    world.begin("two")
    attempts = Attempts(owner="emit")
    found = process_many(
        world.ledger, world.topology, [1, 2], engine, world.staging, attempts, print, group=1, is_free=lambda _: True
    )
    list(found)


@pytest.mark.parametrize("run", [lambda *both: drain_of(*both).run(), replay, emit], ids=["drain", "backfill", "emit"])
@pytest.mark.parametrize("error", [TimedOut, Failed])
@pytest.mark.parametrize("thread", [threading.main_thread, threading.current_thread], ids=["awake", "asleep"])
def test_a_time_out_or_an_error_of_the_task_ends_it_though_its_pass_goes_on(
    world: World,
    run: Callable[[World, LocalEngine], object],
    error: type[BaseException],
    thread: Callable[[], threading.Thread],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`thread`, called in the thread of the pass, gets the signal. One that this thread gets itself does not wake the
    main thread, no more than one that comes when the main thread is about to sleep."""
    waits = threading.Event()

    def wait(*arguments: Any, **options: Any) -> Any:
        waits.set()
        return futures.wait(*arguments, **options)

    def ring_when_it_waits() -> None:
        assert waits.wait(60)
        signal.pthread_kill(thread().ident or 0, signal.SIGUSR1)

    monkeypatch.setattr(drain_passes, "wait", wait)
    engine = Stuck(ring_when_it_waits)
    try:
        with alarm(error), pytest.raises(error):
            run(world, engine)
    finally:
        engine.free.set()
    drain_of(world, LocalEngine()).run()
    assert world.counts() == ALL


def test_a_pass_that_goes_on_after_its_limit_costs_an_attempt_and_is_never_taken(world: World) -> None:
    engine = Late(lambda: None)
    said: list[str] = []
    drain = drain_of(world, engine, timeout_s=LIMIT_S)
    drain.progress = said.append
    try:
        assert drain.run().committed == (1, 2, 3, 4, 5)
    finally:
        engine.free.set()
    assert any("attempt 0 of transaction 1 took longer than 1 s and was cancelled" in line for line in said)
    assert world.counts() == ALL
    assert record(world, 1).attempt > 0
    assert set(world.statuses()) == {Status.COMMITTED}


def test_a_command_that_is_interrupted_ends_though_its_pass_goes_on(tmp_path: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        program.send_signal(signal.SIGINT)
        said, _ = program.communicate(timeout=60)
        assert (said, program.returncode) == ("interrupted\n", 0)
    finally:
        program.kill()
        program.communicate()


def test_threads_run_jobs_in_order_and_a_forgotten_one_has_another_in_its_place() -> None:
    threads: PassThreads[int] = PassThreads(1)
    begun, free, order = threading.Event(), threading.Event(), list[int]()

    def stuck() -> int:
        begun.set()
        free.wait()
        return -1

    def job(number: int) -> Callable[[], int]:
        return lambda: order.append(number) or number

    first = threads.submit(stuck)
    others = [threads.submit(job(number)) for number in range(3)]
    assert begun.wait(60)
    threads.forget(first)
    assert [one.result(60) for one in others] == order == [0, 1, 2]
    threads.close(None)  # does not wait for what is forgotten
    free.set()
    assert first.result(60) == -1
