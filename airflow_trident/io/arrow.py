"""Schemas as Arrow. Arrow is imported when a function is called, never when a DAG is parsed."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import DamagedInputError
from airflow_trident.types import INTERVAL, WHOLE_TYPES, Field, Schema, is_nested, members

if TYPE_CHECKING:
    import pyarrow as pa

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)\Z")


def arrow_type(type_text: str, times: str = "us") -> pa.DataType:
    """The Arrow type of a normalised DDL type. Times are in microseconds and timestamps in UTC, as in Spark.

    :param times: the unit of times of day.
    """
    import pyarrow as pa

    if match := _DECIMAL.match(type_text):
        return pa.decimal128(int(match[1]), int(match[2]))
    if type_text.startswith("array<"):
        return pa.list_(arrow_type(members(type_text)[0].type, times))
    if type_text.startswith("map<"):
        key, value = members(type_text)
        return pa.map_(arrow_type(key.type, times), arrow_type(value.type, times))
    if type_text.startswith("struct<"):
        return pa.struct([pa.field(member.name, arrow_type(member.type, times)) for member in members(type_text)])
    simple = {
        "string": pa.string(),
        "long": pa.int64(),
        "int": pa.int32(),
        "short": pa.int16(),
        "byte": pa.int8(),
        "double": pa.float64(),
        "float": pa.float32(),
        "boolean": pa.bool_(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "time": pa.time64(times),
        "timestamp": pa.timestamp("us", tz="UTC"),
        INTERVAL: pa.duration("us"),
    }
    return simple[type_text]


def arrow_schema(schema: Schema, times: str = "us") -> pa.Schema:
    """:param times: as in :func:`arrow_type`."""
    import pyarrow as pa

    return pa.schema([pa.field(field.name, arrow_type(field.type, times)) for field in schema])


def rows_to_table(schema: Schema, rows: list[tuple[object, ...]]) -> pa.Table:
    """Tuples in the order of the schema's fields.

    :raises pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError: a value does not fit its field.
    """
    import pyarrow as pa

    arrays = [_array(field, column) for field, column in zip(schema, columns_of(rows, len(schema)), strict=True)]
    return pa.Table.from_arrays(arrays, schema=arrow_schema(schema))


def _array(field: Field, values: list[object]) -> pa.Array:
    import pyarrow as pa

    _require_exact(values, field.type)
    return pa.array(values, type=arrow_type(field.type))


_MISREAD: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(WHOLE_TYPES, (float, Decimal)),
    "date": (datetime.datetime, int),
    "timestamp": (int, float),
}
"""What Arrow takes for each of these types and changes: it cuts off fractions and the time of a day, and takes numbers
for microseconds and days."""
_ONLY = {"time": datetime.time, INTERVAL: datetime.timedelta}


def _require_exact(values: Sequence[Any], type_text: str) -> None:
    """
    :raises pyarrow.ArrowInvalid: a value that Arrow would accept wrongly: a number with a fraction as a whole one, a
        number as a time, or a time whose zone it would drop.
    """
    if misread := _MISREAD.get(type_text):
        kinds = set(map(type, values))  # one look for the usual case: all are of one kind
        if any(issubclass(kind, misread) for kind in kinds):
            _require_unchanged(values, type_text, misread)
    elif type_text in _ONLY:
        _require_times(values, type_text)
    elif not _is_checked(type_text):
        return
    elif type_text.startswith("array<"):
        _require_exact(list(chain.from_iterable(_given(values))), members(type_text)[0].type)
    elif type_text.startswith("map<"):
        for place, member in enumerate(members(type_text)):
            pairs = (
                pair for value in _given(values) for pair in (value.items() if isinstance(value, Mapping) else value)
            )
            _require_exact([pair[place] for pair in pairs], member.type)
    elif type_text.startswith("struct<"):
        given = _given(values)
        for place, member in enumerate(members(type_text)):
            if _is_checked(member.type):
                name = member.name
                _require_exact(
                    [value.get(name) if isinstance(value, dict | Mapping) else value[place] for value in given],
                    member.type,
                )


@lru_cache
def _is_checked(type_text: str) -> bool:
    if is_nested(type_text):
        return any(_is_checked(member.type) for member in members(type_text))
    return type_text in _MISREAD or type_text in _ONLY


def _given(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _require_unchanged(values: Iterable[Any], type_text: str, misread: tuple[type, ...]) -> None:
    import pyarrow as pa

    for value in values:
        if isinstance(value, misread) and not (type_text in WHOLE_TYPES and _is_whole(value)):
            raise pa.ArrowInvalid(f"{value!r} is no {type_text}")


def _is_whole(value: Any) -> bool:
    try:
        return bool(value == int(value))
    except (ValueError, OverflowError):  # NaN, infinity
        return False


def _require_times(values: Iterable[Any], type_text: str) -> None:
    import pyarrow as pa

    for value in _given(values):
        if not isinstance(value, _ONLY[type_text]) or getattr(value, "tzinfo", None) is not None:
            raise pa.ArrowInvalid(f"{value!r} is no {type_text}")


def columns_of(rows: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    """The columns of rows. Not by ``zip(*rows)``: it makes an object per row, which costs many runs of the garbage
    collector.

    :param width: of each row.
    """
    if set(map(len, rows)) - {width}:
        raise ValueError(f"a row has not {width} values")
    return [[row[place] for row in rows] for place in range(width)]


def comparable(rows: pa.Table) -> pa.Table:
    """Keys of which equal ones are equal to Arrow, too, which compares the bits of real numbers: NaN is one key, and
    -0.0 is 0.0, as in groups."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for place, field in enumerate(rows.schema):
        if pa.types.is_floating(field.type):
            nan, zero = pa.scalar(float("nan"), field.type), pa.scalar(0.0, field.type)
            column = rows.column(place)
            rows = rows.set_column(place, field, pc.if_else(pc.is_nan(column), nan, pc.add(column, zero)))
    return rows


