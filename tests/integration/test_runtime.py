"""The phases together: failures, skips, sweeps, late backfills, zombies, lost ledgers. In one process, real stores."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count, FixedBatchSpout, SqliteState, Topology
from airflow_trident.engine.engine import Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import (
    BlockedError,
    DefinitionChangedError,
    FencedError,
    LedgerBehindStateError,
    SourceChangedError,
    StaleAttemptError,
    TransitionError,
    UserCodeError,
)
from airflow_trident.ledger.answers import NothingNew
from airflow_trident.ledger.ledger import MemoryLedger, ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.protocol.decide import AlreadyCommitted, Blocked, Full, Wait
from airflow_trident.protocol.records import Claim, OnFailure, Status
from airflow_trident.runtime.backfill import BackfillOutcome, Selection
from airflow_trident.runtime.debugging import dry_replay
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.staging.manifest import Manifest
from tests.fixtures import single
from tests.fixtures.runtime import ALL, WORDS, World, copy_of


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_everything_is_counted_once_and_a_second_run_adds_nothing(world: World) -> None:
    runner = LocalRunner(ledger=world.ledger, topology=world.topology, engine=LocalEngine(), staging_root=world.staging)
    assert runner.run() == [1, 2, 3, 4, 5]
    assert world.counts() == ALL
    assert runner.run() == []
    assert world.counts() == ALL


def test_p1_the_same_claim_gets_the_same_transaction(world: World) -> None:
    assert [world.begin("run-1"), world.begin("run-2"), world.begin("run-1")] == [1, 2, 1]


def test_a_claim_that_finds_nothing_new_begins_nothing(world: World) -> None:
    for number in range(5):
        world.begin(f"run-{number}")
    assert single.coordinate(world.ledger, world.topology, Claim(key="one more"), max_pending=10) == NothingNew()


def test_p5_no_more_than_max_pending_transactions_are_uncommitted(world: World) -> None:
    world.begin("run-1", max_pending=2)
    world.begin("run-2", max_pending=2)
    full = single.coordinate(world.ledger, world.topology, Claim(key="run-3"), max_pending=2)
    assert full == Full(oldest=1, pending=2)


def test_p6_a_processed_transaction_waits_for_its_predecessor_and_is_swept_along_with_it(world: World) -> None:
    for number in (1, 2, 3):
        world.begin(f"run-{number}")
    world.process(3)
    world.process(2)
    assert world.committer().commit(3).own == Wait(on=2, why="transaction 2 is not committed yet")
    world.process(1)
    assert world.committer().commit(1).committed == (1, 2, 3)
    assert isinstance(world.committer().commit(3).own, AlreadyCommitted)


def test_a_failed_transaction_blocks_the_later_ones_and_its_replay_commits_them_all(world: World) -> None:
    world.sickness.words.add("poison")
    for number in range(1, 6):
        world.begin(f"run-{number}")
        if number != 3:
            world.process(number)
    with pytest.raises(UserCodeError) as caught:
        world.process(3, last_try=True)
    for part in ("cannot stand poison", "each-1", "transaction 3", "line='poison c'"):
        assert part in str(caught.value)
    assert world.committer().commit(5).own == Blocked(by=3)
    assert world.statuses() == [Status.COMMITTED] * 2 + [Status.FAILED] + [Status.PROCESSED] * 2

    world.sickness.words.clear()
    (result,) = world.backfill().run(Selection(failed=True))
    assert (result.outcome, result.also_committed) == (BackfillOutcome.COMMITTED, (4, 5))
    assert world.counts() == ALL


def test_a_failed_attempt_with_retries_left_does_not_fail_the_transaction(world: World) -> None:
    world.sickness.words.add("a")
    world.begin("run-1")
    with pytest.raises(UserCodeError):
        world.process(1)
    tx = world.ledger.view(1).tx
    assert tx is not None
    assert (tx.status, tx.attempt) == (Status.PROCESSING, 0)
    assert "cannot stand a" in tx.error
    world.sickness.words.clear()
    world.process(1)
    tx = world.ledger.view(1).tx
    assert tx is not None
    assert (tx.status, tx.attempt) == (Status.PROCESSED, 1)


def test_on_failure_skip_lets_the_others_pass_and_the_skipped_one_is_backfilled_late_exactly_once(world: World) -> None:
    world.sickness.words.add("poison")
    for number in range(1, 6):
        world.begin(f"run-{number}")
        if number != 3:
            world.process(number)
    answers: list[Any] = []
    world.ledger.listener = lambda _ledger, _verb, answer: answers.append(answer)
    with pytest.raises(UserCodeError):
        world.process(3, last_try=True, on_failure=OnFailure.SKIP)
    ((begun,), over) = answers
    assert [begun.status, over.status] == [Status.PROCESSING, Status.SKIPPED], "nobody sees it FAILED, and ends"
    world.ledger.listener = None
    world.committer().commit(5)
    assert world.statuses() == [Status.COMMITTED] * 2 + [Status.SKIPPED] + [Status.COMMITTED] * 2
    world.sickness.words.clear()
    for outcome in (BackfillOutcome.COMMITTED, BackfillOutcome.ALREADY_COMMITTED):
        (result,) = world.backfill().run(Selection(first=3, last=3))
        assert result.outcome == outcome
        assert world.counts() == ALL


def test_a_backfill_of_a_range_asks_once_about_what_is_over_and_a_closed_one_has_not_failed(world: World) -> None:
    for number in range(1, 4):
        world.begin(f"run-{number}")
    world.ledger.skip(2, "withdrawn")
    for number in (1, 3):
        world.process(number)
        world.committer().commit(number)
    world.ledger.close_transaction(2, "nobody wants it")
    before = world.ledger.znodes.round_trips
    outcomes = [one.outcome for one in world.backfill().run(Selection(first=1, last=3))]
    several = world.ledger.znodes.round_trips - before
    over = BackfillOutcome.ALREADY_COMMITTED
    assert outcomes == [over, BackfillOutcome.CLOSED, over]
    before = world.ledger.znodes.round_trips
    world.backfill().run(Selection(first=1, last=2))
    assert world.ledger.znodes.round_trips - before == several, "the price of a range does not grow with it"
    (alone,) = world.backfill().run(Selection(first=2, last=2))
    assert (alone.outcome, "closed for good" in alone.detail) == (BackfillOutcome.FAILED, True), "it was named"


def test_a_late_batch_is_refused_where_the_aggregate_depends_on_order(tmp_path: Path) -> None:
    world = World(tmp_path, commutes=False)
    for number in (1, 2):
        world.begin(f"run-{number}")
    world.ledger.skip(1, "no need")
    world.process(2)
    assert world.committer().commit(2).committed == (2,)
    before = world.counts()
    (result,) = world.backfill().run(Selection(first=1, last=1))
    assert result.outcome is BackfillOutcome.FAILED
    assert "depends on the order" in result.detail
    assert world.counts() == before


class Overtaken(LocalEngine):
    """While it runs, somebody else processes the same transaction under a newer attempt."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def run(self, job: Job) -> Manifest:
        manifest = super().run(job)
        self.world.process(job.slot.txid)
        return manifest


