"""States in an SQLite file: the embedded default. Any SQLite client can query them, also while batches are applied.

A batch and its marker change in one transaction (write-ahead log, full sync). SQLite does the arithmetic of built-in
aggregators; for other aggregators this process reads, merges and writes the batch's keys.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import Capabilities, StagedBatch, StateFactory, StateSpec
from airflow_trident.io.arrow import columns_of, python_values
from airflow_trident.io.datasets import Dataset, sqlite_dataset
from airflow_trident.protocol.records import NO_ATTEMPT
from airflow_trident.states.core.checks import require_plain_keys
from airflow_trident.states.core.merge import Changes, Key, Value, does_not_fit
from airflow_trident.states.sql.alterations import Alteration, in_sqlite, require_names
from airflow_trident.states.sql.dialect import (
    KEY_COLUMN,
    Dialect,
    changed_otherwise,
    default_table,
    quote,
    require_table,
)
from airflow_trident.states.sql.sqlite_file import SqliteFile, require_file, violated_column
from airflow_trident.states.sql.sqlite_table import SqliteLayout
from airflow_trident.states.sql.store import SqlStore
from airflow_trident.types import names_of

if TYPE_CHECKING:
    pass

MARKERS = "trident_applied"
_LONGEST_TABLE = 500
"""Bytes. SQLite has no limit, and nobody reads longer names."""
_ATTEMPT = f"attempt INTEGER NOT NULL DEFAULT {NO_ATTEMPT}"
_CREATE_MARKERS = (
    f"CREATE TABLE IF NOT EXISTS {MARKERS} (topology TEXT NOT NULL, state TEXT NOT NULL, "
    "table_name TEXT NOT NULL UNIQUE COLLATE NOCASE, definition TEXT NOT NULL, "
    "incarnation TEXT, high INTEGER, fence INTEGER, holes TEXT, position TEXT, "
    f"{_ATTEMPT}, "
    "PRIMARY KEY (topology, state)) WITHOUT ROWID"
)
_ADD_ATTEMPT = f"ALTER TABLE {MARKERS} ADD COLUMN {_ATTEMPT}"
_HAS_ATTEMPT = f"SELECT 1 FROM pragma_table_info('{MARKERS}') WHERE name = 'attempt'"
_HAS_TABLE = "SELECT 1 FROM sqlite_master WHERE type IN ('table', 'view') AND name = :name COLLATE NOCASE"
_KEYS_AT_ONCE = 500


@dataclass(frozen=True)
class SqliteState(StateFactory):
    """A table in an SQLite file.

    :param path: of the file; may begin with ``~``; relative to the working directory of the process that uses it. The
        file and its folder are made if missing.
    :param table: its name; by default ``<topology>_<state>``.
    :param busy_timeout_s: how long to wait for another writer of the file.
    :param allow_triggers: names of triggers of its tables that change none of their rows; others are refused.
    """

    path: str
    table: str | None = None
    busy_timeout_s: float = 30.0
    allow_triggers: tuple[str, ...] = field(default=(), kw_only=True)

    capabilities = Capabilities(durable=True, atomic=True, opaque=True, groups=True)
    max_value_bytes = 10**9 - 4096
    """Of SQLite's limit for a value and for a row, which is 1e9 bytes unless it was built otherwise."""

    def __post_init__(self) -> None:
        require_file("SqliteState", self.path, "a state", "MemoryState() keeps states in memory")
        require_names("SqliteState", self.allow_triggers)
        if self.table is not None:
            require_table(self.table, longest=_LONGEST_TABLE)

    def validate(self, spec: StateSpec) -> None:
        require_plain_keys(spec)
        self._layout(spec).require_columns()

    def _layout(self, spec: StateSpec) -> SqliteLayout:
        return SqliteLayout(self.table or default_table(spec), spec)

    def make_state(self, spec: StateSpec) -> SqlStore:
        """
        :raises DefinitionChangedError: the state was made with other fields.
        """
        self.validate(spec)
        file = SqliteFile(self.path, self.busy_timeout_s)
        return SqlStore(SqliteDialect(file, self._layout(spec), self.allow_triggers))

    def takes_pieces(self, spec: StateSpec) -> bool:
        return self._layout(spec).merges_natively

    def lineage_dataset(self, spec: StateSpec) -> Dataset:
        return sqlite_dataset(self.path, self._layout(spec).table)

    def describe(self) -> str:
        return f"SqliteState({self.path}{f', {self.table}' if self.table else ''})"


