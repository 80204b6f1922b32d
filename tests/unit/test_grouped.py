"""Groups made by Arrow have the right columns, whatever their fields are called."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_trident.io.arrow import grouped, split_by


def test_a_result_is_found_beside_a_key_of_the_name_that_arrow_gives_it() -> None:
    table = pa.table({"n": [1, 2, 3], "n_sum": ["a", "b", "a"], "n_max": [7, 7, 7], "1_sum": [0, 0, 0]})
    found = grouped(table, ["n_sum", "1_sum"], [("n", "sum"), ("n", "max"), ("n_max", "sum")])
    assert [column.to_pylist() for column in found] == [["a", "b"], [0, 0], [4, 2], [3, 2], [14, 7]]


def test_a_key_may_be_counted_too() -> None:
    found = grouped(pa.table({"k": [1, None, 1]}), ["k"], [("k", "count")])
    assert [column.to_pylist() for column in found] == [[1, None], [2, 0]]


@pytest.mark.parametrize("name", ["day", "count_all", "one_row"])
def test_the_rows_of_a_partition_are_together_whatever_its_field_is_called(name: str) -> None:
    table = pa.table({name: [3, 1, 3, 1, 3], "n": [1, 2, 3, 4, 5]})
    found: dict[Any, Any] = {values: part.column("n").to_pylist() for values, part in split_by(table, (name,))}
    assert {values: sorted(rows) for values, rows in found.items()} == {(1,): [2, 4], (3,): [1, 3, 5]}
