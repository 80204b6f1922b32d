"""What a plan tells a source: fields that are used, filters that follow; and what `FileSpout` makes of it."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_trident import Count, FileSpout, Topology
from airflow_trident.engine.engine import emitter_of
from airflow_trident.engine.local import LocalEngine
from airflow_trident.io.arrow import table_to_rows
from airflow_trident.operations.evaluate import bind
from airflow_trident.operations.expressions import Expression, col, lit
from airflow_trident.plan.nodes import SourceNode
from airflow_trident.types import parse_declared
from tests.fixtures.engine import JobOf, keep, run
from tests.fixtures.plan import PaperState

FIELDS = "n long, day date, name string, price double"


@pytest.fixture
def spout(tmp_path: Path) -> FileSpout:
    """Nine rows in three row groups: n from 0 to 8, a day each, the third group without any n."""
    days = [datetime.date(2026, 1, 1) + datetime.timedelta(days=place) for place in range(9)]
    numbers = [place if place < 6 else None for place in range(9)]
    table = pa.table(
        {"n": pa.array(numbers, pa.int64()), "day": days, "name": [f"name {n}" for n in range(9)], "price": [1.5] * 9}
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    return FileSpout(str(tmp_path / "*.parquet"), format="parquet", fields=FIELDS)


def read(spout: FileSpout, *filters: Expression, fields: str = FIELDS) -> pa.Table:
    source = SourceNode(name="s", schema=parse_declared(fields), spout=spout, filters=filters)
    emitter = emitter_of(source)
    batches = [
        batch
        for split in emitter.splits(spout.coordinator().initialize_transaction(1, None))
        for batch in emitter.read(split)
    ]
    schema = pa.schema([]) if not batches else batches[0].schema
    return pa.Table.from_batches(batches, schema)


def test_only_the_columns_that_are_used_are_read(spout: FileSpout) -> None:
    assert read(spout, fields="day date, price double").column_names == ["day", "price"]


@pytest.mark.parametrize(
    ("filter", "rows"),
    [
        (col("n") > 4, 6),  # the group of 3 to 5, and that of nulls, of which nothing is recorded
        (col("n") >= 3, 6),
        (col("n") < 1, 6),
        (lit(2) >= col("n"), 6),
        (col("n") == 4, 6),
        ((col("n") > 100) & (col("name") == "x"), 3),
        (col("day") <= datetime.date(2026, 1, 2), 3),
        (col("day") == datetime.date(2025, 1, 2), 0),
        (col("name") == "none", 9),  # what is recorded of texts may be cut
        (col("price") > 2.0, 9),  # NaN is left out of what is recorded
        ((col("n") > 100) | (col("n") < 1), 9),
        (col("n") + 1 > 100, 9),
    ],
    ids=str,
)
def test_groups_of_which_no_row_is_kept_are_passed_over(spout: FileSpout, filter: Expression, rows: int) -> None:
    assert read(spout, filter).num_rows == rows


@settings(max_examples=60)
@given(
    how=st.sampled_from(["==", "<", "<=", ">", ">="]),
    value=st.integers(-2, 10),
    turned=st.booleans(),
    numbers=st.lists(st.none() | st.integers(0, 9), min_size=1, max_size=20),
)
def test_no_row_that_a_filter_keeps_is_ever_left_out(
    how: str, value: int, turned: bool, numbers: list[int | None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("files")
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), folder / "a.parquet", row_group_size=2)
    spout = FileSpout(str(folder / "*.parquet"), format="parquet", fields="n long")
    left, right = (lit(value), col("n")) if turned else (col("n"), lit(value))
    expression: Any = {
        "==": lambda: left == right,
        "<": lambda: left < right,
        "<=": lambda: left <= right,
        ">": lambda: left > right,
        ">=": lambda: left >= right,
    }[how]()
    keeps = bind(expression, spout.schema)
    kept = [row for row in table_to_rows(read(spout, expression, fields="n long")) if keeps(*row)]
    assert sorted(map(repr, kept)) == sorted(repr((n,)) for n in numbers if keeps(n))


def test_a_plan_tells_its_source_and_the_result_is_the_same(spout: FileSpout, job_of: JobOf) -> None:
    def build(topology: Topology) -> None:
        stream = topology.new_stream("s", spout)
        kept = stream.each("name", lambda name: name.split(), "word string").filter(col("n") >= 3)
        kept.group_by("word").persistent_aggregate(PaperState(), Count(), "times")

    job = job_of(build)
    (stage,) = [stage for stage in job.plan.stages if stage.source is not None]
    assert stage.source is not None
    assert stage.source.fields == ("n", "name")
    assert [str(one) for one in stage.source.filters] == ["(n >= 3)"]
    assert run(LocalEngine(), job)["times"] == ["('3', 1)", "('4', 1)", "('5', 1)", "('name', 3)"]
    assert LocalEngine().run(job).rows_read == 6


def test_a_spout_without_hooks_gives_all_its_fields_and_the_rest_is_dropped(job_of: JobOf) -> None:
    from tests.fixtures.engine import sales

    job = job_of(lambda topology: keep(sales(topology).filter(col("id") > 4).project("fruit")))
    assert run(LocalEngine(), job)["rows"] == ["('apple',)", "(None,)"]
