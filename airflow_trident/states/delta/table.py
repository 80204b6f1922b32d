"""Appends rows to a Delta table that everybody may read and write: staged files become files of the table.

A commit of the table contains the batch's files and an application transaction, whose version is a random token. The
token names a file below the table, `_trident/<topology>-<state>/<token>.json`, which holds the marker. It is written
before the commit and is valid from the commit on. The log keeps application transactions for ever (unless the table's
`delta.setTransactionRetentionDuration` is set); neither vacuum nor clean-up of the log touches the file. Each decision
about a batch is read from one version of the table; the commit is the next version, or none.

If others append, compact, vacuum, delete or overwrite meanwhile, everything is decided anew. A table that was restored
to a version before the marker's is refused.

Does the store of a Delta table in a bucket give a name away only once? delta-rs relies on that without a check.

Commits that are the next version of a Delta table, or none. Without an answer, the table itself is asked.

Deletion vectors of Delta tables: rows of a file that no longer count, though the file still has them.

Entries of a Delta table's log for a file, made from the file's footer.

A committed version of a Delta table, for copy-on-write.

Checks of a Delta table before rows are added by reference: Delta itself does not check such files.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from airflow_trident.contracts.state import (
    BatchKeys,
    Capabilities,
    CommittedTable,
    Marker,
    StagedPart,
    StateFactory,
    StateSpec,
)
from airflow_trident.errors import ConfigurationError, CorruptRecordError, OutcomeUnknownError, is_of_driver
from airflow_trident.io.arrow import Calendar, PartitionValues, arrow_schema, require_fit
from airflow_trident.io.connections import require_extra
from airflow_trident.io.datasets import Dataset, file_dataset
from airflow_trident.io.delta import EXTRA, DeltaPlace
from airflow_trident.io.object_place import ObstorePlace
from airflow_trident.io.object_stores import ObjectAddress
from airflow_trident.io.parquet import calendar_of, null_counts, parquet_file, write_parquet
from airflow_trident.io.paths import AnyPath
from airflow_trident.protocol.durable_format import Format
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.states.core.checks import application_of, file_names, require_columns
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
    may_have,
    not_partitioned_so,
    note_of,
    number_of,
    putting,
    require_no_empty_text,
    require_partitions,
    why_not_owned,
)
from airflow_trident.types import INTERVAL, has_times

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

_SCHEMES = ("s3", "s3a")
_SETTINGS = {
    name: name
    for name in (
        "access_key_id",
        "secret_access_key",
        "session_token",
        "region",
        "endpoint",
        "virtual_hosted_style_request",
    )
} | {"endpoint_url": "endpoint", "default_region": "region"}
"""Storage option of delta-rs, without ``aws_`` -> setting of obstore."""


def require_conditions(place: DeltaPlace) -> None:
    """:raises ConfigurationError: it does not: two committers could both write the next version.
    :raises MissingExtraError: the check needs obstore.
    """
    parts = urlsplit(place.where)
    if parts.scheme not in _SCHEMES:
        return
    options = {name.lower().removeprefix("aws_"): value for name, value in place.options.items()}
    settings = {_SETTINGS[name]: value for name, value in options.items() if name in _SETTINGS}
    bucket = ObjectAddress(bucket=parts.netloc, prefix=parts.path.strip("/"), settings=tuple(sorted(settings.items())))
    ObstorePlace(bucket).check()


_REFUSED = (
    "Unsupported ",
    "Table features must be specified",
    "Writer features must be specified",
    "Reader features must be specified",
    "The transaction includes Remove action",
)
"""How deltalake begins to say that the table takes no such commit, whoever else writes."""
_NO_ANSWER = "Transaction failed"
"""Said of a lock table that did not answer."""


@contextmanager
def next_version(place: DeltaPlace, undo: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Wraps a commit that Delta must not repeat by itself.

    :param undo: takes back what was written for a commit that the table refuses. It stays where another version was
        found instead: that may be this commit, if the store did it, answered with a failure, and was asked again.
    :raises Overtaken: the commit is not the next version of the table.
    :raises OutcomeUnknownError: it is unknown whether it is.
    :raises ConfigurationError: the table takes no such commit, or this user may not commit to it.
    """
    errors: Any = require_extra("deltalake.exceptions", EXTRA)
    try:
        yield
    except BaseException as error:
        if not is_of_driver(error):
            raise
        text = str(error)
        if not isinstance(error, errors.CommitFailedError) or text.startswith(_NO_ANSWER):
            if refusal := place.refusal(error):
                raise refusal from None
            raise OutcomeUnknownError(
                f"the commit to the Delta table {place.where!r} ended without an answer ({place.text_of(error)})",
                "Run the task again: the table knows what is applied.",
            ) from None
        if text.startswith(_REFUSED):
            undo()
            raise ConfigurationError(
                f"the Delta table {place.where!r} has something that deltalake does not write ({place.conceal(text)})",
                "Drop that feature of the table, or write to another table.",
            ) from None
        raise Overtaken from error


