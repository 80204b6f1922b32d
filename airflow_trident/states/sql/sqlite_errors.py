"""What SQLite's errors mean for a task."""

from __future__ import annotations

import os
import sqlite3

from airflow_trident.errors import ConfigurationError, CorruptError, StoreUnavailableError, TridentError

_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_REFUSED = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_CANTOPEN})
_BEFORE_THE_COMMIT = frozenset({*_LOCKED, *_REFUSED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CONSTRAINT})


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's result code without its extension, 0 if the error did not come from SQLite."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def is_locked(error: sqlite3.Error) -> bool:
    """Does somebody else hold the file?"""
    return primary_code(error) in _LOCKED


def is_certain(error: sqlite3.Error) -> bool:
    """Does a COMMIT that failed so surely not have happened? A write that failed left the log without the commit; of a
    sync that failed nobody can tell."""
    unwritten = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_WRITE
    return unwritten or primary_code(error) in _BEFORE_THE_COMMIT


def violated_column(error: sqlite3.IntegrityError) -> str:
    """The column whose check failed: checks are named after their column."""
    return str(error).rpartition(": ")[2]


def store_error(error: sqlite3.Error, path: str) -> TridentError:
    """One clear error for what SQLite said about the file `path`."""
    code = primary_code(error)
    if is_locked(error):
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
    if code == sqlite3.SQLITE_ERROR:
        return ConfigurationError(
            f"the state file {path!r} is not as it was made ({error})",
            "Somebody changed its tables: restore it from a copy, or give the state another path.",
        )
    return StoreUnavailableError(
        f"the state file {path!r} does not work ({error})",
        "Mend its file system, or free some space, and run the task again.",
    )
