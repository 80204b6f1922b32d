"""States in an SQLite file: the embedded default. Any SQLite client can query them, also while batches are applied.

A batch and the marker of what is applied change in one transaction (write-ahead log, full sync). The arithmetic of
the built-in aggregators is done by SQLite itself; other aggregators read, merge and write the keys of the batch.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import Applied, Capabilities, Marker, StateFactory, StateSpec, Verdict
from airflow_trident.errors import (
    ConfigurationError,
    CorruptRecordError,
    DefinitionChangedError,
    OutcomeUnknownError,
)
from airflow_trident.io.arrow import python_values
from airflow_trident.io.local_paths import require_local_path
from airflow_trident.io.private_files import touch_private
from airflow_trident.protocol.records import NO_ATTEMPT, CommitTicket
from airflow_trident.staging.files import make_folder, storage_error
from airflow_trident.states.core.checks import require_plain_keys
from airflow_trident.states.core.marker import AdmittingState, admit
from airflow_trident.states.core.merge import Key, Value, does_not_fit, merge
from airflow_trident.states.sql.sqlite_before import PREFIX, Before, Changes
from airflow_trident.states.sql.sqlite_errors import is_certain, store_error, violated_column
from airflow_trident.states.sql.sqlite_open import open_wal
from airflow_trident.states.sql.sqlite_table import Layout, quote, safe_name
from airflow_trident.types import names_of

if TYPE_CHECKING:
    import pyarrow as pa

MARKERS = "trident_applied"
_ATTEMPT = f"attempt INTEGER NOT NULL DEFAULT {NO_ATTEMPT}"
_CREATE_MARKERS = (
    f"CREATE TABLE IF NOT EXISTS {MARKERS} (topology TEXT NOT NULL, state TEXT NOT NULL, "
    "table_name TEXT NOT NULL UNIQUE COLLATE NOCASE, definition TEXT NOT NULL, "
    "incarnation TEXT, high INTEGER, fence INTEGER, holes TEXT, position TEXT, "
    f"{_ATTEMPT}, "
    "PRIMARY KEY (topology, state)) WITHOUT ROWID"
)
_BUSY_TIMEOUT_S = 30.0
_KEYS_AT_ONCE = 500


@dataclass(frozen=True)
class SqliteState(StateFactory):
    """A table in an SQLite file.

    :param path: of the file; may begin with ``~``, and is relative to the working directory where it is used. The file
        and its folder are made if missing.
    :param table: its name; by default ``<topology>_<state>``.
    :param busy_timeout_s: how long to wait for another writer of the file.
    """

    path: str
    table: str | None = None
    busy_timeout_s: float = _BUSY_TIMEOUT_S

    capabilities = Capabilities(durable=True, atomic=True, opaque=True)

    def __post_init__(self) -> None:
        if require_local_path("SqliteState", self.path).startswith((":memory:", "file:")):
            raise ConfigurationError(
                f"SqliteState cannot keep a state in {self.path!r}",
                "Give it the path of a file; MemoryState() keeps states in memory.",
            )

    def validate(self, spec: StateSpec) -> None:
        require_plain_keys(spec)
        self._layout(spec).require_columns()

    def _layout(self, spec: StateSpec) -> Layout:
        table = self.table or safe_name(f"{spec.topology}_{spec.name}")
        if table.lower().startswith(("sqlite_", PREFIX)) or table.lower() == MARKERS:
            raise ConfigurationError(f"{table!r} cannot be the table of a state", "Give it another name.")
        return Layout(table, spec)

    def make_state(self, spec: StateSpec) -> OpenSqliteState:
        """
        :raises DefinitionChangedError: the state was made with other fields.
        """
        self.validate(spec)
        return OpenSqliteState(os.path.abspath(os.path.expanduser(self.path)), self._layout(spec), self.busy_timeout_s)

    def describe(self) -> str:
        return f"SqliteState({self.path}{f', {self.table}' if self.table else ''})"


class OpenSqliteState(AdmittingState):
    """See :class:`SqliteState`. One connection; not for sharing between threads at the same time."""

    def __init__(self, path: str, layout: Layout, busy_timeout_s: float) -> None:
        self.path = path
        self._layout = layout
        self._spec = layout.spec
        self._connection = self._open(busy_timeout_s)
        self._before = Before(self._connection, layout) if layout.spec.opaque else None
        try:
            with self._errors():
                self._register()
        except BaseException:
            self._connection.close()
            raise

    # ---- opening -----------------------------------------------------------------------------------------------

    def _open(self, busy_timeout_s: float) -> sqlite3.Connection:
        folder = os.path.dirname(self.path)
        try:
            make_folder(folder)
            touch_private(self.path)
        except OSError as error:
            raise storage_error(error, folder, "the folder of the state") from error
        with self._errors():
            return open_wal(self.path, busy_timeout_s)

    def _register(self) -> None:
        """Make the table and the marker's row, unless they are there: a reader writes nothing."""
        if self._is_registered() and self._is_complete():
            return
        with self._transaction():
            self._connection.execute(_CREATE_MARKERS)
            if not self._is_registered():
                self._make_table()
            if not self._has_attempts():
                self._connection.execute(f"ALTER TABLE {MARKERS} ADD COLUMN {_ATTEMPT}")
            if self._before is not None and not self._has_table(self._before.keys_table):
                self._before.create()

    def _make_table(self) -> None:
        table = self._layout.table
        owner = self._one(f"SELECT topology, state FROM {MARKERS} WHERE table_name = ?", (table,))
        if owner is not None or self._has_table(table):
            whose = f"state {owner[1]!r} of topology {owner[0]!r}" if owner else "something else"
            raise ConfigurationError(
                f"the table {table!r} in {self.path!r} belongs to {whose}, not to state {self._spec.name!r} of "
                f"topology {self._spec.topology!r}",
                "Give the state another table, as in SqliteState(path, table=...).",
            )
        self._connection.execute(self._layout.create)
        self._connection.execute(
            f"INSERT INTO {MARKERS} (topology, state, table_name, definition) VALUES (?, ?, ?, ?)",
            (self._spec.topology, self._spec.name, table, self._layout.definition),
        )

    def _is_registered(self) -> bool:
        if not self._has_table(MARKERS):
            return False
        row = self._one(f"SELECT table_name, definition FROM {MARKERS} WHERE topology = ? AND state = ?", self._me)
        if row is None:
            return False
        wanted = (self._layout.table, self._layout.definition)
        if (row[0].lower(), row[1]) != (wanted[0].lower(), wanted[1]):
            raise DefinitionChangedError(
                f"state {self._spec.name!r} of topology {self._spec.topology!r} in {self.path!r} is the table "
                f"{row[0]!r} with the fields {row[1]}, and now it should be {wanted[0]!r} with {wanted[1]}",
                "Give the state a new name, or another file.",
            )
        return True

    def _is_complete(self) -> bool:
        return self._has_attempts() and (self._before is None or self._has_table(self._before.keys_table))

    def _has_attempts(self) -> bool:
        """Files from before there were opaque states have no such column."""
        return self._one(f"SELECT 1 FROM pragma_table_info('{MARKERS}') WHERE name = 'attempt'") is not None

    def _has_table(self, name: str) -> bool:
        found = "SELECT 1 FROM sqlite_master WHERE type IN ('table', 'view') AND name = ? COLLATE NOCASE"
        return self._one(found, (name,)) is not None

    @property
    def _me(self) -> tuple[str, str]:
        return self._spec.topology, self._spec.name

    def _one(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        return self._connection.execute(statement, parameters).fetchone()

    # ---- the marker --------------------------------------------------------------------------------------------

    def marker(self) -> Marker | None:
        with self._errors():
            row = self._one(
                f"SELECT incarnation, high, fence, holes, position, attempt FROM {MARKERS} "
                "WHERE topology = ? AND state = ?",
                self._me,
            )
        if row is None or row[1] is None:
            return None
        try:
            holes = tuple((int(first), int(last)) for first, last in json.loads(row[3]))
            return Marker(
                incarnation=str(row[0]),
                high=int(row[1]),
                fence=int(row[2]),
                holes=holes,
                position=json.loads(row[4]),
                attempt=int(row[5]),
            )
        except (ValueError, TypeError) as error:
            raise CorruptRecordError(
                f"the row of state {self._spec.name!r} in {MARKERS} of {self.path!r} cannot be read ({error})",
                "Restore the file from a copy.",
            ) from error

    def _write_marker(self, marker: Marker) -> None:
        changed = self._connection.execute(
            f"UPDATE {MARKERS} SET incarnation = ?, high = ?, fence = ?, holes = ?, position = ?, attempt = ? "
            "WHERE topology = ? AND state = ?",
            (
                marker.incarnation,
                marker.high,
                marker.fence,
                json.dumps(marker.holes),
                json.dumps(marker.position),
                marker.attempt,
                *self._me,
            ),
        ).rowcount
        if changed != 1:
            raise CorruptRecordError(
                f"the row of state {self._spec.name!r} in {MARKERS} of {self.path!r} is gone",
                "Restore the file from a copy.",
            )

    # ---- applying ----------------------------------------------------------------------------------------------

    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        spec = self._spec
        with self._errors(), self._transaction():
            known = self.marker()
            marker, verdict = admit(known, ticket, state=spec.name, commutes=spec.commutes, opaque=spec.opaque)
            if verdict is not Verdict.SKIP:
                self._merge(ticket, batch, replaces=verdict is Verdict.REPLACE, late=ticket.txid < marker.high)
            if marker != known:
                self._write_marker(marker)
        return Applied.ALREADY if verdict is Verdict.SKIP else Applied.APPLIED

    def _merge(self, ticket: CommitTicket, batch: pa.Table, *, replaces: bool, late: bool) -> None:
        before = self._before
        if before is not None and replaces:
            before.restore()
        try:
            changes = self._changes(ticket, batch, self._layout)
            if before is not None and late:
                kept = before.kept(changes.keys)
                self._changes(ticket, batch, before.layout).of(kept).write(self._connection, before.layout)
            elif before is not None:
                before.keep(changes.keys)
            changes.write(self._connection, self._layout)
        except sqlite3.IntegrityError as error:
            column = violated_column(error)
            raise does_not_fit(self._spec, f"{column} is beyond the largest 64-bit number") from error

    def _changes(self, ticket: CommitTicket, batch: pa.Table, layout: Layout) -> Changes:
        """What the batch does to the table of `layout`."""
        if layout.merges_natively:
            columns = [python_values(batch.column(name)) for name in names_of(layout.fields)]
            return Changes(rows=layout.encode_rows(columns, batch.num_rows), removed=[], native=True)
        changes = merge(self._spec, batch, lambda keys: self._lookup(keys, layout), ticket)
        put = [(*key, *value) for key, value in changes.items() if value is not None]
        columns = [list(column) for column in zip(*put, strict=True)] if put else [[] for _ in layout.fields]
        removed = [layout.encode_key(key) for key, value in changes.items() if value is None]
        return Changes(rows=layout.encode_rows(columns, len(put)), removed=removed, native=False)

    def _lookup(self, keys: Sequence[Key], layout: Layout) -> list[Value | None]:
        names = [layout.encode_key(key) for key in keys]
        found: dict[str, Value] = {}
        # Translated here already: above is the user's code, and the fault is not the user's.
        with self._errors():
            for begin in range(0, len(names), _KEYS_AT_ONCE):
                some = names[begin : begin + _KEYS_AT_ONCE]
                with closing(self._connection.execute(layout.select(len(some)), some)) as rows:
                    found.update((row[0], layout.decode(row)[1]) for row in rows)
        return [found.get(name) for name in names]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing. IMMEDIATE: what is decided on what was read stays true until the commit (T7)."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._roll_back()
            raise
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            if is_certain(error):
                raise
            raise OutcomeUnknownError(
                f"the commit of state {self._spec.name!r} in {self.path!r} ended without an answer ({error})",
                "Run the task again: the file knows what is applied.",
            ) from error

    def _roll_back(self) -> None:
        # Some errors have rolled back already.
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    # ---- reading -----------------------------------------------------------------------------------------------

    def get_many(self, keys: Sequence[Key]) -> list[Value | None]:
        """The value of each key, None where there is none."""
        return self._lookup(keys, self._layout)

    def items(self) -> Iterator[tuple[Key, Value]]:
        with self._errors(), closing(self._connection.execute(self._layout.select_all)) as rows:
            for row in rows:
                yield self._layout.decode(row)

    def count(self) -> int:
        """How many keys the state has."""
        with self._errors():
            return int(self._one(f"SELECT count(*) FROM {quote(self._layout.table)}")[0])

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise store_error(error, self.path) from error
