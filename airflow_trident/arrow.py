"""Schemas as Arrow. Arrow is imported when a function is called, never when a DAG is parsed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_trident.types import Field, Schema

if TYPE_CHECKING:
    import pyarrow as pa

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)\Z")


def arrow_type(type_text: str) -> pa.DataType:
    """The Arrow type of a normalised DDL type. Timestamps are UTC with microseconds, as Spark's."""
    import pyarrow as pa

    if match := _DECIMAL.match(type_text):
        return pa.decimal128(int(match[1]), int(match[2]))
    if type_text.startswith("array<"):
        return pa.list_(arrow_type(type_text[6:-1]))
    simple = {
        "string": pa.string(),
        "long": pa.int64(),
        "int": pa.int32(),
        "double": pa.float64(),
        "float": pa.float32(),
        "boolean": pa.bool_(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
    return simple[type_text]


def arrow_schema(schema: Schema) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([pa.field(field.name, arrow_type(field.type)) for field in schema])


def rows_to_table(schema: Schema, rows: list[tuple[object, ...]]) -> pa.Table:
    """Tuples in the order of the schema's fields.

    :raises pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError: a value does not fit its field.
    """
    import pyarrow as pa

    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [_array(field, list(column)) for field, column in zip(schema, columns, strict=True)]
    return pa.Table.from_arrays(arrays, schema=arrow_schema(schema))


def _array(field: Field, values: list[object]) -> pa.Array:
    import pyarrow as pa

    return pa.array(values, type=arrow_type(field.type))


def table_to_rows(table: pa.Table) -> list[tuple[object, ...]]:
    columns = [column.to_pylist() for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows
