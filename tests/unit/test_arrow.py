"""Rows as Arrow: a value is in its column as it was given, or refused."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_trident.io.arrow import rows_to_table, table_to_rows
from airflow_trident.types import parse_declared

NOON = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)
DAY = NOON.date()


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
    ],
)  # fmt: skip
def test_a_value_that_arrow_would_change_is_refused(type_text: str, value: Any) -> None:
    schema = parse_declared(f"a string, b {type_text}")
    with pytest.raises((pa.ArrowInvalid, OverflowError), match=r"is no|Could not convert|cannot convert"):
        rows_to_table(schema, [("x", None), ("y", value)])


@pytest.mark.parametrize(
    ("type_text", "value", "kept"),
    [
        ("long", 2.0, 2), ("long", Decimal(7), 7), ("int", Decimal("7.00"), 7), ("long", np.int64(3), 3),
        ("long", 2**63 - 1, 2**63 - 1), ("date", DAY, DAY), ("timestamp", NOON, NOON), ("double", 1, 1.0),
        ("array<long>", [1, None], [1, None]), ("struct<a: long>", {}, {"a": None}),
        ("map<string, long>", [("a", 1)], {"a": 1}),
    ],
)  # fmt: skip
def test_a_value_that_is_the_same_in_its_field_is_taken(type_text: str, value: Any, kept: Any) -> None:
    schema = parse_declared(f"b {type_text}")
    assert table_to_rows(rows_to_table(schema, [(None,), (value,)])) == [(None,), (kept,)]
