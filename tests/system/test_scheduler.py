"""Exactly-once under a real scheduler: acts of people and accidents of Airflow tasks change no count.

Every test ends with `assert_exact`: each word has the right count, and all txids are committed without a gap.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from datetime import datetime

import pytest

from airflow_trident.protocol.records import Status
from tests.system.batches import LATE_S, LINES, ROWS_OF_A_BATCH
from tests.system.conftest import Scene

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper]


def plays(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("scene", [name], indirect=True)


def assert_exact(scene: Scene, transactions: int) -> None:
    lines = LINES[: transactions * ROWS_OF_A_BATCH]
    assert scene.words() == Counter(word for (line,) in lines for word in line.split())
    assert sorted(scene.records()) == list(range(1, transactions + 1))
    assert scene.statuses() == [Status.COMMITTED] * transactions


def fail_for_good(scene: Scene) -> None:
    """Runs 1 to 5: transaction 2 uses up its attempts; the later ones are processed and cannot commit."""
    scene.tell("fail-2")
    scene.trigger(1, 2, 3, 4, 5)
    runs = scene.until_finished()
    assert runs == {"tx-1": "success"} | {f"tx-{number}": "failed" for number in (2, 3, 4, 5)}
    assert scene.statuses() == [Status.COMMITTED, Status.FAILED] + [Status.PROCESSED] * 3
    assert scene.records()[2].attempt == 1
    (scene.folder / "fail-2").unlink()


@plays("deadlock_rest")
def test_clearing_the_failed_task_of_2_commits_2_to_5_although_3_runs_at_most_are_active(scene: Scene) -> None:
    fail_for_good(scene)
    scene.api.clear(scene.name, "tx-2", [scene.task("emit")])
    scene.until_committed(5)
    assert scene.until_finished()["tx-2"] == "success"
    for run_id in ("tx-3", "tx-4", "tx-5"):
        scene.api.clear(scene.name, run_id, only_failed=True)
    before = scene.records()
    assert set(scene.until_finished().values()) == {"success"}
    assert scene.records() == before
    assert_exact(scene, 5)


@pytest.mark.rare
@plays("deadlock_cli")
def test_the_backfill_command_commits_2_to_5_after_2_had_failed_for_good(scene: Scene) -> None:
    fail_for_good(scene)
    said = scene.command("backfill", scene.name, "--failed", "--engine", "local")
    assert "transaction 2: committed, and with it [3, 4, 5]" in said
    assert_exact(scene, 5)


@pytest.mark.rare
@plays("kill_process")
def test_kill_9_of_a_task_that_processes_gives_a_new_attempt_and_no_other_effect(scene: Scene) -> None:
    hold = scene.tell("hold-2")
    scene.trigger(1, 2, 3)
    os.kill(scene.held(2, 0), signal.SIGKILL)
    hold.unlink()
    assert set(scene.until_finished().values()) == {"success"}
    assert scene.records()[2].attempt == 1
    assert_exact(scene, 3)


@plays("kill_scheduler")
def test_kill_9_of_the_scheduler_and_a_restart_run_an_attempt_twice_and_count_once(scene: Scene) -> None:
    hold = scene.tell("hold-2")
    scene.trigger(1, 2)
    scene.held(2, 0)
    scene.airflow.processes.kill("scheduler")
    scene.airflow.start_scheduler()
    # The orphaned task still works on attempt 0 when the new scheduler begins another attempt.
    scene.held(2, 1)
    hold.unlink()
    scene.trigger(3)
    assert set(scene.until_finished().values()) == {"success"}
    assert_exact(scene, 3)


@pytest.mark.rare
@plays("clear_running")
def test_clearing_a_task_while_it_runs_leaves_two_at_work_and_counts_once(scene: Scene) -> None:
    hold = scene.tell("hold-1")
    scene.trigger(1, 2)
    scene.held(1, 0)
    scene.api.clear(scene.name, "tx-1", [scene.task("emit")])
    scene.held(1, 1)
    hold.unlink()
    assert set(scene.until_finished().values()) == {"success"}
    assert_exact(scene, 2)


@plays("mark_failed")
def test_marking_a_running_task_as_failed_blocks_those_behind_it_until_it_is_cleared(scene: Scene) -> None:
    hold = scene.tell("hold-2")
    scene.trigger(1, 2, 3)
    scene.held(2, 0)
    scene.api.set_state(scene.name, "tx-2", scene.task("emit"), "failed")
    runs = scene.until_finished()
    assert runs == {"tx-1": "success", "tx-2": "failed", "tx-3": "failed"}
    assert scene.statuses() == [Status.COMMITTED, Status.FAILED, Status.PROCESSED]
    hold.unlink()
    scene.api.clear(scene.name, "tx-2", [scene.task("emit")])
    scene.until_committed(3)
    assert scene.until_finished()["tx-2"] == "success"
    assert_exact(scene, 3)


@pytest.mark.rare
@plays("clear_committed")
def test_clearing_whole_runs_after_the_commit_changes_nothing(scene: Scene) -> None:
    scene.trigger(1, 2)
    scene.until_finished()
    before = scene.records()
    for run_id in ("tx-1", "tx-2"):
        assert len(scene.api.clear(scene.name, run_id)) == 3
    assert set(scene.until_finished().values()) == {"success"}
    assert scene.records() == before
    tasks = scene.api.tasks(scene.name, "tx-1") + scene.api.tasks(scene.name, "tx-2")
    assert {task.tries for task in tasks} == {2}
    assert_exact(scene, 2)


@plays("one_slot")
def test_in_a_pool_of_one_slot_tasks_that_wait_keep_none_that_they_wait_for_from_it(scene: Scene) -> None:
    scene.api.call("POST", "/pools", {"name": "one_slot", "slots": 1, "include_deferred": False})
    failing = scene.tell("fail-1")
    scene.trigger(1)
    scene.until(lambda: bool(scene.records()[1].error), "the first attempt of 1 has failed")
    failing.unlink()
    scene.until_committed(3)
    assert set(scene.until_finished().values()) == {"success"}
    assert_exact(scene, 3)


@plays("asset_events")
def test_kill_9_of_a_task_that_commits_is_repaired_and_a_dag_that_waits_for_the_asset_runs_once_for_each_transaction(
    scene: Scene,
) -> None:
    scene.trigger(1)
    scene.until_finished()
    # The store is locked, so the committer is between the gate and the state.
    with closing(sqlite3.connect(scene.folder / "words.db", isolation_level=None)) as store:
        store.execute("BEGIN IMMEDIATE")
        scene.trigger(2, 3)
        scene.until(lambda: scene.records()[2].status is Status.COMMITTING, "the gate of 2 is open")
        first = scene.records()[2].fence
        scene.kill_owner(2)
        store.execute("ROLLBACK")
    assert set(scene.until_finished().values()) == {"success"}
    assert scene.records()[2].fence > first

    def keys() -> list[str]:
        found = scene.api.call("GET", "/dags/after_asset_events/dagRuns")["dag_runs"]
        return sorted(run["partition_key"] for run in found if run["state"] == "success")

    scene.until(lambda: len(keys()) >= 3, "three runs for three transactions")
    assert keys() == [f"asset_events/{txid:019}" for txid in (1, 2, 3)]
    events = scene.api.call("GET", "/assets/events?source_dag_id=asset_events")["asset_events"]
    assert sorted(event["extra"]["txid"] for event in events) == [1, 2, 3]
    assert_exact(scene, 3)


@plays("alarm")
def test_a_run_is_called_late_by_the_oldest_batch_that_is_not_committed_and_not_by_its_own_dates(scene: Scene) -> None:
    hold = scene.tell("hold-1")
    scene.trigger(1)
    scene.held(1, 0)
    scene.trigger(2)
    alarm = scene.folder / "late-tx-2.json"
    scene.until(alarm.exists, "the deadline's callback is called")
    oldest, own = (scene.records()[txid].times_ms["begun"] for txid in (1, 2))
    due_ms = datetime.fromisoformat(json.loads(alarm.read_text())).timestamp() * 1000
    assert due_ms == pytest.approx(oldest + LATE_S * 1000, abs=1)
    assert due_ms < own + LATE_S * 1000
    assert scene.statuses() != [Status.COMMITTED] * 2
    hold.unlink()
    assert set(scene.until_finished().values()) == {"success"}
    assert_exact(scene, 2)
