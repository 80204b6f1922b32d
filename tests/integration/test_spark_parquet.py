"""Parquet that Spark reads itself gives the rows that FileSpout's own reader gives, or that one reads."""

from __future__ import annotations

import datetime
import math
import os
import random
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_trident import Count, FileSpout, FixedBatchSpout, Function, OperationContext, Stream, Topology
from airflow_trident.contracts.spout import BatchFrame
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.errors import DamagedInputError, SourceChangedError
from airflow_trident.functions import col
from airflow_trident.io.arrow import arrow_schema, arrow_type
from airflow_trident.io.parquet import write_parquet
from airflow_trident.spouts.files.emitter import FileEmitter
from airflow_trident.spouts.files.parquet_in_spark import rows_for_spark
from airflow_trident.types import INTERVAL, parse_declared
from tests.fixtures.engine import JobOf, keep, run
from tests.fixtures.file import read
from tests.fixtures.parquet_in_spark import as_it_is, by_python, check_equal, grouped_numbers, reader_of, transformed
from tests.fixtures.plan import PaperState
from tests.generated.operations import Twice
from tests.generated.types import VALUES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark

TYPES = [*VALUES, "array<timestamp>", "array<decimal(5,2)>", "struct<a:int,b:array<struct<c:date>>>"]
NESTED: dict[str, list[Any]] = {
    "array<timestamp>": [[], [None], VALUES["timestamp"]],
    "array<decimal(5,2)>": [[], [None], [Decimal("-999.99"), Decimal("0.01")]],
    "struct<a:int,b:array<struct<c:date>>>": [
        {"a": None, "b": None},
        {"a": 1, "b": [{"c": None}, None, {"c": datetime.date(1, 1, 1)}]},
    ],
}
FIELDS = ", ".join(f"f{place} {kind}" for place, kind in enumerate(TYPES))


def of_all_types() -> pa.Table:
    """Every value of every type, the last row of nulls."""
    values = [(VALUES | NESTED)[kind] for kind in TYPES]
    longest = max(map(len, values)) + 1
    columns = [
        pa.array([*given, *[None] * (longest - len(given))], arrow_type(kind))
        for kind, given in zip(TYPES, values, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=arrow_schema(parse_declared(FIELDS)))


def test_every_type_and_its_extremes_in_several_files(
    spark_engine: SparkEngine, job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = of_all_types()
    (tmp_path / "day=1").mkdir()
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    pq.write_table(table, tmp_path / "day=1" / "b 100%20.parquet", compression="zstd", use_dictionary=False)
    pq.write_table(table.slice(0, 0), tmp_path / "none.parquet")
    job = job_of(transformed(tmp_path, FIELDS))
    check_equal(spark_engine, job, monkeypatch, "Spark", 2 * table.num_rows)


MOMENTS = [*VALUES["timestamp"][:2], None]
LIKE = {
    "texts_in_a_dictionary": ("string", pa.array(["a", None, "a"]).dictionary_encode()),
    "large_texts": ("string", pa.array(["a", None, "ß"], pa.large_string())),
    "large_bytes": ("binary", pa.array([b"a", None, b"\xff"], pa.large_binary())),
    "of_another_zone": ("timestamp", pa.array(MOMENTS, pa.timestamp("us", "Asia/Tokyo"))),
    "of_no_zone": ("timestamp", pa.array([datetime.datetime(1, 1, 1), None, None], pa.timestamp("us"))),
    "days": ("date", pa.array([86_400_000, None, 0], pa.date64())),
    "large_lists": ("array<int>", pa.array([[1, None], None, []], pa.large_list(pa.int32()))),
}
MOMENT = pa.timestamp("us", tz="UTC")
UNLIKE = {
    "smaller numbers": ("long", pa.array([1, None], pa.int32())),
    "larger numbers that fit": ("int", pa.array([1, None], pa.int64())),
    "numbers without a sign": ("short", pa.array([255, None], pa.uint8())),
    "microseconds as numbers": (INTERVAL, pa.array([-1, None], pa.int64())),
    "nanoseconds": ("timestamp", pa.array([1_000, None], pa.timestamp("ns", "UTC"))),
    "milliseconds": ("timestamp", pa.array([-62135596800000, None], pa.timestamp("ms", "UTC"))),
    "real numbers in a struct": ("struct<a:struct<b:float>>", pa.nulls(2, pa.struct({"a": pa.struct({"b": "f4"})}))),
    "nothing": ("date", pa.nulls(2)),
    "another scale": ("decimal(10,2)", pa.array([Decimal("1.5"), None], pa.decimal128(10, 1))),
    "milliseconds of a day": ("time", pa.array([1, None], pa.time32("ms"))),
    "members in another order": (
        "struct<a:int,b:int>",
        pa.array([{"b": 1, "a": 2}], pa.struct({"b": "i4", "a": "i4"})),
    ),
    "another kind": ("long", pa.array(["1"])),
    "maps, perhaps with a key twice": ("map<string,long>", pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))),
    "the year 10000": ("date", pa.array([2_932_897], pa.int32()).cast(pa.date32())),
    "the year 10000 in a list": ("array<timestamp>", pa.array([[253_402_300_800_000_000]], pa.list_(MOMENT))),
}


