"""Staged batches in pieces, or as files, for states that need not hold all of a batch in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from airflow_trident.contracts.committed_table import ReplacedFiles
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.types import Schema

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_trident.io.object_stores import StoredObject


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBatch:
    """A staged batch that is read while it is applied, so it may be larger than the memory.

    `schema`: its fields, `StateSpec.staged`. `pieces`: each call gives all its rows as record batches, from the first
    one again; it raises StagingError if they cannot be read.
    """

    schema: Schema
    num_rows: int
    pieces: Callable[[], Iterator[pa.RecordBatch]]

    @classmethod
    def of(cls, schema: Schema, table: pa.Table) -> StagedBatch:
        """A batch that is in memory already."""
        return cls(schema=schema, num_rows=table.num_rows, pieces=lambda: iter(table.to_batches()))

    def table(self) -> pa.Table:
        """All rows."""
        import pyarrow as pa

        return pa.Table.from_batches(self.pieces(), arrow_schema(self.schema))


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPart:
    """One Parquet file of a staged batch. `path`: absolute, if it `is_local`; else its name for people. `opener`: opens
    one that is elsewhere. `stored`: the object that it is. `footer`: a file without rows that has its footer; empty:
    open it."""

    path: str
    opener: Callable[[], BinaryIO] | None = None
    stored: StoredObject | None = None
    footer: bytes = field(default=b"", repr=False)

    @property
    def is_local(self) -> bool:
        """Is it on a file system?"""
        return self.opener is None

    def open(self) -> BinaryIO:
        """For reading; the file is seekable, and what is not needed is not read.

        :raises FileNotFoundError: it is gone; of one that is elsewhere, by the first read.
        """
        return open(self.path, "rb") if self.opener is None else self.opener()

    def size(self) -> int:
        """In bytes.

        :raises FileNotFoundError: it is gone.
        """
        if self.is_local:
            return os.path.getsize(self.path)
        with self.open() as file:
            return file.seek(0, os.SEEK_END)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFiles:
    """A staged batch that nobody has read: Parquet files with the fields `StateSpec.staged`. A moment ago they existed
    with the staged sizes.

    `paths`: absolute, on a file system; or, with `opener`, names for it of files that are elsewhere. `stored`: gives
    the objects that these are. `replaces`: for copy-on-write, what the processing phase found in the table; None: it
    did not look. `footers`: path -> footer, if the processing phase told it, see `StagedPart`.
    """

    paths: tuple[str, ...]
    num_rows: int
    replaces: ReplacedFiles | None = None
    opener: Callable[[str], BinaryIO] | None = None
    stored: Callable[[str], StoredObject | None] | None = None
    footers: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def parts(self) -> tuple[StagedPart, ...]:
        """The files of the batch."""
        return tuple(map(self._part, self.paths))

    def left(self) -> tuple[StagedPart, ...]:
        """The files that take the place of those that the batch replaces."""
        return () if self.replaces is None else tuple(map(self._part, self.replaces.left))

    def _part(self, path: str) -> StagedPart:
        opener = None if self.opener is None else partial(self.opener, path)
        stored = None if self.stored is None else self.stored(path)
        return StagedPart(path=path, opener=opener, stored=stored, footer=self.footers.get(path, b""))
