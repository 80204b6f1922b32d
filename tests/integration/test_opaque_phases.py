"""Opaque spouts and the phases: whose batch is taken while it is processed, who emits again what nobody is at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from airflow_trident import Count, SqliteState, Topology
from airflow_trident.engine.engine import Engine, Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import SparkJobError, TransitionError
from airflow_trident.ledger.answers import Begun
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.protocol.decide import AlreadyCommitted, Blocked, Wait
from airflow_trident.protocol.records import Claim, Status, TxRecord
from airflow_trident.runtime.backfill import Backfill, Selection
from airflow_trident.runtime.commit import Committer, SweepResult
from airflow_trident.runtime.debugging import bisect
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.phases import Attempts, ProcessOutcome, process
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest
from tests.fixtures import single
from tests.fixtures.spout import OpaqueFolderSpout, append

ROWS = [(number, f"name {number}") for number in range(6)]


@dataclass
class World:
    """One row per batch, unless `at_once` of the spout's folder says otherwise."""

    folder: Path
    tree: MemoryTree = field(default_factory=MemoryTree)

    def __post_init__(self) -> None:
        append(self.folder / "source", "part", ROWS)

    def topology(self, at_once: int) -> Topology:
        made = Topology("opaque")
        rows = made.new_stream("rows", OpaqueFolderSpout(self.folder / "source", at_once=at_once))
        rows.group_by("id").persistent_aggregate(SqliteState(str(self.folder / "rows.db")), Count(), "n")
        return made

    def ledger(self) -> ZNodeLedger:
        return ZNodeLedger(MemoryZNodes(self.tree), "opaque")

    def begin(self, count: int) -> None:
        for number in range(count):
            begun = single.coordinate(self.ledger(), self.topology(1), Claim(key=f"run-{number}"), max_pending=10)
            assert isinstance(begun, Begun)

    def process(self, txid: int, at_once: int = 1, engine: Engine | None = None) -> ProcessOutcome:
        attempts = Attempts(owner="emitter")
        root = str(self.folder / "staging")
        return process(self.ledger(), self.topology(at_once), txid, engine or LocalEngine(), root, attempts).outcome

    def commit(self, txid: int, at_once: int = 1) -> SweepResult:
        return self.committer(at_once).commit(txid)

    def committer(self, at_once: int = 1) -> Committer:
        return Committer(
            ledger=self.ledger(),
            topology=self.topology(at_once),
            staging_root=str(self.folder / "staging"),
            attempts=Attempts(owner="committer"),
            engine=LocalEngine,
        )

    def tx(self, txid: int) -> TxRecord:
        record = self.ledger().view(txid).tx
        assert record is not None
        return record

    def ids(self) -> dict[object, object]:

        (spec,) = self.topology(1).states.values()
        with spec.factory.make_state(spec) as state:
            return {key: value for (key,), (value,) in state.items()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class Interrupted(LocalEngine):
    """Something happens after the work of the first attempt."""

    def __init__(self, what: Callable[[], object]) -> None:
        super().__init__()
        self.what = [what]

    def run(self, job: Job) -> Manifest:
        done = super().run(job)
        while self.what:
            self.what.pop()()
        return done


def test_the_spout_is_opaque(world: World) -> None:
    assert world.topology(1).spouts["rows"].opaque
    assert world.topology(1).opaque


def test_an_emitter_whose_batch_is_taken_while_it_works_processes_the_new_one(world: World) -> None:
    world.begin(2)
    world.process(1)

    assert world.process(2, engine=Interrupted(lambda: world.process(1, at_once=2))) is ProcessOutcome.PROCESSED
    assert world.tx(2).attempt == 2
    assert world.commit(2).committed == (1, 2)
    assert world.ids() == {0: 1, 1: 1, 2: 1}


def test_an_emitter_whose_batch_is_taken_leaves_the_work_to_the_committer_while_there_is_no_batch_below(
    world: World,
) -> None:
    world.begin(3)
    world.process(1)
    taken = Interrupted(lambda: world.process(1, at_once=2))
    assert world.process(3, engine=taken) is ProcessOutcome.WAITS_FOR_BATCH
    assert [world.tx(txid).invalidated for txid in (1, 2, 3)] == [False, True, True]
    result = world.commit(3)
    assert (result.committed, result.own) == ((1, 2, 3), AlreadyCommitted(3))
    assert world.ids() == {0: 1, 1: 1, 2: 1, 3: 1}


class Ill(LocalEngine):
    def run(self, job: Job) -> Manifest:
        raise SparkJobError("the cluster is gone", "Wait for it.")


def test_a_transaction_that_a_committer_cannot_emit_again_for_another_fails_at_last_and_keeps_nobody_waiting(
    world: World,
) -> None:
    world.begin(3)
    for txid in (1, 3):
        world.process(txid)
    world.process(1, at_once=2)
    for txid in (2, 3):
        assert world.tx(txid).invalidated
    with pytest.raises(TransitionError, match="transaction 2 has no batch"):
        bisect(world.ledger(), world.topology(1), 2, LocalEngine())
    committer = replace(world.committer(), engine=Ill, takes_up=lambda record: record.owner.program == "committer")
    waits = [committer.commit(3).own for _ in range(4)]
    assert [type(own) for own in waits] == [Wait, Wait, Blocked, Blocked]
    assert (world.tx(2).status, world.tx(2).attempt) == (Status.FAILED, 3)
    assert "cluster is gone" in world.tx(2).error


def test_an_emitter_that_another_attempt_overtakes_is_done(world: World) -> None:
    world.begin(1)
    assert world.process(1, engine=Interrupted(lambda: world.process(1))) is ProcessOutcome.SUPERSEDED
    assert world.tx(1).status is Status.PROCESSED
    assert world.tx(1).attempt == 1


def test_a_late_replay_also_commits_those_that_lost_their_batch_to_it(world: World) -> None:
    world.begin(4)
    for txid in (1, 2, 3, 4):
        world.process(txid)
    world.ledger().fail(1, 0, "used up")
    world.ledger().skip(3, "let it pass")
    backfill = Backfill(
        ledger=world.ledger(),
        topology=world.topology(2),
        engine=LocalEngine,
        staging_root=str(world.folder / "staging"),
        owner="person",
    )
    (done,) = backfill.run(Selection(failed=True))
    assert done.also_committed == (2, 3, 4)
    assert world.ids() == dict.fromkeys(range(6), 1)
    assert world.tx(4).metadata == {}


def test_a_state_that_holds_the_batch_already_gets_the_other_one_instead(world: World) -> None:
    world.begin(2)
    for txid in (1, 2):
        world.process(txid)
    ticket = single.gate(world.ledger(), 1, owner="killed")
    (spec,) = world.topology(1).states.values()
    area = StagingArea(str(world.folder / "staging"))
    with spec.factory.make_state(spec) as state:
        state.apply(ticket, area.read(area.load(ticket.staged), spec.name, spec.staged))
    assert world.ids() == {0: 1}
    (world.folder / "staging" / ticket.staged.manifest).unlink()
    assert world.commit(1, at_once=3).committed == (1, 2)
    assert world.ids() == dict.fromkeys(range(6), 1)


def test_a_run_in_one_process_takes_everything_once(world: World) -> None:
    runner = LocalRunner(
        ledger=world.ledger(),
        topology=world.topology(2),
        engine=LocalEngine(),
        staging_root=str(world.folder / "staging"),
    )
    world.begin(2)
    runner.run()
    assert world.ids() == dict.fromkeys(range(6), 1)
