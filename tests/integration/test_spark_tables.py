"""Files of tables that Spark reads itself give the rows that the spouts' own readers give, or those read them."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType

from airflow_trident import Topology
from airflow_trident.contracts.spout import Emitter, Spout
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.errors import DamagedInputError, SourceChangedError
from airflow_trident.io.arrow import arrow_schema, rows_to_table
from airflow_trident.spouts.delta.spout import DeltaSpout
from airflow_trident.spouts.files import by_spark
from airflow_trident.testing.suites import batch_rows
from airflow_trident.types import parse_declared
from tests.contracts.test_iceberg_spouts import Table as IcebergMade
from tests.fixtures.engine import JobOf, keep, rows_as_text, run, staged
from tests.fixtures.parquet_in_spark import as_it_is, reader_of

pytestmark = pytest.mark.spark

UTC = datetime.UTC
FIELDS = (
    "p string, day date, big long, small int, yes boolean, part double, amount decimal(12,3), wide decimal(38,0), "
    "raw binary, at timestamp, many array<int>, late long"
)
LATE = ("late",)


def rows() -> list[tuple[Any, ...]]:
    """With nulls, extremes, and three values of each of `p` and `day`."""
    most = 10**38 - 1
    first, last, some = datetime.date(1, 1, 1), datetime.date(9999, 12, 31), Decimal("999999999.999")
    whole = [
        ("a", first, -(2**63), 2**31 - 1, True, math.nan, some, most, b"\xff"),
        ("x y", last, 2**63 - 1, -1, False, -0.0, Decimal("0.001"), -most, b""),
        (None, None, None, None, None, None, None, None, None),
    ]
    moments = [datetime.datetime(1, 1, 1, tzinfo=UTC), datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), None]
    lists: list[Any] = [[1, None], [], None]
    return [(*one, at, many) for one, at, many in zip(whole, moments, lists, strict=True)]


def tables() -> tuple[pa.Table, pa.Table]:
    """Older rows without the last column, and newer ones with it."""
    schema = arrow_schema(parse_declared(FIELDS))
    older = [dict(zip(schema.names, row, strict=False)) for row in rows()]
    newer = [{**row, "late": 7} for row in older]
    first = pa.Table.from_pylist(older, schema=schema).drop_columns(list(LATE))
    return first, pa.Table.from_pylist(newer, schema=schema)


def delta(folder: Path, *, by: list[str] | None = None) -> Spout:
    older, newer = tables()
    write_deltalake(folder / "t", older, partition_by=by)
    write_deltalake(folder / "t", newer, mode="append", schema_mode="merge")
    return DeltaSpout(str(folder / "t"), fields=FIELDS)


def delta_by_values(folder: Path) -> Spout:
    """Its files do not contain the columns of partitions."""
    return delta(folder, by=["p", "day", "big", "yes", "amount", "at"])


def iceberg(folder: Path, *, by: tuple[str, ...] = ()) -> Spout:
    older, newer = tables()
    made = IcebergMade(folder, older.schema)
    with made.table.update_spec() as update:
        for name in by:
            update.add_field(name, IdentityTransform(), name)
    made.table.append(older)
    with made.table.update_schema() as change:
        change.add_column("late", LongType())
    made.table.append(newer)
    return made.spout(FIELDS)


def iceberg_by_day(folder: Path) -> Spout:
    return iceberg(folder, by=("day",))


MADE: dict[str, Callable[[Path], Spout]] = {
    one.__name__: one for one in (delta, delta_by_values, iceberg, iceberg_by_day)
}


def job_for(job_of: JobOf, spout: Spout, fields: str) -> Any:
    def build(topology: Topology) -> None:
        keep(topology.new_stream("rows", spout).transform(as_it_is, fields))

    return job_of(build)


def by_python(engine: SparkEngine, job: Any, spout: Spout, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    with monkeypatch.context() as patch:
        patch.setattr(type(spout.emitter()), "data_frame", Emitter.data_frame)
        assert reader_of(engine, job) == "Python"
        return run(engine, job)


@pytest.mark.parametrize("made", MADE)
def test_spark_reads_the_rows_of_the_spout(
    spark_engine: SparkEngine, job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    spout = MADE[made](tmp_path)
    job = job_for(job_of, spout, FIELDS)
    assert reader_of(spark_engine, job) == "Spark"
    manifest = spark_engine.run(job)
    found = staged(job, manifest)
    assert found == by_python(spark_engine, job, spout, monkeypatch)
    assert manifest.rows_read == len(found["rows"]) == 6
    (metadata,) = job.metadata.values()
    assert found["rows"] == rows_as_text(batch_rows(spout, metadata))


def frame(spout: Spout) -> Any:
    """None if Python reads it: then there is no need of a session."""
    return spout.emitter().data_frame(None, spout.coordinator().initialize_transaction(1, None))


def test_what_spark_might_read_otherwise_is_left_to_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = pa.table({"n": pa.array([1], pa.int64()), "p": ["ä"]})
    write_deltalake(tmp_path / "ödd", one, partition_by=["p"])
    assert frame(DeltaSpout(str(tmp_path / "ödd"), fields="n long, p string")) is None, "the path of its file"
    assert frame(DeltaSpout(str(tmp_path / "ödd"), fields="p string")) is None, "no column is in a file"
    write_deltalake(tmp_path / "n", one.select(["n"]))
    assert frame(DeltaSpout(str(tmp_path / "n"), fields="n double")) is None
    many = pa.table({"n": pa.array(range(3), pa.int64()), "p": range(3)})
    write_deltalake(tmp_path / "many", many, partition_by=["p"])
    monkeypatch.setattr(by_spark, "MOST_PARTITIONS", 2)
    assert frame(DeltaSpout(str(tmp_path / "many"), fields="n long, p long")) is None
    for hidden in ("_n.parquet", ".n.parquet"):  # Spark gives no rows of them and says nothing
        pq.write_table(one, tmp_path / hidden)
        file = by_spark.FileOfTable(path=str(tmp_path / hidden), rows=1, partition={})
        assert by_spark.frame_of(None, parse_declared("n long"), [file]) is None
    plain = DeltaSpout(str(tmp_path / "n"), fields="n long")
    (path,) = (tmp_path / "n").glob("*.parquet")
    content = path.read_bytes()
    for change in (
        lambda: path.write_bytes(content[:-1]),
        lambda: pq.write_table(one.select(["n"]).slice(0, 0), path),
        path.unlink,
    ):
        change()
        assert frame(plain) is None


def test_columns_of_iceberg_that_others_had_the_names_of_are_left_to_python(tmp_path: Path) -> None:
    made = IcebergMade(tmp_path, pa.schema([("a", pa.int64()), ("b", pa.int64()), ("s", pa.struct({"x": pa.int64()}))]))
    made.table.append(pa.table({"a": [1], "b": [2], "s": [{"x": 3}]}, schema=made.table.scan().to_arrow().schema))
    assert frame(made.spout("s struct<x:long>")) is None
    with made.table.update_schema() as update:
        update.rename_column("a", "c")
    assert frame(made.spout("c long")) is None
    with made.table.update_schema() as update:
        update.delete_column("b")
    with made.table.update_schema() as update:
        update.add_column("b", LongType())
    spout = made.spout("b long")
    assert frame(spout) is None
    assert batch_rows(spout, spout.coordinator().initialize_transaction(1, None)) == [(None,)]


def test_files_that_are_removed_damaged_or_replaced_while_spark_reads_are_named(
    spark_engine: SparkEngine, job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = rows_to_table(parse_declared("n long"), [(number % 50,) for number in range(3_000)])
    write_deltalake(tmp_path / "t", table)
    (path,) = (tmp_path / "t").glob("*.parquet")
    content, spout = path.read_bytes(), DeltaSpout(str(tmp_path / "t"), fields="n long")
    job, given = job_for(job_of, spout, "n long"), by_spark.frame_of

    def damage() -> None:
        column = pq.read_metadata(path).row_group(0).column(0)
        begin = column.dictionary_page_offset or column.data_page_offset
        path.write_bytes(content[:begin] + b"\xff" * 30 + content[begin + 30 :])

    for change, error, text in (
        (path.unlink, SourceChangedError, "is gone"),
        (damage, SourceChangedError, "was replaced"),
        (lambda: path.write_bytes(content + b" "), SourceChangedError, "was replaced"),
    ):

        def then(*args: Any, change: Callable[[], Any] = change) -> Any:
            batch = given(*args)
            change()
            return batch

        with monkeypatch.context() as patch:
            patch.setattr("airflow_trident.spouts.delta.spout.frame_of", then)
            with pytest.raises(error, match=text):
                spark_engine.run(job)
        path.write_bytes(content)
    damage()
    with pytest.raises(DamagedInputError, match=rf"{path.name}.* cannot be read as"):
        spark_engine.run(job)
