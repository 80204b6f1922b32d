"""Key-value states in an SQLite file.

All namespaces of a file share three tables: committed data, prepared writes (a null value is a tombstone), and one row
of marks per namespace. Every step is one transaction of the file (write-ahead log, full sync) and touches only the
prepared rows and their keys, never the rest of the committed data.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from airflow_trident.contracts.state import Capabilities
from airflow_trident.errors import CorruptRecordError, NewerRecordError, OutcomeUnknownError
from airflow_trident.io.paths import require_file
from airflow_trident.protocol.checkpoint import Marks, Step
from airflow_trident.states.keyvalue.base import Act, Admit, LayeredState, StateProvider, Writes
from airflow_trident.states.sql.sqlite_file import SqliteFile

VERSION = 1
_PREFIX = "trident_keyvalue"
_FORMAT, _MARKS = f"{_PREFIX}_format", f"{_PREFIX}_marks"
_COMMITTED, _PREPARED = f"{_PREFIX}_committed", f"{_PREFIX}_prepared"
_TABLES = (
    f"CREATE TABLE IF NOT EXISTS {_MARKS} (namespace TEXT NOT NULL PRIMARY KEY, prepared INTEGER, "
    "committed INTEGER NOT NULL, fence INTEGER NOT NULL) WITHOUT ROWID",
    f"CREATE TABLE IF NOT EXISTS {_COMMITTED} (namespace TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, "
    "PRIMARY KEY (namespace, key)) WITHOUT ROWID",
    f"CREATE TABLE IF NOT EXISTS {_PREPARED} (namespace TEXT NOT NULL, key TEXT NOT NULL, value TEXT, "
    "PRIMARY KEY (namespace, key)) WITHOUT ROWID",
    f"CREATE TABLE IF NOT EXISTS {_FORMAT} (version INTEGER NOT NULL)",
    f"INSERT INTO {_FORMAT} SELECT {VERSION} WHERE NOT EXISTS (SELECT 1 FROM {_FORMAT})",
)
_FIND = (
    f"SELECT value, 1 AS layer FROM {_PREPARED} WHERE namespace = :namespace AND key = :key UNION ALL "
    f"SELECT value, 2 AS layer FROM {_COMMITTED} WHERE namespace = :namespace AND key = :key ORDER BY layer LIMIT 1"
)
_SCAN_COMMITTED = (
    f"SELECT key, value FROM {_COMMITTED} WHERE namespace = :namespace AND key > :last ORDER BY key LIMIT :most"
)
_SCAN_BOTH = (
    f"SELECT key, value FROM {_PREPARED} WHERE namespace = :namespace AND key > :last UNION ALL "
    f"SELECT key, value FROM {_COMMITTED} AS c WHERE namespace = :namespace AND key > :last AND NOT EXISTS "
    f"(SELECT 1 FROM {_PREPARED} AS p WHERE p.namespace = c.namespace AND p.key = c.key) ORDER BY key LIMIT :most"
)
_KEYS_AT_ONCE = 500


@dataclass(frozen=True)
class SqliteStateProvider(StateProvider):
    """A file with any number of namespaces. An SqliteState may use the same file: their tables differ.

    :param path: may begin with ``~``; relative to the working directory of the process that uses it. The file and its
        folder are made if missing.
    :param busy_timeout_s: how long to wait for another writer of the file.
    """

    path: str
    busy_timeout_s: float = 30.0

    capabilities = Capabilities(durable=True, atomic=True)

    def __post_init__(self) -> None:
        require_file("the provider 'sqlite'", self.path, "states", "the provider 'memory' keeps states in memory")

    def new_state(self, namespace: str) -> SqliteKeyValueState:
        return SqliteKeyValueState(namespace, SqliteFile(self.path, self.busy_timeout_s))

    def describe(self) -> str:
        return f"sqlite {self.path}"


class SqliteKeyValueState(LayeredState[Any, Any]):
    """See :class:`SqliteStateProvider`. One connection. No statement stays open: a forgotten iterator holds no lock."""

    def __init__(self, namespace: str, file: SqliteFile) -> None:
        super().__init__(namespace)
        self.path = file.path
        self._file = file
        self._connection = file.connection
        try:
            with file.errors():
                self._make_tables()
        except BaseException:
            file.close()
            raise

    def _make_tables(self) -> None:
        find_table = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        if self._one(find_table, _FORMAT) is None:
            with self._file.transaction(self._unknown):
                for statement in _TABLES:
                    self._connection.execute(statement)
        row = self._one(f"SELECT version FROM {_FORMAT}")
        if row is None or not isinstance(row[0], int) or row[0] < 1:
            raise CorruptRecordError(f"{_FORMAT} in {self.path!r} has no version", "Restore the file from a copy.")
        if row[0] > VERSION:
            raise NewerRecordError(
                f"the key-value states in {self.path!r} have version {row[0]}, and this airflow-trident reads up to "
                f"{VERSION}",
                "Install the airflow-trident version that wrote them, or a newer one.",
            )

    # ---- reading -----------------------------------------------------------------------------------------------

    def marks(self) -> Marks:
        with self._file.errors():
            return self._marks()

    def _marks(self) -> Marks:
        row = self._one(f"SELECT prepared, committed, fence FROM {_MARKS} WHERE namespace = ?", self.namespace)
        return Marks() if row is None else Marks(prepared=row[0], committed=row[1], fence=row[2])

    def _find(self, key: str) -> str | None:
        with self._file.errors():
            rows = self._connection.execute(_FIND, {"namespace": self.namespace, "key": key}).fetchall()
        return rows[0][0] if rows else None

    def _scan(self, *, committed_only: bool) -> Iterator[tuple[str, str]]:
        statement = _SCAN_COMMITTED if committed_only else _SCAN_BOTH
        last = ""
        while True:
            with self._file.errors():
                parameters = {"namespace": self.namespace, "last": last, "most": _KEYS_AT_ONCE}
                rows = self._connection.execute(statement, parameters).fetchall()
            for key, value in rows:
                if value is not None:
                    yield key, value
            if len(rows) < _KEYS_AT_ONCE:
                return
            last = rows[-1][0]

    def _one(self, statement: str, *parameters: Any) -> Any:
        rows = self._connection.execute(statement, parameters).fetchall()
        return rows[0] if rows else None

    # ---- steps -------------------------------------------------------------------------------------------------

    def _change(self, act: Act, writes: Writes) -> None:
        """A direct commit goes through the prepared layer, which is empty."""
        if act in (Act.PREPARE, Act.DIRECT):
            self._connection.executemany(
                f"INSERT INTO {_PREPARED} (namespace, key, value) VALUES (?, ?, ?) "
                "ON CONFLICT (namespace, key) DO UPDATE SET value = excluded.value",
                ((self.namespace, key, value) for key, value in writes.items()),
            )
        if act in (Act.COMMIT, Act.DIRECT):
            self._move()
        elif act is Act.ROLLBACK:
            self._drop()

    def _move(self) -> None:
        me = {"namespace": self.namespace}
        self._connection.execute(
            f"DELETE FROM {_COMMITTED} WHERE namespace = :namespace AND key IN "
            f"(SELECT key FROM {_PREPARED} WHERE namespace = :namespace AND value IS NULL)",
            me,
        )
        self._connection.execute(
            f"INSERT INTO {_COMMITTED} (namespace, key, value) "
            f"SELECT namespace, key, value FROM {_PREPARED} WHERE namespace = :namespace AND value IS NOT NULL "
            "ON CONFLICT (namespace, key) DO UPDATE SET value = excluded.value",
            me,
        )
        self._drop()

    def _drop(self) -> None:
        self._connection.execute(f"DELETE FROM {_PREPARED} WHERE namespace = ?", (self.namespace,))

    def _step(self, act: Act, admit: Admit, writes: Writes) -> Step:
        with self._file.errors(), self._file.transaction(self._unknown):
            before = self._marks()
            marks, step = admit(before)
            if step is Step.DONE:
                self._change(act, writes)
            if marks != before:
                self._connection.execute(
                    f"INSERT INTO {_MARKS} (namespace, prepared, committed, fence) VALUES (?, ?, ?, ?) "
                    "ON CONFLICT (namespace) DO UPDATE SET prepared = excluded.prepared, "
                    "committed = excluded.committed, fence = excluded.fence",
                    (self.namespace, marks.prepared, marks.committed, marks.fence),
                )
        return step

    def _unknown(self, error: sqlite3.Error) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"a step of namespace {self.namespace!r} in {self.path!r} ended without an answer ({error})",
            "Run the task again: the file knows how far it is.",
        )

    def close(self) -> None:
        self._file.close()
