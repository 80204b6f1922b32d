"""Compaction of a table by workers: which of its files are written anew, and their remaining rows as files in the
staging folder. No row passes through the process that commits them."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from airflow_trident.contracts.committed_table import CommittedTable
from airflow_trident.errors import ConfigurationError, StagingError
from airflow_trident.staging.files import make_folder
from airflow_trident.staging.manifest import Slot, StagedFile
from airflow_trident.staging.parts import write_pieces
from airflow_trident.staging.storage import absolute_root, storage_at
from airflow_trident.staging.verbs import Storage
from airflow_trident.types import Schema

if TYPE_CHECKING:
    import pyarrow as pa

_SMALL_BYTES = 32 << 20
"""Two smaller files of a partition are merged."""
_FILE_BYTES = 128 << 20
"""About so large a file is that several become, in bytes of the storage."""
_LEFT_S = 7 * 24 * 3600
"""What a killed upkeep has left is removed when it is as old as this."""
_UPKEEP = "upkeep-"


@dataclass(frozen=True, kw_only=True)
class CompactionWork:
    """What counts in a version of a table.

    `keys`: of each only the row of the highest transaction counts; without keys all rows do. `deleted`: a boolean
    column; no row of a key counts if it is true in the latest one, and `below` is None or above the transaction of that
    row. `bytes` and `partitions`: of the table's files, in their order; files with the same text may be merged.
    """

    topology: str
    state: str
    table: CommittedTable
    keys: Schema
    deleted: str | None
    below: int | None
    bytes: tuple[int, ...]
    partitions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CompactedFile:
    """`path`: absolute. `place`: number of one of the files whose rows it has."""

    path: str
    place: int


@dataclass(frozen=True, kw_only=True)
class Compacted:
    """`gone`: numbers of the files that are replaced."""

    gone: tuple[int, ...]
    files: tuple[CompactedFile, ...]


Compact: TypeAlias = Callable[[CompactionWork], Compacted]


def small_files(bytes_: Sequence[int], partitions: Sequence[str]) -> set[int]:
    """Numbers of the files that are small and not alone in their partition."""
    small: dict[str, list[int]] = {}
    for place, size in enumerate(bytes_):
        if size < _SMALL_BYTES:
            small.setdefault(partitions[place], []).append(place)
    return {place for places in small.values() if len(places) > 1 for place in places}


def files_to_rewrite(
    bytes_: Sequence[int], partitions: Sequence[str], rows: Sequence[int], counting: Sequence[int]
) -> list[list[int]]:
    """Numbers of the files with rows that do not count, and of small ones that can be merged: those together whose rows
    become a file.

    :param rows: of each file.
    :param counting: how many of them count.
    """
    merged = small_files(bytes_, partitions)
    chosen = [place for place in range(len(bytes_)) if place in merged or counting[place] < rows[place]]
    together: dict[str, list[int]] = {}
    found, filled = list[list[int]](), dict[str, float]()
    for place in chosen:
        part = partitions[place]
        share = bytes_[place] * counting[place] / max(rows[place], 1)
        if part not in together or filled[part] + share > _FILE_BYTES:
            together[part] = []
            filled[part] = 0.0
            found.append(together[part])
        together[part].append(place)
        filled[part] += share
    return found


@dataclass(frozen=True, kw_only=True)
class WriteTogether:
    """Writes rows of files of `table` as one file. Picklable, for workers."""

    storage: Storage
    slot: Slot
    state: str
    table: CommittedTable

    def __call__(self, rows: Mapping[int, pa.Array | None]) -> StagedFile:
        """
        :param rows: number of a file -> the numbers of its rows that count; None: all.
        """
        return write_pieces(self.storage, self.slot, self.state, self.table.schema(), self._pieces(rows))

    def _pieces(self, rows: Mapping[int, pa.Array | None]) -> Iterator[pa.RecordBatch]:
        for place, numbers in rows.items():
            pieces = self.table.pieces(place)
            yield from pieces if numbers is None else _only(pieces, numbers)


def _only(pieces: Iterable[pa.RecordBatch], numbers: pa.Array) -> Iterator[pa.RecordBatch]:
    """:param numbers: of rows, ascending."""
    import numpy as np

    wanted = numbers.to_numpy(zero_copy_only=False)
    first = 0
    for piece in pieces:
        low, high = np.searchsorted(wanted, [first, first + piece.num_rows])
        if low < high:
            yield piece.take(wanted[low:high] - first)
        first += piece.num_rows


@contextmanager
def upkeep_folder(root: str, topology: str) -> Iterator[tuple[Storage, Slot]]:
    """A folder for the files of one upkeep, removed afterwards; so is what killed ones left a week ago.

    :raises ConfigurationError: `root` is no folder.
    :raises OSError: it cannot be made.
    """
    storage = storage_at(root)
    if not storage.is_local:
        raise ConfigurationError(
            f"a compaction by Spark leaves its files in a folder, and the staging area is {root!r}",
            "Name a folder that the task and executors see (staging_dir=, --staging-dir), or compact without Spark.",
        )
    slot = Slot(topology=topology, incarnation=f"{_UPKEEP}{uuid.uuid4().hex}", txid=0, attempt=0)
    above = os.path.join(absolute_root(root), topology)
    folder = os.path.join(above, slot.incarnation)
    make_folder(os.path.join(absolute_root(root), slot.path))
    try:
        _remove_left(above, folder)
        yield storage, slot
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left(above: str, mine: str) -> None:
    """Ages are of the clock that gave `mine` its time."""
    now = os.stat(mine).st_mtime
    with os.scandir(above) as found:
        upkeeps = [one.path for one in found if one.name.startswith(_UPKEEP)]
    for path in upkeeps:
        with suppress(FileNotFoundError):  # its upkeep has ended, and removed it
            if os.stat(path).st_mtime < now - _LEFT_S:
                shutil.rmtree(path, ignore_errors=True)


def require_whole(work: CompactionWork, files: Sequence[StagedFile], counting: int) -> None:
    """:raises StagingError: the files have not as many rows as count."""
    found = sum(one.rows for one in files)
    if found != counting:
        raise StagingError(
            f"the compaction of state {work.state!r} wrote {found:,} rows, and {counting:,} count",
            "Nothing was changed. Run it again.",
        )
