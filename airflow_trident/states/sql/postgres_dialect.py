"""PostgreSQL as a dialect of SQL states. A batch is copied into its own table; then the marker's row is locked.
Arithmetic is one statement where the server can do it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.staged_batch import StagedBatch
from airflow_trident.contracts.state import StateSpec
from airflow_trident.errors import StoreUnavailableError
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.io.connections import Connection
from airflow_trident.io.database_errors import Fault
from airflow_trident.io.database_limits import Limits
from airflow_trident.states.core.merge import Changes, Key, Value, canonical_key
from airflow_trident.states.sql.alterations import Alteration, in_postgres, of_columns
from airflow_trident.states.sql.dialect import Dialect, changed_otherwise, quote, store_error
from airflow_trident.states.sql.postgres_connect import connect, fault_in
from airflow_trident.states.sql.postgres_copy import column_type, copy_text, decoder, parameter
from airflow_trident.states.sql.postgres_table import MARKERS, Place, PostgresLayout
from airflow_trident.types import Schema

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

_BATCH = "trident_batch"
_KEYS_AT_ONCE = 10_000
_ONE_MAKER = "SELECT pg_advisory_xact_lock(hashtextextended('airflow-trident', 0))"
_CREATE_MARKERS = (
    "CREATE TABLE IF NOT EXISTS {} (topology text NOT NULL, state text NOT NULL, table_name text NOT NULL UNIQUE, "
    "definition text NOT NULL, incarnation text, high bigint, fence bigint, holes text, position text, "
    "attempt integer, PRIMARY KEY (topology, state))"
)
_NAME_OR_PARAMETER = re.compile(r'"[^"]*"|:(\w+)')


def _as_psycopg(found: re.Match[str]) -> str:
    return f"%({found[1]})s" if found[1] else found[0]


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
        where: Connection,
        spec: StateSpec,
        schema: str,
        table: str,
        limits: Limits,
        allow_triggers: Sequence[str] = (),
    ) -> None:
        self.spec, self.table, self.place = spec, table, where.describe()
        self._where = where
        self.allow_triggers = allow_triggers
        self._limits = limits
        (self._settings,) = limits.transaction("postgresql", writes=True, options=str(where.extra.get("options", "")))
        self.connection = self._connect()
        try:
            with self.errors(), self.reading():
                known = schema or str(self.execute("SELECT coalesce(current_schema(), 'public')")[0][0])
        except BaseException:
            self.close()
            raise
        self.schema = known
        self._layout = PostgresLayout(Place(known, table), spec)
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
        return {self.data: layout.create(), **before}

    @contextmanager
    def making(self) -> Iterator[None]:
        with self.transaction():
            run(self.connection, _ONE_MAKER)
            if run(self.connection, "SELECT to_regnamespace(%s)", [quote(self.schema)]).fetchone() == (None,):
                run(self.connection, f"CREATE SCHEMA {quote(self.schema)}")
            yield

    def lacking(self) -> Sequence[str]:
        asked = "SELECT name FROM unnest(CAST(:names AS text[])) name WHERE to_regclass(name) IS NULL"
        return [name for (name,) in self.execute(asked, {"names": [self.markers, *self._tables()]})]

    def make(self, table: str) -> None:
        for statement in {self.markers: [_CREATE_MARKERS.format(self.markers)], **self._tables()}[table]:
            run(self.connection, statement)

    def lock(self) -> None:
        """The tables are as they are until the commit."""
        run(self.connection, f"LOCK TABLE {', '.join(self._tables())} IN ROW EXCLUSIVE MODE")

    def alterations(self) -> Sequence[Alteration]:
        found = in_postgres(self.execute, [self.markers, *self._tables()], [column.name for column in self._columns()])
        for table in self._tables():
            found += of_columns(self.execute, table, {one.name: column_type(one.type) for one in self._columns()})
        return found

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

    def _require_all(self, source: Place | str, cursor: psycopg.Cursor[Any]) -> None:
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

    def _put(self, changes: Changes, target: Place, *, keeps: bool) -> None:
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

    def _write(self, source: Place | str, target: Place) -> None:
        """Remove the keys that `source` marks, and put its other rows."""
        for statement in self._layout.write(source, target, self._patterns(source)):
            last = run(self.connection, statement)
        self._require_all(source, last)

    def _patterns(self, source: Place | str) -> list[tuple[bool, ...]]:
        return [tuple(row) for row in run(self.connection, self._layout.patterns(source))]

    # ---- looking up --------------------------------------------------------------------------------------------

    def lookup(self, keys: Sequence[Key]) -> list[Value | None]:
        found: list[Value | None] = [None] * len(keys)
        for number, _, value in self._rows(keys, self._layout.place):
            found[number] = value
        return found

    def kept(self, keys: Sequence[Key]) -> Changes:
        rows = self._rows(keys, self._layout.before)
        return {keys[number]: None if removed else value for number, removed, value in rows}

    def _rows(self, keys: Sequence[Key], place: Place) -> Iterator[tuple[int, bool, Value]]:
        """(number of the key, is it REMOVED, its values) of the keys found."""
        groups: dict[tuple[bool, ...], list[int]] = {}
        for number, key in enumerate(keys):
            groups.setdefault(tuple(part is None for part in key), []).append(number)
        decoders = [decoder(one.type) for one in self.spec.values]
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
        decoders = [decoder(one.type) for one in fields]
        with (
            closing(self._connect()) as connection,
            connection.transaction(),
            connection.cursor(name="trident_items") as rows,
        ):
            run(connection, self._settings)
            rows.itersize = _KEYS_AT_ONCE
            for row in rows.execute(statement.encode()):
                yield tuple(code(part) for code, part in zip(decoders, row, strict=True))