def test_p4_a_zombie_attempt_that_ends_after_a_newer_one_changes_nothing(world: World) -> None:
    world.begin("run-1")
    with pytest.raises(StaleAttemptError):
        world.process(1, engine=Overtaken(world))
    tx = world.ledger.view(1).tx
    assert tx is not None
    assert tx.staged is not None
    assert (tx.status, tx.attempt) == (Status.PROCESSED, 1)
    assert "/1/manifest.json" in tx.staged.manifest


def test_p7_a_committer_that_was_overtaken_is_refused_by_the_state_and_by_the_ledger(world: World) -> None:
    world.begin("run-1")
    world.process(1)
    old = single.gate(world.ledger, 1, owner="old")
    assert world.committer().commit(1).committed == (1,)
    spec = world.topology.states["count"]
    from airflow_trident.staging.area import StagingArea

    area = StagingArea(world.staging)
    batch = area.read(area.load(old.staged), "count", spec.staged)
    with spec.factory.make_state(spec) as state, pytest.raises(FencedError):
        state.apply(old, batch)
    with pytest.raises(FencedError):
        single.committed(world.ledger, old)
    assert world.counts() == {"a": 1, "b": 1}


def test_a_staged_batch_that_is_gone_is_emitted_again_before_it_is_committed(world: World) -> None:
    world.begin("run-1")
    world.process(1)
    shutil.rmtree(world.staging)
    assert world.committer().commit(1).committed == (1,)
    assert world.counts() == {"a": 1, "b": 1}
    tx = world.ledger.view(1).tx
    assert tx is not None
    assert tx.attempt == 1


class Twice(World):
    """Two states."""

    def make(self) -> Topology:
        made = Topology("world")
        lines = made.new_stream("lines", FixedBatchSpout("line string", WORDS, 1))
        words = lines.each("line", lambda line: line.split(), "word string")
        store = SqliteState(str(self.folder / "words.db"))
        words.group_by("word").persistent_aggregate(store, Count(), "count")
        lines.persistent_aggregate(store, Count(), "n", name="second")
        return made


def test_a_staged_file_that_is_damaged_inside_is_emitted_again_although_a_state_has_the_batch(tmp_path: Path) -> None:
    """Its size and its end are right, so it is seen only when its rows are read, behind the state that came first."""
    world = Twice(tmp_path)
    world.begin("run-1")
    world.process(1)
    (damaged,) = Path(world.staging).rglob("second-*.parquet")
    content = bytearray(damaged.read_bytes())
    content[4:24] = b"\xff" * 20
    damaged.write_bytes(content)
    assert world.committer().commit(1).committed == (1,)
    assert world.counts() == {"a": 1, "b": 1}
    spec = world.topology.states["second"]
    with spec.factory.make_state(spec) as state:
        assert list(state.items()) == [((), (1,))]
    tx = world.ledger.view(1).tx
    assert tx is not None
    assert tx.attempt == 1


