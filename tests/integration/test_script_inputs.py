"""A script that reads what is no file: the rows of the batch, as Parquet files, by Spark's own reader."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from airflow_trident import FileSink, KafkaSpout, Script, SqlSpout, TableSpout
from airflow_trident.contracts.spout import ScriptBatch
from airflow_trident.engine.spark.script import ScriptEngine, ScriptInputs
from airflow_trident.errors import SourceChangedError, TridentError
from airflow_trident.io.arrow import table_to_rows
from airflow_trident.io.connections import Connection
from airflow_trident.spouts.delta.spout import DeltaSpout
from airflow_trident.staging.area import StagingArea
from airflow_trident.testing.suites import SpoutCase, batch_rows, metadata_of_all
from tests.contracts.test_spouts import SOURCES
from tests.fixtures.kafka import Topic
from tests.fixtures.script import Run, engine, job_of, written
from tests.fixtures.spark_submit import SparkSubmitProcess
from tests.fixtures.state import batch, ticket
from tests.fixtures.table import TABLES

SCRIPT = """
import airflow_trident_script as trident
from pyspark.sql import SparkSession, functions as sf

spark = SparkSession.builder.getOrCreate()
sales, views, names, nothing = (
    spark.read.parquet(*trident.inputs(spark, name)) for name in ("sales", "views", "names", "nothing")
)
assert nothing.schema == views.schema and nothing.count() == 0
views = views.filter("timestamp >= timestamp'2020-01-01' AND key IS NULL").groupBy(sf.col("value").alias("customer"))
views = views.agg(sf.count("*").alias("views"))
joined = sales.join(names, "customer").join(views, "customer")
joined.select("name", "day", "cents", "views").write.parquet(trident.output(spark, "joined"))
"""
OTHERS = [name for name in SOURCES if not name.startswith(("text", "gzipped", "csv", "json", "parquet"))]
FIELDS = "id long, name string"


def script_of(source: SpoutCase, folder: Path) -> Script:
    return Script("one", inputs={"rows": source.spout}, outputs={"out": ("n long", FileSink(str(folder / "out")))})


@pytest.mark.parametrize("name", OTHERS)
def test_what_a_script_is_given_of_any_spout_are_the_rows_of_the_batch(tmp_path: Path, name: str) -> None:
    made = SOURCES[name](tmp_path)
    source = next(iter(script_of(made, tmp_path).compile().sources))
    for metadata in metadata_of_all(made.spout):
        said: list[str] = []
        inputs = ScriptInputs(str(tmp_path), said.append)
        batch = inputs.batch(source, metadata)
        paths = [Path(one.removeprefix("file://")) for one in batch.given]
        found = [row for path in paths for row in table_to_rows(pq.read_table(path))]
        assert found == batch_rows(made.spout, metadata)
        assert batch.rows == len(found)
        assert said == [f"{len(found)} rows of input rows are written for the script"]
        inputs.close()
        assert not any(path.exists() for path in paths)


@pytest.mark.parametrize("kind", TABLES)
def test_a_script_gets_the_files_of_a_table_if_it_would_read_the_declared_columns_from_them(
    tmp_path: Path, kind: str
) -> None:
    table = TABLES[kind](tmp_path)
    foreign: Any = table
    with table.opened() as state:
        state.apply(ticket(1), batch(table.spec, ("a", 1), (None, 2)))
        state.apply(ticket(2), batch(table.spec, ("b", 3)))

    def given(fields: str, number: int = 0) -> tuple[ScriptBatch, list[str], list[tuple[Any, ...]]]:
        made: Any = TableSpout(foreign.spec.factory, fields=fields, max_files=2)
        source = SpoutCase(made, [], lambda: made)
        (node,) = script_of(source, tmp_path).compile().sources
        metadata = metadata_of_all(made)[number]
        said: list[str] = []
        found = ScriptInputs(str(tmp_path / "st"), said.append).batch(node, metadata)
        rows = [row for one in found.given for row in table_to_rows(pq.read_table(one.removeprefix("file://")))]
        assert sorted(rows, key=repr) == sorted(batch_rows(made, metadata), key=repr)
        assert found.rows == len(rows)
        return found, said, rows

    found, said, _ = given("word string, n long")
    assert said == []
    assert {Path(one.removeprefix("file://")) for one in found.given} == set(table.data_files())
    found.require_same()
    for other in ("n long, word string", "n long", "word string, n int"):
        assert given(other)[1] == ["3 rows of input rows are written for the script"]
    foreign.add_column()
    with table.opened() as state:
        state.apply(ticket(3), batch(table.spec, ("c", 4)))
    given("word string, n long, more string")
    given("word string, n long", 1)
    changed = Path(found.given[0].removeprefix("file://"))
    changed.write_bytes(changed.read_bytes() + b" ")
    with pytest.raises(SourceChangedError, match="was replaced while it was read"):
        found.require_same()


def test_a_source_that_lost_what_was_recorded_fails_the_attempt_before_the_script_runs(tmp_path: Path) -> None:
    made, runs = SOURCES["sqlite table"](tmp_path), list[Run]()
    job = job_of(script_of(made, tmp_path), tmp_path)
    made.take_away()
    with pytest.raises(SourceChangedError):
        engine(lambda run: None, runs).run(job)
    assert runs == []
    assert not [path for path in tmp_path.rglob("rows-*") if path.is_dir()]


def _wrong(run: Run) -> None:
    raise RuntimeError("no")


def _good(run: Run) -> None:
    written(run.folder("out"), {"n": ("long", [len(run.input("rows"))])})


@pytest.mark.parametrize("play", [_good, _wrong])
def test_what_was_written_for_a_script_is_gone_when_it_ended_and_its_rows_are_counted(
    tmp_path: Path, play: Callable[[Run], None]
) -> None:
    job = job_of(script_of(SOURCES["sqlite table"](tmp_path), tmp_path), tmp_path)
    try:
        assert engine(play).run(job).rows_read == 7
    except TridentError:
        assert play is _wrong
    assert not [path for path in tmp_path.rglob("rows-*") if path.is_dir()]


@pytest.mark.spark
@pytest.mark.kafka
def test_a_script_joins_a_delta_table_a_topic_and_a_database(tmp_path: Path, topic: Topic) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    sales = pa.table({"customer": ["a", "b", "a"], "day": ["1", "2", "2"], "cents": pa.array([5, 6, 7], pa.int64())})
    write_deltalake(tmp_path / "sales", sales)
    topic.create(2)
    topic.send([(None, "a"), (None, "b")], partition=0)
    topic.send([(None, "a")], partition=1)
    with closing(sqlite3.connect(tmp_path / "names.db")) as connection, connection:
        connection.execute("CREATE TABLE names (id INTEGER PRIMARY KEY, customer TEXT, name TEXT)")
        connection.executemany("INSERT INTO names (customer, name) VALUES (?, ?)", [("a", "ann"), ("b", "bob")])
    database = Connection(conn_type="sqlite", host=str(tmp_path / "names.db"))
    fields = "value string, timestamp timestamp, key string"
    views = KafkaSpout(topic.name, bootstrap_servers=topic.broker.hosts, fields=fields)
    script = Script(
        "joined",
        inputs={
            "sales": DeltaSpout(str(tmp_path / "sales"), fields="customer string, day string, cents long"),
            "views": views,
            "names": SqlSpout("db", table="names", fields="customer string, name string", connection=database),
            "nothing": views,
        },
        outputs={
            "joined": ("name string, day string, cents long, views long", FileSink(str(tmp_path / "out"))),
        },
    )
    job = job_of(script, tmp_path)
    job = replace(job, metadata={name: one for name, one in job.metadata.items() if name != "nothing"})

    def submitter(settings: dict[str, str], helper: str, _: Callable[[str], None]) -> SparkSubmitProcess:
        conf = {**settings, "spark.submit.pyFiles": helper, "spark.sql.shuffle.partitions": "2"}
        return SparkSubmitProcess("local[1]", {**conf, "spark.ui.enabled": "false"})

    said: list[str] = []
    job = replace(job, progress=said.append)
    area = StagingArea(job.staging_root)
    manifest = ScriptEngine(str(tmp_path / "job.py"), (), submitter).run(job)
    area.publish(manifest)
    rows = area.read(manifest, "joined", script.compile().staged[0].schema).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [("ann", "1", 5, 2), ("ann", "2", 7, 2), ("bob", "2", 6, 1)]
    assert manifest.rows_read == 8
    assert not [one for one in said if "input sales" in one], "its files are read"