def test_columns_of_like_types(
    spark_engine: SparkEngine, job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({name: column for name, (_, column) in LIKE.items()}), tmp_path / "a.parquet")
    job = job_of(transformed(tmp_path, ", ".join(f"{name} {kind}" for name, (kind, _) in LIKE.items())))
    check_equal(spark_engine, job, monkeypatch, "Spark", 3)


REALS = {
    "nan": ([1.0, math.nan], "{0} > 5 AND {0} = double('NaN') AND NOT {0} < 5"),
    "zero": ([-0.0, -0.0], "{0} = 0.0D AND {0} >= 0.0D AND {0} IN (0.0D, 7.0D)"),
    "other zero": ([0.0, 0.0], "{0} = -0.0D AND {0} <= -0.0D"),
}


@pytest.mark.parametrize("name", REALS)
def test_a_filter_on_real_numbers_loses_no_row_of_a_file(
    spark_engine: SparkEngine, job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """By the statistics and the dictionaries of the file, Spark took it to have no such row."""
    reals, condition = REALS[name]
    pq.write_table(pa.table({"a": reals, "b": pa.array(reals, pa.float32())}), tmp_path / "a.parquet")

    def filtered(topology: Topology) -> None:
        rows = topology.new_stream("rows", FileSpout(str(tmp_path), format="parquet", fields="a double, b float"))
        both = f"{condition.format('a')} AND {condition.format('b')}"
        keep(rows.sql(f"SELECT a, b FROM {{rows}} WHERE {both}", "a double, b float"))

    job = job_of(filtered)
    assert reader_of(spark_engine, job) == "Spark"
    given = run(spark_engine, job)
    assert len(given["rows"]) == (1 if name == "nan" else 2)
    assert given == by_python(spark_engine, job, monkeypatch)


@pytest.mark.parametrize("name", REALS)
def test_a_filter_of_spark_loses_no_row_of_a_file_that_is_written_here(
    spark_session: Any, tmp_path: Path, name: str
) -> None:
    """Whoever reads a table has Spark's own settings."""
    reals, condition = REALS[name]
    table = pa.table({"a": reals, "b": pa.array(reals, pa.float32()), "s": [{"x": one} for one in reals]})
    with open(tmp_path / "a.parquet", "wb") as file:
        write_parquet(table, file)
    found = spark_session.newSession().read.parquet(str(tmp_path))
    where = " AND ".join(condition.format(column) for column in ("a", "b", "s.x"))
    assert found.where(where).count() == (1 if name == "nan" else 2)


def test_what_spark_wrote_has_the_same_rows_whoever_reads_it(
    spark_engine: SparkEngine, job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default it writes timestamps in a form of 96 bits."""
    moments = ("0001-01-01 00:00:00", "1969-12-31 23:59:59.999999", "9999-12-31 23:59:59.999999")
    with spark_engine._attached(job_of(grouped_numbers)) as attached:
        rows = attached.session.range(3).selectExpr(
            f"timestamp(element_at(array{moments}, int(id) + 1)) AS at",
            "array(id, 7) AS many",
            "date'0001-01-01' AS day",
            "named_struct('p', cast(0.5 AS decimal(20,3)), 'q', array(id)) AS parts",
        )
        rows.coalesce(1).write.parquet(str(tmp_path / "spark"))
    fields = "at timestamp, many array<long>, day date, parts struct<p:decimal(20,3),q:array<long>>"
    job = job_of(transformed(tmp_path / "spark", fields))
    check_equal(spark_engine, job, monkeypatch, "Spark", 3)
    assert "9999, 12, 31, 23, 59, 59, 999999" in "".join(run(spark_engine, job)["rows"])


def reads(path: Path, fields: str, **options: Any) -> int | None:
    """How many rows Spark reads."""
    spout = FileSpout(str(path), format="parquet", fields=fields, **options)
    return rows_for_spark(spout.emitter().reading, [str(path)])


@pytest.mark.parametrize("name", UNLIKE)
def test_a_column_of_which_spark_might_make_something_else_is_left_to_python(tmp_path: Path, name: str) -> None:
    kind, column = UNLIKE[name]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": column}), path)
    assert reads(path, f"a {kind}") is None


def test_files_with_other_columns_damaged_ones_and_odd_names_are_left_to_python(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2], "A": [3, 4]})
    path, odd, short = tmp_path / "a.parquet", tmp_path / "a[1].parquet", tmp_path / "short.parquet"
    for one in (path, odd, short):
        pq.write_table(table, one)
    short.write_bytes(short.read_bytes()[:-1])
    assert reads(path, "a long, A long") == reads(path, "A long", extra_columns="ignore") == 2
    assert reads(path, "a long") is None, "a column that is not declared"
    assert reads(path, "a long, A long, b long") is None
    assert reads(odd, "a long, A long") is None
    assert reads(short, "a long, A long") is None


@pytest.mark.parametrize(
    ("notes", "rows"),
    [
        ({"org.apache.spark.version": "4.2.0"}, 1),
        ({"org.apache.spark.version": "2.4.8"}, None),
        ({"org.apache.spark.version": "3.5.1", "org.apache.spark.legacyDateTime": ""}, None),
        ({"org.apache.spark.version": "3.5.1", "org.apache.spark.legacyINT96": ""}, None),
    ],
)
def test_days_of_another_calendar_are_left_to_python(tmp_path: Path, notes: dict[str, str], rows: int | None) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata(notes), path)
    assert reads(path, "a long") == rows


class Told(Function):
    def prepare(self, context: OperationContext) -> None:
        assert context.partition_index < context.num_partitions

    def execute(self, a: int) -> Any:
        yield a


def test_where_python_goes_on_or_one_file_is_unlike_python_reads(
    spark_engine: SparkEngine, job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(pa.table({"a": [1, 2]}), folder / "a.parquet")

    def rows(topology: Topology) -> Stream:
        return topology.new_stream("rows", FileSpout(f"{folder}/*.parquet", format="parquet", fields="a long"))

    def raw(topology: Topology) -> None:
        keep(rows(topology))

    def told_of_partitions(topology: Topology) -> None:
        more = topology.new_stream("more", FixedBatchSpout("a long", [3]))
        keep(topology.merge([rows(topology), more]).each("a", Told(), "b long"))

    def united(topology: Topology) -> None:
        more = topology.new_stream("more", FixedBatchSpout("a long", [3]))
        keep(topology.merge([rows(topology), more]).transform(as_it_is, "a long"))

    def grouped(topology: Topology) -> None:
        rows(topology).group_by("a").persistent_aggregate(PaperState(), Count(), "n")

    def by_a_grouping_of_its_own(topology: Topology) -> None:
        keep(rows(topology).partition(Twice()))

    python = dict.fromkeys((raw, told_of_partitions, by_a_grouping_of_its_own), "Python")
    for build, reader in {**python, united: "Spark", grouped: "Spark"}.items():
        assert reader_of(spark_engine, job_of(build)) == reader, build.__name__
        assert run(spark_engine, job_of(build)) == by_python(spark_engine, job_of(build), monkeypatch)
    pq.write_table(pa.table({"a": pa.array([3], pa.int32())}), folder / "b.parquet")
    check_equal(spark_engine, job_of(transformed(folder, "a long")), monkeypatch, "Python", 3)


def test_a_forked_source_and_filters_and_fields_that_are_not_used(
    spark_engine: SparkEngine, job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"a": range(9), "b": [None, *"abcdefgh"]}), tmp_path / "a.parquet", row_group_size=2)

    def forked(topology: Topology) -> None:
        rows = topology.new_stream(
            "rows", FileSpout(f"{tmp_path}/*.parquet", format="parquet", fields="a long, b string")
        )
        keep(rows.filter(col("a") > 4).transform(as_it_is, "a long, b string"), "some")
        keep(rows.sql("SELECT count(b) AS n FROM {rows}", "n long"), "counted")
        rows.filter(col("a") < 2).group_by("b").persistent_aggregate(PaperState(), Count(), "n", name="groups")

    job = job_of(forked)
    given = run(spark_engine, job)
    assert {name: len(rows) for name, rows in given.items()} == {"some": 4, "counted": 1, "groups": 2}
    assert given == by_python(spark_engine, job, monkeypatch)
    assert (reader_of(spark_engine, job), spark_engine.run(job).rows_read) == ("Spark", 9)


def test_files_that_changed_or_are_gone_are_named_and_nothing_is_staged(
    spark_engine: SparkEngine, job_of: JobOf, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [1, 2]}), path)
    job = job_of(transformed(tmp_path, "a long"))
    expected = run(spark_engine, job)
    os.utime(path, (1, 1))
    assert run(spark_engine, job) == expected, "only its time is another one"

    def change(frame: DataFrame) -> DataFrame:
        pq.write_table(pa.table({"a": [1, 3]}), path)
        return frame

    def changing(topology: Topology) -> None:
        spout = FileSpout(str(path), format="parquet", fields="a long")
        keep(topology.new_stream("rows", spout).transform(change, "a long"))

    for build in (changing, transformed(tmp_path, "a long")):
        with pytest.raises(SourceChangedError, match=r"a\.parquet' changed"):
            spark_engine.run(replace(job, plan=job_of(build).plan))
    path.unlink()
    with pytest.raises(SourceChangedError, match=r"a\.parquet', which the transaction recorded, is gone"):
        spark_engine.run(job)


def test_damage_behind_the_footer_is_told_by_the_reader_that_knows_the_file(
    spark_engine: SparkEngine, job_of: JobOf, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": range(5_000)}), path, compression="zstd", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[40:400] = bytes(360)
    path.write_bytes(content)
    with pytest.raises(DamagedInputError, match=r"a\.parquet' cannot be read"):
        spark_engine.run(job_of(transformed(tmp_path, "a long")))


# ---- what a spout gives ----------------------------------------------------------------------------------------


def wrong_columns(frame: Any) -> Any:
    return frame.withColumnRenamed("a", "b")


def wrong_types(frame: Any) -> Any:
    return frame.select(frame["a"].cast("int"))


def twice_the_column(frame: Any) -> Any:
    return frame.select("a", "a")


def of_another_session(frame: Any) -> Any:
    return frame.sparkSession.newSession().range(1).toDF("a")


def nothing_at_all(frame: Any) -> Any:
    return 7


@pytest.mark.parametrize("wrong", [wrong_columns, wrong_types, twice_the_column, of_another_session, nothing_at_all])
def test_a_spout_that_gives_another_dataframe_than_it_declares_is_refused(
    spark_engine: SparkEngine,
    job_of: JobOf,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wrong: Callable[[Any], Any],
) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "a.parquet")
    job = job_of(transformed(tmp_path, "a long"))
    given = FileEmitter.data_frame

    def data_frame(emitter: FileEmitter, session: Any, metadata: Any) -> BatchFrame | None:
        batch = given(emitter, session, metadata)
        assert batch is not None
        return replace(batch, frame=wrong(batch.frame))

    monkeypatch.setattr(FileEmitter, "data_frame", data_frame)
    with pytest.raises(DamagedInputError, match=r"stream 'rows': what the spout gave as a DataFrame .*\(a long\)"):
        spark_engine.run(job)


@pytest.mark.parametrize("escape", ["\\", '"'])
def test_csv_that_spark_writes_is_read_as_it_was_meant(spark_session: Any, tmp_path: Path, escape: str) -> None:
    chosen = random.Random(escape)
    pieces = ["\\", '"', ",", "\n", "\r", "a", " b", "x\\", '\\"', "'", "\t", "é", "#"]
    texts = ["".join(chosen.choices(pieces, k=chosen.randrange(5))) for _ in range(600)]
    rows = [(number, chosen.choice([text, None, ""]), text) for number, text in enumerate(texts)]
    frame = spark_session.createDataFrame(rows, "n long, s string, t string").coalesce(1)
    kept = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
    frame.write.options(header="true", escape=escape, **kept).csv(str(tmp_path / "out"))
    dialect = {"null": "", "escape": None if escape == '"' else escape}
    assert read(tmp_path / "out", format="csv", fields="n long, s string, t string", **dialect) == rows


@pytest.mark.parametrize("checksum", [False, True])
def test_damaged_pages_of_a_file_are_found_by_whoever_reads_them(
    spark_engine: SparkEngine, job_of: JobOf, tmp_path: Path, checksum: bool
) -> None:
    """Spark decodes the values of a dictionary after its reader of files is done. That a bit flipped in a page without
    a dictionary only its checksum shows."""
    path = tmp_path / "a.parquet"
    table = pa.table({"a": [number % 50 for number in range(3_000)]})
    pq.write_table(table, path, compression="none", use_dictionary=not checksum, write_page_checksum=checksum)
    column, content = pq.read_metadata(path).row_group(0).column(0), bytearray(path.read_bytes())
    end = (column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size
    content[end - 200 : end] = bytes([content[end - 200] ^ 1, *content[end - 199 : end]]) if checksum else b"\xff" * 200
    path.write_bytes(content)
    job = job_of(transformed(tmp_path, "a long"))
    assert reader_of(spark_engine, job) == "Spark"
    with pytest.raises(DamagedInputError, match=r"a\.parquet' cannot be read"):
        spark_engine.run(job)
