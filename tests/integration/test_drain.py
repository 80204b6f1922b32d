"""The drain: many transactions in one process, with the promises of all the others."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count, FixedBatchSpout, Function, OperationContext, SqliteState, Topology
from airflow_trident.engine.engine import Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import BlockedError, TridentError, UserCodeError
from airflow_trident.ledger.answers import Begun
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.ledger import MemoryLedger, ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryZNodes
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import Claim, OnFailure, Status
from airflow_trident.runtime.backfill import Selection
from airflow_trident.runtime.drains.drain import Drain, DrainResult
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.phases import Attempts, process
from airflow_trident.staging.manifest import Manifest
from tests.documented import documented
from tests.fixtures import single
from tests.fixtures.runtime import ALL, World


def drain(world: World, on_failure: OnFailure = OnFailure.BLOCK, **limits: object) -> DrainResult:
    return Drain(
        ledger=limits.pop("ledger", world.ledger),  # type: ignore[arg-type]
        topology=world.topology,
        engine=limits.pop("engine", LocalEngine()),  # type: ignore[arg-type]
        staging_root=world.staging,
        attempts=Attempts(owner="drain", on_failure=on_failure),
        claim=Claim(key="drain/run-1"),
        limits=DrainLimits(**limits),  # type: ignore[arg-type]
    ).run()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("max_pending", [1, 2, 10])
def test_everything_is_committed_once_in_order_and_a_second_drain_adds_nothing(world: World, max_pending: int) -> None:
    result = drain(world, max_pending=max_pending)
    assert (result.committed, result.rows_read) == ((1, 2, 3, 4, 5), 5)
    assert world.counts() == ALL
    assert drain(world, max_pending=max_pending).committed == ()
    assert world.counts() == ALL


def test_it_stops_after_so_many_transactions_and_goes_on_later(world: World) -> None:
    assert drain(world, max_transactions=2).committed == (1, 2)
    assert drain(world, max_transactions=2).committed == (3, 4)
    assert drain(world, max_time_s=0.0).committed == ()
    assert drain(world).committed == (5,)
    assert world.counts() == ALL


class Together(LocalEngine):
    """Every run waits until another transaction is processed at the same time."""

    def __init__(self, parties: int) -> None:
        super().__init__()
        self.barrier = threading.Barrier(parties)

    def run(self, job: Job) -> Manifest:
        if job.slot.txid <= self.barrier.parties:
            self.barrier.wait(timeout=30)
        return super().run(job)


def test_transactions_are_processed_at_the_same_time_and_commit_in_order(world: World) -> None:
    assert drain(world, max_pending=3, engine=Together(3)).committed == (1, 2, 3, 4, 5)
    assert world.counts() == ALL


class Stamp(Function):
    """The txid that it was prepared for; its first tuples wait until another transaction is at work, if one comes."""

    output_types = "long"
    together = threading.Barrier(2)

    def prepare(self, context: OperationContext) -> None:
        self.txid = context.txid
        with suppress(threading.BrokenBarrierError):
            self.together.wait(timeout=30)

    def execute(self, *values: Any) -> Iterator[int]:
        yield self.txid


def test_transactions_that_are_processed_at_the_same_time_have_operations_of_their_own(tmp_path: Path) -> None:
    topology = Topology("stamps")
    numbers = [(number // 20 + 1,) for number in range(80)]
    stream = topology.new_stream("numbers", FixedBatchSpout("batch long", numbers, 20)).each("batch", Stamp(), "stamp")
    store = SqliteState(str(tmp_path / "stamps.db"))
    stream.group_by("batch, stamp").persistent_aggregate(store, Count(), "n", name="stamps")
    with MemoryLedger("stamps") as ledger, LocalEngine(1) as engine:
        Drain(
            ledger=ledger,
            topology=topology,
            engine=engine,
            staging_root=str(tmp_path / "staging"),
            attempts=Attempts(owner="drain"),
            claim=Claim(key="drain/run-1"),
            limits=DrainLimits(max_pending=2),
        ).run()
    with store.make_state(topology.states["stamps"]) as state:
        assert sorted(state.items()) == [((number, number), (20,)) for number in (1, 2, 3, 4)]


def test_what_was_begun_and_left_by_others_is_taken_up(world: World) -> None:
    for number in (1, 2, 3):
        world.begin(f"run-{number}")
    world.process(2)
    assert drain(world).committed == (1, 2, 3, 4, 5)
    assert world.counts() == ALL


def test_a_transaction_that_keeps_failing_blocks_and_its_backfill_lets_the_drain_go_on(world: World) -> None:
    world.sickness.words.add("poison")
    with pytest.raises(UserCodeError, match="cannot stand poison"):
        drain(world, tries=2, max_pending=2)
    tx = world.ledger.view(3).tx
    assert tx is not None
    assert (tx.status, tx.attempt) == (Status.FAILED, 1)
    with pytest.raises(BlockedError, match="transaction 3"):
        drain(world, max_pending=2)
    world.sickness.words.clear()
    world.backfill().run(Selection(failed=True))
    drain(world)
    assert world.counts() == ALL


def test_with_on_failure_skip_the_others_pass(world: World) -> None:
    world.sickness.words.add("poison")
    assert drain(world, OnFailure.SKIP, tries=1).committed == (1, 2, 4, 5)
    world.sickness.words.clear()
    world.backfill().run(Selection(first=3, last=3))
    assert world.counts() == ALL


def test_two_drains_at_once_commit_everything_once(world: World) -> None:
    results: list[DrainResult] = []
    errors: list[Exception] = []

    def one() -> None:
        # A ledger is one thread's: each drain has its own client of the same tree.
        ledger = ZNodeLedger(MemoryZNodes(world.ledger.znodes.tree), world.ledger.topology_name)
        try:
            results.append(drain(world, max_pending=3, ledger=ledger))
        except TridentError as error:
            errors.append(error)

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert errors == []
    assert len(results) == 2
    assert sorted(txid for result in results for txid in result.committed) == [1, 2, 3, 4, 5]
    assert world.counts() == ALL


# ---- what it costs ---------------------------------------------------------------------------------------------


@pytest.mark.zookeeper
@pytest.mark.parametrize(("max_pending", "steps"), [(1, range(2, 3)), (None, range(2, 5))])
def test_a_transaction_takes_two_round_trips_to_four_and_the_states_stay_open(
    max_pending: int | None,
    steps: range,
    zookeeper: EmbeddedZooKeeper,
    ledger_root: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    make_state = SqliteState.make_state
    monkeypatch.setattr(SqliteState, "make_state", lambda self, spec: made.append(spec.name) or make_state(self, spec))
    with open_ledger(ZooKeeperSettings(hosts=zookeeper.hosts), "words", root=ledger_root) as ledger:
        result = Drain(
            ledger=ledger,
            topology=word_topology(tmp_path, 40),
            engine=LocalEngine(),
            staging_root=str(tmp_path / "staging"),
            attempts=Attempts(owner="drain"),
            claim=Claim(key="drain"),
            limits=DrainLimits(group=1, max_pending=max_pending),
        ).run()
        assert len(result.committed) == 40
        most = documented("scale.md", r"round trips \| 2 to (\d+), all of them writes")
        target = r"ledger round trips of a drain for each transaction \| (\d+) "
        assert most == documented("../benchmarks/README.md", target) == 4
        assert steps[0] * 40 < ledger.znodes.round_trips <= steps[-1] * 40 + 20
    assert made == ["counts"] * 2  # looked at before the first transaction begins; then for all commits


def word_topology(folder: Path, words: int) -> Topology:
    topology = Topology("words")
    stream = topology.new_stream("lines", FixedBatchSpout("word string", [f"w{n}" for n in range(words)], 1))
    stream.group_by("word").persistent_aggregate(SqliteState(str(folder / "words.db")), Count(), "n", name="counts")
    return topology


COMMIT = """
import sys
from pathlib import Path
import airflow_trident.operators.transaction
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.ledger.memory_znodes import MemoryZNodes
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.tasks.engines import make_engine
from airflow_trident.names import EngineKind
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.phases import Attempts
from tests.integration.test_drain import word_topology

