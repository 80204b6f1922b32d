"""Writes the files of a staged batch. Plain functions of picklable arguments, so workers elsewhere can call them."""

from __future__ import annotations

import io
import re
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import ConfigurationError, UserCodeError
from airflow_trident.io.arrow import require_fit
from airflow_trident.io.parquet import footer_bytes, write_parquet, write_parquet_pieces
from airflow_trident.io.values import UnfitValueError
from airflow_trident.staging.footers import handed_on
from airflow_trident.staging.manifest import Slot, StagedFile
from airflow_trident.staging.verbs import Storage

if TYPE_CHECKING:
    import pyarrow as pa

_NAME = re.compile(r"[^/\\\0]+\Z")
_UNFIT = re.compile(r"[^A-Za-z0-9_.~-]")
_LONGEST = 200
_PACKS_AT_MOST = 8
"""Tables of more than this many times `kept_bytes` are not packed to see whether they fit."""


def write_part(
    storage: Storage,
    slot: Slot,
    state: str,
    table: pa.Table | Sequence[pa.RecordBatch],
    *,
    kept_bytes: int = 0,
    by_reference: bool = False,
    is_fitted: bool = False,
) -> StagedFile:
    """Writes one file of a staged batch under a name that nobody else uses; durable when its manifest is published.

    A plain function of picklable arguments, so a worker elsewhere can call it. The file counts only if its `StagedFile`
    is in the published manifest. Give at least one record batch, for the schema.

    :param kept_bytes: a file of at most this many bytes is not written; the result has its content.
    :param by_reference: it may become a table's file; the result has its footer.
    :param is_fitted: all values came over the border of types in this process; others, which the JVM made, are looked
        at here.
    :raises UserCodeError: a value is none of its type. Commits never meet such values.
    :raises StoreUnavailableError: the folder is full or its file system does not work.
    :raises ConfigurationError: the folder is not writable.
    """
    import pyarrow as pa

    whole = table if isinstance(table, pa.Table) else pa.Table.from_batches(list(table))
    try:
        if not is_fitted:
            require_fit(whole)
    except UnfitValueError as error:
        raise UserCodeError(
            f"the rows for the state {state!r}: {error}",
            "Let the transform, query or function that makes the field give values of its declared type.",
            fields=error.field,
            txid=slot.txid,
        ) from error
    relative = part_name(slot, state)
    if whole.nbytes <= _PACKS_AT_MOST * kept_bytes:
        buffer = io.BytesIO()
        write_parquet(whole, buffer)
        if (size := buffer.tell()) <= kept_bytes:
            content = buffer.getvalue()
            return StagedFile(state=state, path=relative, rows=whole.num_rows, bytes=size, content=content)
    footers = list[Any]()
    size = storage.put(relative, lambda file: write_parquet(whole, file, metadata_collector=footers))
    footer = handed_on(footer_bytes(footers[-1])) if by_reference else b""
    return StagedFile(state=state, path=relative, rows=whole.num_rows, bytes=size, footer=footer)


def write_pieces(
    storage: Storage, slot: Slot, state: str, schema: pa.Schema, pieces: Iterable[pa.RecordBatch]
) -> StagedFile:
    """As :func:`write_part`, for rows of a table that come piece by piece, of any schema."""
    relative, footers = part_name(slot, state), list[Any]()
    size = storage.put(
        relative, lambda file: write_parquet_pieces(pieces, schema, file, metadata_collector=footers) and None
    )
    footer = footers[-1]
    kept = handed_on(footer_bytes(footer))
    return StagedFile(state=state, path=relative, rows=footer.num_rows, bytes=size, footer=kept)


def part_name(slot: Slot, state: str) -> str:
    """A name that nobody else uses. What it begins with is for people; the manifest says whose file it is. So a stream
    that is handed on may have any label, also one that no store takes in a file name.

    :raises ConfigurationError: topology or incarnation cannot be part of a path.
    """
    require_names(slot.topology, slot.incarnation)
    return f"{slot.path}/{_UNFIT.sub('_', state)[:_LONGEST]}-{uuid.uuid4().hex}.parquet"


def require_names(*names: str) -> None:
    """:raises ConfigurationError: one cannot be part of a path."""
    for name in names:
        if not _NAME.match(name) or name in (".", ".."):
            raise ConfigurationError(f"{name!r} cannot be part of a staging path", "Use letters, digits, '-' and '_'.")
