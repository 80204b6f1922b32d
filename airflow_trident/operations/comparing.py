"""The smallest and the largest tuple of a partition (Trident: ComparisonAggregator, behind minBy and maxBy)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from airflow_trident.errors import FieldError
from airflow_trident.operations.api import Aggregator, Collector, TransactionAttempt
from airflow_trident.types import Field, Schema, has_members, is_nested

Comparator = Callable[[Any, Any], int]
"""Negative, zero or positive: the first is less than, equal to or greater than the second."""


@dataclass
class Best:
    """The best tuple so far: no tuple, or one."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)


@dataclass(frozen=True)
class ComparisonAggregator(Aggregator[Best]):
    """`place`: position of the compared field; None: whole tuples. `sign`: -1: smallest, 1: largest. Nulls are skipped;
    of equal tuples the later one wins."""

    place: int | None
    comparator: Comparator | None
    sign: int

    def init(self, batch: TransactionAttempt, collector: Collector) -> Best:
        return Best()

    def aggregate(self, state: Best, collector: Collector, *values: Any) -> None:
        given = self._compared(values)
        if given is None:
            return
        if not state.rows or self._compare(given, self._compared(state.rows[0])) * self.sign >= 0:
            state.rows = [values]

    def complete(self, state: Best, collector: Collector) -> None:
        for row in state.rows:
            collector.emit(*row)

    def _compared(self, values: tuple[Any, ...]) -> Any:
        return values if self.place is None else values[self.place]

    def _compare(self, left: Any, right: Any) -> int:
        if self.comparator is not None:
            return self.comparator(left, right)
        left, right = (left != left, left), (right != right, right)  # NaN is greater than every other number
        if left[0] and right[0]:
            return 0
        return int(left > right) - int(left < right)


def groupable(verb: str, given: Schema) -> None:
    """:raises FieldError: engines disagree about which values of a field's type are equal."""
    for one in given:
        if has_members(one.type):
            raise FieldError(
                f"{verb} cannot compare the field {one.name!r} of type {one.type}",
                "Take what tells tuples apart out of it first, with each().",
            )


def comparable(verb: str, given: Field) -> None:
    """:raises FieldError: values of this type have no order."""
    if is_nested(given.type):
        raise FieldError(
            f"{verb} cannot compare the field {given.name!r} of type {given.type}",
            "Give a comparator, or another field.",
        )
