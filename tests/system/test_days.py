"""A week of deliveries under a real scheduler: a late file, a corrected one, a failed night, Airflow's backfills, a
clear, manual runs. After each act each day's rows are those of a plain computation over the files of the day."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections import Counter
from contextlib import closing
from typing import Any

import pytest

from airflow_trident.protocol.records import Status
from airflow_trident.states.sql.table_names import TABLES
from tests.system.batches import WEEK
from tests.system.conftest import LIMIT_S, Scene

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper]

MONDAY, TUESDAY, WEDNESDAY, THURSDAY, FRIDAY, SATURDAY, SUNDAY = DAYS = [f"2026-11-{day}" for day in range(16, 23)]


class Week:
    """The acts on the DAG."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    def deliver(self, day: str, *rows: tuple[str, int], name: str = "a", text: str = "") -> None:
        folder = self.scene.folder / "in" / f"day={day}"
        folder.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps({"shop": shop, "cents": cents}) for shop, cents in rows)
        (folder / f"{name}.json").write_text(text or "\n".join(lines) + "\n")

    def backfill(self, first: str, last: str, behavior: str) -> None:
        """``airflow backfill create``, when Airflow has ended the one before."""
        self.scene.until(lambda: self._is_backfilled(first, last, behavior), f"a backfill of {first} to {last}")

    def _is_backfilled(self, first: str, last: str, behavior: str) -> bool:
        dates = ("--from-date", first, "--to-date", last)
        command = self.scene.airflow.command(
            "backfill", "create", "--dag-id", WEEK, *dates, "--reprocess-behavior", behavior
        )
        environment = self.scene.airflow.environment
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        return done.returncode == 0

    def trigger(self, run_id: str, key: str | None) -> None:
        body = {"dag_run_id": run_id, "logical_date": None} | ({"partition_key": key} if key else {})
        self.scene.api.call("POST", f"/dags/{WEEK}/dagRuns", body)

    def runs(self, dag_id: str = WEEK) -> list[dict[str, Any]]:
        runs: list[dict[str, Any]] = self.scene.api.call("GET", f"/dags/{dag_id}/dagRuns?limit=1000&order_by=id")[
            "dag_runs"
        ]
        return runs

    def until_over(self, count: int) -> Counter[tuple[str, str, str]]:
        """Wait until there are so many runs, and all are over. Returns how many have which type, key and state."""
        self.scene.until(lambda: len(self.runs()) >= count, f"{count} runs")
        self.scene.until_finished()
        runs = self.runs()
        assert len(runs) == count
        return Counter((run["run_type"], run["partition_key"], run["state"]) for run in runs)

    def require_right(self, *, without: tuple[str, ...] = ()) -> None:
        """Each day has the rows of its files, except those that are not done."""
        expected: Counter[tuple[str, str]] = Counter()
        for path in (self.scene.folder / "in").glob("day=*/*.json"):
            day = path.parent.name.removeprefix("day=")
            for line in path.read_text().splitlines() if day not in without else ():
                row = json.loads(line)
                expected[day, row["shop"]] += row["cents"]
        assert self.rows() == expected

    def rows(self) -> Counter[tuple[str, str]]:
        with closing(sqlite3.connect(self.scene.folder / "week.db")) as connection:
            table = TABLES.of(WEEK, "sums")
            rows = connection.execute(f"SELECT day, shop, cents FROM {table}")
            return Counter({(day, shop): cents for day, shop, cents in rows})


@pytest.mark.parametrize("scene", [WEEK], indirect=True)
def test_a_week_of_late_corrected_and_failed_days_is_right_after_each_act(scene: Scene) -> None:
    week = Week(scene)
    for number, day in enumerate(DAYS):
        if day != WEDNESDAY:
            week.deliver(day, ("a", number), ("b", 10 + number))
    week.deliver(FRIDAY, name="b", text='{"shop": "a", "cents": "many"}\n')
    scene.api.call("PATCH", f"/dags/{WEEK}", {"is_paused": False})

    # The nights: nothing is there on Wednesday, Friday has a damaged file.
    runs = week.until_over(7)
    failed = {day for (_, day, state) in runs if state == "failed"}
    assert failed == {WEDNESDAY, FRIDAY}
    week.require_right(without=(FRIDAY,))
    assert not week.runs("whole_week")

    # Wednesday is delivered late, Friday is corrected. `none` takes what has no run, `failed` what failed.
    week.deliver(WEDNESDAY, ("a", 100))
    week.deliver(FRIDAY, ("c", 200), name="b")
    week.backfill(MONDAY, SUNDAY, "none")
    week.backfill(MONDAY, SUNDAY, "failed")
    runs = week.until_over(9)
    assert {(kind, day, state) for kind, day, state in runs if kind == "backfill"} == {
        ("backfill", day, "success") for day in failed
    }
    week.require_right()
    scene.until(lambda: [run["state"] for run in week.runs("whole_week")] == ["success"], "the week is whole, once")

    # Tuesday is corrected: `completed` makes another run of it.
    week.deliver(TUESDAY, ("b", 300))
    week.backfill(TUESDAY, TUESDAY, "completed")
    assert week.until_over(10)["backfill", TUESDAY, "success"]
    week.require_right()

    # Monday is corrected, and its run is cleared; of Sunday one shop goes, and a person triggers it with its key.
    week.deliver(MONDAY, ("a", 400), name="c")
    monday = next(run["dag_run_id"] for run in week.runs() if run["partition_key"] == MONDAY)
    scene.api.clear(WEEK, monday)
    week.deliver(SUNDAY, ("a", 500))
    week.trigger("by-hand", SUNDAY)
    assert week.until_over(11)["manual", SUNDAY, "success"]
    week.require_right()

    # A person who forgets the key gets a red run, and nothing is begun.
    before = len(scene.records())
    week.trigger("without-a-key", None)
    assert week.until_over(12)["manual", None, "failed"]  # type: ignore[index]
    assert len(scene.records()) == before

    # Two at once, while the day is processed.
    hold = scene.tell("hold")
    week.deliver(SATURDAY, ("d", 600))
    for run_id in ("one", "other"):
        week.trigger(run_id, SATURDAY)
    scene.until(lambda: len(list(scene.folder.glob("here-*"))) == 2, "both process the day")
    hold.unlink()
    assert week.until_over(14)["manual", SATURDAY, "success"] == 2
    week.require_right()
    committed = [record for record in scene.records().values() if record.status is Status.COMMITTED]
    done = Counter(record.partition.key for record in committed if record.partition is not None)
    assert done == {day: 1 if day in (WEDNESDAY, THURSDAY, FRIDAY) else 2 for day in DAYS}
