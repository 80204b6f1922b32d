"""States in PostgreSQL tables, which people can query directly, also while batches are applied.

A batch is copied into a temporary table of its transaction. Then the marker's row is locked, which admits one committer
at a time, and batch and marker change together. The server does the arithmetic of built-in aggregators in one
statement; for other aggregators this process reads, merges and writes the batch's keys.

Connections to PostgreSQL by psycopg, and the meaning of its errors for a task.

Values in PostgreSQL: a batch as COPY text, and rows back as values.

PostgreSQL's text has no zero character: U+0000 is stored as U+0001 U+0001, and U+0001 as U+0001 U+0002, which keeps
their order. Arrays, maps and structs are JSON; inside it bytes are hexadecimal, dates and times ISO 8601, intervals
microseconds, NaN and infinities text.

A state as a PostgreSQL table: its columns and its statements.

Each field has a column. A unique index over the key columns treats null keys as equal to each other and different from
all others, so people find rows by their keys. A *batch* is a table with the same columns and `REMOVED`: true if the key
is to be removed, or, in the kept values, if the key was missing before the transaction.

PostgreSQL as a dialect of SQL states. A batch is copied into its own table; then the marker's row is locked.
Arithmetic is one statement where the server can do it.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import Capabilities, StagedBatch, StateFactory, StateSpec
from airflow_trident.errors import ConfigurationError, StoreUnavailableError
from airflow_trident.io.arrow import python_values, rows_to_table
from airflow_trident.io.connections import Connection, require_extra, resolve
from airflow_trident.io.database_drivers import DatabaseFault, Fault, connect_psycopg, fault_of
from airflow_trident.io.database_limits import Limits
from airflow_trident.io.datasets import Dataset, table_dataset
from airflow_trident.io.sql import driver_extras, taking_extras
from airflow_trident.names import require_conn_id
from airflow_trident.operations.evaluate import microseconds_of
from airflow_trident.operations.interfaces import MergeKind
from airflow_trident.states.core.checks import require_plain_keys
from airflow_trident.states.core.merge import Changes, Key, Value, canonical_key
from airflow_trident.states.core.text_values import Coder, json_coder, json_decoder, optional, same
from airflow_trident.states.sql.alterations import Alteration, in_postgres, of_columns, of_key
from airflow_trident.states.sql.dialect import Dialect, changed_otherwise, fields_of, merges_natively, store_error
from airflow_trident.states.sql.store import SqlStore
from airflow_trident.states.sql.table_names import default_table, quote, require_names, require_table
from airflow_trident.types import INTERVAL, REAL_TYPES, Field, Schema, is_nested, names_of

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

OLDEST = 150000
"""PostgreSQL 15: older unique indexes do not treat null keys as equal."""


def connect(where: Connection, limits: Limits, application: str) -> psycopg.Connection[Any]:
    """An open connection without implicit transactions.

    :raises ConfigurationError: an option or the login is wrong, or the server is too old.
    :raises StoreUnavailableError: it does not answer.
    """
    driver = require_extra("psycopg", "airflow-trident[postgres]")
    if where.conn_type not in ("", "postgres"):
        raise ConfigurationError(
            f"the connection {where.conn_id!r} is of type {where.conn_type!r}, not postgres",
            "Name a connection of type postgres.",
        )
    place = {"host": where.host, "port": where.port, "dbname": where.schema, "user": where.login}
    parameters = {name: value for name, value in {**place, "password": where.password}.items() if value}
    # A dead network must not block a committer, and the marker's lock, for ever.
    settings = {**limits.for_libpq, **driver_extras(where), **parameters}
    settings |= {"application_name": application[:63], "client_encoding": "UTF8"}
    try:
        # Statements are planned anew each time: a plan for a small batch is wrong for a large one.
        with taking_extras(where):
            connection = connect_psycopg(limits, **settings, autocommit=True, prepare_threshold=None)
    except driver.Error as error:
        # Not chained: the frames of the cause hold the arguments, and so the password.
        raise store_error(fault_in(error, where), where) from None
    if connection.info.server_version < OLDEST:
        connection.close()
        raise ConfigurationError(f"{where.describe()} is older than PostgreSQL 15", "Use PostgreSQL 15 or newer.")
    return connection


def fault_in(error: Exception, connection: Connection) -> DatabaseFault:
    """What the server's error, or the driver's own, means: in one line, without secrets."""
    fault = fault_of(error, "postgresql", connection)
    lines = connection.conceal(str(error)).strip().split(os.linesep)
    plain = " ".join(line.strip() for line in lines if not line.startswith(("LINE ", " "))).strip()
    return replace(fault, text=plain)


_PIECE_ROWS = 20_000
_COLUMN_TYPES = {
    "string": 'text COLLATE "C"',
    "long": "bigint",
    "int": "integer",
    **dict.fromkeys(("short", "byte"), "smallint"),
    "double": "double precision",
    "float": "real",
    "boolean": "boolean",
    "binary": "bytea",
    "date": "date",
    "time": "time",
    "timestamp": "timestamptz",
    INTERVAL: "interval",
}


def column_type(type_text: str) -> str:
    """The column type of a field."""
    if type_text.startswith("decimal"):
        return type_text.replace("decimal", "numeric")
    return "jsonb" if is_nested(type_text) else _COLUMN_TYPES[type_text]


# ---- to the server ---------------------------------------------------------------------------------------------


def copy_text(pieces: Iterable[pa.RecordBatch], schema: Schema, keys: int) -> Iterator[memoryview]:
    """The rows as input of COPY ... FROM STDIN, in pieces. Columns stay in Arrow, except bytes and nested values.

    :param keys: the number of key columns; in them -0.0 becomes 0.0.
    """
    import pyarrow.compute as pc

    for batch in (
        piece.slice(begin, _PIECE_ROWS) for piece in pieces for begin in range(0, piece.num_rows, _PIECE_ROWS)
    ):
        columns = [
            _texts(batch.column(field.name), field.type, is_key=place < keys) for place, field in enumerate(schema)
        ]
        rows = pc.binary_join_element_wise(*columns, "\t", null_handling="replace", null_replacement="\\N")
        lines = pc.binary_join_element_wise(rows, "", "\n")
        size = int(pc.sum(pc.binary_length(lines)).as_py() or 0)
        if size:
            yield memoryview(lines.buffers()[2])[:size]


def _texts(column: pa.Array, type_text: str, *, is_key: bool) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if type_text == "binary":
        texts = (None if part is None else f"\\\\x{part.hex()}" for part in column.to_pylist())
        return pa.array(texts, pa.string())
    if is_nested(type_text):
        encode = json_coder(type_text, _json_encoder)
        values = python_values(column)
        texts = (None if part is None else json.dumps(encode(part), ensure_ascii=False) for part in values)
        return _escaped(pa.array(texts, pa.string()))
    if type_text == "string":
        for character, stored in (("\x01", "\x01\x02"), ("\0", "\x01\x01")):
            column = pc.replace_substring(column, character, stored)
        return _escaped(column)
    if is_key and type_text in REAL_TYPES:
        column = pc.add(column, pa.scalar(0.0, column.type))
    text = column.cast(pa.string())
    return pc.binary_join_element_wise(text, "microseconds", " ") if type_text == INTERVAL else text


def _escaped(column: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    for character, written in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        column = pc.replace_substring(column, character, written)
    return column


# ---- one value -------------------------------------------------------------------------------------------------


def hide_zero(text: str) -> str:
    return text.replace("\x01", "\x01\x02").replace("\0", "\x01\x01") if "\x01" in text or "\0" in text else text


def show_zero(text: str) -> str:
    return text.replace("\x01\x01", "\0").replace("\x01\x02", "\x01") if "\x01" in text else text


def parameter(type_text: str) -> Coder:
    """Converts from Python to a parameter of the driver, for keys."""
    if type_text == "string":
        return hide_zero
    return _utc if type_text == "timestamp" else same


def decoder(type_text: str) -> Coder:
    """Converts the driver's value to the value that Arrow gives for the type."""
    if is_nested(type_text):
        return optional(json_coder(type_text, _json_decoder, decodes=True))
    kinds: dict[str, Coder] = {"string": show_zero, "timestamp": _utc}
    return optional(kinds[type_text]) if type_text in kinds else same


