"""Files of an Iceberg table: their locations and their entries in manifests."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_trident.io.extras import require_extra
from airflow_trident.io.iceberg import EXTRA
from airflow_trident.io.parquet import null_counts
from airflow_trident.io.partitioned import PartitionValues
from airflow_trident.states.tables.new_files import NewFile, OldFile

if TYPE_CHECKING:
    import pyarrow as pa

_FIRST_DAY = date(1970, 1, 1).toordinal()
_FIRST_MOMENT = datetime(1970, 1, 1, tzinfo=UTC)
_BOUNDED: dict[str, Callable[[Any], Any]] = {
    "string": str,
    "int": int,
    "long": int,
    "boolean": bool,
    "date": lambda days: date.fromordinal(days + _FIRST_DAY),
    "timestamptz": lambda micros: _FIRST_MOMENT + timedelta(microseconds=micros),
}
"""Type -> a value of it, as Python has it, from what pyiceberg makes of its bytes."""


def local_path(location: str) -> str | None:
    """The path, if the file is on this machine's file system; its folder is made."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        return None
    path = parts.path if parts.scheme else location
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


def described(metadata: Any, footer: Any, location: str, size: int, values: PartitionValues) -> NewFile:
    """
    :param metadata: of the table (`pyiceberg.table.metadata.TableMetadata`), whose columns the file has by name.
    :param footer: `pyarrow.parquet.FileMetaData`.
    """
    module: Any = require_extra("pyiceberg.io.pyarrow", EXTRA)
    manifest: Any = require_extra("pyiceberg.manifest", EXTRA)
    types: Any = require_extra("pyiceberg.types", EXTRA)
    schema = metadata.schema()
    # A footer does not count NaN, and its bounds ignore NaN: a reader that trusts them would lose rows with NaN.
    plan = module.compute_statistics_plan(schema, metadata.properties)
    none = module.MetricsMode(module.MetricModeTypes.NONE)
    real = {number for number, one in plan.items() if isinstance(one.iceberg_type, types.FloatType | types.DoubleType)}
    said = module.data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns={number: replace(one, mode=none) if number in real else one for number, one in plan.items()},
        parquet_column_mapping=module.parquet_path_to_id_mapping(schema),
    ).to_serialized_dict()
    nulls = null_counts(footer)
    for number in real:
        if (count := nulls.get(plan[number].column_name)) is not None:
            said["value_counts"][number] = footer.num_rows
            said["null_value_counts"][number] = count
    entry = manifest.DataFile.from_args(
        content=manifest.DataFileContent.DATA,
        file_path=location,
        file_format=manifest.FileFormat.PARQUET,
        partition=record_of(values),
        file_size_in_bytes=size,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **said,
    )
    return NewFile(path=location, bytes=size, values=values, nulls=nulls, entry=entry)


def old_files(table: Any, keys: Sequence[str] = ()) -> list[OldFile]:
    """The files of the snapshot that a `pyiceberg.table.Table` was loaded with. `entry` is its `FileScanTask`.

    :param keys: the columns whose bounds are wanted.
    """
    metadata = table.metadata
    columns = [metadata.schema().find_field(name) for name in keys]
    dates = [str(one.field_type) == "date" for one in metadata.spec().partition_type(metadata.schema()).fields]
    return [
        OldFile(
            path=task.file.file_path,
            bytes=task.file.file_size_in_bytes,
            values=_values(task.file.partition._data, dates) if task.file.spec_id == metadata.default_spec_id else None,
            entry=task,
            deletes=tuple(sorted(one.file_path for one in task.delete_files)),
            bounds=dict(_bounds(task.file, columns)),
        )
        for task in table.scan().plan_files()
    ]


def _bounds(file: Any, columns: Sequence[Any]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """:param file: `pyiceberg.manifest.DataFile`. Its bounds of texts may be cut, and are then lower and higher.
    :param columns: `pyiceberg.types.NestedField`, of the table as it is now.
    """
    conversions: Any = require_extra("pyiceberg.conversions", EXTRA)
    for column in columns:
        lows, highs = file.lower_bounds or {}, file.upper_bounds or {}
        if column.field_id in lows and column.field_id in highs and str(column.field_type) in _BOUNDED:
            made = _BOUNDED[str(column.field_type)]
            with contextlib.suppress(ValueError, OverflowError, struct.error):  # of an older type, or no date of Python
                low, high = (conversions.from_bytes(column.field_type, one[column.field_id]) for one in (lows, highs))
                yield column.name, (made(low), made(high))


def _values(partition: Sequence[Any], dates: Sequence[bool]) -> PartitionValues:
    return tuple(
        date.fromordinal(value + _FIRST_DAY) if is_date and value is not None else value
        for value, is_date in zip(partition, dates, strict=True)
    )


def rows_of(table: Any, file: OldFile, columns: Sequence[str] | None) -> pa.Table:
    """Without the rows in delete files. Columns carry their ids, so renamed ones are found."""
    module: Any = require_extra("pyiceberg.io.pyarrow", EXTRA)
    expressions: Any = require_extra("pyiceberg.expressions", EXTRA)
    schema = table.metadata.schema()
    schema = schema if columns is None else schema.select(*columns)
    scan = module.ArrowScan(table.metadata, table.io, schema, expressions.AlwaysTrue())
    rows: pa.Table = scan.to_table(tasks=[file.entry]).cast(module.schema_to_pyarrow(schema))
    return rows


def record_of(values: PartitionValues) -> Any:
    """The partition of a file; dates are days since 1970."""
    typedef: Any = require_extra("pyiceberg.typedef", EXTRA)
    return typedef.Record(*(value.toordinal() - _FIRST_DAY if isinstance(value, date) else value for value in values))


def judging_each_manifest_alone(overwrite: Any) -> Any:
    """The same overwrite, with an evaluator for each manifest.

    An overwrite of pyiceberg 0.12 reads the manifests in threads that share one evaluator, which keeps the bounds that
    it looks at in a field. A thread judged another's manifest, and the overwrite missed files that are there ("Missing
    required files to delete").

    :param overwrite: `pyiceberg.table.update.snapshot._OverwriteFiles`.
    """
    shared = overwrite._build_manifest_evaluator

    def fresh(spec_id: int) -> Callable[[Any], bool]:
        return lambda manifest: bool(shared(spec_id)(manifest))

    overwrite._build_manifest_evaluator = fresh
    return overwrite
