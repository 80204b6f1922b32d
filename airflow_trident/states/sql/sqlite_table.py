"""A state as an SQLite table that people can query: its columns, its statements, the stored form of values, and the
dialect that runs them.

The primary key ``_key`` is the key fields as canonical JSON text, because SQLite allows duplicate null keys. Each field
also has its own column. SQLite has fewer types than a topology: dates, times, timestamps (ISO 8601, UTC), decimals,
arrays, maps and structs (JSON) are text, an interval is its microseconds. NaN is the text ``NaN``, because SQLite would
store it as null.
"""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import cached_property
from json.encoder import encode_basestring
from operator import itemgetter
from typing import Any

from airflow_trident.contracts.state import StagedBatch, StateSpec
from airflow_trident.io.arrow import columns_of, python_values
from airflow_trident.operations.interfaces import MergeKind
from airflow_trident.protocol.records import NO_ATTEMPT
from airflow_trident.states.core.merge import Changes, Key, Value, does_not_fit
from airflow_trident.states.core.text_values import (
    Coder,
    compact,
    decoder,
    encoder,
    json_part,
    key_encoder,
    key_text,
    real,
    same,
)
from airflow_trident.states.sql.alterations import Alteration, in_sqlite
from airflow_trident.states.sql.dialect import Dialect, changed_otherwise, fields_of, merges_natively, own_values
from airflow_trident.states.sql.sqlite_file import SqliteFile, violated_column
from airflow_trident.states.sql.table_names import KEY_COLUMN, quote
from airflow_trident.types import INTERVAL, WHOLE_TYPES, Field, is_nested, names_of

MARKERS = "trident_applied"
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

_AFFINITY = {
    **dict.fromkeys(WHOLE_TYPES, "INTEGER"),
    "boolean": "INTEGER",
    INTERVAL: "INTEGER",
    "double": "REAL",
    "float": "REAL",
    "binary": "BLOB",
}
_ADDABLE = ("long", "int", "double", "float")


@dataclass(frozen=True)
class SqliteLayout:
    """The table `table` of one state."""

    table: str
    spec: StateSpec

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        return fields_of(self.spec)

    @cached_property
    def _encoders(self) -> list[Coder]:
        keys, values = self.spec.keys, self.spec.values
        return [*(key_encoder(field.type) for field in keys), *(encoder(field.type) for field in values)]

    @cached_property
    def _value_decoders(self) -> list[Coder]:
        return [decoder(field.type) for field in self.spec.values]

    @property
    def merges_natively(self) -> bool:
        """Can SQLite do the arithmetic exactly? Not for decimals, which it would add in floating point."""
        return merges_natively(self.spec, _is_exact)

    # ---- statements --------------------------------------------------------------------------------------------

    @property
    def create(self) -> str:
        columns = [f"{KEY_COLUMN} TEXT NOT NULL PRIMARY KEY", *map(_column, self.fields)]
        return f"CREATE TABLE {quote(self.table)} ({', '.join(columns)}) WITHOUT ROWID"

    @property
    def upsert(self) -> str:
        """Insert, or replace the values by the new ones."""
        return self._insert([f"{quote(field.name)} = excluded.{quote(field.name)}" for field in self.spec.values])

    @property
    def merge(self) -> str:
        """Insert, or merge the new values into the stored ones, one expression per value column."""
        parts = zip(self.spec.combiners, self.spec.values, strict=True)
        return self._insert([f"{quote(field.name)} = {_merged(c.merge_kind, field, self.table)}" for c, field in parts])

    def _insert(self, updates: list[str]) -> str:
        columns = ", ".join([KEY_COLUMN, *(quote(field.name) for field in self.fields)])
        places = ", ".join("?" * (1 + len(self.fields)))
        return (
            f"INSERT INTO {quote(self.table)} ({columns}) VALUES ({places}) "
            f"ON CONFLICT ({KEY_COLUMN}) DO UPDATE SET {', '.join(updates)}"
        )

    @property
    def delete(self) -> str:
        return f"DELETE FROM {quote(self.table)} WHERE {KEY_COLUMN} = ?"

    @property
    def select(self) -> str:
        columns = ", ".join([KEY_COLUMN, *(quote(field.name) for field in self.fields)])
        return f"SELECT {columns} FROM {quote(self.table)}"

    # ---- values ------------------------------------------------------------------------------------------------

    def encode_key(self, key: Sequence[Any]) -> str:
        return key_text(self.spec.keys, key)

    def encode_keys(self, keys: Sequence[Key]) -> list[str]:
        """As `encode_key` for many keys, column by column."""
        columns = columns_of(keys, len(self.spec.keys))
        encoded = [list(map(encode, column)) for encode, column in zip(self._encoders, columns, strict=False)]
        return _json_keys(encoded) or ["[]"] * len(keys)

    def encode_rows(self, columns: Sequence[Sequence[Any]], count: int) -> list[tuple[Any, ...]]:
        """Parameters of `upsert` and `merge`. `columns`: Python values, one sequence per field."""
        encoded = []
        for encode, column in zip(self._encoders, columns, strict=True):
            # Columns of plain values, the usual case, need no conversion.
            plain = encode is same or (encode is real and not _has_nan(column))
            encoded.append(column if plain else [encode(part) for part in column])
        keys = _json_keys(encoded[: len(self.spec.keys)])
        rows = zip(keys or ["[]"] * count, *encoded, strict=True)
        # Writes neighbours in the table together: twice as fast for large states.
        return sorted(rows, key=itemgetter(0))

    def decode(self, row: Sequence[Any]) -> tuple[Key, Value]:
        """Decodes a row of `select`."""
        fields = self.spec.keys
        decoders = [decoder(field.type) for field in fields]
        return own_values(fields, decoders, row[1 : 1 + len(fields)], self.table), self.decode_value(row)

    def decode_value(self, row: Sequence[Any]) -> Value:
        return own_values(self.spec.values, self._value_decoders, row[1 + len(self.spec.keys) :], self.table)