def _json_encoder(type_text: str) -> Coder:
    """For a part of a nested value."""
    if type_text.startswith("decimal"):
        return lambda value: format(value, "f")
    kinds: dict[str, Coder] = {
        "string": hide_zero,
        "binary": bytes.hex,
        "double": _json_real,
        "float": _json_real,
        "date": lambda value: value.isoformat(),
        "time": lambda value: value.isoformat(),
        "timestamp": lambda value: _utc(value).isoformat(),
        INTERVAL: microseconds_of,
    }
    return kinds.get(type_text, same)


def _json_real(value: float) -> float | str:
    """Numbers of jsonb are decimals: these have neither infinities and NaN nor a negative zero."""
    is_number = math.isfinite(value) and (value or math.copysign(1.0, value) > 0)
    return value if is_number else str(value)


def _json_decoder(type_text: str) -> Coder:
    return show_zero if type_text == "string" else json_decoder(type_text)


def _utc(value: datetime.datetime) -> datetime.datetime:
    """Timestamps without a zone are UTC."""
    return value.replace(tzinfo=datetime.UTC) if value.tzinfo is None else value.astimezone(datetime.UTC)


REMOVED = "trident_removed"
MARKERS = "trident_applied"
_LONGEST_NAME_BYTES = 63
_ADDABLE = ("long", "int", "double")


