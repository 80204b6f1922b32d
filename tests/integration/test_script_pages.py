"""The guide to existing scripts as it stands: before and after give the same rows, and of each five lines change."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from difflib import SequenceMatcher
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_trident.engine.spark.sessions.java import submit_environment
from tests.documented import DOCS
from tests.fixtures.airflow import AirflowHome

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper, pytest.mark.spark]

PAGE = (DOCS / "how-to" / "keep-a-pyspark-script.md").read_text(encoding="utf-8")
NAMES = ("daily", "requests", "visits")
DIFFS = dict(zip((*NAMES, "dag"), re.findall(r"```diff\n(.*?)```", PAGE, re.DOTALL), strict=True))
(DAG,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
LOCAL = {"conn_type": "spark", "host": "local[1]"}
BEFORE = """
import os, runpy, sys
from pyspark.sql import SparkSession
kept = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
SparkSession.stop = lambda self: None
for name in ("daily", "requests", "visits"):
    sys.argv = [name, "names.csv"]
    runpy.run_path(f"before/{name}.py", run_name="__main__")
"""
PLAY = """
import daily, scripts
from scripts import HOME

def states():
    runs = [one.dag.test() for one in (daily, scripts)]
    return {ti.task_id: str(ti.state) for run in runs for ti in run.get_task_instances()}

first = states()
(HOME / "orders/late.parquet").write_bytes((HOME / "late.parquet").read_bytes())
second = states()
from deltalake import DeltaTable as Lake
rows = Lake(str(HOME / "lake/visits")).to_pyarrow_table().sort_by("user").select(["user", "pages"]).to_pylist()
tell({"first": first, "second": second, "visits": rows})
"""
BOTH = """
import after, before
(stock,), (ours,) = before.dag.tasks, after.dag.tasks
def told(task, conn_id, conf):
    return [task.task_id, task.application, task.application_args, conn_id, conf]
tell([
    [type(stock).__name__, type(ours).__name__],
    told(stock, stock._conn_id, {**stock.conf, "spark.executor.memory": stock._executor_memory}),
    told(ours, ours.spark_conn_id, {**ours.spark_conf, **dict(ours.topology.application.conf)}),
])
"""


def side(diff: str, sign: str) -> str:
    """The script before (``-``) or after (``+``)."""
    return "".join(line[1:] or "\n" for line in diff.splitlines(keepends=True) if line[0] in (" ", sign, "\n"))


def fill(home: Path) -> None:
    for folder in ("jobs", "before", "orders", "logs", "events"):
        (home / folder).mkdir()
    for name in NAMES:
        (home / "jobs" / f"{name}.py").write_text(side(DIFFS[name], "+"))
        (home / "before" / f"{name}.py").write_text(side(DIFFS[name], "-"))
    (home / "names.csv").write_text("customer,name\n1,Ada\n2,Bo\n")
    (home / "logs/a.log").write_text("GET /a 200\nGET /b 404\nnonsense\n")
    (home / "events/a.json").write_text(
        '{"user": "u", "at": "2026-01-01T10:00:00Z", "page": "x"}\n'
        '{"user": "u", "at": "2026-01-01T09:00:00Z", "page": "y"}\n'
        '{"user": "v", "at": "2026-01-02T09:00:00Z", "page": "y"}\n'
    )
    for place, day in (("orders/a.parquet", 1), ("late.parquet", 2)):
        at = pa.array([day * 86_400_000_000] * 3, pa.timestamp("us", "UTC"))
        pq.write_table(pa.table({"at": at, "customer": ["1", "2", "1"], "cents": [5, 6, 7]}), home / place)


def rows_of(folder: Path) -> list[str]:
    tables = [pq.read_table(path) for path in sorted(folder.rglob("*.parquet"))]
    rows = [row for table in tables for row in table.select(sorted(table.column_names)).to_pylist()]
    return sorted(map(str, rows))


@pytest.mark.rare
def test_the_scripts_of_the_guide_give_what_they_gave_before_and_what_is_new_is_added_once(
    airflow_home: AirflowHome,
) -> None:
    home = airflow_home.folder
    fill(home)
    airflow_home.write_dag("scripts", DAG.replace("}):\n", "}) as dag:\n"))
    airflow_home.write_dag("daily", side(DIFFS["dag"], "+").replace('DAG("daily"):', 'DAG("daily") as dag:'))
    airflow_home.options |= {
        "PYTHONPATH": f"{airflow_home.dags}:{airflow_home.environment['PYTHONPATH']}",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(LOCAL),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    played = airflow_home.python(PLAY)
    assert played["first"] == dict.fromkeys(NAMES, "success")
    assert played["second"] == {"daily": "success", "requests": "skipped", "visits": "skipped"}
    assert played["visits"] == [{"user": "u", "pages": 2}, {"user": "v", "pages": 1}]

    ours = {name: rows_of(home / "lake" / name) for name in ("daily", "requests", "unreadable")}
    assert len(list((home / "lake/daily").glob("*.parquet"))) == 2  # one for each transaction
    plain = home / "plain"
    plain.mkdir()
    for name in ("before", "orders", "logs", "events", "names.csv"):
        (plain / name).symlink_to(home / name)
    subprocess.run([sys.executable, "-c", BEFORE], cwd=plain, env=submit_environment(), check=True, timeout=600)
    assert ours == {name: rows_of(plain / "lake" / name) for name in ours}
    assert len(ours["daily"]) == 4


@pytest.mark.parametrize("name", DIFFS)
def test_of_each_script_and_of_its_dag_five_lines_change_at_most(name: str) -> None:
    assert all(line[:1] in ("", " ", "+", "-") for line in DIFFS[name].splitlines())
    before, after = (side(DIFFS[name], sign) for sign in "-+")
    for text in (before, after):
        compile(text, name, "exec")
    steps = SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False).get_opcodes()
    assert 0 < sum(max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in steps if tag != "equal") <= 5


def test_the_dag_before_is_one_of_the_providers_operator_and_the_one_after_gives_spark_the_same(
    airflow_home: AirflowHome,
) -> None:
    for name, sign in (("before", "-"), ("after", "+")):
        airflow_home.write_dag(name, side(DIFFS["dag"], sign).replace('DAG("daily"):', 'DAG("daily") as dag:'))
    airflow_home.options["PYTHONPATH"] = f"{airflow_home.dags}:{airflow_home.environment['PYTHONPATH']}"
    kinds, stock, ours = airflow_home.python(BOTH)
    assert kinds == ["SparkSubmitOperator", "TridentSparkSubmitOperator"]
    assert stock == ours
