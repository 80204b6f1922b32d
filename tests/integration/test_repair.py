"""`repair` seeds a ledger from what the states hold, and every record still counts once."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_trident import Count, FixedBatchSpout, SqliteState, Topology
from airflow_trident.contracts.state import Marker, digest_of
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import CorruptError, LedgerBehindStateError, TransitionError
from airflow_trident.ledger.memory_znodes import MemoryTree
from airflow_trident.ledger.recovery import seed_from
from airflow_trident.ledger.transact import Transactor
from airflow_trident.ledger.znodes import Delete, Set
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.backfill import Backfill, BackfillOutcome, Selection
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.phases import coordinate
from airflow_trident.runtime.repair import repair
from airflow_trident.staging.area import StagingArea
from tests.fixtures import single
from tests.fixtures.repairs import ledger_on
from tests.fixtures.runtime import ALL, World, copy_of


def run(world: World, transactions: int | None = None) -> list[int]:
    runner = LocalRunner(ledger=world.ledger, topology=world.topology, engine=LocalEngine(), staging_root=world.staging)
    return runner.run(max_transactions=transactions)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_p11_a_wiped_ledger_is_seeded_and_the_rest_is_counted_once(world: World) -> None:
    world.ledger = ledger_on(MemoryTree())
    assert run(world, 3) == [1, 2, 3]
    wiped = ledger_on(MemoryTree())
    world.ledger = wiped
    with pytest.raises(LedgerBehindStateError):
        run(world)
    seed = repair(wiped, world.topology, world.staging, take_over="the ledger was deleted")
    assert (seed.committed, seed.next_txid, seed.unfinished) == (3, 4, None)
    assert run(world) == [4, 5]
    assert world.counts() == ALL


def test_p11_a_restored_ledger_is_seeded_and_the_rest_is_counted_once(world: World) -> None:
    tree = MemoryTree()
    world.ledger = ledger_on(tree)
    assert run(world, 1) == [1]
    world.begin("in flight")  # the copy holds a transaction that was begun and is committed later
    backup = copy_of(tree)
    assert run(world, 2) == [2, 3]
    restored = ledger_on(backup)
    world.ledger = restored
    with pytest.raises(LedgerBehindStateError):
        world.begin("another run")
    repair(restored, world.topology, world.staging, take_over="the ledger was deleted")
    assert run(world) == [4, 5]
    assert world.counts() == ALL


def test_p11_a_ledger_that_is_behind_by_a_fence_alone_is_seeded_too(world: World) -> None:
    """What begins and commits refuse has a cure: the copy knows all transactions, and not that one is committed."""
    tree = MemoryTree()
    world.ledger = ledger_on(tree)
    assert run(world, 1) == [1]
    world.begin("run-2")
    world.begin("run-3")
    backup = copy_of(tree)
    world.process(2)
    world.committer().commit(2)
    restored = ledger_on(backup)
    world.ledger = restored
    with pytest.raises(LedgerBehindStateError, match="airflow trident repair"):
        world.begin("another run")
    seed = repair(restored, world.topology, world.staging, take_over="the ledger was deleted")
    assert (seed.committed, seed.next_txid) == (2, 3)
    assert restored.export()["claims"] == {
        "run-2": 2,
        **{key: 1 for key in restored.export()["claims"] if key != "run-2"},
    }
    assert run(world) == [3, 4, 5]
    assert world.counts() == ALL


def test_a_repair_that_was_killed_is_run_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(KeyboardInterrupt):
        pass

    def killed(*_: object, **__: object) -> None:
        raise Killed

    tree = MemoryTree()
    world.ledger = ledger_on(tree)
    assert run(world, 1) == [1]
    backup = copy_of(tree)
    assert run(world, 1) == [2]
    world.begin("run-3")
    world.process(3)  # leaves a staged batch, whose number is given out again
    world.ledger = restored = ledger_on(backup)
    for owner, step in ((StagingArea, "remove_from"), (Transactor, "apply")):
        with monkeypatch.context() as patched:
            patched.setattr(owner, step, killed)
            with pytest.raises(Killed):
                repair(restored, world.topology, world.staging, take_over="the ledger was deleted")
    repair(restored, world.topology, world.staging, take_over="the ledger was deleted")
    assert run(world) == [3, 4, 5]
    assert world.counts() == ALL


def test_a_transaction_that_only_some_states_have_is_replayed_with_the_very_same_batch(tmp_path: Path) -> None:
    topology = Topology("world")
    for number in (1, 2):
        spout = FixedBatchSpout("line string", [(f"{number} {row}",) for row in range(6)], 2)
        stream = topology.new_stream(f"s{number}", spout)
        stream.persistent_aggregate(SqliteState(f"{tmp_path}/{number}.db"), Count(), f"n{number}")
    staging = str(tmp_path / "staging")
    ledger = ledger_on(MemoryTree())
    runner = LocalRunner(ledger=ledger, topology=topology, engine=LocalEngine(), staging_root=staging)
    runner.run(max_transactions=1)
    world = World(tmp_path / "unused")
    world.ledger, world.topology, world.staging = ledger, topology, staging
    world.begin("run-2")
    world.process(2)
    ticket = single.gate(ledger, 2, owner="dies between two states")
    area, spec = StagingArea(staging), topology.states["n1"]
    with spec.factory.make_state(spec) as state:
        state.apply(ticket, area.read(area.load(ticket.staged), "n1", spec.staged))

    wiped = ledger_on(MemoryTree())
    seed = repair(wiped, topology, staging, take_over="the ledger was deleted")
    assert (seed.committed, seed.next_txid) == (1, 3)
    assert set(seed.unfinished or ()) == {"s1", "s2"}
    assert wiped.view(0).exceptions.unfinished == (2,), "people see it, and no task does"
    backfill = Backfill(ledger=wiped, topology=topology, engine=LocalEngine, staging_root=staging, owner="person")
    assert [(one.txid, one.outcome) for one in backfill.run(Selection(failed=True))] == [(2, BackfillOutcome.COMMITTED)]
    assert LocalRunner(ledger=wiped, topology=topology, engine=LocalEngine(), staging_root=staging).run() == [3]
    for name, spec in topology.states.items():
        with spec.factory.make_state(spec) as state:
            assert list(state.items()) == [((), (6,))], name


def test_a_second_environment_takes_nothing_over_without_a_word_and_its_word_is_kept(world: World) -> None:
    """Another [trident] root, the same path of the state: advice that was followed gave it production's table."""
    production = world.ledger = ledger_on(MemoryTree())
    assert run(world, 2) == [1, 2]
    other = world.ledger = ledger_on(MemoryTree())
    with pytest.raises(LedgerBehindStateError, match="another environment writes this state") as refused:
        run(world)
    text = str(refused.value)
    assert text.index("[trident] root") < text.index("airflow trident repair")
    before = other.export()
    with pytest.raises(TransitionError, match="another environment may write these states") as asked:
        repair(other, world.topology, world.staging)
    assert other.export() == before

    world.ledger = production
    assert run(world, 1) == [3], "production goes on"
    production.close()
    for advice in (text, str(asked.value)):
        (command,) = re.findall("`(airflow trident repair .*?)`", advice)
        _, _, name, topology, option, reason = shlex.split(command)
        assert (name, topology, option) == ("repair", "world", "--take-over")
    repair(other, world.topology, world.staging, take_over=reason)
    assert other.topology().taken_over == (reason,)
    world.ledger = other
    assert run(world) == [4, 5]
    assert world.counts() == ALL
    with pytest.raises(TransitionError, match="not behind"):
        repair(other, world.topology, world.staging)


