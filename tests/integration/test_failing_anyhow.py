"""Whatever a function, an engine or a store raises, and wherever: the ledger has it, nothing goes on without end, and
what follows goes on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import FixedBatchSpout, Function, SqliteState, Topology
from airflow_trident.contracts.state import Applied, State
from airflow_trident.engine.engine import Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import (
    ConfigurationError,
    StaleAttemptError,
    TransitionError,
    UnseenFilesError,
    UserCodeError,
)
from airflow_trident.protocol.records import Claim, CommitTicket, Status
from airflow_trident.runtime.commit import EMIT_TRIES
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.staging.manifest import Manifest
from airflow_trident.states.sql.store import SqlStore
from tests.fixtures.runtime import ALL, Sickness, World
from tests.integration.test_looks import Between


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError("not even that")


RAISED: dict[str, Callable[[], BaseException]] = {
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
    "SystemExit": lambda: SystemExit(3),
    "Unspeakable": Unspeakable,
}


class Raising(Function):
    def __init__(self, sickness: Sickness, error: Callable[[], BaseException]) -> None:
        self.sickness, self.error = sickness, error

    def execute(self, line: str) -> Iterator[str]:
        if self.sickness.words:
            raise self.error()
        yield from line.split()


class Lines(World):
    """Tuples as they come, so that a batch has a file of its own, and a function that may raise anything."""

    error: Callable[[], BaseException] = MemoryError

    def make(self) -> Topology:
        made = Topology("world")
        lines = made.new_stream("lines", FixedBatchSpout("line string", [("a b",), ("c",)], 1))
        words = lines.each("line", Raising(self.sickness, lambda: type(self).error()), "word")
        words.partition_persist(SqliteState(str(self.folder / "words.db")), "word, line", keys="word", name="count")
        return made


@pytest.fixture
def world(tmp_path: Path) -> Lines:
    return Lines(tmp_path)


def error_of(world: World, txid: int) -> str:
    tx = world.ledger.view(txid).tx
    assert tx is not None
    return tx.error


# ---- an attempt ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RAISED)
def test_whatever_a_function_raises_is_in_the_ledger_and_names_the_row(
    world: Lines, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lines, "error", RAISED[name])
    world.sickness.words.add("all")
    world.begin("run-1")
    with pytest.raises(UserCodeError, match=rf"Raising.*raised {name}.*transaction 1, row \(line='a b'\)"):
        world.process(1)
    assert name in error_of(world, 1)
    assert world.statuses() == [Status.PROCESSING]
    with pytest.raises(UserCodeError):
        world.process(1, last_try=True)
    assert world.statuses() == [Status.FAILED]


class Stopping(LocalEngine):
    """Somebody interrupts it."""

    def run(self, job: Job) -> Manifest:
        raise KeyboardInterrupt


def test_an_interrupted_attempt_is_in_the_ledger(world: Lines) -> None:
    world.begin("run-1")
    with pytest.raises(KeyboardInterrupt):
        world.process(1, engine=Stopping())
    assert (world.statuses(), error_of(world, 1)) == ([Status.PROCESSING], "KeyboardInterrupt: ")


def test_a_value_whose_text_cannot_be_had_is_no_reason_to_lose_the_error() -> None:
    from airflow_trident.operations.user_code import Border

    with pytest.raises(UserCodeError) as caught:
        Border(node="each-1", function="f", fields=("a",), txid=7).translate((Mute(),), Unspeakable())
    for part in ("Unspeakable", "transaction 7", "Mute", "each-1"):
        assert part in str(caught.value)


# ---- staged files that are not where they should be --------------------------------------------------------------


class Elsewhere(LocalEngine):
    """Its executors have another staging folder: nobody else sees what they write."""

    runs = 0

    def run(self, job: Job) -> Manifest:
        manifest = super().run(job)
        type(self).runs += 1
        for file in manifest.files:
            os.unlink(os.path.join(job.staging_root, file.path))
        return manifest


def test_files_that_the_driver_cannot_see_fail_the_attempt_at_once(
    world: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Elsewhere, "runs", 0)
    world.begin("run-1")
    with pytest.raises(UnseenFilesError, match=r"executors write to another staging folder.*staging_dir"):
        world.process(1, engine=Elsewhere())
    assert (Elsewhere.runs, world.statuses()) == (1, [Status.FAILED])
    assert "another staging folder" in error_of(world, 1)


class Superseded(LocalEngine):
    """A newer attempt comes in between, and what this one has staged is cleaned up."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def run(self, job: Job) -> Manifest:
        manifest = super().run(job)
        self.world.process(1)
        shutil.rmtree(os.path.join(job.staging_root, job.slot.path))
        return manifest


