"""What all stores in a PostgreSQL database share: the connection, the marker's row, and the one transaction in which a
batch and the marker change."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import Applied, Marker, StateSpec, Verdict
from airflow_trident.errors import (
    ConfigurationError,
    CorruptRecordError,
    DefinitionChangedError,
    StoreUnavailableError,
)
from airflow_trident.io.connections import Connection
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.states.core.marker import AdmittingState, admit
from airflow_trident.states.sql.postgres_connect import Limits, connect, is_lost, outcome_unknown, run, store_error
from airflow_trident.states.sql.postgres_table import MARKERS, Place, quote
from airflow_trident.types import INTERVAL

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

_COLUMNS = "incarnation, high, fence, holes, position, attempt"
_ONE_MAKER = "SELECT pg_advisory_xact_lock(hashtextextended('airflow-trident', 0))"
# On for synchronous_commit: what the ledger calls committed must outlive a crash of the server (P8).
_SETTINGS = (
    "SELECT set_config('jit', 'off', true), set_config('lock_timeout', %s, true), "
    "set_config('statement_timeout', %s, true), set_config('idle_in_transaction_session_timeout', %s, true), "
    "set_config('TimeZone', 'UTC', true), set_config('DateStyle', 'ISO', true), "
    "set_config('IntervalStyle', 'postgres', true), set_config('synchronous_commit', CASE "
    "WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on' "
    "ELSE current_setting('synchronous_commit') END, true)"
)


class PostgresStore(AdmittingState):
    """One connection; not for sharing between threads at the same time.

    :param schema: "": the first one of the connection's search path.
    """

    def __init__(self, where: Connection, spec: StateSpec, schema: str, table: str, limits: Limits) -> None:
        self.where = where
        self._spec = spec
        self._limits = limits
        self._connection = self._connect()
        try:
            with self._errors():
                known = schema or str(self._one("SELECT coalesce(current_schema(), 'public')")[0])
                self.place = Place(known, table)
                self._markers = self.place.beside(MARKERS)
                self._register()
        except BaseException:
            self._connection.close()
            raise

    # ---- what kinds of stores differ in ------------------------------------------------------------------------

    @property
    @abstractmethod
    def definition(self) -> str:
        """What the table is made for."""

    @abstractmethod
    def _tables(self) -> dict[Place, list[str]]:
        """Every table of the state, its own first, and the statements that make it."""

    @abstractmethod
    def _stage(self, batch: pa.Table) -> None:
        """Bring the batch to the server, before the marker is locked."""

    @abstractmethod
    def _write(self, ticket: CommitTicket, batch: pa.Table, *, replaces: bool, late: bool) -> None:
        """Apply the batch, while the marker is locked."""

    # ---- opening -----------------------------------------------------------------------------------------------

    def _connect(self) -> psycopg.Connection[Any]:
        return connect(self.where, self._limits, f"airflow-trident {self._spec.topology}/{self._spec.name}")

    def _register(self) -> None:
        """Make the tables and the marker's row, unless they are there: a reader writes nothing."""
        if not self._missing():
            return
        with self._transaction():
            run(self._connection, _ONE_MAKER)
            if self._one("SELECT to_regnamespace(%s)", [quote(self.place.schema)])[0] is None:
                run(self._connection, f"CREATE SCHEMA {quote(self.place.schema)}")
            run(
                self._connection,
                f"CREATE TABLE IF NOT EXISTS {self._markers} (topology text NOT NULL, state text NOT NULL, "
                "table_name text NOT NULL UNIQUE, definition text NOT NULL, incarnation text, high bigint, "
                "fence bigint, holes text, position text, attempt integer, PRIMARY KEY (topology, state))",
            )
            is_new = not self._is_registered()
            if is_new:
                self._require_free()
            for place in self._missing():
                for statement in self._tables()[place]:
                    run(self._connection, statement)
            if is_new:
                run(
                    self._connection,
                    f"INSERT INTO {self._markers} (topology, state, table_name, definition) VALUES (%s, %s, %s, %s)",
                    (*self._me, self.place.table, self.definition),
                )

    def _missing(self) -> list[Place]:
        """The tables that must be made; all of them if the state is not registered."""
        tables = list(self._tables())
        if not self._has(self._markers) or not self._is_registered():
            return tables
        return [place for place in tables[1:] if not self._has(place)]

    def _require_free(self) -> None:
        table = self.place.table
        owner = self._one(f"SELECT topology, state FROM {self._markers} WHERE table_name = %s", (table,))
        if owner is not None or self._has(self.place):
            whose = f"state {owner[1]!r} of topology {owner[0]!r}" if owner else "something else"
            raise ConfigurationError(
                f"the table {self.place} in {self.where.describe()} belongs to {whose}, not to state "
                f"{self._spec.name!r} of topology {self._spec.topology!r}",
                "Give the state another table, as in PostgresState(conn_id, table=...).",
            )

    def _is_registered(self) -> bool:
        row = self._one(
            f"SELECT table_name, definition FROM {self._markers} WHERE topology = %s AND state = %s", self._me
        )
        if row is None:
            return False
        wanted = (self.place.table, self.definition)
        if tuple(row) != wanted:
            raise DefinitionChangedError(
                f"state {self._spec.name!r} of topology {self._spec.topology!r} in {self.where.describe()} is the "
                f"table {row[0]!r} with the fields {row[1]}, and now it should be {wanted[0]!r} with {wanted[1]}",
                "Give the state a new name, or another schema.",
            )
        return True

    def _has(self, place: Place) -> bool:
        return self._one("SELECT to_regclass(%s)", [str(place)])[0] is not None

    @property
    def _me(self) -> tuple[str, str]:
        return self._spec.topology, self._spec.name

    def _one(self, statement: str, parameters: Sequence[Any] | None = None) -> Any:
        return run(self._connection, statement, parameters).fetchone()

    # ---- the marker --------------------------------------------------------------------------------------------

    def marker(self) -> Marker | None:
        with self._errors():
            return self._marker("")

    def _marker(self, lock: str) -> Marker | None:
        row = self._one(f"SELECT {_COLUMNS} FROM {self._markers} WHERE topology = %s AND state = %s{lock}", self._me)
        if row is None:
            raise self._row_is_bad("is gone")
        if row[1] is None:
            return None
        try:
            return Marker(
                incarnation=str(row[0]),
                high=int(row[1]),
                fence=int(row[2]),
                holes=tuple((int(first), int(last)) for first, last in json.loads(row[3])),
                position=json.loads(row[4]),
                attempt=int(row[5]),
            )
        except (ValueError, TypeError) as error:
            raise self._row_is_bad(f"cannot be read ({error})") from error

    def _row_is_bad(self, why: str) -> CorruptRecordError:
        return CorruptRecordError(
            f"the row of state {self._spec.name!r} in {self._markers} of {self.where.describe()} {why}",
            "Restore the database from a backup.",
        )

    def _write_marker(self, marker: Marker) -> None:
        run(
            self._connection,
            f"UPDATE {self._markers} SET ({_COLUMNS}) = (%s, %s, %s, %s, %s, %s) WHERE topology = %s AND state = %s",
            (
                marker.incarnation,
                marker.high,
                marker.fence,
                json.dumps(marker.holes),
                json.dumps(marker.position),
                marker.attempt,
                *self._me,
            ),
        )

    # ---- applying ----------------------------------------------------------------------------------------------

    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        spec = self._spec
        with self._errors(), self._transaction():
            self._stage(batch)
            # From here until the commit no other committer of this state does anything (T7).
            known = self._marker(" FOR UPDATE")
            marker, verdict = admit(known, ticket, state=spec.name, commutes=spec.commutes, opaque=spec.opaque)
            if verdict is not Verdict.SKIP:
                replaces, late = verdict is Verdict.REPLACE, ticket.txid < marker.high
                self._write(ticket, batch, replaces=replaces, late=late)
            if marker != known:
                self._write_marker(marker)
        return Applied.ALREADY if verdict is Verdict.SKIP else Applied.APPLIED

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing."""
        run(self._connection, "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
        try:
            statement_ms = str(round(self._limits.statement_s * 1000))
            run(self._connection, _SETTINGS, (str(round(self._limits.lock_s * 1000)), statement_ms, statement_ms))
            yield
        except BaseException:
            self._roll_back()
            raise
        self._commit()

    def _commit(self) -> None:
        import psycopg

        try:
            said = run(self._connection, "COMMIT").statusmessage
        except psycopg.Error as error:
            if is_lost(error):
                raise outcome_unknown(error, self.where, self._spec.name) from error
            raise
        if said != "COMMIT":
            raise StoreUnavailableError(
                f"{self.where.describe()} rolled the commit of state {self._spec.name!r} back ({said})",
                "Run the task again; nothing was applied.",
            )

    def _roll_back(self) -> None:
        import psycopg

        try:
            run(self._connection, "ROLLBACK")
        except psycopg.Error:
            # The connection is gone, and the server ends the transaction by itself; what is told is why it failed.
            self._connection.close()

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """For reading: all statements see the same committed transactions."""
        run(self._connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            self._prepare_reading(self._connection)
            yield
        finally:
            self._roll_back()

    def _prepare_reading(self, connection: psycopg.Connection[Any]) -> None:
        """In a transaction: have intervals sent as the driver reads them, whatever style the server prefers."""
        if any(one.type == INTERVAL for one in (*self._spec.keys, *self._spec.values)):
            run(connection, "SELECT set_config('IntervalStyle', 'postgres', true)")

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            raise store_error(error, self.where) from error
