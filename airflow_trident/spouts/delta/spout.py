"""A spout of a Delta table: the files that its versions add, in the order of its log. Transactional."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_trident.contracts.spout import BatchFrame, Emitter, ScriptBatch, Split, Spout
from airflow_trident.errors import SourceUnavailableError
from airflow_trident.io.datasets import Dataset, file_dataset
from airflow_trident.io.delta import DeltaPlace
from airflow_trident.io.hadoop import OTHER_SERVICE, uri_in_hadoop
from airflow_trident.io.paths import AnyPath
from airflow_trident.protocol.partitions import Partitions
from airflow_trident.spouts.bound_tables import BoundTable, bound_table
from airflow_trident.spouts.delta.log import DeltaLog, Places, names_in_file, of_batch
from airflow_trident.spouts.files.by_spark import FileOfTable, LastSplits, files_for_script, frame_of
from airflow_trident.spouts.files.columns import rows_of_file
from airflow_trident.spouts.files.files_for_spark import HERE, FilesForSpark, by_session, in_buckets, say_python_reads
from airflow_trident.spouts.table_log import (
    DEFAULT_MAX_BYTES,
    DEFAULT_MAX_FILES,
    AddedFile,
    OnChange,
    Span,
    Start,
    TableReading,
    VersionsCoordinator,
    files_of,
    reading_file,
    require_rows,
)
from airflow_trident.types import FieldSpec, Json, Schema, parse_declared

if TYPE_CHECKING:
    import pyarrow as pa


class DeltaSpout(Spout):
    """Reads the rows that were appended to a Delta table, each in exactly one transaction.

    :param path: of the table: a folder, or a URI such as ``s3://bucket/table``. Airflow's ObjectStoragePath brings its
        connection.
    :param fields: the columns with their types; a column that a file lacks is null.
    :param start: where the first transaction begins: ``snapshot``, ``latest``, or the number of a version.
    :param changes: ``error`` or ``skip``, for versions that change or delete rows.
    :param max_files, max_bytes, max_rows: of one batch; a single larger file is a batch by itself.
    :param conn_id: an Airflow connection (``aws``, ``wasb``, ``google_cloud_platform``, or one whose extras are storage
        options of delta-rs).
    :param storage_options: override those of the connection.
    :param column: in a topology that is bound to partitions: the table's partition column with their values. All files
        of the partition are read, in the newest version, so `start`, `changes` and the limits mean nothing.
    :raises ConfigurationError: an argument is wrong.
    """

    schema: Schema = ()

    def __init__(
        self,
        path: AnyPath,
        *,
        fields: FieldSpec,
        start: Start | str | int = Start.SNAPSHOT,
        changes: OnChange | str = OnChange.ERROR,
        max_files: int = DEFAULT_MAX_FILES,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_rows: int | None = None,
        conn_id: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        column: str = "",
    ) -> None:
        self._reading = TableReading.of(
            "TableSpout", start, changes, max_files=max_files, max_bytes=max_bytes, max_rows=max_rows
        )
        self._place = DeltaPlace.of(path, conn_id, storage_options)
        self.schema = parse_declared(fields, [])
        self._column, self.needs_partitions = column, bool(column)

    def bound(self, partitions: Partitions) -> BoundTable:
        """
        :raises PlanError: nothing says which files are those of a partition.
        """
        return bound_table(self, self._column, partitions, partial(_open, self._place, self.schema))

    def coordinator(self) -> VersionsCoordinator:
        return VersionsCoordinator(partial(_open, self._place, self.schema), _span, self.schema, self._reading)

    def emitter(self) -> DeltaEmitter:
        return DeltaEmitter(self._place.resolved(), self.schema)

    def lineage_datasets(self, metadata: Json) -> tuple[Dataset, ...]:
        return (file_dataset(self._place.uri),)

    def describe(self) -> str:
        return f"TableSpout({self._place.uri})"

    def __getstate__(self) -> dict[str, Any]:
        """Pickled with the connection's settings: the receiver may not know the connection."""
        return {**self.__dict__, "_place": self._place.resolved(required=False)}


