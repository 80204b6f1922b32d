"""`repair` where states lack transactions: skipped ones, those of a stream that is gone, those before they came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count, SqliteState, Topology
from airflow_trident.contracts.state import Marker
from airflow_trident.errors import CorruptError, TransitionError
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree
from airflow_trident.ledger.recovery import KnownTransactions, seed_from
from airflow_trident.protocol.records import Command
from airflow_trident.runtime.repair import repair
from tests.fixtures.repairs import NAME, RepairWorld, ledger_on
from tests.fixtures.runtime import copy_of
from tests.fixtures.spout import FolderSpout, append


@pytest.fixture
def world(tmp_path: Path) -> RepairWorld:
    """States that count the rows of streams; a transaction reads one row of each stream that has one."""

    def make(streams: str = "ab", states: tuple[str, ...] = ("first", "second")) -> Topology:
        topology = Topology(NAME)
        parts = [topology.new_stream(name, FolderSpout(tmp_path / name, at_once=1)) for name in streams]
        rows = (topology.merge(parts) if len(parts) > 1 else parts[0]).group_by("name")
        for name in states:
            rows.persistent_aggregate(SqliteState(str(tmp_path / f"{name}.db")), Count(), name)
        return topology

    for name in "ab":
        (tmp_path / name).mkdir()
    return RepairWorld(tmp_path, make)


def give(world: RepairWorld, *rows: str) -> None:
    for row in rows:
        append(world.folder / row[0], "part", [(int(row[1:]), row)])


def counted(*rows: str) -> dict[Any, Any]:
    return dict.fromkeys(rows, 1)


def died_above_a_skipped_one(world: RepairWorld, *, known: bool, closed: bool = False) -> ZNodeLedger:
    """2 was skipped, which read b, and 3, which reads a, came to one state; the ledger that is there, which knows
    that if it is `known`."""
    give(world, "a1", "b1")
    world.run("run-1")
    give(world, "b2")
    world.begin("run-2")
    world.ledger.skip(2, "b2 is poison")
    if closed:
        world.ledger.close_transaction(2, "and stays so")
    give(world, "a2")
    world.begin("run-3")
    world.process(3)
    backup = copy_of(world.tree)
    world.die_after("first", 3)
    return ledger_on(backup if known else MemoryTree())


def repair_and_go_on(world: RepairWorld, ledger: ZNodeLedger) -> None:
    repair(ledger, world.make(), world.staging, take_over="the ledger was deleted")
    give(world, "b3")
    world.replay_and_go_on(ledger, 3)
    assert world.contents() == [counted("a1", "b1", "a2", "b3")] * 2


@pytest.mark.parametrize("known", [True, False])
def test_what_was_skipped_comes_to_no_state_with_the_transaction_above_it(world: RepairWorld, known: bool) -> None:
    """Only the ledger tells whether the highest transaction or the skipped one below it read a stream."""
    restored = died_above_a_skipped_one(world, known=known)
    if not known:
        with pytest.raises(CorruptError, match="which of the streams a, b it read"):
            repair(restored, world.make(), world.staging, take_over="the ledger was deleted")
        assert world.contents() == [counted("a1", "b1", "a2"), counted("a1", "b1")]
        return
    repair_and_go_on(world, restored)


@pytest.mark.parametrize("known", [True, False])
def test_a_closed_transaction_is_not_missed_if_the_ledger_that_is_there_knows_it(
    world: RepairWorld, known: bool
) -> None:
    """A state that went over it has forgotten that it lacks it."""
    restored = died_above_a_skipped_one(world, known=known, closed=True)
    if not known:
        with pytest.raises(CorruptError, match="2 to 2 are lost"):
            repair(restored, world.make(), world.staging, take_over="the ledger was deleted")
        return
    repair_and_go_on(world, restored)


def test_one_stream_alone_needs_no_ledger_that_knows_what_was_skipped(world: RepairWorld) -> None:
    give(world, "a1", "b1")
    world.run("run-1")
    for row in ("a2", "a3"):
        give(world, row)
        world.begin(f"run-{row}")
    world.ledger.skip(2, "a2 is poison")
    world.process(3)
    world.die_after("first", 3)
    lost = ledger_on(MemoryTree())
    repair(lost, world.make(), world.staging, take_over="the ledger was deleted")
    world.replay_and_go_on(lost, 3)
    assert world.contents() == [counted("a1", "b1", "a3")] * 2


def test_a_transaction_of_a_stream_that_is_gone_is_not_replayed_without_it(world: RepairWorld) -> None:
    give(world, "a1", "b1")
    world.run("run-1")
    give(world, "a2", "b2")
    world.begin("run-2")
    world.process(2)
    world.die_after("first", 2)
    lost = ledger_on(MemoryTree())
    with pytest.raises(CorruptError, match=r"read stream 'b', which topology 'world' has no more.*DAG as it was"):
        repair(lost, world.make(streams="a"), world.staging, take_over="the ledger was deleted")
    repair(lost, world.make(), world.staging, take_over="the ledger was deleted")
    world.replay_and_go_on(lost, 2)
    assert world.contents() == [counted("a1", "b1", "a2", "b2")] * 2


THREE = ("first", "second", "third")


ROWS = ("a1", "a2", "a3", "a4", "a5")


@pytest.fixture
def grown(world: RepairWorld) -> RepairWorld:
    """A third state was added at transaction 3, which no state but the first two has; its ledger is from before."""
    give(world, *ROWS)
    world.run("run-1", "run-2")
    two = world.make
    world.ledger.register(two(states=THREE).definition(), accept_change=True)
    backup = copy_of(world.tree)
    world.make = lambda states=THREE: two(states=states)
    world.begin("run-3")
    world.process(3)
    world.die_after("second", 3)
    world.tree = backup
    return world


def test_a_state_that_was_added_needs_nothing_from_before_it(grown: RepairWorld) -> None:
    repair(grown.ledger, grown.make(), grown.staging, take_over="the ledger was deleted")
    grown.replay_and_go_on(grown.ledger, 3)
    assert grown.ledger.view(0).topology.since == {"first": 1, "second": 1, "third": 3}
    assert grown.contents() == [counted(*ROWS), counted(*ROWS), counted("a3", "a4", "a5")]


def test_a_state_that_was_added_is_added_again_if_nobody_knows_when_it_was(grown: RepairWorld) -> None:
    grown.tree = MemoryTree()
    with pytest.raises(CorruptError, match="If 'third' was added lately, repair with the DAG as it was without it"):
        repair(grown.ledger, grown.make(), grown.staging, take_over="the ledger was deleted")
    repair(grown.ledger, grown.make(("first", "second")), grown.staging, take_over="the ledger was deleted")
    grown.ledger.register(grown.make().definition(), accept_change=True)
    grown.run("run-4", "run-5")
    assert grown.contents() == [counted(*ROWS), counted(*ROWS), counted("a4", "a5")]


@pytest.mark.parametrize("since", [4, 9])
def test_a_state_to_which_nothing_came_yet_is_not_waited_for(since: int) -> None:
    held = {
        "old": Marker(incarnation="x", high=3, fence=4, position={"s": 3}),
        "new": Marker(incarnation="", high=0, fence=0),
    }
    seed = seed_from(held, KnownTransactions(incarnation="x", since={"old": 1, "new": since}))
    assert seed is not None
    assert (seed.committed, seed.unfinished, dict(seed.position), seed.gaps) == (3, None, {"s": 3}, ())
    assert seed.since == {"new": 4}, "its first one is the next one"
    with pytest.raises(CorruptError, match="'new' holds transactions up to 0"):
        seed_from(held, KnownTransactions(incarnation="another life", since={"new": since}))


def test_who_paused_the_topology_finds_it_paused(world: RepairWorld) -> None:
    give(world, "a1", "a2")
    world.run("run-1")
    world.ledger.set_command(Command.PAUSE)
    restored = ledger_on(copy_of(world.tree))
    world.ledger.set_command(Command.RUN)
    world.run("run-2")
    repair(restored, world.make(), world.staging, take_over="the ledger was deleted")
    record = restored.view(0).topology
    assert (record.command, record.epoch) == (Command.PAUSE, 1)


def test_a_dry_run_says_that_nothing_has_to_be_repaired(world: RepairWorld) -> None:
    give(world, "a1")
    world.run("run-1")
    with pytest.raises(TransitionError, match="Nothing has to be repaired"):
        repair(world.ledger, world.make(), world.staging, dry_run=True)


def test_a_dry_run_changes_nothing(world: RepairWorld) -> None:
    give(world, "a1")
    world.run("run-1")
    lost, said = MemoryTree(), list[str]()
    seed = repair(ledger_on(lost), world.make(), world.staging, dry_run=True, progress=said.append)
    assert (seed.next_txid, said[-1]) == (2, "dry run: nothing was changed")
    assert not copy_of(lost).children("/"), "nothing was written"
