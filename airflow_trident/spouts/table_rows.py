"""The rows of a table's Parquet file, with the columns that a spout declares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_trident.io.arrow import Calendar, StructRule, arrow_schema, arrow_type, fitted
from airflow_trident.io.parquet import calendar_of, damage_as_arrow_error, parquet_file
from airflow_trident.io.values import UnfitValueError
from airflow_trident.spouts.files.columns import from_text
from airflow_trident.types import Field, Schema, names_of

if TYPE_CHECKING:
    import pyarrow as pa

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
        own = named(there) if named else {name: name for name in there.names}
        wanted = {own[name]: name for name in names_of(row_schema) if name in own}
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
