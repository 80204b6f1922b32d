"""Files that become a Delta table's: a staged one as it is, linked where that can be, else copied in pieces; what the
log says of one is in its footer."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import StagingError
from airflow_trident.io.delta import DeltaPlace
from airflow_trident.protocol.records import CommitTicket

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

_PIECE_BYTES = 1 << 20
_LONGEST = 32
"""Characters of a text in statistics, as Delta itself keeps them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """`nulls`: how many each column has, if that is known. `stats`: as JSON, for the log."""

    path: str
    bytes: int
    time_ms: int
    nulls: dict[str, int]
    stats: str


def bring(
    place: DeltaPlace, files: pafs.FileSystem, ticket: CommitTicket, staged: str, columns: Collection[str]
) -> NewFile:
    """A staged file in the table's folder: no data pass this process where both are on one file system.

    :param columns: of the table.

    :raises StagingError: it is gone.
    """
    name = _name(ticket)
    try:
        local = None if "://" in place.where else os.path.join(place.where, name)
        if local is None or not _linked(staged, local):
            with open(staged, "rb") as source, files.open_output_stream(name, buffer_size=_PIECE_BYTES) as target:
                shutil.copyfileobj(source, target, _PIECE_BYTES)
        return _described(staged, name, columns)
    except FileNotFoundError as error:
        raise StagingError(
            f"the staged file {staged!r} is missing", "Run the commit again: the batch is emitted again."
        ) from error


def write_new(files: pafs.FileSystem, ticket: CommitTicket, table: pa.Table, columns: Collection[str]) -> NewFile:
    import pyarrow.parquet as pq

    name = _name(ticket)
    with files.open_output_stream(name) as file:
        pq.write_table(table, file, compression="zstd")
        size = file.tell()
    with files.open_input_file(name) as file:
        return _of_footer(pq.read_metadata(file), name, size, columns)


def _name(ticket: CommitTicket) -> str:
    """Not below a folder that begins with an underscore: vacuum, which removes what nobody committed, looks for nothing
    there."""
    return f"trident-{ticket.txid:019d}-{ticket.attempt}-{uuid.uuid4().hex}.parquet"


def _linked(source: str, target: str) -> bool:
    with contextlib.suppress(OSError):  # two file systems, or one without links
        os.link(source, target)
        return True
    return False


def _described(staged: str, name: str, columns: Collection[str]) -> NewFile:
    import pyarrow.parquet as pq

    with open(staged, "rb") as file:
        return _of_footer(pq.read_metadata(file), name, os.path.getsize(staged), columns)


def _of_footer(footer: Any, name: str, size: int, columns: Collection[str]) -> NewFile:
    """Only what means the same to every reader: NaN, times and decimals have no smallest and largest values here. And
    those only if all columns have them: delta-rs takes one that is missing for a null, and finds no row of the file."""
    nulls: dict[str, int] = {}
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for place in range(footer.num_columns):
        column = footer.schema.column(place)
        if column.path != column.name or column.max_repetition_level:
            continue  # part of another column
        parts = [group.column(place).statistics for group in groups]
        if all(part is not None and part.has_null_count for part in parts):
            nulls[column.name] = sum(part.null_count for part in parts)
        extremes = [(part.min, part.max) for part in parts if part is not None and part.has_min_max]
        if len(extremes) == len(parts) and extremes and all(_is_plain(value) for pair in extremes for value in pair):
            lowest[column.name] = _json(min(low for low, _ in extremes))
            highest[column.name] = _json(max(high for _, high in extremes))
    stats: dict[str, Any] = {"numRecords": footer.num_rows, "nullCount": nulls}
    if lowest.keys() == set(columns):
        stats |= {"minValues": lowest, "maxValues": highest}
    return NewFile(path=name, bytes=size, time_ms=time.time_ns() // 1_000_000, nulls=nulls, stats=json.dumps(stats))


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST
    return type(value) in (int, datetime.date)


def _json(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime.date) else value
