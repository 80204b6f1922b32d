"""A spout of the new rows of a database table, by ranges of a key that rises.

Transactional: the metadata of a batch is a range of keys and its number of rows. A replay reads the same rows, or
raises if they are gone. Rows must be added with rising keys, and must not change.

Who may still commit rows into a range of keys that was read: the open transactions of PostgreSQL, by their locks.

A lock tells more than a snapshot does: a transaction has no id before it writes its first row, when its key is drawn
already. Locks are kept until the transaction's rows can be seen, also by PREPARE TRANSACTION, which keeps the virtual
id, too (PostgreSQL 14.1, 13.5, 12.9).

A table or query of a database, for `SqlSpout`: ranges of keys, their counts and their rows, through SQLAlchemy.

What drivers give for a value, as the type that is declared for its column: nothing is changed on the way.

SQLite has texts for dates and times, MySQL intervals for times, and both numbers for booleans. Where a driver cannot
give a value of Python, such as infinity, it gives the text of the database, which no declared type takes.
"""

from __future__ import annotations

import datetime
import logging
import re
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import msgspec

from airflow_trident.contracts.spout import (
    TAKE_AS_IT_IS,
    Coordinator,
    Emitter,
    OnDataLoss,
    Split,
    Spout,
    one_of,
)
from airflow_trident.errors import (
    ConfigurationError,
    CorruptError,
    DamagedInputError,
    PlanError,
    SourceChangedError,
    SourceUnavailableError,
    TridentError,
)
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.io.connections import Connection, require_extra, resolve
from airflow_trident.io.database_drivers import EXTRA, DatabaseFault, Fault, errors_of, fault_of
from airflow_trident.io.database_limits import MYSQL, Limits
from airflow_trident.io.datasets import Dataset, table_dataset
from airflow_trident.io.sql import make_engine, quoted, scheme_of
from airflow_trident.io.values import UnfitValueError
from airflow_trident.names import require_conn_id, require_counts, require_durations, without_none
from airflow_trident.operations.evaluate import interval_of
from airflow_trident.protocol.partitions import Partitions, PartitionStep, require_zone
from airflow_trident.spouts.bound_sql import BoundSql
from airflow_trident.spouts.metadata import read_back
from airflow_trident.types import INTERVAL, REAL_TYPES, Field, FieldSpec, Json, Schema, names_of, parse_declared

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy

_LOOK_AGAIN_S = 0.05
# The table with its partitions, or tables that inherit from it, and with the tables that it is a partition of: a row
# may be written by the name of each, and a partition is locked only after the key was drawn.
_RELATED = """
WITH RECURSIVE below AS (
  SELECT CAST(to_regclass(:name) AS oid) AS oid
  UNION SELECT i.inhrelid FROM below JOIN pg_inherits i ON i.inhparent = below.oid
), above AS (
  SELECT CAST(to_regclass(:name) AS oid) AS oid
  UNION SELECT i.inhparent FROM above JOIN pg_class c ON c.oid = above.oid AND c.relispartition
  JOIN pg_inherits i ON i.inhrelid = c.oid
), related AS (SELECT oid FROM below UNION SELECT oid FROM above)
"""
# r, p and f are tables, tables with partitions, and tables of other servers.
_WHAT = f"""{_RELATED}
SELECT coalesce(bool_and(c.relkind IN ('r', 'p', 'f')), false) AS tables,
pg_is_in_recovery() OR coalesce(bool_or(c.relkind = 'f'), false)
OR EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid IN (SELECT oid FROM related))
OR (NOT coalesce(bool_and(c.relkind IN ('r', 'p', 'f')), false) AND EXISTS (SELECT FROM pg_subscription_rel))
AS elsewhere
FROM related JOIN pg_class c ON c.oid = related.oid
"""
# A transaction that inserts into a table holds this lock from before its key is drawn until the transaction ends.
_LOCKS = (
    "SELECT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_OF_TABLES = f"{_RELATED} {_LOCKS} AND relation IN (SELECT oid FROM related)"
# Only the database knows what a view reads, in functions, too. The server's own tables have lower numbers, and indexes
# are locked so for as long as VACUUM takes.
_OF_ALL = (
    f"{_LOCKS} AND relation >= 16384 "
    "AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = relation AND c.relkind IN ('i', 'I'))"
)


def wait_for_writers(connection: sqlalchemy.Connection, table: Any, settle_s: float) -> bool:
    """Wait until the transactions that were writing to `table` have ended, or to any table if it is a view.

    Writers on other servers cannot be seen: not from a replica, for a foreign table, or for a table that a subscription
    fills. Then `settle_s` is waited.

    :param connection: each of its statements sees what was committed before it.
    :returns: False: they have not ended within `settle_s`.
    """
    import sqlalchemy as sa

    deadline = time.monotonic() + settle_s
    name = {"name": quoted(connection.dialect, table)}
    waits = connection.execute(sa.text(_WHAT), name).one()
    statement, parameters = (sa.text(_OF_TABLES), name) if waits.tables else (sa.text(_OF_ALL), {})
    waited_for = set(connection.execute(statement, parameters).scalars())
    if waits.elsewhere:
        time.sleep(settle_s)
        waited_for &= set(connection.execute(statement, parameters).scalars())
    while waited_for:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_AGAIN_S)
        waited_for &= set(connection.execute(statement, parameters).scalars())
    return True


