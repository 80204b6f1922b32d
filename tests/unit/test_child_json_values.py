"""Values of a child's JSON: nulls, and texts that are something else here, at every depth."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from airflow_trident.storm.components.protocol import reader_of
from airflow_trident.types import parse_declared

DAY = datetime.date(2022, 2, 2)


@pytest.mark.parametrize(
    ("type_text", "given", "read"),
    [
        ("struct<at:date,n:long>", {"at": "2022-02-02", "n": None}, {"at": DAY, "n": None}),
        ("struct<at:date,n:long>", {"at": None, "n": 7}, {"at": None, "n": 7}),
        ("struct<runtime:string,n:long>", {"runtime": "x", "n": None}, {"runtime": "x", "n": None}),
        ("array<struct<at:date,n:int>>", [{"at": None, "n": None}, None], [{"at": None, "n": None}, None]),
        ("map<long,long>", {"7": None, "8": 9}, {7: None, 8: 9}),
        ("map<long,string>", {"7": None}, {7: None}),
        ("map<string,long>", {"7": None}, {"7": None}),
        ("map<date,long>", {"2022-02-02": None}, {DAY: None}),
        ("date", None, None),
    ],
)
def test_nulls_are_values_at_every_depth(type_text: str, given: Any, read: Any) -> None:
    reader = reader_of(parse_declared(f"i {type_text}"))
    assert reader([given]) == (read,)
    assert reader({"i": given}) == (read,)


@pytest.mark.parametrize("given", [{"at": "2022-02-02", "n": "7"}, {"at": "2022-02-02", "n": 1.5}, {"at": 5, "n": 1}])
def test_what_does_not_fit_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"where struct<at:date,n:long> is declared"):
        reader_of(parse_declared("i struct<at:date,n:long>"))([given])
