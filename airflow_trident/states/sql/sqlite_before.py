"""What an SQLite state keeps to take the batch of its highest txid back (T9): the values before it, of its keys only.

Two tables beside the state's own: its keys, and the rows that they had. A key without a row was not there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_trident.states.sql.sqlite_table import KEY_COLUMN, Layout, quote

PREFIX = "trident_before_"
_KEYS_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """A batch as SQLite writes it. `native`: the rows are merged by the store itself, else they replace what is there.
    `removed`: encoded keys."""

    rows: list[tuple[Any, ...]]
    removed: list[str]
    native: bool

    @property
    def keys(self) -> list[str]:
        return [*(row[0] for row in self.rows), *self.removed]

    def of(self, keys: set[str]) -> Changes:
        """Those of `keys` only."""
        return Changes(
            rows=[row for row in self.rows if row[0] in keys],
            removed=[key for key in self.removed if key in keys],
            native=self.native,
        )

    def write(self, connection: sqlite3.Connection, layout: Layout) -> None:
        connection.executemany(layout.merge if self.native else layout.upsert, self.rows)
        connection.executemany(layout.delete, [(key,) for key in self.removed])


class Before:
    """The values before the highest txid of the state `layout`. Every method belongs into the state's transaction."""

    def __init__(self, connection: sqlite3.Connection, layout: Layout) -> None:
        self._connection = connection
        self._table = layout.table
        self.layout = Layout(f"{PREFIX}{layout.table}", layout.spec)
        self.keys_table = f"{PREFIX}{layout.table}_keys"

    def create(self) -> None:
        self._connection.execute(self.layout.create)
        self._connection.execute(
            f"CREATE TABLE {quote(self.keys_table)} ({KEY_COLUMN} TEXT NOT NULL PRIMARY KEY) WITHOUT ROWID"
        )

    def keep(self, keys: Iterable[str]) -> None:
        """Forget what was kept; keep what is stored under `keys` now."""
        self._connection.execute(f"DELETE FROM {quote(self.layout.table)}")
        self._connection.execute(f"DELETE FROM {quote(self.keys_table)}")
        self._connection.executemany(
            f"INSERT OR IGNORE INTO {quote(self.keys_table)} VALUES (?)", [(key,) for key in keys]
        )
        self._copy(source=self._table, target=self.layout.table)

    def restore(self) -> None:
        """Take the batch of the highest txid back."""
        self._connection.execute(
            f"DELETE FROM {quote(self._table)} "
            f"WHERE {KEY_COLUMN} IN (SELECT {KEY_COLUMN} FROM {quote(self.keys_table)})"
        )
        self._copy(source=self.layout.table, target=self._table)

    def kept(self, keys: Sequence[str]) -> set[str]:
        """Those of `keys` that are kept."""
        found: set[str] = set()
        for begin in range(0, len(keys), _KEYS_AT_ONCE):
            some = keys[begin : begin + _KEYS_AT_ONCE]
            places = ", ".join("?" * len(some))
            statement = f"SELECT {KEY_COLUMN} FROM {quote(self.keys_table)} WHERE {KEY_COLUMN} IN ({places})"
            found.update(row[0] for row in self._connection.execute(statement, some))
        return found

    def _copy(self, *, source: str, target: str) -> None:
        # CROSS JOIN fixes the order: the few keys first, then each row by its primary key.
        columns = [KEY_COLUMN, *(field.name for field in self.layout.fields)]
        self._connection.execute(
            f"INSERT INTO {quote(target)} ({', '.join(map(quote, columns))}) "
            f"SELECT {', '.join(f's.{quote(name)}' for name in columns)} FROM {quote(self.keys_table)} k "
            f"CROSS JOIN {quote(source)} s ON s.{KEY_COLUMN} = k.{KEY_COLUMN}"
        )
