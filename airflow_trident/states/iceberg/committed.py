"""A committed version of an Iceberg table, for copy-on-write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.committed_table import BatchKeys, CommittedTable
from airflow_trident.io.extras import require_extra
from airflow_trident.io.iceberg import EXTRA
from airflow_trident.io.iceberg_rows import pieces_of
from airflow_trident.states.iceberg.data_files import old_files
from airflow_trident.states.tables.new_files import OldFile
from airflow_trident.states.tables.rewriting import file_there

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class CommittedIceberg(CommittedTable):
    """`metadata` and `io`: of the `pyiceberg.table.Table`. `files`: with the delete files that belong to them."""

    metadata: Any
    io: Any
    files: tuple[OldFile, ...]
    keys: tuple[str, ...]

    @classmethod
    def of(cls, table: Any, keys: tuple[str, ...]) -> CommittedIceberg:
        return cls(metadata=table.metadata, io=table.io, files=tuple(old_files(table, keys)), keys=keys)

    @property
    def version(self) -> str:
        return identity(self.metadata)

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(one.path for one in self.files)

    def may_have(self, place: int, keys: BatchKeys) -> bool:
        return keys.any_within(self.files[place].bounds)

    def pieces(self, place: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        file = self.files[place]
        with file_there(f"the file {file.path!r} of snapshot {self.version} of an Iceberg table"):
            schema = self.metadata.schema()
            wanted = schema if columns is None else schema.select(*columns)
            target = require_extra("pyiceberg.io.pyarrow", EXTRA).schema_to_pyarrow(wanted)
            for piece in pieces_of(self.metadata, self.io, file.entry, wanted):
                yield piece.cast(target)

    def schema(self) -> pa.Schema:
        module: Any = require_extra("pyiceberg.io.pyarrow", EXTRA)
        found: pa.Schema = module.schema_to_pyarrow(self.metadata.schema())
        return found


def identity(metadata: Any) -> str:
    """Each snapshot is another version: it may delete rows of a file that keeps its name. So is each schema,
    which makes no snapshot: what was written for the columns of before may have one that the table lacks now.

    :param metadata: `pyiceberg.table.metadata.TableMetadata`.
    """
    return f"{metadata.table_uuid}/{metadata.current_snapshot_id}/{metadata.current_schema_id}"
