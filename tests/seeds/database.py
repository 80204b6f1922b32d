"""The `DATABASE` of Storm's examples: a map that outlives its process; several keys change in one step."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any


class Database:
    """A file of its own, which no state of a topology uses. `put` changes all keys in one step."""

    def __init__(self, path: str) -> None:
        self.path = path

    def get(self, key: str) -> dict[str, Any] | None:
        with self._open() as opened:
            row = opened.execute("SELECT value FROM held WHERE key = ?", (key,)).fetchone()
        return None if row is None else json.loads(row[0])

    def put(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        rows = [(key, json.dumps(value)) for key, value in values.items()]
        with self._open() as opened, opened:
            opened.executemany("INSERT OR REPLACE INTO held VALUES (?, ?)", rows)

    def all(self) -> dict[str, dict[str, Any]]:
        with self._open() as opened:
            return {key: json.loads(value) for key, value in opened.execute("SELECT key, value FROM held")}

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path)) as opened:
            opened.execute("CREATE TABLE IF NOT EXISTS held (key TEXT PRIMARY KEY, value TEXT)")
            yield opened
