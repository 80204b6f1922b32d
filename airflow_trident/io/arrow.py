"""Schemas as Arrow, and the border of declared types for columns of Arrow. :mod:`airflow_trident.io.values` has that of
Python's values. Arrow is imported when a function is called, never when a DAG is parsed.

Rows in groups, by Arrow.

Rows of a partitioned table: a file has one value of each partition column.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import DamagedInputError
from airflow_trident.io.values import UnfitValueError, coerce_column, exact_decimal, shown, unlike_members
from airflow_trident.types import INTERVAL, LONGEST_INTERVAL, Field, Schema, members

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
    """Tuples in the order of the schema's fields, as sources and stores give them.

    :raises UnfitValueError: a value does not fit its field.
    :raises ValueError: a row has another number of values.
    """
    import pyarrow as pa

    columns = columns_of(rows, len(schema))
    return pa.Table.from_arrays(
        [_of_field(field, partial(_array, values, field.type)) for field, values in zip(schema, columns, strict=True)],
        schema=arrow_schema(schema),
    )


def _of_field(field: Field, make: Callable[[], pa.Array]) -> pa.Array:
    try:
        return make()
    except UnfitValueError as error:
        error.field = field.name
        raise


_CHECKED_BY_ARROW = {"timestamp": {datetime.datetime}, "time": {datetime.time}, INTERVAL: {datetime.timedelta}}
"""Values of exactly these classes Arrow converts without a loss, or refuses. So it does decimals of so few digits."""
_DECIMAL_DIGITS = 38


def _array(values: Sequence[Any], type_text: str) -> pa.Array:
    import pyarrow as pa

    wanted = arrow_type(type_text)
    by_arrow = _CHECKED_BY_ARROW.get(type_text, {Decimal} if pa.types.is_decimal(wanted) else None)
    unlike = _has_zones(values, type_text) or (by_arrow == {Decimal} and _has_long_fractions(values))
    if set(map(type, values)) - {type(None)} == by_arrow and not unlike:
        with suppress(pa.ArrowException, OverflowError):  # then it is found out which one does not fit
            return fitted(pa.array(values, type=wanted), type_text)
    return fitted(pa.array(coerce_column(values, type_text, of_source=True), type=wanted), type_text)


def _has_zones(values: Sequence[Any], type_text: str) -> bool:
    """Arrow drops the zone of a time of day."""
    return type_text == "time" and any(getattr(value, "tzinfo", None) is not None for value in values)


def _has_long_fractions(values: Sequence[Any]) -> bool:
    """Arrow takes 0.00 for a decimal of more digits than it has itself."""
    exponents = (value.as_tuple().exponent for value in values if type(value) is Decimal)
    return any(isinstance(exponent, int) and exponent < -_DECIMAL_DIGITS for exponent in exponents)


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
    selected = pa.concat_tables([table.slice(0, 0), *_taken_in_order(table, wanted[order])])
    if (order[:-1] < order[1:]).all():
        return selected
    if len(wanted) > 1 and max(column.nbytes for column in selected.columns) > most_bytes:
        half = len(wanted) // 2
        return pa.concat_tables([taken(table, some, most_bytes=most_bytes) for some in (wanted[:half], wanted[half:])])
    return selected.take(pa.array(np.argsort(order)))


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


# ---- the border of declared types --------------------------------------------------------------------------------


class StructRule(StrEnum):
    """What members of a struct may differ from the declared ones."""

    EXACT = "exact"
    MAY_LACK = "may lack"
    """Missing ones are null: of a table whose files are older than the member."""
    MAY_HAVE_MORE = "may have more"
    """Undeclared ones are left out."""


class Calendar(StrEnum):
    """How a writer counted days and moments."""

    GREGORIAN = "Gregorian"
    """The calendar of today, at all times: as Arrow, Python and Spark since 3.0."""
    HYBRID = "hybrid"
    """That of older Spark and Hive: the Julian calendar before 1582, and times of the place before 1900."""


@dataclass(frozen=True, slots=True)
class _How:
    structs: StructRule
    calendar: Calendar


def fitted(
    column: pa.Array,
    type_text: str,
    structs: StructRule = StructRule.EXACT,
    calendar: Calendar = Calendar.GREGORIAN,
) -> pa.Array:
    """The column in the declared type: each value is what it was, at every depth. A conversion must lead back to the
    same value; texts are no numbers, numbers no texts and no booleans. A time without a zone is UTC; a whole number is
    an interval in microseconds. What the years 1 to 9999 do not hold is refused, and a map with a key twice.

    Every source, function and stage comes by here, whatever its format is.

    :raises UnfitValueError: a value does not fit.
    """
    target, how = arrow_type(type_text), _How(structs, calendar)
    try:
        return _fit(column, target, how)
    except _Misfit as error:
        raise _unfit(column, target, how, error, type_text) from None


def _unfit(column: pa.Array, target: pa.DataType, how: _How, misfit: _Misfit, declared: str) -> UnfitValueError:
    """The error for the first value of a column that does not fit."""
    if not _fits(column.slice(0, 0), target, how):
        unfit = UnfitValueError(misfit.kind, declared, misfit.why, misfit.path)
        unfit.is_of_type = True
        return unfit
    position = first_misfit(column, lambda part: _fits(part, target, how))
    try:
        _fit(column.slice(position, 1), target, how)
    except _Misfit as error:
        misfit = error
    return UnfitValueError(misfit.value(), declared, misfit.why, misfit.path, position)


_TYPE_CURE = "Declare the type that the values have, convert them before they come here, or restore the source."


def fitted_batch(
    batch: pa.RecordBatch,
    schema: Schema,
    subject: str,
    *,
    first_row: int = 0,
    structs: StructRule = StructRule.EXACT,
    calendar: Calendar = Calendar.GREGORIAN,
    cure: str = _TYPE_CURE,
) -> pa.RecordBatch:
    """The columns of the schema, each as :func:`fitted` gives it.

    :param subject: the source, for the error text: a file, a partition, a stream.
    :param first_row: the place of the first row in it.
    :raises DamagedInputError: a value does not fit; it names source, row, field and value.
    """
    import pyarrow as pa

    columns = []
    for field in schema:
        try:
            columns.append(_of_field(field, partial(fitted, batch.column(field.name), field.type, structs, calendar)))
        except UnfitValueError as error:
            error.position += first_row
            raise DamagedInputError(f"{subject}: {error}", cure) from error
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(schema))


def require_fit(table: pa.Table, calendar: Calendar = Calendar.GREGORIAN) -> None:
    """Checks rows that have their types already, such as those that a transform made.

    :raises UnfitValueError: a value is none of its type; `field` and `position` say where it is.
    """
    how = _How(StructRule.EXACT, calendar)
    for name, column in zip(table.column_names, table.columns, strict=True):
        first_row = 0
        for chunk in column.chunks:
            try:
                _fit(chunk, chunk.type, how)
            except _Misfit as error:
                unfit = _unfit(chunk, chunk.type, how, error, str(chunk.type))
                unfit.field, unfit.position = name, unfit.position + first_row
                raise unfit from None
            first_row += len(chunk)


def single(column: pa.Array) -> pa.Array:
    """Real numbers as the nearest ones of single precision: that is meant where Python, or a text, has only doubles.

    :raises UnfitValueError: one would be infinite.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_float64(column.type):
        return column
    rounded = column.cast(pa.float32())
    grown = pc.and_not(pc.is_inf(rounded), pc.is_inf(column)).fill_null(False)
    if pc.any(grown).as_py():
        position = pc.index(grown, True).as_py()
        raise UnfitValueError(shown(column[position].as_py()), "float", "it is too large", position=position)
    return rounded


