"""Columns of files as columns of the declared types: nothing is lost silently, times without a zone are UTC."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_trident.arrow import arrow_type
from airflow_trident.types import members

if TYPE_CHECKING:
    import pyarrow as pa

_ZONE = r"([Zz]|[+-][0-9]{2}:?[0-9]{2})$"


def reading_type(type_text: str, format_name: str) -> pa.DataType:
    """What a parser is asked for: text, where it would not take every spelling of the type itself."""
    import pyarrow as pa

    if type_text.startswith("array<"):
        return pa.list_(reading_type(members(type_text)[0].type, format_name))
    if type_text.startswith("struct<"):
        return pa.struct([(member.name, reading_type(member.type, format_name)) for member in members(type_text)])
    by_text = "date" if format_name == "json" else "timestamp"
    return pa.string() if type_text == by_text else arrow_type(type_text)


def fitted(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """
    :raises pyarrow.ArrowException: a value does not fit.
    """
    import pyarrow as pa

    if column.type == target:
        return column
    if pa.types.is_timestamp(target):
        return _timestamps(column, target)
    if pa.types.is_dictionary(column.type):
        return fitted(column.cast(column.type.value_type), target)
    _require_kind(column.type, target)
    return column.cast(target)


def _require_kind(given: pa.DataType, target: pa.DataType) -> None:
    """Arrow casts numbers to text and back; a file whose columns are of another kind is a mistake."""
    import pyarrow as pa

    is_text = pa.types.is_string(given) or pa.types.is_large_string(given) or pa.types.is_string_view(given)
    wants_text = pa.types.is_string(target)
    dates_as_text = is_text and pa.types.is_date(target)
    if not pa.types.is_null(given) and is_text != wants_text and not dates_as_text:
        raise pa.ArrowInvalid(f"it is of type {given}")


def _timestamps(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_timestamp(column.type):
        zoned = column if column.type.tz else pc.assume_timezone(column, "UTC")
        return zoned.cast(target)
    if not (pa.types.is_string(column.type) or pa.types.is_null(column.type)):
        raise pa.ArrowInvalid(f"it is of type {column.type}")
    text = column.cast(pa.string())
    has_zone = pc.match_substring_regex(text, _ZONE)
    nothing = pa.scalar(None, pa.string())
    plain = pc.if_else(has_zone, nothing, _empty_as_null(text)).cast(pa.timestamp("us"))
    zoned = pc.if_else(has_zone, text, nothing).cast(target)
    return pc.coalesce(zoned, pc.assume_timezone(plain, "UTC"))


def _empty_as_null(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """An empty csv value is null where the type is not text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)
