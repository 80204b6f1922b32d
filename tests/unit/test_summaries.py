"""Averages, distinct counts and collections: what they mean, and that the order of tuples does not matter."""

from __future__ import annotations

import datetime
import math
import random
import statistics
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_trident import Aggregator, FixedBatchSpout, Topology
from airflow_trident.errors import FieldError, PlanError
from airflow_trident.functions import (
    ApproxCountDistinct,
    Average,
    CollectList,
    CollectSet,
    CountDistinct,
    MaxBy,
    MinBy,
    Percentile,
    StandardDeviation,
    Variance,
)
from tests.fixtures.aggregator import value_of
from tests.fixtures.plan import PaperState

INF, NAN = math.inf, math.nan


def of(aggregator: Aggregator[Any], *values: Any) -> Any:
    """Its value, in the order given and in others."""
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    found = [value_of(aggregator, random.Random(turn).sample(rows, len(rows)) if turn else rows) for turn in range(4)]
    assert {repr(value) for value in found} == {repr(found[0])}, "the order of tuples matters"
    return found[0]


@given(st.lists(st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**63), 2**63 - 1))))
def test_moments_are_the_doubles_nearest_to_the_exact_ones(values: list[Any]) -> None:
    exact = list(map(Fraction, values))
    if not values:
        assert of(Average(), None) is of(Variance(population=True), None) is None
        return
    assert of(Average(), *values, None) == float(sum(exact) / len(exact))
    mean = sum(exact) / len(exact)
    spread = sum(((value - mean) ** 2 for value in exact), Fraction(0))
    for aggregator, below in ((Variance(), len(values) - 1), (Variance(population=True), len(values))):
        try:
            expected = float(spread / below) if below else None
        except OverflowError:
            expected = INF
        assert of(aggregator, *values) == expected


@given(
    st.one_of(
        st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1),
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1),
    ),
    st.sampled_from([0, 0.1, 0.25, 0.5, 0.9, 0.999, 1]),
)
def test_a_percentile_is_the_double_nearest_to_the_exact_one(values: list[Any], share: float) -> None:
    exact = sorted(map(Fraction, values))
    place = Fraction(str(share)) * (len(exact) - 1)
    low = math.floor(place)
    between = exact[low] + (exact[min(low + 1, len(exact) - 1)] - exact[low]) * (place - low)
    assert of(Percentile(share), *values, None) == float(between)


def test_percentiles_of_nothing_and_of_what_is_no_finite_number() -> None:
    assert of(Percentile(0.5), None) is None
    assert of(Percentile(0.5), Decimal("0.1"), Decimal("0.2")) == 0.15
    assert of(Percentile(0.5), 1.0, INF) == of(Percentile(1), 1.0, INF) == of(Percentile(0.5), INF, INF) == INF
    assert of(Percentile(0.5), -INF, 1.0) == -INF
    assert of(Percentile(0), 1.0, NAN) == 1.0
    assert math.isnan(of(Percentile(1), NAN, INF))
    assert math.isnan(of(Percentile(0.5), -INF, INF))


def test_an_approximate_count_is_within_its_error() -> None:
    for error in (0.26, 0.05, 0.01):
        for count in (0, 1, 2, 10, 100, 3_000, 40_000):
            found = [
                value_of(ApproxCountDistinct(error), ((count, turn, n) for n in range(count))) for turn in range(4)
            ]
            assert statistics.fmean(found) == pytest.approx(count, rel=3 * error, abs=0.5)


def test_an_approximate_count_is_the_same_everywhere() -> None:
    """The numbers stand in what was staged: another hash would be another replay."""
    words = [f"word {number}" for number in range(10_000)]
    assert of(ApproxCountDistinct(), *words, *words) == 9_983
    assert of(ApproxCountDistinct(0.1), *range(1_000)) == 1182


def test_an_approximate_count_knows_what_is_the_same() -> None:
    at = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    there = at.astimezone(datetime.timezone(datetime.timedelta(hours=2)))
    same = [(NAN, -NAN), (0.0, -0.0), (Decimal("1.0"), Decimal("1.00")), (at, there)]
    others = [("ab", "ba"), (b"", b"\0"), (1, 11), (True, False), ("\ud800", "?")]
    others += [
        (datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)),
        (datetime.timedelta(1), datetime.timedelta(0, 1)),
    ]
    assert [of(ApproxCountDistinct(), *pair) for pair in same] == [1] * len(same)
    assert [of(ApproxCountDistinct(), *pair) for pair in others] == [2] * len(others)
    assert of(ApproxCountDistinct(), ("a", "bc"), ("ab", "c"), ("a", None)) == 2


