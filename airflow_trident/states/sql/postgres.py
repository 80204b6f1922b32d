"""States in PostgreSQL tables, which people can query directly, also while batches are applied.

A batch is copied into a temporary table of its transaction. Then the marker's row is locked, which admits one committer
at a time, and batch and marker change together. The server does the arithmetic of built-in aggregators in one
statement; for other aggregators this process reads, merges and writes the batch's keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_trident.contracts.state import Capabilities, StateFactory, StateSpec
from airflow_trident.io.connections import Connection, resolve
from airflow_trident.io.database_limits import Limits
from airflow_trident.io.datasets import Dataset, table_dataset
from airflow_trident.states.core.checks import require_plain_keys
from airflow_trident.states.sql.alterations import require_names
from airflow_trident.states.sql.dialect import default_table, require_table
from airflow_trident.states.sql.postgres_dialect import PostgresDialect
from airflow_trident.states.sql.postgres_table import Place, PostgresLayout, require_name
from airflow_trident.states.sql.store import SqlStore


@dataclass(frozen=True)
class PostgresState(StateFactory):
    """A table in a PostgreSQL database (15 or newer).

    :param conn_id: an Airflow connection of type ``postgres``; its schema is the database, its extras are libpq's.
    :param table: its name; by default ``<topology>_<state>``.
    :param schema: of the table; made if missing; by default the first one of the connection's search path.
    :param connection: explicit settings instead of `conn_id`.
    :param lock_timeout_s: how long to wait for another committer of the same state, and for who alters its tables.
    :param statement_timeout_s: time limit for one statement, and for user code between two statements.
    :param allow_triggers: names of triggers and rules of its tables that change none of their rows; others are refused.
    """

    conn_id: str = "postgres_default"
    table: str | None = None
    schema: str | None = None
    connection: Connection | None = field(default=None, kw_only=True)
    connect_timeout_s: float = field(default=10.0, kw_only=True)
    lock_timeout_s: float = field(default=30.0, kw_only=True)
    statement_timeout_s: float = field(default=600.0, kw_only=True)
    allow_triggers: tuple[str, ...] = field(default=(), kw_only=True)

    capabilities = Capabilities(durable=True, atomic=True, opaque=True, groups=True)
    max_value_bytes = 2**29 - 4096
    """PostgreSQL takes a line of COPY, and sends a field, of less than 1 GiB; a byte is two digits in both."""

    def __post_init__(self) -> None:
        if self.table is not None:
            require_table(self.table)
        if self.schema is not None:
            require_name("schema", self.schema)
        self._limits.require_positive("PostgresState")
        require_names("PostgresState", self.allow_triggers)

    def validate(self, spec: StateSpec) -> None:
        require_plain_keys(spec)
        PostgresLayout(Place("", ""), spec).require_columns()

    def takes_pieces(self, spec: StateSpec) -> bool:
        return PostgresLayout(Place("", ""), spec).merges_natively

    def make_state(self, spec: StateSpec) -> SqlStore:
        """
        :raises DefinitionChangedError: the state was made with other fields.
        """
        self.validate(spec)
        return SqlStore(PostgresDialect(*self.opening(spec)))

    def opening(self, spec: StateSpec) -> tuple[Connection, StateSpec, str, str, Limits, tuple[str, ...]]:
        """The arguments of a :class:`PostgresDialect`."""
        table = self.table or default_table(spec)
        where = self.connection or resolve(self.conn_id)
        return where, spec, self.schema or "", table, self._limits, self.allow_triggers

    @property
    def _limits(self) -> Limits:
        return Limits(
            connect_s=self.connect_timeout_s, lock_s=self.lock_timeout_s, statement_s=self.statement_timeout_s
        )

    def lineage_dataset(self, spec: StateSpec) -> Dataset:
        return table_dataset(
            self.connection or resolve(self.conn_id),
            self.table or default_table(spec),
            self.schema or "",
        )

    def describe(self) -> str:
        where = self.connection.describe() if self.connection else self.conn_id
        place = ".".join(part for part in (self.schema, self.table) if part)
        return f"PostgresState({where}{f', {place}' if place else ''})"
