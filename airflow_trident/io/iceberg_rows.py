"""Rows of an Iceberg table's data file, piece by piece: pyiceberg's own scan has a whole file in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_trident.io.arrow import Calendar, require_fit
from airflow_trident.io.extras import require_extra
from airflow_trident.io.iceberg import EXTRA
from airflow_trident.io.parquet import calendar_of

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_ROWS = 1 << 16
_BUFFER_BYTES = 8 << 20
"""The least that is read of a column at a time; a column of a row group is not read whole."""


def pieces_of(metadata: Any, io: Any, task: Any, wanted: Any) -> Iterator[pa.RecordBatch]:
    """The rows of a file that are not deleted, in record batches with the columns `wanted`: a column is found by its
    id, also under another name.

    :param metadata: `pyiceberg.table.metadata.TableMetadata`.
    :param io: `pyiceberg.io.FileIO`.
    :param task: `pyiceberg.table.FileScanTask` of a Parquet file, with its delete files.
    :param wanted: `pyiceberg.schema.Schema`.
    :raises UnfitValueError: a day or a moment was counted in another calendar.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    reading: Any = require_extra("pyiceberg.io.pyarrow", EXTRA)
    expressions: Any = require_extra("pyiceberg.expressions", EXTRA)
    pruned: Any = require_extra("pyiceberg.schema", EXTRA).prune_columns
    deletes = reading._read_all_delete_files(io, [task]).get(task.file.file_path)
    ids = reading.ArrowScan(metadata, io, wanted, expressions.AlwaysTrue())._projected_field_ids
    with (
        io.new_input(task.file.file_path).open() as source,
        pq.ParquetFile(source, buffer_size=_BUFFER_BYTES, page_checksum_verification=True) as file,
    ):
        is_old = metadata.format_version <= 2  # without nanoseconds
        found = reading.pyarrow_to_schema(
            file.schema_arrow,
            metadata.name_mapping(),
            downcast_ns_timestamp_to_us=is_old,
            format_version=metadata.format_version,
        )
        spec = metadata.specs().get(task.file.spec_id)
        same = reading._get_column_projection_values(task.file, wanted, metadata.schema(), spec, found.field_ids)
        given = pruned(found, ids, select_full_types=False)
        first = 0
        calendar = calendar_of(file.metadata)
        for piece in file.iter_batches(PIECE_ROWS, columns=[column.name for column in given.columns]):
            if calendar is not Calendar.GREGORIAN:  # of files that Spark wrote, and that were added to the table
                require_fit(pa.Table.from_batches([piece]), calendar)
            rows = piece
            if deletes:
                left = reading._combine_positional_deletes(deletes, first, first + piece.num_rows)
                rows = piece.take(left)
            first += piece.num_rows
            if rows.num_rows:
                yield reading._to_requested_schema(
                    wanted,
                    given,
                    rows,
                    downcast_ns_timestamp_to_us=is_old,
                    projected_missing_fields=same,
                    allow_timestamp_tz_mismatch=True,
                )