def test_moments_of_what_is_no_finite_number() -> None:
    assert of(Average(), 1.0, INF) == INF
    assert of(Average(), -INF, 2) == -INF
    assert math.isnan(of(Average(), INF, -INF, 1.0))
    assert math.isnan(of(Average(), NAN, 1.0, INF))
    assert math.isnan(of(Variance(), INF, 1.0))
    assert of(Average(), 1.7e308, 1.7e308) == 1.7e308, "their sum is no double"
    assert of(Average(), Decimal("0.10"), Decimal("0.20")) == 0.15
    assert of(StandardDeviation(), 1, 2, 3, 4) == math.sqrt(statistics.variance([1, 2, 3, 4]))
    assert of(StandardDeviation(), 5) is of(Variance(), 5, None) is None
    assert of(StandardDeviation(population=True), 5) == 0.0


def test_what_is_different_and_what_there_is() -> None:
    assert of(CountDistinct(), 1, 2, 2, None) == 2
    assert of(CountDistinct(), ("a", NAN), ("a", NAN), ("a", 0.0), ("a", -0.0), ("b", None)) == 2
    assert of(CountDistinct()) == 0
    assert repr(of(CollectList(), 0.0, NAN, -0.0, None, 2.5, -INF)) == "[-inf, -0.0, 0.0, 2.5, nan]"
    assert repr(of(CollectSet(), 0.0, NAN, -0.0, NAN, 0.0)) == "[0.0, nan]"
    assert of(CollectSet(), "b", "", "b", "ä", None) == ["", "b", "ä"]
    assert of(CollectList(), None) == []
    days = [datetime.date(2024, 1, 2), datetime.date(2024, 1, 1)]
    assert of(CollectList(), *days) == days[::-1]


def test_the_value_of_the_best_tuple() -> None:
    rows = [("a", 2), ("b", 1), ("c", 3), ("x", None), (None, 3)]
    assert of(MinBy(), *rows) == "b"
    assert of(MaxBy(), *rows) == "c", "a value goes before null"
    assert of(MaxBy(), ("b", 3), ("a", 3), ("c", 1)) == of(MinBy(), ("b", 0.0), ("a", -0.0)) == "a"
    assert of(MaxBy(), ("a", NAN), ("b", INF)) == of(MinBy(), ("b", NAN), ("a", INF)) == "a"
    assert of(MaxBy(), (None, 3), ("a", 2)) is of(MinBy(), ("a", None)) is None


def stream() -> Any:
    return Topology("t").new_stream("s", FixedBatchSpout("k string, n int, p decimal(9,2), many array<int>", []))


def test_types_are_inferred() -> None:
    made = (
        stream()
        .group_by("k")
        .aggregate(
            ("p", Average(), "mean"),
            ("n, p", CountDistinct(), "c"),
            ("p", CollectSet(), "all"),
            ("p, n", MaxBy(), "top"),
            ("n", StandardDeviation(), "off"),
        )
    )
    assert ", ".join(map(str, made.schema)) == (
        "k string, mean double, c long, all array<decimal(9,2)>, top decimal(9,2), off double"
    )


@pytest.mark.parametrize(
    ("inputs", "aggregator", "said"),
    [
        ("k", Average(), "Average cannot add fields of type string"),
        ("k, n", Average(), "Average takes exactly one input field and got 2"),
        ("many", CollectSet(), r"CollectSet cannot compare fields of type array<int>"),
        ("n, many", CountDistinct(), "CountDistinct cannot compare"),
        ("k", Percentile(0.5), "Percentile cannot add fields of type string"),
        ("n, many", ApproxCountDistinct(), "ApproxCountDistinct cannot compare fields of type array<int>"),
        ("n", MinBy(), "MinBy takes two input fields, the value and what it is chosen by and got 1"),
    ],
)
def test_wrong_inputs_are_refused_when_the_topology_is_built(
    inputs: str, aggregator: Aggregator[Any], said: str
) -> None:
    with pytest.raises(FieldError, match=said):
        stream().aggregate(inputs, aggregator, "x")


@pytest.mark.parametrize("share", [-0.1, 1.5, math.nan, True, "0.5"])
def test_a_share_that_is_none_is_refused(share: Any) -> None:
    with pytest.raises(FieldError, match="Percentile got the share"):
        Percentile(share)


@pytest.mark.parametrize("error", [0.0, 0.002, 0.3, math.nan])
def test_an_error_that_cannot_be_kept_is_refused(error: float) -> None:
    with pytest.raises(FieldError, match=r"ApproxCountDistinct got the error .*\. Give a share from 0\.00204 to 0\.26"):
        ApproxCountDistinct(error)


def test_they_need_inputs_and_a_batch() -> None:
    with pytest.raises(FieldError, match="CountDistinct takes at least one input field and got 0"):
        stream().aggregate(CountDistinct(), "x")
    with pytest.raises(PlanError, match="persistent_aggregate cannot keep Average"):
        stream().persistent_aggregate(PaperState(), "n", Average(), "x")