class _Misfit(Exception):
    """:param values: those of which at least one does not fit; `fits`: says it of a part of them."""

    def __init__(self, values: pa.Array, why: str = "", fits: Callable[[pa.Array], bool] | None = None) -> None:
        super().__init__(why)
        self.why, self.path = why, ""
        self._values, self._fits = values, fits

    @property
    def kind(self) -> str:
        return f"values of type {self._values.type}"

    def value(self) -> str:
        """The first value that does not fit, as text."""
        place = 0 if self._fits is None else first_misfit(self._values, self._fits)
        return _shown_value(self._values.slice(place, 1))


def _shown_value(part: pa.Array) -> str:
    import pyarrow as pa

    if not len(part):
        return "a value"
    with suppress(ValueError, OverflowError):  # bytes that are no text, or a day or moment that Python does not have
        if not pa.types.is_time(part.type):  # Python's begin again after a day
            return shown(part[0].as_py())
    if pa.types.is_string(part.type):
        return shown(part.cast(pa.binary())[0].as_py())
    with suppress(pa.ArrowException):
        text = str(part.cast(pa.string())[0])
        if "out of range" not in text and not pa.types.is_time(part.type):
            return text
    return f"{part[0].value} ({part.type})"


def first_misfit(values: pa.Array, fits: Callable[[pa.Array], bool]) -> int:
    """The place of the first value that does not fit, by halving: the usual case, in which all fit, costs nothing."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        if fits(values.slice(low, middle - low)):
            low = middle
        else:
            high = middle
    return low


def _fits(column: pa.Array, target: pa.DataType, how: _How) -> bool:
    try:
        _fit(column, target, how)
    except _Misfit:
        return False
    return True


@contextmanager
def _inside(part: str) -> Iterator[None]:
    try:
        yield
    except _Misfit as error:
        error.path = part + error.path
        raise


def _fit(column: pa.Array, target: pa.DataType, how: _How) -> pa.Array:
    """
    :raises _Misfit: a value does not fit.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    types, source_type = pa.types, column.type
    if isinstance(column, pa.ExtensionArray):
        return _fit(column.storage, target, how)
    if types.is_dictionary(source_type):
        return _fit(column.dictionary_decode(), target, how)
    if types.is_run_end_encoded(source_type):
        return _fit(pc.run_end_decode(column), target, how)
    if types.is_null(source_type):
        return pa.nulls(len(column), target)
    nested = {"list": types.is_list, "map": types.is_map, "struct": types.is_struct}
    for shape, is_shape in nested.items():
        if is_shape(target):
            if _shape(source_type) != shape:
                raise _Misfit(column)
            return _NESTED[shape](column, target, how)
    return _simple(column, target, how.calendar)


