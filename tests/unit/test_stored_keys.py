"""Keys that user code makes: what is the same value for Python is the same key for every store."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from airflow_trident.operations.equality import stored_keys
from airflow_trident.types import parse_declared

NOON = datetime.datetime(2024, 2, 29, 12, tzinfo=ZoneInfo("UTC"))


@pytest.mark.parametrize(
    ("type_text", "held", "made", "none"),
    [
        ("decimal(10,2)", Decimal("1.50"), [Decimal("1.5"), 1.5, Decimal("1.500")], ["x", 0.1, Decimal("0.001")]),
        ("decimal(10,2)", Decimal("3.00"), [3, 3.0], [float("nan"), float("inf")]),
        ("long", 4, [4.0, Decimal(4)], [4.5, "4", float("nan"), [4]]),
        ("int", 1, [True, 1.0], ["x"]),
        ("float", 0.10000000149011612, [0.1], ["0.1"]),
        ("double", 1.5, [Decimal("1.5")], [[1.5], "1.5"]),
        ("double", 0.0, [-0.0, 0, False], ["0"]),
        ("boolean", True, [1, 1.0], [2, "true"]),
        ("string", "a", ["a"], [1]),
        ("date", NOON.date(), [NOON.date()], [NOON, 19_782]),
        ("timestamp", NOON, [NOON.astimezone(ZoneInfo("Asia/Tokyo"))], [NOON.date(), 1.5]),
    ],
)
def test_a_part_is_what_its_field_holds(type_text: str, held: Any, made: list[Any], none: list[Any]) -> None:
    fields = parse_declared(f"k {type_text}")
    for one in [held, *made]:
        ((found,),) = stored_keys(fields, [(one,)])
        assert (type(found), repr(found)) == (type(held), repr(held))
    for one in none:
        with pytest.raises(ValueError, match="a key has not the type of its fields"):
            stored_keys(fields, [(one,)])
    assert stored_keys(fields, [(None,)]) == [(None,)]


def test_keys_of_several_fields_and_of_none() -> None:
    fields = parse_declared("l long, d decimal(9,1)")
    assert stored_keys(fields, [(1, Decimal("2.0")), (1.0, 2)]) == [(1, Decimal("2.0"))] * 2
    assert stored_keys((), [(), ()]) == [(), ()]
