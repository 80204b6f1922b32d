"""Built-in aggregators, after Trident's `operation.builtin`: Count, Sum, Min, Max.

Nulls: Count counts the tuple, the others skip it (Trident's Sum fails). The Sum of nothing is 0; Min and Max of nothing
are null. NaN is greater than every other number. Engines and states compute natively by `merge_kind`; the Python code
here defines the meaning.
"""

from __future__ import annotations

from decimal import Context, Decimal, DivisionByZero, InvalidOperation, Overflow
from typing import Any

from airflow_trident.errors import FieldError
from airflow_trident.operations.api import CombinerAggregator, MergeKind
from airflow_trident.types import REAL_TYPES, WHOLE_TYPES, is_nested

_EXACT = Context(prec=100, traps=[InvalidOperation, DivisionByZero, Overflow])
"""Python's default context rounds to 28 digits; Spark's decimals have 38."""
_SUMMABLE = {**dict.fromkeys(WHOLE_TYPES, "long"), **dict.fromkeys(REAL_TYPES, "double")}


class Count(CombinerAggregator[int]):
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


class Sum(CombinerAggregator[Any]):
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
        (given,) = _one_input("Sum", input_types)
        if given.startswith("decimal("):
            return f"decimal(38,{given.rstrip(')').split(',')[1].strip()})"
        if given not in _SUMMABLE:
            raise FieldError(
                f"Sum cannot add fields of type {given}",
                "Give it a number: byte, short, int, long, float, double, decimal.",
            )
        return _SUMMABLE[given]


class _Extreme(CombinerAggregator[Any]):
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
        (given,) = _one_input(type(self).__name__, input_types)
        if is_nested(given):
            raise FieldError(f"{type(self).__name__} cannot compare fields of type {given}", "Give it a simple type.")
        return given


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
