"""Converts columns of files to the declared types: nothing is lost silently, times without a zone are UTC."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_trident.io.arrow import arrow_type
from airflow_trident.types import INTERVAL, members

if TYPE_CHECKING:
    import pyarrow as pa

_ZONE = r"([Zz]|[+-][0-9]{2}:?[0-9]{2})$"


def reading_type(type_text: str, format_name: str) -> pa.DataType:
    """The type to ask a parser for: text, if the parser itself would not accept every spelling of the type."""
    import pyarrow as pa

    if type_text.startswith("array<"):
        return pa.list_(reading_type(members(type_text)[0].type, format_name))
    if type_text.startswith("struct<"):
        return pa.struct([(member.name, reading_type(member.type, format_name)) for member in members(type_text)])
    if type_text.startswith("map<"):  # see json_maps: the names in a JSON object are texts
        value = reading_type(members(type_text)[1].type, format_name)
        return pa.struct([("key", pa.list_(pa.string())), ("value", pa.list_(value))])
    if type_text == INTERVAL:
        return pa.int64()
    by_text = ("date", "time") if format_name == "json" else ("timestamp",)
    return pa.string() if type_text in by_text else arrow_type(type_text)


def fitted(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """The column, converted to the type `target`.

    :raises pyarrow.ArrowException: a value does not fit.
    """
    import pyarrow as pa

    if column.type == target:
        return column
    if pa.types.is_timestamp(target):
        return _timestamps(column, target)
    if pa.types.is_dictionary(column.type):
        return fitted(column.cast(column.type.value_type), target)
    if _is_by_parts(column.type, target):
        if pa.types.is_time(target):
            return _times(column, target)
        return pa.chunked_array([_by_parts(chunk, target) for chunk in column.chunks], target)
    _require_kind(column.type, target)
    return column.cast(target)


def from_text(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """Texts converted to values of a type.

    :raises pyarrow.ArrowException: a text is no such value.
    """
    import pyarrow as pa

    if pa.types.is_timestamp(target) or pa.types.is_time(target):
        return fitted(pa.chunked_array([texts]), target).combine_chunks()
    plain = texts.cast(pa.int64()) if pa.types.is_duration(target) else texts
    return plain.cast(target)


def _is_by_parts(given: pa.DataType, target: pa.DataType) -> bool:
    """Does the type contain parts that Arrow does not cast: lists that become a map, or a text that becomes a time?"""
    import pyarrow as pa

    if pa.types.is_map(target):
        parts = [given.field(place) for place in range(given.num_fields)] if pa.types.is_struct(given) else []
        return [part.name for part in parts if pa.types.is_list(part.type)] == ["key", "value"]
    if pa.types.is_list(target) and pa.types.is_list(given):
        return _is_by_parts(given.value_type, target.value_type)
    if pa.types.is_struct(target) and pa.types.is_struct(given) and given.num_fields == target.num_fields:
        pairs = [(given.field(place).type, target.field(place).type) for place in range(target.num_fields)]
        return any(_is_by_parts(*pair) for pair in pairs)
    return bool(pa.types.is_time(target) and pa.types.is_string(given))


def _by_parts(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Builds lists, structs and maps anew from fitted parts. The array must be no slice of a larger one."""
    import pyarrow as pa

    def part(inner: pa.Array, wanted: pa.DataType) -> pa.Array:
        return fitted(pa.chunked_array([inner]), wanted).combine_chunks()

    nulls = array.is_null()
    if pa.types.is_map(target):
        names, items = array.field("key"), array.field("value")
        keys, values = from_text(names.values, target.key_type), part(items.values, target.item_type)
        _require_different(names.value_parent_indices(), keys)
        return pa.MapArray.from_arrays(names.offsets, keys, values, type=target, mask=nulls)
    if pa.types.is_list(target):
        values = part(array.values, target.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, type=target, mask=nulls)
    fields = [target.field(place) for place in range(target.num_fields)]
    parts = [part(array.field(place), field.type) for place, field in enumerate(fields)]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=nulls)


def _require_different(rows: pa.Array, keys: pa.Array) -> None:
    """Raises if a map has a key twice: different texts, such as 1 and 01, may be the same number."""
    import pyarrow as pa

    if pa.table({"row": rows, "key": keys}).group_by(["row", "key"]).aggregate([]).num_rows != len(keys):
        raise pa.ArrowInvalid("a map has a key twice")


def _times(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Texts as times of day. Arrow reads a time only after a date."""
    import pyarrow as pa
    import pyarrow.compute as pc

    days = pc.binary_join_element_wise("1970-01-01", column, " ")
    return days.cast(pa.timestamp("us")).cast(target)


def _require_kind(given: pa.DataType, target: pa.DataType) -> None:
    """Raises for a column of another kind. Arrow would cast numbers to texts and to times, and back; here that is a
    mistake in the declaration."""
    import pyarrow as pa

    is_text = pa.types.is_string(given) or pa.types.is_large_string(given) or pa.types.is_string_view(given)
    wants_text = pa.types.is_string(target)
    dates_as_text = is_text and pa.types.is_date(target)
    intervals_as_numbers = pa.types.is_integer(given) and pa.types.is_duration(target)
    if pa.types.is_null(given) or dates_as_text or intervals_as_numbers:
        return
    of_time = (pa.types.is_date, pa.types.is_time, pa.types.is_timestamp, pa.types.is_duration)
    if is_text != wants_text or any(kind(given) != kind(target) for kind in of_time):
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
    """An empty csv value is null if the type is not text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)
