"""A commit that can never succeed and that no state holds is taken back, whoever is still at work on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_trident import Count, FixedBatchSpout, ReducerAggregator, SqliteState, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import FencedError, HeldError, TransitionError, UserCodeError
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import CommitTicket, Status
from airflow_trident.protocol.topologies import StateDefinition
from airflow_trident.runtime.backfill import BackfillOutcome, Selection
from airflow_trident.runtime.open_resources import OpenStates
from airflow_trident.runtime.repair import take_back
from airflow_trident.runtime.staged_batches import apply_batch
from tests.fixtures import single
from tests.fixtures.runtime import Sickness, Split, World


class Picky(ReducerAggregator[int]):
    """Counts, in the commit, and cannot stand some words there."""

    commutes = True

    def __init__(self, sickness: Sickness) -> None:
        self.sickness = sickness

    def init(self) -> int:
        return 0

    def reduce(self, current: int, *values: object) -> int:
        if values[0] in self.sickness.words:
            raise ValueError(f"cannot stand {values[0]}")
        return current + 1


class Failing(World):
    """Two states in two databases; the commit of what holds a poison fails in one of them, always."""

    fails_first = True
    in_group = False
    """Were the three to be committed together?"""

    def make(self) -> Topology:
        made = Topology("world")
        spout = FixedBatchSpout("line string", [("a",), ("poison a",), ("b",)], 1)
        words = made.new_stream("lines", spout).each("line", Split(Sickness()), "word").group_by("word")
        picky = ("word", Picky(self.sickness))
        plain: tuple[object, ...] = (Count(),)
        for name, what in zip(("first", "second"), (picky, plain) if self.fails_first else (plain, picky), strict=True):
            state = SqliteState(str(self.folder / f"{name}.db"))
            words.persistent_aggregate(state, *what, f"{name}_n", name=name)  # type: ignore[arg-type]
        return made

    def failing(self) -> Failing:
        """1 is COMMITTED, 2 COMMITTING and cannot be committed, 3 is processed."""
        self.sickness.words.add("poison")
        for number in (1, 2, 3):
            self.begin(f"run-{number}")
            self.process(number)
        together = 200 if self.in_group else 1
        with pytest.raises(UserCodeError, match="cannot stand poison"):
            replace(self.committer(), most_together=together).commit(3)
        last = Status.COMMITTING if self.in_group else Status.PROCESSED  # the gate of a group is one step
        assert self.statuses() == [Status.COMMITTED, Status.COMMITTING, last]
        return self

    def take_back(self, progress: Callable[[str], None] = lambda line: None) -> Status:
        done = take_back(self.ledger, self.topology, 2, owner="a person", reason="it is poison", progress=progress)
        return done.status

    def held(self) -> list[dict[str, int]]:
        with OpenStates(self.topology) as states:
            return [{key[0]: value[0] for key, value in state.items()} for state in states.opened().values()]


class FailingLast(Failing):
    fails_first = False


class FailingInGroup(Failing):
    in_group = True


@pytest.mark.parametrize("kind", [Failing, FailingInGroup])
def test_what_no_state_holds_is_failed_and_then_skipped(tmp_path: Path, kind: type[Failing]) -> None:
    world = kind(tmp_path).failing()
    with pytest.raises(TransitionError, match="take-back world 2"):
        world.ledger.skip(2, "a person said so")
    assert world.take_back() is Status.FAILED
    tx = world.ledger.view(2).tx
    assert tx is not None
    assert (tx.error, tx.first_error.partition(":")[0]) == ("it is poison", "UserCodeError")
    world.ledger.skip(2, "a person said so")
    assert world.committer().commit(3).committed == (3,)
    assert world.held() == [{"a": 1, "b": 1}] * 2


def test_what_was_taken_back_is_replayed_with_a_mended_function(tmp_path: Path) -> None:
    world = Failing(tmp_path).failing()
    world.take_back()
    world.sickness.words.clear()
    (done,) = world.backfill().run(Selection(failed=True))
    assert (done.outcome, done.also_committed) == (BackfillOutcome.COMMITTED, (3,))
    assert world.held() == [{"a": 2, "poison": 1, "b": 1}] * 2


def test_what_a_state_holds_is_not_taken_back_and_its_commit_can_go_on(tmp_path: Path) -> None:
    world = FailingLast(tmp_path).failing()
    with pytest.raises(HeldError, match="state 'first' holds transaction 2"):
        world.take_back()
    assert world.statuses()[1] is Status.COMMITTING
    with pytest.raises(TransitionError, match="has begun"):
        world.ledger.skip(2, "a person said so")
    world.sickness.words.clear()
    assert world.committer().commit(3, take_over=True).committed == (2, 3)
    assert world.held() == [{"a": 2, "poison": 1, "b": 1}] * 2


def test_a_commit_that_a_removed_state_may_hold_is_not_taken_back_until_it_is_asked(tmp_path: Path) -> None:
    """The state that failed stays, and the one that holds the transaction leaves the code."""
    world, name = FailingLast(tmp_path).failing(), "world"
    whole = world.topology.definition()
    left = replace(whole, states={"second": whole.states["second"]})
    world.ledger.register(left, accept_change=True)
    with pytest.raises(HeldError, match=rf"'first' .*SqliteState.* left .*2 .*ledger accept {name}.*take"):
        world.ledger.bar(2, owner="a person")
    world.ledger.register(whole, accept_change=True)
    with pytest.raises(HeldError, match="state 'first' holds transaction 2"):
        world.take_back()
    world.sickness.words.clear()
    assert world.committer().commit(3, take_over=True).committed == (2, 3)
    assert world.ledger.register(left, accept_change=True).former == ()


def test_a_commit_that_the_former_place_of_a_state_may_hold_is_not_taken_back(tmp_path: Path) -> None:
    world = Failing(tmp_path).failing()
    whole = world.topology.definition()
    moved = replace(whole, states={**whole.states, "first": StateDefinition(text="elsewhere", place="elsewhere")})
    world.ledger.register(moved, accept_change=True)
    with pytest.raises(HeldError, match=r"'first' \(SqliteState.*\) left .*commit cannot be taken back"):
        world.ledger.bar(2, owner="a person")


def test_a_state_that_left_before_the_commit_began_bars_no_taking_back(tmp_path: Path) -> None:
    world = FailingInGroup(tmp_path)
    whole = world.topology.definition()
    gone = replace(whole, states={**whole.states, "third": StateDefinition(text="of an earlier version")})
    world.ledger.register(gone, accept_change=True)
    world.ledger.register(whole, accept_change=True)
    world.failing()
    assert world.take_back() is Status.FAILED


def tickets_of(world: World) -> tuple[CommitTicket, dict[str, object]]:
    """A committer's ticket for transaction 2 and the batches that it has read, before it goes to the states."""
    committer = world.committer()
    ticket = single.gate(world.ledger, 2, owner="a committer that is stopped now")
    return ticket, dict(committer._staged(ticket))


