"""Rows as Arrow: a value is in its column as it was given, or refused."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pendulum
import pyarrow as pa
import pytest

from airflow_trident.engine.partitioning import _shuffled
from airflow_trident.io.arrow import grouped, rows_to_table, split_by, table_to_rows, taken
from airflow_trident.io.values import UnfitValueError
from airflow_trident.types import parse_declared

NOON = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)
DAY = NOON.date()
FIRST = datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=14)))


class Colour(str, Enum):  # noqa: UP042 - StrEnum has another text
    """The text of a member says its class: ``Colour.RED``."""

    RED = "red"


class Spoken(bytes):
    """Says other bytes than it has."""

    def __bytes__(self) -> bytes:
        return b"other"


class Row(NamedTuple):
    b: int
    c: int


@pytest.mark.parametrize(
    ("type_text", "value"),
    [
        ("long", 1.99), ("int", 0.5), ("short", Decimal("1.5")), ("byte", math.nan), ("long", math.inf),
        ("long", np.float64(2.5)), ("long", Decimal("NaN")),
        ("date", NOON), ("date", 5), ("timestamp", 1_767_355_200), ("timestamp", 5.5),
        ("array<long>", [1, 2.5]), ("array<array<date>>", [[DAY], [NOON]]),
        ("map<string, long>", {"a": 1.5}), ("map<long, string>", {1.5: "a"}),
        ("struct<a: string, b: long>", {"a": "x", "b": 2.5}), ("struct<a: string, b: long>", ("x", 2.5)),
        ("struct<a: array<timestamp>>", {"a": [5]}), ("struct<a: long>", MappingProxyType({"a": 2.5})),
        ("struct<a: long>", {}), ("struct<a: long>", {"A": 1}), ("struct<a: long>", {"a": 1, "b": None}),
        ("struct<a: long, b: long>", Row(b=1, c=2)), ("map<string, long>", [("a", 1), ("a", 2)]),
        ("float", 1e39), ("float", 2**24 + 1), ("double", 2**53 + 1), ("double", True), ("binary", "x"),
        ("decimal(4, 2)", Decimal("1.005")), ("decimal(4, 2)", Decimal("." + "9" * 41)), ("decimal(4, 2)", 100),
        ("string", "\ud800"),
        ("array<string>", ["\udfff"]), ("timestamp", FIRST),
        ("double", np.int64(2**53 + 1)), ("double", np.complex128(1 + 2j)), ("double", np.True_),
        ("double", Fraction(1, 3)), ("float", np.int64(2**24 + 1)),
        pytest.param("long", 10**5000, id="long"), pytest.param("decimal(4, 2)", 10**5000, id="decimal"),
        ("timestamp", pd.NaT), ("timestamp", pd.Timestamp(1)), ("interval day to second", pd.Timedelta(1)),
    ],
)  # fmt: skip
def test_a_value_that_arrow_would_change_is_refused(type_text: str, value: Any) -> None:
    schema = parse_declared(f"a string, b {type_text}")
    with pytest.raises(UnfitValueError, match=r"the field 'b' of row 2 holds .* is declared"):
        rows_to_table(schema, [("x", None), ("y", value)])


@pytest.mark.parametrize(
    ("type_text", "value", "kept"),
    [
        ("long", 2.0, 2), ("long", Decimal(7), 7), ("int", Decimal("7.00"), 7), ("long", np.int64(3), 3),
        ("long", 2**63 - 1, 2**63 - 1), ("date", DAY, DAY), ("timestamp", NOON, NOON), ("double", 1, 1.0),
        ("array<long>", [1, None], [1, None]), ("struct<a: long>", {"a": None}, {"a": None}),
        ("map<string, long>", [("a", 1)], {"a": 1}), ("double", Fraction(1, 2), 0.5), ("double", np.array(1.5), 1.5),
        ("double", np.float32(0.1), 0.10000000149011612), ("binary", Spoken(b"a"), b"a"),
        ("string", Colour.RED, "red"), ("map<string, long>", {Colour.RED: 1}, {"red": 1}),
        ("timestamp", pendulum.datetime(2026, 1, 2, 13, tz="Europe/Berlin"), NOON),
    ],
)  # fmt: skip
def test_a_value_that_is_the_same_in_its_field_is_taken(type_text: str, value: Any, kept: Any) -> None:
    schema = parse_declared(f"b {type_text}")
    assert table_to_rows(rows_to_table(schema, [(None,), (value,)])) == [(None,), (kept,)]


def test_rows_are_taken_from_a_column_with_more_text_than_an_array_holds() -> None:
    offsets, zeros = np.array([0, 2**28, 2**28 + 1], np.int32), np.zeros(2**28 + 1, np.uint8)
    text = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(zeros)])
    chunk = pa.table({"text": text})
    table = pa.concat_tables([chunk] * 9).append_column("n", pa.array(range(18)))
    with pytest.raises(pa.ArrowInvalid, match="offset overflow"):
        table.take([3, 1])
    found = taken(table, pa.array([17, 3, 1]))
    assert found.to_pydict() == {"text": ["\0"] * 3, "n": [17, 3, 1]}
    assert taken(table, pa.array([], pa.int64())).schema == table.schema


@pytest.mark.rare  # five gigabytes of memory
def test_tuples_with_more_text_than_an_array_holds_are_spread_over_partitions() -> None:
    offsets, zeros = np.array([0, 2**28, 2**28 + 1], np.int32), np.zeros(2**28 + 1, np.uint8)
    text = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(zeros)])
    table = pa.concat_tables([pa.table({"text": text})] * 8).append_column("n", pa.array(range(16))).combine_chunks()
    assert [part.column("n").to_pylist() for part in _shuffled(table, 2)] == [[*range(0, 16, 2)], [*range(1, 16, 2)]]


@pytest.mark.parametrize("most_bytes", [1, 20, 50, 10_000])
@pytest.mark.parametrize("places", [[], [5], [0, 3, 4, 11], [11, 0, 7, 7, 2, 3], list(range(11, -1, -1))])
def test_rows_are_taken_in_the_order_that_is_asked_for(places: list[int], most_bytes: int) -> None:
    part = {"text": ["a", "bb", None, "dddd"], "many": [["x"], [], None, ["y", "z"]]}
    table = pa.concat_tables([pa.table(part)] * 3).append_column("n", pa.array(range(12)))
    for given in (pa.array(places, pa.int64()), np.array(places, dtype=np.int64)):
        assert taken(table, given, most_bytes=most_bytes).equals(table.take(pa.array(places, pa.int64())))


# ---- groups ---------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("seed", range(40))
def test_each_part_of_a_table_has_the_values_of_its_partition(seed: int) -> None:
    """Arrow gives groups in an order of its own, if several columns make them."""
    chance = np.random.default_rng(seed)
    texts = pa.array(["a", "b", "é/x", "", "a longer text", "ä %.csv", None])
    rows = int(chance.integers(2, 40))
    columns = {f"c{place}": texts.take(pa.array(chance.integers(0, len(texts), rows))) for place in range(seed % 4)}
    table = pa.table({**columns, "n": pa.array(range(rows))})
    parts = list(split_by(table, list(columns)))
    values = [part_values for part_values, _ in parts]
    assert len(values) == len(set(values))
    for part_values, part in parts:
        assert all(tuple(row[name] for name in columns) == part_values for row in part.to_pylist())
    assert sorted(n for _, part in parts for n in part.column("n").to_pylist()) == list(range(rows))
