"""Checks values from users' code against their declared types. All engines use these rules; a wrong value is refused
where it appears."""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from airflow_trident.operations.expr.conversions import convert, single
from airflow_trident.operations.expr.dtypes import kind
from airflow_trident.types import INTERVAL, LONGEST_INTERVAL, WHOLE_TYPES, is_nested, members

_EXACT: dict[str, type] = {
    "string": str,
    **dict.fromkeys(WHOLE_TYPES, int),
    "double": float,
    "boolean": bool,
    "binary": bytes,
    "date": datetime.date,
}


class UnfitValueError(ValueError):
    """A value does not fit the declared type. `position`: its index in the column."""

    def __init__(self, text: str, position: int = 0) -> None:
        super().__init__(text)
        self.position = position


def shown(value: Any, characters: int = 80) -> str:
    """A value as text for an error; works for every value."""
    try:
        return repr(value)[:characters]
    except Exception as error:  # noqa: BLE001 - users' classes may raise anything here
        return f"<{type(value).__name__}, whose __repr__ raised {type(error).__name__}>"


def coercer(type_text: str) -> Callable[[Any], Any]:
    """A function that converts a value to the declared type and leaves None. Conversions are exact: an int becomes a
    double, but no double an int and no number a text.

    The function raises UnfitValueError.
    """
    fit = _fit(type_text)
    exact = str if type_text == "string" else None

    def run(value: Any) -> Any:
        if value is None or type(value) is exact:
            return value
        try:
            return fit(value)
        except (TypeError, ValueError, OverflowError, AttributeError):
            text = f"{shown(value)} ({type(value).__name__}), where {type_text} is declared"
            raise UnfitValueError(text) from None

    return run


def coerce_column(values: Sequence[Any], type_text: str) -> Sequence[Any]:
    """The column with every value converted to the declared type; the same object if nothing had to change.

    :raises UnfitValueError: a value does not fit; `position` says which.
    """
    exact = _EXACT.get(type_text)
    kinds = set(map(type, values)) - {type(None)}
    if not kinds or (kinds == {exact} and _in_range(values, type_text)):
        return values
    fit = coercer(type_text)
    result: list[Any] = []
    try:
        for value in values:
            result.append(fit(value))  # noqa: PERF401 - its length says which one failed
    except UnfitValueError as error:
        error.position = len(result)
        raise
    return result


def _in_range(values: Sequence[Any], type_text: str) -> bool:
    if type_text not in WHOLE_TYPES:
        return True
    limit, numbers = WHOLE_TYPES[type_text], [value for value in values if value is not None]
    return bool(-limit <= min(numbers) and max(numbers) < limit)


def _fit(type_text: str) -> Callable[[Any], Any]:
    if is_nested(type_text):
        return _nested(type_text)
    if kind(type_text) == "decimal":
        return _decimal(type_text)
    if type_text in WHOLE_TYPES:
        return _whole(WHOLE_TYPES[type_text])
    return _SIMPLE[type_text]


def _nested(type_text: str) -> Callable[[Any], Any]:
    fits = {member.name: coercer(member.type) for member in members(type_text)}
    if kind(type_text) == "array":
        element = fits["element"]
        return lambda value: [element(one) for one in _require(value, list, tuple)]
    if kind(type_text) == "map":
        key, inner = _present(fits["key"]), fits["value"]
        return lambda value: {key(name): inner(one) for name, one in _require(value, Mapping).items()}

    def run(value: Any) -> dict[str, Any]:
        given = dict(zip(fits, value, strict=True)) if isinstance(value, tuple) else _require(value, Mapping)
        if given.keys() != fits.keys():
            raise ValueError
        return {name: fit(given[name]) for name, fit in fits.items()}

    return run


def _present(fit: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """For map keys, which cannot be None."""

    def run(value: Any) -> Any:
        if value is None:
            raise ValueError
        return fit(value)

    return run


def _require(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds):
        raise TypeError
    return value


def _whole(limit: int) -> Callable[[Any], int]:
    def run(value: Any) -> int:
        if isinstance(value, bool):
            raise TypeError
        whole = operator.index(value)
        if not -limit <= whole < limit:
            raise OverflowError
        return whole

    return run


def _decimal(type_text: str) -> Callable[[Any], Decimal]:
    to = convert("long", type_text)

    def run(value: Any) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            raise TypeError
        result: Decimal = to(value)
        if result != value:
            raise ValueError
        return result

    return run


def _real(value: Any) -> float:
    """Accepts numbers of Python and NumPy, but no text and no Decimal."""
    if isinstance(value, bool | str | Decimal):
        raise TypeError
    return float(value)


def _boolean(value: Any) -> bool:
    """Accepts bool and NumPy's bool, which is another class."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise TypeError
    return bool(value)


def _date(value: Any) -> datetime.date:
    if isinstance(value, datetime.datetime):
        raise TypeError
    return _require(value, datetime.date)  # type: ignore[no-any-return]


def _time(value: Any) -> datetime.time:
    """Without a zone: the meaning of a zone depends on the day."""
    if _require(value, datetime.time).tzinfo is not None:
        raise ValueError
    return value  # type: ignore[no-any-return]


def _interval(value: Any) -> datetime.timedelta:
    """Must fit a long of microseconds; Python's own range is wider."""
    if abs(_require(value, datetime.timedelta)) > LONGEST_INTERVAL:
        raise OverflowError
    return value  # type: ignore[no-any-return]


def _timestamp(value: Any) -> datetime.datetime:
    """In UTC; a value without a zone counts as UTC."""
    _require(value, datetime.datetime)
    zone = datetime.UTC
    return value.replace(tzinfo=zone) if value.tzinfo is None else value.astimezone(zone)  # type: ignore[no-any-return]


_SIMPLE: dict[str, Callable[[Any], Any]] = {
    "string": lambda value: str(_require(value, str)),
    "double": _real,
    "float": lambda value: single(_real(value)),
    "boolean": _boolean,
    "binary": lambda value: bytes(_require(value, bytes, bytearray, memoryview)),
    "date": _date,
    "time": _time,
    "timestamp": _timestamp,
    INTERVAL: _interval,
}