def require_name(subject: str, name: str) -> None:
    """:raises ConfigurationError: PostgreSQL cannot have this name, or would cut it."""
    if not isinstance(name, str) or not name or "\0" in name or len(name.encode()) > _LONGEST_NAME_BYTES:
        raise ConfigurationError(
            f"{name!r} cannot be the {subject} of a state in PostgreSQL",
            f"Give it a name of 1 to {_LONGEST_NAME_BYTES} bytes.",
        )


@dataclass(frozen=True)
class TablePlace:
    """A table; `schema` "" is the first one of the connection's search path."""

    schema: str
    table: str

    def __str__(self) -> str:
        return f"{quote(self.schema)}.{quote(self.table)}" if self.schema else quote(self.table)

    def beside(self, table: str) -> TablePlace:
        return TablePlace(self.schema, table)


@dataclass(frozen=True)
class PostgresLayout:
    """The table `place` of one state."""

    place: TablePlace
    spec: StateSpec

    @cached_property
    def fields(self) -> Schema:
        return fields_of(self.spec)

    @property
    def batch_fields(self) -> Schema:
        return (*self.fields, Field(REMOVED, "boolean"))

    def require_columns(self) -> None:
        """:raises ConfigurationError: the fields cannot be columns."""
        for column in self.fields:
            require_name("column", column.name)
            if column.name == REMOVED:
                raise ConfigurationError(
                    f"state {self.spec.name!r} has the field {REMOVED!r}, which is a column of its own",
                    "Rename the field.",
                )

    @property
    def before(self) -> TablePlace:
        """The values before the highest txid (T9)."""
        return self.place.beside(f"trident_before_{self.place.table}")

    @property
    def merges_natively(self) -> bool:
        """Can PostgreSQL do the arithmetic exactly?"""
        return merges_natively(self.spec, _is_exact)

    # ---- making tables -----------------------------------------------------------------------------------------

    def create(self) -> list[str]:
        return [f"CREATE TABLE {self.place} ({self._columns(self.fields)})", self._index("trident_key_", self.place)]

    def create_before(self) -> list[str]:
        index = self._index("trident_old_key_", self.before)
        return [f"CREATE TABLE {self.before} ({self._columns(self.batch_fields)})", index]

    def create_batch(self, batch: str) -> str:
        """A table that only this transaction sees."""
        return f"CREATE TEMP TABLE {quote(batch)} ({self._columns(self.batch_fields)}) ON COMMIT DROP"

    @staticmethod
    def _columns(fields: Schema) -> str:
        kinds = {REMOVED: "boolean NOT NULL DEFAULT false"}
        return ", ".join(f"{quote(field.name)} {kinds.get(field.name) or column_type(field.type)}" for field in fields)

    def _index(self, beginning: str, place: TablePlace) -> str:
        """No beginning of a name beside the table's begins another one: two tables have no such name in common."""
        nulls = " NULLS NOT DISTINCT" if self.spec.keys else ""
        return f"CREATE UNIQUE INDEX {quote(beginning + self.place.table)} ON {place} ({self._key}){nulls}"

    @property
    def _key(self) -> str:
        """The unique columns; a state without key has one row."""
        return ", ".join(map(quote, self.spec.key_names)) or "(true)"

    # ---- writing -----------------------------------------------------------------------------------------------

    def copy(self, batch: str, fields: Schema) -> str:
        return f"COPY {quote(batch)} ({_list(names_of(fields))}) FROM STDIN"

    def merge(self, batch: str) -> str:
        """Insert the batch, or merge its values into the stored ones, one expression per value column."""
        parts = zip(self.spec.combiners, self.spec.values, strict=True)
        updates = [f"{quote(field.name)} = {_merged(combiner.merge_kind, field)}" for combiner, field in parts]
        rows = f"SELECT {_list(names_of(self.fields))} FROM {quote(batch)}"
        return f"{self._insert(self.place, rows, self.fields)} DO UPDATE SET {', '.join(updates)}"

    def write(self, source: TablePlace | str, target: TablePlace, patterns: Sequence[Sequence[bool]]) -> list[str]:
        """Remove the keys that `source` marks and put its other rows. `patterns`: those of `source`."""
        statement = " UNION ALL ".join(
            f"SELECT s.row FROM {_name(source)} b CROSS JOIN LATERAL ({self._stored(target, 'ctid AS row', nulls)}) s "
            f"WHERE b.{REMOVED} AND {self._has(nulls)}"
            for nulls in patterns
        )
        remove = [f"DELETE FROM {target} WHERE ctid = ANY (ARRAY({statement}))"] if statement else []
        rows = f"SELECT {_list(names_of(self.fields))} FROM {_name(source)} WHERE NOT {REMOVED}"
        updates = [f"{quote(name)} = excluded.{quote(name)}" for name in self.spec.value_names]
        updates += [f"{REMOVED} = false"] if target == self.before else []
        return [*remove, f"{self._insert(target, rows, self.fields)} DO UPDATE SET {', '.join(updates)}"]

    def count(self, source: TablePlace | str) -> str:
        """The number of rows of `source` that are not removed."""
        return f"SELECT count(*) FROM {_name(source)} WHERE NOT {REMOVED}"

    def keep(self, batch: str, nulls: Sequence[bool]) -> str:
        """Copy the values stored under the keys of a batch into `before`."""
        keys, values = self.spec.key_names, self.spec.value_names
        shown = ", ".join([*(f"b.{quote(name)}" for name in keys), *(f"s.{quote(name)}" for name in values)])
        stored = self._stored(self.place, ", ".join(["true AS found", *map(quote, values)]), nulls)
        rows = (
            f"SELECT {shown}, s.found IS NULL FROM {quote(batch)} b LEFT JOIN LATERAL ({stored}) s ON true "
            f"WHERE {self._has(nulls)}"
        )
        return f"{self._insert(self.before, rows, self.batch_fields)} DO NOTHING"

    def patterns(self, source: TablePlace | str) -> str:
        """The combinations of null key columns: an index finds nulls only if the statement names them."""
        shown = ", ".join(f"{quote(name)} IS NULL" for name in self.spec.key_names)
        return f"SELECT DISTINCT {shown or 'true'} FROM {_name(source)}"

    def _insert(self, target: TablePlace, rows: str, fields: Schema) -> str:
        return f"INSERT INTO {target} AS t ({_list(names_of(fields))}) {rows} ON CONFLICT ({self._key})"

    # ---- reading -----------------------------------------------------------------------------------------------

    def select(self, source: TablePlace, nulls: Sequence[bool]) -> str:
        """(number of the key, is it REMOVED, its values...). Parameters: one list per key column that is not null in
        `nulls`; all other key columns are null."""
        not_null = [place for place, is_null in enumerate(nulls) if not is_null]
        arrays = ", ".join(f"%s::{_array_type(self.spec.keys[place])}[]" for place in not_null)
        keys = "".join(f"{quote(self.spec.keys[place].name)}, " for place in not_null) or "nothing, "
        removed = REMOVED if source == self.before else "false"
        values = ", ".join([f"{removed} AS removed", *map(_shown, self.spec.values)])
        named = f"AS b({keys}trident_number) CROSS JOIN LATERAL ({self._stored(source, values, nulls)}) s"
        # Names may have percent signs, which begin a parameter.
        return (
            f"SELECT b.trident_number, s.* FROM unnest({arrays or 'ARRAY[true]'}) WITH ORDINALITY "
            f"{named.replace('%', '%%')}"
        )

    def select_all(self) -> str:
        return f"SELECT {', '.join(map(_shown, self.fields))} FROM {self.place}"

    def _stored(self, source: TablePlace, columns: str, nulls: Sequence[bool]) -> str:
        """The stored row of key `b`, whose null columns are in `nulls`. The limit forces an index look-up in every plan
        (T6)."""
        pairs = [
            f"t.{quote(name)} {'IS NULL' if is_null else f'= b.{quote(name)}'}"
            for name, is_null in zip(self.spec.key_names, nulls, strict=False)
        ]
        return f"SELECT {columns} FROM {source} t WHERE {' AND '.join(pairs) or 'true'} LIMIT 1"

    def _has(self, nulls: Sequence[bool]) -> str:
        """Does key `b` have exactly the null columns of `nulls`?"""
        pairs = [
            f"b.{quote(name)} IS {'' if is_null else 'NOT '}NULL"
            for name, is_null in zip(self.spec.key_names, nulls, strict=False)
        ]
        return " AND ".join(pairs) or "true"


