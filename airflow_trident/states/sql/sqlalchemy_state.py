"""States in tables of any database that SQLAlchemy has a driver for, such as MySQL, MariaDB or SQL Server.

A committer first updates its marker's row without a change, which only one at a time can do. Batch and marker then
change in the same transaction. The values of the batch's keys are read, merged in this process, written by the
database's upsert, or by delete and insert if it has none, and read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.staged_batch import StagedBatch
from airflow_trident.contracts.state import Capabilities, StateFactory, StateSpec
from airflow_trident.errors import ConfigurationError
from airflow_trident.io.connections import Connection, resolve
from airflow_trident.io.database_errors import DatabaseFault, errors_of, fault_of
from airflow_trident.io.database_limits import MYSQL, Limits
from airflow_trident.io.datasets import Dataset, table_dataset
from airflow_trident.io.sql import make_engine, scheme_of
from airflow_trident.states.core.checks import require_columns, require_plain_keys
from airflow_trident.states.core.merge import Changes, Key, Value
from airflow_trident.states.sql.alterations import Alteration, in_postgres, in_sqlalchemy, require_names
from airflow_trident.states.sql.dialect import KEY_COLUMN, Dialect, default_table, require_table, store_error
from airflow_trident.states.sql.sqlalchemy_table import REMOVED, SPECIAL, Tables, digest
from airflow_trident.states.sql.store import SqlStore

if TYPE_CHECKING:
    import sqlalchemy as sa

_ROWS_AT_ONCE = 10_000
# Elsewhere a repeatable read locks what it has read: readers and committers would block each other.
_HAVE_SNAPSHOTS = ("postgresql", "mysql", "mariadb")
_EMPTY_IS_NULL = "oracle"


@dataclass(frozen=True)
class SqlState(StateFactory):
    """A table in a database with transactions.

    :param conn_id: an Airflow connection of type mysql, mssql, postgres or sqlite; the extra ``sqlalchemy_scheme``
        names any other driver.
    :param table: its name; by default ``<topology>_<state>``.
    :param schema: of the table; it must exist.
    :param connection: explicit settings instead of `conn_id`.
    :param connect_timeout_s: time limit for a connection.
    :param lock_timeout_s: how long to wait for another committer of the same state, and for who alters its tables.
    :param statement_timeout_s: time limit for one statement.
    :param allow_triggers: names of triggers and rules of its tables that change none of their rows; others are refused.
    """

    conn_id: str
    table: str | None = None
    schema: str | None = None
    connection: Connection | None = field(default=None, kw_only=True)
    connect_timeout_s: float = field(default=10.0, kw_only=True)
    lock_timeout_s: float = field(default=30.0, kw_only=True)
    statement_timeout_s: float = field(default=600.0, kw_only=True)
    allow_triggers: tuple[str, ...] = field(default=(), kw_only=True)

    capabilities = Capabilities(durable=True, atomic=True, opaque=True, groups=True)

    def __post_init__(self) -> None:
        if self.table is not None:
            require_table(self.table)
        self.limits.require_positive("SqlState")
        require_names("SqlState", self.allow_triggers)

    @property
    def limits(self) -> Limits:
        return Limits(
            connect_s=self.connect_timeout_s, lock_s=self.lock_timeout_s, statement_s=self.statement_timeout_s
        )

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
            self.table or default_table(spec),
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
        self.allow_triggers = factory.allow_triggers
        if scheme_of(where).startswith(_EMPTY_IS_NULL):
            raise ConfigurationError(f"{self.place} keeps empty texts as null", "Use another database.")
        self.engine = make_engine(where, factory.describe(), factory.limits, pool_size=1, pool_pre_ping=True)
        self._kind = self.engine.dialect.name
        self.table = factory.table or default_table(spec)
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
    def _connected(self, **options: Any) -> Iterator[sa.Connection]:
        """The transaction's connection, or a new one with these options of SQLAlchemy. What ends it does not matter any
        more: everything is committed then, or an error is on its way that must not be replaced by another."""
        if self._connection is not None:
            yield self._connection
            return
        connection = self.engine.connect()
        try:
            yield connection.execution_options(**options)
        finally:
            try:
                connection.close()
            except errors_of(self.engine.dialect):
                connection.invalidate()

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except errors_of(self.engine.dialect) as error:
            raise store_error(self._fault(error), self._where) from None

    def _fault(self, error: BaseException) -> DatabaseFault:
        return fault_of(error, self._kind, self._where)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        # After the lock, reads must see what the previous committer has written.
        options = {} if self._kind == "sqlite" else {"isolation_level": "READ COMMITTED"}
        more: dict[str, Any] = {"postgresql_readonly": False} if self._kind == "postgresql" else {}
        with self._connected(**options, **more) as connection:
            self._connection = connection
            try:
                yield
            finally:
                self._connection = None
            try:
                connection.commit()
            except errors_of(self.engine.dialect) as error:
                fault = self._fault(error)
                raise (self.outcome_unknown(fault.text) if fault.passes else store_error(fault, self._where)) from None

    @contextmanager
    def reading(self) -> Iterator[None]:
        options = {"isolation_level": "REPEATABLE READ"} if self._kind in _HAVE_SNAPSHOTS else {}
        with self._connected(**options) as connection:
            if self._kind == "sqlite":
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
        tables = [name for name in (self.data, self.before) if name]
        if self._kind == "postgresql":
            self.execute(f"LOCK TABLE {', '.join(tables)} IN ROW EXCLUSIVE MODE")
        elif self._kind in MYSQL:
            for name in tables:  # a table that was read in a transaction is altered after it
                self.execute(f"SELECT 1 FROM {name} LIMIT 0")

    def alterations(self) -> Sequence[Alteration]:
        import sqlalchemy as sa

        tables = self._tables
        keyed = [tables.data, tables.before] if self.before else [tables.data]
        columns = [column.name for column in tables.before.c]
        if self._kind == "postgresql":
            return in_postgres(self.execute, [self.markers, self.data, *filter(None, [self.before])], columns)
        statement = in_sqlalchemy(self._kind)
        if not statement:
            return ()
        names = [table.name for table in (tables.markers, *keyed)]
        parameters: dict[str, Any] = {
            "schema": tables.data.schema,
            "key": KEY_COLUMN,
            "tables": [name.lower() for name in names] if self._kind == "sqlite" else names,
            "keyed": [table.name for table in keyed],
            "columns": columns,
        }
        used = {name: value for name, value in parameters.items() if f":{name}" in statement}
        many = [name for name, value in used.items() if isinstance(value, list)]
        text = sa.text(statement).bindparams(*(sa.bindparam(name, expanding=True) for name in many))
        with self._connected() as connection:
            return [Alteration(*map(str, row)) for row in connection.execute(text, used)]

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

        with self._connected() as connection:
            return sa.inspect(connection).has_table(table.name, schema=table.schema)

    def make(self, table: str) -> None:
        """Make the table, unless another process was first."""
        made = self._needed()[table]
        try:
            with self.transaction():
                made.create(self._open)
        except errors_of(self.engine.dialect):
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
        self._tables.require_put(self._open, changes)

    def restore_before(self) -> None:
        kept = self._tables.kept(self._open)
        self._tables.put(self._open, self._tables.data, kept)
        self._tables.require_put(self._open, kept)

    def kept(self, keys: Sequence[Key]) -> Changes:
        kept = self._tables.kept(self._open)
        return {key: kept[key] for key in keys if key in kept}

    def put_before(self, changes: Changes) -> None:
        self._tables.put(self._open, self._tables.before, changes)

    def pairs(self) -> Iterator[tuple[Key, Value]]:
        import sqlalchemy as sa

        with self._connected() as connection:
            streaming = connection.execution_options(stream_results=True, max_row_buffer=_ROWS_AT_ONCE)
            with streaming.execute(sa.select(self._tables.data)) as rows:
                yield from map(self._tables.pair, rows.mappings())