class SqliteDialect(Dialect):
    """See :class:`SqliteState`. Two tables keep the values before the highest txid: its keys, and their rows. A key
    without a row was missing."""

    container = where_else = "file"
    restore = "Restore the file from a copy."
    factory = "SqliteState(path, table=...)"
    markers = MARKERS

    def __init__(self, file: SqliteFile, layout: SqliteLayout, allow_triggers: Sequence[str] = ()) -> None:
        self.file = file
        self.allow_triggers = allow_triggers
        self.spec, self.table = layout.spec, layout.table
        self.place, self.shown, self.data = repr(file.path), repr(layout.table), quote(layout.table)
        self._layout = layout
        self._before = SqliteLayout(f"trident_before_{layout.table}", layout.spec)
        self._before_keys = f"trident_keys_before_{layout.table}"
        self.before = self._before_keys if layout.spec.opaque else ""

    def fold(self, name: str) -> str:
        return name.lower()

    # ---- talking to the database -------------------------------------------------------------------------------

    def execute(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        return self.file.connection.execute(statement, parameters or {}).fetchall()

    def errors(self) -> AbstractContextManager[None]:
        return self.file.errors()

    def transaction(self) -> AbstractContextManager[None]:
        return self.file.transaction(self.outcome_unknown)

    def reading(self) -> AbstractContextManager[None]:
        return self.file.reading()

    def close(self) -> None:
        self.file.close()

    # ---- making tables -----------------------------------------------------------------------------------------

    def lacking(self) -> Sequence[str]:
        needed = {MARKERS: MARKERS, self.data: self.table}
        if self.spec.opaque:
            needed[self._before_keys] = self._before_keys
        found = [name for name, table in needed.items() if not self.execute(_HAS_TABLE, {"name": table})]
        # Files older than opaque states lack this column.
        return found if MARKERS in found or self.execute(_HAS_ATTEMPT) else [*found, _ADD_ATTEMPT]

    def make(self, table: str) -> None:
        made = {
            MARKERS: [_CREATE_MARKERS],
            self.data: [self._layout.create],
            self._before_keys: [
                self._before.create,
                f"CREATE TABLE {quote(self._before_keys)} ({KEY_COLUMN} TEXT NOT NULL PRIMARY KEY) WITHOUT ROWID",
            ],
            _ADD_ATTEMPT: [_ADD_ATTEMPT],
        }
        for statement in made[table]:
            self.execute(statement)

    def alterations(self) -> Sequence[Alteration]:
        before = [self._before.table, self._before_keys] if self.spec.opaque else []
        return in_sqlite(self.execute, [MARKERS, self.table, *before])

    # ---- the state's table -------------------------------------------------------------------------------------

    def merge_natively(self, batch: StagedBatch) -> bool:
        layout = self._layout
        if not layout.merges_natively:
            return False
        self._keep(row[0] for row in self._encoded(batch))
        try:
            self._require_rows(batch.num_rows, self.file.connection.executemany(layout.merge, self._encoded(batch)))
        except sqlite3.IntegrityError as error:
            column = violated_column(error)
            if column not in self.spec.value_names:
                raise  # of somebody else
            self._find(layout, [row[0] for row in self._encoded(batch)])  # names what another program wrote
            raise does_not_fit(self.spec, f"{column} is beyond the largest 64-bit number") from error
        return True

    def _encoded(self, batch: StagedBatch) -> Iterator[Sequence[Any]]:
        """The batch's rows as parameters of the statements."""
        for piece in batch.pieces():
            columns = [python_values(piece.column(name)) for name in names_of(self._layout.fields)]
            yield from self._layout.encode_rows(columns, piece.num_rows)

    def lookup(self, keys: Sequence[Key]) -> list[Value | None]:
        names = self._layout.encode_keys(keys)
        found = self._find(self._layout, names)
        return [found.get(name) for name in names]

    def _find(self, layout: SqliteLayout, names: Sequence[str]) -> dict[str, Value]:
        return {row[0]: layout.decode_value(row) for row in self._rows(layout.select, names)}

    def _rows(self, select: str, names: Sequence[str]) -> Iterator[Sequence[Any]]:
        """:param select: a statement without a condition."""
        for begin in range(0, len(names), _KEYS_AT_ONCE):
            some = names[begin : begin + _KEYS_AT_ONCE]
            where = f"{select} WHERE {KEY_COLUMN} IN ({', '.join('?' * len(some))})"
            yield from self.file.connection.execute(where, some).fetchall()

    def put(self, changes: Changes, *, keeps: bool) -> None:
        if keeps:
            self._keep(map(self._layout.encode_key, changes))
        self._put(self._layout, changes)

    def _put(self, layout: SqliteLayout, changes: Changes) -> None:
        put = [(*key, *value) for key, value in changes.items() if value is not None]
        columns = columns_of(put, len(layout.fields))
        removed = [(layout.encode_key(key),) for key, value in changes.items() if value is None]
        rows = layout.encode_rows(columns, len(put))
        self._require_rows(len(put), self.file.connection.executemany(layout.upsert, rows))
        self.file.connection.executemany(layout.delete, removed)

    def _require_rows(self, sent: int, cursor: sqlite3.Cursor) -> None:
        if sent != max(0, cursor.rowcount):
            raise changed_otherwise(self.spec, self.shown, f"{sent} rows", f"{cursor.rowcount} rows changed")

    # ---- before the highest txid -------------------------------------------------------------------------------

    def _keep(self, names: Iterable[str]) -> None:
        if self.spec.opaque:
            keys = quote(self._before_keys)
            self.execute(f"DELETE FROM {quote(self._before.table)}")
            self.execute(f"DELETE FROM {keys}")
            self.file.connection.executemany(f"INSERT OR IGNORE INTO {keys} VALUES (?)", ((name,) for name in names))
            self._copy(self._layout, self._before)

    def restore_before(self) -> None:
        keys = f"SELECT {KEY_COLUMN} FROM {quote(self._before_keys)}"
        self.execute(f"DELETE FROM {self.data} WHERE {KEY_COLUMN} IN ({keys})")
        self._copy(self._before, self._layout)

    def _copy(self, source: SqliteLayout, target: SqliteLayout) -> None:
        # CROSS JOIN fixes the order: the few keys first, then each row by its primary key.
        columns = [KEY_COLUMN, *names_of(target.fields)]
        self.execute(
            f"INSERT INTO {quote(target.table)} ({', '.join(map(quote, columns))}) "
            f"SELECT {', '.join(f's.{quote(name)}' for name in columns)} FROM {quote(self._before_keys)} k "
            f"CROSS JOIN {quote(source.table)} s ON s.{KEY_COLUMN} = k.{KEY_COLUMN}"
        )

    def kept(self, keys: Sequence[Key]) -> Changes:
        names = {self._layout.encode_key(key): key for key in keys}
        found = [row[0] for row in self._rows(f"SELECT {KEY_COLUMN} FROM {quote(self._before_keys)}", list(names))]
        values = self._find(self._before, found)
        return {names[name]: values.get(name) for name in found}

    def put_before(self, changes: Changes) -> None:
        self._put(self._before, changes)

    # ---- reading -----------------------------------------------------------------------------------------------

    def pairs(self) -> Iterator[tuple[Key, Value]]:
        with closing(self.file.connection.execute(self._layout.select)) as rows:
            yield from map(self._layout.decode, rows)
