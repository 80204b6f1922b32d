"""The border of declared types for Python's values: what a user's function, a child or a driver gives. A wrong value is
refused where it appears; :mod:`airflow_trident.io.arrow` has the same border for columns of Arrow.

Nothing is rounded, cut, filled in or left out. There is one exception: Python has no single-precision numbers, so a
``float`` field rounds to the nearest one.
"""

from __future__ import annotations

import datetime
import numbers
import operator
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import lru_cache
from typing import Any

from airflow_trident.errors import text_of
from airflow_trident.types import INTERVAL, LONGEST_INTERVAL, WHOLE_TYPES, is_nested, members

_EXACT: dict[str, type] = {
    "string": str,
    **dict.fromkeys(WHOLE_TYPES, int),
    "double": float,
    "boolean": bool,
    "binary": bytes,
    "date": datetime.date,
}
_DECIMAL_TEXT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


class UnfitValueError(ValueError):
    """A value does not fit the declared type.

    `position`: its index in the column. `path`: its place inside of the column's value, such as ``[].price``. `field`:
    the column, if known. `value`: as text. `is_of_type`: no value of this type fits, so `position` says nothing.
    """

    def __init__(self, value: str, declared: str, why: str = "", path: str = "", position: int = 0) -> None:
        super().__init__(value, declared, why, path, position)
        self.value, self.declared, self.why = value, declared, why
        self.path, self.position, self.field = path, position, ""
        self.is_of_type = False

    def __str__(self) -> str:
        row = "" if self.is_of_type else f" of row {self.position + 1}"
        place = f"the field {self.field!r}{row} holds " if self.field else ""
        inside = f" in {self.path}" if self.path else ""
        why = f": {self.why}" if self.why else ""
        return f"{place}{self.value}{inside}, where {self.declared} is declared{why}"

    def inside(self, part: str) -> UnfitValueError:
        """The same error for the value around this one."""
        return UnfitValueError(self.value, self.declared, self.why, part + self.path, self.position)


def shown(value: Any, characters: int = 80) -> str:
    """A value as text for an error; works for every value."""
    return text_of(value, repr, characters)


def exact_decimal(value: int | str | Decimal, precision: int, scale: int) -> Decimal:
    """A number with exactly `scale` digits behind the point and at most `precision` in all. A text has ASCII digits and
    may have an exponent.

    :raises ValueError, ArithmeticError: it is no number, or another one so.
    """
    if isinstance(value, str) and not _DECIMAL_TEXT.fullmatch(value):
        raise ValueError("no decimal")
    unit, context = _places(precision, scale)
    number = Decimal(value).quantize(unit, context=context)
    if not number.is_finite():
        raise OverflowError("no finite number")
    return number if number else abs(number)  # Java's decimals have no negative zero


@lru_cache
def _places(precision: int, scale: int) -> tuple[Decimal, Context]:
    return Decimal(1).scaleb(-scale), Context(prec=precision, traps=[Inexact, InvalidOperation])


def coercer(type_text: str, *, of_source: bool = False) -> Callable[[Any], Any]:
    """A function that converts a value to the declared type and leaves None. Conversions are exact: an int becomes a
    double, but no double an int and no number a text.

    The function raises UnfitValueError.

    :param of_source: a real number without a fraction is a whole number, and pairs are a map: drivers and other
        languages do not tell them apart.
    """
    fit = _fit(type_text, of_source)

    def run(value: Any) -> Any:
        if value is None:
            return value
        try:
            return fit(value)
        except UnfitValueError:
            raise
        except _Unfit as error:
            raise UnfitValueError(_typed(value), type_text, str(error)) from None
        except (TypeError, ValueError, ArithmeticError, AttributeError):
            raise UnfitValueError(_typed(value), type_text) from None

    return run


def _typed(value: Any) -> str:
    return f"{shown(value)} ({type(value).__name__})"


class _Unfit(Exception):
    """Says why a value does not fit."""


