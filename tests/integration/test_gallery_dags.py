"""More of the examples in dags/, each run as it is; the others are run by the tests of what they show."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from tests.fixtures.airflow import PROJECT, AirflowHome
from tests.fixtures.object_store import VARIABLE, Bucket
from tests.integration.test_example_dags import examples  # noqa: F401 - a fixture
from tests.integration.test_lake_dags import RUN

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper]

TIMED = (
    "at,customer,cents\n2026-03-01T12:00:10Z,ann,70\n2026-03-01T12:00:50Z,ann,40\n",
    "at,customer,cents\n2026-03-01T12:01:05Z,bob,5\n2026-03-01T12:02:00Z,ann,1\n",
)


def write(home: AirflowHome, folder: str, texts: tuple[str, ...]) -> None:
    place = home.folder / "demo" / folder
    place.mkdir()
    for number, text in enumerate(texts):
        (place / f"{number:03d}.csv").write_text(text)


def test_files_that_have_piled_up_are_taken_in_groups_and_each_is_a_transaction(examples: AirflowHome) -> None:  # noqa: F811
    write(examples, "piled", tuple(f"customer,cents\nann,1\nc{number % 3},2\n" for number in range(40)))
    program = "import after_an_outage as dag\ntell({'run': run(dag.dag), 'found': contents(dag.topology)})"
    told = examples.python(RUN + program)
    assert told["run"] == ["success", {"drain": "success"}]
    assert told["found"] == {"orders": {"ann": 40, "c0": 14, "c1": 13, "c2": 13}}
    assert "transactions 1 to 40 are committed (40 in all)" in examples.output
    # of how many a group is depends on how long those before it took
    assert re.search(r"\((\d\d|[2-9]) of them\) are committed in one step", examples.output)


def test_objects_of_a_bucket_become_rows_of_an_iceberg_table_once(
    examples: AirflowHome,  # noqa: F811
    bucket: Bucket,
) -> None:
    bucket.put("orders/1.csv", "customer,cents\nann,120\nbob,5\n")
    bucket.put("orders/2.csv", "customer,cents\ncai,700\n")
    examples.options |= {"TRIDENT_DEMO_BUCKET": bucket.uri, VARIABLE: bucket.connection()}
    program = """
import s3_to_iceberg as dag
first, again = run(dag.dag), run(dag.dag)
(spec,) = dag.topology.states.values()
from pyiceberg.catalog import load_catalog
table = load_catalog("default", **spec.factory.properties).load_table(spec.factory.name)
found = sorted(list(row.values()) for row in table.scan().to_arrow().to_pylist())
tell({"first": first, "again": again, "found": found})
"""
    told = examples.python(RUN + program)
    assert told["first"][0] == "success"
    assert told["again"][1]["s3_to_iceberg.coordinate"] == "skipped"
    assert told["found"] == [["ann", 120], ["cai", 700]]


def test_rows_of_a_table_are_summed_once_and_asked_for(examples: AirflowHome) -> None:  # noqa: F811
    database = examples.folder / "orders.db"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, cents INTEGER)")
        connection.executemany(
            "INSERT INTO orders (customer, cents) VALUES (?, ?)", [("ann", 3), ("bob", 4), ("ann", 5)]
        )
    examples.options["AIRFLOW_CONN_ORDERS_DB"] = json.dumps({"conn_type": "sqlite", "host": str(database)})
    program = """
import table_to_counts as dag
done = dag.dag.test()
answer = done.get_task_instance("ask").xcom_pull(task_ids="ask")
again = {ti.task_id: ti.state for ti in dag.dag.test().get_task_instances()}
tell({"state": done.state, "answer": answer, "again": again, "found": contents(dag.topology)})
"""
    told = examples.python(RUN + program)
    assert (told["state"], told["answer"]) == ("success", [{"customer": "ann", "turnover": 8}])
    assert told["again"]["table_to_counts.coordinate"] == "skipped"
    assert told["found"] == {"turnover": {"ann": 8, "bob": 4}}


def test_windows_fire_once_when_a_later_minute_has_come(examples: AirflowHome) -> None:  # noqa: F811
    write(examples, "timed", TIMED)
    program = """
import minutes as dag
states = [dag.dag.test().state for _ in range(2)]
with dag.topology.states["by_minute"].factory.make_state(dag.topology.states["by_minute"]) as state:
    tell({"states": states, "found": sorted([str(key[0]), *map(int, value)] for key, value in state.items())})
"""
    told = examples.python(RUN + program)
    assert told["states"] == ["success", "success"]
    assert [row[1:] for row in told["found"]] == [[110, 2], [5, 1]]


LAKE = """
import deltalake
from pyiceberg.catalog import load_catalog
def delta(name):
    rows = deltalake.DeltaTable(f"{dag.HOME}/lake/{name}").to_pyarrow_table().to_pylist()
    return sorted([str(row["day"]), row["customer"], row["cents"]] for row in rows)
def iceberg(name):
    return load_catalog("default", **dag.CATALOG).load_table(f"sales.{name}").scan().to_arrow().to_pylist()
"""


def assert_filled_once(told: Any) -> None:
    assert told["states"] == ["success", "success", "skipped"]
    assert told["daily"] == [["2026-03-01", "ann", 1], ["2026-03-01", "ann", 110], ["2026-03-01", "bob", 5]]
    assert told["big"] == [{"customer": "ann", "cents": 110}]


@pytest.mark.spark
def test_a_spark_job_fills_a_delta_and_an_iceberg_table_and_another_run_adds_nothing(examples: AirflowHome) -> None:  # noqa: F811
    write(examples, "timed", TIMED)
    program = """
import spark_job as dag
states = [run(dag.dag)[1]["spark_job.commit"] for _ in range(3)]
tell({"states": states, "daily": delta("daily"), "big": iceberg("big")})
"""
    assert_filled_once(examples.python(RUN + LAKE + program))


@pytest.mark.spark
def test_a_script_fills_a_delta_and_an_iceberg_table_and_another_run_adds_nothing(examples: AirflowHome) -> None:  # noqa: F811
    write(examples, "timed", TIMED)
    examples.options |= {
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[1]"}),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    program = """
import spark_script as dag
states = [run(dag.dag)[1]["daily"] for _ in range(3)]
tell({"states": states, "daily": delta("scripted"), "big": iceberg("scripted")})
"""
    assert_filled_once(examples.python(RUN + LAKE + program))


def test_the_gallery_shows_every_example() -> None:
    page = (PROJECT / "docs" / "gallery.md").read_text(encoding="utf-8")
    files = sorted(path.name for path in (PROJECT / "dags").glob("*.py"))
    assert [name for name in files if f"[{name}](../dags/{name})" not in page] == []
