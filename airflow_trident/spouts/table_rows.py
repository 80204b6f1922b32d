"""The rows of a table's Parquet file, with the columns that a spout declares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_trident.io.arrow import arrow_schema
from airflow_trident.io.parquet import damage_as_arrow_error, parquet_file
from airflow_trident.spouts.files.columns import fitted, from_text
from airflow_trident.types import Schema, names_of

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
    :raises pyarrow.ArrowException: it cannot be read as these columns, or it is damaged.
    :raises OSError: the storage does not give it.
    """
    with damage_as_arrow_error(file):
        parquet = parquet_file(file)
        there = parquet.schema_arrow
        own = named(there) if named else {name: name for name in there.names}
        wanted = {own[name]: name for name in names_of(row_schema) if name in own}
        for batch in parquet.iter_batches(_ROWS_AT_ONCE, columns=list(wanted)):
            names = [wanted[name] for name in batch.schema.names]
            yield _fitted_rows(batch.rename_columns(names), row_schema, partition)


def _fitted_rows(batch: pa.RecordBatch, row_schema: Schema, partition: Mapping[str, Any]) -> pa.RecordBatch:
    import pyarrow as pa

    schema, columns = arrow_schema(row_schema), []
    for field in schema:
        if field.name in partition:
            texts = pa.array([partition[field.name] or None] * batch.num_rows, pa.string())
            columns.append(pa.chunked_array([from_text(texts, field.type)]))
        elif field.name in batch.schema.names:
            columns.append(fitted(pa.chunked_array([batch.column(field.name)]), field.type))
        else:
            columns.append(pa.chunked_array([pa.nulls(batch.num_rows, field.type)]))
    arrays = [column.combine_chunks() for column in columns]
    arrays = [each.chunk(0) if isinstance(each, pa.ChunkedArray) else each for each in arrays]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