_MOST_BYTES = 2**31 - 1
"""Of text or bytes in one array of Arrow."""


def taken(table: pa.Table, places: Any, *, most_bytes: int = _MOST_BYTES) -> pa.Table:
    """``table.take(places)``, also of a column with more text or bytes than one array of Arrow holds (2 GiB): Arrow
    makes one array of a column before it takes from it, and fails.

    :param places: without nulls.
    """
    import numpy as np
    import pyarrow as pa

    if max((column.nbytes for column in table.columns), default=0) <= most_bytes:
        return table.take(pa.array(places) if isinstance(places, np.ndarray) else places)
    wanted = np.asarray(places, dtype=np.int64)
    order = np.argsort(wanted, kind="stable")
    found = pa.concat_tables([table.slice(0, 0), *_taken_in_order(table, wanted[order])])
    if (order[:-1] < order[1:]).all():
        return found
    if len(wanted) > 1 and max(column.nbytes for column in found.columns) > most_bytes:
        half = len(wanted) // 2
        return pa.concat_tables([taken(table, some, most_bytes=most_bytes) for some in (wanted[:half], wanted[half:])])
    return found.take(pa.array(np.argsort(order)))


def _taken_in_order(table: pa.Table, places: Any) -> Iterator[pa.Table]:
    """:param places: ascending."""
    import numpy as np
    import pyarrow as pa

    first = low = 0
    for batch in table.to_batches():
        high = int(np.searchsorted(places, first + batch.num_rows))
        if high > low:
            yield pa.Table.from_batches([batch.take(pa.array(places[low:high] - first))])
        first, low = first + batch.num_rows, high


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The column as Python values; structs and maps become dicts.

    :raises KeyError: a map has a key twice.
    """
    import pyarrow as pa

    # A search for maps costs ten times as much as the values themselves.
    nested = pa.types.is_nested(column.type)
    return column.to_pylist(maps_as_pydicts="strict") if nested else column.to_pylist()  # type: ignore[no-any-return]


def table_to_rows(table: pa.Table) -> list[tuple[object, ...]]:
    columns = [python_values(column) for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


@contextmanager
def fitting(what: str, schema: Schema, cure: str) -> Iterator[None]:
    """Wraps the conversion of rows to a table.

    :param what: says that they do not fit, for the error text.
    :raises DamagedInputError: they do not fit.
    """
    import pyarrow as pa

    try:
        yield
    # NotImplementedError: from a driver that cannot read what its database sends
    except (pa.ArrowException, TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise DamagedInputError(f"{what} ({', '.join(map(str, schema))}): {error}", cure) from error