@pytest.mark.parametrize("after", ["the ledger's bar", "the first state's", "all of it", "it is skipped and passed"])
def test_a_committer_that_wakes_up_brings_nothing_in_where_it_was_taken_back(tmp_path: Path, after: str) -> None:
    """Whenever it wakes: either the transaction is not taken back, or no state ever takes it."""
    world = Failing(tmp_path).failing()
    world.sickness.words.clear()  # so that the zombie's function works
    ticket, batches = tickets_of(world)
    refused: list[str] = []

    def wake_up() -> None:
        with OpenStates(world.topology) as states:
            for name, state in states.opened().items():
                try:
                    apply_batch(state, ticket, batches[name])  # type: ignore[arg-type]
                except FencedError:
                    refused.append(name)

    when = {"the ledger's bar": "fence", "the first state's": "state first"}.get(after)

    def progress(line: str) -> None:
        if when and when in line:
            wake_up()

    try:
        world.take_back(progress)
        assert after != "the ledger's bar"
    except HeldError:
        assert after in ("the ledger's bar", "the first state's")
    if world.statuses()[1] is Status.FAILED:
        if after == "it is skipped and passed":
            world.ledger.skip(2, "a person said so")
            world.committer().commit(3)
        wake_up()
        assert refused == ["first", "second"]
    world.backfill().run(Selection(first=2, last=2))
    world.committer().commit(3)
    assert world.statuses() == [Status.COMMITTED] * 3
    assert world.held() == [{"a": 2, "poison": 1, "b": 1}] * 2


def test_a_committer_that_opens_the_gate_meanwhile_keeps_its_commit(tmp_path: Path) -> None:
    world = Failing(tmp_path).failing()
    world.sickness.words.clear()

    def progress(line: str) -> None:
        if "state second" in line:
            world.committer().commit(2, take_over=True)

    with pytest.raises(FencedError):
        world.take_back(progress)
    assert world.statuses() == [Status.COMMITTED] * 3
    assert world.held() == [{"a": 2, "poison": 1, "b": 1}] * 2


def test_a_late_transaction_is_taken_back_too(tmp_path: Path) -> None:
    world = Failing(tmp_path)
    world.sickness.words.add("poison")
    for number in (1, 2, 3):
        world.begin(f"run-{number}")
    world.ledger.skip(2, "x")
    for number in (1, 3):
        world.process(number)
    world.committer().commit(3)
    (failed,) = world.backfill().run(Selection(first=2, last=2))
    assert failed.outcome is BackfillOutcome.FAILED
    assert world.take_back() is Status.FAILED
    world.ledger.skip(2, "x")
    assert world.held() == [{"a": 1, "b": 1}] * 2


# ---- kills in between ------------------------------------------------------------------------------------------


@pytest.mark.zookeeper
@pytest.mark.parametrize("line", ["fence", "state first", "state second"])
def test_p9_killed_between_any_two_steps_it_is_taken_back_or_committed_by_the_next(
    line: str, tmp_path: Path, zookeeper: EmbeddedZooKeeper, ledger_root: str
) -> None:
    settings = ZooKeeperSettings(hosts=zookeeper.hosts)

    def client() -> Ledger:
        return open_ledger(settings, "world", root=ledger_root)

    world = Failing(tmp_path)
    world.ledger = client()
    world.failing()

    def killed() -> None:
        child = os.fork()
        if not child:
            try:
                world.ledger = client()
                world.take_back(lambda said: os.kill(os.getpid(), signal.SIGKILL) if line in said else None)
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL

    killed()
    assert world.statuses()[1] is Status.COMMITTING
    assert world.take_back() is Status.FAILED
    with pytest.raises(TransitionError, match="nothing to take back"):
        world.take_back()
    (failed,) = world.backfill().run(Selection(first=2, last=2))
    assert failed.outcome is BackfillOutcome.FAILED
    killed()
    world.sickness.words.clear()
    assert replace(world.committer(), engine=LocalEngine).commit(3, take_over=True).committed == (2, 3)
    assert world.held() == [{"a": 2, "poison": 1, "b": 1}] * 2
    world.ledger.close()
