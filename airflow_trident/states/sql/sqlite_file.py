"""An SQLite file in write-ahead mode, safe to open in several processes at once, and the meaning of its errors for a
task."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from airflow_trident.errors import (
    ConfigurationError,
    CorruptError,
    OutcomeUnknownError,
    StoreUnavailableError,
    TridentError,
)
from airflow_trident.io.place import folder_error, make_folder
from airflow_trident.io.private_files import touch_private

_PAUSE_S = 0.01

_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_REFUSED = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_CANTOPEN})
_BEFORE_THE_COMMIT = frozenset({*_LOCKED, *_REFUSED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CONSTRAINT})


class SqliteFile:
    """One connection without implicit transactions, with a full sync at each commit. The file and its folder are made
    if missing.

    :param path: may begin with ``~``; relative to the working directory.
    :param busy_timeout_s: how long to wait for another writer.
    """

    def __init__(self, path: str, busy_timeout_s: float) -> None:
        self.path = os.path.abspath(os.path.expanduser(path))
        folder = os.path.dirname(self.path)
        try:
            make_folder(folder)
            touch_private(self.path)
        except OSError as error:
            raise folder_error(error, folder, "the folder of the state") from error
        with self.errors():
            self.connection = _open_wal(self.path, busy_timeout_s)

    @contextmanager
    def transaction(self, unknown: Callable[[sqlite3.Error], OutcomeUnknownError]) -> Iterator[None]:
        """All or nothing. IMMEDIATE: what was read for a decision stays true until the commit (T7).

        :param unknown: makes the error for a commit with unknown outcome.
        """
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._roll_back()
            raise
        try:
            self.connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            if _is_certain(error):
                raise
            raise unknown(error) from error

    @contextmanager
    def reading(self) -> Iterator[None]:
        """All statements see the same committed transactions: in write-ahead mode those of the first one."""
        self.connection.execute("BEGIN")
        try:
            yield
        finally:
            self._roll_back()

    def _roll_back(self) -> None:
        # Some errors have rolled back already.
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _store_error(error, self.path) from error

    def close(self) -> None:
        self.connection.close()


def _open_wal(path: str, busy_timeout_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
    try:
        _use_wal(connection, time.monotonic() + busy_timeout_s)
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection, deadline: float) -> None:
    """SQLite does not wait when it changes the journal mode: two processes that open a new file at once block each
    other."""
    while True:
        try:
            if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not _is_locked(error) or time.monotonic() >= deadline:
                raise
            time.sleep(_PAUSE_S)


# ---- errors ----------------------------------------------------------------------------------------------------


def _primary_code(error: sqlite3.Error) -> int:
    """SQLite's result code without its extension; 0 if the error did not come from SQLite."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _is_locked(error: sqlite3.Error) -> bool:
    """Does another process hold the file?"""
    return _primary_code(error) in _LOCKED


def _is_certain(error: sqlite3.Error) -> bool:
    """Did this failed COMMIT surely not happen? A failed write left no commit in the log; after a failed sync it is
    unknown."""
    unwritten = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_WRITE
    return unwritten or _primary_code(error) in _BEFORE_THE_COMMIT


def violated_column(error: sqlite3.IntegrityError) -> str:
    """The column whose check failed: checks are named after their column."""
    return str(error).rpartition(": ")[2]


def _store_error(error: sqlite3.Error, path: str) -> TridentError:
    """One clear error for an SQLite error about the file `path`."""
    code = _primary_code(error)
    if _is_locked(error):
        return StoreUnavailableError(
            f"the state file {path!r} is locked by another program",
            "Let that program end its transaction; the task tries again. Nothing was applied.",
        )
    if code == sqlite3.SQLITE_FULL:
        return StoreUnavailableError(
            f"the disk of the state file {path!r} is full",
            "Free some space and run the task again; nothing was applied.",
        )
    if code in _REFUSED:
        return ConfigurationError(
            f"the state file {path!r} cannot be opened for writing ({error})",
            f"Let this user write to it and to its folder {os.path.dirname(path)!r}; SQLite makes files beside it.",
        )
    if code == sqlite3.SQLITE_NOTADB:
        return ConfigurationError(
            f"{path!r} is not an SQLite file ({error})", "Give the state another path, or move that file away."
        )
    if code == sqlite3.SQLITE_CORRUPT:
        return CorruptError(f"the state file {path!r} is damaged ({error})", "Restore it from a copy.")
    if code in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT):
        return ConfigurationError(
            f"the state file {path!r} is not as it was made ({error})",
            "Somebody changed its tables: restore it from a copy, or give the state another path.",
        )
    return StoreUnavailableError(
        f"the state file {path!r} does not work ({error})",
        "Mend its file system, or free some space, and run the task again.",
    )
