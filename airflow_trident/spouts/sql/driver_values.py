"""What drivers give for a value, as the type that is declared for its column: nothing is changed on the way.

SQLite has texts for dates and times, MySQL intervals for times, and both numbers for booleans. Where a driver cannot
give a value of Python, such as infinity, it gives the text of the database, which no declared type takes.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_trident.errors import DamagedInputError
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.io.database_limits import MYSQL
from airflow_trident.io.values import UnfitValueError
from airflow_trident.operations.expr.conversions import interval_of
from airflow_trident.types import INTERVAL, Schema

if TYPE_CHECKING:
    import pyarrow as pa

Convert: TypeAlias = Callable[[Any], Any]
_DAY = datetime.timedelta(days=1)
_BITS = {0: False, 1: True, b"\x00": False, b"\x01": True}
_CURE = "Correct the value, declare the type that the column has, or convert it in a query."


def table_of(who: str, fields: Schema, database: str, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    """
    :param rows: each with its key in front.
    :raises DamagedInputError: a value does not fit its field; it names key and column.
    """
    converts = [(place, convert) for place, field in enumerate(fields) if (convert := _converter(field.type, database))]
    plain = [_converted(row[1:], converts) for row in rows] if converts else [row[1:] for row in rows]
    try:
        return rows_to_table(fields, plain)
    except UnfitValueError as error:
        place = [field.name for field in fields].index(error.field)
        position = error.position
        if error.is_of_type:  # of all values of the column
            position = next(number for number, row in enumerate(plain) if row[place] is not None)
        raise DamagedInputError(
            f"{who}: rows do not fit the fields ({', '.join(map(str, fields))}): {error} (key {rows[position][0]!r})",
            _CURE,
        ) from error


def _converted(row: tuple[Any, ...], converts: Sequence[tuple[int, Convert]]) -> tuple[Any, ...]:
    parts = list(row)
    for place, convert in converts:
        if parts[place] is not None:
            parts[place] = convert(parts[place])
    return tuple(parts)


def _converter(type_text: str, database: str) -> Convert | None:
    """What a value that does not fit becomes is the value itself, so that the error can show it."""
    if type_text == INTERVAL:
        return _interval
    if type_text == "boolean" and (database in MYSQL or database == "sqlite"):
        return _boolean
    if database in MYSQL:
        return _time_of_interval if type_text == "time" else None
    texts: dict[str, Any] = {"date": datetime.date, "time": datetime.time, "timestamp": datetime.datetime}
    if database == "sqlite" and type_text in texts:
        return _parser(texts[type_text].fromisoformat)
    return None


def _interval(value: Any) -> Any:
    """Databases without intervals give whole numbers of microseconds."""
    return interval_of(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _boolean(value: Any) -> Any:
    return _BITS.get(value, value) if isinstance(value, int | bytes) else value


def _time_of_interval(value: Any) -> Any:
    """MySQL's TIME goes from -838 to 838 hours."""
    if isinstance(value, datetime.timedelta) and datetime.timedelta(0) <= value < _DAY:
        return (datetime.datetime.min + value).time()
    return value


def _parser(parse: Callable[[str], Any]) -> Convert:
    def parsed(value: Any) -> Any:
        try:
            return parse(value) if isinstance(value, str) else value
        except ValueError:
            return value

    return parsed
