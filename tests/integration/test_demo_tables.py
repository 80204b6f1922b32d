"""The demonstration of Spark jobs and tables: a kill of one DAG's tasks, its comparison, and all of it."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from demo import tables
from demo.folder import VARIABLE, DemoFolder
from demo.kills import kill_setting
from tests.integration.test_demo_recovery import EQUAL, at_work_in, end
from tools import kills

REACHED = """
from airflow_trident.runtime.milestones import Milestone, reached
from tools import kills
kills.install()
reached(Milestone.STAGED, 2)
"""


@pytest.mark.parametrize(("dag", "status"), [("spark_job", -signal.SIGKILL), ("spark_script", 0)])
def test_a_kill_meets_the_tasks_of_its_dag_and_no_others(tmp_path: Path, dag: str, status: int) -> None:
    setting = kill_setting(tables.Job().kills, tmp_path)
    environment = {**os.environ, kills.VARIABLE: setting, "AIRFLOW_CTX_DAG_ID": dag}
    done = subprocess.run([sys.executable, "-c", REACHED], env=environment, check=False)
    assert done.returncode == status
    assert (tmp_path / "spark_job-emitter").exists() is (dag == "spark_job")


def test_the_plain_loop_sums_each_file_by_itself(tmp_path: Path) -> None:
    folder = DemoFolder(tmp_path)
    tables.orders_folder(folder).mkdir()
    for name in ("a.csv", "b.csv"):
        with (tables.orders_folder(folder) / name).open("w", newline="") as file:
            rows = [("at", "customer", "cents"), *[(f"2026-03-0{day}T01:02:03Z", "ann", 60) for day in (1, 1, 2)]]
            csv.writer(file).writerows(rows)
    daily, big = tables.plain_sums(folder)
    assert daily == Counter({"2026-03-01 ann 120": 2, "2026-03-02 ann 60": 2})
    assert big == Counter({"ann 120": 2})


@pytest.mark.airflow
@pytest.mark.zookeeper
@pytest.mark.spark
@pytest.mark.rare
def test_jobs_and_scripts_that_are_killed_and_cleared_fill_their_tables_to_the_last_row(tmp_path: Path) -> None:
    home = DemoFolder(tmp_path / "tables")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "demo.tables"],
            cwd=tmp_path,
            env={**os.environ, VARIABLE: str(home.root)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count(EQUAL) == 8  # four tables, each read by its library and by Spark
        wanted = {
            f"{dag}-{what}" for dag in ("spark_job", "spark_script") for what in ("emitter", "committer", "cleared")
        }
        assert {one.name for one in home.kills.iterdir()} == wanted
        assert at_work_in(home.root) == []
    finally:
        end(home)
