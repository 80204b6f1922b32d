"""States in PostgreSQL tables, which people query as they are, also while batches are applied.

A batch is copied into a table of its transaction's own; then the marker's row is locked, which only one committer can,
and batch and marker change together. The arithmetic of the built-in aggregators is done by the server in one statement;
other aggregators read, merge and write the keys of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import Capabilities, StateFactory, StateSpec
from airflow_trident.errors import ConfigurationError
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.io.connections import Connection, resolve
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.states.core.checks import require_plain_keys
from airflow_trident.states.core.merge import Changes, Key, Value, canonical_key, merge, merge_before
from airflow_trident.states.sql.postgres_connect import Limits, run
from airflow_trident.states.sql.postgres_copy import copy_text, decoder, parameter
from airflow_trident.states.sql.postgres_store import PostgresStore
from airflow_trident.states.sql.postgres_table import MARKERS, Layout, Place, default_table, require_name
from airflow_trident.types import Schema

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH = "trident_batch"
_KEYS_AT_ONCE = 10_000
_ROOM_BYTES = 16


@dataclass(frozen=True)
class PostgresState(StateFactory):
    """A table in a PostgreSQL database (15 or newer).

    :param conn_id: an Airflow connection of type ``postgres``; its schema is the database, its extras are libpq's.
    :param table: its name; by default ``<topology>_<state>``.
    :param schema: of the table; made if missing; by default the first one of the connection's search path.
    :param connection: explicit settings instead of `conn_id`.
    :param lock_timeout_s: how long to wait for another committer of the same state.
    :param statement_timeout_s: the longest that one statement, or user code between two, may take.
    """

    conn_id: str = "postgres_default"
    table: str | None = None
    schema: str | None = None
    connection: Connection | None = field(default=None, kw_only=True)
    connect_timeout_s: float = field(default=10.0, kw_only=True)
    lock_timeout_s: float = field(default=30.0, kw_only=True)
    statement_timeout_s: float = field(default=600.0, kw_only=True)

    capabilities = Capabilities(durable=True, atomic=True, opaque=True)

    def __post_init__(self) -> None:
        if self.table is not None:
            require_name("table", self.table, room=_ROOM_BYTES)
            if self.table == MARKERS:
                raise ConfigurationError(f"{MARKERS!r} cannot be the table of a state", "Give it another name.")
        if self.schema is not None:
            require_name("schema", self.schema)
        for name in ("connect_timeout_s", "lock_timeout_s", "statement_timeout_s"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"PostgresState with {name}={getattr(self, name)}", "It must be above 0.")

    def validate(self, spec: StateSpec) -> None:
        require_plain_keys(spec)
        Layout(Place("", ""), spec).require_columns()

    def make_state(self, spec: StateSpec) -> OpenPostgresState:
        """
        :raises DefinitionChangedError: the state was made with other fields.
        """
        self.validate(spec)
        return OpenPostgresState(*self.opening(spec))

    def opening(self, spec: StateSpec) -> tuple[Connection, StateSpec, str, str, Limits]:
        """What a :class:`PostgresStore` is opened with."""
        limits = Limits(
            connect_s=self.connect_timeout_s, lock_s=self.lock_timeout_s, statement_s=self.statement_timeout_s
        )
        table = self.table or default_table(spec.topology, spec.name)
        return self.connection or resolve(self.conn_id), spec, self.schema or "", table, limits

    def describe(self) -> str:
        where = self.connection.describe() if self.connection else self.conn_id
        place = ".".join(part for part in (self.schema, self.table) if part)
        return f"PostgresState({where}{f', {place}' if place else ''})"


class OpenPostgresState(PostgresStore):
    """See :class:`PostgresState`."""

    @property
    def _layout(self) -> Layout:
        return Layout(self.place, self._spec)

    @property
    def definition(self) -> str:
        return self._layout.definition

    def _tables(self) -> dict[Place, list[str]]:
        layout = self._layout
        before = {layout.before: layout.create_before()} if self._spec.opaque else {}
        return {self.place: layout.create(), **before}

    # ---- applying ----------------------------------------------------------------------------------------------

    def _stage(self, batch: pa.Table) -> None:
        run(self._connection, self._layout.create_batch(_BATCH))
        if self._layout.merges_natively:
            self._copy(batch, self._layout.fields)

    def _copy(self, rows: pa.Table, fields: Schema) -> None:
        with self._connection.cursor().copy(self._layout.copy(_BATCH, fields).encode()) as copy:
            for piece in copy_text(rows, fields, len(self._spec.keys)):
                copy.write(piece)

    def _write(self, ticket: CommitTicket, batch: pa.Table, *, replaces: bool, late: bool) -> None:
        layout = self._layout
        if replaces:
            self._run(layout.write(layout.before, self.place, self._patterns(layout.before)))
        if layout.merges_natively and not (late and self._spec.opaque) and self._merge_natively():
            return
        changes = merge(self._spec, batch, lambda keys: self._lookup(keys, self.place), ticket)
        if self._spec.opaque and late:
            before = merge_before(self._spec, batch, self._kept(list(changes)), ticket)
            self._put(before, layout.before)
        self._put(changes, self.place, keep=not late)

    def _merge_natively(self) -> bool:
        """False: the server cannot; it changed nothing. A sum that overflows (of doubles it is infinite) or a key that
        occurs twice in the batch: merging by ourselves gives the result, or the error that names the value."""
        import psycopg

        try:
            with self._savepoint():
                self._keep()
                run(self._connection, self._layout.merge(_BATCH))
        except (psycopg.errors.NumericValueOutOfRange, psycopg.errors.CardinalityViolation):
            return False
        return True

    def _put(self, changes: Changes, target: Place, *, keep: bool = False) -> None:
        """Write merged values, through the table of the batch."""
        layout = self._layout
        absent = (None,) * len(self._spec.values)
        rows = [(*key, *(value or absent), value is None) for key, value in changes.items()]
        run(self._connection, f"TRUNCATE {_BATCH}")
        self._copy(rows_to_table(layout.batch_fields, rows), layout.batch_fields)
        if keep:
            self._keep()
        self._run(layout.write(_BATCH, target, self._patterns(_BATCH)))

    def _keep(self) -> None:
        """Keep what is stored under the keys of the batch, if it may have to be taken back (T9)."""
        if self._spec.opaque:
            layout = self._layout
            run(self._connection, f"DELETE FROM {layout.before}")
            self._run([layout.keep(_BATCH, nulls) for nulls in self._patterns(_BATCH)])

    def _patterns(self, source: Place | str) -> list[tuple[bool, ...]]:
        return [tuple(row) for row in run(self._connection, self._layout.patterns(source))]

    def _run(self, statements: Sequence[str]) -> None:
        for statement in statements:
            run(self._connection, statement)

    @contextmanager
    def _savepoint(self) -> Iterator[None]:
        run(self._connection, "SAVEPOINT trident")
        try:
            yield
        except BaseException:
            run(self._connection, "ROLLBACK TO trident")
            raise
        run(self._connection, "RELEASE trident")

    # ---- looking up --------------------------------------------------------------------------------------------

    def _lookup(self, keys: Sequence[Key], place: Place) -> list[Value | None]:
        found: list[Value | None] = [None] * len(keys)
        # Translated here already: above is the user's code, and the fault is not the user's.
        with self._errors():
            for number, _, value in self._rows(keys, place):
                found[number] = value
        return found

    def _kept(self, keys: Sequence[Key]) -> Changes:
        """Of `keys` those that the highest txid has, with their values before it."""
        rows = self._rows(keys, self._layout.before)
        return {keys[number]: None if removed else value for number, removed, value in rows}

    def _rows(self, keys: Sequence[Key], place: Place) -> Iterator[tuple[int, bool, Value]]:
        """(number of the key, is it REMOVED, its values) of those that are there."""
        groups: dict[tuple[bool, ...], list[int]] = {}
        for number, key in enumerate(keys):
            groups.setdefault(tuple(part is None for part in key), []).append(number)
        decoders = [decoder(one.type) for one in self._spec.values]
        for nulls, numbers in groups.items():
            statement = self._layout.select(place, nulls)
            for begin in range(0, len(numbers), _KEYS_AT_ONCE):
                some = numbers[begin : begin + _KEYS_AT_ONCE]
                for position, removed, *values in run(self._connection, statement, self._parameters(keys, some, nulls)):
                    number = some[position - 1]
                    yield number, removed, tuple(code(part) for code, part in zip(decoders, values, strict=True))

    def _parameters(self, keys: Sequence[Key], numbers: Sequence[int], nulls: Sequence[bool]) -> list[list[Any]]:
        """A list per key column that is not null."""
        whole = [canonical_key(keys[number]) for number in numbers]
        places = [place for place, is_null in enumerate(nulls) if not is_null]
        codes = {place: parameter(self._spec.keys[place].type) for place in places}
        return [[codes[place](key[place]) for key in whole] for place in places]

    # ---- reading -----------------------------------------------------------------------------------------------

    def get_many(self, keys: Sequence[Key]) -> list[Value | None]:
        """The value of each key, None where there is none."""
        with self._errors(), self._snapshot():
            return self._lookup([tuple(key) for key in keys], self.place)

    def items(self) -> Iterator[tuple[Key, Value]]:
        """Through a connection of its own, in pieces: a state may be larger than the memory."""
        width = len(self._spec.keys)
        decoders = [decoder(one.type) for one in self._layout.fields]
        with (
            self._errors(),
            closing(self._connect()) as connection,
            connection.transaction(),
            connection.cursor(name="trident_items") as rows,
        ):
            self._prepare_reading(connection)
            rows.itersize = _KEYS_AT_ONCE
            for row in rows.execute(self._layout.select_all().encode()):
                parts = tuple(code(part) for code, part in zip(decoders, row, strict=True))
                yield canonical_key(parts[:width]), parts[width:]

    def count(self) -> int:
        """How many keys the state has."""
        with self._errors():
            return int(self._one(f"SELECT count(*) FROM {self.place}")[0])
