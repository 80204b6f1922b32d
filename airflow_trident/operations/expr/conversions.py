"""Casts between types. Patterns say which texts a cast accepts. Spark uses the same patterns, because the parsers of
Java (``1d``, ``0x1p3``) and of Python (``1_000``) accept more."""

from __future__ import annotations

import ctypes
import datetime
import math
import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

from airflow_trident.operations.expr.dtypes import decimal_parts, kind
from airflow_trident.operations.expr.literals import MAX_PRECISION
from airflow_trident.types import REAL_TYPES, WHOLE_TYPES

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


def convert(given: str, wanted: str) -> Callable[[Any], Any]:
    """A function that casts values that are not null.

    It raises ValueError or OverflowError for a value that the wanted type cannot hold.
    """
    if kind(given) == "string":
        return _from_text(wanted)
    if kind(wanted) == "decimal":
        return _to_decimal(wanted)
    return _PLAIN[kind(given), kind(wanted)]


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
            result = Decimal(value).quantize(unit, context=_CONTEXT)
        except InvalidOperation:
            result = None
        if result is None or len(result.as_tuple().digits) > precision:
            raise OverflowError(f"{value} does not fit {wanted}")
        return result if result else abs(result)  # Java's decimals have no negative zero

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
_PLAIN: dict[tuple[str, str], Callable[[Any], Any]] = {
    **{(given, wanted): _whole(wanted) for given in (*WHOLE_TYPES, *REAL_TYPES, "boolean") for wanted in WHOLE_TYPES},
    **{(given, "double"): float for given in (*WHOLE_TYPES, "float", "decimal")},
    **{(given, "float"): single for given in ("byte", "short", "int", "double")},
    **{(given, "boolean"): bool for given in WHOLE_TYPES},
    **{(given, "string"): str for given in WHOLE_TYPES},
    ("boolean", "string"): lambda value: "true" if value else "false",
    ("date", "string"): datetime.date.isoformat,
    ("date", "timestamp"): _midnight,
    ("time", "string"): lambda value: _trimmed(value.isoformat()),
    ("timestamp", "string"): _timestamp_text,
    ("timestamp", "date"): lambda value: value.date(),
}
