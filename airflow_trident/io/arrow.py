"""Schemas as Arrow. Arrow is imported when a function is called, never when a DAG is parsed."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import DamagedInputError
from airflow_trident.types import INTERVAL, Field, Schema, has_times, members

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

    if INTERVAL in field.type or has_times(field.type):
        _require_times(values, field.type)
    return pa.array(values, type=arrow_type(field.type))


def _require_times(values: Iterable[Any], type_text: str) -> None:
    """
    :raises pyarrow.ArrowInvalid: a value that Arrow would accept wrongly: a number, or a time whose zone it would drop.
    """
    import pyarrow as pa

    wanted = {"time": datetime.time, INTERVAL: datetime.timedelta}.get(type_text)
    given = [value for value in values if value is not None]
    if wanted is not None:
        for value in given:
            if not isinstance(value, wanted) or getattr(value, "tzinfo", None) is not None:
                raise pa.ArrowInvalid(f"{value!r} is no {type_text}")
    elif type_text.startswith("array<"):
        _require_times(chain.from_iterable(given), members(type_text)[0].type)
    elif type_text.startswith("map<"):
        for place, member in enumerate(members(type_text)):
            pairs = (pair for value in given for pair in (value.items() if isinstance(value, Mapping) else value))
            _require_times([pair[place] for pair in pairs], member.type)
    else:
        for place, member in enumerate(members(type_text)):
            parts = (value.get(member.name) if isinstance(value, Mapping) else value[place] for value in given)
            _require_times(list(parts), member.type)


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
