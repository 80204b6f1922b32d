"""A table or query of a database, for `SqlSpout`: ranges of keys, their counts and their rows, through SQLAlchemy."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import (
    ConfigurationError,
    CorruptError,
    DamagedInputError,
    SourceUnavailableError,
    TridentError,
)
from airflow_trident.io.connections import Connection
from airflow_trident.io.database_errors import EXTRA, DatabaseFault, Fault, errors_of, fault_of
from airflow_trident.io.database_limits import Limits
from airflow_trident.io.extras import require_extra
from airflow_trident.io.sql import make_engine, scheme_of
from airflow_trident.spouts.sql.writers import wait_for_writers
from airflow_trident.types import Schema, names_of

if TYPE_CHECKING:
    import sqlalchemy


@dataclass(frozen=True, kw_only=True)
class NextKeys:
    """What a look behind the range that was read last found.

    `found`: (from, to, rows) of the next keys, the first ones from None; None: there are none yet. `rows_before`: how
    many rows the range that was read last has now; None: not counted. `lower`: the highest key, if it is below that
    range's last one.
    """

    found: tuple[int | None, int, int] | None = None
    rows_before: int | None = None
    lower: int | None = None


@dataclass(frozen=True)
class SqlSource:
    """What is read. Can be pickled; only `where` has secrets, and it shows none.

    `table` may be ``schema.table``; exactly one of `table` and `query` is set.
    """

    where: Connection
    table: str
    query: str
    key: str
    fields: Schema
    limits: Limits

    # ---- the coordinator's questions ---------------------------------------------------------------------------

    def peek(self, after: int | None) -> tuple[bool, int | None]:
        """Are there keys above `after`? If not: :attr:`NextKeys.lower`."""
        with self._open() as connection:
            more = self._ends(connection, after, 1) is not None
            return more, None if more or after is None else self._lower(connection, after)

    def look(self, before: tuple[int | None, int] | None, max_rows: int, settle_s: float) -> NextKeys:
        """The next keys above the range (from, to] that was read last, about `max_rows` rows. No row can appear among
        them later: transactions that may add such rows have ended, which is waited for `settle_s` seconds."""
        after = None if before is None else before[1]
        with self._open() as connection:
            ends = self._ends(connection, after, max_rows)
            if ends is None:
                return NextKeys(lower=None if after is None else self._lower(connection, after))
            if not self._settled(connection, settle_s):
                return NextKeys()
            if before is None:
                # All that is below: a row that comes there later is noticed.
                return NextKeys(found=(None, ends[1], self._count(connection, None, ends[1])))
            earlier, rows = self._counts(connection, *before, ends[1])
            return NextKeys(found=(before[1], ends[1], rows), rows_before=earlier)

    def sample(self, after: int | None, max_rows: int) -> list[tuple[Any, ...]]:
        """Up to `max_rows` of the next rows above `after`, each with its key in front."""
        import sqlalchemy as sa

        source, key = self._source()
        columns = [source.c[name] for name in names_of(self.fields)]
        above = key.is_not(None) if after is None else key > after
        with self._open() as connection:
            shown = sa.select(key.label("trident_key"), *columns)
            rows = connection.execute(shown.where(above).order_by(key).limit(max_rows))
            return [tuple(row) for row in rows]

    def cut(self, begin: int | None, end: int, parts: int) -> list[tuple[int | None, int]]:
        """At most `parts` ranges (from, to] that cover (begin, end], about equal in rows. A key is in only one
        range."""
        import sqlalchemy as sa

        source, key = self._source()
        tile = sa.func.ntile(sa.literal_column(str(parts))).over(order_by=key).label("tile")
        tiles = sa.select(key.label("one"), tile).select_from(source).where(*_within(key, begin, end)).subquery("tiles")
        with self._open() as connection:
            highest = connection.execute(sa.select(sa.func.max(tiles.c.one)).group_by(tiles.c.tile)).scalars()
            ends = sorted({*(int(key) for key in highest), end})
        return list(zip([begin, *ends[:-1]], ends, strict=True))

    def counts(self, ranges: Sequence[tuple[int | None, int]]) -> list[int]:
        """The number of rows that each range (from, to] has now."""
        with self._open() as connection:
            return [self._count(connection, begin, end) for begin, end in ranges]

    # ---- rows --------------------------------------------------------------------------------------------------

    def rows(self, begin: int | None, end: int, at_once: int) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of (begin, end], each with its key in front, in pieces; the server's cursor holds the rest if the
        driver has such cursors."""
        import sqlalchemy as sa

        source, key = self._source()
        columns = [source.c[name] for name in names_of(self.fields)]
        statement = sa.select(key.label("trident_key"), *columns).where(*_within(key, begin, end))
        # Not AUTOCOMMIT: the server's cursors exist only in transactions.
        with (
            self._open(stream_results=True, max_row_buffer=at_once) as connection,
            connection.execute(statement) as rows,
        ):
            for piece in rows.partitions(at_once):
                yield [tuple(row) for row in piece]

    @property
    def database(self) -> str:
        """SQLAlchemy's name of it."""
        return scheme_of(self.where).partition("+")[0]

    # ---- how ---------------------------------------------------------------------------------------------------

    def _source(self) -> tuple[Any, Any]:
        """The table or query, and its key column."""
        import sqlalchemy as sa

        columns: list[Any] = [sa.column(name) for name in dict.fromkeys((*names_of(self.fields), self.key))]
        if self.query:
            # A colon is a colon, in texts and in casts: the query has no parameters.
            source: Any = sa.text(_COLON.sub(r"\:", self.query)).columns(*columns).subquery("source")
        else:
            schema, _, name = self.table.rpartition(".")
            source = sa.table(name, *columns, schema=schema or None)
        return source, source.c[self.key]

    def _ends(self, connection: sqlalchemy.Connection, after: int | None, max_rows: int) -> tuple[int, int] | None:
        """The least and the highest of the next `max_rows` keys above `after`."""
        import sqlalchemy as sa

        _, key = self._source()
        above = key.is_not(None) if after is None else key > after
        some = sa.select(key.label("one")).where(above).order_by(key).limit(max_rows).subquery("some")
        least, most = connection.execute(sa.select(sa.func.min(some.c.one), sa.func.max(some.c.one))).one()
        if most is None:
            return None
        if not isinstance(most, int):
            raise ConfigurationError(
                f"{self.describe()}: the key {self.key!r} holds {most!r}", "Name a column of whole numbers that rises."
            )
        return int(least), most

    def _count(self, connection: sqlalchemy.Connection, begin: int | None, end: int) -> int:
        import sqlalchemy as sa

        source, key = self._source()
        statement = sa.select(sa.func.count()).select_from(source).where(*_within(key, begin, end))
        return int(connection.execute(statement).scalar_one())

    def _counts(self, connection: sqlalchemy.Connection, begin: int | None, middle: int, end: int) -> tuple[int, int]:
        """The rows of (begin, middle] and of (middle, end], as of one moment."""
        import sqlalchemy as sa

        source, key = self._source()
        first = sa.func.count(sa.case((key <= middle, 1)))
        statement = sa.select(first, sa.func.count()).select_from(source).where(*_within(key, begin, end))
        rows, together = connection.execute(statement).one()
        return int(rows), int(together) - int(rows)

    def _lower(self, connection: sqlalchemy.Connection, after: int) -> int | None:
        """The highest key, if it is below `after`, which was read. Only if that row is gone, all keys are asked for:
        not every query has an index for it."""
        import sqlalchemy as sa

        _, key = self._source()
        if self._ends(connection, after - 1, 1) is not None:
            return None
        highest = connection.execute(sa.select(sa.func.max(key))).scalar_one()
        return int(highest) if highest is not None and highest < after else None

    def _settled(self, connection: sqlalchemy.Connection, settle_s: float) -> bool:
        """Wait until older writers end. A key is drawn before its commit, so a lower key can appear after a higher one.

        :returns: False: they have not ended within `settle_s`.
        """
        if connection.dialect.name == "sqlite" or settle_s == 0:
            return True  # SQLite has one writer at a time
        if connection.dialect.name == "postgresql":
            connection.commit()  # the table is not locked for the time of the wait
            if self.table:
                table, _ = self._source()
                return wait_for_writers(connection, table, settle_s)
        time.sleep(settle_s)
        return True

    def describe(self) -> str:
        return f"SqlSpout({self.where.conn_id or self.where.describe()}, {self.table or 'query'}, key {self.key})"

    @contextmanager
    def _open(self, **options: Any) -> Iterator[sqlalchemy.Connection]:
        """
        :param options: of a connection; by default each statement sees what was committed before it.
        :raises SourceUnavailableError: the database does not answer.
        :raises ConfigurationError: the database is not known, or has no such table or column.
        :raises DamagedInputError: the driver cannot read a value.
        """
        sa: Any = require_extra("sqlalchemy", EXTRA)
        engine = make_engine(self.where, self.describe(), self.limits, writes=False, poolclass=sa.NullPool)
        # Settings of PostgreSQL end with a transaction, so that a pooler's connection keeps none of them.
        level = "READ COMMITTED" if engine.dialect.name == "postgresql" else "AUTOCOMMIT"
        raised = errors_of(engine.dialect)
        try:
            connection = engine.connect()
            try:
                yield connection.execution_options(**(options or {"isolation_level": level}))
            finally:
                with suppress(*raised):  # the first error is the one that is told
                    connection.close()
        except raised as error:
            raise _source_error(fault_of(error, engine.dialect.name, self.where), self.describe()) from None


_COLON = re.compile(r"(?<!\\):")
_CURES = {
    Fault.RIGHTS: "Let the user of the connection read it.",
    Fault.ABSENT: "Correct the table, the query or the fields.",
    Fault.VALUE: "Correct the table, the query or the fields.",
    Fault.UNREADABLE: "Convert such values in a query, or correct them.",
}


def _source_error(fault: DatabaseFault, described: str) -> TridentError:
    text, cure = f"{described} cannot be read: {fault.text}", fault.cure or _CURES.get(fault.kind, "")
    if fault.passes:
        return SourceUnavailableError(text, cure)
    if fault.kind is Fault.UNREADABLE:
        return DamagedInputError(text, cure)
    return CorruptError(text, cure) if fault.kind is Fault.DAMAGED else ConfigurationError(text, cure)


def _within(key: Any, begin: int | None, end: int) -> tuple[Any, ...]:
    """The condition of (begin, end]."""
    return (key <= end,) if begin is None else (key > begin, key <= end)
