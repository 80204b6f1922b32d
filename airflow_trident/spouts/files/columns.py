"""Texts as values of the declared types, and what parsers of files give: the border of :mod:`airflow_trident.io.arrow`
behind it decides what fits. Times without a zone are UTC.

The rows of a table's Parquet file, with the columns that a spout declares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_trident.io.arrow import (
    Calendar,
    StructRule,
    arrow_schema,
    arrow_type,
    decimals_of,
    first_misfit,
    fitted,
    single,
    wide_decimal,
)
from airflow_trident.io.parquet import calendar_of, damage_as_arrow_error, parquet_file, with_all_years
from airflow_trident.io.values import UnfitValueError, shown
from airflow_trident.types import INTERVAL, REAL_TYPES, WHOLE_TYPES, Field, Schema, members, names_of

if TYPE_CHECKING:
    import pyarrow as pa

_ZONE = r"([Zz]|:[0-9.]+[+-][0-9]{2}(:?[0-9]{2})?)$"
_TIME = r"^[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?$"
_TRUE, _FALSE = ("true", "t", "1"), ("false", "f", "0")


def reading_type(type_text: str, format_name: str, *, numbers: bool = False) -> pa.DataType:
    """The type to ask a parser for: text, if the parser itself would not accept every spelling of the type, or change
    a value.

    :param numbers: numbers of csv by the parser itself: right where :func:`are_plain_numbers` says so.
    """
    import pyarrow as pa

    if type_text.startswith("array<"):
        return pa.list_(reading_type(members(type_text)[0].type, format_name))
    if type_text.startswith("struct<"):
        return pa.struct([(member.name, reading_type(member.type, format_name)) for member in members(type_text)])
    if type_text.startswith("map<"):  # see json_maps: the names in a JSON object are texts
        value = reading_type(members(type_text)[1].type, format_name)
        return pa.struct([("key", pa.list_(pa.string())), ("value", pa.list_(value))])
    if format_name == "csv" and type_text != "binary":
        if numbers and type_text in WHOLE_TYPES:
            return pa.int64()
        return arrow_type(type_text) if numbers and type_text in REAL_TYPES else pa.string()
    if type_text == INTERVAL:
        return pa.int64()
    if type_text == "float":  # the parser makes infinity of what is too large
        return pa.float64()
    if type_text.startswith("decimal"):
        return wide_decimal(arrow_type(type_text))
    return pa.string() if type_text in ("date", "time", "timestamp") else arrow_type(type_text)


def are_plain_numbers(content: bytes, read: pa.Table) -> bool:
    """Are the numbers that Arrow's parser has read those that their texts name? It also takes hexadecimal numbers,
    which it wraps, ``nan(1)``, and what is too large as infinity."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    for mark in (b"0x", b"0X"):
        if mark[1:] not in content:
            continue
        for offset in (0, 1):  # all pairs of bytes at once: `in` is eight times slower where digits are many
            pairs = np.frombuffer(content, dtype="<u2", offset=offset, count=(len(content) - offset) // 2)
            if bool((pairs == int.from_bytes(mark, "little")).any()):
                return False
    reals = (column for column in read.columns if pa.types.is_floating(column.type))
    return all(pc.all(pc.is_finite(column), min_count=0).as_py() for column in reals)


def parsed(column: pa.Array, type_text: str, *, empty_is_null: bool = False) -> pa.Array:
    """A column as a parser of text gives it for :func:`reading_type`, in the declared type.

    :param empty_is_null: is an empty text no value, where the type is not text?
    :raises UnfitValueError: a value does not fit.
    """
    return fitted(_from_parser(column, type_text, empty_is_null), type_text)


def _from_parser(column: pa.Array, type_text: str, empty_is_null: bool) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    source_type, inner = column.type, members(type_text)
    if pa.types.is_struct(source_type) and type_text.startswith("map<"):
        keys, items = column.flatten()
        made = [_elements("its keys", keys, inner[0].type, False), _elements("{}", items, inner[1].type, empty_is_null)]
        offsets = _whole_lists(keys).offsets
        return pa.MapArray.from_arrays(offsets, *made, mask=column.is_null())
    if pa.types.is_list(source_type) and type_text.startswith("array<"):
        elements = _elements("[]", column, inner[0].type, empty_is_null)
        return pa.ListArray.from_arrays(_whole_lists(column).offsets, elements, mask=column.is_null())
    if pa.types.is_struct(source_type) and type_text.startswith("struct<"):
        parts = [
            _at(f".{member.name}", part, member.type, empty_is_null)
            for member, part in zip(inner, column.flatten(), strict=True)
        ]
        return pa.StructArray.from_arrays(parts, names=[member.name for member in inner], mask=column.is_null())
    if pa.types.is_string(source_type):
        return _values_of(column, type_text, empty_is_null)
    if type_text == "float" and pa.types.is_floating(source_type):
        return single(column)
    return pc.cast(column, source_type)


def _elements(part: str, lists: pa.Array, type_text: str, empty_is_null: bool) -> pa.Array:
    import pyarrow.compute as pc

    try:
        return _at(part, pc.list_flatten(lists), type_text, empty_is_null)
    except UnfitValueError as error:
        error.position = pc.list_parent_indices(lists)[error.position].as_py()
        raise


def _at(part: str, column: pa.Array, type_text: str, empty_is_null: bool) -> pa.Array:
    try:
        return _from_parser(column, type_text, empty_is_null)
    except UnfitValueError as error:
        raise error.inside(part) from None


def _whole_lists(lists: pa.Array) -> pa.Array:
    """The same lists, no slice of others, and without elements below a null."""
    import pyarrow as pa

    return lists.take(pa.array(range(len(lists)), pa.int32()))


# ---- text --------------------------------------------------------------------------------------------------------


def from_text(texts: pa.Array, type_text: str, *, empty_is_null: bool = False) -> pa.Array:
    """Texts converted to values of a type that is not nested.

    Numbers are decimal, with a sign if need be; real ones may have an exponent, or be ``NaN`` or ``inf``. Booleans are
    ``true``, ``t`` or ``1``, and ``false``, ``f`` or ``0``, in any case; days ``2024-01-31``; times
    ``12:00:00.000001``, also without seconds; moments both, with a zone such as ``Z``, ``+02`` or ``+02:00`` if need
    be; intervals whole microseconds.

    :raises UnfitValueError: a text is no such value.
    """
    return fitted(_values_of(texts, type_text, empty_is_null), type_text)


def _values_of(texts: pa.Array, type_text: str, empty_is_null: bool) -> pa.Array:
    """As :func:`from_text`; the border has not seen them yet."""
    if type_text == "string":
        return texts
    prepared = _empty_as_null(texts) if empty_is_null else texts
    read = _reader(type_text)
    try:
        return read(prepared)
    except _arrow_errors():
        return _read_spelled(prepared, type_text, read)


def _read_spelled(texts: pa.Array, type_text: str, read: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """With spaces at both ends, plus signs, and zeros behind the microseconds."""
    import pyarrow.compute as pc

    plain = pc.utf8_trim(texts, " \t")
    if type_text == "timestamp":
        plain = pc.replace_substring(plain, "z", "Z")
    if type_text in ("time", "timestamp"):
        plain = pc.replace_substring_regex(plain, r"(:[0-9]{2}\.[0-9]{6})0+(\z|[Z+-])", r"\1\2")
    elif type_text != "date":
        plain = pc.replace_substring_regex(plain, r"\A\+([0-9.]|inf)", r"\1")
    try:
        return read(plain)
    except _arrow_errors():
        raise _no_value(texts, plain, type_text, read) from None


def _reader(type_text: str) -> Callable[[pa.Array], pa.Array]:
    """A function that raises ArrowInvalid for a text that is no value of the type."""
    if type_text == "timestamp":
        return _timestamps
    if type_text == "time":
        return _times
    if type_text == "boolean":
        return _booleans
    if type_text in WHOLE_TYPES or type_text == INTERVAL:
        return lambda texts: _whole_numbers(texts).cast(arrow_type(type_text))
    if type_text in REAL_TYPES:
        return lambda texts: _reals(texts, arrow_type(type_text))
    if type_text.startswith("decimal"):
        return lambda texts: decimals_of(texts, arrow_type(type_text))
    return lambda texts: texts.cast(arrow_type(type_text))


def _arrow_errors() -> type[Exception]:
    import pyarrow as pa

    return pa.ArrowException  # type: ignore[no-any-return]


def _no_value(
    texts: pa.Array, plain: pa.Array, type_text: str, read: Callable[[pa.Array], pa.Array]
) -> UnfitValueError:
    def fits(part: pa.Array) -> bool:
        try:
            read(part)
        except _arrow_errors():
            return False
        return True

    position = first_misfit(plain, fits)
    return UnfitValueError(shown(texts[position].as_py()), type_text, position=position)


def _whole_numbers(texts: pa.Array) -> pa.Array:
    """Arrow takes hexadecimal numbers, too, and wraps them."""
    import pyarrow as pa

    data = texts.buffers()[2]
    digits = b"" if data is None else data.to_pybytes()
    if (b"x" in digits or b"X" in digits) and _any_like(texts, "(?i)x"):
        raise pa.ArrowInvalid("no whole number")
    return texts.cast(pa.int64())


def _reals(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """Arrow makes infinity of what is too large, and takes ``nan(1)``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    reals = texts.cast(target)
    if pc.any(pc.is_inf(reals)).as_py() and _any_like(texts.filter(pc.is_inf(reals)), "[0-9]"):
        raise pa.ArrowInvalid("too large")
    if pc.any(pc.is_nan(reals)).as_py() and _any_like(texts.filter(pc.is_nan(reals)), "[(]"):
        raise pa.ArrowInvalid("no real number")
    return reals


def _any_like(texts: pa.Array, pattern: str) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())


def _booleans(texts: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    lower = pc.ascii_lower(texts)
    is_true, is_false = (pc.is_in(lower, pa.array(words)) for words in (_TRUE, _FALSE))
    if not pc.all(pc.or_(pc.or_(is_true, is_false), texts.is_null()), min_count=0).as_py():
        raise pa.ArrowInvalid("neither true nor false")
    return pc.if_else(texts.is_valid(), is_true, pa.scalar(None, pa.bool_()))


def _times(texts: pa.Array) -> pa.Array:
    """Texts as times of day. Arrow reads a time only after a date, and half of one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pc.all(pc.match_substring_regex(texts, _TIME), min_count=0).as_py():
        raise pa.ArrowInvalid("no time of day")
    days = pc.binary_join_element_wise("1970-01-01", texts, " ")
    return days.cast(pa.timestamp("us")).cast(pa.time64("us"))


def _timestamps(texts: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    has_zone = pc.match_substring_regex(texts, _ZONE)
    nothing = pa.scalar(None, pa.string())
    plain = pc.if_else(has_zone, nothing, texts).cast(pa.timestamp("us"))
    zoned = pc.if_else(has_zone, texts, nothing).cast(pa.timestamp("us", tz="UTC"))
    return pc.coalesce(zoned, pc.assume_timezone(plain, "UTC"))


def _empty_as_null(texts: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


_ROWS_AT_ONCE = 65_536


def rows_of_file(
    file: Any,
    row_schema: Schema,
    partition: Mapping[str, Any],
    named: Callable[[pa.Schema], Mapping[str, str]] | None = None,
) -> Iterator[pa.RecordBatch]:
    """A column that is neither in the file nor in `partition` is null.

    :param file: an open file; it stays open.
    :param partition: values of columns, as text, that the file does not contain; an empty one is null.
    :param named: the file's schema -> for each of its columns, by the table's name, the file's name. None: the same.
    :raises UnfitValueError: a value does not fit its column.
    :raises pyarrow.ArrowException: the file is damaged.
    :raises OSError: the storage does not give it.
    """
    rows = 0
    with damage_as_arrow_error(file):
        parquet = parquet_file(file)
        there, calendar = parquet.schema_arrow, calendar_of(parquet.metadata)
        file_names = named(there) if named else {name: name for name in there.names}
        wanted = {file_names[name]: name for name in names_of(row_schema) if name in file_names}
        parquet = with_all_years(parquet, file, wanted)
        for batch in parquet.iter_batches(_ROWS_AT_ONCE, columns=list(wanted)):
            names = [wanted[name] for name in batch.schema.names]
            yield _fitted_rows(batch.rename_columns(names), row_schema, partition, rows, calendar)
            rows += batch.num_rows


def _fitted_rows(
    batch: pa.RecordBatch, row_schema: Schema, partition: Mapping[str, Any], first_row: int, calendar: Calendar
) -> pa.RecordBatch:
    import pyarrow as pa

    columns = []
    for field in row_schema:
        try:
            columns.append(_column(batch, field, partition, calendar))
        except UnfitValueError as error:
            error.field, error.position = field.name, error.position + first_row
            raise
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(row_schema))


def _column(batch: pa.RecordBatch, field: Field, partition: Mapping[str, Any], calendar: Calendar) -> pa.Array:
    """Files that are older than a column, or than a member of a struct, lack it."""
    import pyarrow as pa

    if field.name in partition:
        texts = pa.array([partition[field.name] or None], pa.string())
        return pa.repeat(from_text(texts, field.type)[0], batch.num_rows)
    if field.name in batch.schema.names:
        return fitted(batch.column(field.name), field.type, StructRule.MAY_LACK, calendar)
    return pa.nulls(batch.num_rows, arrow_type(field.type))