# ---- columns ---------------------------------------------------------------------------------------------------


def _column(field: Field) -> str:
    affinity = _AFFINITY.get(field.type, "TEXT")
    # An integer sum that overflows silently becomes floating point: refuse it.
    check = f" CONSTRAINT {quote(field.name)} CHECK (typeof({quote(field.name)}) <> 'real')"
    return f"{quote(field.name)} {affinity}{check if affinity == 'INTEGER' else ''}"


def _is_exact(kind: MergeKind, type_text: str) -> bool:
    if type_text.startswith("decimal") or is_nested(type_text):
        return False
    return kind is not MergeKind.ADD or type_text in _ADDABLE


def _merged(kind: MergeKind | None, field: Field, table: str) -> str:
    """Nulls count as nothing, as in `operations.aggregators`."""
    old, new = f"{quote(table)}.{quote(field.name)}", f"excluded.{quote(field.name)}"
    head = f"CASE WHEN {old} IS NULL THEN {new} WHEN {new} IS NULL THEN {old}"
    if kind is not MergeKind.ADD:
        # Text sorts above numbers: NaN is the largest number, as in Spark.
        return f"{head} ELSE {'min' if kind is MergeKind.MIN else 'max'}({old}, {new}) END"
    if _AFFINITY[field.type] == "REAL":
        nan = f" WHEN typeof({old}) = 'text' OR typeof({new}) = 'text' THEN 'NaN'"
        return f"{head}{nan} ELSE coalesce({old} + {new}, 'NaN') END"
    # A text plus a number would be the number: what another program wrote fails by the column's check.
    return f"{head} WHEN typeof({old}) <> 'integer' THEN 0.5 ELSE {old} + {new} END"


# ---- values ---------------------------------------------------------------------------------------------------


def _json_keys(columns: Sequence[Sequence[Any]]) -> list[str]:
    """The key of each row as JSON text."""
    if len(columns) == 1 and set(map(type, columns[0])) == {str}:
        return [f"[{encode_basestring(text)}]" for text in columns[0]]  # the most frequent kind, six times faster
    return [compact(list(map(json_part, key))) for key in zip(*columns, strict=True)]


def _has_nan(column: Sequence[Any]) -> bool:
    return any(value is not None and value != value for value in column)


# ---- the dialect -----------------------------------------------------------------------------------------------


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
        missing = [name for name, table in needed.items() if not self.execute(_HAS_TABLE, {"name": table})]
        # Files older than opaque states lack this column.
        return missing if MARKERS in missing or self.execute(_HAS_ATTEMPT) else [*missing, _ADD_ATTEMPT]

    def make(self, table: str) -> None:
        made = {
            MARKERS: [_CREATE_MARKERS],
            self.data: [self._layout.create, *self._partition_index()],
            self._before_keys: [
                self._before.create,
                f"CREATE TABLE {quote(self._before_keys)} ({KEY_COLUMN} TEXT NOT NULL PRIMARY KEY) WITHOUT ROWID",
            ],
            _ADD_ATTEMPT: [_ADD_ATTEMPT],
        }
        for statement in made[table]:
            self.execute(statement)

    def _partition_index(self) -> list[str]:
        index = quote(f"trident_part_{self.table}")
        column = self.partition_column
        return [f"CREATE INDEX {index} ON {self.data} ({column})"] if column else []

    def remove_partitions(self, values: Sequence[datetime.date | str]) -> None:
        super().remove_partitions(list(map(str, values)))  # a date is its text in ISO 8601

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
        values_by_key = self._find(self._layout, names)
        return [values_by_key.get(name) for name in names]

    def _find(self, layout: SqliteLayout, names: Sequence[str]) -> dict[str, Value]:
        return {row[0]: layout.decode_value(row) for row in self._rows(layout.select, names)}

    def _rows(self, select: str, names: Sequence[str]) -> Iterator[Sequence[Any]]:
        """:param select: a statement without a condition."""
        for begin in range(0, len(names), _KEYS_AT_ONCE):
            some = names[begin : begin + _KEYS_AT_ONCE]
            statement = f"{select} WHERE {KEY_COLUMN} IN ({', '.join('?' * len(some))})"
            yield from self.file.connection.execute(statement, some).fetchall()

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
        retained = [row[0] for row in self._rows(f"SELECT {KEY_COLUMN} FROM {quote(self._before_keys)}", list(names))]
        values = self._find(self._before, retained)
        return {names[name]: values.get(name) for name in retained}

    def put_before(self, changes: Changes) -> None:
        self._put(self._before, changes)

    # ---- reading -----------------------------------------------------------------------------------------------

    def pairs(self) -> Iterator[tuple[Key, Value]]:
        with closing(self.file.connection.execute(self._layout.select)) as rows:
            yield from map(self._layout.decode, rows)