@dataclass(frozen=True, kw_only=True)
class NextKeys:
    """What a look behind the range that was read last found.

    `span`: (from, to, rows) of the next keys, the first ones from None; None: there are none yet. `rows_before`: how
    many rows the range that was read last has now; None: not counted. `lower`: the highest key, if it is below that
    range's last one.
    """

    span: tuple[int | None, int, int] | None = None
    rows_before: int | None = None
    lower: int | None = None


@dataclass(frozen=True)
class SqlSource:
    """What is read. Can be pickled; only `connection` has secrets, and it shows none.

    `table` may be ``schema.table``; exactly one of `table` and `query` is set.
    """

    connection: Connection
    table: str
    query: str
    key: str
    fields: Schema
    limits: Limits

    # ---- the coordinator's questions ---------------------------------------------------------------------------

    def peek(self, after: int | None) -> tuple[bool, int | None]:
        """Are there keys above `after`? If not: :attr:`NextKeys.lower`."""
        with self.opened() as connection:
            more = self._ends(connection, after, 1) is not None
            return more, None if more or after is None else self._lower(connection, after)

    def look(self, before: tuple[int | None, int] | None, max_rows: int, settle_s: float) -> NextKeys:
        """The next keys above the range (from, to] that was read last, about `max_rows` rows. No row can appear among
        them later: transactions that may add such rows have ended, which is waited for `settle_s` seconds."""
        after = None if before is None else before[1]
        with self.opened() as connection:
            ends = self._ends(connection, after, max_rows)
            if ends is None:
                return NextKeys(lower=None if after is None else self._lower(connection, after))
            if not self._settled(connection, settle_s):
                return NextKeys()
            if before is None:
                # All that is below: a row that comes there later is noticed.
                return NextKeys(span=(None, ends[1], self._count(connection, None, ends[1])))
            earlier, rows = self._counts(connection, *before, ends[1])
            return NextKeys(span=(before[1], ends[1], rows), rows_before=earlier)

    def sample(self, after: int | None, max_rows: int) -> list[tuple[Any, ...]]:
        """Up to `max_rows` of the next rows above `after`, each with its key in front."""
        import sqlalchemy as sa

        source, key = self.table_and_key()
        columns = [source.c[name] for name in names_of(self.fields)]
        above = key.is_not(None) if after is None else key > after
        with self.opened() as connection:
            shown = sa.select(key.label("trident_key"), *columns)
            rows = connection.execute(shown.where(above).order_by(key).limit(max_rows))
            return [tuple(row) for row in rows]

    def cut(self, begin: int | None, end: int, parts: int) -> list[tuple[int | None, int]]:
        """At most `parts` ranges (from, to] that cover (begin, end], about equal in rows. A key is in only one
        range."""
        import sqlalchemy as sa

        source, key = self.table_and_key()
        tile = sa.func.ntile(sa.literal_column(str(parts))).over(order_by=key).label("tile")
        tiles = sa.select(key.label("one"), tile).select_from(source).where(*_within(key, begin, end)).subquery("tiles")
        with self.opened() as connection:
            highest = connection.execute(sa.select(sa.func.max(tiles.c.one)).group_by(tiles.c.tile)).scalars()
            ends = sorted({*(int(key) for key in highest), end})
        return list(zip([begin, *ends[:-1]], ends, strict=True))

    def counts(self, ranges: Sequence[tuple[int | None, int]]) -> list[int]:
        """The number of rows that each range (from, to] has now."""
        with self.opened() as connection:
            return [self._count(connection, begin, end) for begin, end in ranges]

    # ---- rows --------------------------------------------------------------------------------------------------

    def rows(self, begin: int | None, end: int, at_once: int) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of (begin, end], each with its key in front, in pieces; the server's cursor holds the rest if the
        driver has such cursors."""
        import sqlalchemy as sa

        source, key = self.table_and_key()
        # Not AUTOCOMMIT: the server's cursors exist only in transactions.
        with self.opened(stream_results=True, max_row_buffer=at_once) as connection:
            columns = self.shown_columns(connection, source)
            statement = sa.select(key.label("trident_key"), *columns).where(*_within(key, begin, end))
            with connection.execute(statement) as rows:
                yield from self.pieces(rows, at_once)

    def pieces(self, rows: sqlalchemy.CursorResult[Any], at_once: int) -> Iterator[list[tuple[Any, ...]]]:
        """
        :param rows: each with its key in front.
        :raises DamagedInputError: a column of doubles is declared float, and a value would be another number.
        """
        doubles = self._doubles(rows)
        for piece in rows.partitions(at_once):
            made = [tuple(row) for row in piece]
            for place, field in doubles:
                _require_singles(self.describe(), field.name, ((row[0], row[place]) for row in made))
            yield made

    def _doubles(self, rows: sqlalchemy.CursorResult[Any]) -> list[tuple[int, Field]]:
        """The places of columns of doubles whose field is float: in Python a double looks like a float."""
        doubles = _DOUBLES.get(self.database)
        described = rows.cursor.description if rows.cursor else None
        if doubles is None or described is None:
            return []
        return [
            (place, field)
            for place, field in enumerate(self.fields, 1)
            if field.type == "float" and described[place][1] in doubles
        ]

    def shown_columns(self, connection: sqlalchemy.Connection, source: Any) -> list[Any]:
        """The columns of the fields. MySQL writes six digits of a FLOAT as text; its product with a double has all."""
        import sqlalchemy as sa

        columns = [source.c[name] for name in names_of(self.fields)]
        if connection.dialect.name not in MYSQL or not any(field.type in REAL_TYPES for field in self.fields):
            return columns
        with connection.execute(sa.select(*columns).limit(0)) as empty:
            kinds = [described[1] for described in empty.cursor.description] if empty.cursor else []
        return [
            (column * sa.literal_column("1e0")).label(column.name) if kind == _FLOAT_OF_MYSQL else column
            for column, kind in zip(columns, kinds, strict=True)
        ]

    def as_table(self, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
        """
        :param rows: each with its key in front.
        :raises DamagedInputError: a value does not fit its field.
        """
        return table_of(self.describe(), self.fields, self.database, rows)

    @property
    def database(self) -> str:
        """SQLAlchemy's name of it."""
        return scheme_of(self.connection).partition("+")[0]

    # ---- how ---------------------------------------------------------------------------------------------------

    def table_and_key(self, *more: str) -> tuple[Any, Any]:
        """The table or query, and its key column.

        :param more: further columns; "" is none.
        """
        import sqlalchemy as sa

        names = dict.fromkeys((*names_of(self.fields), self.key, *filter(None, more)))
        columns: list[Any] = [sa.column(name) for name in names]
        if self.query:
            # A colon is a colon, in texts and in casts: the query has no parameters.
            query = self.query.rstrip().removesuffix(";") + "\n"  # a comment may end it
            source: Any = sa.text(_COLON.sub(r"\:", query)).columns(*columns).subquery("source")
        else:
            schema, _, name = self.table.rpartition(".")
            source = sa.table(name, *columns, schema=schema or None)
        return source, source.c[self.key]

    def _ends(self, connection: sqlalchemy.Connection, after: int | None, max_rows: int) -> tuple[int, int] | None:
        """The least and the highest of the next `max_rows` keys above `after`."""
        import sqlalchemy as sa

        _, key = self.table_and_key()
        above = key.is_not(None) if after is None else key > after
        some = sa.select(key.label("one")).where(above).order_by(key).limit(max_rows).subquery("some")
        least, highest = connection.execute(sa.select(sa.func.min(some.c.one), sa.func.max(some.c.one))).one()
        if highest is None:
            return None
        if not isinstance(highest, int):
            raise ConfigurationError(
                f"{self.describe()}: the key {self.key!r} holds {highest!r}",
                "Name a column of whole numbers that rises.",
            )
        return int(least), highest

    def _count(self, connection: sqlalchemy.Connection, begin: int | None, end: int) -> int:
        import sqlalchemy as sa

        source, key = self.table_and_key()
        statement = sa.select(sa.func.count()).select_from(source).where(*_within(key, begin, end))
        return int(connection.execute(statement).scalar_one())

    def _counts(self, connection: sqlalchemy.Connection, begin: int | None, middle: int, end: int) -> tuple[int, int]:
        """The rows of (begin, middle] and of (middle, end], as of one moment."""
        import sqlalchemy as sa

        source, key = self.table_and_key()
        first = sa.func.count(sa.case((key <= middle, 1)))
        statement = sa.select(first, sa.func.count()).select_from(source).where(*_within(key, begin, end))
        rows, together = connection.execute(statement).one()
        return int(rows), int(together) - int(rows)

    def _lower(self, connection: sqlalchemy.Connection, after: int) -> int | None:
        """The highest key, if it is below `after`, which was read. Only if that row is gone, all keys are asked for:
        not every query has an index for it."""
        import sqlalchemy as sa

        _, key = self.table_and_key()
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
                table, _ = self.table_and_key()
                return wait_for_writers(connection, table, settle_s)
        time.sleep(settle_s)
        return True

    def describe(self) -> str:
        database = self.connection.conn_id or self.connection.describe()
        return f"SqlSpout({database}, {self.table or 'query'}, key {self.key})"

    @contextmanager
    def opened(self, **options: Any) -> Iterator[sqlalchemy.Connection]:
        """
        :param options: of a connection; by default each statement sees what was committed before it.
        :raises SourceUnavailableError: the database does not answer.
        :raises ConfigurationError: the database is not known, or has no such table or column.
        :raises DamagedInputError: the driver cannot read a value.
        """
        sa: Any = require_extra("sqlalchemy", EXTRA)
        engine = make_engine(self.connection, self.describe(), self.limits, writes=False, poolclass=sa.NullPool)
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
            raise _source_error(fault_of(error, engine.dialect.name, self.connection), self.describe()) from None


