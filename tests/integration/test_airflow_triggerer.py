"""Waits in a real triggerer: without a worker slot, and without hanging on what nobody works on any more."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_trident.errors import UnknownTopologyError
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import Owner, Status, TxRecord
from tests.fixtures import single
from tests.fixtures.airflow import SERVERS, give_database
from tools import kills
from tools.local_airflow.folder import Folder
from tools.local_airflow.rest import wait_until
from tools.local_airflow.services import LocalAirflow

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper]

ROOT = "/triggerer-tests"
LIMIT_S = 240.0
DAGS = '''
import os, time
from pathlib import Path
from airflow.sdk import DAG, Asset, AssetWatcher
from airflow_trident import (
    Count, FixedBatchSpout, Function, SqliteState, Topology, TridentBatchTrigger, TridentDrainOperator,
    trident_transaction,
)

class Held(Function):
    """Says who is there and waits while a file says so."""
    def __init__(self, name):
        self.name = name
    def prepare(self, context):
        hold = Path(f"FOLDER/hold-{self.name}-{context.txid}")
        if hold.exists():
            partial = Path(f"FOLDER/here-{self.name}-{context.txid}.partial")
            partial.write_text(str(os.getpid()))
            partial.rename(partial.with_suffix(""))
        while hold.exists():
            time.sleep(0.02)
    def execute(self, word):
        yield word

def made(name, count=10):
    topology = Topology(name)
    words = topology.new_stream("lines", FixedBatchSpout("word string", [f"word{n % 3}" for n in range(count)], 2))
    kept = words.each("word", Held(name), "kept string").group_by("kept")
    kept.persistent_aggregate(SqliteState(f"FOLDER/{name}.db"), Count(), "count")
    return topology

def play(name, runs=4, **arguments):
    topology = made(name)
    with DAG(name, schedule=None, max_active_runs=runs) as dag:
        trident_transaction(topology, engine="local", group_id="t", **{"deferrable": True, **arguments})
    return dag

runs = play("runs", max_pending=4)
mapped = play("mapped", max_transactions=3)
triggerer = play("triggerer", turn_sensor=False, turn_wait_s=0, max_pending=2)
watched = made("watched", 6)  # no fourth transaction: who commits it first is killed
there = TridentBatchTrigger("watched", "DAGS/plays.py:watched", poll_s=0.5)
with DAG("watched", schedule=[Asset("batches", watchers=[AssetWatcher(name="watched", trigger=there)])]) as watching:
    TridentDrainOperator(task_id="drain", topology=watched, engine="local", max_transactions=2, group=1)
holds = play("holds", max_pending=3)
narrow = play("narrow", runs=1)
rooms = play("rooms", max_pending=2, turn_wait_s=0, turn_sensor=False)
again = play("again", turn_sensor=False, turn_wait_s=0, max_pending=2, deferrable=False)
'''


@dataclass(frozen=True)
class Stage:
    """The deployment, and what tests do to one of its DAGs."""

    airflow: LocalAirflow
    hosts: str
    folder: Path

    def states(self, dag_id: str, run_id: str) -> dict[str, str]:
        tasks = self.airflow.api.tasks(dag_id, run_id)
        names = {task: task.task_id.removeprefix("t.").removeprefix("transaction.") for task in tasks}
        return {name if task.map_index < 0 else f"{name}[{task.map_index}]": task.state for task, name in names.items()}

    def records(self, name: str) -> dict[int, TxRecord]:
        with open_ledger(ZooKeeperSettings(hosts=self.hosts), name, root=ROOT) as ledger:
            return {record.txid: record for record in ledger.transactions()}

    def until(self, condition: Callable[[], bool], what: str) -> None:
        def holds() -> bool:
            self.airflow.processes.require_alive()
            return condition()

        assert wait_until(holds, timeout_s=LIMIT_S), f"never: {what}; {self.airflow.folder.logs}"


@pytest.fixture(scope="module")
def stage(
    zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory, airflow_database: Path
) -> Iterator[Stage]:
    folder = Folder(tmp_path_factory.mktemp("triggerer"))
    folder.make()
    (folder.dags / "plays.py").write_text(
        DAGS.replace("FOLDER", str(folder.root)).replace("DAGS/", f"{folder.dags}/"), encoding="utf-8"
    )
    kills.write_plugin(folder.airflow)
    extra = {
        **SERVERS,
        "AIRFLOW__TRIDENT__ROOT": ROOT,
        "AIRFLOW__TRIDENT__POLL_S": "1",
        kills.VARIABLE: f"gate-opened@4:{folder.root}/crashed",
    }
    give_database(folder, airflow_database)
    airflow = LocalAirflow(folder, zookeeper.hosts, extra)
    try:
        airflow.start()
        airflow.wait_healthy()
        airflow.wait_for_dag("again")
        yield Stage(airflow, zookeeper.hosts, folder.root)
    finally:
        airflow.processes.stop()


def test_a_wait_for_a_transaction_whose_task_was_killed_for_good_ends_with_the_reason_and_its_clearing_commits_both(
    stage: Stage,
) -> None:
    hold, here = stage.folder / "hold-runs-1", stage.folder / "here-runs-1"
    hold.touch()
    stage.airflow.api.trigger("runs", "one")
    stage.until(here.exists, "transaction 1 is being processed")
    stage.airflow.api.trigger("runs", "two")
    stage.until(lambda: stage.states("runs", "two").get("turn") == "deferred", "the turn of 2 waits in the triggerer")
    os.kill(int(here.read_text()), signal.SIGKILL)
    stage.until(lambda: stage.states("runs", "two").get("turn") == "failed", "the wait of 2 has ended")
    assert stage.states("runs", "one")["emit"] == "failed"
    records = stage.records("runs")
    assert (records[1].status, records[2].status) == (Status.FAILED, Status.PROCESSED)
    assert "nobody works on it any more: task 't.emit' of run 'one' of DAG 'runs' is failed" in records[1].error
    hold.unlink()
    stage.airflow.api.clear("runs", "one", ["t.emit"])
    stage.until(lambda: stage.airflow.api.runs("runs")["one"] == "success", "the cleared run has ended well")
    assert [record.status for record in stage.records("runs").values()] == [Status.COMMITTED] * 2
    stage.airflow.api.clear("runs", "two", only_failed=True)
    stage.until(lambda: stage.airflow.api.runs("runs")["two"] == "success", "the run that waited has ended well")


def test_a_transaction_whose_emitter_a_person_marked_as_done_is_processed_by_its_committer(stage: Stage) -> None:
    hold, here = stage.folder / "hold-runs-3", stage.folder / "here-runs-3"
    hold.touch()
    stage.airflow.api.trigger("runs", "three")
    stage.until(here.exists, "transaction 3 is being processed")
    stage.airflow.api.set_state("runs", "three", "t.emit", "success")
    with suppress(ProcessLookupError):
        os.kill(int(here.read_text()), signal.SIGKILL)
    hold.unlink()
    stage.until(lambda: stage.airflow.api.runs("runs")["three"] == "success", "the run has ended well")
    assert stage.records("runs")[3].status is Status.COMMITTED
    assert stage.records("runs")[3].attempt == 1


@pytest.mark.parametrize(
    ("dag_id", "run_id", "task"),
    [("holds", "two", "turn"), pytest.param("rooms", "three", "coordinate", marks=pytest.mark.rare)],
)
def test_a_run_whose_own_committer_left_what_it_waits_for_in_the_triggerer_takes_it_up(
    stage: Stage, dag_id: str, run_id: str, task: str
) -> None:
    """As when a person has cleared the run while its committer was emitting another's transaction again."""
    hold, here = stage.folder / f"hold-{dag_id}-1", stage.folder / f"here-{dag_id}-1"
    hold.touch()
    stage.airflow.api.trigger(dag_id, "one")
    stage.until(here.exists, "transaction 1 is being processed")
    stage.airflow.api.trigger(dag_id, "two")
    stage.until(lambda: stage.states(dag_id, "two").get("emit") == "success", "transaction 2 is processed")
    if run_id == "three":
        stage.airflow.api.trigger(dag_id, run_id)
    stage.until(lambda: stage.states(dag_id, run_id).get(task) == "deferred", "it waits in the triggerer")
    with open_ledger(ZooKeeperSettings(hosts=stage.hosts), dag_id, root=ROOT) as ledger:
        single.attempt(ledger, 1, owner=Owner(dag_id=dag_id, run_id=run_id, task_id="t.commit", try_number=1))
    os.kill(int(here.read_text()), signal.SIGKILL)
    hold.unlink()
    stage.until(lambda: stage.airflow.api.runs(dag_id)[run_id] == "success", "the run has ended well")
    records = stage.records(dag_id)
    assert (records[1].status, records[1].owner.run_id) == (Status.COMMITTED, run_id)
    stage.until(lambda: stage.airflow.api.runs(dag_id)["two"] == "success", "what was above it is committed")


