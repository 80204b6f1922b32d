"""States in tables of any database that SQLAlchemy has a driver for, such as MySQL, MariaDB or SQL Server.

A committer first updates its marker's row without a change, which only one at a time can do. Batch and marker then
change in the same transaction. The values of the batch's keys are read, merged in this process, and written by the
database's upsert, or by delete and insert if it has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.staged_batch import StagedBatch
from airflow_trident.contracts.state import Capabilities, StateFactory, StateSpec
from airflow_trident.errors import ConfigurationError, StoreUnavailableError, TridentError
from airflow_trident.io.connections import Connection, resolve
from airflow_trident.io.datasets import Dataset, table_dataset
from airflow_trident.io.extras import require_extra
from airflow_trident.io.sql import EXTRA, make_engine, said, scheme_of
from airflow_trident.states.core.checks import require_columns, require_plain_keys
from airflow_trident.states.core.merge import Changes, Key, Value
from airflow_trident.states.sql.dialect import KEY_COLUMN, Dialect
from airflow_trident.states.sql.postgres_table import default_table
from airflow_trident.states.sql.sqlalchemy_table import REMOVED, SPECIAL, Tables, digest
from airflow_trident.states.sql.store import SqlStore

if TYPE_CHECKING:
    import sqlalchemy as sa

_LONGEST_TABLE = 47
_ROWS_AT_ONCE = 10_000
_WAIT_FOR_LOCKS = {
    "postgresql": "SET lock_timeout = {ms}",
    "mysql": "SET innodb_lock_wait_timeout = {s}, sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')",
    "mariadb": "SET innodb_lock_wait_timeout = {s}, sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')",
    "mssql": "SET LOCK_TIMEOUT {ms}",
    "sqlite": "PRAGMA busy_timeout = {ms}",
}
# Elsewhere a repeatable read locks what it has read: readers and committers would block each other.
_HAVE_SNAPSHOTS = ("postgresql", "mysql", "mariadb")
_REFUSED = ("authentication failed", "Access denied", "Login failed", "no such table", "unable to open", "readonly")
_EMPTY_IS_NULL = "oracle"


@dataclass(frozen=True)
class SqlState(StateFactory):
    """A table in a database with transactions.

    :param conn_id: an Airflow connection of type mysql, mssql, postgres or sqlite; the extra ``sqlalchemy_scheme``
        names any other driver.
    :param table: its name; by default ``<topology>_<state>``.
    :param schema: of the table; it must exist.
    :param connection: explicit settings instead of `conn_id`.
    :param lock_timeout_s: how long to wait for another committer of the same state.
    """

    conn_id: str
    table: str | None = None
    schema: str | None = None
    connection: Connection | None = field(default=None, kw_only=True)
    lock_timeout_s: float = field(default=30.0, kw_only=True)

    capabilities = Capabilities(durable=True, atomic=True, opaque=True, groups=True)

    def __post_init__(self) -> None:
        if self.table is not None and (
            not 1 <= len(self.table) <= _LONGEST_TABLE or self.table.lower().startswith(("trident_", "sqlite_"))
        ):
            raise ConfigurationError(
                f"{self.table!r} cannot be the table of a state", f"Give it a name of 1 to {_LONGEST_TABLE} letters."
            )
        if self.lock_timeout_s <= 0:
            raise ConfigurationError(f"SqlState with lock_timeout_s={self.lock_timeout_s}", "It must be above 0.")

    def validate(self, spec: StateSpec) -> None:
        require_plain_keys(spec)
        taken = {KEY_COLUMN, REMOVED, SPECIAL}
        require_columns(spec, taken, "many databases cannot tell from another column of its table")

    def make_state(self, spec: StateSpec) -> SqlStore:
        """
        :raises DefinitionChangedError: the state was made with other fields.
        """
        self.validate(spec)
        return SqlStore(SqlAlchemyDialect(self.connection or resolve(self.conn_id), spec, self))

    def lineage_dataset(self, spec: StateSpec) -> Dataset:
        return table_dataset(
            self.connection or resolve(self.conn_id),
            self.table or default_table(spec.topology, spec.name),
            self.schema or "",
        )

    def describe(self) -> str:
        place = ".".join(part for part in (self.schema, self.table) if part)
        return f"SqlState({self.conn_id}{f', {place}' if place else ''})"


class SqlAlchemyDialect(Dialect):
    """See :class:`SqlState`."""

    factory = "SqlState(conn_id, table=...)"
    mine = "id = :id"
    of_table = "table_id = :table_id"

    def __init__(self, where: Connection, spec: StateSpec, factory: SqlState) -> None:
        self.spec, self.place = spec, where.describe()
        self._where = where
        self._lock_timeout_s = factory.lock_timeout_s
        if scheme_of(where).startswith(_EMPTY_IS_NULL):
            raise ConfigurationError(f"{self.place} keeps empty texts as null", "Use another database.")
        self.engine = make_engine(where, factory.describe(), pool_size=1, pool_pre_ping=True)
        self._kind = self.engine.dialect.name
        self.table = factory.table or default_table(spec.topology, spec.name)
        self._tables = Tables(self._kind, factory.schema, self.table, spec)
        self._connection: sa.Connection | None = None
        self.markers, self.data = (self._name_of(table) for table in (self._tables.markers, self._tables.data))
        self.before = self._name_of(self._tables.before) if self.spec.opaque else ""
        self.shown = str(self._tables.data)

    @cached_property
    def row(self) -> dict[str, Any]:
        # Digests: databases differ in the length and case of names.
        table_id = digest(self.table.lower())
        return {"id": digest(self.spec.topology, self.spec.name), "table_id": table_id, **super().row}

    # ---- talking to the database -------------------------------------------------------------------------------

    def execute(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        import sqlalchemy as sa

        with self._connected() as connection:
            done = connection.execute(sa.text(statement), dict(parameters or {}))
            return done.all() if done.returns_rows else ()

    def _name_of(self, table: sa.Table) -> str:
        """The name for `sqlalchemy.text`, where a colon begins a parameter. Some drivers need percent signs doubled."""
        dialect = self.engine.dialect
        name = dialect.identifier_preparer.format_table(table).replace(":", r"\:")
        return name.replace("%%", "%") if dialect.paramstyle in ("format", "pyformat") else name

    @contextmanager
    def _connected(self) -> Iterator[sa.Connection]:
        """The transaction's connection, or a new one."""
        if self._connection is not None:
            yield self._connection
        else:
            with self.engine.connect() as connection:
                yield connection

    @contextmanager
    def errors(self) -> Iterator[None]:
        sa: Any = require_extra("sqlalchemy", EXTRA)
        try:
            yield
        except sa.exc.DBAPIError as error:
            raise _store_error(error, self._where) from None
        except sa.exc.TimeoutError as error:
            raise StoreUnavailableError(f"{self.place}: {error}", "Run the task again.") from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        import sqlalchemy as sa

        with self.engine.connect() as connection:
            if self._kind != "sqlite":
                # After the lock, reads must see what the previous committer has written.
                connection.execution_options(isolation_level="READ COMMITTED")
            if setting := _WAIT_FOR_LOCKS.get(self._kind):
                seconds = max(1, round(self._lock_timeout_s))
                connection.exec_driver_sql(setting.format(ms=round(self._lock_timeout_s * 1000), s=seconds))
            self._connection = connection
            try:
                yield
            finally:
                self._connection = None
            try:
                connection.commit()
            except sa.exc.DBAPIError as error:
                raise self.outcome_unknown(said(error, self._where)) from None

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self.engine.connect() as connection:
            if self._kind in _HAVE_SNAPSHOTS:
                connection.execution_options(isolation_level="REPEATABLE READ")
            elif self._kind == "sqlite":
                # Its driver begins no transaction before a SELECT.
                connection.exec_driver_sql("BEGIN")
            self._connection = connection
            try:
                yield
            finally:
                self._connection = None

    def lock(self) -> None:
        """An update: every database locks what it updates, and later reads see the newest values."""
        self.execute(f"UPDATE {self.markers} SET fence = fence WHERE {self.mine}", self.row)

    def close(self) -> None:
        self.engine.dispose()

    # ---- making tables -----------------------------------------------------------------------------------------

    @contextmanager
    def making(self) -> Iterator[None]:
        """Each step alone: not every database can roll back the making of a table."""
        yield

    def _needed(self) -> dict[str, sa.Table]:
        tables = self._tables
        before = {self.before: tables.before} if self.before else {}
        return {self.markers: tables.markers, self.data: tables.data, **before}

    def lacking(self) -> Sequence[str]:
        return [name for name, table in self._needed().items() if not self._has(table)]

    def _has(self, table: sa.Table) -> bool:
        import sqlalchemy as sa

        with self.engine.connect() as connection:
            return sa.inspect(connection).has_table(table.name, schema=table.schema)

    def stranger(self) -> tuple[str, Sequence[str]] | None:
        import sqlalchemy as sa

        before = self._tables.before
        if not self.spec.opaque or not self._has(before):
            return None
        with self.engine.connect() as connection:
            found = sa.inspect(connection).get_columns(before.name, schema=before.schema)
        needed = {column.name.lower() for column in before.c}
        return None if needed <= {one["name"].lower() for one in found} else (f"the table {before}", [before.name])

    def make(self, table: str) -> None:
        """Make the table, unless another process was first."""
        import sqlalchemy as sa

        made = self._needed()[table]
        try:
            with self.transaction():
                made.create(self._open)
        except sa.exc.DBAPIError:
            if not self._has(made):
                raise

    def enter(self) -> bool:
        import sqlalchemy as sa

        try:
            with self.transaction():
                return super().enter()
        except sa.exc.IntegrityError:
            return False

    # ---- the state's table -------------------------------------------------------------------------------------

    @property
    def _open(self) -> sa.Connection:
        assert self._connection is not None, "outside of a transaction"
        return self._connection

    def merge_natively(self, batch: StagedBatch) -> bool:
        return False

    def lookup(self, keys: Sequence[Key]) -> list[Value | None]:
        with self._connected() as connection:
            return self._tables.look_up(connection, keys)

    def put(self, changes: Changes, *, keeps: bool) -> None:
        if keeps:
            self._tables.keep(self._open, dict(zip(changes, self.lookup(list(changes)), strict=True)))
        self._tables.put(self._open, self._tables.data, changes)

    def restore_before(self) -> None:
        self._tables.put(self._open, self._tables.data, self._tables.kept(self._open))

    def kept(self, keys: Sequence[Key]) -> Changes:
        kept = self._tables.kept(self._open)
        return {key: kept[key] for key in keys if key in kept}

    def put_before(self, changes: Changes) -> None:
        self._tables.put(self._open, self._tables.before, changes)

    def pairs(self) -> Iterator[tuple[Key, Value]]:
        import sqlalchemy as sa

        with self.engine.connect() as connection:
            streaming = connection.execution_options(stream_results=True, max_row_buffer=_ROWS_AT_ONCE)
            yield from map(self._tables.pair, streaming.execute(sa.select(self._tables.data)).mappings())


def _store_error(error: sa.exc.DBAPIError, where: Connection) -> TridentError:
    """One clear error for the driver's error; nothing was applied."""
    import sqlalchemy as sa

    text = said(error, where)
    if any(words in text for words in _REFUSED):
        return ConfigurationError(f"{where.describe()} does not allow it ({text})", "Mend the connection or its user.")
    if isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError | sa.exc.InternalError):
        return StoreUnavailableError(
            f"{where.describe()} failed ({text})", "Mend it and run the task again. Nothing was applied."
        )
    return ConfigurationError(
        f"{where.describe()} does not accept it ({text})",
        "Somebody changed the tables of the state, or they cannot hold its fields: restore them, or name another.",
    )
