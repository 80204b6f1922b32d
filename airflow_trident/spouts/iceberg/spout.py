"""A spout of an Iceberg table: the files that the snapshots of its main branch add. Transactional.

Reads the snapshots of an Iceberg table's main branch: the files that they added. The number of a version is the
snapshot's sequence number, which grows with each commit; after a rollback there are gaps.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_trident.contracts.spout import BatchFrame, Emitter, ScriptBatch, Split, Spout
from airflow_trident.errors import ConfigurationError, DamagedInputError, SourceChangedError, SourceUnavailableError
from airflow_trident.io.arrow import fitted_batch
from airflow_trident.io.connections import require_extra
from airflow_trident.io.datasets import Dataset
from airflow_trident.io.hadoop import OTHER_SERVICE
from airflow_trident.io.iceberg import EXTRA, IcebergPlace, faults, pieces_of, read_whole
from airflow_trident.io.parquet import damage_as_arrow_error
from airflow_trident.protocol.partitions import Partitions
from airflow_trident.spouts.bound_tables import BoundTable, bound_table
from airflow_trident.spouts.files.by_spark import FileOfTable, LastSplits, files_for_script, frame_of
from airflow_trident.spouts.files.files_for_spark import HERE, FilesForSpark, in_buckets, say_python_reads
from airflow_trident.spouts.table_log import (
    DEFAULT_MAX_BYTES,
    DEFAULT_MAX_FILES,
    SNAPSHOTS,
    AddedFile,
    OnChange,
    Span,
    Start,
    TableLog,
    TableReading,
    TableVersion,
    VersionsCoordinator,
    files_of,
    reading_file,
    require_rows,
    unlike_columns,
)
from airflow_trident.types import FieldSpec, Json, Schema, names_of, parse_declared

if TYPE_CHECKING:
    import pyarrow as pa

_VERSION = 2
_DAMAGE = (ValueError, TypeError, LookupError, EOFError, AssertionError, OverflowError, zlib.error)
"""What pyiceberg raises for a damaged manifest."""
_ANEW = "Give the stream a new name and begin anew."


class IcebergLog(TableLog):
    """The table at `place`, opened once.

    :param tip: id of the snapshot to take as the newest one; None: the newest of main.
    """

    has_ids = True

    def __init__(self, place: IcebergPlace, tip: int | None = None) -> None:
        self.what = f"the Iceberg table {place.name!r}"
        self._place = place
        self.table = _load(place, self.what)
        self._metadata = self.table.metadata
        self.table_id = str(self._metadata.table_uuid)
        if self._metadata.format_version != _VERSION:
            raise ConfigurationError(
                f"{self.what} has format version {self._metadata.format_version}, and version {_VERSION} is read here",
                "Upgrade it (property format-version)." if self._metadata.format_version < _VERSION else "Copy it.",
            )
        self._tip = tip
        self._chain = self._ancestors(tip)
        self.head = self._chain[-1].sequence_number if self._chain else 0
        self.head_id = self._chain[-1].snapshot_id if self._chain else None

    def columns(self) -> set[str]:
        return set(self._metadata.schema().column_names)

    def snapshot_at(self) -> int:
        self._require_only_one(self.head)
        return self.head

    def _require_only_one(self, number: int) -> None:
        """:raises ConfigurationError: several snapshots have the number, so it does not say which one is meant."""
        if sum(snapshot.sequence_number == number for snapshot in self._chain) > 1:
            raise ConfigurationError(
                f"several snapshots of {self.what} have the sequence number {number}: those from before it was "
                "upgraded from format version 1",
                "Make one commit after the upgrade, and begin at that snapshot or a later one.",
            )

    def start_at(self, start: int) -> tuple[int, int | None]:
        for snapshot in self._chain:
            if snapshot.snapshot_id == start:
                self._require_only_one(snapshot.sequence_number)
                return snapshot.sequence_number, snapshot.parent_snapshot_id
        raise ConfigurationError(
            f"the main branch of {self.what} has no snapshot {start}", "Begin at another one, or at snapshot or latest."
        )

    def numbers(self, first: int) -> Iterator[tuple[int, int | None]]:
        return (
            (snapshot.sequence_number, snapshot.snapshot_id)
            for snapshot in self._chain
            if snapshot.sequence_number >= first
        )

    def change(self, number: int, version_id: int | None) -> TableVersion:
        return self._change(self._metadata.snapshot_by_id(version_id))

    def whole(self, number: int, version_id: int | None) -> TableVersion:
        snapshot = self._metadata.snapshot_by_id(version_id)
        version: TableVersion = SNAPSHOTS.get((self.what, self.table_id, version_id), partial(self._whole, snapshot))
        return version

    def partition_value(self, file: AddedFile, column: str) -> str | None:
        schema = self._metadata.schema()
        fields = self._metadata.specs()[file.partition["spec"]].fields
        for field_of_spec, value in zip(fields, file.partition["values"], strict=True):
            source = schema.find_field(field_of_spec.source_id)
            if source.name == column and str(field_of_spec.transform) == "identity":
                text: str = field_of_spec.transform.to_human_string(source.field_type, value)
                return None if value is None else text
        raise LookupError(column)

    def require_same(self, span: Span) -> None:
        """The main branch must come from the snapshot that was read last, with all snapshots after it."""
        if self.table_id != span.table_id:
            raise SourceChangedError(f"{self.what} was made anew since the transaction was recorded", _ANEW)
        assert span.ids is not None
        before, at = span.ids
        if self._tip is None:  # for the next batch
            self._require_unbroken(at, span.end)
        else:  # for a recorded batch
            self._require_unbroken(before, span.begin)

    def _require_unbroken(self, before: int | None, at: tuple[int, int]) -> None:
        """:raises SourceChangedError: a snapshot from `at` on is missing, or the one before them is not `before`."""
        number, in_its_middle = at[0], at[1] > 0
        if before is None:
            if (not self._chain and self._tip is None) or any(
                snapshot.sequence_number == number for snapshot in self._chain
            ):
                return
        elif any(snapshot.snapshot_id == before for snapshot in self._chain):
            return
        elif self._chain and not in_its_middle and self._follows(self._chain[0], before, number):
            return  # `before` was expired, but no snapshot after it
        if before is not None and (not self._chain or self._chain[0].sequence_number < number):
            raise SourceChangedError(
                f"{self.what} was rolled back or replaced: its main branch does not come from snapshot {before}, up to "
                "which it was read",
                f"Set main to that snapshot or to one that comes from it; or rows may be there twice: {_ANEW.lower()}",
            )
        raise SourceChangedError(
            f"snapshots of {self.what} that are to be read were expired",
            "Keep them longer (history.expire.max-snapshot-age-ms), and files as long as transactions may be replayed. "
            f"What they added cannot be told any more. {_ANEW}",
        )

    def _follows(self, oldest: Any, before: int, number: int) -> bool:
        """Was `before` the parent of `oldest`? When a snapshot expires, some tools remove it as parent, too; then the
        sequence number decides."""
        return oldest.parent_snapshot_id == before or (
            oldest.parent_snapshot_id is None and oldest.sequence_number == number
        )

    def _ancestors(self, tip: int | None) -> list[Any]:
        """The snapshots from the oldest that is kept to `tip`."""
        at = self._metadata.current_snapshot() if tip is None else self._metadata.snapshot_by_id(tip)
        if at is None and tip is not None:
            raise SourceChangedError(
                f"{self.what} has no snapshot {tip} any more, which the transaction recorded",
                "Keep snapshots as long as transactions may be replayed (history.expire.max-snapshot-age-ms).",
            )
        snapshots = []
        while at is not None:
            snapshots.append(at)
            at = None if at.parent_snapshot_id is None else self._metadata.snapshot_by_id(at.parent_snapshot_id)
        return snapshots[::-1]

    def _change(self, snapshot: Any) -> TableVersion:
        manifest: Any = require_extra("pyiceberg.manifest", EXTRA)
        statuses, contents = manifest.ManifestEntryStatus, manifest.ManifestContent
        added, removes = list[AddedFile](), False
        operation = str(snapshot.summary.operation.value) if snapshot.summary is not None else ""
        with self._place.errors(SourceUnavailableError), _kept(self.what):
            for each in snapshot.manifests(self.table.io):
                if each.added_snapshot_id != snapshot.snapshot_id or operation == "replace":
                    continue
                for entry in each.fetch_manifest_entry(self.table.io, discard_deleted=False):
                    if entry.snapshot_id != snapshot.snapshot_id or entry.status == statuses.EXISTING:
                        continue
                    if entry.status == statuses.ADDED and each.content == contents.DATA:
                        added.append(self._added(entry.data_file))
                    else:
                        removes = True
        return TableVersion(
            number=snapshot.sequence_number,
            added=tuple(sorted(added, key=lambda file: file.path)),
            removes=removes,
            operation=operation,
            id=snapshot.snapshot_id,
        )

    def _whole(self, snapshot: Any) -> TableVersion:
        """All files that the table had at a snapshot."""
        with self._place.errors(SourceUnavailableError), _kept(self.what), read_whole(self.what):
            tasks = list(self.table.scan(snapshot_id=snapshot.snapshot_id).plan_files())
        if any(task.delete_files for task in tasks):
            raise ConfigurationError(
                f"{self.what} has deleted rows in files of their own, which are not read here",
                "Rewrite its data files (rewrite_data_files of Spark), or begin with start='latest'.",
            )
        return TableVersion(
            number=snapshot.sequence_number,
            added=tuple(sorted((self._added(task.file) for task in tasks), key=lambda file: file.path)),
            removes=False,
            operation="snapshot",
            id=snapshot.snapshot_id,
        )

    def _added(self, file: Any) -> AddedFile:
        if str(file.file_format.value) != "PARQUET":
            raise ConfigurationError(
                f"{self.what} has files of format {file.file_format.value}, and Parquet is read here",
                "Rewrite them as Parquet (write.format.default).",
            )
        return AddedFile(
            path=file.file_path,
            bytes=file.file_size_in_bytes,
            rows=file.record_count,
            partition={"spec": file.spec_id, "values": self._values(file)},
        )

    def _values(self, file: Any) -> list[Any]:
        """Partition values of a file: a column that all rows of a file share may be missing in the file."""
        transforms: Any = require_extra("pyiceberg.transforms", EXTRA)
        values = []
        for column, value in zip(self._metadata.specs()[file.spec_id].fields, file.partition._data, strict=True):
            same = isinstance(column.transform, transforms.IdentityTransform)
            if same and not isinstance(value, str | int | float | bool | None):
                raise ConfigurationError(
                    f"{self.what} is partitioned by {column.name}: values of type {type(value).__name__} are not read",
                    "Partition it by texts, whole numbers, booleans, dates or times.",
                )
            values.append(value if same else None)
        return values


@contextmanager
def _kept(table: str) -> Iterator[None]:
    """
    :raises SourceChangedError: a manifest is gone.
    :raises DamagedInputError: a manifest cannot be read.
    """
    with _sound(f"a manifest of {table}", _DAMAGE):
        try:
            yield
        except FileNotFoundError as error:
            raise SourceChangedError(
                f"a manifest of {table} is gone ({error})",
                "Files of snapshots that are to be read were removed: restore them from a copy. " + _ANEW,
            ) from error


@contextmanager
def _sound(subject: str, damage: tuple[type[Exception], ...]) -> Iterator[None]:
    """:raises DamagedInputError: pyiceberg cannot make sense of a file of the table, and raises one of `damage`."""
    try:
        yield
    except damage as error:
        reason = (str(error).splitlines() or [""])[0]
        raise DamagedInputError(
            f"{subject} cannot be read ({type(error).__name__}: {reason})", "Restore it from a copy."
        ) from error


def _load(place: IcebergPlace, table: str) -> Any:
    exceptions: Any = require_extra("pyiceberg.exceptions", EXTRA)
    catalog, damage = place.open_catalog(), (UnicodeError, exceptions.ValidationError)
    try:
        with place.errors(SourceUnavailableError), _sound(f"the metadata file of {table}", damage):
            return catalog.load_table(place.name)
    except SourceUnavailableError as error:
        if isinstance(error.__context__, exceptions.NoSuchTableError):
            raise SourceUnavailableError(f"there is no {table[4:]}", "Make it, or correct the spout's name.") from None
        raise
    finally:
        place.close(catalog)


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
    :param column: as for DeltaSpout: a column that the table is partitioned by as it is, and not by a transform of it.
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
        column: str = "",
    ) -> None:
        self._reading = TableReading.of(
            "TableSpout", start, changes, max_files=max_files, max_bytes=max_bytes, max_rows=max_rows
        )
        self._place = IcebergPlace(name=name, catalog=catalog, conn_id=conn_id, properties=properties or {})
        self.schema = parse_declared(fields, [])
        self._column, self.needs_partitions = column, bool(column)

    def bound(self, partitions: Partitions) -> BoundTable:
        """
        :raises PlanError: nothing says which files are those of a partition.
        """
        return bound_table(self, self._column, partitions, partial(_open, self._place))

    def coordinator(self) -> VersionsCoordinator:
        return VersionsCoordinator(partial(_open, self._place), _span, self.schema, self._reading)

    def emitter(self) -> IcebergEmitter:
        return IcebergEmitter(self._place.resolved(), self.schema)

    def describe(self) -> str:
        return f"TableSpout({self._place.name})"

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
        if any("struct<" in column.type for column in self.row_schema):
            return None
        bodies: list[Any] = [split.body for split in self.last.of(metadata) or self.splits(metadata)]
        file_system, paths = self._in_spark(session, [body["path"] for body in bodies])
        if file_system is None:
            return None
        return frame_of(session, self.row_schema, _files(paths, bodies), self._is_like(bodies), file_system)

    def is_everywhere(self, metadata: Json) -> bool:
        bodies: list[Any] = [split.body for split in self.last.of(metadata) or self.splits(metadata)]
        return all("://" in body["path"] and not body["path"].startswith("file:") for body in bodies)

    def batch_for_script(self, metadata: Json, folder: str) -> ScriptBatch | None:
        """Files of this machine."""
        if metadata is None or any("struct<" in column.type for column in self.row_schema):
            return None
        bodies: list[Any] = [split.body for split in self.last.of(metadata) or self.splits(metadata)]
        paths = [str(body["path"]).removeprefix("file://") for body in bodies]
        if not bodies or not all(map(os.path.isabs, paths)):
            return None
        return files_for_script(self.row_schema, _files(paths, bodies), self._is_like(bodies))

    def _is_like(self, bodies: list[Any]) -> Callable[[int, pa.Schema], bool]:
        columns = _Columns.of(bodies[0]["table"], self.row_schema)
        return lambda place, file_schema: columns.are_in(file_schema, bodies[place]["spec"])

    def _in_spark(self, session: Any, urls: list[str]) -> tuple[FilesForSpark | None, list[str]]:
        """Where the files are, with their paths there."""
        schemes = {url.partition("://")[0] if "://" in url else "file" for url in urls}
        paths = [url.partition("://")[2] if "://" in url else url for url in urls]
        if schemes == {"file"}:
            return (HERE if all(map(os.path.isabs, paths)) else None), paths
        if not schemes:
            return None, paths
        subject = f"Iceberg table {self.place.name}"
        settings = self.place.s3_settings() if schemes <= {"s3", "s3a"} else OTHER_SERVICE
        if isinstance(settings, str):
            say_python_reads(subject, settings)
            return None, paths
        return in_buckets(session, subject, *settings), paths

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        body: Any = split.body
        subject, rows = f"the file {body['path']!r} of the Iceberg table {self.place.name!r}", 0
        cure = "Its snapshot was expired too early: keep snapshots as long as transactions may be replayed."
        with (
            self.place.errors(SourceUnavailableError),
            reading_file(subject, self.row_schema, (pa.ArrowException, ValueError), cure=cure),
        ):
            for batch in self._batches(body):
                yield fitted_batch(batch, self.row_schema, subject, first_row=rows)
                rows += batch.num_rows
        require_rows(subject, rows, body["rows"])

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

    def are_in(self, file_schema: pa.Schema, spec: int) -> bool:
        """Does each name mean the same column in this file? A column that the file lacks must be null, and neither the
        value of a partition nor a default of the column.

        :param spec: of the file's partition.
        """
        reading: Any = require_extra("pyiceberg.io.pyarrow", EXTRA)
        unknown: tuple[type[Exception], ...] = (ValueError, TypeError, *faults())
        try:
            iceberg_schema = reading.pyarrow_to_schema(
                file_schema, self.metadata.name_mapping(), downcast_ns_timestamp_to_us=True
            )
        except unknown:
            return False  # a type, or a column without id, about which its reader decides
        names = {column.field_id: column.name for column in iceberg_schema.fields}
        filled = {partition_field.source_id for partition_field in self.metadata.specs()[spec].fields}
        filled |= {column.field_id for column in self.metadata.schema().fields if column.initial_default is not None}
        return all(
            names[number] == name if number in names else name not in file_schema.names and number not in filled
            for name, number in self.ids.items()
        )


def _files(paths: list[str], bodies: list[Any]) -> list[FileOfTable]:
    return [FileOfTable(path=path, rows=body["rows"], partition={}) for path, body in zip(paths, bodies, strict=True)]


def _open(place: IcebergPlace) -> IcebergLog:
    return IcebergLog(place.resolved())


def _span(metadata: Json) -> Span:
    return Span.of(metadata, "a TableSpout of an IcebergTable", with_ids=True)


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