hosts, root, folder = sys.argv[1:]
with open_ledger(ZooKeeperSettings(hosts=hosts), "words", root=root) as ledger:
    committer = Committer(
        ledger=ledger,
        topology=word_topology(Path(folder), 3),
        staging_root=folder + "/staging",
        attempts=Attempts(owner="committer"),
        engine=lambda: make_engine(EngineKind.SPARK, conn_id=None, conf={}, app_name="x"),
    )
    print(committer.commit(1).committed)
print([name for name in ("pyspark", "py4j", "grpc", "pandas") if name in sys.modules])
"""


@pytest.mark.zookeeper
@pytest.mark.airflow
def test_a_committer_applies_a_staged_batch_by_arrow_and_never_imports_spark(
    zookeeper: EmbeddedZooKeeper, ledger_root: str, tmp_path: Path
) -> None:
    topology = word_topology(tmp_path, 3)
    with open_ledger(ZooKeeperSettings(hosts=zookeeper.hosts), "words", root=ledger_root) as ledger:
        assert isinstance(single.coordinate(ledger, topology, Claim(key="run-1")), Begun)
        process(ledger, topology, 1, LocalEngine(), str(tmp_path / "staging"), Attempts(owner="emitter"))
    done = subprocess.run(
        [sys.executable, "-c", COMMIT, zookeeper.hosts, ledger_root, str(tmp_path)],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path / "home"), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-2:] == ["(1,)", "[]"], done.stderr
