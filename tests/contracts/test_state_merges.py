"""Every store merges values as the aggregators say."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_trident.operations.aggregators import Count, Max, Min, Sum
from airflow_trident.types import INTERVAL
from tests.fixtures.state import FACTORIES, apply, batch, combined, content, ticket

MERGES: dict[str, tuple[str, Any]] = {
    "count": ("long", Count()),
    "sum of longs": ("long", Sum()),
    "sum of doubles": ("double", Sum()),
    "sum of decimals": ("decimal(38,2)", Sum()),
    "min of strings": ("string", Min()),
    "max of dates": ("date", Max()),
    "min of timestamps": ("timestamp", Min()),
    "max of times": ("time", Max()),
    "min of intervals": (INTERVAL, Min()),
    "max of booleans": ("boolean", Max()),
    "max of bytes": ("binary", Max()),
    "min of decimals": ("decimal(10,2)", Min()),
}


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "long": st.integers(-(2**40), 2**40),
    "double": st.floats(allow_nan=False, width=32),
    "decimal(38,2)": st.decimals(-(10**9), 10**9, places=2),
    "decimal(10,2)": st.none() | st.decimals(-99999, 99999, places=2),
    "string": st.none() | st.text(max_size=5),
    "date": st.none() | st.dates(),
    "timestamp": st.none() | st.datetimes(timezones=st.just(datetime.UTC)),
    "time": st.none() | st.times(),
    INTERVAL: st.none() | st.timedeltas(datetime.timedelta(days=-(10**8)), datetime.timedelta(days=10**8)),
    "boolean": st.none() | st.booleans(),
    "binary": st.none() | st.binary(max_size=4),
}


def comparable(table: dict[tuple[Any, ...], tuple[Any, ...]]) -> dict[tuple[Any, ...], Any]:
    """The sum of both infinities is NaN, which equals nothing."""
    return {key: "NaN" if value != value else value for key, (value,) in table.items()}


@pytest.mark.parametrize("merge", MERGES)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_all_stores_merge_as_the_aggregators_say(tmp_path_factory: Any, merge: str, data: st.DataObject) -> None:
    type_text, combiner = MERGES[merge]
    keys = st.none() | st.sampled_from(["a", "b", "é", ""])
    batches = data.draw(st.lists(st.lists(st.tuples(keys, VALUES[type_text]), max_size=6), max_size=4))
    expected: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for rows in batches:
        for key, value in rows:
            known = expected.get((key,))
            expected[(key,)] = (value if known is None else combiner.combine(known[0], value),)
    for name in ("sqlite", "memory", "postgres"):
        factory = FACTORIES[name](tmp_path_factory.mktemp("states"))
        spec = combined(factory, "word string", f"v {type_text}", combiner)
        with factory.make_state(spec) as state:
            for txid, rows in enumerate(batches, 1):
                apply(state, ticket(txid), batch(spec, *rows))
            assert comparable(content(state)) == comparable(expected)