_FEATURE = "deletionVectors"
_ENABLED = "delta.enableDeletionVectors"
_CURE = (
    f"Set {_ENABLED} to false, run REORG TABLE ... APPLY (PURGE) in Spark, and run the task again; or write to "
    "another table."
)


def why_not_whole(table: Any) -> tuple[str, str] | None:
    """Why files of this version may have rows that do not count, or soon will; with the cure.

    :param table: the `deltalake.DeltaTable`.
    """
    if _has_vectors(table):
        return "it has deletion vectors, so its files have rows that are deleted", _CURE
    if (table.metadata().configuration.get(_ENABLED) or "").lower() == "true":
        return f"it may get deletion vectors ({_ENABLED}), so that its files have rows that are deleted", _CURE
    return None


def require_whole_files(table: Any) -> None:
    """For who reads or removes files of this version by themselves.

    :raises ConfigurationError: a file has rows that are deleted: they would come back, or the file would stay.
    """
    if _has_vectors(table):
        raise ConfigurationError(
            f"the Delta table {table.table_uri!r} has deletion vectors, so its files have rows that are deleted", _CURE
        )


def _has_vectors(table: Any) -> bool:
    """Only tables with the feature can have them, so that others cost nothing."""
    import pyarrow as pa

    if _FEATURE not in (table.protocol().reader_features or ()):
        return False
    return any(batch.num_rows for batch in pa.table(table.deletion_vectors()).to_batches())


_PLAIN = re.compile(r"(?:[\w=/.-]|%25)*", re.ASCII)
_BOUNDED = (str, int, datetime.date)
"""Types whose bounds in the log are exact. Those of decimals may have been rounded."""
_TRUNCATED = datetime.timedelta(milliseconds=1)
"""The log has times in milliseconds, cut off."""
_LONGEST = 32
"""Longest text in statistics, in characters, as in Delta itself."""


def described(footer: Any, path: str, size: int, columns: Collection[str], partition: Mapping[str, Any]) -> NewFile:
    """
    :param footer: `pyarrow.parquet.FileMetaData`.
    :param columns: of the table.
    :param partition: the value of each partition column.
    """
    transaction: Any = require_extra("deltalake.transaction", EXTRA)
    nulls = null_counts(footer)
    stats = json.dumps(_statistics(footer, nulls, set(columns) - set(partition)))
    entry = transaction.AddAction(path, size, texts(partition), _now_ms(), True, stats)
    return NewFile(path=path, bytes=size, values=tuple(partition.values()), nulls=nulls, entry=entry)


def old_files(table: Any, keys: Sequence[str] = ()) -> list[OldFile]:
    """The files of the version that a `deltalake.DeltaTable` is at.

    :param keys: the columns whose bounds are wanted.
    :raises ConfigurationError: not all of their rows count.
    """
    import pyarrow as pa

    require_whole_files(table)
    names = table.metadata().partition_columns
    actions = pa.table(table.get_add_actions(flatten=True))
    # Statistics of other columns may be values that Python does not have.
    parts = [f"{part}.{name}" for part, columns in _parts(names, keys) for name in columns]
    rows = actions.select(["path", "size_bytes", *(part for part in parts if part in actions.column_names)]).to_pylist()
    return [
        OldFile(
            path=row["path"],
            bytes=row["size_bytes"],
            values=tuple(row[f"partition.{name}"] for name in names),
            entry={"partition": {name: row[f"partition.{name}"] for name in names}},
            bounds=dict(_bounds(row, keys)),
        )
        for row in rows
    ]


