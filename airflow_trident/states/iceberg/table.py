"""Appends rows to an Iceberg table that everybody may read and write: staged files become files of the table.

A commit is one request to the catalog, sent once. It adds a snapshot with the batch's files and sets the marker as a
property of the table. It requires that the main branch, the schema and the partitioning are still the ones that were
read. pyiceberg's own retry is not used: it repeats the same files on top of others' commits, which would add a batch
twice. A marker without a batch gets a snapshot without files: a property alone has no requirement, and would overwrite
that of a newer committer.

Properties outlive snapshots, so others may append, compact, delete, and expire snapshots. The marker names its
snapshot. Main must descend from it; otherwise somebody rolled the table back.

Files of an Iceberg table: their locations and their entries in manifests.

A committed version of an Iceberg table, for copy-on-write.

Checks of an Iceberg table before rows are added by reference: such files find their columns by name.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_trident.contracts.state import (
    BatchKeys,
    Capabilities,
    CommittedTable,
    Marker,
    StagedPart,
    StateFactory,
    StateSpec,
)
from airflow_trident.errors import ConfigurationError, CorruptRecordError, OutcomeUnknownError
from airflow_trident.io.arrow import PartitionValues, arrow_schema
from airflow_trident.io.connections import require_extra
from airflow_trident.io.datasets import Dataset
from airflow_trident.io.iceberg import EXTRA, IcebergPlace, pieces_of
from airflow_trident.io.parquet import null_counts, write_parquet
from airflow_trident.io.place import PlacedFile
from airflow_trident.protocol.durable_format import Format
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.states.core.checks import application_of, require_columns
from airflow_trident.states.tables.appending import (
    AppendingState,
    Known,
    NewFile,
    OldFile,
    Overtaken,
    Tried,
    bring,
    file_name,
    file_there,
    not_partitioned_so,
    note_of,
    putting,
    require_partitions,
    why_not_owned,
)
from airflow_trident.types import INTERVAL

if TYPE_CHECKING:
    import pyarrow as pa

_FIRST_DAY = date(1970, 1, 1).toordinal()
_FIRST_MOMENT = datetime(1970, 1, 1, tzinfo=UTC)
_BOUNDED: dict[str, Callable[[Any], Any]] = {
    "string": str,
    "int": int,
    "long": int,
    "boolean": bool,
    "date": lambda days: date.fromordinal(days + _FIRST_DAY),
    "timestamptz": lambda micros: _FIRST_MOMENT + timedelta(microseconds=micros),
}
"""Type -> a value of it, as Python has it, from what pyiceberg makes of its bytes."""


def local_path(location: str) -> str | None:
    """The path, if the file is on this machine's file system; its folder is made."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        return None
    path = parts.path if parts.scheme else location
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


def described(metadata: Any, footer: Any, location: str, size: int, values: PartitionValues) -> NewFile:
    """
    :param metadata: of the table (`pyiceberg.table.metadata.TableMetadata`), whose columns the file has by name.
    :param footer: `pyarrow.parquet.FileMetaData`.
    """
    module: Any = require_extra("pyiceberg.io.pyarrow", EXTRA)
    manifest: Any = require_extra("pyiceberg.manifest", EXTRA)
    types: Any = require_extra("pyiceberg.types", EXTRA)
    schema = metadata.schema()
    # A footer does not count NaN, and its bounds ignore NaN: a reader that trusts them would lose rows with NaN.
    plan = module.compute_statistics_plan(schema, metadata.properties)
    none = module.MetricsMode(module.MetricModeTypes.NONE)
    real = {
        number for number, column in plan.items() if isinstance(column.iceberg_type, types.FloatType | types.DoubleType)
    }
    statistics = module.data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns={
            number: replace(column, mode=none) if number in real else column for number, column in plan.items()
        },
        parquet_column_mapping=module.parquet_path_to_id_mapping(schema),
    ).to_serialized_dict()
    nulls = null_counts(footer)
    for number in real:
        if (count := nulls.get(plan[number].column_name)) is not None:
            statistics["value_counts"][number] = footer.num_rows
            statistics["null_value_counts"][number] = count
    entry = manifest.DataFile.from_args(
        content=manifest.DataFileContent.DATA,
        file_path=location,
        file_format=manifest.FileFormat.PARQUET,
        partition=record_of(values),
        file_size_in_bytes=size,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics,
    )
    return NewFile(path=location, bytes=size, values=values, nulls=nulls, entry=entry)


