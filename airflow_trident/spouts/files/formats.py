"""Reads a file, or a part of it, as record batches of the declared fields. Damage is an error, never fewer rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from airflow_trident.io.arrow import StructRule, fitted_batch
from airflow_trident.io.parquet import calendar_of, parquet_file, with_all_years
from airflow_trident.spouts.files.csv_files import read_csv
from airflow_trident.spouts.files.json_files import read_json
from airflow_trident.spouts.files.read_options import FileFormat, FilePart, ReadOptions
from airflow_trident.spouts.files.reading import TYPE_CURE, damage, read_text, require_columns
from airflow_trident.spouts.files.statistics import groups_that_may_hold
from airflow_trident.types import names_of

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 1 << 16


def read_part(reading: ReadOptions, part: FilePart, file: BinaryIO) -> Iterator[pa.RecordBatch]:
    """Read a part of a file.

    :param file: open, at any position; it stays open.
    :raises DamagedInputError: the content does not have the format, or not the declared columns.
    :raises OSError: the file cannot be read.
    """
    read = {
        FileFormat.TEXT: read_text,
        FileFormat.CSV: read_csv,
        FileFormat.JSON: read_json,
        FileFormat.PARQUET: _read_parquet,
    }[reading.format]
    for batch in read(reading, part, file):
        for begin in range(0, batch.num_rows, BATCH_ROWS):
            yield batch.slice(begin, BATCH_ROWS)


@contextmanager
def opened_parquet(reading: ReadOptions, path: str, file: BinaryIO) -> Iterator[Any]:
    """A `pyarrow.parquet.ParquetFile` that has the declared columns.

    :raises DamagedInputError, OSError: like :func:`read_part`.
    """
    with damage(path), parquet_file(file) as parquet:
        require_columns(reading, parquet.schema_arrow.names, path)
        yield parquet


def _read_parquet(reading: ReadOptions, part: FilePart, file: BinaryIO) -> Iterator[pa.RecordBatch]:
    subject, structs = f"the file {part.path!r}", StructRule.MAY_HAVE_MORE if reading.ignore_extra else StructRule.EXACT
    with opened_parquet(reading, part.path, file) as parquet:
        every = list(range(parquet.metadata.num_row_groups))
        groups, rows = groups_that_may_hold(parquet.metadata, reading.schema, reading.filters), 0
        if groups != every:
            subject = f"{subject}, in row groups {groups}"
        columns = list(names_of(reading.read_schema))
        wide = with_all_years(parquet, file, columns, groups)
        for batch in wide.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns) if groups else ():
            yield fitted_batch(
                batch,
                reading.read_schema,
                subject,
                first_row=rows,
                structs=structs,
                calendar=calendar_of(parquet.metadata),
                cure=TYPE_CURE,
            )
            rows += batch.num_rows
