"""A spout of a ParquetTable: the files that its versions add. Transactional."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.spout import BatchFrame, Emitter, ScriptBatch, Split, Spout
from airflow_trident.errors import TridentError
from airflow_trident.io.datasets import Dataset, file_dataset
from airflow_trident.spouts.files.files_for_spark import HERE, FilesForSpark, in_place
from airflow_trident.spouts.parquet.added_files import ParquetLog, answers
from airflow_trident.spouts.table_in_spark import FileOfTable, LastSplits, files_for_script, frame_of
from airflow_trident.spouts.table_log import (
    DEFAULT_MAX_BYTES,
    DEFAULT_MAX_FILES,
    OnChange,
    Span,
    Start,
    TableReading,
    VersionsCoordinator,
    files_of,
    reading_file,
    require_rows,
)
from airflow_trident.spouts.table_rows import rows_of_file
from airflow_trident.staging.files import storage_error
from airflow_trident.staging.hdfs_storage import HdfsStorage
from airflow_trident.staging.storage import ObjectStorage
from airflow_trident.staging.verbs import Storage
from airflow_trident.types import FieldSpec, Json, Schema, parse_declared

if TYPE_CHECKING:
    import pyarrow as pa


class ParquetTableSpout(Spout):
    """Reads the rows that were appended to a ParquetTable, each in exactly one transaction.

    :param storage: the place of the table.
    :param fields: the columns with their types; a column that a file lacks is null.
    :param start: where the first transaction begins: ``snapshot``, ``latest``, or the number of a version.
    :param changes: ``error`` or ``skip``, for versions that remove files.
    :param max_files, max_bytes, max_rows: of one batch; a single larger file is a batch by itself.
    :raises ConfigurationError: an argument is wrong.
    """

    schema: Schema = ()

    def __init__(
        self,
        storage: Storage,
        *,
        fields: FieldSpec,
        start: Start | str | int = Start.SNAPSHOT,
        changes: OnChange | str = OnChange.ERROR,
        max_files: int = DEFAULT_MAX_FILES,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_rows: int | None = None,
    ) -> None:
        self._reading = TableReading.of(
            "TableSpout", start, changes, max_files=max_files, max_bytes=max_bytes, max_rows=max_rows
        )
        self._storage = storage
        self.schema = parse_declared(fields, [])

    def coordinator(self) -> VersionsCoordinator:
        return VersionsCoordinator(partial(ParquetLog, self._storage), _span, self.schema, self._reading)

    def emitter(self) -> ParquetTableEmitter:
        return ParquetTableEmitter(self._storage.resolved(), self.schema)

    def lineage_datasets(self, metadata: Json) -> tuple[Dataset, ...]:
        return (file_dataset(self._storage.where),)

    def describe(self) -> str:
        return f"TableSpout({self._storage.where})"

    def __getstate__(self) -> dict[str, Any]:
        """Pickled with the connection's settings: the receiver may not know the connection."""
        with suppress(TridentError):
            return {**self.__dict__, "_storage": self._storage.resolved()}
        return dict(self.__dict__)


@dataclass(frozen=True)
class ParquetTableEmitter(Emitter):
    """One split for each file."""

    storage: Storage
    row_schema: Schema
    last: LastSplits = field(default_factory=LastSplits, compare=False, repr=False)

    def splits(self, metadata: Json) -> list[Split]:
        return self.last.keep(metadata, self._found(metadata))

    def _found(self, metadata: Json) -> list[Split]:
        span = _span(metadata)
        if span.is_empty:
            return []
        files = files_of(ParquetLog(self.storage), span)
        return [Split(index, {"path": file.path, "rows": file.rows}, file.bytes) for index, file in enumerate(files)]

    def data_frame(self, session: Any, metadata: Json) -> BatchFrame | None:
        """Only for a folder, or a bucket that the session can read."""
        storage = self.storage
        where: FilesForSpark | None
        path_of: Callable[[str], str]
        if isinstance(storage, ObjectStorage):
            where, path_of = in_place(session, storage.place)
        else:
            where, path_of = HERE if storage.is_local else None, storage.at
        if where is None:
            return None
        return frame_of(session, self.row_schema, self._files(metadata, path_of), where=where)

    def is_everywhere(self, metadata: Json) -> bool:
        return isinstance(self.storage, ObjectStorage)

    def batch_for_script(self, metadata: Json, folder: str) -> ScriptBatch | None:
        """The files of a folder."""
        storage = self.storage
        if metadata is None or isinstance(storage, ObjectStorage) or not storage.is_local:
            return None
        return files_for_script(self.row_schema, self._files(metadata, storage.at))

    def _files(self, metadata: Json, path_of: Callable[[str], str]) -> list[FileOfTable]:
        bodies: list[Any] = [split.body for split in self.last.of(metadata) or self.splits(metadata)]
        return [FileOfTable(path=path_of(one["path"]), rows=one["rows"], partition={}) for one in bodies]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        body: Any = split.body
        what, rows = f"the file {body['path']!r} of the Parquet table {self.storage.where!r}", 0
        gone = "Let those who write to it keep more versions (keep_versions) than pass until a transaction is replayed."
        with (
            reading_file(what, self.row_schema, (pa.ArrowException,), gone=gone),
            self._opened(body["path"]) as file,
        ):
            for batch in rows_of_file(file, self.row_schema, {}):
                rows += batch.num_rows
                yield batch
        require_rows(what, rows, body["rows"])

    @contextmanager
    def _opened(self, path: str) -> Iterator[Any]:
        """Open a file; of an object, or in an HDFS, only the needed parts are fetched."""
        storage = self.storage
        with answers():
            if isinstance(storage, ObjectStorage):
                from airflow_trident.io.object_arrow import arrow_files

                place = storage.place
                with place.errors(f"read {path!r}"), arrow_files(place).open_input_file(place.key(path)) as file:
                    yield file
                return
            try:
                with storage.open_parts(path) if isinstance(storage, HdfsStorage) else storage.open(path) as file:
                    yield file
            except FileNotFoundError:
                raise
            except OSError as error:
                raise storage_error(error, storage.where, "a Parquet table") from error


def _span(metadata: Json) -> Span:
    return Span.of(metadata, "a TableSpout of a Parquet table", with_ids=True)