def _shape(data_type: pa.DataType) -> str:
    from pyarrow import types

    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
    if any(is_list(data_type) for is_list in lists):
        return "list"
    return "map" if types.is_map(data_type) else "struct" if types.is_struct(data_type) else ""


def _list(column: pa.Array, target: pa.DataType, how: _How) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    elements = pc.list_flatten(column)
    with _inside("[]"):
        values = _fit(elements, target.value_type, how)
    if values is elements and column.type == target:
        return column
    return pa.ListArray.from_arrays(_offsets(pc.list_value_length(column)), values, type=target, mask=column.is_null())


def _offsets(lengths: pa.Array) -> pa.Array:
    """Where the values of each row begin and end."""
    import numpy as np
    import pyarrow as pa

    ends = np.cumsum(lengths.fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int32)
    return pa.array(np.concatenate([np.zeros(1, np.int32), ends]))


def _map(column: pa.Array, target: pa.DataType, how: _How) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    source_type = column.type
    pairs = column.cast(pa.list_(pa.struct([("key", source_type.key_type), ("value", source_type.item_type)])))
    keys, items = pc.list_flatten(pairs).flatten()
    with _inside("its keys"):
        new_keys = _fit(keys, target.key_type, how)
    with _inside("{}"):
        new_items = _fit(items, target.item_type, how)

    def have_keys(part: pa.Array) -> bool:
        return _fits(part, target, how)

    if new_keys.null_count:
        raise _Misfit(column, "a key is null", have_keys)
    named = pa.table({"row": pc.list_parent_indices(pairs), "key": new_keys})
    if named.group_by(["row", "key"]).aggregate([]).num_rows != len(new_keys):
        raise _Misfit(column, "it has a key twice", have_keys)
    if new_keys is keys and new_items is items and source_type == target:
        return column
    lengths = pc.list_value_length(pairs)
    return pa.MapArray.from_arrays(_offsets(lengths), new_keys, new_items, type=target, mask=column.is_null())


