"""Fields of a FileSpout from the paths of its files: folders as Hive and Spark write them, and the file's name."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_trident import FileSpout, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.errors import ConfigurationError, DamagedInputError, FieldError
from airflow_trident.functions import col
from airflow_trident.io.arrow import arrow_schema
from tests.fixtures.engine import JobOf, keep, staged
from tests.fixtures.file import begin, put, read
from tests.fixtures.parquet_in_spark import check_equal

NULL = "__HIVE_DEFAULT_PARTITION__"
CONTENT = {"text": "x\n", "csv": "n\n7\n", "json": '{"n": 7}\n'}
OWN = {"text": "line string", "csv": "n int", "json": "n int", "parquet": "n int"}


def put_parquet(folder: Path, name: str, table: pa.Table) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


@pytest.mark.parametrize("kind", ["text", "csv", "json", "parquet"])
def test_folders_and_the_name_are_fields_behind_those_of_the_content(tmp_path: Path, kind: str) -> None:
    for folder in ("day=2026-01-31/shop=north%2Fwest", f"day={NULL}/shop=100%25 öl", "day=2026-02-01/shop="):
        if kind == "parquet":
            put_parquet(tmp_path, f"{folder}/a.parquet", pa.table({"n": pa.array([7], pa.int32())}))
        else:
            put(tmp_path, f"{folder}/a.{kind}", CONTENT[kind])
    fields = "day date, shop string, _file"
    found = read(tmp_path, format=kind, fields=OWN[kind], recursive=True, partition_fields=fields)
    own = "x" if kind == "text" else 7
    assert sorted(found, key=lambda row: row[2]) == [
        (own, datetime.date(2026, 2, 1), "", f"day=2026-02-01/shop=/a.{kind}"),
        (own, None, "100% öl", f"day={NULL}/shop=100%25 öl/a.{kind}"),
        (own, datetime.date(2026, 1, 31), "north/west", f"day=2026-01-31/shop=north%2Fwest/a.{kind}"),
    ]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30).filter(
        lambda text: text not in ("", NULL) and len(quote(text)) < 200
    )
)
def test_every_text_that_pyarrow_writes_as_a_folder_is_read_as_it_was(tmp_path_factory: Any, text: str) -> None:
    folder = tmp_path_factory.mktemp("lake")
    table = pa.table({"n": pa.array([1], pa.int32()), "shop": pa.array([text])})
    ds.write_dataset(
        table, folder, format="parquet", partitioning=ds.partitioning(pa.schema([("shop", pa.string())]), flavor="hive")
    )
    found = read(folder, format="parquet", fields="n int", recursive=True, partition_fields="shop string")
    assert found == [(1, text)]


@pytest.mark.spark
def test_what_spark_writes_by_partition_is_read_alike_by_spark_and_by_python(
    spark_engine: SparkEngine, spark_session: Any, job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        (1, "a/b:%=c", datetime.date(2026, 1, 1), Decimal("1.50"), datetime.datetime(2026, 1, 1, 5, 30)),
        (2, "x #?", None, Decimal("-0.10"), datetime.datetime(1999, 1, 1)),
        (3, None, datetime.date(1, 1, 1), None, None),
    ]
    names = "day date, at timestamp, shop string, price decimal(5,2)"
    frame = spark_session.createDataFrame(rows, "n int, shop string, day date, price decimal(5,2), at timestamp")
    frame.write.partitionBy("shop", "day", "price", "at").parquet(str(tmp_path / "in"))
    spout = {"format": "parquet", "fields": "n int", "partition_fields": f"{names}, _file string"}
    found = read(tmp_path / "in" / "**" / "*.parquet", **spout)
    zoned = [None if at is None else at.replace(tzinfo=datetime.UTC) for *_, at in rows]
    expected = [(n, day, at, shop, price) for (n, shop, day, price, _), at in zip(rows, zoned, strict=True)]
    assert sorted(row[:-1] for row in found) == expected

    def build(topology: Topology) -> None:
        stream = topology.new_stream("rows", FileSpout(str(tmp_path / "in" / "**" / "*.parquet"), **spout))
        keep(stream.transform(lambda frame: frame, f"n int, {names}, _file string"))

    check_equal(spark_engine, job_of(build), monkeypatch, "Spark", 3)


def test_only_the_fields_that_are_used_are_read(job_of: JobOf, tmp_path: Path) -> None:
    """Also where these are in the path alone, and where a filter names one of them."""
    for day in (1, 2):
        table = pa.table({"n": pa.array([day, 9], pa.int32()), "unused": pa.array(["", ""])})
        put_parquet(tmp_path, f"day={day}/a.parquet", table)
    spout = FileSpout(
        f"{tmp_path}/day=*/*", format="parquet", fields="n int, unused string", partition_fields="day int"
    )

    def build(topology: Topology) -> None:
        keep(topology.new_stream("rows", spout).filter(col("day") == 2).project("day"))

    job = job_of(build)
    assert staged(job, LocalEngine().run(job)) == {"rows": ["(2,)", "(2,)"]}
    pruned = spout.emitter().prune(("day", "n"))
    batch = next(iter(pruned.read(pruned.splits(begin(spout))[0])))
    assert batch.schema.names == ["day", "n"]


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("x", r"the file '.*/x/a\.txt' is in no folder day=VALUE"),
        ("day=1/day=2", r"the file '.*' is in several folders day=VALUE"),
        ("day=31.12.2026", r"the path of the file '.*' has day='31\.12\.2026', where int is declared"),
        ("day=", r"has day='', where int is declared"),
        ("day=%FF", r"is no UTF-8 in '%FF'"),
    ],
)
def test_a_path_that_does_not_fit_is_damaged_input_that_names_it(tmp_path: Path, folder: str, message: str) -> None:
    put(tmp_path, f"{folder}/a.txt", "x\n")
    with pytest.raises(DamagedInputError, match=message):
        read(tmp_path, recursive=True, partition_fields="day int")


@pytest.mark.parametrize(
    ("path", "options", "error", "message"),
    [
        ("/in", {"partition_fields": "day"}, FieldError, "the type of the new field 'day' is not known"),
        ("/in/day=*/*", {"partition_fields": "line string"}, FieldError, "duplicate field 'line'"),
        ("/in/day=*/*", {"partition_fields": "day array<int>"}, ConfigurationError, "cannot hold the field 'day'"),
        ("/in", {"partition_fields": "_file int"}, ConfigurationError, "_file is the file's name, and no int"),
        ("/in", {"partition_fields": "day date"}, ConfigurationError, r"no file of this path is in a folder day="),
        ("/in/*.csv", {"partition_fields": "day date"}, ConfigurationError, r"recursive=True"),
        ("s3://inbox/hour=*/*", {"partition_fields": "day date"}, ConfigurationError, r"/data/day=\*"),
    ],
)
def test_fields_that_no_path_can_give_are_refused_at_once(
    path: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        FileSpout(path, **options)


@pytest.mark.parametrize(
    "path",
    ["/lake/day=2026-01-01", "/lake/day=2026-*/*.csv", "/lake/*/a.csv", "/lake/**", "s3://bucket/d*/x", "lake", "~/x"],
)
def test_paths_whose_files_may_be_in_such_a_folder_are_taken(path: str) -> None:
    spout = FileSpout(path, partition_fields="day date")
    assert arrow_schema(spout.schema).names == ["line", "day"]


def test_a_script_gets_the_rows_with_these_fields_and_not_the_files(tmp_path: Path) -> None:
    put(tmp_path, "day=1/a.csv", "n\n7\n")
    spout = FileSpout(f"{tmp_path}/day=*/*", format="csv", fields="n int", partition_fields="day int")
    assert not spout.gives_files
    assert spout.emitter().batch_for_script(begin(spout), str(tmp_path)) is None
