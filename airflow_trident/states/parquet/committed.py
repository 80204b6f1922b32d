"""A committed version of a Parquet table, for copy-on-write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.committed_table import CommittedTable
from airflow_trident.errors import CorruptRecordError
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.staging.parquet_versions import ParquetVersion, ParquetVersions, TableFile
from airflow_trident.staging.verbs import Storage
from airflow_trident.states.parquet.for_readers import dataset_of
from airflow_trident.states.tables.rewriting import file_there, may_have, number_of

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class CommittedParquet(CommittedTable):
    """`last`: the version, without its files, which are `files`."""

    storage: Storage
    last: ParquetVersion
    files: tuple[TableFile, ...]
    keys: tuple[str, ...]

    @classmethod
    def of(cls, versions: ParquetVersions, version: ParquetVersion, keys: tuple[str, ...]) -> CommittedParquet:
        bare = replace(version, files=(), lists=(), removed=(), states={})
        return cls(versions.storage.resolved(), bare, tuple(versions.files(version)), keys)

    @property
    def version(self) -> str:
        return identity(self.last)

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(one.path for one in self.files)

    def may_have(self, place: int, bounds: Mapping[str, tuple[Any, Any]]) -> bool:
        with file_there(self._named(place)):
            (fragment,) = dataset_of(self.storage, self.last, [self.files[place]]).get_fragments()
            return may_have(fragment, self.schema(), bounds)

    def pieces(self, place: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        names = None if columns is None else list(columns)
        with file_there(self._named(place)):
            dataset = dataset_of(self.storage, self.last, [self.files[place]])
            yield from dataset.scanner(columns=names, use_threads=False).to_batches()

    def _named(self, place: int) -> str:
        path = self.files[place].path
        return f"the file {path!r} of version {self.version} of the Parquet table {self.storage.where!r}"

    def schema(self) -> pa.Schema:
        return arrow_schema(self.last.schema)


def identity(version: ParquetVersion) -> str:
    return f"{version.table_id}/{version.version}"


def paths_at(versions: ParquetVersions, now: ParquetVersion, version: str) -> AbstractSet[str] | None:
    """The files of an older version of the same table; None: it is not kept, or of another table."""
    number = number_of(version, now.table_id)
    if number is None or number < now.first:
        return None
    try:
        return {one.path for one in versions.files(versions.read(number))}
    except (FileNotFoundError, CorruptRecordError):  # an old version may outlive its lists, if its removal was cut off
        return None
