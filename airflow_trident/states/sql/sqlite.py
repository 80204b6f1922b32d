"""States in an SQLite file: the embedded default. Any SQLite client can query them, also while batches are applied.

A batch and its marker change in one transaction (write-ahead log, full sync). SQLite does the arithmetic of built-in
aggregators; for other aggregators this process reads, merges and writes the batch's keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_trident.contracts.state import Capabilities, StateFactory, StateSpec
from airflow_trident.io.paths import require_file
from airflow_trident.names import require_durations
from airflow_trident.states.core.checks import require_columns, require_plain_keys
from airflow_trident.states.sql.table_names import KEY_COLUMN, default_table, require_names, require_table

if TYPE_CHECKING:
    from airflow_trident.io.datasets import Dataset
    from airflow_trident.states.sql.store import SqlStore

_LONGEST_TABLE = 500
"""Bytes. SQLite has no limit, and nobody reads longer names."""


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

    capabilities = Capabilities(durable=True, atomic=True, opaque=True, groups=True, partitions=True)
    max_value_bytes = 10**9 - 4096
    """Of SQLite's limit for a value and for a row, which is 1e9 bytes unless it was built otherwise."""

    def __post_init__(self) -> None:
        require_file("SqliteState", self.path, "a state", "MemoryState() keeps states in memory")
        require_names("SqliteState", self.allow_triggers)
        require_durations("SqliteState", zero=True, busy_timeout_s=self.busy_timeout_s)
        if self.table is not None:
            require_table(self.table, longest=_LONGEST_TABLE)

    def validate(self, spec: StateSpec) -> None:
        require_plain_keys(spec)
        require_columns(spec, {KEY_COLUMN}, "SQLite cannot tell from another column of its table")

    def _table(self, spec: StateSpec) -> str:
        return self.table or default_table(spec)

    def make_state(self, spec: StateSpec) -> SqlStore:
        """
        :raises DefinitionChangedError: the state was made with other fields.
        """
        from airflow_trident.states.sql.sqlite_file import SqliteFile
        from airflow_trident.states.sql.sqlite_table import SqliteDialect, SqliteLayout
        from airflow_trident.states.sql.store import SqlStore

        self.validate(spec)
        file = SqliteFile(self.path, self.busy_timeout_s)
        return SqlStore(SqliteDialect(file, SqliteLayout(self._table(spec), spec), self.allow_triggers))

    def takes_pieces(self, spec: StateSpec) -> bool:
        from airflow_trident.states.sql.sqlite_table import SqliteLayout

        return SqliteLayout(self._table(spec), spec).merges_natively

    def lineage_dataset(self, spec: StateSpec) -> Dataset:
        from airflow_trident.io.datasets import sqlite_dataset

        return sqlite_dataset(self.path, self._table(spec))

    def describe(self) -> str:
        return f"SqliteState({self.path}{f', {self.table}' if self.table else ''})"