def test_a_run_does_the_work_of_one_that_airflow_does_not_start_before_it_has_ended(stage: Stage) -> None:
    """As many runs as may be are active, and the one that was cleared is queued behind them."""
    holds = [stage.folder / f"hold-narrow-{txid}" for txid in (1, 2)]
    here = [stage.folder / f"here-narrow-{txid}" for txid in (1, 2)]
    for hold in holds:
        hold.touch()
    runs = stage.airflow.api.runs
    stage.airflow.api.trigger("narrow", "one")
    stage.until(here[0].exists, "transaction 1 is being processed")
    stage.airflow.api.trigger("narrow", "two")
    os.kill(int(here[0].read_text()), signal.SIGKILL)
    stage.until(here[1].exists, "transaction 2 is being processed")
    assert runs("narrow") == {"one": "failed", "two": "running"}
    stage.airflow.api.clear("narrow", "one", ["t.emit"])
    for hold in holds:
        hold.unlink()
    stage.until(lambda: runs("narrow")["two"] == "success", "the run that was active has ended well")
    assert [record.owner.run_id for record in stage.records("narrow").values()] == ["two"] * 2
    stage.until(lambda: runs("narrow")["one"] == "success", "the run that was queued has ended well")
    assert [record.status for record in stage.records("narrow").values()] == [Status.COMMITTED] * 2


