"""A spout of an Iceberg table: the files that the snapshots of its main branch add. Transactional."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_trident.contracts.spout import BatchFrame, Emitter, ScriptBatch, Split, Spout
from airflow_trident.errors import SourceChangedError, SourceUnavailableError
from airflow_trident.io.arrow import fitted_batch
from airflow_trident.io.datasets import Dataset
from airflow_trident.io.extras import require_extra
from airflow_trident.io.iceberg import EXTRA, IcebergPlace, faults
from airflow_trident.io.iceberg_rows import pieces_of
from airflow_trident.io.parquet import damage_as_arrow_error
from airflow_trident.io.s3a import OTHER_SERVICE
from airflow_trident.spouts.files.files_for_spark import HERE, FilesForSpark, in_buckets, say_python_reads
from airflow_trident.spouts.iceberg.snapshots import IcebergLog
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
    unlike_columns,
)
from airflow_trident.types import FieldSpec, Json, Schema, names_of, parse_declared

if TYPE_CHECKING:
    import pyarrow as pa

_NAMES = "schema.name-mapping.default"


class IcebergSpout(Spout):
    """Reads the rows that were appended to an Iceberg table, each in exactly one transaction.

    :param name: of the table, with its namespace: ``sales.orders``.
    :param fields: the columns with their types; a column that a file lacks is null.
    :param start: where the first transaction begins: ``snapshot``, ``latest``, or the id of a snapshot.
    :param changes: ``error`` or ``skip``, for snapshots that change or delete rows.
    :param max_files, max_bytes, max_rows: of one batch; a single larger file is a batch by itself.
    :param catalog: its name in the configuration of pyiceberg (``.pyiceberg.yaml``, ``PYICEBERG_CATALOG__...``).
    :param conn_id: an Airflow connection (``iceberg``), as for IcebergTable.
    :param properties: of the catalog; they override those of the connection.
    :raises ConfigurationError: an argument is wrong.
    """

    schema: Schema = ()

    def __init__(
        self,
        name: str,
        *,
        fields: FieldSpec,
        start: Start | str | int = Start.SNAPSHOT,
        changes: OnChange | str = OnChange.ERROR,
        max_files: int = DEFAULT_MAX_FILES,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_rows: int | None = None,
        catalog: str = "default",
        conn_id: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._reading = TableReading.of(
            "IcebergSpout", start, changes, max_files=max_files, max_bytes=max_bytes, max_rows=max_rows
        )
        self._place = IcebergPlace(name=name, catalog=catalog, conn_id=conn_id, properties=properties or {})
        self.schema = parse_declared(fields, [])

    def coordinator(self) -> VersionsCoordinator:
        return VersionsCoordinator(partial(_open, self._place), _span, self.schema, self._reading)

    def emitter(self) -> IcebergEmitter:
        return IcebergEmitter(self._place.resolved(), self.schema)

    def describe(self) -> str:
        return f"IcebergSpout({self._place.name})"

    def lineage_datasets(self, metadata: Json) -> tuple[Dataset, ...]:
        return (self._place.resolved().dataset,)

    def __getstate__(self) -> dict[str, Any]:
        """Pickled with the connection's settings: the receiver may not know the connection."""
        return {**self.__dict__, "_place": self._place.resolved(required=False)}


