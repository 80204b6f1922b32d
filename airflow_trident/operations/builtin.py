"""Built-in filters, functions and assemblies, after Trident's `operation.builtin`. The aggregators are in
:mod:`airflow_trident.operations.aggregators`."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from airflow_trident.errors import PlanError
from airflow_trident.names import at_least_one, require_flags
from airflow_trident.operations.aggregators import Comparator, Max, Min, comparable
from airflow_trident.operations.interfaces import (
    Aggregator,
    Collector,
    Filter,
    Function,
    Operation,
    OperationContext,
    TransactionAttempt,
    VectorFilter,
)
from airflow_trident.operations.user_functions import callable_of, lifecycle_of
from airflow_trident.types import select

# ---- filters ---------------------------------------------------------------------------------------------------


class TrueFilter(Filter):
    """Keeps every tuple."""

    def is_keep(self, *values: Any) -> bool:
        return True


class FilterNull(Filter):
    """Drops a tuple in which any of the fields is null."""

    def is_keep(self, *values: Any) -> bool:
        return all(value is not None for value in values)


class Equals(Filter):
    """Keeps a tuple in which all of the fields are equal; null equals null, NaN equals NaN (Trident fails on nulls)."""

    def is_keep(self, *values: Any) -> bool:
        first = values[0] if values else None
        return all(value == first or (value != value and first != first) for value in values)


class Negate(Filter):
    """Keeps what another filter drops. The other filter is a Filter object or a function."""

    def __init__(self, other: Any) -> None:
        if isinstance(other, type) or not callable(callable_of(other)):
            raise PlanError(f"Negate got {other!r}", "Give an object: Negate(FilterNull()).")
        if isinstance(other, VectorFilter):
            raise PlanError(f"Negate got the vectorised {type(other).__name__}", "Let it give the opposite itself.")
        self._other = other

    def prepare(self, context: OperationContext) -> None:
        prepare, _ = lifecycle_of(self._other)
        if prepare is not None:
            prepare(context)

    def cleanup(self) -> None:
        _, cleanup = lifecycle_of(self._other)
        if cleanup is not None:
            cleanup()

    def is_keep(self, *values: Any) -> bool:
        return not callable_of(self._other)(*values)


# ---- functions and consumers -----------------------------------------------------------------------------------


class Split(Function):
    """The words of a text. A null, or a text without words, gives nothing.

    :param delimiter: the separator; default: runs of whitespace.
    """

    def __init__(self, delimiter: str | None = None) -> None:
        self._delimiter = delimiter

    def execute(self, *values: Any) -> Iterator[str]:
        if values[0] is not None:
            yield from values[0].split(self._delimiter)


class Debug(Operation):
    """For `peek`: writes every tuple to standard error, the log of the task or of Spark's worker."""

    def __init__(self, label: str = "DEBUG") -> None:
        self._label = label

    def accept(self, *values: Any) -> None:
        sys.stderr.write(f"{self._label}: {values!r}\n")


# ---- aggregators with a comparator -----------------------------------------------------------------------------


class MinWithComparator(Min):
    """The smallest value of one field by ``comparator(left, right)``: negative, zero or positive. Nulls are skipped."""

    merge_kind = None

    def __init__(self, comparator: Comparator) -> None:
        self._comparator = comparator

    def _pick(self, left: Any, right: Any) -> Any:
        return left if self._comparator(left, right) <= 0 else right


class MaxWithComparator(Max):
    """The largest value of one field by a comparator; see :class:`MinWithComparator`."""

    merge_kind = None

    def __init__(self, comparator: Comparator) -> None:
        self._comparator = comparator

    def _pick(self, left: Any, right: Any) -> Any:
        return left if self._comparator(left, right) >= 0 else right


# ---- assemblies ------------------------------------------------------------------------------------------------


class FirstN:
    """The first `n` tuples of a batch, for `apply_assembly`: first of every partition, then of all.

    :param sort_field: orders the tuples, nulls last and NaN above every number; default: any `n` tuples.
    :param reverse: the largest first.
    """

    def __init__(self, n: int, sort_field: str | None = None, reverse: bool = False) -> None:
        require_flags("FirstN", reverse=reverse)
        at_least_one("FirstN(n)", n)
        if reverse and sort_field is None:
            raise PlanError("FirstN with reverse=True, and without sort_field", "Name the field that orders.")
        self._n = n
        self._sort_field = sort_field
        self._reverse = reverse

    def apply(self, stream: Any) -> Any:
        place = None if self._sort_field is None else _place(stream, self._sort_field)
        outputs = [str(field) for field in stream.schema]
        whole = FirstNAggregator(self._n, place, self._reverse)
        fields = list(stream.fields)
        chosen = stream.partition_aggregate(fields, replace(whole, partial=True), outputs)
        return chosen.global_().partition_aggregate(fields, whole, outputs)


def _place(stream: Any, name: str) -> int:
    """:raises FieldError: there is no such field, or it has no order."""
    (field,) = select(stream.schema, (name,), "FirstN")
    comparable("FirstN", field)
    return int(stream.fields.index(name))


@dataclass(frozen=True)
class FirstNAggregator(Aggregator[list[Any]]):
    """The first `n` tuples of a partition. `place`: position of the field that orders them. `partial`: another
    aggregator reads the output, so this one may let more tuples pass."""

    n: int
    place: int | None
    reverse: bool
    partial: bool = False

    def init(self, batch: TransactionAttempt, collector: Collector) -> list[Any]:
        return []

    def aggregate(self, state: list[Any], collector: Collector, *values: Any) -> None:
        if self.place is None and len(state) >= self.n:
            return
        state.append(values)
        if len(state) > 4 * self.n + 100:
            state[:] = self._first(state)

    def complete(self, state: list[Any], collector: Collector) -> None:
        for row in self._first(state):
            collector.emit(*row)

    def _first(self, rows: list[Any]) -> list[Any]:
        if self.place is None:
            return rows[: self.n]
        place = self.place
        non_null = [row for row in rows if row[place] is not None]
        choose = heapq.nlargest if self.reverse else heapq.nsmallest
        best = choose(self.n, non_null, key=lambda row: (row[place] != row[place], row[place]))
        return best + [row for row in rows if row[place] is None][: self.n - len(best)]