@pytest.mark.parametrize(
    ("dag_id", "state"), [("triggerer", "deferred"), pytest.param("again", "up_for_reschedule", marks=pytest.mark.rare)]
)
def test_committers_and_coordinators_wait_without_a_worker_and_go_on_when_their_turn_comes(
    stage: Stage, dag_id: str, state: str
) -> None:
    hold, here = stage.folder / f"hold-{dag_id}-1", stage.folder / f"here-{dag_id}-1"
    hold.touch()
    stage.airflow.api.trigger(dag_id, "one")
    stage.until(here.exists, "transaction 1 is being processed")
    stage.airflow.api.trigger(dag_id, "two")
    stage.until(lambda: stage.states(dag_id, "two").get("commit") == state, "the commit of 2 waits")
    stage.airflow.api.trigger(dag_id, "three")
    stage.until(lambda: stage.states(dag_id, "three").get("coordinate") == state, "2 are pending: a third one waits")
    hold.unlink()
    ends = dict.fromkeys(("one", "two", "three"), "success")
    stage.until(lambda: stage.airflow.api.runs(dag_id) == ends, "all runs have ended well")
    assert [record.status for record in stage.records(dag_id).values()] == [Status.COMMITTED] * 3


def test_mapped_waits_end_in_the_triggerer_and_a_committer_that_was_killed_is_followed_by_the_next(
    stage: Stage,
) -> None:
    stage.airflow.api.trigger("mapped", "first")
    stage.until(lambda: stage.airflow.api.runs("mapped")["first"] == "success", "three transactions are committed")
    stage.airflow.api.trigger("mapped", "second")
    stage.until(lambda: stage.airflow.api.runs("mapped")["second"] == "failed", "the second run has ended")
    assert (stage.folder / "crashed").exists()
    states = stage.states("mapped", "second")
    assert {name: state for name, state in states.items() if state != "success"} == {"commit[0]": "failed"}
    records = stage.records("mapped")
    assert {txid: record.status for txid, record in records.items()} == dict.fromkeys(range(1, 6), Status.COMMITTED)

    with closing(sqlite3.connect(stage.folder / "mapped.db")) as connection:
        counted = Counter(dict(connection.execute("SELECT kept, count FROM mapped_count")))
    assert counted == Counter(f"word{n % 3}" for n in range(10))


def test_runs_come_by_themselves_as_long_as_the_source_has_a_batch(stage: Stage) -> None:
    """Three batches, two a run: two events of the watcher."""

    def statuses() -> list[Status]:
        with suppress(UnknownTopologyError):  # before its first run
            return [record.status for record in stage.records("watched").values()]
        return []

    stage.until(lambda: statuses() == [Status.COMMITTED] * 3, "three transactions are committed")
    events = stage.airflow.api.call("GET", "/assets/events?limit=100")["asset_events"]
    payloads = [one["extra"]["payload"] for one in events if one["extra"].get("from_trigger")]
    assert {(one["topology"], one["stream"]) for one in payloads} == {("watched", "lines")}
    assert {one["after"] for one in payloads} >= {0, 2}
