"""Our Parquet files: which columns have a dictionary, and that all types come back."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_trident.io.parquet import null_counts, write_parquet, write_parquet_pieces


def written(columns: dict[str, Any]) -> tuple[pa.Table, Sequence[str]]:
    """The rows read back, and the columns with a dictionary."""
    table, file = pa.table(columns), io.BytesIO()
    write_parquet(table, file)
    footer = pq.read_metadata(file)
    group = footer.row_group(0)
    parts = [group.column(place) for place in range(footer.num_columns)]
    return pq.read_table(file), [one.path_in_schema for one in parts if one.has_dictionary_page]


def test_only_columns_whose_values_repeat_have_a_dictionary() -> None:
    columns = {
        "id": pa.array(range(50_000), pa.int64()),
        "day.name": pa.array([f"day {number // 10_000}" for number in range(50_000)]),
        "mark": pa.array([f"{number:09}" for number in range(50_000)]),
        "none": pa.array([None] * 50_000, pa.string()),
    }
    found, with_dictionary = written(columns)
    assert found == pa.table(columns)
    assert "day.name" in with_dictionary
    assert not {"id", "mark"} & set(with_dictionary)


def test_nested_columns_are_written_by_the_default() -> None:
    columns = {
        "id": pa.array(range(1000), pa.int64()),
        "tags": pa.array([[f"tag {number % 3}"] for number in range(1000)]),
    }
    found, with_dictionary = written(columns)
    assert found == pa.table(columns)
    assert len(with_dictionary) == 2


def test_no_rows() -> None:
    table, file = pa.table({"id": pa.array([], pa.int64())}), io.BytesIO()
    write_parquet(table, file)
    assert pq.read_table(file) == table


def test_real_numbers_have_no_statistics_and_their_nulls_are_counted() -> None:
    """A reader that trusts Arrow's statistics of them loses rows with NaN."""
    table = pa.table(
        {
            "id": pa.array([1, None, 3], pa.int64()),
            "x": [1.0, math.nan, None],
            "half": pa.array([None, None, 1.5], pa.float16()),
            "parts": pa.array([{"a": 1.0, "b": None}, None, {"a": None, "b": 2}]),
            "many": [[1.0], None, []],
        }
    )
    whole, pieces, empty = io.BytesIO(), io.BytesIO(), io.BytesIO()
    write_parquet(table, whole)
    assert write_parquet_pieces([*table.to_batches()] * 2, table.schema, pieces) == 6
    assert write_parquet_pieces([], table.schema, empty) == 0
    assert repr(pq.read_table(whole).to_pylist()) == repr(table.to_pylist())
    assert null_counts(pq.read_metadata(whole)) == {"id": 1, "x": 1, "half": 2}
    assert null_counts(pq.read_metadata(pieces)) == {"id": 2, "x": 2, "half": 4}
    assert null_counts(pq.read_metadata(empty)) == {"id": 0, "x": 0, "half": 0}
    for file in (whole, pieces):
        group = pq.read_metadata(file).row_group(0)
        columns = [group.column(place) for place in range(group.num_columns)]
        assert [one.path_in_schema for one in columns if one.is_stats_set] == ["id", "parts.b"]
        assert not {"x", "half", "parts.a"} & {one.path_in_schema for one in columns if one.has_dictionary_page}
