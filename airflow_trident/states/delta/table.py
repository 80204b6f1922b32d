"""Appends rows to a Delta table that everybody may read and write: staged files become files of the table.

A commit of the table contains the batch's files and an application transaction, whose version is a random token. The
token names a file below the table, `_trident/<topology>-<state>/<token>.json`, which holds the marker. It is written
before the commit and is valid from the commit on. The log keeps application transactions for ever (unless the table's
`delta.setTransactionRetentionDuration` is set); neither vacuum nor clean-up of the log touches the file. Each decision
about a batch is read from one version of the table; the commit is the next version, or none.

If others append, compact, vacuum, delete or overwrite meanwhile, everything is decided anew. A table that was restored
to a version before the marker's is refused.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_trident.contracts.staged_batch import StagedPart
from airflow_trident.contracts.state import Capabilities, Marker, StateFactory, StateSpec
from airflow_trident.errors import CorruptRecordError
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.io.datasets import Dataset, file_dataset
from airflow_trident.io.delta import EXTRA, DeltaPlace
from airflow_trident.io.extras import require_extra
from airflow_trident.io.local_paths import AnyPath
from airflow_trident.io.parquet import write_parquet
from airflow_trident.io.partitioned import PartitionValues
from airflow_trident.protocol.durable_format import Format
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.states.core.checks import application_of, file_names
from airflow_trident.states.delta.add_actions import described, old_files, removed, rows_of
from airflow_trident.states.delta.committed import CommittedDelta, identity, paths_at
from airflow_trident.states.delta.conditions import require_conditions
from airflow_trident.states.delta.next_version import next_version
from airflow_trident.states.delta.table_rules import require_delta_columns, require_table
from airflow_trident.states.tables.appending import AppendingState, Known, Tried
from airflow_trident.states.tables.new_files import NewFile, OldFile, bring, file_name, putting
from airflow_trident.states.tables.partitions import require_no_empty_text, require_partitions
from airflow_trident.states.tables.rewriting import note_of

if TYPE_CHECKING:
    import pyarrow as pa

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

    capabilities = Capabilities(durable=True, atomic=True, appends=True, by_reference=True, rewrites=True)

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
        found = self.place().resolved(required=False)
        return {**self.__dict__, "conn_id": found.conn_id, "storage_options": dict(found.options)}


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
                found = self._table.transaction_version(self._app)
                if found is None:
                    return _Known()
                token = int(found)
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
        while (last := max((one for one in restored if ours < one <= now), default=None)) is not None:
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
        columns = [one.name for one in self._table.schema().fields]
        return described(footer, name, size, columns, dict(zip(self._spec.partition_by, values, strict=True)))

    def _files_of(self, known: Known) -> list[OldFile]:
        with self.place.errors():
            return old_files(self._table)

    def _committed(self, known: Known) -> CommittedDelta:
        with self.place.errors():
            return CommittedDelta.of(self.place, self._table, self._spec.key_names)

    def _version_of(self, known: Known) -> str:
        with self.place.errors():
            return identity(self._table)

    def _paths_at(self, known: Known, version: str) -> AbstractSet[str] | None:
        with self.place.errors():
            return paths_at(self.place, self._table, version)

    def _read(self, known: Known, file: OldFile, columns: Sequence[str] | None = None) -> pa.Table:
        with self.place.errors(), self._files.open_input_file(unquote(file.path)) as source:
            return rows_of(source, file, self._table, columns)

    def _required(self) -> set[str]:
        with self.place.errors():
            return {one.name for one in self._table.schema().fields if not one.nullable}

    def _commit(
        self, known: Known, marker: Marker, new: Sequence[NewFile], gone: Sequence[OldFile], tried: Tried
    ) -> None:
        assert isinstance(known, _Known)
        transaction: Any = require_extra("deltalake.transaction", EXTRA)
        token = secrets.randbits(62)
        with self.place.errors():
            self._write_marker(token, known, marker)
            tried[token] = partial(self._delete, self._path(token))
            properties = transaction.CommitProperties(
                app_transactions=[transaction.Transaction(self._app, token)], max_commit_retries=0
            )
            with next_version(self.place):
                self._table.create_write_transaction(
                    [*(one.entry for one in new), *map(removed, gone)],
                    mode="append",
                    schema=self._table.schema(),
                    partition_by=list(self._spec.partition_by) or None,
                    commit_properties=properties,
                )
        if known.before is not None:  # keep the one between for readers that have just read its token
            self._delete(self._path(known.before))
        del tried[token]

    def _write_marker(self, token: int, known: _Known, marker: Marker) -> None:
        content = {
            "version": _FORMAT.version,
            "of": [self._spec.topology, self._spec.name],
            # Rows of a sink are applied one transaction at a time, so there is never a group.
            "marker": {name: value for name, value in asdict(marker).items() if name != "group"},
            "table_version": int(self._table.version()) + 1,
            "before": known.commit,
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
            return any(one.path in has for one in new)

    def _delete(self, path: str) -> None:
        with contextlib.suppress(OSError):
            self._files.delete_file(path)
