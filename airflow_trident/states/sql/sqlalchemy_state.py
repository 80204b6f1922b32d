"""States in tables of any database that SQLAlchemy has a driver for, such as MySQL, MariaDB or SQL Server.

A committer first updates its marker's row without a change, which only one at a time can do. Batch and marker then
change in the same transaction. The values of the batch's keys are read, merged in this process, written by the
database's upsert, or by delete and insert if it has none, and read again.

A state as a table of any database that SQLAlchemy knows: its columns, and the stored form of values.

The primary key ``_key`` is a digest of the key fields, because databases differ in what they index and which texts they
call equal. Each field also has its own column. Values that a database cannot hold exactly are text: arrays, maps and
structs everywhere, decimals in SQLite. If a database has no NaN or infinities, these are null in their column, and JSON
in ``trident_special``.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import Capabilities, StagedBatch, StateFactory, StateSpec
from airflow_trident.errors import ConfigurationError, CorruptRecordError
from airflow_trident.io.connections import Connection, resolve
from airflow_trident.io.database_drivers import DatabaseFault, errors_of, fault_of
from airflow_trident.io.database_limits import MYSQL, Limits
from airflow_trident.io.datasets import Dataset, table_dataset
from airflow_trident.io.sql import make_engine, quoted, scheme_of
from airflow_trident.names import require_conn_id
from airflow_trident.operations.evaluate import interval_of, microseconds_of
from airflow_trident.states.core.checks import require_columns, require_plain_keys
from airflow_trident.states.core.merge import Changes, Key, Value
from airflow_trident.states.core.text_values import Coder, decoder, encoder, key_text, same
from airflow_trident.states.sql.alterations import Alteration, in_postgres, in_sqlalchemy
from airflow_trident.states.sql.dialect import Dialect, changed_otherwise, fields_of, own_values, store_error
from airflow_trident.states.sql.postgres import hide_zero, show_zero
from airflow_trident.states.sql.store import SqlStore
from airflow_trident.states.sql.table_names import KEY_COLUMN, default_table, require_names, require_table
from airflow_trident.types import INTERVAL, REAL_TYPES, Field, is_nested

if TYPE_CHECKING:
    import sqlalchemy as sa

# Not the name that PostgresState uses: both may be in one schema.
MARKERS = "trident_jdbc_applied"
BEFORE = "trident_before_"
REMOVED = "trident_removed"
SPECIAL = "trident_special"
_DIGEST = 64
_KEYS_AT_ONCE = 500
_MYSQL = ("mysql", "mariadb")
# SQLite stores NaN as null, and SQLAlchemy converts all values of a float column to float.
_HAVE_NAN = ("postgresql",)


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@dataclass(frozen=True)
class Tables:
    """A state in a database of kind `dialect`. Besides `data`: `markers`, shared by all states of the schema, and
    `before`, to take back the highest txid."""

    dialect: str
    schema: str | None
    name: str
    spec: StateSpec

    @cached_property
    def markers(self) -> sa.Table:
        import sqlalchemy as sa

        columns: list[sa.Column[Any]] = [
            sa.Column("id", sa.String(_DIGEST), primary_key=True),
            # A digest: databases differ in the length and case of names.
            sa.Column("table_id", sa.String(_DIGEST), nullable=False, unique=True),
            *(sa.Column(name, self._text, nullable=False) for name in ("topology", "state", "table_name")),
            sa.Column("definition", self._text, nullable=False),
            sa.Column("incarnation", self._text),
            sa.Column("high", sa.BigInteger),
            sa.Column("fence", sa.BigInteger),
            sa.Column("holes", self._text),
            sa.Column("position", self._text),
            sa.Column("attempt", sa.Integer),
        ]
        return self._table(MARKERS, columns)

    @cached_property
    def data(self) -> sa.Table:
        import sqlalchemy as sa

        table, partitions = self._table(self.name, self._columns()), self.spec.partition
        if partitions is not None and partitions.field.type == "date":  # not every database has indexes of texts
            sa.Index(f"trident_part_{self.name}", table.c[partitions.column])
        return table

    @cached_property
    def before(self) -> sa.Table:
        import sqlalchemy as sa

        return self._table(f"{BEFORE}{self.name}", [*self._columns(), sa.Column(REMOVED, sa.Boolean, nullable=False)])

    def _table(self, name: str, columns: Sequence[sa.Column[Any]]) -> sa.Table:
        import sqlalchemy as sa

        # Fixed, because a server's default engine without transactions would break every promise.
        return sa.Table(
            name, sa.MetaData(), *columns, schema=self.schema, mysql_engine="InnoDB", mariadb_engine="InnoDB"
        )

    def _columns(self) -> list[sa.Column[Any]]:
        import sqlalchemy as sa

        key = sa.Column(KEY_COLUMN, sa.String(_DIGEST), primary_key=True)
        special = [sa.Column(SPECIAL, self._text)] if self._hides_floats else []
        return [key, *(sa.Column(field.name, self._type(field.type)) for field in self._fields), *special]

    @property
    def _hides_floats(self) -> bool:
        return self.dialect not in _HAVE_NAN and any(column.type in REAL_TYPES for column in self._fields)

    @cached_property
    def _fields(self) -> tuple[Field, ...]:
        return fields_of(self.spec)

    @property
    def _text(self) -> Any:
        """Text of any length, case-sensitive."""
        import sqlalchemy as sa
        from sqlalchemy.dialects import mysql

        return mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin") if self._is_mysql else sa.UnicodeText()

    @property
    def _is_mysql(self) -> bool:
        return self.dialect in _MYSQL

    def _type(self, type_text: str) -> Any:
        import sqlalchemy as sa
        from sqlalchemy.dialects import mssql, mysql

        if type_text == "string" or is_nested(type_text):
            return self._text
        if type_text.startswith("decimal"):
            precision, scale = map(int, type_text[8:-1].split(","))
            return self._text if self.dialect == "sqlite" else sa.Numeric(precision, scale)
        if type_text == "binary":
            return mysql.LONGBLOB() if self._is_mysql else sa.LargeBinary()
        if type_text == "timestamp":
            if self._is_mysql:
                return mysql.DATETIME(fsp=6)
            # SQL Server's type without parameters keeps milliseconds only.
            return mssql.DATETIME2() if self.dialect == "mssql" else sa.DateTime()  # type: ignore[no-untyped-call]
        if type_text == "time" and self._is_mysql:
            return mysql.TIME(fsp=6)
        kinds = {
            **dict.fromkeys(("long", INTERVAL), sa.BigInteger),
            "int": sa.Integer,
            **dict.fromkeys(("short", "byte"), sa.SmallInteger),
            "boolean": sa.Boolean,
            "date": sa.Date,
            "time": sa.Time,
        }
        return kinds.get(type_text, sa.Double)()

    # ---- values ------------------------------------------------------------------------------------------------

    @cached_property
    def _codes(self) -> list[tuple[str, Coder, Coder]]:
        """(column, to the database, back) of each field."""
        return [(field.name, *_codes(field.type, self.dialect)) for field in self._fields]

    def key_of(self, key: Key) -> str:
        return digest(key_text(self.spec.keys, key))

    def row(self, key: Key, value: Value | None) -> dict[str, Any]:
        """Parameters of an insert; without a value the value fields are null."""
        whole = (*key, *(value or (None,) * len(self.spec.values)))
        parts = zip(self._codes, whole, strict=True)
        row = {name: None if part is None else encode(part) for (name, encode, _), part in parts}
        if self._hides_floats:
            hidden = {name: str(part) for name, part in row.items() if isinstance(part, float) and not isfinite(part)}
            row |= {**dict.fromkeys(hidden), SPECIAL: json.dumps(hidden) if hidden else None}
        return {KEY_COLUMN: self.key_of(key), **row}

    def pair(self, row: sa.RowMapping) -> tuple[Key, Value]:
        """:param row: by names of columns."""
        names, decoders = [name for name, *_ in self._codes], [decode for *_, decode in self._codes]
        parts = own_values(self._fields, decoders, [row[name] for name in names], self.name)
        if self._hides_floats and row[SPECIAL]:
            hidden = json.loads(row[SPECIAL])
            parts = tuple(
                float(hidden[name]) if name in hidden else part for name, part in zip(names, parts, strict=True)
            )
        return parts[: len(self.spec.keys)], parts[len(self.spec.keys) :]

    # ---- reading and writing, inside a transaction -------------------------------------------------------------

    def look_up(self, connection: sa.Connection, keys: Sequence[Key]) -> list[Value | None]:
        """The stored value of each key."""
        import sqlalchemy as sa

        names = [self.key_of(key) for key in keys]
        answers: dict[str, Value] = {}
        distinct = list(dict.fromkeys(names))
        for begin in range(0, len(distinct), _KEYS_AT_ONCE):
            some = distinct[begin : begin + _KEYS_AT_ONCE]
            for row in connection.execute(sa.select(self.data).where(self.data.c[KEY_COLUMN].in_(some))).mappings():
                if row[KEY_COLUMN] in answers:
                    raise CorruptRecordError(
                        f"the table {self.data} of state {self.spec.name!r} has the key {self.pair(row)[0]!r} twice",
                        "It lost its primary key: remove what is doubled, and make the key again.",
                    )
                answers[row[KEY_COLUMN]] = self.pair(row)[1]
        return [answers.get(name) for name in names]

    def require_put(self, connection: sa.Connection, changes: Changes) -> None:
        """Read again what was written.

        :raises ConfigurationError: it is not there.
        """
        for (key, sent), stored in zip(changes.items(), self.look_up(connection, list(changes)), strict=True):
            # NaN is not equal to itself, and equal numbers may be written in two ways.
            if sent != stored and repr(sent) != repr(stored):
                raise changed_otherwise(self.spec, str(self.data), f"{sent!r:.100} for key {key!r:.100}", stored)

    def kept(self, connection: sa.Connection) -> Changes:
        """The keys of the highest txid, with their values before it."""
        import sqlalchemy as sa

        rows = connection.execute(sa.select(self.before)).mappings()
        pairs = [(self.pair(row), row[REMOVED]) for row in rows]
        return {key: None if removed else value for (key, value), removed in pairs}

    def keep(self, connection: sa.Connection, before: Changes) -> None:
        """Replace the kept values."""
        connection.execute(self.before.delete())
        self.put(connection, self.before, before)

    def put(self, connection: sa.Connection, table: sa.Table, changes: Changes) -> None:
        """Write into `data` or `before`; the latter also keeps that a key was missing."""
        marks = REMOVED in table.c
        put = [(key, value) for key, value in changes.items() if marks or value is not None]
        upsert = upsert_into(table, self.dialect)
        removed = [
            self.key_of(key) for key, value in changes.items() if upsert is None or (value is None and not marks)
        ]
        for begin in range(0, len(removed), _KEYS_AT_ONCE):
            some = removed[begin : begin + _KEYS_AT_ONCE]
            connection.execute(table.delete().where(table.c[KEY_COLUMN].in_(some)))
        rows = [self.row(key, value) | ({REMOVED: value is None} if marks else {}) for key, value in put]
        if rows:
            # Neighbours in the index go together.
            rows.sort(key=lambda row: str(row[KEY_COLUMN]))
            connection.execute(table.insert() if upsert is None else upsert, rows)


def upsert_into(table: sa.Table, dialect: str) -> Any:
    """Insert, or replace by the new values; None if SQLAlchemy has no such statement: then delete first."""
    from sqlalchemy.dialects import mysql, postgresql, sqlite

    names = [column.name for column in table.c if not column.primary_key]
    if dialect in _MYSQL:
        into = mysql.insert(table)
        return into.on_duplicate_key_update({name: into.inserted[name] for name in names})
    inserts: dict[str, Any] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}
    if dialect not in inserts:
        return None
    row = inserts[dialect](table)
    return row.on_conflict_do_update(index_elements=[KEY_COLUMN], set_={name: row.excluded[name] for name in names})


# ---- one value -------------------------------------------------------------------------------------------------


def _codes(type_text: str, dialect: str) -> tuple[Coder, Coder]:
    """Conversions to the database and back, for values that are not null."""
    if is_nested(type_text) or (type_text.startswith("decimal") and dialect == "sqlite"):
        return encoder(type_text), decoder(type_text)
    if type_text.startswith("decimal"):
        return same, Decimal
    if type_text == "timestamp":
        return _without_zone, lambda value: value.replace(tzinfo=datetime.UTC)
    if type_text == INTERVAL:
        return microseconds_of, interval_of
    if type_text in REAL_TYPES:
        return same, float
    if type_text == "string" and dialect == "postgresql":
        return hide_zero, show_zero
    kinds: dict[str, Coder] = {"boolean": bool, "binary": bytes}
    return same, kinds.get(type_text, same)


def _without_zone(value: datetime.datetime) -> datetime.datetime:
    """Columns are in UTC; a timestamp without a zone counts as UTC."""
    return value if value.tzinfo is None else value.astimezone(datetime.UTC).replace(tzinfo=None)


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

    capabilities = Capabilities(durable=True, atomic=True, opaque=True, groups=True, partitions=True)

    def __post_init__(self) -> None:
        if self.connection is None:
            require_conn_id("SqlState", self.conn_id)
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

    def __init__(self, connection: Connection, spec: StateSpec, factory: SqlState) -> None:
        self.spec, self.place = spec, connection.describe()
        self._where = connection
        self.allow_triggers = factory.allow_triggers
        if scheme_of(connection).startswith(_EMPTY_IS_NULL):
            raise ConfigurationError(f"{self.place} keeps empty texts as null", "Use another database.")
        self.engine = make_engine(connection, factory.describe(), factory.limits, pool_size=1, pool_pre_ping=True)
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
        """The name for `sqlalchemy.text`, where a colon begins a parameter."""
        return quoted(self.engine.dialect, table).replace(":", r"\:")

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
            names = [quoted(self.engine.dialect, table) for table in (tables.markers, *keyed)]
            return in_postgres(self.execute, names, columns)
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

    def remove_partitions(self, values: Sequence[datetime.date | str]) -> None:
        assert self.spec.partition is not None
        data = self._tables.data
        self._open.execute(data.delete().where(data.c[self.spec.partition.column].in_(values)))

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