def _struct(column: pa.Array, target: pa.DataType, how: _How) -> pa.Array:
    import pyarrow as pa

    source_names, wanted = [column.type.names, target.names]
    rules = {"may_lack": how.structs is StructRule.MAY_LACK, "may_have_more": how.structs is StructRule.MAY_HAVE_MORE}
    if why := unlike_members(source_names, wanted, **rules):
        raise _Misfit(column, why)
    parts = dict(zip(source_names, column.flatten(), strict=True))
    fits = []
    for member in target:
        part = parts.get(member.name)
        with _inside(f".{member.name}"):
            fits.append(
                pa.nulls(len(column), member.type) if part is None else _fit(part, member.type, how),
            )
    if column.type == target and all(fit is parts[name] for fit, name in zip(fits, wanted, strict=True)):
        return column
    return pa.StructArray.from_arrays(fits, fields=list(target), mask=column.is_null())


_NESTED = {"list": _list, "map": _map, "struct": _struct}


# ---- simple types ------------------------------------------------------------------------------------------------

_EPOCH = datetime.date(1970, 1, 1)
_MICROSECONDS = {"s": Fraction(10**6), "ms": Fraction(1000), "us": Fraction(1), "ns": Fraction(1, 1000)}
_DAY = Fraction(86_400 * 10**6)
_LONGEST_INTERVAL = LONGEST_INTERVAL // datetime.timedelta(microseconds=1)
_FIRST = {Calendar.GREGORIAN: datetime.date.min, Calendar.HYBRID: datetime.date(1582, 10, 15)}
_FIRST_MOMENT = {Calendar.GREGORIAN: datetime.date.min, Calendar.HYBRID: datetime.date(1900, 1, 1)}
_REBASE = (
    "its writer counted it in the Julian calendar or in the time of its place: write the file anew by Spark with "
    "spark.sql.parquet.datetimeRebaseModeInWrite and int96RebaseModeInWrite CORRECTED"
)


def _simple(column: pa.Array, target: pa.DataType, calendar: Calendar) -> pa.Array:
    import pyarrow as pa

    def fits(part: pa.Array) -> bool:
        try:
            _require_valid(part if part.type == target else _converted(part, target), calendar)
        except pa.ArrowException:
            return False
        return True

    kinds = _kind(column.type), _kind(target)
    if kinds[0] != kinds[1] and not (kinds[1] == "interval" and pa.types.is_integer(column.type)):
        raise _Misfit(column)
    try:
        converted = column if column.type == target else _converted(column, target)
        _require_valid(converted, calendar)
    except pa.ArrowException as error:
        raise _Misfit(column, str(error), fits) from error
    return converted


def _kind(data_type: pa.DataType) -> str:
    """No value of one kind is a value of another."""
    from pyarrow import types

    is_text = (types.is_string, types.is_large_string, types.is_string_view)
    is_binary = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)
    kinds = {
        "number": (types.is_integer, types.is_floating, types.is_decimal),
        "text": is_text,
        "binary": is_binary,
        "boolean": (types.is_boolean,),
        "date": (types.is_date,),
        "timestamp": (types.is_timestamp,),
        "time": (types.is_time,),
        "interval": (types.is_duration,),
    }
    return next((kind for kind, tests in kinds.items() if any(test(data_type) for test in tests)), str(data_type))


def _converted(column: pa.Array, target: pa.DataType) -> pa.Array:
    """
    :raises pyarrow.ArrowException: a value would become another one.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    types, source_type = pa.types, column.type
    if types.is_float16(source_type):  # Arrow compares none of them
        single = column.cast(pa.float32())
        return single if target == single.type else _converted(single, target)
    if types.is_timestamp(source_type):
        return (column if source_type.tz else pc.assume_timezone(column, "UTC")).cast(target)
    if types.is_decimal(target) and types.is_integer(source_type):
        return column.cast(pa.decimal256(20 + target.scale, target.scale)).cast(target)
    if types.is_decimal(target) and types.is_decimal(source_type):
        return _rescaled(column, target)
    if types.is_floating(source_type) and types.is_decimal(target):
        return _by_text(_without_gaps(column.cast(pa.float64())), target)
    if types.is_floating(target) and not types.is_integer(source_type):
        # Arrow's safe cast rounds, and overflows to infinity
        converted = column.cast(target) if types.is_floating(source_type) else _without_gaps(_by_text(column, target))
        back = converted.cast(source_type) if types.is_floating(source_type) else _by_text(converted, source_type)
        _require_equal(column, back, target)
        return converted
    return column.cast(target)


def _rescaled(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Decimals with other digits. Arrow wraps a decimal that outgrows its type, so what does not fit is refused before.

    :raises pyarrow.ArrowInvalid: one does not fit.
    """
    import pyarrow as pa

    source_type = column.type
    if target.scale > source_type.scale:
        digits = max(1, target.precision - target.scale + source_type.scale)
        if digits < source_type.precision:
            column = column.cast(pa.decimal256(digits, source_type.scale))
        column = column.cast(wide_decimal(target))
    return column.cast(target)