def _name(source: TablePlace | str) -> str:
    return quote(source) if isinstance(source, str) else str(source)


def _list(names: Iterable[str]) -> str:
    return ", ".join(map(quote, names))


def _array_type(field: Field) -> str:
    return column_type(field.type).partition(" COLLATE")[0]


def _shown(field: Field) -> str:
    # A real as text has fewer digits than its value.
    return f"{quote(field.name)}::float8" if field.type == "float" else quote(field.name)


def _is_exact(kind: MergeKind, type_text: str) -> bool:
    if is_nested(type_text):
        return False
    return kind is not MergeKind.ADD or type_text in _ADDABLE or type_text.startswith("decimal")


def _merged(kind: MergeKind | None, field: Field) -> str:
    """Nulls count as nothing, as in `operations.aggregators`; NaN is the largest number, as in Spark."""
    old, new = f"t.{quote(field.name)}", f"excluded.{quote(field.name)}"
    if kind is MergeKind.ADD:
        return f"coalesce({old} + {new}, {old}, {new})"
    return f"{'least' if kind is MergeKind.MIN else 'greatest'}({old}, {new})"


_BATCH = "trident_batch"
_KEYS_AT_ONCE = 10_000
_ONE_MAKER = "SELECT pg_advisory_xact_lock(hashtextextended('airflow-trident', 0))"
_CREATE_MARKERS = (
    "CREATE TABLE IF NOT EXISTS {} (topology text NOT NULL, state text NOT NULL, table_name text NOT NULL UNIQUE, "
    "definition text NOT NULL, incarnation text, high bigint, fence bigint, holes text, position text, "
    "attempt integer, PRIMARY KEY (topology, state))"
)
_NAME_OR_PARAMETER = re.compile(r'"[^"]*"|:(\w+)')


