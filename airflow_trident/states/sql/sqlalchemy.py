"""States in tables of any database that SQLAlchemy has a driver for, such as MySQL, MariaDB or SQL Server.

A committer's first statement is an update of its marker's row, which changes nothing and which only one at a time can
do; then batch and marker change in the same transaction. The values of the batch's keys are read, merged here, and
written back by the database's own upsert, or deleted and inserted where it has none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import Applied, Capabilities, Marker, StateFactory, StateSpec, Verdict
from airflow_trident.errors import (
    ConfigurationError,
    CorruptRecordError,
    DefinitionChangedError,
    OutcomeUnknownError,
    StoreUnavailableError,
    TridentError,
)
from airflow_trident.io.connections import Connection, resolve
from airflow_trident.io.extras import require_extra
from airflow_trident.io.sql import EXTRA, make_engine, said, scheme_of
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.states.core.checks import require_plain_keys
from airflow_trident.states.core.marker import AdmittingState, admit
from airflow_trident.states.core.merge import Key, Value, canonical_key, merge, merge_before
from airflow_trident.states.sql.postgres_table import default_table
from airflow_trident.states.sql.sqlalchemy_table import REMOVED, SPECIAL, Tables, digest
from airflow_trident.states.sql.sqlite_table import KEY_COLUMN
from airflow_trident.types import ddl

if TYPE_CHECKING:
    import pyarrow as pa
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
_REFUSED = ("authentication failed", "Access denied", "Login failed", "no such table", "unable to open", "readonly")
_EMPTY_IS_NULL = "oracle"


@dataclass(frozen=True)
class JdbcState(StateFactory):
    """A table in a database with transactions.

    :param conn_id: an Airflow connection of type mysql, mssql, postgres or sqlite; the extra ``sqlalchemy_scheme``
        names any other driver.
    :param table: its name; by default ``<topology>_<state>``.
    :param schema: of the table; it must be there.
    :param connection: explicit settings instead of `conn_id`.
    :param lock_timeout_s: how long to wait for another committer of the same state.
    """

    conn_id: str
    table: str | None = None
    schema: str | None = None
    connection: Connection | None = field(default=None, kw_only=True)
    lock_timeout_s: float = field(default=30.0, kw_only=True)

    capabilities = Capabilities(durable=True, atomic=True, opaque=True)

    def __post_init__(self) -> None:
        if self.table is not None and (
            not 1 <= len(self.table) <= _LONGEST_TABLE or self.table.lower().startswith(("trident_", "sqlite_"))
        ):
            raise ConfigurationError(
                f"{self.table!r} cannot be the table of a state", f"Give it a name of 1 to {_LONGEST_TABLE} letters."
            )
        if self.lock_timeout_s <= 0:
            raise ConfigurationError(f"JdbcState with lock_timeout_s={self.lock_timeout_s}", "It must be above 0.")

    def validate(self, spec: StateSpec) -> None:
        require_plain_keys(spec)
        _require_columns(spec)

    def make_state(self, spec: StateSpec) -> OpenJdbcState:
        """
        :raises DefinitionChangedError: the state was made with other fields.
        """
        self.validate(spec)
        where = self.connection or resolve(self.conn_id)
        return OpenJdbcState(where, spec, self)

    def describe(self) -> str:
        place = ".".join(part for part in (self.schema, self.table) if part)
        return f"JdbcState({self.conn_id}{f', {place}' if place else ''})"


class OpenJdbcState(AdmittingState):
    """See :class:`JdbcState`."""

    def __init__(self, where: Connection, spec: StateSpec, factory: JdbcState) -> None:
        self.where = where
        self._spec = spec
        self._lock_timeout_s = factory.lock_timeout_s
        if scheme_of(where).startswith(_EMPTY_IS_NULL):
            raise ConfigurationError(f"{where.describe()} keeps empty texts as null", "Use another database.")
        self._engine = make_engine(where, factory.describe(), pool_size=1, pool_pre_ping=True)
        self._kind = self._engine.dialect.name
        name = factory.table or default_table(spec.topology, spec.name)
        self._tables = Tables(self._kind, factory.schema, name, spec)
        self._id = digest(spec.topology, spec.name)
        try:
            with self._errors():
                self._register()
        except BaseException:
            self._engine.dispose()
            raise

    # ---- opening -----------------------------------------------------------------------------------------------

    @property
    def _definition(self) -> str:
        return f"({ddl(self._spec.keys)}) -> ({ddl(self._spec.values)})"

    def _register(self) -> None:
        """Make the tables and the marker's row, unless they are there: a reader writes nothing.

        The row comes first: not every database takes the making of a table back.
        """
        tables = self._tables
        if not self._has(tables.markers):
            self._make(tables.markers)
        if not self._is_registered():
            self._enter()
        if not self._has(tables.data):
            if self.marker() is not None:
                raise self._is_bad(f"is there, and its table {tables.data} is gone")
            self._make(tables.data)
        if self._spec.opaque and not self._has(tables.before):
            self._make(tables.before)

    def _has(self, table: sa.Table) -> bool:
        import sqlalchemy as sa

        with self._engine.connect() as connection:
            return sa.inspect(connection).has_table(table.name, schema=table.schema)

    def _make(self, table: sa.Table) -> None:
        """Unless another process was first."""
        import sqlalchemy as sa

        try:
            with self._session() as connection:
                table.create(connection)
                connection.commit()
        except sa.exc.DBAPIError:
            if not self._has(table):
                raise

    def _is_registered(self) -> bool:
        import sqlalchemy as sa

        markers = self._tables.markers
        with self._engine.connect() as connection:
            asked = sa.select(markers.c.table_name, markers.c.definition).where(markers.c.id == self._id)
            row = connection.execute(asked).one_or_none()
        if row is None:
            return False
        wanted = (self._tables.name, self._definition)
        if tuple(row) != wanted:
            raise DefinitionChangedError(
                f"state {self._spec.name!r} of topology {self._spec.topology!r} in {self.where.describe()} is the "
                f"table {row[0]!r} with the fields {row[1]}, and now it should be {wanted[0]!r} with {wanted[1]}",
                "Give the state a new name, or another schema.",
            )
        return True

    def _enter(self) -> None:
        import sqlalchemy as sa

        name, markers = self._tables.name, self._tables.markers
        if self._has(self._tables.data) and not self._is_registered():
            raise self._not_ours()
        try:
            with self._session() as connection:
                connection.execute(
                    markers.insert().values(
                        id=self._id,
                        table_id=digest(name.lower()),
                        topology=self._spec.topology,
                        state=self._spec.name,
                        table_name=name,
                        definition=self._definition,
                    )
                )
                connection.commit()
        except sa.exc.IntegrityError:
            if not self._is_registered():
                raise self._not_ours() from None

    def _not_ours(self) -> ConfigurationError:
        return ConfigurationError(
            f"the table {self._tables.data} in {self.where.describe()} belongs to something else than state "
            f"{self._spec.name!r} of topology {self._spec.topology!r}",
            "Give the state another table, as in JdbcState(conn_id, table=...).",
        )

    # ---- the marker --------------------------------------------------------------------------------------------

    def marker(self) -> Marker | None:
        with self._errors(), self._engine.connect() as connection:
            return self._marker(connection)

    def _marker(self, connection: sa.Connection) -> Marker | None:
        import sqlalchemy as sa

        markers = self._tables.markers
        row = connection.execute(sa.select(markers).where(markers.c.id == self._id)).mappings().one_or_none()
        if row is None:
            raise self._is_bad("is gone")
        if row["high"] is None:
            return None
        try:
            return Marker(
                incarnation=str(row["incarnation"]),
                high=int(row["high"]),
                fence=int(row["fence"]),
                holes=tuple((int(first), int(last)) for first, last in json.loads(row["holes"])),
                position=json.loads(row["position"]),
                attempt=int(row["attempt"]),
            )
        except (ValueError, TypeError) as error:
            raise self._is_bad(f"cannot be read ({error})") from error

    def _is_bad(self, why: str) -> CorruptRecordError:
        return CorruptRecordError(
            f"the row of state {self._spec.name!r} in {self._tables.markers} of {self.where.describe()} {why}",
            "Restore the database from a backup.",
        )

    def _lock(self, connection: sa.Connection) -> None:
        """From here until the commit no other committer of this state does anything (T7). An update: every database
        locks what it updates, and what is read afterwards is the newest."""
        markers = self._tables.markers
        connection.execute(markers.update().where(markers.c.id == self._id).values(fence=markers.c.fence))

    def _write_marker(self, connection: sa.Connection, marker: Marker) -> None:
        markers = self._tables.markers
        connection.execute(
            markers.update()
            .where(markers.c.id == self._id)
            .values(
                incarnation=marker.incarnation,
                high=marker.high,
                fence=marker.fence,
                holes=json.dumps(marker.holes),
                position=json.dumps(marker.position),
                attempt=marker.attempt,
            )
        )

    # ---- applying ----------------------------------------------------------------------------------------------

    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        spec = self._spec
        with self._errors(), self._session() as connection:
            self._lock(connection)
            known = self._marker(connection)
            marker, verdict = admit(known, ticket, state=spec.name, commutes=spec.commutes, opaque=spec.opaque)
            if verdict is not Verdict.SKIP:
                replaces, late = verdict is Verdict.REPLACE, ticket.txid < marker.high
                self._merge(connection, ticket, batch, replaces=replaces, late=late)
            if marker != known:
                self._write_marker(connection, marker)
            self._commit(connection)
        return Applied.ALREADY if verdict is Verdict.SKIP else Applied.APPLIED

    def _merge(
        self, connection: sa.Connection, ticket: CommitTicket, batch: pa.Table, *, replaces: bool, late: bool
    ) -> None:
        tables, spec = self._tables, self._spec
        kept = tables.kept(connection) if spec.opaque and (replaces or late) else {}
        taken_back = kept if replaces else {}

        def lookup(keys: Sequence[Key]) -> list[Value | None]:
            unknown = [key for key in keys if key not in taken_back]
            # Translated here already: above is the user's code, and the fault is not the user's.
            with self._errors():
                stored = dict(zip(unknown, tables.look_up(connection, unknown), strict=True))
            return [stored[key] if key in stored else taken_back[key] for key in keys]

        changes = merge(spec, batch, lookup, ticket)
        if spec.opaque and late:
            tables.put(connection, tables.before, merge_before(spec, batch, kept, ticket))
        elif spec.opaque:
            tables.keep(connection, dict(zip(changes, lookup(list(changes)), strict=True)))
        tables.put(connection, tables.data, taken_back | changes)

    @contextmanager
    def _session(self) -> Iterator[sa.Connection]:
        """A connection in a transaction, which is rolled back unless it is committed inside."""
        with self._engine.connect() as connection:
            if self._kind != "sqlite":
                # What was read after the lock must be what the one before has written.
                connection.execution_options(isolation_level="READ COMMITTED")
            if setting := _WAIT_FOR_LOCKS.get(self._kind):
                seconds = max(1, round(self._lock_timeout_s))
                connection.exec_driver_sql(setting.format(ms=round(self._lock_timeout_s * 1000), s=seconds))
            yield connection

    def _commit(self, connection: sa.Connection) -> None:
        import sqlalchemy as sa

        try:
            connection.commit()
        except sa.exc.DBAPIError as error:
            raise OutcomeUnknownError(
                f"the commit of state {self._spec.name!r} in {self.where.describe()} ended without an answer "
                f"({said(error, self.where)})",
                "Run the task again: the database knows what is applied.",
            ) from None

    # ---- reading -----------------------------------------------------------------------------------------------

    def get_many(self, keys: Sequence[Key]) -> list[Value | None]:
        """The value of each key, None where there is none; up to 500 keys are one statement."""
        with self._errors(), self._engine.connect() as connection:
            return self._tables.look_up(connection, [tuple(key) for key in keys])

    def items(self) -> Iterator[tuple[Key, Value]]:
        """In pieces: a state may be larger than the memory."""
        import sqlalchemy as sa

        with self._errors(), self._engine.connect() as connection:
            streaming = connection.execution_options(stream_results=True, max_row_buffer=_ROWS_AT_ONCE)
            for row in streaming.execute(sa.select(self._tables.data)).mappings():
                key, value = self._tables.pair(row)
                yield canonical_key(key), value

    def count(self) -> int:
        """How many keys the state has."""
        import sqlalchemy as sa

        with self._errors(), self._engine.connect() as connection:
            asked = sa.select(sa.func.count()).select_from(self._tables.data)
            return int(connection.execute(asked).scalar_one())

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        sa: Any = require_extra("sqlalchemy", EXTRA)
        try:
            yield
        except sa.exc.DBAPIError as error:
            raise _store_error(error, self.where) from None
        except sa.exc.TimeoutError as error:
            raise StoreUnavailableError(f"{self.where.describe()}: {error}", "Run the task again.") from error


def _store_error(error: sa.exc.DBAPIError, where: Connection) -> TridentError:
    """One clear error for what the driver said; nothing was applied."""
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


def _require_columns(spec: StateSpec) -> None:
    """:raises ConfigurationError: the fields cannot be columns beside each other."""
    seen = {KEY_COLUMN, REMOVED, SPECIAL}
    for one in (*spec.keys, *spec.values):
        if one.name.lower() in seen:
            raise ConfigurationError(
                f"state {spec.name!r} has the field {one.name!r}, which many databases cannot tell from another column "
                "of its table (names of columns have no case)",
                "Rename the field.",
            )
        seen.add(one.name.lower())
