"""A committed version of a Delta table, for copy-on-write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_trident.contracts.committed_table import BatchKeys, CommittedTable
from airflow_trident.io.delta import EXTRA, DeltaPlace
from airflow_trident.io.extras import require_extra
from airflow_trident.states.delta.add_actions import old_files, pieces_of
from airflow_trident.states.tables.new_files import OldFile
from airflow_trident.states.tables.rewriting import file_there, may_have, number_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs


@dataclass(frozen=True)
class CommittedDelta(CommittedTable):
    """`at`: what identifies the table and the version. `columns`: all of the table's."""

    place: DeltaPlace
    at: str
    columns: pa.Schema
    partition_by: tuple[str, ...]
    files: tuple[OldFile, ...]
    keys: tuple[str, ...]

    @classmethod
    def of(cls, place: DeltaPlace, table: Any, keys: tuple[str, ...]) -> CommittedDelta:
        """:param table: the `deltalake.DeltaTable`."""
        import pyarrow as pa

        metadata = table.metadata()
        return cls(
            place=place.resolved(),
            at=identity(table),
            columns=pa.schema(table.schema().to_arrow()),
            partition_by=tuple(metadata.partition_columns),
            files=tuple(replace(one, entry=None) for one in old_files(table, keys)),
            keys=keys,
        )

    @property
    def version(self) -> str:
        return self.at

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(one.path for one in self.files)

    def may_have(self, place: int, keys: BatchKeys) -> bool:
        """The footer says what the log does not: this package leaves bounds out of the log if a column has none."""
        import pyarrow.dataset as ds

        file = self.files[place]
        if not keys.any_within(file.bounds):
            return False
        if set(self.keys) <= file.bounds.keys():
            return True
        with self._there(file):
            fragment = ds.ParquetFileFormat().make_fragment(unquote(file.path), self._files())
            return may_have(fragment, self.columns, keys.bounds)

    def pieces(self, place: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        file = self.files[place]
        with self._there(file), self._files().open_input_file(unquote(file.path)) as source:
            yield from pieces_of(source, file, self.columns, self.partition_by, columns)

    @contextmanager
    def _there(self, file: OldFile) -> Iterator[None]:
        what = f"the file {file.path!r} of version {self.version} of the Delta table {self.place.where!r}"
        with self.place.errors() if self._is_remote else nullcontext(), file_there(what):
            yield

    def schema(self) -> pa.Schema:
        return self.columns

    @property
    def _is_remote(self) -> bool:
        """A folder is read without the library of Delta, which workers may lack."""
        return "://" in self.place.where

    def _files(self) -> pafs.FileSystem:
        import pyarrow.fs as pafs

        if self._is_remote:
            return self.place.files()
        return pafs.SubTreeFileSystem(self.place.where, pafs.LocalFileSystem())


def identity(table: Any) -> str:
    """:param table: the `deltalake.DeltaTable`."""
    return f"{table.metadata().id}/{table.version()}"


def paths_at(place: DeltaPlace, now: Any, version: str) -> AbstractSet[str] | None:
    """The files of an older version of the same table; None: it cannot be read any more, or is of another table.

    :param now: the `deltalake.DeltaTable`.
    """
    errors: Any = require_extra("deltalake.exceptions", EXTRA)
    number = number_of(version, now.metadata().id)
    if number is None:
        return None
    try:
        return {one.path for one in old_files(place.table(number))}
    except errors.DeltaError:
        return None
