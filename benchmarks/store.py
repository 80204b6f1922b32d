"""The state of other contenders, in SQLite as our default is: a careful user's own upsert, one transaction a batch."""

from __future__ import annotations

import sqlite3
from typing import Any

ADD = "INSERT INTO counts VALUES (?, ?) ON CONFLICT (word) DO UPDATE SET count = count + excluded.count"
PUT = "INSERT INTO counts VALUES (?, ?) ON CONFLICT (word) DO UPDATE SET count = excluded.count"


class Counts:
    """:param path: of the file; created if missing."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS counts (word TEXT PRIMARY KEY, count INTEGER) WITHOUT ROWID"
        )
        self._connection.execute("CREATE TABLE IF NOT EXISTS done (batch INTEGER PRIMARY KEY)")

    def write(self, table: Any, statement: str = ADD) -> None:
        """Write a table of words and counts, in one transaction."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(statement, self._rows(table))
        self._connection.execute("COMMIT")

    def write_once(self, batch: int, table: Any, statement: str = ADD) -> None:
        """Write with the number of the batch in the same transaction; a batch that is there already is left out."""
        self._connection.execute("BEGIN IMMEDIATE")
        if self._connection.execute("SELECT 1 FROM done WHERE batch = ?", (batch,)).fetchone() is None:
            self._connection.executemany(statement, self._rows(table))
            self._connection.execute("INSERT INTO done VALUES (?)", (batch,))
        self._connection.execute("COMMIT")

    @staticmethod
    def _rows(table: Any) -> Any:
        return zip(table.column("word").to_pylist(), table.column("count").to_pylist(), strict=True)

    def close(self) -> None:
        self._connection.close()
