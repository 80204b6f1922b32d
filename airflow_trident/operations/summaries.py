"""Built-in aggregators that need all tuples of a group in one place: averages, distinct counts, collections.

Nulls are skipped, as in SQL. Results do not depend on the order of the tuples: sums are exact until the end,
collections are sorted, values decide ties. So every engine and every attempt gives the same.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeVar

from airflow_trident.errors import FieldError
from airflow_trident.operations.api import Aggregator, Collector, TransactionAttempt
from airflow_trident.operations.equality import canonical_key
from airflow_trident.types import REAL_TYPES, WHOLE_TYPES, is_nested

A = TypeVar("A")


class SummaryAggregator(Aggregator[A]):
    """Base of the aggregators here: one value per group. `fields`: how many inputs it takes, None: one or more."""

    fields: int | None = 1

    def aggregate(self, state: A, collector: Collector, *values: Any) -> None:
        if None not in values:
            self.take(state, *values)

    def complete(self, state: A, collector: Collector) -> None:
        collector.emit(self.value(state))

    @abstractmethod
    def take(self, state: A, *values: Any) -> None:
        """Process one tuple without nulls."""

    @abstractmethod
    def value(self, state: A) -> Any: ...

    def result_type(self, input_types: tuple[str, ...]) -> str | None:
        name, count = type(self).__name__, len(input_types)
        if not count or (self.fields is not None and count != self.fields):
            wanted = {1: "exactly one input field", 2: "two input fields, the value and what it is chosen by"}
            raise FieldError(
                f"{name} takes {wanted.get(self.fields or 0, 'at least one input field')} and got {count}",
                f'Name what it takes, as in aggregate("amount", {name}(), "x").',
            )
        for given in input_types:
            self.require(name, given)
        return self.type_of(input_types)

    def require(self, name: str, given: str) -> None:
        if is_nested(given):
            raise FieldError(f"{name} cannot compare fields of type {given}", "Give it a simple type.")

    @abstractmethod
    def type_of(self, input_types: tuple[str, ...]) -> str: ...


def require_number(name: str, given: str) -> None:
    """:raises FieldError: a field of this type has no arithmetic."""
    if given not in (*WHOLE_TYPES, *REAL_TYPES) and not given.startswith("decimal("):
        raise FieldError(f"{name} cannot add fields of type {given}", "Give it a number.")


# ---- moments ---------------------------------------------------------------------------------------------------


@dataclass
class _Sums:
    """Exact sums of the values and of their squares, one per denominator; `odd`: the sum of NaN and infinities."""

    count: int = 0
    values: Counter[int] = field(default_factory=Counter)
    squares: Counter[int] = field(default_factory=Counter)
    odd: float = 0.0

    @property
    def first(self) -> Fraction:
        return sum((Fraction(top, below) for below, top in self.values.items()), Fraction(0))

    @property
    def second(self) -> Fraction:
        return sum((Fraction(top, below * below) for below, top in self.squares.items()), Fraction(0))


class _Moment(SummaryAggregator[_Sums]):
    """`least`: with fewer values the result is null."""

    least = 1
    squared = False

    def init(self, batch: TransactionAttempt, collector: Collector) -> _Sums:
        return _Sums()

    def take(self, state: _Sums, *values: Any) -> None:
        (value,) = values
        state.count += 1
        if isinstance(value, float) and not math.isfinite(value):
            state.odd += value
            return
        top, below = value.as_integer_ratio()
        state.values[below] += top
        if self.squared:
            state.squares[below] += top * top

    def value(self, state: _Sums) -> float | None:
        if state.count < self.least:
            return None
        return self.moment(state)

    @abstractmethod
    def moment(self, state: _Sums) -> float: ...

    def require(self, name: str, given: str) -> None:
        require_number(name, given)

    def type_of(self, input_types: tuple[str, ...]) -> str:
        return "double"


class Average(_Moment):
    """The mean of one numeric field: the double nearest to the exact mean. Null without values."""

    def moment(self, state: _Sums) -> float:
        return state.odd if state.odd else _real(state.first / state.count)


class Variance(_Moment):
    """The sample variance of one numeric field, as a double; null for fewer than two values.

    :param population: the variance of a whole population: divides by the number of values; null without values.
    """

    squared = True

    def __init__(self, *, population: bool = False) -> None:
        self.least = 1 if population else 2
        self._population = population

    def moment(self, state: _Sums) -> float:
        if state.odd:
            return math.nan
        spread = state.second - state.first * state.first / state.count
        return _real(spread / (state.count if self._population else state.count - 1))


class StandardDeviation(Variance):
    """The square root of :class:`Variance`."""

    def moment(self, state: _Sums) -> float:
        return math.sqrt(super().moment(state))


def _real(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


# ---- what is different, and what there is ----------------------------------------------------------------------


class CountDistinct(SummaryAggregator[set[Any]]):
    """The exact number of distinct tuples, as a long; tuples that contain a null are not counted.

    NaN is one value, and -0.0 is 0.0. Memory holds all distinct tuples.
    """

    fields = None

    def init(self, batch: TransactionAttempt, collector: Collector) -> set[Any]:
        return set()

    def take(self, state: set[Any], *values: Any) -> None:
        state.add(canonical_key(values))

    def value(self, state: set[Any]) -> int:
        return len(state)

    def type_of(self, input_types: tuple[str, ...]) -> str:
        return "long"


class CollectList(SummaryAggregator[list[Any]]):
    """The values of one field as a sorted array, NaN after every other number."""

    def init(self, batch: TransactionAttempt, collector: Collector) -> list[Any]:
        return []

    def take(self, state: list[Any], *values: Any) -> None:
        state.append(values[0])

    def value(self, state: list[Any]) -> list[Any]:
        return sorted(state, key=_rank)

    def type_of(self, input_types: tuple[str, ...]) -> str:
        return f"array<{input_types[0]}>"


class CollectSet(CollectList):
    """As :class:`CollectList`, each value once: NaN is one value, and -0.0 is 0.0."""

    def value(self, state: list[Any]) -> list[Any]:
        return sorted({canonical_key((value,))[0] for value in state}, key=_rank)


def _rank(value: Any) -> tuple[Any, ...]:
    """A sort key; -0.0 comes before 0.0."""
    if isinstance(value, float):
        return (True,) if value != value else (False, value, math.copysign(1.0, value))
    return (value,)


class Percentile(CollectList):
    """The exact percentile of one numeric field, as a double, interpolated between two values like Spark's `percentile`
    and SQL's ``percentile_cont``. Null without values; NaN is above every number.

    :param share: from 0, the smallest, to 1, the largest; 0.5 is the median. Taken as written: 0.9 is 9/10.
    :raises FieldError: no such number.
    """

    def __init__(self, share: float) -> None:
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise FieldError(f"Percentile got the share {share!r}", "Give a number from 0 to 1: Percentile(0.95).")
        self._share = Fraction(str(share))

    def value(self, state: list[Any]) -> Any:
        values = super().value(state)
        if not values:
            return None
        place = self._share * (len(values) - 1)
        low, part = divmod(place, 1)
        pair = values[low : low + 2]
        if not part or pair[0] == pair[1]:
            return float(pair[0])
        if not all(map(math.isfinite, pair)):
            return float(pair[0]) + float(pair[1])  # the infinity among them, or NaN
        return _real(Fraction(pair[0]) + (Fraction(pair[1]) - Fraction(pair[0])) * part)

    def require(self, name: str, given: str) -> None:
        require_number(name, given)

    def type_of(self, input_types: tuple[str, ...]) -> str:
        return "double"


# ---- the value of the best tuple -------------------------------------------------------------------------------


@dataclass
class _Chosen:
    """`best`: empty, or the best tuple so far: the ranks of both fields, and the value."""

    best: list[tuple[Any, Any, Any]] = field(default_factory=list)


class MinBy(SummaryAggregator[_Chosen]):
    """The first of two fields, from the tuple in which the second is smallest.

    Of several such tuples the smallest value; null only if all of them have null. Tuples whose second field is null are
    skipped; NaN is above every number.
    """

    fields = 2

    def init(self, batch: TransactionAttempt, collector: Collector) -> _Chosen:
        return _Chosen()

    def aggregate(self, state: _Chosen, collector: Collector, *values: Any) -> None:
        if values[1] is not None:
            self.take(state, *values)

    def take(self, state: _Chosen, *values: Any) -> None:
        value, by = values
        place = _rank(by + 0.0 if isinstance(by, float) else by)
        tie = (value is None, () if value is None else _rank(value))
        if not state.best or self.is_better(place, state.best[0][0], tie < state.best[0][1]):
            state.best = [(place, tie, value)]

    def is_better(self, given: Any, best: Any, wins_tie: bool) -> bool:
        return bool(given < best or (given == best and wins_tie))

    def value(self, state: _Chosen) -> Any:
        return state.best[0][2] if state.best else None

    def type_of(self, input_types: tuple[str, ...]) -> str:
        return input_types[0]


class MaxBy(MinBy):
    """As :class:`MinBy`, from the tuple in which the second field is largest."""

    def is_better(self, given: Any, best: Any, wins_tie: bool) -> bool:
        return bool(given > best or (given == best and wins_tie))