def test_a_sound_ledger_is_not_touched(world: World) -> None:
    ledger = ledger_on(MemoryTree())
    world.ledger = ledger
    run(world, 2)
    world.begin("run-3")
    before = ledger.export()
    with pytest.raises(TransitionError, match="it is not behind"):
        repair(ledger, world.topology, world.staging, take_over="the ledger was deleted")
    assert ledger.export() == before


def test_nothing_to_seed_from_is_said(world: World) -> None:
    with pytest.raises(TransitionError, match="nothing to seed"):
        repair(ledger_on(MemoryTree()), world.topology, world.staging)


def test_a_dry_run_changes_nothing(world: World) -> None:
    world.ledger = ledger_on(MemoryTree())
    run(world, 1)
    tree, said = MemoryTree(), []
    repair(ledger_on(tree), world.topology, world.staging, dry_run=True, progress=said.append)
    assert tree.children("/") == frozenset()
    assert said[-1] == "dry run: nothing was changed"


def test_a_cleared_run_whose_claim_was_lost_is_refused_after_a_repair(world: World) -> None:
    world.ledger = ledger_on(MemoryTree())
    run(world, 1)
    wiped = ledger_on(MemoryTree())
    repair(wiped, world.topology, world.staging, take_over="the ledger was deleted")
    with pytest.raises(TransitionError, match="claim was pruned"):
        single.begin(wiped, Claim(key="local/1", cleared=True, run_ms=1), lambda *_: {"lines": {"from": 1, "to": 2}})


