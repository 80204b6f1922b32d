"""The meaning of the built-in aggregators, and of classes made from them."""

from __future__ import annotations

from decimal import Decimal
from functools import reduce
from itertools import permutations
from typing import Any

import pytest

from airflow_trident import Count, Max, Min, Sum
from airflow_trident.operations.interfaces import CombinerAggregator, MergeKind

NAN = float("nan")


def combined(aggregator: CombinerAggregator[Any], values: list[Any]) -> Any:
    return reduce(aggregator.combine, map(aggregator.init, values), aggregator.zero())


def test_nan_is_the_greatest_in_any_order() -> None:
    for values in permutations([1.0, NAN, -2.0, None, float("inf")]):
        assert combined(Min(), list(values)) == -2.0
        assert combined(Max(), list(values)) != combined(Max(), list(values)), "it is NaN"
    assert combined(Min(), [NAN, None]) != combined(Min(), [NAN, None])


def test_a_sum_of_decimals_is_exact_beyond_pythons_default_of_28_digits() -> None:
    big = Decimal("123456789012345678901234567890123456.78")
    assert combined(Sum(), [big, Decimal("0.01"), None]) == Decimal("123456789012345678901234567890123456.79")


class NotNull(Count):
    """Changes what a tuple counts."""

    def init(self, *values: Any) -> int:
        return int(values[0] is not None)


class Nearest(Min):
    """Changes which one is taken."""

    def _pick(self, left: Any, right: Any) -> Any:
        return min(left, right, key=abs)


class Doubling:
    def combine(self, left: int, right: int) -> int:
        return 2 * (left + right)


class Mixed(Doubling, Count):
    """Changes how two are combined, by a class that is no aggregator."""


class Documented(Sum):
    """Changes nothing that matters."""

    commutes = True


class Sworn(NotNull):
    """Says that it may be merged so, in spite of what it changed."""

    merge_kind = MergeKind.ADD


@pytest.mark.parametrize(
    ("kind", "merged"),
    [
        (Count, MergeKind.ADD),
        (Min, MergeKind.MIN),
        (Documented, MergeKind.ADD),
        (Sworn, MergeKind.ADD),
        (NotNull, None),
        (Nearest, None),
        (Mixed, None),
    ],
)
def test_engines_and_stores_merge_by_themselves_only_what_combines_as_the_built_in(
    kind: type[CombinerAggregator[Any]], merged: MergeKind | None
) -> None:
    assert kind().merge_kind is merged