def _parts(partition_by: Sequence[str], keys: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    yield "partition", partition_by
    yield "min", keys
    yield "max", keys


def _bounds(action: Mapping[str, Any], keys: Sequence[str]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for name in keys:
        if (value := action.get(f"partition.{name}")) is not None:
            yield name, (value, value)
            continue
        low, high = action.get(f"min.{name}"), action.get(f"max.{name}")
        if isinstance(low, datetime.datetime) and isinstance(high, datetime.datetime):
            yield name, (low, high + _TRUNCATED)
        elif type(low) is type(high) and type(low) in _BOUNDED:
            yield name, (low, high)


def rows_of(source: Any, file: OldFile, table: Any, columns: Sequence[str] | None) -> pa.Table:
    """:param source: the file's content.
    :param table: the `deltalake.DeltaTable`; files of other writers lack its partition columns.
    :param columns: None: all of the table's.
    """
    import pyarrow as pa

    schema = pa.schema(table.schema().to_arrow())
    wanted = pa.schema([schema.field(name) for name in (schema.names if columns is None else columns)])
    return pa.Table.from_batches(pieces_of(source, file, schema, table.metadata().partition_columns, columns), wanted)


def pieces_of(
    source: Any, file: OldFile, schema: pa.Schema, partition_by: Sequence[str], columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """As :func:`rows_of`, piece by piece.

    :param schema: all columns of the table.
    :raises UnfitValueError: a day or a moment was counted in another calendar.
    """
    import pyarrow as pa

    wanted = [schema.field(name) for name in (schema.names if columns is None else columns)]
    values = dict(zip(partition_by, file.values or (), strict=True))
    read = parquet_file(source)
    calendar = calendar_of(read.metadata)
    names = [column.name for column in wanted if column.name in read.schema_arrow.names and column.name not in values]

    def whole(rows: pa.RecordBatch | None, many: int) -> pa.RecordBatch:
        columns_of_table = [
            rows.column(column.name).cast(column.type)
            if rows is not None and column.name in names
            else pa.repeat(pa.scalar(values.get(column.name), column.type), many)
            for column in wanted
        ]
        return pa.record_batch(columns_of_table, schema=pa.schema(wanted))

    if not names:
        yield whole(None, read.metadata.num_rows)
        return
    for rows in read.iter_batches(columns=names):
        if calendar is not Calendar.GREGORIAN:  # of a file that an old Spark wrote
            require_fit(pa.Table.from_batches([rows]), calendar)
        yield whole(rows, rows.num_rows)


def removed(file: OldFile) -> Any:
    """A remove action. Paths are as in the log. The remove action encodes them once more; if the result differed, the
    file would stay in the table.

    :raises ConfigurationError: the path would differ.
    """
    transaction: Any = require_extra("deltalake.transaction", EXTRA)
    if not _PLAIN.fullmatch(file.path):
        raise ConfigurationError(
            f"the file {file.path!r}, whose rows are to be replaced, has a name that cannot be removed safely",
            "Delete its rows by the program that wrote it, and run the commit again.",
        )
    path = file.path.replace("%25", "%")
    return transaction.RemoveAction(path, True, _now_ms(), file.bytes, texts(file.entry.get("partition") or {}))


def texts(partition: Mapping[str, Any]) -> dict[str, str | None]:
    """Values as texts of the log."""
    return {name: None if value is None else str(_json(value)) for name, value in partition.items()}


def _now_ms() -> int:
    """For the log's own times; nothing depends on them."""
    return time.time_ns() // 1_000_000


def _statistics(footer: Any, nulls: dict[str, int], columns: Collection[str]) -> dict[str, Any]:
    """Only values with one meaning for every reader: NaN, times and decimals get no minimum and maximum. And only if
    all columns have them: delta-rs takes a missing one for a null and finds no row of the file."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for place in range(footer.num_columns):
        column = footer.schema.column(place)
        if column.path not in columns or column.max_repetition_level:
            continue  # part of another column
        parts = [group.column(place).statistics for group in groups]
        extremes = list(_extremes(parts))
        if len(extremes) == len(parts) and extremes and all(_is_plain(value) for pair in extremes for value in pair):
            lowest[column.name] = _json(min(low for low, _ in extremes))
            highest[column.name] = _json(max(high for _, high in extremes))
    stats: dict[str, Any] = {"numRecords": footer.num_rows, "nullCount": nulls}
    if lowest.keys() == set(columns):
        stats |= {"minValues": lowest, "maxValues": highest}
    return stats


def _extremes(parts: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    for part in parts:
        with contextlib.suppress(OverflowError, ValueError):  # a day or a moment that Python does not have
            if part is not None and part.has_min_max:
                yield part.min, part.max


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST
    return type(value) in (int, datetime.date)


def _json(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, datetime.date) else value


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
            files=tuple(replace(file, entry=None) for file in old_files(table, keys)),
            keys=keys,
        )

    @property
    def version(self) -> str:
        return self.at

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(file.path for file in self.files)

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
        subject = f"the file {file.path!r} of version {self.version} of the Delta table {self.place.where!r}"
        with self.place.errors() if self._is_remote else nullcontext(), file_there(subject):
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
        return {file.path for file in old_files(place.table(number))}
    except errors.DeltaError:
        return None


_OF_COLUMNS = ("delta.invariants", "delta.generationExpression", "delta.identity")
_ON = "true"
_FEATURES = frozenset(
    {
        "appendOnly",
        "invariants",
        "checkConstraints",
        "changeDataFeed",
        "generatedColumns",
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    }
)
"""Writer features of a table that files added by reference cannot break, or for which there is a check here."""
_IDENTITY_VERSION = 6
"""The writer version that has identity columns without naming them as a feature; deltalake does not write it."""


def require_delta_columns(spec: StateSpec, taken: tuple[str, ...] = ()) -> None:
    """:param taken: names of other columns of the table.
    :raises ConfigurationError: the fields cannot be columns of one Delta table.
    """
    for each in (*spec.keys, *spec.values):
        if has_times(each.type) or INTERVAL in each.type:
            raise ConfigurationError(
                f"state {spec.name!r} has the field {each.name!r} of type {each.type}; Delta tables have neither times "
                "nor intervals",
                "Keep a long of microseconds, or a text.",
            )
    require_columns(spec, taken, "a Delta table cannot tell from another column")


def require_table(table: Any, spec: StateSpec, location: str) -> None:
    """:raises ConfigurationError: files with the fields of `spec` cannot be added without a rewrite."""
    why = _why_not(table, spec)
    if why:
        raise ConfigurationError(
            f"sink {spec.name!r} cannot write to the Delta table {location!r}: {why[0]}",
            why[1],
        )


def _why_not(table: Any, spec: StateSpec) -> tuple[str, str] | None:
    metadata = table.metadata()
    settings = {name: value for name, value in metadata.configuration.items() if value is not None}
    another = "Append to another table."
    if why := not_partitioned_so(metadata.partition_columns, spec):
        return why
    if why := why_not_owned(metadata.description, spec):
        return why
    replaces = spec.overwrites or bool(spec.keys)
    if replaces and (why := why_not_whole(table)):
        return why
    if replaces and settings.get("delta.appendOnly", "").lower() == _ON:
        return "it is append-only, and rows of it would be replaced", another
    for name, value in sorted(settings.items()):
        if name.startswith("delta.constraints."):
            return f"it has the constraint {name.removeprefix('delta.constraints.')} ({value})", another
        if name == "delta.columnMapping.mode" and value != "none":
            return "it maps names of columns", another
        if name == "delta.enableRowTracking" and value.lower() == _ON:
            return "it tracks rows", another
        if name == "delta.setTransactionRetentionDuration":
            return f"{name} is set, so that it forgets what was applied", "Unset it."
    return _why_not_columns(table.schema(), spec) or _why_not_features(table.protocol())


def _why_not_features(protocol: Any) -> tuple[str, str] | None:
    cure = "Drop what it does not need (ALTER TABLE ... DROP FEATURE in Spark), or write to another table."
    if others := sorted(set(protocol.writer_features or ()) - _FEATURES):
        return f"it has features that are not written here: {', '.join(others)}", cure
    if protocol.min_writer_version == _IDENTITY_VERSION:
        return f"its writer version is {_IDENTITY_VERSION}, that of identity columns", cure
    return None


def _why_not_columns(schema: Any, spec: StateSpec) -> tuple[str, str] | None:
    module: Any = require_extra("deltalake", EXTRA)
    wanted = {column.name: column.type for column in module.Schema.from_arrow(arrow_schema(spec.staged)).fields}
    columns = {column.name: column for column in schema.fields}
    for column in schema.fields:
        rule = next((name for name in column.metadata if name.startswith(_OF_COLUMNS)), None)
        if rule is not None:
            return f"its column {column.name} has {rule}", "Append to another table."
        if column.name not in wanted and not column.nullable:
            return f"its column {column.name} takes no nulls, and the stream has no such field", "Add the field."
    for name, kind in wanted.items():
        if name not in columns:
            return f"it has no column {name}", f"Add it to the table, or leave it out of the stream ({_of(schema)})."
        if json_of(columns[name].type) != json_of(kind):
            return (
                f"its column {name} is {json_of(columns[name].type)}, and the field {json_of(kind)}",
                "Convert the field before.",
            )
    return None


def json_of(kind: Any) -> str:
    """A type in the words of the table's log."""
    return str(kind.to_json()).replace('"', "")


def _of(schema: Any) -> str:
    return "it has " + ", ".join(column.name for column in schema.fields)


META = "_trident"
_FOLDERS = file_names("-")
_RESTORE = "RESTORE"
_FORMAT = Format(
    noun="the marker",
    version=1,
    key="version",
    cure="Restore the file from a copy of the table's folder.",
)


@dataclass(frozen=True)
class DeltaTable(StateFactory):
    """A Delta table, made if missing; rows are appended unchanged.

    :param path: its folder, or a URI such as ``s3://bucket/sales``. Airflow's ObjectStoragePath brings its connection.
    :param conn_id: an Airflow connection (``aws``, ``wasb``, ``google_cloud_platform``, or one whose extras are storage
        options of delta-rs).
    :param storage_options: override those of the connection.
    :param partition_by: its partition columns.
    """

    path: AnyPath
    conn_id: str | None = None
    storage_options: Mapping[str, str] | None = field(default=None, repr=False, hash=False)
    partition_by: str | Sequence[str] = field(default=(), hash=False)

    capabilities = Capabilities(
        durable=True, atomic=True, appends=True, by_reference=True, rewrites=True, partitions=True
    )

    def __post_init__(self) -> None:
        place = self.place()  # refuses an invalid place
        object.__setattr__(self, "path", place.uri)
        object.__setattr__(self, "conn_id", place.conn_id)

    def place(self) -> DeltaPlace:
        return DeltaPlace.of(self.path, self.conn_id, self.storage_options)

    def validate(self, spec: StateSpec) -> None:
        require_delta_columns(spec)
        require_partitions(spec, self.describe())

    def make_state(self, spec: StateSpec) -> OpenDeltaTable:
        """
        :raises ConfigurationError: the table has other columns, or a feature that files added by reference would break.
        """
        self.validate(spec)
        return OpenDeltaTable(self.place().resolved(), spec)

    def lineage_dataset(self, spec: StateSpec) -> Dataset:
        return file_dataset(str(self.path))

    def describe(self) -> str:
        return f"DeltaTable({self.path})"

    def __getstate__(self) -> dict[str, Any]:
        """The receiving process may not have the Airflow connection, so send resolved settings."""
        place = self.place().resolved(required=False)
        return {**self.__dict__, "conn_id": place.conn_id, "storage_options": dict(place.options)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """The marker's file. `of`: topology and state. `table_version`: the table version of its commit. `before`: the
    token that it replaced."""

    of: tuple[str, str]
    marker: dict[str, Any]
    table_version: int
    before: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known(Known):
    """`commit`: the token. `before`: the token that it replaced."""

    before: int | None = None


class OpenDeltaTable(AppendingState):
    """See :class:`DeltaTable`. Not for several threads at the same time."""

    def __init__(self, place: DeltaPlace, spec: StateSpec) -> None:
        super().__init__(spec)
        self.place = place
        self._app = application_of(spec)
        self._meta = f"{META}/{_FOLDERS.of(spec.topology, spec.name)}"
        with place.errors():
            self._table = self._open()
            self._files = place.files()
        require_conditions(place)
        self._known()

    @property
    def _what(self) -> str:
        return f"the Delta table {self.place.where!r}"

    def _open(self) -> Any:
        module: Any = require_extra("deltalake", EXTRA)
        errors: Any = require_extra("deltalake.exceptions", EXTRA)
        try:
            return self.place.table()
        except errors.TableNotFoundError:
            self.place.make_folder()
        try:
            return module.DeltaTable.create(
                self.place.where,
                schema=arrow_schema(self._spec.staged),
                description=note_of(self._spec),
                partition_by=list(self._spec.partition_by) or None,
                storage_options=dict(self.place.options) or None,
            )
        except errors.DeltaError:
            return self.place.table()  # another process was first

    # ---- what is known -----------------------------------------------------------------------------------------

    def _known(self) -> _Known:
        """From one version of the table; all later questions use the same version."""
        with self.place.errors():
            for last in (False, True):
                self._table.update_incremental()
                require_table(self._table, self._spec, self.place.where)
                last_token = self._table.transaction_version(self._app)
                if last_token is None:
                    return _Known()
                token = int(last_token)
                try:
                    content = self._content(token)
                except FileNotFoundError:
                    if last:  # else others committed twice since the token was read
                        raise CorruptRecordError(
                            f"the Delta table {self.place.where!r} has no file {self._path(token)!r}, with what is "
                            f"applied of state {self._spec.name!r}",
                            _FORMAT.cure,
                        ) from None
                    continue
                self._require_not_restored(content)
                marker = _FORMAT.build(Marker, content.marker, self._shown(token), needed=("holes",))
                return _Known(marker=marker, commit=token, before=content.before)
        raise AssertionError

    def _content(self, token: int) -> _Content:
        with self._files.open_input_file(self._path(token)) as file:
            data = file.read()
        content = _FORMAT.build(_Content, _FORMAT.load(data, self._shown(token)), self._shown(token))
        if tuple(content.of) != (self._spec.topology, self._spec.name):
            raise _FORMAT.damaged(self._shown(token), f"it is of {content.of}")
        return content

    def _require_not_restored(self, content: _Content) -> None:
        """A restored table keeps its application transactions, whichever rows it lost."""
        now, ours = int(self._table.version()), content.table_version
        restored = {
            int(commit["version"]): (commit.get("operationParameters") or {}).get("version")
            for commit in (self._table.history(now - ours) if now > ours else ())
            if commit.get("operation") == _RESTORE
        }
        while (last := max((version for version in restored if ours < version <= now), default=None)) is not None:
            to = restored[last]
            if to is not None and int(to) >= ours:
                now = int(to)  # the content of that version is back
            else:
                raise CorruptRecordError(
                    f"the Delta table {self.place.where!r} was restored to "
                    f"{'another time' if to is None else f'version {to}'}, and what state {self._spec.name!r} of "
                    f"topology {self._spec.topology!r} appended last came with version {content.table_version}",
                    f"Restore it to version {content.table_version} or a later one; or give the topology another "
                    "table, and replay into that.",
                )

    def _path(self, token: int) -> str:
        return f"{self._meta}/{token}.json"

    def _shown(self, token: int) -> str:
        return f"{self.place.where.rstrip('/')}/{self._path(token)}"

    # ---- applying ----------------------------------------------------------------------------------------------

    def _bring(self, ticket: CommitTicket, staged: StagedPart, footer: Any, values: PartitionValues) -> NewFile:
        require_no_empty_text(self._what, self._spec.partition_by, values)
        name = file_name(ticket)
        with self.place.errors():
            put = putting(partial(self._files.open_output_stream, name), self.place.errors)
            size = bring(staged, self.place.target(name), put, lambda: self._files.get_file_info(name).size)
            return self._described(footer, name, size, values)

    def _write(self, name: str, table: pa.Table, values: PartitionValues) -> NewFile:
        import pyarrow.parquet as pq

        require_no_empty_text(self._what, self._spec.partition_by, values)
        with self.place.errors():
            with self._files.open_output_stream(name) as file:
                write_parquet(table, file)
                size = file.tell()
            with self._files.open_input_file(name) as file:
                return self._described(pq.read_metadata(file), name, size, values)

    def _described(self, footer: Any, name: str, size: int, values: PartitionValues) -> NewFile:
        columns = [column.name for column in self._table.schema().fields]
        return described(footer, name, size, columns, dict(zip(self._spec.partition_by, values, strict=True)))

    def _files_of(self, head: Known) -> list[OldFile]:
        with self.place.errors():
            return old_files(self._table)

    def _committed(self, head: Known) -> CommittedDelta:
        with self.place.errors():
            return CommittedDelta.of(self.place, self._table, self._spec.key_names)

    def _version_of(self, head: Known) -> str:
        with self.place.errors():
            return identity(self._table)

    def _paths_at(self, head: Known, version: str) -> AbstractSet[str] | None:
        with self.place.errors():
            return paths_at(self.place, self._table, version)

    def _read(self, head: Known, file: OldFile, columns: Sequence[str] | None = None) -> pa.Table:
        with self.place.errors(), self._files.open_input_file(unquote(file.path)) as source:
            return rows_of(source, file, self._table, columns)

    def _required(self) -> set[str]:
        with self.place.errors():
            return {column.name for column in self._table.schema().fields if not column.nullable}

    def _commit(
        self, head: Known, marker: Marker, new: Sequence[NewFile], removed_files: Sequence[OldFile], tried: Tried
    ) -> None:
        assert isinstance(head, _Known)
        transaction: Any = require_extra("deltalake.transaction", EXTRA)
        token = secrets.randbits(62)
        with self.place.errors():
            self._write_marker(token, head, marker)
            tried[token] = partial(self._delete, self._path(token))
            properties = transaction.CommitProperties(
                app_transactions=[transaction.Transaction(self._app, token)], max_commit_retries=0
            )
            with next_version(self.place):
                self._table.create_write_transaction(
                    [*(file.entry for file in new), *map(removed, removed_files)],
                    mode="append",
                    schema=self._table.schema(),
                    partition_by=list(self._spec.partition_by) or None,
                    commit_properties=properties,
                )
        if head.before is not None:  # keep the one between for readers that have just read its token
            self._delete(self._path(head.before))
        del tried[token]

    def _write_marker(self, token: int, head: _Known, marker: Marker) -> None:
        content = {
            "version": _FORMAT.version,
            "of": [self._spec.topology, self._spec.name],
            # Rows of a sink are applied one transaction at a time, so there is never a group.
            "marker": {name: value for name, value in asdict(marker).items() if name != "group"},
            "table_version": int(self._table.version()) + 1,
            "before": head.commit,
        }
        self.place.make_folder(self._meta)
        with self._files.open_output_stream(self._path(token)) as file:
            file.write(json.dumps(content).encode())

    def _has_any(self, tried: Tried, new: Sequence[NewFile]) -> bool:
        import pyarrow as pa

        with self.place.errors():
            self._table.update_incremental()
            if self._table.transaction_version(self._app) in tried:
                return True
            has = set(pa.table(self._table.get_add_actions()).column("path").to_pylist()) if new else set()
            return any(file.path in has for file in new)

    def _delete(self, path: str) -> None:
        with contextlib.suppress(OSError):
            self._files.delete_file(path)
