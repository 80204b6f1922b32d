"""Built-in aggregators, after Trident's `operation.builtin`: Count, Sum, Min, Max.

Nulls: Count counts the tuple, the others skip it (Trident's Sum fails). The Sum of nothing is 0; Min and Max of nothing
are null. NaN is greater than every other number. Engines and states compute natively by `merge_kind`; the Python code
here defines the meaning.

Built-in aggregators that need all tuples of a group in one place: averages, distinct counts, collections.

Nulls are skipped, as in SQL. Results do not depend on the order of the tuples: sums are exact until the end,
collections are sorted, values decide ties. So every engine and every attempt gives the same.

The smallest and the largest tuple of a partition (Trident: ComparisonAggregator, behind minBy and maxBy).

The newest tuple of each key, for upserts of a stream that may have several tuples of a key in one batch.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal, DivisionByZero, InvalidOperation, Overflow
from fractions import Fraction
from typing import Any, TypeVar

from airflow_trident.errors import FieldError, UserCodeError
from airflow_trident.names import require_flags
from airflow_trident.operations.equality import canonical_key, same
from airflow_trident.operations.interfaces import (
    Aggregator,
    Collector,
    CombinerAggregator,
    MergeKind,
    OfFields,
    TransactionAttempt,
)
from airflow_trident.types import REAL_TYPES, WHOLE_TYPES, Field, Schema, has_members, is_nested

_EXACT = Context(prec=100, traps=[InvalidOperation, DivisionByZero, Overflow])
"""Python's default context rounds to 28 digits; Spark's decimals have 38."""
_SUMMABLE = {**dict.fromkeys(WHOLE_TYPES, "long"), **dict.fromkeys(REAL_TYPES, "double")}


class Count(OfFields, CombinerAggregator[int]):
    """The number of tuples, as a long."""

    merge_kind: MergeKind | None = MergeKind.ADD

    def init(self, *values: Any) -> int:
        return 1

    def combine(self, left: int, right: int) -> int:
        return left + right

    def zero(self) -> int:
        return 0

    def result_type(self, input_types: tuple[str, ...]) -> str:
        return "long"


class Sum(OfFields, CombinerAggregator[Any]):
    """The sum of one numeric field: long for whole numbers, double for float and double, decimal(38,s) for decimal."""

    merge_kind: MergeKind | None = MergeKind.ADD

    def init(self, *values: Any) -> Any:
        return 0 if values[0] is None else values[0]

    def combine(self, left: Any, right: Any) -> Any:
        if isinstance(left, Decimal) or isinstance(right, Decimal):
            return _EXACT.add(left, right)
        return left + right

    def zero(self) -> Any:
        return 0

    def result_type(self, input_types: tuple[str, ...]) -> str:
        (input_type,) = _one_input("Sum", input_types)
        if input_type.startswith("decimal("):
            return f"decimal(38,{input_type.rstrip(')').split(',')[1].strip()})"
        if input_type not in _SUMMABLE:
            raise FieldError(
                f"Sum cannot add fields of type {input_type}",
                "Give it a number: byte, short, int, long, float, double, decimal.",
            )
        return _SUMMABLE[input_type]


class _Extreme(OfFields, CombinerAggregator[Any]):
    def init(self, *values: Any) -> Any:
        return values[0]

    def zero(self) -> Any:
        return None

    def combine(self, left: Any, right: Any) -> Any:
        if left is None or right is None:
            return right if left is None else left
        return self._pick(left, right)

    def _pick(self, left: Any, right: Any) -> Any:
        raise NotImplementedError

    def result_type(self, input_types: tuple[str, ...]) -> str:
        (input_type,) = _one_input(type(self).__name__, input_types)
        if is_nested(input_type):
            raise FieldError(
                f"{type(self).__name__} cannot compare fields of type {input_type}", "Give it a simple type."
            )
        return input_type


class Min(_Extreme):
    """The smallest value of one field."""

    merge_kind: MergeKind | None = MergeKind.MIN

    def _pick(self, left: Any, right: Any) -> Any:
        return min(left, right, key=_nan_last)


class Max(_Extreme):
    """The largest value of one field."""

    merge_kind: MergeKind | None = MergeKind.MAX

    def _pick(self, left: Any, right: Any) -> Any:
        return max(left, right, key=_nan_last)


def _nan_last(value: Any) -> tuple[bool, Any]:
    return value != value, value


def _one_input(name: str, input_types: tuple[str, ...]) -> tuple[str, ...]:
    if len(input_types) != 1:
        raise FieldError(
            f"{name} takes exactly one input field and got {len(input_types)}",
            f'Name it, as in persistent_aggregate(state, "amount", {name}(), "total").',
        )
    return input_types


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
        for input_type in input_types:
            self.require(name, input_type)
        return self.type_of(input_types)

    def require(self, name: str, input_type: str) -> None:
        if is_nested(input_type):
            raise FieldError(f"{name} cannot compare fields of type {input_type}", "Give it a simple type.")

    @abstractmethod
    def type_of(self, input_types: tuple[str, ...]) -> str: ...


def require_number(name: str, input_type: str) -> None:
    """:raises FieldError: a field of this type has no arithmetic."""
    if input_type not in (*WHOLE_TYPES, *REAL_TYPES) and not input_type.startswith("decimal("):
        raise FieldError(f"{name} cannot add fields of type {input_type}", "Give it a number.")


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


class _Moment(OfFields, SummaryAggregator[_Sums]):
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

    def require(self, name: str, input_type: str) -> None:
        require_number(name, input_type)

    def type_of(self, input_types: tuple[str, ...]) -> str:
        return "double"


class Average(_Moment):
    """The mean of one numeric field: the double nearest to the exact mean. Null without values."""

    def moment(self, state: _Sums) -> float:
        return state.odd if state.odd else real_of(state.first / state.count)


class Variance(_Moment):
    """The sample variance of one numeric field, as a double; null for fewer than two values.

    :param population: the variance of a whole population: divides by the number of values; null without values.
    """

    squared = True

    def __init__(self, *, population: bool = False) -> None:
        require_flags(type(self).__name__, population=population)
        self.least = 1 if population else 2
        self._population = population

    def moment(self, state: _Sums) -> float:
        if state.odd:
            return math.nan
        spread = state.second - state.first * state.first / state.count
        return real_of(spread / (state.count if self._population else state.count - 1))


class StandardDeviation(Variance):
    """The square root of :class:`Variance`."""

    def moment(self, state: _Sums) -> float:
        return math.sqrt(super().moment(state))


def real_of(exact: Fraction) -> float:
    """The double nearest to a number."""
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


# ---- what is different, and what there is ----------------------------------------------------------------------


class CountDistinct(OfFields, SummaryAggregator[set[Any]]):
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


class CollectList(OfFields, SummaryAggregator[list[Any]]):
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
        return real_of(Fraction(pair[0]) + (Fraction(pair[1]) - Fraction(pair[0])) * part)

    def require(self, name: str, input_type: str) -> None:
        require_number(name, input_type)

    def type_of(self, input_types: tuple[str, ...]) -> str:
        return "double"


# ---- the value of the best tuple -------------------------------------------------------------------------------


@dataclass
class _Chosen:
    """`best`: empty, or the best tuple so far: the ranks of both fields, and the value."""

    best: list[tuple[Any, Any, Any]] = field(default_factory=list)


class MinBy(OfFields, SummaryAggregator[_Chosen]):
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

    def is_better(self, candidate: Any, best: Any, wins_tie: bool) -> bool:
        return bool(candidate < best or (candidate == best and wins_tie))

    def value(self, state: _Chosen) -> Any:
        return state.best[0][2] if state.best else None

    def type_of(self, input_types: tuple[str, ...]) -> str:
        return input_types[0]


class MaxBy(MinBy):
    """As :class:`MinBy`, from the tuple in which the second field is largest."""

    def is_better(self, candidate: Any, best: Any, wins_tie: bool) -> bool:
        return bool(candidate > best or (candidate == best and wins_tie))


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
        compared = self._compared(values)
        if compared is None:
            return
        if not state.rows or self._compare(compared, self._compared(state.rows[0])) * self.sign >= 0:
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


def groupable(verb: str, fields: Schema) -> None:
    """:raises FieldError: engines disagree about which values of a field's type are equal."""
    for grouped_field in fields:
        if has_members(grouped_field.type):
            raise FieldError(
                f"{verb} cannot compare the field {grouped_field.name!r} of type {grouped_field.type}",
                "Take what tells tuples apart out of it first, with each().",
            )


