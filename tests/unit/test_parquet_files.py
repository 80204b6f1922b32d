"""Our Parquet files: which columns have a dictionary, and that all types come back."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_trident.io.parquet import write_parquet


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