def test_p11_a_wiped_ledger_refuses_to_begin(world: World) -> None:
    world.begin("run-1")
    world.process(1)
    world.committer().commit(1)
    world.ledger = MemoryLedger("world")
    with pytest.raises(LedgerBehindStateError, match="the ledger was deleted"):
        world.begin("run-2")
    assert world.counts() == {"a": 1, "b": 1}


def test_p11_a_ledger_restored_from_an_old_copy_refuses_to_begin_and_to_commit(world: World) -> None:
    tree = MemoryTree()
    world.ledger = ZNodeLedger(MemoryZNodes(tree), "world")
    world.ledger.register(world.topology.definition())
    backup = copy_of(tree)
    world.begin("run-1")
    world.process(1)
    world.committer().commit(1)

    world.ledger = ZNodeLedger(MemoryZNodes(backup), "world")
    with pytest.raises(LedgerBehindStateError):
        world.begin("run-2")
    # Somebody gets past that check, and the old staged batches are gone too: the state itself refuses.
    single.begin(world.ledger, Claim(key="run-2"), lambda *_: {"lines": {"from": 1, "to": 2}})
    shutil.rmtree(world.staging)
    world.process(1)
    for _ in range(3):
        with pytest.raises(LedgerBehindStateError):
            world.committer().commit(1)
    assert world.counts() == {"a": 1, "b": 1}


def test_another_definition_under_the_same_name_is_refused(world: World) -> None:
    world.begin("run-1")
    world.topology = Topology("world")
    spout = FixedBatchSpout("line string", WORDS, 1)
    world.topology.new_stream("other", spout).persistent_aggregate(
        SqliteState(str(world.folder / "other.db")), Count(), "n"
    )
    with pytest.raises(DefinitionChangedError, match="stream lines: FixedBatchSpout transactional -> absent"):
        world.begin("run-2")


def test_an_unknown_transaction_is_named_with_those_that_exist(world: World) -> None:
    world.begin("run-1")
    with pytest.raises(TransitionError, match="never began transaction 7 \\(1 to 1 were\\)"):
        world.process(7)
    with pytest.raises(TransitionError, match="has transactions 1 to 1, not 1 to 9"):
        world.backfill().run(Selection(first=1, last=9))


def test_a_local_run_behind_a_failed_transaction_says_how_to_go_on(world: World) -> None:
    world.sickness.words.add("poison")
    runner = LocalRunner(ledger=world.ledger, topology=world.topology, engine=LocalEngine(), staging_root=world.staging)
    with pytest.raises(UserCodeError):
        runner.run()
    with pytest.raises(BlockedError, match=r"backfill world --txid 3.*airflow trident skip world 3"):
        runner.run()
    world.sickness.words.clear()
    world.backfill().run(Selection(failed=True))
    assert runner.run() == [4, 5]
    assert world.counts() == ALL


def test_a_dry_replay_is_equal_for_a_spout_that_gives_the_same_batch_again(world: World) -> None:
    world.begin("run-1")
    world.process(1)
    (difference,) = dry_replay(world.ledger, world.topology, 1, LocalEngine(), world.staging)
    assert difference.equal
    assert (difference.staged_rows, difference.replayed_rows) == (2, 2)


class Forgetful(LocalEngine):
    """Stands for a source that lost its metadata's data."""

    def run(self, job: Job) -> Manifest:
        raise SourceChangedError("file a.txt vanished", "Restore it.")


def test_a_dry_replay_finds_a_function_that_depends_on_more_than_its_input(world: World) -> None:
    world.begin("run-1")
    world.process(1)
    calls = iter(range(1000))

    def unstable(line: str) -> Iterator[str]:
        yield f"{line}{next(calls)}"

    changed = Topology("world")
    spout = FixedBatchSpout("line string", WORDS, 1)
    changed.new_stream("lines", spout).each("line", unstable, "word").group_by("word").persistent_aggregate(
        SqliteState(str(world.folder / "words.db")), Count(), "count"
    )
    (difference,) = dry_replay(world.ledger, changed, 1, LocalEngine(), world.staging)
    assert not difference.equal
    assert difference.missing == (("a", 1), ("b", 1))
    assert difference.extra == (("a b0", 1),)


def test_an_error_that_no_retry_can_cure_fails_the_transaction_at_once(world: World) -> None:
    world.begin("run-1")
    with pytest.raises(SourceChangedError):
        world.process(1, engine=Forgetful())
    assert world.statuses() == [Status.FAILED]
    world.process(1)
    assert world.committer().commit(1).committed == (1,)