def coerce_column(values: Sequence[Any], type_text: str, *, of_source: bool = False) -> Sequence[Any]:
    """The column with every value converted to the declared type; the same object if nothing had to change.

    :param of_source: as for :func:`coercer`.
    :raises UnfitValueError: a value does not fit; `position` says which.
    """
    exact = _EXACT.get(type_text)
    kinds = set(map(type, values)) - {type(None)}
    if not kinds or (kinds == {exact} and _is_in_range(values, type_text)):
        return values
    fit = coercer(type_text, of_source=of_source)
    coerced: list[Any] = []
    try:
        for value in values:
            coerced.append(fit(value))  # noqa: PERF401 - its length says which one failed
    except UnfitValueError as error:
        error.position = len(coerced)
        raise
    return coerced


def _is_in_range(values: Sequence[Any], type_text: str) -> bool:
    """Do values of the exact type fit? False: they have to be looked at one by one."""
    if type_text == "string":
        return is_unicode("".join([value for value in values if value is not None]))
    if type_text not in WHOLE_TYPES:
        return True
    limit, numbers = WHOLE_TYPES[type_text], [value for value in values if value is not None]
    return bool(-limit <= min(numbers) and max(numbers) < limit)


def is_unicode(text: str) -> bool:
    """False: it has a lone surrogate, which no store, file or process takes."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _fit(type_text: str, of_source: bool) -> Callable[[Any], Any]:
    if is_nested(type_text):
        return _nested(type_text, of_source)
    if type_text.startswith("decimal"):
        return _decimal(type_text)
    if type_text in WHOLE_TYPES:
        return _whole(WHOLE_TYPES[type_text], of_source)
    return _SIMPLE[type_text]


# ---- nested values ---------------------------------------------------------------------------------------------


def _nested(type_text: str, of_source: bool) -> Callable[[Any], Any]:
    fits = {member.name: coercer(member.type, of_source=of_source) for member in members(type_text)}
    if type_text.startswith("array"):
        element = _at("[]", fits["element"])
        return lambda value: [element(part) for part in _require(value, list, tuple)]
    if type_text.startswith("map"):
        key, inner = _at("its keys", _present(fits["key"])), _at("{}", fits["value"])
        return lambda value: _distinct([(key(name), inner(part)) for name, part in _pairs(value, of_source)])
    return _struct({name: _at(f".{name}", fit) for name, fit in fits.items()})


def _struct(fits: Mapping[str, Callable[[Any], Any]]) -> Callable[[Any], dict[str, Any]]:
    def run(value: Any) -> dict[str, Any]:
        # Tuples with names: of `namedtuple`, and Spark's rows.
        names: Any = getattr(value, "_fields", None) or getattr(value, "__fields__", fits)
        member_values = dict(zip(names, value, strict=True)) if isinstance(value, tuple) else _require(value, Mapping)
        if why := unlike_members(list(member_values), list(fits)):
            raise _Unfit(why)
        return {name: fit(member_values[name]) for name, fit in fits.items()}

    return run


def unlike_members(
    actual: Sequence[str], declared: Sequence[str], *, may_lack: bool = False, may_have_more: bool = False
) -> str:
    """Why a struct with these members is not the declared one; "" if it is.

    :param may_lack: declared members may be missing. `may_have_more`: others may be there.
    """
    doubled = [name for name in declared if actual.count(name) > 1]
    missing = [name for name in declared if name not in actual and not may_lack]
    extra = [name for name in actual if name not in declared and not may_have_more]
    for names, defect in ((missing, "lacks the"), (doubled, "has twice the"), (extra, "has the undeclared")):
        if names:
            return f"it {defect} member {names[0]!r}"
    return ""


def _pairs(value: Any, of_source: bool) -> Iterable[tuple[Any, Any]]:
    if of_source and isinstance(value, list | tuple):
        return value
    return _require(value, Mapping).items()  # type: ignore[no-any-return]


def _distinct(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _Unfit("it has a key twice")
    return made


def _at(part: str, fit: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Notes the place of a value that does not fit."""

    def run(value: Any) -> Any:
        try:
            return fit(value)
        except UnfitValueError as error:
            raise error.inside(part) from None

    return run


