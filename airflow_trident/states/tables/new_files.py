"""Files that become a table's, and those that it has. A staged file is taken unchanged: linked, or copied by
the object store, if possible; else copied in pieces."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from airflow_trident.contracts.committed_table import KeyBounds
from airflow_trident.contracts.staged_batch import StagedPart
from airflow_trident.errors import StagingError
from airflow_trident.io.object_stores import StoredObject
from airflow_trident.io.partitioned import PartitionValues
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.staging.files import WriteTo

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """`values`: of partition columns. `nulls`: per column, if known. `entry`: its entry in the table's log."""

    path: str
    bytes: int
    values: PartitionValues
    nulls: dict[str, int]
    entry: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class OldFile:
    """A file of a table's version. `values`: of the partition columns; None: the file is partitioned otherwise.
    `entry`: its entry in the table's log. `deletes`: paths of files that delete rows of it. `bounds`: of its key
    columns, if they were asked for."""

    path: str
    bytes: int
    values: PartitionValues | None
    entry: Any
    deletes: tuple[str, ...] = ()
    bounds: KeyBounds = field(default_factory=dict)


def file_name(ticket: CommitTicket) -> str:
    """A unique name without a leading underscore: the clean-up of uncommitted files would skip that."""
    return f"trident-{ticket.txid:019d}-{ticket.attempt}-{uuid.uuid4().hex}.parquet"


def bring(
    staged: StagedPart,
    target: str | StoredObject | None,
    put: Callable[[WriteTo], object],
    size: Callable[[], int | None] | None = None,
) -> int:
    """Bring a staged file to the table's folder. On the same file system, and in the same bucket, no data pass through
    this process.

    :param target: a path; or an object, if the staged file may be copied there.
    :param put: calls what it is given with a stream that writes to the target.
    :param size: of the target in bytes, as the table sees it, where its library has settings of its own: the target may
        be in another store of the same name.
    :return: its size in bytes.
    :raises StagingError: the staged file is gone.
    """
    try:
        if isinstance(target, str):
            taken = _linked(staged, target)
        else:
            taken = _copied(staged, target) and (size is None or size() == staged.size())
        if not taken:
            with staged.open() as source:
                put(lambda file: shutil.copyfileobj(source, file, _PIECE_BYTES))
        return staged.size()
    except FileNotFoundError as error:
        raise missing(staged) from error


def putting(
    opened: Callable[[], AbstractContextManager[Any]], errors: Callable[[], AbstractContextManager[None]]
) -> Callable[[WriteTo], object]:
    """:param opened: opens a stream for writing.
    :param errors: of the table. Where its place is missing, the staged file is not.
    """

    def put(write: WriteTo) -> None:
        with errors(), opened() as file:
            write(file)

    return put


def _copied(staged: StagedPart, target: StoredObject | None) -> bool:
    """Has the object store copied it?

    :raises FileNotFoundError: the staged file is gone.
    """
    return target is not None and staged.stored is not None and staged.stored.copied_to(target)


def footer_of(staged: StagedPart) -> Any:
    """:return: `pyarrow.parquet.FileMetaData`.
    :raises StagingError: the staged file is gone.
    """
    import pyarrow.parquet as pq

    try:
        with io.BytesIO(staged.footer) if staged.footer else staged.open() as file:
            return pq.read_metadata(file)
    except FileNotFoundError as error:
        raise missing(staged) from error


def missing(staged: StagedPart) -> StagingError:
    return StagingError(
        f"the staged file {staged.path!r} is missing", "Run the commit again: the batch is emitted again."
    )


def _linked(staged: StagedPart, target: str) -> bool:
    """Is it one file under both names now?"""
    if not staged.is_local:
        return False
    with contextlib.suppress(OSError):  # two file systems, or one without links
        os.link(staged.path, target)
        return True
    return False