@pytest.mark.parametrize(
    ("held", "text"),
    [
        (
            {
                "a": Marker(incarnation="x", high=3, fence=0),
                "b": Marker(incarnation="y", high=3, fence=0),
            },
            "lives",
        ),
        (
            {
                "a": Marker(incarnation="x", high=3, fence=0),
                "b": Marker(incarnation="x", high=7, fence=0),
            },
            "4 to 6",
        ),
    ],
)
def test_states_that_contradict_each_other_are_named(held: dict[str, Marker], text: str) -> None:
    with pytest.raises(CorruptError, match=text):
        seed_from(held)


def test_left_out_transactions_between_two_states_are_no_contradiction() -> None:
    seed = seed_from(
        {
            "a": Marker(incarnation="x", high=3, fence=4, position={"s": 3}),
            "b": Marker(incarnation="x", high=6, fence=9, holes=((4, 5),), position={"s": 6}),
        }
    )
    assert seed is not None
    assert (seed.committed, seed.next_txid, seed.fence, seed.lost) == (5, 7, 9, ((4, 5),))
    assert seed.unfinished == {"s": 6}


@pytest.mark.parametrize("known", [True, False])
def test_a_group_that_only_one_state_has_goes_on_if_the_ledger_that_is_there_knows_its_batches(
    tmp_path: Path, known: bool
) -> None:
    """A marker has only digests of what came in one step with its highest transaction."""
    topology = Topology("world")
    words = topology.new_stream("lines", FixedBatchSpout("word string", [(word,) for word in "abcdefgh"], 2))
    for name in ("first", "second"):
        state = SqliteState(str(tmp_path / f"{name}.db"))
        words.group_by("word").persistent_aggregate(state, Count(), name)
    tree, world = MemoryTree(), World(tmp_path / "unused")
    world.ledger, world.topology, world.staging = ledger_on(tree), topology, str(tmp_path / "staging")
    assert run(world, 1) == [1]
    copies = [copy_of(tree)]
    for number in (2, 3):
        coordinate(world.ledger, topology, [Claim(key=f"run-{number}", run_ms=number)])
    copies.append(copy_of(tree))
    for txid in (2, 3):
        world.process(txid)

    class Killed(KeyboardInterrupt):
        pass

    def killed(line: str) -> None:
        if "transactions 2 to 3 (2 of them): 4 rows into state first" in line:
            raise Killed

    with pytest.raises(Killed):
        replace(world.committer(), progress=killed).commit(3)
    world.ledger = restored = ledger_on(copies[known])
    with pytest.raises(LedgerBehindStateError):
        world.begin("another run")
    if not known:
        with pytest.raises(CorruptError, match=r"'second' .* up to 1 .* 'first' up to 3: 2 to 2 are lost in the first"):
            repair(restored, topology, world.staging, take_over="the ledger was deleted")
        return
    seed = repair(restored, topology, world.staging, take_over="the ledger was deleted")
    assert (seed.committed, seed.next_txid, seed.unfinished_txids) == (1, 4, (2, 3))
    assert restored.view(0).exceptions.unfinished == (2, 3)
    found = restored.transactions(2)
    assert [(tx.claim.key, tx.time_ms) for tx in found] == [("run-2", 2), ("run-3", 3)], (
        "what is made of it is the same"
    )
    assert [tx.begun_ms for tx in found] == [tx.begun_ms for tx in ledger_on(copies[1]).transactions(2)]
    list(world.backfill().run(Selection(failed=True)))
    assert run(world) == [4]
    for name, spec in topology.states.items():
        with spec.factory.make_state(spec) as state:
            assert {key[0]: value[0] for key, value in state.items()} == dict.fromkeys("abcdefgh", 1), name


