"""The meaning of expressions, in plain Python. Engines that run them elsewhere must give the same values and errors."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from decimal import Context
from typing import Any, TypeAlias

from airflow_trident.operations.expr.conversions import convert
from airflow_trident.operations.expr.dtypes import Typed, resolve
from airflow_trident.operations.expr.literals import MAX_PRECISION
from airflow_trident.operations.expr.tree import Expression
from airflow_trident.types import REAL_TYPES, Schema

Values: TypeAlias = tuple[Any, ...]
Evaluator: TypeAlias = Callable[[Values], Any]

_WORD = re.compile(r"[^ \t\n\x0b\f\r]+")


def bind(expression: Expression, schema: Schema) -> Callable[..., Any]:
    """A function of the values of `expression.reads`, in that order, like a user's function.

    It returns the value; for an ``explode`` the elements, as a list (empty for null).

    :raises FieldError: the expression does not fit the schema.
    """
    run = _build(resolve(expression, schema), expression.reads)
    if expression.is_explode:
        return lambda *values: run(values) or []
    return lambda *values: run(values)


# ---- building closures -----------------------------------------------------------------------------------------


def _build(typed: Typed, names: tuple[str, ...]) -> Evaluator:
    if typed.op == "column":
        return operator.itemgetter(names.index(typed.options[0]))
    if typed.op == "literal":
        value = typed.options[0]
        return lambda _: value
    arguments = [_build(argument, names) for argument in typed.arguments]
    if typed.op in _LAZY:
        return _LAZY[typed.op](arguments)
    return _strict(_function_of(typed), arguments)


def _strict(function: Callable[..., Any], arguments: list[Evaluator]) -> Evaluator:
    """Null in, null out."""
    if len(arguments) == 1:
        (only,) = arguments

        def of_one(values: Values) -> Any:
            value = only(values)
            return None if value is None else function(value)

        return of_one

    def of_many(values: Values) -> Any:
        given = [argument(values) for argument in arguments]
        return None if any(value is None for value in given) else function(*given)

    return of_many


def _function_of(typed: Typed) -> Callable[..., Any]:
    operand = typed.arguments[0].type
    if typed.op == "cast":
        return convert(operand, typed.type)
    if typed.op in _OF_DECIMALS and typed.type not in ("long", "double"):
        return _OF_DECIMALS[typed.op]
    if typed.op in _WHOLE_OR_REAL:
        whole, real = _WHOLE_OR_REAL[typed.op]
        return whole if typed.type == "long" else real
    if typed.op == "get_item":
        return _item(typed.options[0], is_array=operand.startswith("array"))
    if typed.op in _COMPARE:
        return _COMPARE[typed.op] if operand not in REAL_TYPES else _REAL_COMPARE[typed.op]
    if typed.op in _WITH_OPTIONS:
        return _WITH_OPTIONS[typed.op](*typed.options)
    return _PLAIN[typed.op]


# ---- what is not strict about nulls ----------------------------------------------------------------------------


def _three_valued(*, decisive: bool) -> Callable[[list[Evaluator]], Evaluator]:
    """``&`` or ``|``: one decisive side decides, even beside a null. After a decisive left side the right one is not
    evaluated."""

    def build(arguments: list[Evaluator]) -> Evaluator:
        left, right = arguments

        def run(values: Values) -> Any:
            first = left(values)
            if first is decisive:
                return decisive
            second = right(values)
            return decisive if second is decisive else (None if first is None or second is None else not decisive)

        return run

    return build


def _coalesce(arguments: list[Evaluator]) -> Evaluator:
    return lambda values: next((value for run in arguments if (value := run(values)) is not None), None)


def _is_null(arguments: list[Evaluator]) -> Evaluator:
    (only,) = arguments
    return lambda values: only(values) is None


def _case(arguments: list[Evaluator]) -> Evaluator:
    branches = list(zip(arguments[0:-1:2], arguments[1::2], strict=False))
    last = arguments[-1] if len(arguments) % 2 else None

    def run(values: Values) -> Any:
        for condition, value in branches:
            if condition(values):
                return value(values)
        return last(values) if last is not None else None

    return run


_LAZY: dict[str, Callable[[list[Evaluator]], Evaluator]] = {
    "&": _three_valued(decisive=False),
    "|": _three_valued(decisive=True),
    "coalesce": _coalesce,
    "is_null": _is_null,
    "case": _case,
}


# ---- numbers ---------------------------------------------------------------------------------------------------


def _long(value: int) -> int:
    if -(2**63) <= value < 2**63:
        return value
    raise OverflowError(f"{value} does not fit a long")


def _divide(left: float, right: float) -> float | None:
    return left / right if right else None


def _whole_remainder(left: int, right: int) -> int | None:
    if right == 0:
        return None
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


def _real_remainder(left: float, right: float) -> float | None:
    if right == 0:
        return None
    return math.nan if math.isinf(left) else math.fmod(left, right)


_WHOLE_OR_REAL: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "+": (lambda left, right: _long(left + right), operator.add),
    "-": (lambda left, right: _long(left - right), operator.sub),
    "*": (lambda left, right: _long(left * right), operator.mul),
    "/": (_divide, _divide),
    "%": (_whole_remainder, _real_remainder),
    "negate": (lambda value: _long(-value), operator.neg),
    "abs": (lambda value: _long(abs(value)), abs),
}
_ALL_DIGITS = Context(prec=MAX_PRECISION * 2)
_OF_DECIMALS: dict[str, Callable[..., Any]] = {
    "+": _ALL_DIGITS.add,
    "-": _ALL_DIGITS.subtract,
    "*": _ALL_DIGITS.multiply,
    "negate": lambda value: _ALL_DIGITS.subtract(0, value),
    "abs": _ALL_DIGITS.abs,
}
_COMPARE: dict[str, Callable[..., Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _nan_last(compare: Callable[..., Any]) -> Callable[[float, float], Any]:
    """NaN equals itself and is greater than all else."""
    return lambda left, right: compare(
        (left != left, left if left == left else 0), (right != right, right if right == right else 0)
    )


_REAL_COMPARE = {name: _nan_last(compare) for name, compare in _COMPARE.items()}


# ---- texts and arrays ------------------------------------------------------------------------------------------


def _substring(start: int, count: int) -> Callable[[str], str]:
    part = slice(start - 1, start - 1 + count)
    return lambda text: text[part]


def _field(name: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda struct: struct[name]


def _item(key: Any, *, is_array: bool) -> Callable[[Any], Any]:
    if is_array:
        return lambda array: array[key] if key < len(array) else None
    return lambda mapping: mapping.get(key)


def _split(delimiter: str) -> Callable[[str], list[str]]:
    return lambda text: text.split(delimiter)


_WITH_OPTIONS: dict[str, Callable[..., Callable[..., Any]]] = {
    "substring": _substring,
    "split": _split,
    "get_field": _field,
}
_PLAIN: dict[str, Callable[..., Any]] = {
    "not": operator.not_,
    "lower": str.lower,
    "upper": str.upper,
    "trim": lambda text: text.strip(" "),
    "length": len,
    "concat": lambda *texts: "".join(texts),
    "split_words": _WORD.findall,
    "size": len,
    "explode": lambda array: array,
    "contains": operator.contains,
    "starts_with": str.startswith,
    "ends_with": str.endswith,
}
