"""Values of drawn types from each source, through a function, into each state and sink, and read back: as plain Python
has them. Or they do not fit, and the error says so before anything is committed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_trident import DeltaTable, FileSink, FileSpout, FixedBatchSpout, MemoryState, SqliteState
from airflow_trident.contracts.spout import Spout
from airflow_trident.engine.engine import Engine
from airflow_trident.engine.local import LocalEngine
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.errors import DamagedInputError
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.io.values import coerce_column
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.spouts.delta.spout import DeltaSpout
from airflow_trident.topology.topology import Topology
from airflow_trident.types import parse_declared
from tests.generated.types import VALUES
from tests.unit.test_border import TYPES, plain, values_of

Rows = list[tuple[Any, ...]]
OF_JSON = ("string", "long", "int", "short", "byte", "boolean", "date", "time")
SMALL = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def fields_of(declared: str) -> str:
    return f"id long, v {declared}"


def table_of(declared: str, rows: Rows) -> pa.Table:
    return rows_to_table(parse_declared(fields_of(declared)), rows)


# ---- sources -----------------------------------------------------------------------------------------------------


def of_program(folder: Path, declared: str, rows: Rows) -> Spout:
    return FixedBatchSpout(fields_of(declared), rows, splits=2)


def of_parquet(folder: Path, declared: str, rows: Rows) -> Spout:
    pq.write_table(table_of(declared, rows), folder / "in.parquet", row_group_size=2)
    return FileSpout(str(folder / "in.parquet"), format="parquet", fields=fields_of(declared))


def of_json(folder: Path, declared: str, rows: Rows) -> Spout:
    lines = [json.dumps({"id": number, "v": value}, default=str) + "\n" for number, value in rows]
    (folder / "in.json").write_text("".join(lines))
    return FileSpout(str(folder / "in.json"), format="json", fields=fields_of(declared))


def of_delta(folder: Path, declared: str, rows: Rows) -> Spout:
    write_deltalake(str(folder / "in"), table_of(declared, rows))
    return DeltaSpout(str(folder / "in"), fields=fields_of(declared))


SOURCES: dict[str, Callable[[Path, str, Rows], Spout]] = {
    "program": of_program, "parquet": of_parquet, "json": of_json, "delta": of_delta,
}  # fmt: skip
UNKNOWN_TO_DELTA = ("time", "interval")


def fits_source(source: str, declared: str) -> bool:
    if source == "json":
        simple = declared.replace("array<", "").replace("map<string,", "").replace(">", "")
        return simple in OF_JSON
    return source != "delta" or not any(kind in declared for kind in UNKNOWN_TO_DELTA)


# ---- running -----------------------------------------------------------------------------------------------------


def read_back(spout: Spout) -> Rows:
    metadata = spout.coordinator().initialize_transaction(1, None)
    emitter = spout.emitter()
    rows: Rows = []
    for split in emitter.splits(metadata) if metadata is not None else ():
        for batch in emitter.read(split):
            columns = [column.to_pylist(maps_as_pydicts="strict") for column in batch.columns]
            rows += zip(*columns, strict=True)
    return sorted(rows)


def stored(topology: Topology, name: str) -> Rows:
    spec = topology.states[name]
    with spec.factory.make_state(spec) as state:
        return sorted((*key, *value) for key, value in state.items())


def round_trip(engine: Engine, folder: Path, spout: Spout, declared: str) -> dict[str, Rows]:
    topology, fields = Topology("border"), fields_of(declared)
    stream = topology.new_stream("in", spout).map(lambda number, value: (number, value), fields)
    stream.partition_persist(SqliteState(str(folder / "s.db")), "id, v", keys="id", name="sqlite")
    stream.partition_persist(MemoryState(uuid4().hex), "id, v", keys="id", name="memory")
    stream.partition_persist(FileSink(str(folder / "parquet")), "id, v", name="parquet")
    has_table = not any(kind in declared for kind in UNKNOWN_TO_DELTA)
    if has_table:
        stream.partition_persist(DeltaTable(str(folder / "delta")), "id, v", name="delta")
    LocalRunner(ledger=MemoryLedger("border"), topology=topology, engine=engine, staging_root=folder / "staging").run()
    pattern = str(folder / "parquet" / "*.parquet")
    found = {name: stored(topology, name) for name in ("sqlite", "memory")}
    found["parquet"] = read_back(FileSpout(pattern, format="parquet", fields=fields))
    if has_table:
        found["delta"] = read_back(DeltaSpout(str(folder / "delta"), fields=fields))
    return found


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, str, Rows]:
    source = draw(st.sampled_from(list(SOURCES)))
    declared = draw(TYPES.filter(lambda kind: fits_source(source, kind)))
    values = draw(st.lists(values_of(declared), min_size=1, max_size=4))
    return source, declared, list(enumerate(values))


def check(engine: Engine, folder: Path, case: tuple[str, str, Rows]) -> None:
    source, declared, rows = case
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    values = coerce_column([value for _, value in rows], declared)
    expected = plain(list(enumerate(values)))
    found = round_trip(engine, folder, SOURCES[source](folder, declared, rows), declared)
    assert {name: plain(some) for name, some in found.items()} == dict.fromkeys(found, expected)


@SMALL
@given(cases())
def test_values_come_through_every_source_and_state_as_they_were(tmp_path: Path, case: tuple[str, str, Rows]) -> None:
    with LocalEngine() as engine:
        check(engine, tmp_path / "case", case)


@pytest.mark.spark
def test_values_come_through_on_spark_as_they_were(spark_engine: SparkEngine, tmp_path: Path) -> None:
    declared = "struct<m0:array<timestamp>,m1:map<string,decimal(5,2)>,m2:float,m3:date>"
    value = {
        "m0": [*VALUES["timestamp"], None],
        "m1": {"a": VALUES["decimal(5,2)"][0], "b": None},
        "m2": 0.5,
        "m3": VALUES["date"][0],
    }
    for source in ("program", "parquet", "delta"):
        check(spark_engine, tmp_path / "case", (source, declared, list(enumerate([value, None]))))


# ---- what does not fit -------------------------------------------------------------------------------------------

MAPS = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
UNFIT: dict[str, tuple[pa.Array, str, str]] = {
    "scale": (pa.array([1.005]), "decimal(10,2)", "1.005"),
    "infinity": (pa.array([1e300]), "float", "1e.300"),
    "truth": (pa.array([5]), "boolean", "values of type int64"),
    "year": (pa.array([2_932_897], pa.int32()).cast(pa.date32()), "date", "10000-01-01"),
    "member": (pa.array([{"a2": 1}]), "struct<a:long>", "lacks the member 'a'"),
    "key": (MAPS, "map<string,long>", "a key twice"),
    "depth": (pa.array([[{"n": [300]}]]), "array<struct<n:array<byte>>>", r"300 in \[\]\.n\[\]"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_does_not_fit_is_an_error_with_file_row_and_value_and_nothing_is_committed(
    tmp_path: Path, case: str
) -> None:
    column, declared, said = UNFIT[case]
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"id": [1], "v": column}), path)
    spout = FileSpout(str(path), format="parquet", fields=fields_of(declared))
    with LocalEngine() as engine, pytest.raises(DamagedInputError, match=rf"in\.parquet': the field 'v'.*{said}"):
        round_trip(engine, tmp_path, spout, declared)
    assert not list(tmp_path.glob("parquet/*.parquet"))