_FLOAT_OF_MYSQL = 4
"""The type in the protocol of a column that is FLOAT."""
_DOUBLES: dict[str, tuple[int | None, ...]] = {
    "postgresql": (701,),
    "sqlite": (None,),
    **dict.fromkeys(MYSQL, (5,)),
}
"""What a driver calls the type of a column of doubles; SQLite has no other real numbers."""
_NANOSECONDS = re.compile(r"[.,]\d{6}0*[1-9]", re.ASCII)
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


Convert: TypeAlias = Callable[[Any], Any]
_DAY = datetime.timedelta(days=1)
_BITS = {0: False, 1: True, b"\x00": False, b"\x01": True}
_CURE = "Correct the value, declare the type that the column has, or convert it in a query."


def table_of(who: str, fields: Schema, database: str, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    """
    :param rows: each with its key in front.
    :raises DamagedInputError: a value does not fit its field; it names key and column.
    """
    converts = [(place, convert) for place, field in enumerate(fields) if (convert := _converter(field.type, database))]
    plain = [_converted(row[1:], converts) for row in rows] if converts else [row[1:] for row in rows]
    try:
        return rows_to_table(fields, plain)
    except UnfitValueError as error:
        place = [field.name for field in fields].index(error.field)
        position = error.position
        if error.is_of_type:  # of all values of the column
            position = next(number for number, row in enumerate(plain) if row[place] is not None)
        raise DamagedInputError(
            f"{who}: rows do not fit the fields ({', '.join(map(str, fields))}): {error} (key {rows[position][0]!r})",
            _CURE,
        ) from error


def _require_singles(who: str, name: str, values: Iterable[tuple[Any, Any]]) -> None:
    for key, value in values:
        if isinstance(value, float) and value == value and not _is_single(value):
            raise DamagedInputError(
                f"{who}: {value!r} in the column {name!r}, where float is declared: as float it is another number "
                f"(key {key!r})",
                _CURE,
            )


def _is_single(value: float) -> bool:
    try:
        return struct.unpack("<f", struct.pack("<f", value)) == (value,)
    except OverflowError:
        return False


def _converted(row: tuple[Any, ...], converts: Sequence[tuple[int, Convert]]) -> tuple[Any, ...]:
    parts = list(row)
    for place, convert in converts:
        if parts[place] is not None:
            parts[place] = convert(parts[place])
    return tuple(parts)


def _converter(type_text: str, database: str) -> Convert | None:
    """What a value that does not fit becomes is the value itself, so that the error can show it."""
    if type_text == INTERVAL:
        return _interval
    if type_text == "boolean" and (database in MYSQL or database == "sqlite"):
        return _boolean
    if database in MYSQL:
        return _time_of_interval if type_text == "time" else None
    texts: dict[str, Any] = {"date": datetime.date, "time": datetime.time, "timestamp": datetime.datetime}
    if database == "sqlite" and type_text in texts:
        return _parser(texts[type_text].fromisoformat)
    return None


def _interval(value: Any) -> Any:
    """Databases without intervals give whole numbers of microseconds."""
    return interval_of(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _boolean(value: Any) -> Any:
    return _BITS.get(value, value) if isinstance(value, int | bytes) else value


def _time_of_interval(value: Any) -> Any:
    """MySQL's TIME goes from -838 to 838 hours."""
    if isinstance(value, datetime.timedelta) and datetime.timedelta(0) <= value < _DAY:
        return (datetime.datetime.min + value).time()
    return value


def _parser(parse: Callable[[str], Any]) -> Convert:
    def parsed(value: Any) -> Any:
        try:
            # Python drops the digits below a microsecond.
            return parse(value) if isinstance(value, str) and not _NANOSECONDS.search(value) else value
        except ValueError:
            return value

    return parsed


_SAMPLE_ROWS = 100
_ROWS_AT_ONCE = 10_000
log = logging.getLogger(__name__)


class SqlSpout(Spout):
    """Reads the rows that are added to a table, each in exactly one transaction. It uses SQLAlchemy and a Python
    driver, no JVM.

    :param conn_id: an Airflow connection: postgres, mysql, sqlite, ...
    :param table: its name, or ``schema.table``. Instead of it `query`: a SELECT without ORDER BY.
    :param key: a column of whole numbers; new rows get higher ones (identity, serial, AUTO_INCREMENT).
    :param fields: the columns with their types.
    :param max_rows: of one batch, about.
    :param max_bytes: of one batch, about; estimated from a sample of its rows.
    :param splits: into how many splits a batch is cut, at most.
    :param settle_s: how long to wait for transactions that may still commit keys lower than the visible ones.
    :param on_data_loss: ``error`` or ``continue``, for rows that came among keys that were read.
    :param connection: explicit settings instead of `conn_id`.
    :param connect_timeout_s: time limit for a connection.
    :param lock_timeout_s: how long to wait for a lock of somebody else, such as of an ALTER TABLE.
    :param statement_timeout_s: time limit for one statement. Which database knows which limit: see the reference.
    :param time: in a topology that is bound to partitions: the column that says in which one a row is. It has
        timestamps, dates, or ISO texts in SQLite. One worker reads all rows of a partition.
    :param time_zone: of times that have no zone.
    :param changed_by: a column that rises when a row changes. Without it each look reads all rows of the partition.
    :raises ConfigurationError: arguments are wrong, or contradict each other.
    """

    schema: Schema = ()
    _on_data_loss = OnDataLoss.ERROR

    def __init__(
        self,
        conn_id: str,
        *,
        fields: FieldSpec,
        table: str = "",
        query: str = "",
        key: str = "id",
        max_rows: int = 1_000_000,
        max_bytes: int | None = None,
        splits: int = 4,
        settle_s: float = 5.0,
        on_data_loss: OnDataLoss | str = OnDataLoss.ERROR,
        connection: Connection | None = None,
        connect_timeout_s: float = 10.0,
        lock_timeout_s: float = 30.0,
        statement_timeout_s: float = 600.0,
        time: str = "",
        time_zone: str = "UTC",
        changed_by: str = "",
    ) -> None:
        if connection is None:
            require_conn_id("SqlSpout", conn_id)
        if bool(table) == bool(query) or not isinstance(table or query, str):
            raise ConfigurationError("SqlSpout with both or none of table and query", "Give one of them.")
        require_counts("SqlSpout", max_rows=max_rows, splits=splits, **without_none(max_bytes=max_bytes))
        require_durations("SqlSpout", zero=True, settle_s=settle_s)
        self._limits = Limits(connect_s=connect_timeout_s, lock_s=lock_timeout_s, statement_s=statement_timeout_s)
        self._limits.require_positive("SqlSpout")
        if not time and (changed_by or time_zone != "UTC"):
            raise ConfigurationError(
                "SqlSpout with time_zone or changed_by, and without time",
                'Name the column of times, as in time="changed_at"; or leave them out.',
            )
        require_zone(time_zone)
        self._time, self._time_zone, self._changed_by = time, time_zone, changed_by
        self.needs_partitions = bool(time)
        self._conn_id = conn_id
        self._connection = connection
        self.schema = parse_declared(fields)
        self._what = (table, query, key)
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._splits = splits
        self._settle_s = settle_s
        self._on_data_loss = OnDataLoss(one_of("SqlSpout", "on_data_loss", on_data_loss, tuple(OnDataLoss)))

    def bound(self, partitions: Partitions) -> BoundSql:
        """
        :raises PlanError: nothing says in which partition a row is.
        """
        if not self._time:
            raise PlanError(
                f"{self.describe()} in a bound topology: nothing says in which {partitions.step} a row is",
                'Name the column, as in time="changed_at".',
            )
        if partitions.step is PartitionStep.HOUR and self._time_zone != "UTC":
            raise PlanError(
                f"{self.describe()} with time_zone={self._time_zone!r} in a topology of hours: an hour comes twice "
                "when its clocks are set back",
                "Convert the times to UTC in a query.",
            )
        table, query, _ = self._what
        return BoundSql(
            database=self,
            shown=f"{self._conn_id}, {table or query}",
            fields=self.schema,
            partitions=partitions,
            time=self._time,
            time_zone=self._time_zone,
            changed_by=self._changed_by,
        )

    def coordinator(self) -> SqlCoordinator:
        return SqlCoordinator(
            self.source(self._what[2]), self._max_rows, self._settle_s, self._max_bytes, self._on_data_loss
        )

    def emitter(self) -> SqlEmitter:
        return SqlEmitter(self.source(self._what[2]), self._splits)

    def source(self, key: str) -> SqlSource:
        """With its connection: executors cannot ask Airflow for one."""
        table, query, _ = self._what
        connection = self._connection or resolve(self._conn_id)
        return SqlSource(
            connection=connection, table=table, query=query, key=key, fields=self.schema, limits=self._limits
        )

    def lineage_datasets(self, metadata: Json) -> tuple[Dataset, ...]:
        """Empty for a query: only the database knows which tables it reads."""
        table = self._what[0]
        return (table_dataset(self._connection or resolve(self._conn_id), table),) if table else ()

    def describe(self) -> str:
        table, query, key = self._what
        return f"SqlSpout({self._conn_id}, {table or query}, key {key})"


@dataclass(frozen=True)
class SqlCoordinator(Coordinator):
    """Metadata: ``{"from": f, "to": t, "rows": n}``: the n rows whose key is above f and at most t; f is null in the
    first batch, before which no key was read. ``"lost"``: how many rows came into the range before that one after it
    was recorded, and are in no transaction."""

    source: SqlSource
    max_rows: int
    settle_s: float
    max_bytes: int | None = None
    on_data_loss: OnDataLoss = OnDataLoss.ERROR

    def is_ready(self, previous: Json) -> bool:
        before = _range(previous) if previous is not None else None
        more, lower = self.source.peek(None if before is None else before[1])
        if before is not None:
            self._lost(before, NextKeys(lower=lower))  # a sensor would wait until the keys that were read have passed
        return more

    def initialize_transaction(self, txid: int, previous: Json) -> Json:
        """
        :raises SourceUnavailableError: the database does not answer.
        :raises SourceChangedError: its keys went back, or rows came among those that were read last, and
            `on_data_loss` is "error".
        """
        before = _range(previous) if previous is not None else None
        after = None if before is None else before[1]
        max_rows = self.max_rows
        if self.max_bytes is not None and (sample := self.source.sample(after, _SAMPLE_ROWS)):
            bytes_each = self.source.as_table(sample).nbytes / len(sample)
            max_rows = min(max_rows, max(1, int(self.max_bytes / max(1.0, bytes_each))))
        look = self.source.look(None if before is None else before[:2], max_rows, self.settle_s)
        lost = 0 if before is None else self._lost(before, look)
        if look.span is None:
            return None
        begin, end, rows = look.span
        metadata: dict[str, Json] = {"from": begin, "to": end, "rows": rows}
        return {**metadata, "lost": lost} if lost else metadata

    def _lost(self, before: tuple[int | None, int, int], look: NextKeys) -> int:
        """How many rows came into the range `before` after it was recorded."""
        begin, end, rows = before
        lost = 0 if look.rows_before is None else max(0, look.rows_before - rows)
        if look.lower is not None:
            error = _went_back(self.source, end, look.lower)
        elif lost:
            error = _came_late(self.source, begin, end, rows, lost)
        else:
            return 0
        if self.on_data_loss is OnDataLoss.ERROR:
            raise error
        log.warning("The stream goes on: %s", error.message)
        return lost

    def accept_source(self, metadata: Json) -> Json:
        begin, end, recorded = _range(metadata)
        (rows,) = self.source.counts([(begin, end)])
        if recorded and not rows:
            raise _changed(self.source, begin, end, recorded, rows)
        assert isinstance(metadata, dict)
        return {**metadata, "rows": rows}


@dataclass(frozen=True)
class SqlEmitter(Emitter):
    """Cuts a batch into ranges with about the same number of rows. `splits` counts the rows and `read` counts them
    again: a missing row is an error."""

    is_fitted: ClassVar[bool] = True
    source: SqlSource
    most_splits: int

    def splits(self, metadata: Json) -> list[Split]:
        """
        :raises SourceChangedError: the range has not as many rows as were recorded.
        """
        begin, end, rows = _range(metadata)
        ranges = self.source.cut(begin, end, self.most_splits)
        counts = self.source.counts(ranges)
        if sum(counts) != rows:
            raise _changed(self.source, begin, end, rows, sum(counts))
        bodies: list[Json] = [
            {"from": at, "to": to, "rows": n} for (at, to), n in zip(ranges, counts, strict=True) if n
        ]
        return [Split(index, body) for index, body in enumerate(bodies)]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        begin, end, rows = _range(split.body)
        row_count = 0
        for piece in self.source.rows(begin, end, _ROWS_AT_ONCE):
            row_count += len(piece)
            yield from self.source.as_table(piece).to_batches()
        if row_count != rows:
            raise _changed(self.source, begin, end, rows, row_count)


def _changed(source: SqlSource, begin: int | None, end: int, recorded: int, row_count: int) -> SourceChangedError:
    return SourceChangedError(
        f"{source.describe()} has {row_count} rows with {_keys(begin, end)}, and the transaction recorded {recorded}",
        f"Put them back as they were and replay; or have the transaction take those that are there: {TAKE_AS_IT_IS}. "
        "Rows must not be deleted, and no row may come with a lower key than others that are older than settle_s.",
    )


def _went_back(source: SqlSource, end: int, highest: int) -> SourceChangedError:
    return SourceChangedError(
        f"the highest key of {source.describe()} is {highest}, and the keys up to {end} were read: the database lost "
        "writes (a failover, a restore, TRUNCATE), or rows were removed from the end",
        f"Let its keys go on above {end}, and give such keys to rows that came since with lower ones; if the rows are "
        'others now, give this stream of the topology another name. on_data_loss="continue" goes on without rows of '
        f"keys up to {end}.",
    )


def _came_late(source: SqlSource, begin: int | None, end: int, recorded: int, late: int) -> SourceChangedError:
    return SourceChangedError(
        f"{late} rows of {source.describe()} came with {_keys(begin, end)} after the transaction that "
        f"recorded {recorded} there: committed late, or under keys that were given out again",
        f"Nothing was begun. Give them keys above {end}; or, if that transaction is not committed, have it take them, "
        f'and replay it: {TAKE_AS_IT_IS}. on_data_loss="continue" records how many are left out and goes on.',
    )


def _keys(begin: int | None, end: int) -> str:
    return f"keys up to {end}" if begin is None else f"keys above {begin} and up to {end}"


class _Rows(msgspec.Struct, frozen=True, rename={"begin": "from", "end": "to"}):
    """`begin`: None in the first batch; versions before recorded the number below its least key."""

    begin: int | None
    end: int
    rows: int

    def __post_init__(self) -> None:
        if self.begin is not None and self.begin > self.end:
            raise ValueError(f"{self.begin} to {self.end} is no range")


def _range(metadata: Json) -> tuple[int | None, int, int]:
    recorded = read_back(_Rows, metadata, "a SqlSpout")
    return recorded.begin, recorded.end, recorded.rows