def comparable(verb: str, compared_field: Field) -> None:
    """:raises FieldError: values of this type have no order."""
    if is_nested(compared_field.type):
        raise FieldError(
            f"{verb} cannot compare the field {compared_field.name!r} of type {compared_field.type}",
            "Give a comparator, or another field.",
        )


@dataclass(slots=True)
class Candidates:
    """The newest tuples of one key in a batch so far, without duplicates. `order`: their order values."""

    txid: int
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    order: tuple[tuple[Any, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Newest(Aggregator[Candidates]):
    """The tuple of a group with the greatest values of the order fields, compared one after the other: null is the
    lowest value, NaN the greatest number. Without order fields all tuples of a group must be equal.

    Runs in every partition before the shuffle, where several equally new tuples may be left, and once more after it.

    :param fields: of the tuples that it reads: first `keys` key fields, which name the group and are not emitted.
    :param order: the positions of the order fields in `fields`, the most important first.
    :param state: the upserted state, for the error.
    :param last: no step follows, so equally new tuples that differ are an error.
    :param not_null: a null in a key is an error.
    """

    fields: tuple[str, ...]
    keys: int
    order: tuple[int, ...]
    state: str
    last: bool = True
    not_null: bool = False

    def before(self) -> Newest:
        """The step before the shuffle; this one follows it."""
        return replace(self, last=False)

    def describe(self) -> str:
        order = ", ".join(self.fields[place] for place in self.order)
        return f"newest by {order}" if order else "the only one"

    def init(self, batch: TransactionAttempt, collector: Collector) -> Candidates:
        return Candidates(batch.txid)

    def aggregate(self, state: Candidates, collector: Collector, *values: Any) -> None:
        if self.not_null and None in values[: self.keys]:
            raise self._null_key(state.txid, values)
        order = tuple([_rank_of_time(values[place]) for place in self.order])
        if not state.rows or order > state.order:
            state.rows, state.order = [values], order
        elif order == state.order and not any(same(values, row) for row in state.rows):
            state.rows.append(values)

    def _null_key(self, txid: int, values: tuple[Any, ...]) -> UserCodeError:
        keys = self.fields[: self.keys]
        return null_key(self.state, txid, dict(zip(keys, values, strict=False)))

    def complete(self, state: Candidates, collector: Collector) -> None:
        """:raises UserCodeError: several tuples are equally new and differ."""
        if self.last and len(state.rows) > 1:
            first, second = sorted(state.rows, key=repr)[:2]
            raise two_values(
                self.state,
                dict(zip(self.fields[: self.keys], first, strict=False)),
                dict(zip(self.fields[self.keys :], first[self.keys :], strict=True)),
                dict(zip(self.fields[self.keys :], second[self.keys :], strict=True)),
                f"in transaction {state.txid} and "
                + (f"are equally new ({self.describe()})" if self.order else "nothing says which one counts"),
                "Name one more field in order_by, one that tells them apart."
                if self.order
                else 'Name the fields that say which is newer, as in order_by="updated_at", or aggregate by the key '
                "first.",
            )
        for row in state.rows:
            collector.emit(*row[self.keys :])


def two_values(
    state: str, key: dict[str, Any], first: dict[str, Any], second: dict[str, Any], why: str, cure: str
) -> UserCodeError:
    """The error of an upsert that would have to guess which of two tuples of a batch counts."""
    named = _shown(key) or "without key fields"
    return UserCodeError(
        f"two tuples of one batch have the same key of state {state!r} ({named}) {why}: ({_shown(first)}) and "
        f"({_shown(second)})",
        cure,
        node=state,
        fields=", ".join((*key, *first)),
        row=named,
    )


def null_key(state: str, txid: int, key: dict[str, Any]) -> UserCodeError:
    """The error of a tuple for a table by keys that lacks one."""
    name = next(name for name, value in key.items() if value is None)
    shown = _shown(key)
    return UserCodeError(
        f"a tuple of transaction {txid} has no {name!r}, a key of the table of state {state!r} ({shown})",
        f'Leave such tuples out, as in filter(col("{name}").is_not_null()), or give them a key before.',
        node=state,
        fields=", ".join(key),
        row=shown,
        txid=txid,
    )


def _shown(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r:.60}" for name, value in values.items())


def _rank_of_time(value: Any) -> tuple[Any, ...]:
    """A sort key that never compares values of different types."""
    if value is None:
        return (0,)
    return (2,) if value != value else (1, value)
