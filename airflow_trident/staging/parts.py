"""Writes the files of a staged batch. Plain functions of picklable arguments, so workers elsewhere can call them."""

from __future__ import annotations

import io
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import ConfigurationError
from airflow_trident.io.parquet import write_parquet
from airflow_trident.staging.manifest import Slot, StagedFile
from airflow_trident.staging.verbs import Storage

if TYPE_CHECKING:
    import pyarrow as pa

_NAME = re.compile(r"[^/\\\0]+\Z")
_PACKS_AT_MOST = 8
"""Tables of more than this many times `kept_bytes` are not packed to see whether they fit."""
_GROUP_ROWS = 1 << 17
"""The rows of a row group, if pieces are written."""


def write_part(
    storage: Storage, slot: Slot, state: str, table: pa.Table | Sequence[pa.RecordBatch], *, kept_bytes: int = 0
) -> StagedFile:
    """Writes one file of a staged batch under a name that nobody else uses; durable when its manifest is published.

    A plain function of picklable arguments, so a worker elsewhere can call it. The file counts only if its `StagedFile`
    is in the published manifest. Give at least one record batch, for the schema.

    :param kept_bytes: a file of at most this many bytes is not written; the result has its content.
    :raises StoreUnavailableError: the folder is full or its file system does not work.
    :raises ConfigurationError: the folder is not writable.
    """
    import pyarrow as pa

    whole = table if isinstance(table, pa.Table) else pa.Table.from_batches(list(table))
    relative = part_name(slot, state)
    if whole.nbytes <= _PACKS_AT_MOST * kept_bytes:
        buffer = io.BytesIO()
        write_parquet(whole, buffer)
        if (size := buffer.tell()) <= kept_bytes:
            content = buffer.getvalue()
            return StagedFile(state=state, path=relative, rows=whole.num_rows, bytes=size, content=content)
    size = storage.put(relative, lambda file: write_parquet(whole, file))
    return StagedFile(state=state, path=relative, rows=whole.num_rows, bytes=size)


def write_pieces(
    storage: Storage, slot: Slot, state: str, schema: pa.Schema, pieces: Iterable[pa.RecordBatch]
) -> StagedFile:
    """As :func:`write_part`, for rows that come piece by piece, of any schema."""
    import pyarrow.parquet as pq

    relative, rows = part_name(slot, state), 0

    def write(file: Any) -> None:
        nonlocal rows
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for table in _groups(pieces, schema):
                writer.write_table(table, row_group_size=_GROUP_ROWS)
                rows += table.num_rows

    size = storage.put(relative, write)
    return StagedFile(state=state, path=relative, rows=rows, bytes=size)


def _groups(pieces: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    import pyarrow as pa

    waiting, rows = list[Any](), 0
    for piece in pieces:
        waiting.append(piece)
        rows += piece.num_rows
        if rows >= _GROUP_ROWS:
            yield pa.Table.from_batches(waiting, schema)
            waiting, rows = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting, schema)


def part_name(slot: Slot, state: str) -> str:
    """A name that nobody else uses."""
    require_names(slot.topology, slot.incarnation, state)
    return f"{slot.path}/{state}-{uuid.uuid4().hex}.parquet"


def require_names(*names: str) -> None:
    """:raises ConfigurationError: one cannot be part of a path."""
    for name in names:
        if not _NAME.match(name) or name in (".", ".."):
            raise ConfigurationError(f"{name!r} cannot be part of a staging path", "Use letters, digits, '-' and '_'.")