def old_files(table: Any, keys: Sequence[str] = ()) -> list[OldFile]:
    """The files of the snapshot that a `pyiceberg.table.Table` was loaded with. `entry` is its `FileScanTask`.

    :param keys: the columns whose bounds are wanted.
    """
    metadata = table.metadata
    columns = [metadata.schema().find_field(name) for name in keys]
    dates = [
        str(partition_field.field_type) == "date"
        for partition_field in metadata.spec().partition_type(metadata.schema()).fields
    ]
    return [
        OldFile(
            path=task.file.file_path,
            bytes=task.file.file_size_in_bytes,
            values=_values(task.file.partition._data, dates) if task.file.spec_id == metadata.default_spec_id else None,
            entry=task,
            deletes=tuple(sorted(delete_file.file_path for delete_file in task.delete_files)),
            bounds=dict(_bounds(task.file, columns)),
        )
        for task in table.scan().plan_files()
    ]


def _bounds(file: Any, columns: Sequence[Any]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """:param file: `pyiceberg.manifest.DataFile`. Its bounds of texts may be cut, and are then lower and higher.
    :param columns: `pyiceberg.types.NestedField`, of the table as it is now.
    """
    conversions: Any = require_extra("pyiceberg.conversions", EXTRA)
    for column in columns:
        lows, highs = file.lower_bounds or {}, file.upper_bounds or {}
        if column.field_id in lows and column.field_id in highs and str(column.field_type) in _BOUNDED:
            made = _BOUNDED[str(column.field_type)]
            with contextlib.suppress(ValueError, OverflowError, struct.error):  # of an older type, or no date of Python
                low, high = (
                    conversions.from_bytes(column.field_type, bounds[column.field_id]) for bounds in (lows, highs)
                )
                yield column.name, (made(low), made(high))


def _values(partition: Sequence[Any], dates: Sequence[bool]) -> PartitionValues:
    return tuple(
        date.fromordinal(value + _FIRST_DAY) if is_date and value is not None else value
        for value, is_date in zip(partition, dates, strict=True)
    )


def rows_of(table: Any, file: OldFile, columns: Sequence[str] | None) -> pa.Table:
    """Without the rows in delete files. Columns carry their ids, so renamed ones are found."""
    module: Any = require_extra("pyiceberg.io.pyarrow", EXTRA)
    expressions: Any = require_extra("pyiceberg.expressions", EXTRA)
    schema = table.metadata.schema()
    schema = schema if columns is None else schema.select(*columns)
    scan = module.ArrowScan(table.metadata, table.io, schema, expressions.AlwaysTrue())
    rows: pa.Table = scan.to_table(tasks=[file.entry]).cast(module.schema_to_pyarrow(schema))
    return rows


def record_of(values: PartitionValues) -> Any:
    """The partition of a file; dates are days since 1970."""
    typedef: Any = require_extra("pyiceberg.typedef", EXTRA)
    return typedef.Record(*(value.toordinal() - _FIRST_DAY if isinstance(value, date) else value for value in values))


def judging_each_manifest_alone(overwrite: Any) -> Any:
    """The same overwrite, with an evaluator for each manifest.

    An overwrite of pyiceberg 0.12 reads the manifests in threads that share one evaluator, which keeps the bounds that
    it looks at in a field. A thread judged another's manifest, and the overwrite missed files that are there ("Missing
    required files to delete").

    :param overwrite: `pyiceberg.table.update.snapshot._OverwriteFiles`.
    """
    shared = overwrite._build_manifest_evaluator

    def fresh(spec_id: int) -> Callable[[Any], bool]:
        return lambda manifest: bool(shared(spec_id)(manifest))

    overwrite._build_manifest_evaluator = fresh
    return overwrite


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
        return tuple(file.path for file in self.files)

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
        arrow: pa.Schema = module.schema_to_pyarrow(self.metadata.schema())
        return arrow


def identity(metadata: Any) -> str:
    """Each snapshot is another version: it may delete rows of a file that keeps its name. So is each schema,
    which makes no snapshot: what was written for the columns of before may have one that the table lacks now.

    :param metadata: `pyiceberg.table.metadata.TableMetadata`.
    """
    return f"{metadata.table_uuid}/{metadata.current_snapshot_id}/{metadata.current_schema_id}"


_SMALL = re.compile(r"(?<!\w)(?:byte|short)(?=[,>]|\Z)")
_VERSION = 2
_SIMPLE = {
    "StringType": "string",
    "LongType": "long",
    "IntegerType": "int",
    "DoubleType": "double",
    "FloatType": "float",
    "BooleanType": "boolean",
    "BinaryType": "binary",
    "DateType": "date",
    "TimeType": "time",
    "TimestamptzType": "timestamp",
}
CHANGES = "airflow-trident.changes"
"""The table property that names the keys of its changes, and their writer."""
_ANOTHER = "Append to another table."


def require_iceberg_columns(spec: StateSpec) -> None:
    """:raises ConfigurationError: the fields cannot be columns of one Iceberg table."""
    for each in spec.staged:
        if INTERVAL in each.type:
            raise ConfigurationError(
                f"state {spec.name!r} has the field {each.name!r} of type {each.type}, which no Iceberg table has",
                "Keep a long of microseconds, or a text.",
            )
    require_columns(spec, (), "many readers of an Iceberg table cannot tell from another column")


def require_table(metadata: Any, spec: StateSpec, name: str) -> None:
    """:param metadata: `pyiceberg.table.metadata.TableMetadata`.
    :raises ConfigurationError: files with the fields of `spec` cannot be added without a rewrite.
    """
    why = _why_not(metadata, spec)
    if why:
        raise ConfigurationError(f"sink {spec.name!r} cannot append to the Iceberg table {name!r}: {why[0]}", why[1])


def _why_not(metadata: Any, spec: StateSpec) -> tuple[str, str] | None:
    if metadata.format_version != _VERSION:
        return (
            f"it has format version {metadata.format_version}",
            "Upgrade it to version 2 (property format-version)." if metadata.format_version < _VERSION else _ANOTHER,
        )
    schema = metadata.schema()
    partitions = metadata.spec().fields
    for partition in partitions:
        if str(partition.transform) != "identity":
            of = schema.find_column_name(partition.source_id)
            return f"it is partitioned by {partition.transform} of {of}, and files have one value of a column", _ANOTHER
    if why := not_partitioned_so([schema.find_column_name(partition.source_id) for partition in partitions], spec):
        return why
    if why := why_not_owned(metadata.properties.get(CHANGES), spec):
        return why
    wanted = {column.name: _SMALL.sub("int", column.type) for column in spec.staged}
    columns_by_name = {column.name: column for column in schema.fields}
    for column in schema.fields:
        if column.name not in wanted and column.required:
            return f"its column {column.name} takes no nulls, and the stream has no such field", "Add the field."
    for name, kind in wanted.items():
        if name not in columns_by_name:
            columns = ", ".join(columns_by_name)
            return f"it has no column {name}", f"Add it to the table, or leave it out of the stream (it has {columns})."
        if (there := ddl_of(columns_by_name[name].field_type)) != kind:
            return f"its column {name} is {there}, and the field {kind}", "Convert the field before."
    return _why_not_by_name(metadata, columns_by_name, wanted)


def _why_not_by_name(metadata: Any, columns_by_name: dict[str, Any], wanted: dict[str, str]) -> tuple[str, str] | None:
    """Staged files have no column ids: readers find columns by the table's mapping of names to ids."""
    mapping = metadata.name_mapping()
    if mapping is None:
        return None
    ids = {name: mapped.field_id for mapped in mapping.root for name in mapped.names}
    for name in wanted:
        if ids.get(name) != columns_by_name[name].field_id:
            return f"its schema.name-mapping.default maps the name {name} to another column, or to none", "Mend that."
    return None


def ddl_of(kind: Any) -> str:
    """An Iceberg type as a field type, or in Iceberg's words if no field can have it."""
    name = type(kind).__name__
    if name == "DecimalType":
        return f"decimal({kind.precision},{kind.scale})"
    if name == "ListType":
        return f"array<{_part(kind.element_type, kind.element_required)}>"
    if name == "MapType":
        return f"map<{ddl_of(kind.key_type)},{_part(kind.value_type, kind.value_required)}>"
    if name == "StructType":
        members = (f"{member.name}:{_part(member.field_type, member.required)}" for member in kind.fields)
        return f"struct<{','.join(members)}>"
    return _SIMPLE.get(name, str(kind))


def _part(kind: Any, required: bool) -> str:
    return f"{ddl_of(kind)}{' without nulls' if required else ''}"


_NAMES = "schema.name-mapping.default"
_FORMAT = Format(
    noun="the marker",
    version=1,
    key="version",
    cure="Set the property to what it was: the files that the metadata log of the table names have each value.",
)


@dataclass(frozen=True)
class IcebergTable(StateFactory):
    """An Iceberg table, made if missing; rows are appended unchanged.

    :param name: with its namespace: ``sales.big_orders``.
    :param catalog: its name in the configuration of pyiceberg (``.pyiceberg.yaml``, ``PYICEBERG_CATALOG__...``).
    :param conn_id: an Airflow connection (``iceberg``): its host is the catalog's `uri`, login and password its
        `credential`, its extras are properties.
    :param properties: of the catalog, over those of the connection: ``{"type": "sql", "uri": ..., "warehouse": ...}``.
    :param partition_by: its partition columns.
    """

    name: str
    catalog: str = "default"
    conn_id: str | None = None
    properties: Mapping[str, str] | None = field(default=None, repr=False, hash=False)
    partition_by: str | Sequence[str] = field(default=(), hash=False)

    capabilities = Capabilities(
        durable=True, atomic=True, appends=True, by_reference=True, rewrites=True, partitions=True
    )

    def __post_init__(self) -> None:
        self.place()  # refuses an invalid name

    def place(self) -> IcebergPlace:
        return IcebergPlace(
            name=self.name, catalog=self.catalog, conn_id=self.conn_id, properties=self.properties or {}
        )

    def validate(self, spec: StateSpec) -> None:
        require_iceberg_columns(spec)
        require_partitions(spec, self.describe())

    def make_state(self, spec: StateSpec) -> OpenIcebergTable:
        """
        :raises ConfigurationError: there is no such catalog; or the table has other columns, or a feature that files
            added by reference would break.
        """
        self.validate(spec)
        return OpenIcebergTable(self.place().resolved(), spec)

    def lineage_dataset(self, spec: StateSpec) -> Dataset:
        return self.place().dataset

    def describe(self) -> str:
        return f"IcebergTable({self.name}, {self.catalog})"

    def __getstate__(self) -> dict[str, Any]:
        """The receiving process may not have the Airflow connection, so send resolved settings."""
        place = self.place().resolved(required=False)
        return {**self.__dict__, "conn_id": place.conn_id, "properties": dict(place.properties)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """The property. `of`: topology and state. `snapshot`: id of the snapshot of the same commit; `sequence`: its
    number."""

    of: tuple[str, str]
    marker: dict[str, Any]
    snapshot: int
    sequence: int


class OpenIcebergTable(AppendingState):
    """See :class:`IcebergTable`. Not for several threads at the same time."""

    def __init__(self, place: IcebergPlace, spec: StateSpec) -> None:
        super().__init__(spec)
        self.place = place
        self._app = application_of(spec)
        self._catalog = place.open_catalog()
        try:
            self._table = place.twice(self._open)
            self._known_now()
        except BaseException:
            self.place.close(self._catalog)
            raise

    @property
    def _what(self) -> str:
        return f"the Iceberg table {self.place.name!r}"

    def _open(self) -> Any:
        exceptions: Any = require_extra("pyiceberg.exceptions", EXTRA)
        with contextlib.suppress(exceptions.NoSuchTableError):
            return self._catalog.load_table(self.place.name)
        self._catalog.create_namespace_if_not_exists(self.place.name.rpartition(".")[0])
        # another process was first
        with contextlib.suppress(exceptions.TableAlreadyExistsError, exceptions.CommitFailedException):
            self._create()
        return self._catalog.load_table(self.place.name)

    def _create(self) -> None:
        schema, changes = arrow_schema(self._spec.staged), note_of(self._spec)
        properties = {} if changes is None else {CHANGES: changes}
        made = self._catalog.create_table_transaction(self.place.name, schema=schema, properties=properties)
        with made, made.update_spec() as partitions:
            for name in self._spec.partition_by:
                partitions.add_identity(name)

    # ---- what is known -----------------------------------------------------------------------------------------

    def _known(self) -> Known:
        with self.place.errors():
            self._table = self._catalog.load_table(self.place.name)
        return self._known_now()

    def _known_now(self) -> Known:
        """From the table as it was last loaded."""
        metadata = self._table.metadata
        require_table(metadata, self._spec, self.place.name)
        text = metadata.properties.get(self._app)
        if text is None:
            self._require_new()
            return Known()
        subject = f"{self._app!r} of {self._what}"
        content = _FORMAT.build(_Content, _FORMAT.load(text, subject), subject)
        if tuple(content.of) != (self._spec.topology, self._spec.name):
            raise _FORMAT.damaged(subject, f"it is of {content.of}")
        self._require_ancestor(content, subject)
        marker = _FORMAT.build(Marker, content.marker, subject, needed=("holes", "position"))
        return Known(marker=marker, commit=content.snapshot)

    def _require_new(self) -> None:
        if any((snapshot.summary or {}).get(self._app) for snapshot in self._table.metadata.snapshots):
            raise CorruptRecordError(
                f"{self._what} has no property {self._app!r}, with what is applied of state {self._spec.name!r}",
                _FORMAT.cure,
            )

    def _require_ancestor(self, content: _Content, subject: str) -> None:
        """Does main descend from the marker's snapshot? If that is expired, its remaining children are checked."""
        metadata = self._table.metadata
        at = metadata.current_snapshot()
        while at is not None and at.snapshot_id != content.snapshot and at.sequence_number > content.sequence:
            if (at.summary or {}).get(self._app):
                raise _FORMAT.damaged(subject, f"snapshot {at.snapshot_id} came with a later one")
            parent = at.parent_snapshot_id
            above = None if parent is None else metadata.snapshot_by_id(parent)
            if above is None and (parent is not None or metadata.snapshot_by_id(content.snapshot) is None):
                return  # expired: some tools forget the parent, too
            at = above
        if at is None or at.snapshot_id != content.snapshot:
            raise CorruptRecordError(
                f"{self._what} was rolled back or replaced: its main branch does not come from snapshot "
                f"{content.snapshot}, with which came what state {self._spec.name!r} of topology "
                f"{self._spec.topology!r} appended last",
                "Set main to that snapshot or to one that comes from it; or give the topology another table, and "
                "replay into that.",
            )

    # ---- applying ----------------------------------------------------------------------------------------------

    def _bring(self, ticket: CommitTicket, staged: StagedPart, footer: Any, values: PartitionValues) -> NewFile:
        with self.place.errors():
            location = self._table.location_provider().new_data_location(file_name(ticket))
            output = self._table.io.new_output(location)
            # Its name is unique: nobody has to ask, for each file, whether it is there.
            put = putting(partial(output.create, overwrite=True), self.place.errors)
            size = bring(staged, self._target(location), put, partial(_size, output))
            return described(self._table.metadata, footer, location, size, values)

    def _target(self, location: str) -> str | PlacedFile | None:
        return local_path(location) or self.place.stored(location)

    def _write(self, name: str, table: pa.Table, values: PartitionValues) -> NewFile:
        import pyarrow.parquet as pq

        with self.place.errors():
            location = self._table.location_provider().new_data_location(name)
            with self._table.io.new_output(location).create(overwrite=True) as file:
                write_parquet(table, file)
            written = self._table.io.new_input(location)
            with written.open() as file:
                return described(self._table.metadata, pq.read_metadata(file), location, len(written), values)

    def _required(self) -> set[str]:
        return {column.name for column in self._table.schema().fields if column.required}

    def _files_of(self, head: Known) -> list[OldFile]:
        with self.place.errors():
            return old_files(self._table)

    def _committed(self, head: Known) -> CommittedIceberg:
        with self.place.errors():
            return CommittedIceberg.of(self._table, self._spec.key_names)

    def _version_of(self, head: Known) -> str:
        return identity(self._table.metadata)

    def _read(self, head: Known, file: OldFile, columns: Sequence[str] | None = None) -> pa.Table:
        with self.place.errors():
            return rows_of(self._table, file, columns)

    def _commit(
        self, head: Known, marker: Marker, new: Sequence[NewFile], removed_files: Sequence[OldFile], tried: Tried
    ) -> None:
        errors: Any = require_extra("pyiceberg.exceptions", EXTRA)
        with self.place.errors():
            transaction = self._table.transaction()
            if self._table.metadata.name_mapping() is None:
                transaction.set_properties({_NAMES: self._table.schema().name_mapping.model_dump_json()})
            update = transaction.update_snapshot()
            append = judging_each_manifest_alone(update.overwrite()) if removed_files else update.fast_append()
            for file in removed_files:
                append.delete_data_file(file.entry.file)
            content = {**self._content(marker), "snapshot": append.snapshot_id}
            append.snapshot_properties = {self._app: json.dumps(_without_position(content))}
            for new_file in new:
                append.append_data_file(new_file.entry)
            append.commit()  # writes manifests; nothing refers to them yet
            transaction.set_properties({self._app: json.dumps(content)})
        tried[append.snapshot_id] = append._clean_all_uncommitted
        try:
            self._send(transaction)
        except errors.CommitFailedException as error:
            raise Overtaken from error
        except Exception as error:  # noqa: BLE001 - clients of catalogs have errors of their own for a lost answer
            if refusal := self.place.refusal(error):
                raise refusal from None
            raise OutcomeUnknownError(
                f"the commit to {self._what} ended without an answer ({self.place.conceal(str(error))})",
                "Run the task again: the table knows what is applied.",
            ) from None
        del tried[append.snapshot_id]

    def _content(self, marker: Marker) -> dict[str, Any]:
        return {
            "version": _FORMAT.version,
            "of": [self._spec.topology, self._spec.name],
            # Rows of a sink are applied one transaction at a time, so there is never a group.
            "marker": {name: value for name, value in asdict(marker).items() if name != "group"},
            "sequence": self._table.metadata.next_sequence_number(),
        }

    def _send(self, transaction: Any) -> None:
        """Sends once: `Transaction.commit_transaction` would send again, on top of others' commits."""
        update: Any = require_extra("pyiceberg.table.update", EXTRA)
        metadata = self._table.metadata
        requirements = (
            *transaction._requirements,  # main has not moved
            update.AssertTableUUID(uuid=metadata.table_uuid),
            update.AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
            update.AssertDefaultSpecId(default_spec_id=metadata.default_spec_id),
        )
        self._catalog.commit_table(self._table, requirements, transaction._updates)

    def _has_any(self, tried: Tried, new: Sequence[NewFile]) -> bool:
        with self.place.errors():
            self._table = self._catalog.load_table(self.place.name)
        return any(snapshot.snapshot_id in tried for snapshot in self._table.metadata.snapshots)

    def _delete(self, path: str) -> None:
        with contextlib.suppress(OSError):
            self._table.io.delete(path)

    def close(self) -> None:
        self.place.close(self._catalog)


def _without_position(content: Mapping[str, Any]) -> dict[str, Any]:
    """For the summary of a snapshot: each commit writes the summaries of all snapshots anew, and a spout's position may
    be large. Only that the summary is there is ever asked; its content is for people."""
    marker = {name: value for name, value in content["marker"].items() if name != "position"}
    return {**content, "marker": marker}


def _size(file: Any) -> int | None:
    """Of a file of pyiceberg, in bytes; None: there is none."""
    with contextlib.suppress(FileNotFoundError):
        return len(file)
    return None