@pytest.mark.parametrize("what", ["head", "commit", "exceptions", "tx"])
def test_no_record_of_the_ledger_that_is_there_stops_a_repair(world: World, what: str) -> None:
    tree = MemoryTree()
    world.ledger = ledger_on(tree)
    run(world, 1)
    world.begin("in flight")
    backup, paths = copy_of(tree), world.ledger.paths()
    run(world, 2)
    path = paths.tx(2) if what == "tx" else getattr(paths, what)
    found = backup.get(path)
    assert found is not None
    backup.apply([Set(path, b"garbage", found.version)] if what in ("exceptions", "tx") else [Delete(path)])
    world.ledger = restored = ledger_on(backup)
    repair(restored, world.topology, world.staging, take_over="the ledger was deleted")
    run(world)
    assert world.counts() == ALL


OPAQUE = Marker(incarnation="x", high=5, fence=9, position={"s": 7}, attempt=2)
GROUP = Marker(
    incarnation="x", high=6, fence=9, position={"s": 6}, group={5: digest_of({"s": 5}), 6: digest_of({"s": 6})}
)
OLDER = replace(OPAQUE, attempt=1, position={"s": 6})


@pytest.mark.parametrize(
    ("held", "number"),
    [
        ({"a": OPAQUE, "b": OLDER}, 5),  # a committer died before it replaced the batch of an older attempt here, too
        ({"a": replace(OPAQUE, high=6), "b": OPAQUE, "c": OLDER}, 5),  # one of two states below comes from a back-up
        ({"a": GROUP, "b": Marker(incarnation="x", high=5, fence=8, position={"s": 4})}, 5),  # of another history
        ({"a": GROUP, "b": replace(GROUP, group={}, position={"s": 7})}, 6),
    ],
)
def test_two_batches_of_one_transaction_are_not_taken_for_one(held: dict[str, Marker], number: int) -> None:
    with pytest.raises(CorruptError, match=f"'[ab]' and '[bc]' hold different batches of transaction {number}"):
        seed_from(held)


def test_a_batch_that_a_newer_attempt_will_replace_everywhere_may_differ() -> None:
    lower = Marker(incarnation="x", high=4, fence=8, position={"s": 4}, attempt=0)
    seed = seed_from({"a": OPAQUE, "b": OLDER, "c": lower})
    assert seed is not None
    assert (seed.committed, seed.unfinished_txids, seed.attempt) == (4, (5,), 2)


def test_a_state_that_has_a_part_of_a_group_is_brought_the_rest() -> None:
    seed = seed_from({"a": GROUP, "b": Marker(incarnation="x", high=5, fence=8, position={"s": 5})})
    assert seed is not None
    assert (seed.committed, seed.unfinished, seed.unfinished_txids) == (5, {"s": 6}, (6,))