@dataclass(frozen=True)
class IcebergEmitter(Emitter):
    """One split for each file, with the table metadata that its reader needs: executors do not ask the catalog."""

    is_fitted: ClassVar[bool] = True
    place: IcebergPlace
    row_schema: Schema
    last: LastSplits = field(default_factory=LastSplits, compare=False, repr=False)

    def splits(self, metadata: Json) -> list[Split]:
        return self.last.keep(metadata, self._found(metadata))

    def _found(self, metadata: Json) -> list[Split]:
        span = _span(metadata)
        if span.is_empty:
            return []
        assert span.ids is not None
        log = IcebergLog(self.place.resolved(), span.ids[1])
        if why := unlike_columns(self.row_schema, log.columns()):
            raise SourceChangedError(f"{log.what} now has {why}", "Rename it back, or correct the spout's fields.")
        table = _known_of(log.table.metadata)
        return [
            Split(
                index,
                {"path": file.path, "bytes": file.bytes, "rows": file.rows, **file.partition, "table": table},
                file.bytes,
            )
            for index, file in enumerate(files_of(log, span))
        ]

    def data_frame(self, session: Any, metadata: Json) -> BatchFrame | None:
        """Only for files whose columns are those of the table with the same names, on this machine or in buckets that
        the session can read."""
        if any("struct<" in one.type for one in self.row_schema):
            return None
        bodies: list[Any] = [split.body for split in self.last.of(metadata) or self.splits(metadata)]
        where, paths = self._in_spark(session, [one["path"] for one in bodies])
        if where is None:
            return None
        return frame_of(session, self.row_schema, _files(paths, bodies), self._is_like(bodies), where)

    def is_everywhere(self, metadata: Json) -> bool:
        bodies: list[Any] = [split.body for split in self.last.of(metadata) or self.splits(metadata)]
        return all("://" in one["path"] and not one["path"].startswith("file:") for one in bodies)

    def batch_for_script(self, metadata: Json, folder: str) -> ScriptBatch | None:
        """Files of this machine."""
        if metadata is None or any("struct<" in one.type for one in self.row_schema):
            return None
        bodies: list[Any] = [split.body for split in self.last.of(metadata) or self.splits(metadata)]
        paths = [str(one["path"]).removeprefix("file://") for one in bodies]
        if not bodies or not all(map(os.path.isabs, paths)):
            return None
        return files_for_script(self.row_schema, _files(paths, bodies), self._is_like(bodies))

    def _is_like(self, bodies: list[Any]) -> Callable[[int, pa.Schema], bool]:
        known = _Columns.of(bodies[0]["table"], self.row_schema)
        return lambda place, given: known.are_in(given, bodies[place]["spec"])

    def _in_spark(self, session: Any, urls: list[str]) -> tuple[FilesForSpark | None, list[str]]:
        """Where the files are, with their paths there."""
        schemes = {url.partition("://")[0] if "://" in url else "file" for url in urls}
        paths = [url.partition("://")[2] if "://" in url else url for url in urls]
        if schemes == {"file"}:
            return (HERE if all(map(os.path.isabs, paths)) else None), paths
        if not schemes:
            return None, paths
        what = f"Iceberg table {self.place.name}"
        settings = self.place.s3_settings() if schemes <= {"s3", "s3a"} else OTHER_SERVICE
        if isinstance(settings, str):
            say_python_reads(what, settings)
            return None, paths
        return in_buckets(session, what, *settings), paths

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        body: Any = split.body
        what, rows = f"the file {body['path']!r} of the Iceberg table {self.place.name!r}", 0
        gone = "Its snapshot was expired too early: keep snapshots as long as transactions may be replayed."
        with (
            self.place.errors(SourceUnavailableError),
            reading_file(what, self.row_schema, (pa.ArrowException, ValueError), gone=gone),
        ):
            for batch in self._batches(body):
                yield fitted_batch(batch, self.row_schema, what, first_row=rows)
                rows += batch.num_rows
        require_rows(what, rows, body["rows"])

    def _batches(self, body: Any) -> Iterator[pa.RecordBatch]:
        """Record batches with the table's present columns: a column is found by its id, also under another name."""
        manifest: Any = require_extra("pyiceberg.manifest", EXTRA)
        metadata: Any = require_extra("pyiceberg.table.metadata", EXTRA).TableMetadataUtil.parse_raw(body["table"])
        io: Any = require_extra("pyiceberg.io", EXTRA).load_file_io(dict(self.place.properties), body["path"])
        file = manifest.DataFile.from_args(
            content=manifest.DataFileContent.DATA,
            file_path=body["path"],
            file_format=manifest.FileFormat.PARQUET,
            partition=require_extra("pyiceberg.typedef", EXTRA).Record(*body["values"]),
            record_count=body["rows"],
            file_size_in_bytes=body["bytes"],
        )
        file.spec_id = body["spec"]
        wanted = metadata.schema().select(*names_of(self.row_schema))
        task: Any = require_extra("pyiceberg.table", EXTRA).FileScanTask(file)
        try:
            yield from pieces_of(metadata, io, task, wanted)
        except OSError:
            with io.new_input(body["path"]).open() as opened, damage_as_arrow_error(opened):
                raise


@dataclass(frozen=True)
class _Columns:
    """The wanted columns of a table by their ids."""

    metadata: Any
    ids: Mapping[str, int]

    @classmethod
    def of(cls, table: str, schema: Schema) -> _Columns:
        metadata: Any = require_extra("pyiceberg.table.metadata", EXTRA).TableMetadataUtil.parse_raw(table)
        return cls(metadata, {name: metadata.schema().find_field(name).field_id for name in names_of(schema)})

    def are_in(self, given: pa.Schema, spec: int) -> bool:
        """Does each name mean the same column in this file? A column that the file lacks must be null, and not the
        value of a partition.

        :param spec: of the file's partition.
        """
        reading: Any = require_extra("pyiceberg.io.pyarrow", EXTRA)
        unknown: tuple[type[Exception], ...] = (ValueError, TypeError, *faults())
        try:
            found = reading.pyarrow_to_schema(given, self.metadata.name_mapping(), downcast_ns_timestamp_to_us=True)
        except unknown:
            return False  # a type, or a column without id, about which its reader decides
        names = {one.field_id: one.name for one in found.fields}
        partitioned = {one.source_id for one in self.metadata.specs()[spec].fields}
        return all(
            names[number] == name if number in names else name not in given.names and number not in partitioned
            for name, number in self.ids.items()
        )


def _files(paths: list[str], bodies: list[Any]) -> list[FileOfTable]:
    return [FileOfTable(path=path, rows=one["rows"], partition={}) for path, one in zip(paths, bodies, strict=True)]


def _open(place: IcebergPlace) -> IcebergLog:
    return IcebergLog(place.resolved())


def _span(metadata: Json) -> Span:
    return Span.of(metadata, "an IcebergSpout", with_ids=True)


def _known_of(metadata: Any) -> str:
    """Columns, name mapping and partitions of the table, as JSON; without snapshots and other properties."""
    names = metadata.properties.get(_NAMES)
    few = metadata.model_copy(
        update={
            "current_snapshot_id": None,
            "snapshots": [],
            "snapshot_log": [],
            "metadata_log": [],
            "refs": {},
            "statistics": [],
            "partition_statistics": [],
            "schemas": [metadata.schema()],
            "properties": {} if names is None else {_NAMES: names},
        }
    )
    return str(few.model_dump_json())
