"""Appends rows to a table of plain Parquet files: staged files become files of the table.

A commit is the next version of the table (see :mod:`airflow_trident.staging.parquet_versions`): it names the
batch's files and holds the marker. Each decision about a batch is read from the version before. One step makes it
valid: creating a name that can be taken only once. Readers need neither a catalog nor a library.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.staged_batch import StagedPart
from airflow_trident.contracts.state import Capabilities, Marker, StateFactory, StateSpec
from airflow_trident.contracts.upkeep import ViewDialect
from airflow_trident.errors import (
    ConfigurationError,
    CorruptRecordError,
    OutcomeUnknownError,
    StoreUnavailableError,
    TridentError,
)
from airflow_trident.io.datasets import Dataset, file_dataset
from airflow_trident.io.local_paths import AnyPath
from airflow_trident.io.object_stores import StoredObject, require_place
from airflow_trident.io.parquet import write_parquet
from airflow_trident.io.partitioned import PartitionValues
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.staging.files import make_folder, sync_folder
from airflow_trident.staging.parquet_versions import (
    DATA,
    FORMAT,
    INLINE,
    AppliedState,
    ParquetVersion,
    ParquetVersions,
    TableFile,
    new_table_id,
)
from airflow_trident.staging.storage import storage_at
from airflow_trident.staging.verbs import Storage
from airflow_trident.states.core.checks import require_columns, require_short_name
from airflow_trident.states.parquet.committed import CommittedParquet, identity, paths_at
from airflow_trident.states.parquet.for_readers import dataset_of, relation_of, uri_of, values_of
from airflow_trident.states.parquet.new_entries import entry_of, marker_content
from airflow_trident.states.parquet.own_commits import MadeLists, has_any
from airflow_trident.states.tables.appending import Known, Tried
from airflow_trident.states.tables.keeping_up import KeptUpState
from airflow_trident.states.tables.new_files import NewFile, OldFile, bring, file_name
from airflow_trident.states.tables.partitions import not_partitioned_so, require_partitions
from airflow_trident.states.tables.upserts import changes_of, latest_rows, no_table, said_of, why_not_changes
from airflow_trident.states.tables.version_race import Overtaken
from airflow_trident.types import INTERVAL, ddl

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

_KEPT = 100


@dataclass(frozen=True)
class ParquetTable(StateFactory):
    """A folder of Parquet files with numbered versions, made if missing; rows are appended unchanged.

    :param path: the folder, shared by all committers, or ``s3://[connection@]bucket/prefix`` (connection type ``aws``),
        ``abfs://[connection@]container/prefix`` (``wasb``) or ``gs://[connection@]bucket/prefix``
        (``google_cloud_platform``), as a text or as Airflow's ObjectStoragePath; or ``hdfs://[connection@]/folder``
        (``webhdfs``).
    :param partition_by: its partition columns. The files contain them, too.
    :param keep_versions: this many versions, up to twice as many, stay readable; files that only older ones name are
        removed.
    """

    path: AnyPath
    partition_by: str | Sequence[str] = field(default=(), hash=False)
    keep_versions: int = _KEPT

    capabilities = Capabilities(durable=True, atomic=True, appends=True, by_reference=True, rewrites=True)

    def __post_init__(self) -> None:
        if self.keep_versions < 1:
            raise ConfigurationError(f"ParquetTable with keep_versions={self.keep_versions}", "Keep one or more.")
        object.__setattr__(self, "path", require_place("a Parquet table", self.path))

    def place(self) -> Storage:
        resolved: Storage | None = self.__dict__.get("resolved")
        return resolved or storage_at(str(self.path), "a Parquet table")

    def validate(self, spec: StateSpec) -> None:
        for each in spec.staged:
            if INTERVAL in each.type:
                raise ConfigurationError(
                    f"state {spec.name!r} has the field {each.name!r} of type {each.type}, which plain Parquet has not",
                    "Keep a long of microseconds, or a text.",
                )
        require_columns(spec, (), "many readers of Parquet files cannot tell from another column")
        require_partitions(spec, self.describe())
        require_short_name(spec, f"{spec.topology}/{spec.name}")

    def make_state(self, spec: StateSpec) -> OpenParquetTable:
        """:raises ConfigurationError: the table has other columns, or other partitions."""
        self.validate(spec)
        return OpenParquetTable(self.place(), spec, self.keep_versions)

    def lineage_dataset(self, spec: StateSpec) -> Dataset:
        return file_dataset(str(self.path))

    def describe(self) -> str:
        return f"ParquetTable({self.path})"

    def __getstate__(self) -> dict[str, Any]:
        """The receiving process may not have the Airflow connection, so send resolved settings."""
        with suppress(TridentError):
            return {**self.__dict__, "resolved": self.place().resolved()}
        return dict(self.__dict__)

    # ---- for readers -------------------------------------------------------------------------------------------

    def versions(self) -> list[int]:
        """The readable versions, lowest first."""
        return ParquetVersions(self.place()).kept()

    def files(self, version: int | None = None) -> list[str]:
        """All files of a version (default: the last): absolute paths, or ``s3://bucket/...``, or
        ``hdfs://nameservice/...`` as the table's address says it.

        :raises ConfigurationError: there is no such version.
        """
        storage = self.place()
        found = self._version(version)
        return [uri_of(storage, one.path) for one in ParquetVersions(storage).files(found)]

    def dataset(self, version: int | None = None) -> ds.Dataset:
        """A version as a pyarrow dataset: columns that a file lacks are null; filters skip partitions.

        :raises ConfigurationError: there is no such version.
        """
        storage = self.place()
        found = self._version(version)
        return dataset_of(storage, found, list(ParquetVersions(storage).files(found)))

    def latest(self, version: int | None = None) -> pa.Table:
        """The rows of upserts that count, as :func:`latest_rows` defines them, in memory.

        :raises ConfigurationError: there is no such version, or the table has no changes by key.
        """
        keys, deleted = changes_of(self._version(version).changes, self.describe())
        rows: pa.Table = latest_rows(self.dataset(version).to_table(), keys, deleted)
        return rows

    def _version(self, number: int | None) -> ParquetVersion:
        versions = ParquetVersions(self.place())
        with suppress(FileNotFoundError):
            found = versions.last() if number is None else versions.read(number)
            if found is not None and (number is None or versions.counts(number)):
                return found
        if number is None:
            raise no_table(f"Parquet table {self.path!r}")
        raise ConfigurationError(
            f"there is no version {number} of the Parquet table {self.path!r}",
            "See that the path is right, and ParquetTable(...).versions() for what is kept.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownVersion(Known):
    """`version`: the table version that it was read from."""

    version: ParquetVersion


class OpenParquetTable(KeptUpState):
    """See :class:`ParquetTable`. Not for several threads at the same time."""

    def __init__(self, storage: Storage, spec: StateSpec, keep_versions: int) -> None:
        super().__init__(spec)
        self._storage = storage
        self._versions = ParquetVersions(storage)
        self._keep = keep_versions
        self._app = f"{spec.topology}/{spec.name}"
        self._asked = 0
        storage.require_usable()
        if self._versions.last() is None:
            self._versions.publish(  # or another process was first
                ParquetVersion(
                    version=1,
                    fields=ddl(spec.staged),
                    partition_by=spec.partition_by,
                    changes=said_of(spec),
                    table_id=new_table_id(),
                )
            )
        self._known()

    @property
    def _what(self) -> str:
        return f"the Parquet table {self._storage.where!r}"

    # ---- what is known -----------------------------------------------------------------------------------------

    def _known(self) -> _KnownVersion:
        version = self._versions.last()
        if version is None:
            raise CorruptRecordError(f"{self._what} has no version any more", "Restore its folder from a copy.")
        self._require(version)
        found = version.states.get(self._app)
        if found is None:
            self._require_not_restored(version, 0)
            return _KnownVersion(version=version)
        where = f"{version.version}, for {self._app!r}"
        if tuple(found.of) != (self._spec.topology, self._spec.name):
            raise FORMAT.damaged(where, f"it is of {found.of}")
        self._require_not_restored(version, found.at)
        marker = FORMAT.build(Marker, found.marker, where, needed=("holes",))
        return _KnownVersion(version=version, marker=marker, commit=found.commit)

    def _require(self, version: ParquetVersion) -> None:
        """:raises ConfigurationError: files with the fields of this sink cannot be added."""
        spec = self._spec
        why = not_partitioned_so(version.partition_by, spec) or why_not_changes(version.changes, spec, adopts=True)
        why = why or self._why_not_columns(version) or self._why_not_alone(version)
        if why:
            raise ConfigurationError(f"sink {self._spec.name!r} cannot append to {self._what}: {why[0]}", why[1])

    def _why_not_columns(self, version: ParquetVersion) -> tuple[str, str] | None:
        found = {one.name: one.type for one in version.schema}
        for one in self._spec.staged:
            if one.name not in found:
                columns = ", ".join(found)
                return (
                    f"it has no column {one.name}",
                    f"Add it to the table, or leave it out of the stream (it has {columns}).",
                )
            if found[one.name] != one.type:
                return f"its column {one.name} is {found[one.name]}, and the field {one.type}", "Convert the field."
        return None

    def _why_not_alone(self, version: ParquetVersion) -> tuple[str, str] | None:
        others = sorted(version.states.keys() - {self._app})
        if not (self._spec.rewrites and others):
            return None
        return f"{others[0]} writes to it, too, and rows of keys have one writer", "Write to another table."

    def _require_not_restored(self, version: ParquetVersion, at: int) -> None:
        """Does no version since `at` say that more of this state was applied? Each version is read once."""
        for number in range(version.version - 1, max(at, self._asked, version.first - 1), -1):
            try:
                between = self._versions.read(number).states.get(self._app)
            except FileNotFoundError:
                break  # older ones are not kept either
            if between is not None and between.at > at and self._versions.counts(number):
                raise CorruptRecordError(
                    f"{self._what} was restored to a version before {between.at}, with which came what state "
                    f"{self._spec.name!r} of topology {self._spec.topology!r} appended last",
                    f"Restore it to version {between.at} or a later one; or give the topology another table, and "
                    "replay into that.",
                )
        self._asked = version.version - 1

    # ---- applying ----------------------------------------------------------------------------------------------

    def _bring(self, ticket: CommitTicket | None, staged: StagedPart, footer: Any, values: PartitionValues) -> NewFile:
        path = f"{DATA}/{file_name(ticket)}"
        size = bring(staged, self._target(path), partial(self._storage.put, path))
        return entry_of(path, footer, size, values)

    def _target(self, path: str) -> str | StoredObject | None:
        if not self._storage.is_local:
            return self._storage.stored(path)
        target = self._storage.at(path)
        make_folder(os.path.dirname(target))
        return target

    def _write(self, name: str, table: pa.Table, values: PartitionValues) -> NewFile:
        path, footers = f"{DATA}/{name}", list[Any]()
        size = self._storage.put(path, lambda file: write_parquet(table, file, metadata_collector=footers))
        return entry_of(path, footers[0], size, values)

    def _required(self) -> set[str]:
        return set()

    def _files_of(self, known: Known) -> list[OldFile]:
        assert isinstance(known, _KnownVersion)
        version = known.version
        return [
            OldFile(path=one.path, bytes=one.bytes, values=values_of(version, one), entry=one)
            for one in self._versions.files(version)
        ]

    def _relation(self, known: Known, dialect: ViewDialect) -> str:
        assert isinstance(known, _KnownVersion)
        return relation_of(self._what, self._storage, known.version, self._files_of(known), dialect)

    def _committed(self, known: Known) -> CommittedParquet:
        assert isinstance(known, _KnownVersion)
        return CommittedParquet.of(self._versions, known.version, self._spec.key_names)

    def _version_of(self, known: Known) -> str:
        assert isinstance(known, _KnownVersion)
        return identity(known.version)

    def _paths_at(self, known: Known, version: str) -> AbstractSet[str] | None:
        assert isinstance(known, _KnownVersion)
        return paths_at(self._versions, known.version, version)

    def _read(self, known: Known, file: OldFile, columns: Sequence[str] | None = None) -> pa.Table:
        assert isinstance(known, _KnownVersion)
        names = None if columns is None else list(columns)
        return dataset_of(self._storage, known.version, [file.entry]).to_table(columns=names)

    def _commit(
        self, known: Known, marker: Marker, new: Sequence[NewFile], gone: Sequence[OldFile], tried: Tried
    ) -> None:
        assert isinstance(known, _KnownVersion)
        last, commit, made = known.version, secrets.randbits(62), list[str]()
        tried[commit] = MadeLists(self._storage, made)
        following = self._without(last, {one.path for one in gone}, made)
        files = (*following.files, *(one.entry for one in new))
        if len(files) > INLINE:
            made.append(self._versions.put_list(files))
            following, files = replace(following, lists=(*following.lists, made[-1])), ()
        number = last.version + 1
        applied = AppliedState(of=self._of, marker=marker_content(marker), commit=commit, at=number)
        states = {**last.states, self._app: applied}
        if new and self._storage.is_local:
            sync_folder(self._storage.at(DATA))
        table_id = last.table_id or new_table_id()
        changes, first = said_of(self._spec) or last.changes, last.first_of_next(self._keep)
        made_now = replace(
            following, version=number, files=files, states=states, changes=changes, table_id=table_id, first=first
        )
        there = self._publish(made_now)
        with suppress(TridentError):  # the commit has succeeded
            self._versions.clean(made_now, there, last.first)
        del tried[commit]

    @property
    def _of(self) -> tuple[str, str]:
        return self._spec.topology, self._spec.name

    def _publish(self, version: ParquetVersion) -> list[int]:
        try:
            kept = self._versions.publish(version)
        except (StoreUnavailableError, OSError) as error:
            raise OutcomeUnknownError(
                f"the commit to {self._what} ended without an answer ({error})",
                "Run the task again: the table knows what is applied.",
            ) from None
        if kept is None:
            raise Overtaken
        return kept

    def _without(self, last: ParquetVersion, gone: AbstractSet[str], made: list[str]) -> ParquetVersion:
        """The version without these files.

        :param made: receives the path of the list that replaces lists with such files.
        """
        if not gone:
            return replace(last, removed=())
        removed, lists, left = list[str](), list[str](), list[TableFile]()
        for path in last.lists:
            files = self._versions.listed(last, path)
            if not any(one.path in gone for one in files):
                lists.append(path)
                continue
            removed += [path, *(one.path for one in files if one.path in gone)]
            left += [one for one in files if one.path not in gone]
        if left:
            made.append(self._versions.put_list(left))
            lists.append(made[-1])
        removed += [one.path for one in last.files if one.path in gone]
        files = tuple(one for one in last.files if one.path not in gone)
        return replace(last, files=files, lists=tuple(lists), removed=tuple(removed))

    def _has_any(self, tried: Tried, new: Sequence[NewFile]) -> bool:
        return has_any(self._versions, self._app, tried, new)

    def _delete(self, path: str) -> None:
        self._storage.remove([path])
