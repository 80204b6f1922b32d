"""Rows with a field of any type, extreme values among them, and their right results from a few lines of Python each.

`VALUES` has values at the limits of every type; a type that is added to it is tried on every engine.
"""

from __future__ import annotations

import datetime
import math
import operator
import re
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

from hypothesis import strategies as st

from airflow_trident import Count, FixedBatchSpout, Max, Min, Stream, Sum, Topology
from airflow_trident.operations.expressions import col, lit
from airflow_trident.types import INTERVAL, LONGEST_INTERVAL, REAL_TYPES, WHOLE_TYPES
from tests.fixtures.engine import keep
from tests.generated.in_python import groups_of

Row = tuple[Any, ...]
Rows = list[Row]

UTC = datetime.UTC


def decimals(scale: int, *units: int) -> list[Any]:
    """Numbers of units of the last digit: Python's own arithmetic would round them to 28 digits."""
    return [Decimal(f"{one}E-{scale}") for one in units]


_MOST = 10**38 - 1
"""The most units of the last digit that any decimal can have."""
_WHOLE: dict[str, list[Any]] = {name: [-limit, limit - 1, limit // 2, -1, 0, 1] for name, limit in WHOLE_TYPES.items()}
VALUES: dict[str, list[Any]] = _WHOLE | {
    "float": [0.0, -0.0, 0.5, math.nan, math.inf, -math.inf, 3.4028234663852886e38, 1.401298464324817e-45],
    "double": [0.0, -0.0, 0.1, math.nan, math.inf, -math.inf, 1.7976931348623157e308, 5e-324, -(2.0**53)],
    "decimal(38,0)": decimals(0, _MOST, -_MOST, 85 * 10**36, 99 * 10**36, -1, 0),
    "decimal(38,38)": decimals(38, _MOST, -_MOST, _MOST // 2, 1, 0),
    "decimal(28,10)": decimals(10, 10**28 - 1, 1 - 10**28, 1, 0),
    "decimal(5,2)": decimals(2, 99_999, -99_999, 110, 0),
    "boolean": [True, False],
    "string": ["", "a", "A", "a\x00b", "a ", "é", "e\u0301", "\uffff", "😀", "ß" * 300],
    "binary": [b"", b"\x00", b"\x00\x00", b"a", b"\x7f", b"\x80", b"\xff" * 300],
    "date": [datetime.date(1, 1, 1), datetime.date(1582, 10, 10), datetime.date(1970, 1, 1), datetime.date.max],
    "time": [datetime.time(), datetime.time(0, 0, 0, 1), datetime.time(12, 30), datetime.time.max],
    "timestamp": [
        datetime.datetime(1, 1, 1, tzinfo=UTC),
        datetime.datetime(1582, 10, 10, 0, 0, 0, 1, tzinfo=UTC),
        datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime.datetime.max.replace(tzinfo=UTC),
    ],
    INTERVAL: [
        LONGEST_INTERVAL,
        -LONGEST_INTERVAL,
        datetime.timedelta(),
        datetime.timedelta(microseconds=-1),
        datetime.timedelta(days=3, microseconds=1),
    ],
}
NUMBERS = tuple(name for name in VALUES if name in (*WHOLE_TYPES, *REAL_TYPES) or name.startswith("decimal"))
WAYS = st.sampled_from(["as it comes", "by Python", "shuffled"])
"""Steps before an aggregation. They decide whether Arrow, a dictionary or the JVM aggregates on Spark."""

_COMPARE: list[Callable[[Any, Any], Any]] = [
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
]
_EXACT = Context(prec=200)


def rows_of(type_text: str, values_of: dict[str, list[Any]] = VALUES) -> st.SearchStrategy[Rows]:
    """(group, value), with nulls in both."""
    values = st.sampled_from([*values_of[type_text], None])
    return st.lists(st.tuples(st.sampled_from(["a", "b", None]), values), min_size=1, max_size=8)


CASES = st.sampled_from(list(VALUES)).flatmap(lambda name: st.tuples(st.just(name), rows_of(name), WAYS))
_SUMMED = VALUES | {"double": [0.0, -0.0, 0.5, math.nan, math.inf, -math.inf, 5e-324]}
"""Only reals whose sum does not depend on the order."""
SUMS = st.sampled_from(NUMBERS).flatmap(lambda name: st.tuples(st.just(name), rows_of(name, _SUMMED), WAYS))


def stream_of(topology: Topology, type_text: str, rows: Rows, way: str) -> Stream:
    stream = topology.new_stream("values", FixedBatchSpout(f"k string, v {type_text}", rows, splits=2))
    if way == "by Python":
        return stream.map(lambda k, v: (k, v), f"k string, v {type_text}")
    return stream.shuffle() if way == "shuffled" else stream


# ---- grouping, extremes, comparisons ---------------------------------------------------------------------------


def look_at(topology: Topology, type_text: str, rows: Rows, way: str) -> dict[str, Rows]:
    """Builds the states. Returns each with the rows that must be staged for it."""
    stream = stream_of(topology, type_text, rows, way)
    keep(stream.group_by("v").aggregate(Count(), "n"), "keys")
    arrays = stream.each("v", lambda v: [[v, None]], f"vs array<{type_text}>")
    keep(arrays.group_by("vs").aggregate(Count(), "n"), "arrays")
    extremes = ("v", Min(), "least"), ("v", Max(), "most")
    keep(stream.group_by("k").aggregate(*extremes), "extremes")
    keep(stream.aggregate(*extremes), "extremes_of_all")
    limit = rows[0][1] if rows[0][1] is not None else VALUES[type_text][0]
    compared = stream
    for compare in _COMPARE:
        compared = compared.each(compare(col("v"), lit(limit, type_text)), compare.__name__)
    keep(compared, "compared")
    return {
        "keys": [(_plain(same[0][1]), len(same)) for same in groups_of(rows, 1)],
        "arrays": [([_plain(same[0][1]), None], len(same)) for same in groups_of(rows, 1)],
        "extremes": [(same[0][0], *_extremes(same)) for same in groups_of(rows, 0)],
        "extremes_of_all": [_extremes(rows)],
        "compared": [(*row, *(_holds(compare, row[1], limit) for compare in _COMPARE)) for row in rows],
    }


def comparable(states: dict[str, list[str]]) -> dict[str, list[str]]:
    """Without the signs of zeros: which of the two is smaller is not defined."""
    return {state: sorted(re.sub(r"-0\.0(?!\d)", "0.0", row) for row in rows) for state, rows in states.items()}


def _order(value: Any) -> tuple[bool, Any]:
    """A sort key: NaN is one value, above all others."""
    return value != value, 0 if value != value else value


def _plain(value: Any) -> Any:
    """The zero without a sign, because both zeros are one key."""
    return value + 0.0 if isinstance(value, float) else value


def _extremes(rows: Rows) -> Row:
    values = [value for _, value in rows if value is not None]
    return min(values, key=_order, default=None), max(values, key=_order, default=None)


def _holds(compare: Callable[[Any, Any], Any], value: Any, limit: Any) -> bool | None:
    return None if value is None else bool(compare(_order(value), _order(limit)))


# ---- sums ------------------------------------------------------------------------------------------------------


def add_up(topology: Topology, type_text: str, rows: Rows, way: str) -> None:
    stream = stream_of(topology, type_text, rows, way)
    keep(stream.group_by("k").aggregate("v", Sum(), "total"), "sums")
    keep(stream.aggregate("v", Sum(), "total"), "sum")


def sums_of(type_text: str, rows: Rows) -> dict[str, Rows]:
    """The rows that `add_up` must stage, if all sums fit."""
    groups = groups_of(rows, 0)
    sums = [(same[0][0], _total(type_text, same)) for same in groups]
    return {"sums": sums, "sum": [(_total(type_text, rows),)]}


def _total(type_text: str, rows: Rows) -> Any:
    values = [value for _, value in rows if value is not None]
    if type_text.startswith("decimal"):
        scale = _scale(type_text)
        return decimals(scale, sum(_units(value, scale) for value in values))[0]
    return sum(values, 0.0 if type_text in REAL_TYPES else 0)


def fits(type_text: str, rows: Rows) -> bool:
    """Does every sum fit, whatever partial sums it is made of?"""
    values = [value for _, value in rows if value is not None]
    return not any(
        overflows(type_text, [("", value) for value in values if (value > 0) is positive]) for positive in (True, False)
    )


def overflows(type_text: str, rows: Rows) -> bool:
    """Is there a sum that does not fit, whatever partial sums it is made of?"""
    if type_text in REAL_TYPES:
        return False
    sums = [row[-1] for found in sums_of(type_text, rows).values() for row in found]
    if type_text in WHOLE_TYPES:
        return not all(-(2**63) <= one < 2**63 for one in sums)
    return any(abs(_units(one, _scale(type_text))) > _MOST for one in sums)


def _units(value: Decimal, scale: int) -> int:
    return int(value.scaleb(scale, _EXACT))


def _scale(type_text: str) -> int:
    return int(type_text.rstrip(")").split(",")[1])


# ---- arithmetic ------------------------------------------------------------------------------------------------

ARITHMETIC = {
    "doubled": lambda v, w: v + v,
    "difference": lambda v, w: v - w,
    "product": lambda v, w: v * w,
    "rest": lambda v, w: v % w,
    "ratio": lambda v, w: v / w,
    "negative": lambda v, w: -v,
    "absolute": lambda v, w: abs(v),
}
PAIRS = st.sampled_from([*WHOLE_TYPES, *REAL_TYPES]).flatmap(
    lambda name: st.tuples(
        st.just(name),
        st.tuples(*[st.sampled_from([*VALUES[name], None])] * 2),
        st.sampled_from(list(ARITHMETIC)),
        st.booleans(),
    )
)


def work_out(topology: Topology, type_text: str, pair: Row, what: str, by_python: bool) -> None:
    """One operation on one pair of values. It may overflow."""
    stream = topology.new_stream("pairs", FixedBatchSpout(f"v {type_text}, w {type_text}", [pair]))
    if by_python:
        stream = stream.map(lambda v, w: (v, w), f"v {type_text}, w {type_text}")
    keep(stream.each(ARITHMETIC[what](col("v"), col("w")), "result"))
