"""Entries of a Delta table's log for a file, made from the file's footer."""

from __future__ import annotations

import contextlib
import datetime
import json
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import ConfigurationError
from airflow_trident.io.arrow import Calendar, require_fit
from airflow_trident.io.delta import EXTRA
from airflow_trident.io.extras import require_extra
from airflow_trident.io.parquet import calendar_of, null_counts, parquet_file
from airflow_trident.states.delta.deletion_vectors import require_whole_files
from airflow_trident.states.tables.new_files import NewFile, OldFile

if TYPE_CHECKING:
    import pyarrow as pa

_PLAIN = re.compile(r"(?:[\w=/.-]|%25)*", re.ASCII)
_BOUNDED = (str, int, datetime.date)
"""Types whose bounds in the log are exact. Those of decimals may have been rounded."""
_TRUNCATED = datetime.timedelta(milliseconds=1)
"""The log has times in milliseconds, cut off."""
_LONGEST = 32
"""Longest text in statistics, in characters, as in Delta itself."""


def described(footer: Any, path: str, size: int, columns: Collection[str], partition: Mapping[str, Any]) -> NewFile:
    """
    :param footer: `pyarrow.parquet.FileMetaData`.
    :param columns: of the table.
    :param partition: the value of each partition column.
    """
    transaction: Any = require_extra("deltalake.transaction", EXTRA)
    nulls = null_counts(footer)
    stats = json.dumps(_statistics(footer, nulls, set(columns) - set(partition)))
    entry = transaction.AddAction(path, size, texts(partition), _now_ms(), True, stats)
    return NewFile(path=path, bytes=size, values=tuple(partition.values()), nulls=nulls, entry=entry)


def old_files(table: Any, keys: Sequence[str] = ()) -> list[OldFile]:
    """The files of the version that a `deltalake.DeltaTable` is at.

    :param keys: the columns whose bounds are wanted.
    :raises ConfigurationError: not all of their rows count.
    """
    import pyarrow as pa

    require_whole_files(table)
    names = table.metadata().partition_columns
    actions = pa.table(table.get_add_actions(flatten=True))
    # Statistics of other columns may be values that Python does not have.
    parts = [f"{part}.{name}" for part, columns in _parts(names, keys) for name in columns]
    found = actions.select(["path", "size_bytes", *(one for one in parts if one in actions.column_names)]).to_pylist()
    return [
        OldFile(
            path=one["path"],
            bytes=one["size_bytes"],
            values=tuple(one[f"partition.{name}"] for name in names),
            entry={"partition": {name: one[f"partition.{name}"] for name in names}},
            bounds=dict(_bounds(one, keys)),
        )
        for one in found
    ]


def _parts(partition_by: Sequence[str], keys: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    yield "partition", partition_by
    yield "min", keys
    yield "max", keys


def _bounds(action: Mapping[str, Any], keys: Sequence[str]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for name in keys:
        if (value := action.get(f"partition.{name}")) is not None:
            yield name, (value, value)
            continue
        low, high = action.get(f"min.{name}"), action.get(f"max.{name}")
        if isinstance(low, datetime.datetime) and isinstance(high, datetime.datetime):
            yield name, (low, high + _TRUNCATED)
        elif type(low) is type(high) and type(low) in _BOUNDED:
            yield name, (low, high)


def rows_of(source: Any, file: OldFile, table: Any, columns: Sequence[str] | None) -> pa.Table:
    """:param source: the file's content.
    :param table: the `deltalake.DeltaTable`; files of other writers lack its partition columns.
    :param columns: None: all of the table's.
    """
    import pyarrow as pa

    schema = pa.schema(table.schema().to_arrow())
    wanted = pa.schema([schema.field(name) for name in (schema.names if columns is None else columns)])
    return pa.Table.from_batches(pieces_of(source, file, schema, table.metadata().partition_columns, columns), wanted)


def pieces_of(
    source: Any, file: OldFile, schema: pa.Schema, partition_by: Sequence[str], columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """As :func:`rows_of`, piece by piece.

    :param schema: all columns of the table.
    :raises UnfitValueError: a day or a moment was counted in another calendar.
    """
    import pyarrow as pa

    wanted = [schema.field(name) for name in (schema.names if columns is None else columns)]
    values = dict(zip(partition_by, file.values or (), strict=True))
    read = parquet_file(source)
    calendar = calendar_of(read.metadata)
    names = [one.name for one in wanted if one.name in read.schema_arrow.names and one.name not in values]

    def whole(rows: pa.RecordBatch | None, many: int) -> pa.RecordBatch:
        found = [
            rows.column(one.name).cast(one.type)
            if rows is not None and one.name in names
            else pa.repeat(pa.scalar(values.get(one.name), one.type), many)
            for one in wanted
        ]
        return pa.record_batch(found, schema=pa.schema(wanted))

    if not names:
        yield whole(None, read.metadata.num_rows)
        return
    for rows in read.iter_batches(columns=names):
        if calendar is not Calendar.GREGORIAN:  # of a file that an old Spark wrote
            require_fit(pa.Table.from_batches([rows]), calendar)
        yield whole(rows, rows.num_rows)


def removed(file: OldFile) -> Any:
    """A remove action. Paths are as in the log. The remove action encodes them once more; if the result differed, the
    file would stay in the table.

    :raises ConfigurationError: the path would differ.
    """
    transaction: Any = require_extra("deltalake.transaction", EXTRA)
    if not _PLAIN.fullmatch(file.path):
        raise ConfigurationError(
            f"the file {file.path!r}, whose rows are to be replaced, has a name that cannot be removed safely",
            "Delete its rows by the program that wrote it, and run the commit again.",
        )
    path = file.path.replace("%25", "%")
    return transaction.RemoveAction(path, True, _now_ms(), file.bytes, texts(file.entry.get("partition") or {}))


def texts(partition: Mapping[str, Any]) -> dict[str, str | None]:
    """Values as texts of the log."""
    return {name: None if value is None else str(_json(value)) for name, value in partition.items()}


def _now_ms() -> int:
    """For the log's own times; nothing depends on them."""
    return time.time_ns() // 1_000_000


def _statistics(footer: Any, nulls: dict[str, int], columns: Collection[str]) -> dict[str, Any]:
    """Only values with one meaning for every reader: NaN, times and decimals get no minimum and maximum. And only if
    all columns have them: delta-rs takes a missing one for a null and finds no row of the file."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for place in range(footer.num_columns):
        column = footer.schema.column(place)
        if column.path not in columns or column.max_repetition_level:
            continue  # part of another column
        parts = [group.column(place).statistics for group in groups]
        extremes = list(_extremes(parts))
        if len(extremes) == len(parts) and extremes and all(_is_plain(value) for pair in extremes for value in pair):
            lowest[column.name] = _json(min(low for low, _ in extremes))
            highest[column.name] = _json(max(high for _, high in extremes))
    stats: dict[str, Any] = {"numRecords": footer.num_rows, "nullCount": nulls}
    if lowest.keys() == set(columns):
        stats |= {"minValues": lowest, "maxValues": highest}
    return stats


def _extremes(parts: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    for part in parts:
        with contextlib.suppress(OverflowError, ValueError):  # a day or a moment that Python does not have
            if part is not None and part.has_min_max:
                yield part.min, part.max


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST
    return type(value) in (int, datetime.date)


def _json(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, datetime.date) else value