def _by_text(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Real numbers and decimals by their shortest text: Arrow's own cast is often the neighbour of the nearest one."""
    import pyarrow as pa

    texts = column.cast(pa.string())
    return decimals_of(texts, target) if pa.types.is_decimal(target) else texts.cast(target)


def wide_decimal(target: pa.DataType) -> pa.DataType:
    """The type to read a text of at most 38 digits in. In a narrower one Arrow wraps what does not fit."""
    import pyarrow as pa

    return pa.decimal256(76, target.scale)


def decimals_of(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """Texts as decimals. Arrow never sees those with an exponent or with many digits. It takes 1.5e-222 for another
    number, and much smaller ones end the process.

    :raises pyarrow.ArrowInvalid: a text is none of these decimals.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    is_long = pc.greater(pc.binary_length(texts), _DECIMAL_DIGITS)
    doubtful = pc.or_(pc.match_substring(texts, "e", ignore_case=True), is_long).fill_null(False)
    if not pc.any(doubtful).as_py():
        return texts.cast(wide_decimal(target)).cast(target)
    try:
        exact = [exact_decimal(text, target.precision, target.scale) for text in texts.filter(doubtful).to_pylist()]
    except (ValueError, ArithmeticError) as error:
        raise pa.ArrowInvalid("it would be another number") from error
    plain = pc.if_else(doubtful, pa.scalar(None, pa.string()), texts).cast(wide_decimal(target)).cast(target)
    return pc.replace_with_mask(plain, doubtful, pa.array(exact, target))


def _without_gaps(column: pa.Array) -> pa.Array:
    """Real numbers between which there is no whole one: the shortest text of larger ones is that of another number.

    :raises pyarrow.ArrowInvalid: there is a larger one.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    limit = 2.0**53 if pa.types.is_float64(column.type) else 2.0**24
    if pc.any(pc.greater(pc.abs(column), limit)).as_py():
        raise pa.ArrowInvalid("real numbers of this size are not exact")
    return column


def _require_equal(column: pa.Array, back: pa.Array, target: pa.DataType) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    changed = pc.not_equal(column, back)
    if pa.types.is_floating(column.type):
        changed = pc.and_not(changed, pc.is_nan(column))
    if pc.any(changed).as_py():
        raise pa.ArrowInvalid(f"as {target} it would be another number")


def _require_valid(column: pa.Array, calendar: Calendar) -> None:
    """
    :raises pyarrow.ArrowInvalid: a text is no UTF-8, a decimal has too many digits, a time is not within a day, a
        moment not within the years 1 to 9999, its calendar is another one there, or an interval is too long.
    """
    from pyarrow import types

    kind = column.type
    if types.is_string(kind) or types.is_decimal(kind) or types.is_time(kind):
        column.validate(full=True)
    elif types.is_date(kind):
        unit = _DAY if types.is_date32(kind) else _MICROSECONDS["ms"]
        _require_within(column, unit, _FIRST[calendar])
    elif types.is_timestamp(kind):
        _require_within(column, _MICROSECONDS[kind.unit], _FIRST_MOMENT[calendar])
    elif types.is_duration(kind):
        _require_interval(column)


def _require_within(column: pa.Array, unit: Fraction, first: datetime.date) -> None:
    """
    :param unit: of the values, in microseconds.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    bounds = pc.min_max(column)
    if not bounds["min"].is_valid:
        return
    low, high = (bounds[name].value * unit / _DAY for name in ("min", "max"))
    begin, end = ((day - _EPOCH).days for day in (first, datetime.date.max))
    if low < begin and low >= (datetime.date.min - _EPOCH).days:
        raise pa.ArrowInvalid(_REBASE)
    if low < begin or high >= end + 1:
        raise pa.ArrowInvalid("it is outside of the years 1 to 9999")


def _require_interval(column: pa.Array) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    bounds = pc.min_max(column.cast(pa.int64()))
    values = [bounds[name].as_py() for name in ("min", "max") if bounds[name].is_valid]
    if any(abs(value) * _MICROSECONDS[column.type.unit] > _LONGEST_INTERVAL for value in values):
        raise pa.ArrowInvalid(f"an interval has at most {LONGEST_INTERVAL.days} days")


@contextmanager
def fitting(message: str, schema: Schema, cure: str) -> Iterator[None]:
    """Wraps the conversion of rows to a table.

    :param message: says that they do not fit, for the error text.
    :raises DamagedInputError: they do not fit.
    """
    import pyarrow as pa

    try:
        yield
    # NotImplementedError: from a driver that cannot read what its database sends
    except (pa.ArrowException, TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise DamagedInputError(f"{message} ({', '.join(map(str, schema))}): {error}", cure) from error


def grouped(table: pa.Table, keys: Sequence[str], verbs: Sequence[tuple[str, str]]) -> list[pa.ChunkedArray]:
    """One row for each group, in an order that Arrow chooses: the columns of the keys, then one for each verb.

    Arrow names a result ``{field}_{verb}``, which may be the name of another field. So fields have numbers here.

    :param verbs: field and function of Arrow.
    """
    names = list(dict.fromkeys((*keys, *(name for name, _ in verbs))))
    number = {name: str(place) for place, name in enumerate(names)}
    by = [number[key] for key in keys]
    aggregations = [(number[name], verb) for name, verb in verbs]
    numbered = table.select(names).rename_columns(list(number.values()))
    groups = numbered.group_by(by, use_threads=False).aggregate(aggregations)
    return [groups.column(name) for name in (*by, *(f"{name}_{verb}" for name, verb in aggregations))]


PartitionValues = tuple[Any, ...]
"""One value per partition column, as a Python value; None for null."""


def split_by(table: pa.Table, names: Sequence[str]) -> Iterator[tuple[PartitionValues, pa.Table]]:
    """The rows of each partition; the whole table if there are no partitions. No rows give nothing."""

    if not table.num_rows:
        return
    if not names:
        yield (), table
        return
    if table.select(names).group_by(list(names)).aggregate([]).num_rows > 1:
        table = table.sort_by([(name, "ascending") for name in names])
    columns = [table.column(name) for name in names]
    begins = [0, *_changes(columns)]
    for first, end in zip(begins, [*begins[1:], table.num_rows], strict=True):
        yield tuple(column[first].as_py() for column in columns), table.slice(first, end - first)


def _changes(columns: Sequence[pa.ChunkedArray]) -> list[int]:
    """The places where a row has another value in one of the columns than the row before."""
    import pyarrow.compute as pc

    differs = None
    for column in columns:
        now, before = column.slice(1), column.slice(0, len(column) - 1)
        is_other = pc.fill_null(pc.not_equal(now, before), False)
        is_other = pc.or_(is_other, pc.xor(pc.is_null(now), pc.is_null(before)))
        differs = is_other if differs is None else pc.or_(differs, is_other)
    return [] if differs is None else [place + 1 for place in pc.indices_nonzero(differs).to_pylist()]


def values_in(footer: Any, names: Sequence[str]) -> PartitionValues | None:
    """The common value of all rows of a Parquet file in each of these columns, if its footer shows that there is one.

    :param footer: `pyarrow.parquet.FileMetaData`.
    """
    common_values = [_only(footer, name) for name in names]
    if None in common_values:
        return None
    return tuple(common[0] for common in common_values if common is not None)


def _only(footer: Any, name: str) -> tuple[Any] | None:
    places = [place for place in range(footer.num_columns) if footer.schema.column(place).path == name]
    values: set[Any] = set()
    for number in range(footer.num_row_groups if places else 0):
        part = footer.row_group(number).column(places[0]).statistics
        if part is None or not part.has_null_count:
            return None
        if part.null_count == footer.row_group(number).num_rows:
            values.add(None)
        elif part.null_count or not part.has_min_max or part.min != part.max:
            return None
        else:
            values.add(part.min)
    return (values.pop(),) if len(values) == 1 else None
