"""Rows appended to a Delta table that everybody may read and write: staged files become files of the table.

A commit of the table has the batch's files and an application transaction, whose version is a random token. The token
names a file, `_trident/<topology>-<state>/<token>.json` below the table, with the marker: it is written before, and
counts from the commit on. The log keeps application transactions for ever (unless the table's
`delta.setTransactionRetentionDuration` is set), and neither vacuum nor clean-up of the log touches the file. What
decides about a batch was read from one version of the table; the commit is the next version, or none.

Others may append, compact, vacuum, delete and overwrite meanwhile: then all is decided anew. A table that somebody
restored to a version below the marker's is refused.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import (
    Applied,
    Capabilities,
    Marker,
    StagedFiles,
    StateFactory,
    StateSpec,
    Verdict,
)
from airflow_trident.errors import (
    ConfigurationError,
    CorruptRecordError,
    OutcomeUnknownError,
)
from airflow_trident.io.arrow import arrow_schema, table_to_rows
from airflow_trident.io.delta import EXTRA, DeltaPlace
from airflow_trident.io.extras import require_extra
from airflow_trident.protocol.durable_format import Format
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.states.core.checks import require_short_name
from airflow_trident.states.core.marker import AdmittingState, admit
from airflow_trident.states.delta.new_files import NewFile, bring, write_new
from airflow_trident.states.delta.overtaken import decided_anew, next_version
from airflow_trident.states.delta.table_rules import require_delta_columns, require_table

if TYPE_CHECKING:
    import pyarrow as pa

META = "_trident"
_BUFFER_BYTES = 1 << 16
_RESTORE = "RESTORE"
_FORMAT = Format(
    noun="the marker",
    version=1,
    key="version",
    cure="Restore the file from a copy of the table's folder.",
)


@dataclass(frozen=True)
class DeltaTable(StateFactory):
    """A Delta table, made if missing; rows are appended as they are.

    :param path: its folder, or a URI such as ``s3://bucket/sales``.
    :param conn_id: an Airflow connection (``aws``, or one whose extras are storage options of delta-rs).
    :param storage_options: over those of the connection.
    """

    path: str
    conn_id: str | None = None
    storage_options: Mapping[str, str] | None = field(default=None, repr=False, hash=False)

    capabilities = Capabilities(durable=True, atomic=True, appends=True, by_reference=True)

    def __post_init__(self) -> None:
        self._place()  # refuses what is no place

    def _place(self) -> DeltaPlace:
        return DeltaPlace(uri=self.path, conn_id=self.conn_id, options=self.storage_options or {})

    def validate(self, spec: StateSpec) -> None:
        require_delta_columns(spec)
        require_short_name(spec, f"{spec.topology}-{spec.name}")

    def make_state(self, spec: StateSpec) -> OpenDeltaTable:
        """
        :raises ConfigurationError: the table has other columns, or something that a file by reference would break.
        """
        self.validate(spec)
        return OpenDeltaTable(self._place().resolved(), spec)

    def describe(self) -> str:
        return f"DeltaTable({self.path})"

    def __getstate__(self) -> dict[str, Any]:
        """Where this is sent to, nobody may know the connection."""
        found = self._place().resolved(required=False)
        return {**self.__dict__, "conn_id": found.conn_id, "storage_options": dict(found.options)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """Of a marker's file. `of`: topology and state. `table_version`: the version of the table that it counts from.
    `before`: the token that it replaced."""

    of: tuple[str, str]
    marker: dict[str, Any]
    table_version: int
    before: int | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    token: int | None = None
    before: int | None = None
    marker: Marker | None = None


class OpenDeltaTable(AdmittingState):
    """See :class:`DeltaTable`. Not for several threads at the same time."""

    def __init__(self, place: DeltaPlace, spec: StateSpec) -> None:
        self.place = place
        self._spec = spec
        self._app = f"airflow-trident/{spec.topology}/{spec.name}"
        self._meta = f"{META}/{spec.topology}-{spec.name}"
        with place.errors():
            self._table = self._open()
            self._files = place.files()
        self._known()

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
                storage_options=dict(self.place.options) or None,
            )
        except errors.DeltaError:
            return self.place.table()  # another process was first

    # ---- what is known -----------------------------------------------------------------------------------------

    def marker(self) -> Marker | None:
        return self._known().marker

    def _known(self) -> _Known:
        """As of one version of the table, which all later questions are about."""
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
                    if last:  # else others have gone on twice since the token was read
                        raise CorruptRecordError(
                            f"the Delta table {self.place.where!r} has no file {self._path(token)!r}, with what is "
                            f"applied of state {self._spec.name!r}",
                            _FORMAT.cure,
                        ) from None
                    continue
                self._require_not_restored(content)
                marker = _FORMAT.build(Marker, content.marker, self._shown(token), needed=("holes",))
                return _Known(token, content.before, marker)
        raise AssertionError

    def _content(self, token: int) -> _Content:
        with self._files.open_input_file(self._path(token)) as file:
            data = file.read()
        content = _FORMAT.build(_Content, _FORMAT.load(data, self._shown(token))[1], self._shown(token))
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
                now = int(to)  # what was there then is there again
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

    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        def written() -> Iterator[NewFile]:
            if batch.num_rows:
                table = batch.cast(arrow_schema(self._spec.staged))
                yield write_new(self._files, ticket, table, self._columns())

        return self._again(ticket, written)

    def apply_files(self, ticket: CommitTicket, files: StagedFiles) -> Applied:
        def brought() -> Iterator[NewFile]:
            columns = self._columns()
            return (bring(self.place, self._files, ticket, path, columns) for path in files.paths)

        return self._again(ticket, brought)

    def _columns(self) -> list[str]:
        return [one.name for one in self._table.schema().fields]

    def _again(self, ticket: CommitTicket, make: Callable[[], Iterator[NewFile]]) -> Applied:
        """Until nobody is faster: each time, all is decided anew; the files are made once.

        :param make: the batch's files, in the table's folder.
        """
        new: list[NewFile] = []
        is_made = False

        def once() -> Applied:
            nonlocal is_made
            known = self._known()
            marker, verdict = admit(
                known.marker, ticket, state=self._spec.name, commutes=self._spec.commutes, opaque=False
            )
            if verdict is Verdict.SKIP:
                if marker != known.marker:
                    self._commit(known, marker, [])
                return Applied.ALREADY
            if not is_made:
                with self.place.errors():
                    new.extend(make())  # what came before an error is in it
                    is_made = True
            self._require_no_nulls(new)
            self._commit(known, marker, new)
            new.clear()  # they are the table's now
            return Applied.APPLIED

        cure = "See who else writes, and run the task again. Nothing was applied."
        try:
            return decided_anew(self.place, once, cure)
        except OutcomeUnknownError:
            new.clear()  # they may be
            raise
        finally:
            for one in new:
                self._delete(one.path)

    def _require_no_nulls(self, new: Sequence[NewFile]) -> None:
        """Of what is added by reference, Delta itself checks nothing."""
        required = {one.name for one in self._table.schema().fields if not one.nullable}
        for name in sorted(required):
            if any(one.nulls.get(name, 1) for one in new):
                raise ConfigurationError(
                    f"column {name!r} of the Delta table {self.place.where!r} takes no nulls, and the batch has some, "
                    "or nobody counted them",
                    f'Leave them out, as in filter(col("{name}").is_not_null()), or let the column take them.',
                )

    def _commit(self, known: _Known, marker: Marker, new: Sequence[NewFile]) -> None:
        """One commit of these files and the marker.

        :raises Overtaken: it is not the next version of the table.
        """
        transaction: Any = require_extra("deltalake.transaction", EXTRA)
        token = secrets.randbits(62)
        with self.place.errors():
            self._write_marker(token, known, marker)
            added = [transaction.AddAction(one.path, one.bytes, {}, one.time_ms, True, one.stats) for one in new]
            properties = transaction.CommitProperties(
                app_transactions=[transaction.Transaction(self._app, token)], max_commit_retries=0
            )
            with next_version(self.place, lambda: self._delete(self._path(token))):
                self._table.create_write_transaction(
                    added, mode="append", schema=self._table.schema(), commit_properties=properties
                )
        if known.before is not None:  # the one between stays, for who has just read its token
            self._delete(self._path(known.before))

    def _write_marker(self, token: int, known: _Known, marker: Marker) -> None:
        content = {
            "version": _FORMAT.version,
            "of": [self._spec.topology, self._spec.name],
            # Rows of a sink come one transaction at a time, so there is never a group.
            "marker": {name: value for name, value in asdict(marker).items() if name != "group"},
            "table_version": int(self._table.version()) + 1,
            "before": known.token,
        }
        self.place.make_folder(self._meta)
        with self._files.open_output_stream(self._path(token), buffer_size=_BUFFER_BYTES) as file:
            file.write(json.dumps(content).encode())

    def _delete(self, path: str) -> None:
        with contextlib.suppress(OSError):
            self._files.delete_file(path)

    # ---- reading -----------------------------------------------------------------------------------------------

    def items(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """((), row) for each row of the table, those of others too."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        target = arrow_schema(self._spec.staged)
        with self.place.errors():
            self._table.update_incremental()
            for path in pa.table(self._table.get_add_actions()).column("path").to_pylist():
                with self._files.open_input_file(path) as file:
                    table = pq.read_table(file)
                yield from (((), row) for row in table_to_rows(table.select(target.names).cast(target)))

    def get_many(self, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...] | None]:
        """:raises ConfigurationError: rows of a sink have no keys."""
        raise ConfigurationError(
            f"rows of sink {self._spec.name!r} are not looked up by key", "Ask the table itself, or use a DeltaState."
        )

    def close(self) -> None:
        """Nothing is held open."""