@dataclass(frozen=True)
class DeltaEmitter(Emitter):
    """One split for each file."""

    is_fitted: ClassVar[bool] = True
    place: DeltaPlace
    row_schema: Schema
    last: LastSplits = field(default_factory=LastSplits, compare=False, repr=False)

    def splits(self, metadata: Json) -> list[Split]:
        return self.last.keep(metadata, self._found(metadata))

    def _found(self, metadata: Json) -> list[Split]:
        span = _span(metadata)
        if span.is_empty:
            return []
        log = _open(self.place, self.row_schema)
        files = list(files_of(log, span))
        kept = log.kept_rows(span)
        bodies = [(_body(file, log.places, kept.get(file.path)), file.bytes) for file in files]
        return [Split(index, body, size_bytes) for index, (body, size_bytes) in enumerate(bodies)]

    def data_frame(self, session: Any, metadata: Json) -> BatchFrame | None:
        """Only for a folder, or a store that the session can read."""
        above = self.place.where
        file_system: FilesForSpark | None = HERE
        if "://" in above:
            file_system, above = self._in_store(session)
        files = self._files(metadata, above) if file_system else None
        return (
            None
            if file_system is None or files is None
            else frame_of(session, self.row_schema, files, None, file_system)
        )

    def is_everywhere(self, metadata: Json) -> bool:
        return "://" in self.place.where

    def batch_for_script(self, metadata: Json, folder: str) -> ScriptBatch | None:
        """The files of a folder."""
        if metadata is None or "://" in self.place.where:
            return None
        files = self._files(metadata, self.place.where)
        return None if files is None else files_for_script(self.row_schema, files)

    def _files(self, metadata: Json, above: str) -> list[FileOfTable] | None:
        """None: some lie elsewhere, or have rows that are deleted, or other names of columns."""
        bodies: list[Any] = [split.body for split in self.last.of(metadata) or self.splits(metadata)]
        if any(os.path.isabs(body["path"]) or "://" in body["path"] for body in bodies):
            return None
        if any(body.keys() & {"columns", "kept"} for body in bodies):
            say_python_reads(self.place.where, "it has deletion vectors, or maps its columns to other names")
            return None
        return [
            FileOfTable(path=os.path.join(above, body["path"]), rows=body["rows"], partition=body["partition"])
            for body in bodies
        ]

    def _in_store(self, session: Any) -> tuple[FilesForSpark | None, str]:
        """And what is before the paths there."""
        place = self.place.resolved()
        settings = place.s3_settings()
        if settings == OTHER_SERVICE:
            root, files = uri_in_hadoop(place.where, place.options), cache(place.files)
            return by_session(session, root, place.where, lambda path: files().open_input_file(path)), ""
        if isinstance(settings, str):
            say_python_reads(place.where, settings)
            return None, ""
        return in_buckets(session, place.where, settings, {}), place.where.partition("://")[2].rstrip("/")

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        body: Any = split.body
        named = partial(names_in_file, body["columns"]) if "columns" in body else None
        subject, rows = f"the file {body['path']!r} of the Delta table {self.place.where!r}", 0
        cure = "It was vacuumed too early: keep removed files as long as transactions may be replayed."
        with (
            self.place.errors(SourceUnavailableError),
            reading_file(subject, self.row_schema, (pa.ArrowException,), cure=cure),
            self.place.files().open_input_file(body["path"]) as file,
        ):
            for batch in rows_of_file(file, self.row_schema, body["partition"], named):
                yield of_batch(body["kept"], batch, rows) if "kept" in body else batch
                rows += batch.num_rows
        require_rows(subject, rows, body["rows"])


def _body(file: AddedFile, places: Places, kept: str | None) -> Json:
    partition: dict[str, Json] = {
        name: None if value is None else _as_text(value) for name, value in file.partition.items()
    }
    body: dict[str, Json] = {"path": file.path, "rows": file.rows, "partition": partition}
    if places:
        body["columns"] = dict(places)
    if kept is not None:
        body["kept"] = kept
    return body


def _as_text(value: Any) -> str:
    """The text that the log has for the value."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _open(place: DeltaPlace, row_schema: Schema) -> DeltaLog:
    return DeltaLog(place.resolved(), row_schema)


def _span(metadata: Json) -> Span:
    return Span.of(metadata, "a TableSpout of a DeltaTable")
