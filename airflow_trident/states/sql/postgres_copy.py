"""Values in PostgreSQL: a batch as COPY text, and rows back as values.

PostgreSQL's text has no zero character: U+0000 is stored as U+0001 U+0001, and U+0001 as U+0001 U+0002, which keeps
their order. Arrays, maps and structs are JSON; inside it bytes are hexadecimal, dates and times ISO 8601, intervals
microseconds, NaN and infinities text.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from airflow_trident.io.arrow import python_values
from airflow_trident.operations.expr.conversions import microseconds_of
from airflow_trident.states.core.text_values import Coder, json_coder, json_decoder, optional, same
from airflow_trident.types import INTERVAL, REAL_TYPES, Schema, is_nested

if TYPE_CHECKING:
    import pyarrow as pa

_PIECE_ROWS = 20_000
_COLUMN_TYPES = {
    "string": 'text COLLATE "C"',
    "long": "bigint",
    "int": "integer",
    **dict.fromkeys(("short", "byte"), "smallint"),
    "double": "double precision",
    "float": "real",
    "boolean": "boolean",
    "binary": "bytea",
    "date": "date",
    "time": "time",
    "timestamp": "timestamptz",
    INTERVAL: "interval",
}


def column_type(type_text: str) -> str:
    """The column type of a field."""
    if type_text.startswith("decimal"):
        return type_text.replace("decimal", "numeric")
    return "jsonb" if is_nested(type_text) else _COLUMN_TYPES[type_text]


# ---- to the server ---------------------------------------------------------------------------------------------


def copy_text(pieces: Iterable[pa.RecordBatch], schema: Schema, keys: int) -> Iterator[memoryview]:
    """The rows as input of COPY ... FROM STDIN, in pieces. Columns stay in Arrow, except bytes and nested values.

    :param keys: the number of key columns; in them -0.0 becomes 0.0.
    """
    import pyarrow.compute as pc

    for batch in (
        piece.slice(begin, _PIECE_ROWS) for piece in pieces for begin in range(0, piece.num_rows, _PIECE_ROWS)
    ):
        columns = [
            _texts(batch.column(field.name), field.type, is_key=place < keys) for place, field in enumerate(schema)
        ]
        rows = pc.binary_join_element_wise(*columns, "\t", null_handling="replace", null_replacement="\\N")
        lines = pc.binary_join_element_wise(rows, "", "\n")
        size = int(pc.sum(pc.binary_length(lines)).as_py() or 0)
        if size:
            yield memoryview(lines.buffers()[2])[:size]


def _texts(column: pa.Array, type_text: str, *, is_key: bool) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if type_text == "binary":
        found = (None if part is None else f"\\\\x{part.hex()}" for part in column.to_pylist())
        return pa.array(found, pa.string())
    if is_nested(type_text):
        encode = json_coder(type_text, _json_encoder)
        values = python_values(column)
        found = (None if part is None else json.dumps(encode(part), ensure_ascii=False) for part in values)
        return _escaped(pa.array(found, pa.string()))
    if type_text == "string":
        for character, stored in (("\x01", "\x01\x02"), ("\0", "\x01\x01")):
            column = pc.replace_substring(column, character, stored)
        return _escaped(column)
    if is_key and type_text in REAL_TYPES:
        column = pc.add(column, pa.scalar(0.0, column.type))
    text = column.cast(pa.string())
    return pc.binary_join_element_wise(text, "microseconds", " ") if type_text == INTERVAL else text


def _escaped(column: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    for character, written in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        column = pc.replace_substring(column, character, written)
    return column


# ---- one value -------------------------------------------------------------------------------------------------


def hide_zero(text: str) -> str:
    return text.replace("\x01", "\x01\x02").replace("\0", "\x01\x01") if "\x01" in text or "\0" in text else text


def show_zero(text: str) -> str:
    return text.replace("\x01\x01", "\0").replace("\x01\x02", "\x01") if "\x01" in text else text


def parameter(type_text: str) -> Coder:
    """Converts from Python to a parameter of the driver, for keys."""
    if type_text == "string":
        return hide_zero
    return _utc if type_text == "timestamp" else same


def decoder(type_text: str) -> Coder:
    """Converts the driver's value to the value that Arrow gives for the type."""
    if is_nested(type_text):
        return optional(json_coder(type_text, _json_decoder, decodes=True))
    kinds: dict[str, Coder] = {"string": show_zero, "timestamp": _utc}
    return optional(kinds[type_text]) if type_text in kinds else same


def _json_encoder(type_text: str) -> Coder:
    """For a part of a nested value."""
    if type_text.startswith("decimal"):
        return lambda value: format(value, "f")
    kinds: dict[str, Coder] = {
        "string": hide_zero,
        "binary": bytes.hex,
        "double": lambda value: value if math.isfinite(value) else str(value),
        "float": lambda value: value if math.isfinite(value) else str(value),
        "date": lambda value: value.isoformat(),
        "time": lambda value: value.isoformat(),
        "timestamp": lambda value: _utc(value).isoformat(),
        INTERVAL: microseconds_of,
    }
    return kinds.get(type_text, same)


def _json_decoder(type_text: str) -> Coder:
    return show_zero if type_text == "string" else json_decoder(type_text)


def _utc(value: datetime.datetime) -> datetime.datetime:
    """Timestamps without a zone are UTC."""
    return value.replace(tzinfo=datetime.UTC) if value.tzinfo is None else value.astimezone(datetime.UTC)