def test_a_superseded_attempt_whose_files_are_gone_is_superseded_and_no_fault_of_the_settings(world: Lines) -> None:
    world.begin("run-1")
    with pytest.raises(StaleAttemptError):
        world.process(1, engine=Superseded(world))
    assert world.statuses() == [Status.PROCESSED]


def test_what_is_emitted_again_and_gone_again_is_given_up_after_some_tries(world: Lines) -> None:
    world.begin("run-1")
    world.process(1)

    def empty() -> None:
        shutil.rmtree(world.staging)

    runs = []

    class Counting(LocalEngine):
        def run(self, job: Job) -> Manifest:
            runs.append(job.slot.attempt)
            return super().run(job)

    class Emptied(Between):
        """The folder is emptied whenever something was processed."""

        def processed(self, *args: Any) -> Any:
            answer = world.ledger.processed(*args)
            empty()
            return answer

    empty()
    committer = replace(world.committer(), ledger=Emptied(world.ledger, -1, empty), engine=Counting)
    with pytest.raises(ConfigurationError, match=rf"emitted again {EMIT_TRIES} times.*staging_dir"):
        committer.commit(1)
    assert (len(runs), world.statuses()) == (EMIT_TRIES, [Status.COMMITTING])
    assert "staging_dir" in error_of(world, 1)
    assert world.committer().commit(1).committed == (1,)


# ---- a commit --------------------------------------------------------------------------------------------------


ENDS = [MemoryError("all of it"), KeyboardInterrupt("all of it"), TransitionError("a state refuses it", "all of it")]


@pytest.mark.parametrize("error", ENDS, ids=[type(one).__name__ for one in ENDS])
@pytest.mark.parametrize("after", [False, True])
def test_whatever_ends_a_commit_is_in_the_ledger_and_the_next_one_goes_on(
    world: Lines, monkeypatch: pytest.MonkeyPatch, error: BaseException, after: bool
) -> None:
    """:param error: one that says that somebody else was faster says it of a ledger, not of a state.
    :param after: the state has the batch already.
    """
    world.begin("run-1")
    world.process(1)

    def apply(self: State, ticket: CommitTicket, batch: Any) -> Applied:
        if after:
            original(self, ticket, batch)
        raise error

    original = SqlStore.apply_staged
    with monkeypatch.context() as patched:
        patched.setattr(SqlStore, "apply_staged", apply)
        with pytest.raises(UserCodeError if isinstance(error, MemoryError) else type(error)):
            world.committer().commit(1)
    assert world.statuses() == [Status.COMMITTING]
    assert type(error).__name__ in error_of(world, 1)
    assert "all of it" in error_of(world, 1)
    assert world.committer().commit(1).committed == (1,)
    assert world.counts() == {"a": "a b", "b": "a b"}


def test_a_drain_whose_commit_has_no_memory_says_so_and_its_next_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)

    def drain(name: str) -> Drain:
        return Drain(
            ledger=world.ledger,
            topology=world.topology,
            engine=LocalEngine(),
            staging_root=world.staging,
            attempts=world.attempts(),
            claim=Claim(key=name),
            limits=DrainLimits(max_pending=1),
        )

    def apply(self: State, ticket: CommitTicket, batch: Any) -> Applied:
        original(self, ticket, batch)
        raise MemoryError(f"transaction {ticket.txid}")

    original = SqlStore.apply_staged
    with monkeypatch.context() as patched:
        patched.setattr(SqlStore, "apply_staged", apply)
        with pytest.raises(UserCodeError, match="state 'count' raised MemoryError: transaction 1 "):
            drain("first").run()
    assert "state 'count' raised MemoryError: transaction 1 " in error_of(world, 1)
    assert drain("second").run().committed == (1, 2, 3, 4, 5)
    assert world.counts() == ALL
