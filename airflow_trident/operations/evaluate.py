"""The meaning of expressions, in plain Python. Engines that run them elsewhere must give the same values and errors.

Casts between types. Patterns say which texts a cast accepts. Spark uses the same patterns, because the parsers of
Java (``1d``, ``0x1p3``) and of Python (``1_000``) accept more.
"""

from __future__ import annotations

import ctypes
import datetime
import math
import operator
import re
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, TypeAlias

from airflow_trident.operations.expressions import MAX_PRECISION, Expression, Typed, decimal_parts, kind, resolve
from airflow_trident.types import REAL_TYPES, WHOLE_TYPES, Schema

_DATE = r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
TEXT_PATTERNS: dict[str, str] = {
    **dict.fromkeys(WHOLE_TYPES, r"[+-]?[0-9]+"),
    "double": r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:Infinity|inf)|NaN",
    "boolean": r"true|false",
    "date": _DATE,
    "time": _TIME,
    "timestamp": _DATE + r"[ T]" + _TIME + r"(?:Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])?",
}
"""The texts that a type can be cast from, without spaces (U+0020) at both ends. Valid in Python's and Java's syntax."""

_MICROSECOND = datetime.timedelta(microseconds=1)
_CONTEXT = Context(prec=MAX_PRECISION, rounding=ROUND_HALF_UP)


def convert(source_type: str, wanted: str) -> Callable[[Any], Any]:
    """A function that casts values that are not null.

    It raises ValueError or OverflowError for a value that the wanted type cannot hold.
    """
    if kind(source_type) == "string":
        return _from_text(wanted)
    if kind(wanted) == "decimal":
        return _to_decimal(wanted)
    return _CASTS[kind(source_type), kind(wanted)]


def _whole(wanted: str) -> Callable[[Any], int]:
    limit = WHOLE_TYPES[wanted]

    def run(value: Any) -> int:
        if isinstance(value, float) and not math.isfinite(value):
            raise OverflowError(f"{value} cannot be cast to {wanted}")
        whole = int(value)
        if -limit <= whole < limit:
            return whole
        raise OverflowError(f"{value} does not fit {wanted}")

    return run


def _from_text(wanted: str) -> Callable[[str], Any]:
    pattern = re.compile(TEXT_PATTERNS[wanted])
    parse: Callable[[str], Any] = _PARSERS[wanted]

    def run(text: str) -> Any:
        plain = text.strip(" ")
        if not pattern.fullmatch(plain):
            raise ValueError(f"{text!r} cannot be cast to {wanted}")
        return parse(plain)

    return run


def microseconds_of(interval: datetime.timedelta) -> int:
    """An interval in microseconds, for stores, texts and JSON without an interval type."""
    return interval // _MICROSECOND


def interval_of(microseconds: int) -> datetime.timedelta:
    return microseconds * _MICROSECOND


def _padded(text: str) -> str:
    """With six digits after the point: fromisoformat takes three or six."""
    head, dot, tail = text.partition(".")
    if not dot:
        return text
    digits = re.match(r"[0-9]+", tail)
    assert digits
    return f"{head}.{digits[0]:0<6}{tail[digits.end() :]}"


def _time(text: str) -> datetime.time:
    return datetime.time.fromisoformat(_padded(text))


def _timestamp(text: str) -> datetime.datetime:
    value = datetime.datetime.fromisoformat(_padded(text))
    return value.replace(tzinfo=datetime.UTC) if value.tzinfo is None else value.astimezone(datetime.UTC)


def _to_decimal(wanted: str) -> Callable[[Any], Decimal]:
    parts = decimal_parts(wanted)
    assert parts
    precision, scale = parts
    unit = Decimal(1).scaleb(-scale)

    def run(value: Any) -> Decimal:
        try:
            rounded = Decimal(value).quantize(unit, context=_CONTEXT)
        except InvalidOperation:
            rounded = None
        if rounded is None or len(rounded.as_tuple().digits) > precision:
            raise OverflowError(f"{value} does not fit {wanted}")
        return rounded if rounded else abs(rounded)  # Java's decimals have no negative zero

    return run


def _timestamp_text(value: datetime.datetime) -> str:
    """As Spark prints it: no zone (UTC), no trailing zeros in the fraction."""
    return _trimmed(value.replace(tzinfo=None).isoformat(" "))


def _trimmed(text: str) -> str:
    return text.rstrip("0") if "." in text else text


def _midnight(value: datetime.date) -> datetime.datetime:
    return datetime.datetime(value.year, value.month, value.day, tzinfo=datetime.UTC)


def single(value: float) -> float:
    """Rounded to 32 bits; a value that is too large becomes infinite."""
    return ctypes.c_float(value).value


_PARSERS: dict[str, Callable[[str], Any]] = {
    **{wanted: _whole(wanted) for wanted in WHOLE_TYPES},
    "double": float,
    "boolean": lambda text: text == "true",
    "date": datetime.date.fromisoformat,
    "time": _time,
    "timestamp": _timestamp,
}
_CASTS: dict[tuple[str, str], Callable[[Any], Any]] = {
    **{
        (source_type, wanted): _whole(wanted)
        for source_type in (*WHOLE_TYPES, *REAL_TYPES, "boolean")
        for wanted in WHOLE_TYPES
    },
    **{(source_type, "double"): float for source_type in (*WHOLE_TYPES, "float", "decimal")},
    **{(source_type, "float"): single for source_type in ("byte", "short", "int", "double")},
    **{(source_type, "boolean"): bool for source_type in WHOLE_TYPES},
    **{(source_type, "string"): str for source_type in WHOLE_TYPES},
    ("boolean", "string"): lambda value: "true" if value else "false",
    ("date", "string"): datetime.date.isoformat,
    ("date", "timestamp"): _midnight,
    ("time", "string"): lambda value: _trimmed(value.isoformat()),
    ("timestamp", "string"): _timestamp_text,
    ("timestamp", "date"): lambda value: value.date(),
}


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
        operands = [argument(values) for argument in arguments]
        return None if any(value is None for value in operands) else function(*operands)

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
