"""Parquet files that Spark reads itself, if it gives the same rows as this package's own reader.

The footers of the files tell that: the columns have exactly the declared types, no old release of Spark wrote days of
another calendar, and days and moments are within the years 1 to 9999. In doubt this package's reader is used, which
also raises the errors.

Spark asks statistics and dictionaries of files which rows a filter may have, and goes wrong there: it loses NaN, zeros
of the other sign, and moments of a file with milliseconds. So it sees no such column as it is in the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import DamagedInputError
from airflow_trident.io.arrow import Calendar, arrow_type
from airflow_trident.io.hadoop import is_hidden
from airflow_trident.io.parquet import calendar_of, is_within_years
from airflow_trident.spouts.files.formats import opened_parquet
from airflow_trident.spouts.files.read_options import ReadOptions
from airflow_trident.types import REAL_TYPES, Schema, members

if TYPE_CHECKING:
    import pyarrow as pa

_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./+@,=% -]*")
"""With other characters Spark takes a path for a pattern or a URI."""
_OPTIONS = {
    "mergeSchema": "false",
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "parquet.page.verify-checksum.enabled": "true",
}
"""Set for each reading, because with other settings of the session Spark might leave out rows, change days, or read a
page whose checksum is another."""


def rows_for_spark(reading: ReadOptions, paths: Sequence[str]) -> int | None:
    """How many rows Spark reads from these files; None if they might differ from those of :func:`read_part`, or if
    :func:`read_part` would refuse a file.

    :raises OSError: a file cannot be opened.
    """
    rows = 0
    for path in paths:
        file_rows = _rows(reading, path) if is_plain_path(path) else None
        if file_rows is None:
            return None
        rows += file_rows
    return rows


def read_in_spark(session: Any, reading: ReadOptions, paths: Sequence[str]) -> Any:
    """A lazy DataFrame with the rows of files for which :func:`rows_for_spark` gives a number."""
    return spark_reads(session, reading.read_schema, [f"file://{path}" for path in paths])


def is_plain_path(path: str) -> bool:
    """Does Spark take the path as it is, and read it?"""
    return _PLAIN_PATH.fullmatch(path) is not None and not is_hidden(path)


def spark_reads(session: Any, schema: Schema, urls: Sequence[str], options: Mapping[str, str] | None = None) -> Any:
    """A lazy DataFrame of these columns; one that a file lacks is null.

    :param options: of the file system. They may hold keys.
    """
    columns = ", ".join(f"`{field.name}` {field.type}" for field in schema)
    frame = session.read.schema(columns).options(**_OPTIONS, **(options or {})).parquet(*urls)
    if not any(field.type in REAL_TYPES for field in schema):
        return frame
    # The value itself, by an expression that Spark knows no filter of files for.
    made = (
        f"nanvl(`{field.name}`, `{field.name}`) AS `{field.name}`" if field.type in REAL_TYPES else f"`{field.name}`"
        for field in schema
    )
    return frame.selectExpr(*made)


def is_read_alike(parquet: Any, schema: Schema, *, may_lack: bool = False) -> bool:
    """Does Spark read the same values as Arrow from the columns of this file?

    :param parquet: an open `pyarrow.parquet.ParquetFile`.
    :param may_lack: may the file lack columns? Then these are null.
    """
    names = parquet.schema_arrow.names
    if calendar_of(parquet.metadata) is not Calendar.GREGORIAN:
        return False
    if not is_within_years(parquet.metadata, {field.name for field in schema}):
        return False
    types = {field.name: field.type for field in parquet.schema_arrow}
    return all(
        names.count(field.name) == 1
        and _as_spark_has_it(types[field.name]) == arrow_type(field.type)
        and not _has_real_member(field.type)
        if field.name in types
        else may_lack
        for field in schema
    )


def _rows(reading: ReadOptions, path: str) -> int | None:
    try:
        with open(path, "rb") as file, opened_parquet(reading, path, file) as parquet:
            return int(parquet.metadata.num_rows) if is_read_alike(parquet, reading.read_schema) else None
    except DamagedInputError:
        return None  # the reader will raise the error


def _has_real_member(type_text: str) -> bool:
    """Is it a struct with a real number that a filter can name?"""
    return type_text.startswith("struct<") and any(
        member.type in REAL_TYPES or _has_real_member(member.type) for member in members(type_text)
    )


def _as_spark_has_it(data_type: pa.DataType) -> Any:
    """The type that Spark reads where Arrow reads `data_type`; None if Spark may give other values than Arrow."""
    import pyarrow as pa

    if pa.types.is_dictionary(data_type):
        return _as_spark_has_it(data_type.value_type)
    if pa.types.is_large_string(data_type) or pa.types.is_string_view(data_type):
        return pa.string()
    if pa.types.is_large_binary(data_type) or pa.types.is_binary_view(data_type):
        return pa.binary()
    if pa.types.is_timestamp(data_type):
        return pa.timestamp("us", tz="UTC") if data_type.unit == "us" else None
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        return _list(_as_spark_has_it(data_type.value_type))
    if pa.types.is_map(data_type):
        return None  # Spark takes one with a key twice
    if pa.types.is_struct(data_type):
        members = [
            (data_type.field(place).name, _as_spark_has_it(data_type.field(place).type))
            for place in range(data_type.num_fields)
        ]
        return None if any(kind is None for _, kind in members) else pa.struct(members)
    return data_type


def _list(element: pa.DataType | None) -> Any:
    import pyarrow as pa

    return None if element is None else pa.list_(element)