def _as_psycopg(match: re.Match[str]) -> str:
    return f"%({match[1]})s" if match[1] else match[0]


def run(connection: psycopg.Connection[Any], statement: str, parameters: Any = None) -> psycopg.Cursor[Any]:
    """Execute one statement, as bytes: its text is built from names, which the driver's types forbid for text."""
    return connection.execute(statement.encode(), parameters)


class PostgresDialect(Dialect):
    """See :class:`~airflow_trident.states.sql.postgres.PostgresState`.

    :param schema: "": the first one of the connection's search path.
    """

    factory = "PostgresState(conn_id, table=...)"
    for_update = " FOR UPDATE"
    _is_begun = False

    def __init__(
        self,
        connection: Connection,
        spec: StateSpec,
        schema: str,
        table: str,
        limits: Limits,
        allow_triggers: Sequence[str] = (),
    ) -> None:
        self.spec, self.table, self.place = spec, table, connection.describe()
        self._where = connection
        self.allow_triggers = allow_triggers
        self._limits = limits
        (self._settings,) = limits.transaction(
            "postgresql", writes=True, options=str(connection.extra.get("options", ""))
        )
        self.connection = self._connect()
        try:
            with self.errors(), self.reading():
                schema_name = schema or str(self.execute("SELECT coalesce(current_schema(), 'public')")[0][0])
        except BaseException:
            self.close()
            raise
        self.schema = schema_name
        self._layout = PostgresLayout(TablePlace(schema_name, table), spec)
        self.data = self.shown = str(self._layout.place)
        self.before = str(self._layout.before) if self.spec.opaque else ""
        self.markers = str(self._layout.place.beside(MARKERS))

    # ---- talking to the database -------------------------------------------------------------------------------

    def _connect(self) -> psycopg.Connection[Any]:
        return connect(self._where, self._limits, f"airflow-trident {self.spec.topology}/{self.spec.name}")

    def execute(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        if parameters:
            statement = _NAME_OR_PARAMETER.sub(_as_psycopg, statement.replace("%", "%%"))
        with self.reading():
            cursor = run(self.connection, statement, parameters)
            return cursor.fetchall() if cursor.description else ()

    @contextmanager
    def errors(self) -> Iterator[None]:
        import psycopg

        try:
            yield
        except (psycopg.Error, ConnectionError, TimeoutError) as error:
            raise store_error(fault_in(error, self._where), self._where) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._begun("READ COMMITTED READ WRITE"):
            yield
            self._commit()

    @contextmanager
    def _begun(self, how: str) -> Iterator[None]:
        """A transaction with the limits, until the end of the block; inside of another one nothing of its own."""
        if self._is_begun:
            yield
            return
        run(self.connection, f"BEGIN ISOLATION LEVEL {how}")
        self._is_begun = True
        try:
            run(self.connection, self._settings)
            yield
        finally:
            self._is_begun = False
            self._roll_back()

    def _commit(self) -> None:
        import psycopg

        try:
            status = run(self.connection, "COMMIT").statusmessage
        except psycopg.Error as error:
            fault = fault_in(error, self._where)
            if fault.kind in (Fault.LOST, Fault.UNAVAILABLE):
                raise self.outcome_unknown(fault.text) from error
            raise
        if status != "COMMIT":
            raise StoreUnavailableError(
                f"{self.place} rolled the commit of state {self.spec.name!r} back ({status})",
                "Run the task again; nothing was applied.",
            )

    def _roll_back(self) -> None:
        """Nothing happens after a commit."""
        import psycopg

        if self.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            return
        try:
            run(self.connection, "ROLLBACK")
        except psycopg.Error:
            # The connection is gone; the server ends the transaction by itself. The caller reports the first error.
            self.connection.close()

    def reading(self) -> AbstractContextManager[None]:
        """All statements see the same committed transactions."""
        return self._begun("REPEATABLE READ READ ONLY")

    def close(self) -> None:
        self.connection.close()

    # ---- making tables -----------------------------------------------------------------------------------------

    def _tables(self) -> dict[str, list[str]]:
        """The state's tables, and the statements that make them."""
        layout = self._layout
        before = {self.before: layout.create_before()} if self.before else {}
        return {self.data: [*layout.create(), *self.partition_index()], **before}

    def partition_index(self) -> list[str]:
        """For :meth:`remove_partitions`, unless the index of the keys begins with the column."""
        column = self.partition_column
        if not column or [column] == [quote(name) for name in self.spec.key_names[:1]]:
            return []
        return [f"CREATE INDEX {quote(f'trident_part_{self.table}')} ON {self.data} ({column})"]

    @contextmanager
    def making(self) -> Iterator[None]:
        with self.transaction():
            run(self.connection, _ONE_MAKER)
            if run(self.connection, "SELECT to_regnamespace(%s)", [quote(self.schema)]).fetchone() == (None,):
                run(self.connection, f"CREATE SCHEMA {quote(self.schema)}")
            yield

    def lacking(self) -> Sequence[str]:
        statement = "SELECT name FROM unnest(CAST(:names AS text[])) name WHERE to_regclass(name) IS NULL"
        return [name for (name,) in self.execute(statement, {"names": [self.markers, *self._tables()]})]

    def make(self, table: str) -> None:
        for statement in {self.markers: [_CREATE_MARKERS.format(self.markers)], **self._tables()}[table]:
            run(self.connection, statement)

    def lock(self) -> None:
        """The tables are as they are until the commit."""
        run(self.connection, f"LOCK TABLE {', '.join(self._tables())} IN ROW EXCLUSIVE MODE")

    def alterations(self) -> Sequence[Alteration]:
        alterations = in_postgres(
            self.execute, [self.markers, *self._tables()], [column.name for column in self._columns()]
        )
        for table in self._tables():
            alterations += of_columns(
                self.execute, table, {column.name: column_type(column.type) for column in self._columns()}
            )
            alterations += of_key(self.execute, table, self.spec.key_names)
        return alterations

    def _columns(self) -> Schema:
        return self._layout.batch_fields

    # ---- the state's table -------------------------------------------------------------------------------------

    def stage(self, batch: StagedBatch) -> None:
        run(self.connection, self._layout.create_batch(_BATCH))
        if self._layout.merges_natively:
            self._copy(batch.pieces(), self._layout.fields)

    def _copy(self, pieces: Iterable[pa.RecordBatch], fields: Schema) -> None:
        """Copy into the batch's table. A staged batch lacks the column that marks removals."""
        self.copy(pieces, fields, self._layout.copy(_BATCH, fields))

    def copy(self, pieces: Iterable[pa.RecordBatch], fields: Schema, statement: str) -> None:
        """
        :param statement: COPY ... FROM STDIN.
        """
        sent = 0

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal sent
            for piece in pieces:
                sent += piece.num_rows
                yield piece

        cursor = self.connection.cursor()
        with cursor.copy(statement.encode()) as copy:
            for text in copy_text(counted(), fields, len(self.spec.keys)):
                copy.write(text)
        self._require_rows(sent, cursor.rowcount)

    def _require_rows(self, sent: int, changed: int) -> None:
        if sent != changed:
            raise changed_otherwise(self.spec, self.shown, f"{sent} rows", f"{changed} rows changed")

    def _require_all(self, source: TablePlace | str, cursor: psycopg.Cursor[Any]) -> None:
        """An INSERT of all rows of `source` changed as many."""
        row = run(self.connection, self._layout.count(source)).fetchone()
        self._require_rows(row[0] if row else 0, cursor.rowcount)

    def merge_natively(self, batch: StagedBatch) -> bool:
        """False: a sum overflows (or becomes infinite), or a key is twice in the batch. The merge in this process then
        gives the result, or an error that names the value."""
        import psycopg

        if not self._layout.merges_natively:
            return False
        run(self.connection, "SAVEPOINT trident")
        try:
            self._keep()
            merged = run(self.connection, self._layout.merge(_BATCH))
        except (psycopg.errors.NumericValueOutOfRange, psycopg.errors.CardinalityViolation):
            run(self.connection, "ROLLBACK TO trident")
            return False
        self._require_all(_BATCH, merged)
        run(self.connection, "RELEASE trident")
        return True

    def put(self, changes: Changes, *, keeps: bool) -> None:
        self._put(changes, self._layout.place, keeps=keeps)

    def put_before(self, changes: Changes) -> None:
        self._put(changes, self._layout.before, keeps=False)

    def _put(self, changes: Changes, target: TablePlace, *, keeps: bool) -> None:
        """Writes through the batch's table."""
        layout = self._layout
        absent = (None,) * len(self.spec.values)
        rows = [(*key, *(value or absent), value is None) for key, value in changes.items()]
        run(self.connection, f"TRUNCATE {_BATCH}")
        self._copy(rows_to_table(layout.batch_fields, rows).to_batches(), layout.batch_fields)
        if keeps:
            self._keep()
        self._write(_BATCH, target)

    def _keep(self) -> None:
        if self.spec.opaque:
            layout = self._layout
            run(self.connection, f"DELETE FROM {layout.before}")
            for nulls in self._patterns(_BATCH):
                run(self.connection, layout.keep(_BATCH, nulls))

    def restore_before(self) -> None:
        self._write(self._layout.before, self._layout.place)

    def _write(self, source: TablePlace | str, target: TablePlace) -> None:
        """Remove the keys that `source` marks, and put its other rows."""
        for statement in self._layout.write(source, target, self._patterns(source)):
            last = run(self.connection, statement)
        self._require_all(source, last)

    def _patterns(self, source: TablePlace | str) -> list[tuple[bool, ...]]:
        return [tuple(row) for row in run(self.connection, self._layout.patterns(source))]

    # ---- looking up --------------------------------------------------------------------------------------------

    def lookup(self, keys: Sequence[Key]) -> list[Value | None]:
        answers: list[Value | None] = [None] * len(keys)
        for number, _, value in self._rows(keys, self._layout.place):
            answers[number] = value
        return answers

    def kept(self, keys: Sequence[Key]) -> Changes:
        rows = self._rows(keys, self._layout.before)
        return {keys[number]: None if removed else value for number, removed, value in rows}

    def _rows(self, keys: Sequence[Key], place: TablePlace) -> Iterator[tuple[int, bool, Value]]:
        """(number of the key, is it REMOVED, its values) of the keys found."""
        groups: dict[tuple[bool, ...], list[int]] = {}
        for number, key in enumerate(keys):
            groups.setdefault(tuple(part is None for part in key), []).append(number)
        decoders = [decoder(column.type) for column in self.spec.values]
        for nulls, numbers in groups.items():
            statement = self._layout.select(place, nulls)
            for begin in range(0, len(numbers), _KEYS_AT_ONCE):
                some = numbers[begin : begin + _KEYS_AT_ONCE]
                for position, removed, *values in run(self.connection, statement, self._parameters(keys, some, nulls)):
                    number = some[position - 1]
                    yield number, removed, tuple(code(part) for code, part in zip(decoders, values, strict=True))

    def _parameters(self, keys: Sequence[Key], numbers: Sequence[int], nulls: Sequence[bool]) -> list[list[Any]]:
        """One list per key column that is not null."""
        whole = [canonical_key(keys[number]) for number in numbers]
        places = [place for place, is_null in enumerate(nulls) if not is_null]
        codes = {place: parameter(self.spec.keys[place].type) for place in places}
        return [[codes[place](key[place]) for key in whole] for place in places]

    def pairs(self) -> Iterator[tuple[Key, Value]]:
        width = len(self.spec.keys)
        for row in self.stream(self._layout.select_all(), self._layout.fields):
            yield row[:width], row[width:]

    def stream(self, statement: str, fields: Schema) -> Iterator[tuple[Any, ...]]:
        """Rows, read through a separate connection."""
        decoders = [decoder(column.type) for column in fields]
        with (
            closing(self._connect()) as connection,
            connection.transaction(),
            connection.cursor(name="trident_items") as rows,
        ):
            run(connection, self._settings)
            rows.itersize = _KEYS_AT_ONCE
            for row in rows.execute(statement.encode()):
                yield tuple(code(part) for code, part in zip(decoders, row, strict=True))


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

    capabilities = Capabilities(durable=True, atomic=True, opaque=True, groups=True, partitions=True)
    max_value_bytes = 2**29 - 4096
    """PostgreSQL takes a line of COPY, and sends a field, of less than 1 GiB; a byte is two digits in both."""

    def __post_init__(self) -> None:
        if self.connection is None:
            require_conn_id(type(self).__name__, self.conn_id)
        if self.table is not None:
            require_table(self.table)
        if self.schema is not None:
            require_name("schema", self.schema)
        self._limits.require_positive("PostgresState")
        require_names("PostgresState", self.allow_triggers)

    def validate(self, spec: StateSpec) -> None:
        require_plain_keys(spec)
        PostgresLayout(TablePlace("", ""), spec).require_columns()

    def takes_pieces(self, spec: StateSpec) -> bool:
        return PostgresLayout(TablePlace("", ""), spec).merges_natively

    def make_state(self, spec: StateSpec) -> SqlStore:
        """
        :raises DefinitionChangedError: the state was made with other fields.
        """
        self.validate(spec)
        return SqlStore(PostgresDialect(*self.opening(spec)))

    def opening(self, spec: StateSpec) -> tuple[Connection, StateSpec, str, str, Limits, tuple[str, ...]]:
        """The arguments of a :class:`PostgresDialect`."""
        table = self.table or default_table(spec)
        connection = self.connection or resolve(self.conn_id)
        return connection, spec, self.schema or "", table, self._limits, self.allow_triggers

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
        address = self.connection.describe() if self.connection else self.conn_id
        place = ".".join(part for part in (self.schema, self.table) if part)
        return f"PostgresState({address}{f', {place}' if place else ''})"
