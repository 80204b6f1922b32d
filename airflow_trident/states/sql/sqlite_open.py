"""Opening an SQLite file in write-ahead mode, whoever else opens it at the same moment."""

from __future__ import annotations

import sqlite3
import time

from airflow_trident.states.sql.sqlite_errors import is_locked

_PAUSE_S = 0.01


def open_wal(path: str, busy_timeout_s: float) -> sqlite3.Connection:
    """A connection without implicit transactions, with a full sync at each commit.

    :raises sqlite3.Error: the file cannot be opened, or was locked for `busy_timeout_s` seconds.
    """
    connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
    try:
        _use_wal(connection, time.monotonic() + busy_timeout_s)
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection, deadline: float) -> None:
    """SQLite does not wait for others where it changes the journal's mode: two who open a new file at once would see
    each other as a lock."""
    while True:
        try:
            if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not is_locked(error) or time.monotonic() >= deadline:
                raise
            time.sleep(_PAUSE_S)