def _present(fit: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """For map keys, which cannot be None."""

    def run(value: Any) -> Any:
        if value is None:
            raise _Unfit("a key is null")
        return fit(value)

    return run


def _require(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds):
        raise TypeError
    return value


# ---- simple values ---------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    # The class of an Enum's member says another text.
    text = value if type(value) is str else str.__str__(_require(value, str))
    if not is_unicode(text):
        raise _Unfit("a lone surrogate is no character")
    return text


def _whole(limit: int, of_source: bool) -> Callable[[Any], int]:
    def run(value: Any) -> int:
        if isinstance(value, bool):
            raise TypeError
        if of_source and isinstance(value, float | Decimal):
            if value != int(value):
                raise _Unfit("it has a fraction")
            whole = int(value)
        else:
            whole = operator.index(value)
        if not -limit <= whole < limit:
            raise _Unfit("it is out of range")
        return whole

    return run


def _decimal(type_text: str) -> Callable[[Any], Decimal]:
    precision, scale = map(int, type_text[len("decimal(") : -1].split(","))

    def run(value: Any) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            raise TypeError
        return exact_decimal(value, precision, scale)

    return run


def _real(value: Any) -> float:
    """Accepts numbers of Python and NumPy, but no text and no Decimal."""
    number = value if type(value) is float else _number(value)
    real: float = float(number)
    return _unrounded(real, number)


def _number(value: Any) -> Any:
    """A real number of Python or NumPy, whose arrays without dimensions are numbers, too."""
    if type(value) is int:
        return value
    plain = value.item() if getattr(value, "shape", None) == () else value
    if isinstance(plain, bool) or not isinstance(plain, numbers.Real):
        raise TypeError
    return plain


def _single(value: Any) -> float:
    """:raises OverflowError: it would be infinite."""
    (rounded,) = struct.unpack("<f", struct.pack("<f", _real(value)))
    number = value if type(value) is float else _number(value)
    return _unrounded(rounded, number) if isinstance(number, numbers.Integral) else float(rounded)


def _unrounded(real: float, value: Any) -> float:
    # NumPy compares as doubles.
    exact = operator.index(value) if type(value) is not int and isinstance(value, numbers.Integral) else value
    if real != exact and real == real:
        raise _Unfit("it would be rounded")
    return real


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
    _require_microseconds(value, "nanoseconds")
    return value  # type: ignore[no-any-return]


def _timestamp(value: Any) -> datetime.datetime:
    """In UTC; a value without a zone counts as UTC."""
    _require(value, datetime.datetime)
    if value != value:  # pandas.NaT is a datetime
        raise _Unfit("give None for a missing time")
    _require_microseconds(value, "nanosecond")
    zone = datetime.UTC
    plain: datetime.datetime = value
    if type(value) is not datetime.datetime:  # of pandas, or pendulum
        day, time = (value.year, value.month, value.day), (value.hour, value.minute, value.second, value.microsecond)
        plain = datetime.datetime(*day, *time, tzinfo=value.tzinfo, fold=value.fold)
    return plain.replace(tzinfo=zone) if plain.tzinfo is None else plain.astimezone(zone)


def _require_microseconds(value: Any, name: str) -> None:
    """:param name: of the attribute in which the times of pandas have their nanoseconds."""
    if getattr(value, name, 0):
        raise _Unfit("it has nanoseconds, and times are in microseconds")


def _bytes(value: Any) -> bytes:
    return bytes(memoryview(_require(value, bytes, bytearray, memoryview)))


_SIMPLE: dict[str, Callable[[Any], Any]] = {
    "string": _text,
    "double": _real,
    "float": _single,
    "boolean": _boolean,
    "binary": lambda value: value if type(value) is bytes else _bytes(value),
    "date": _date,
    "time": _time,
    "timestamp": _timestamp,
    INTERVAL: _interval,
}
