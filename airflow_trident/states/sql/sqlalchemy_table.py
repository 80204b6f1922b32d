"""A state as a table of any database that SQLAlchemy knows: its columns, and the stored form of values.

The primary key ``_key`` is a digest of the key fields, because databases differ in what they index and which texts they
call equal. Each field also has its own column. Values that a database cannot hold exactly are text: arrays, maps and
structs everywhere, decimals in SQLite. If a database has no NaN or infinities, these are null in their column, and JSON
in ``trident_special``.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import StateSpec
from airflow_trident.errors import CorruptRecordError
from airflow_trident.operations.expr.conversions import interval_of, microseconds_of
from airflow_trident.states.core.merge import Changes, Key, Value
from airflow_trident.states.core.text_values import Coder, decoder, encoder, key_text, same
from airflow_trident.states.sql.dialect import KEY_COLUMN, changed_otherwise, fields_of
from airflow_trident.states.sql.postgres_copy import hide_zero, show_zero
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
        return self._table(self.name, self._columns())

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
        return self.dialect not in _HAVE_NAN and any(one.type in REAL_TYPES for one in self._fields)

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
        parts = [None if row[name] is None else decode(row[name]) for name, _, decode in self._codes]
        if self._hides_floats and row[SPECIAL]:
            hidden = json.loads(row[SPECIAL])
            parts = [
                float(hidden[code[0]]) if code[0] in hidden else part
                for code, part in zip(self._codes, parts, strict=True)
            ]
        return tuple(parts[: len(self.spec.keys)]), tuple(parts[len(self.spec.keys) :])

    # ---- reading and writing, inside a transaction -------------------------------------------------------------

    def look_up(self, connection: sa.Connection, keys: Sequence[Key]) -> list[Value | None]:
        """The stored value of each key."""
        import sqlalchemy as sa

        names = [self.key_of(key) for key in keys]
        found: dict[str, Value] = {}
        distinct = list(dict.fromkeys(names))
        for begin in range(0, len(distinct), _KEYS_AT_ONCE):
            some = distinct[begin : begin + _KEYS_AT_ONCE]
            for row in connection.execute(sa.select(self.data).where(self.data.c[KEY_COLUMN].in_(some))).mappings():
                if row[KEY_COLUMN] in found:
                    raise CorruptRecordError(
                        f"the table {self.data} of state {self.spec.name!r} has the key {self.pair(row)[0]!r} twice",
                        "It lost its primary key: remove what is doubled, and make the key again.",
                    )
                found[row[KEY_COLUMN]] = self.pair(row)[1]
        return [found.get(name) for name in names]

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
        gone = [self.key_of(key) for key, value in changes.items() if upsert is None or (value is None and not marks)]
        for begin in range(0, len(gone), _KEYS_AT_ONCE):
            some = gone[begin : begin + _KEYS_AT_ONCE]
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
