"""Connections of Python drivers that end when their server is silent, and give values that Python cannot hold as text.

A server answers within the limit of a statement, and a little later if it ends the statement itself. It may be silent
much earlier: stopped, or behind a network that swallows packets. So while an answer is due, a second connection is
opened from time to time. A server that does not answer it either is silent.

What a driver's error means, by the codes of its database: one table for states and spouts.

Drivers raise one class for different causes: pymysql calls a missing right, an unknown database and a lost connection
OperationalError. Only the code tells whether the same call can succeed later. Errors also come from calls that
SQLAlchemy does not wrap, such as the setting of an isolation level.
"""

from __future__ import annotations

import re
import select
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow_trident.io.connections import Connection, require_extra
from airflow_trident.io.database_limits import MYSQL, Limits

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy

PACKET_TOO_LARGE = 1153
"""MySQL's code. Its server may close the connection instead of sending it."""
_LOOK_EVERY_S = 15.0
_TICK_S = 0.1
_CANNOT_CONNECT = (2002, 2003, 2006, 2013)


@dataclass(frozen=True)
class AnswerWait:
    """How long one connection waits for an answer.

    :param answers: does the server answer a second connection? It takes the time limit for a connection.
    """

    limits: Limits
    answers: Callable[[], bool]

    @property
    def most_s(self) -> float:
        return self.limits.answer_s

    def watch(self) -> Callable[[bool], str]:
        """Begin to wait. The result says "" or how the server was silent; it is called often, with whether the server
        was heard since the last call."""
        begun = last = time.monotonic()

        def silent(heard: bool) -> str:
            nonlocal last
            now = time.monotonic()
            if now - begun > self.most_s:
                return f"the server did not answer within {self.most_s:g} s"
            if heard:
                last = now
            elif now - last > _LOOK_EVERY_S:
                if not self.answers():
                    return f"the server is silent, and took no other connection within {self.limits.connect_s:g} s"
                last = time.monotonic()
            return ""

        return silent


# ---- psycopg ---------------------------------------------------------------------------------------------------


@cache
def _psycopg_connection() -> type[psycopg.Connection[Any]]:
    import psycopg

    class AnsweredConnection(psycopg.Connection[Any]):
        """All that waits for the server goes through `wait`."""

        patience: AnswerWait | None = None

        def wait(self, gen: Any, *args: Any, **named: Any) -> Any:
            if self.patience is None:
                return super().wait(gen, *args, **named)
            try:
                return super().wait(_watched(gen, self.patience.watch()), *args, **named)
            except _SilentError as error:
                self.pgconn.finish()  # the server may still be at work: nothing more is read from this connection
                raise psycopg.OperationalError(str(error)) from None

    return AnsweredConnection


class _SilentError(Exception):
    """The text says how."""


def _watched(gen: Any, silent: Callable[[bool], str]) -> Generator[Any, Any, Any]:
    """A generator of psycopg, which is resumed when the socket is ready, and without anything ready every 0.1 s."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if says := silent(bool(ready)):
                raise _SilentError(says)
            wanted = gen.send(ready)
    except StopIteration as end:
        return end.value


def connect_psycopg(limits: Limits, *args: Any, **named: Any) -> psycopg.Connection[Any]:
    import psycopg

    def answers() -> bool:
        try:
            psycopg.connect(*args, **{**named, "connect_timeout": limits.for_libpq["connect_timeout"]}).close()
        except psycopg.errors.ConnectionTimeout:
            return False
        except psycopg.Error:
            pass  # it answered: "too many connections"
        return True

    connection: Any = _psycopg_connection().connect(*args, **named)
    connection.patience = AnswerWait(limits, answers)
    return connection  # type: ignore[no-any-return]


_MONTHS = re.compile("mon|year")
"""Of an interval in the style `postgres`."""


def give_texts(connection: psycopg.Connection[Any]) -> None:
    """Dates, times and intervals that Python has not, such as infinity, year 20000, or 24:00, come as their text. So do
    months, which the driver counts as 30 days."""
    import psycopg
    from psycopg.adapt import Loader

    class TextIfNeeded(Loader):
        def __init__(self, oid: int, context: Any = None) -> None:
            super().__init__(oid, context)
            self._exact = usual[oid](oid, context)

        def load(self, data: Any) -> Any:
            try:
                return self._exact.load(data)
            except (psycopg.Error, ValueError, OverflowError):
                return bytes(data).decode()

    class TextOfMonths(TextIfNeeded):
        def load(self, data: Any) -> Any:
            text = bytes(data).decode()
            return text if _MONTHS.search(text) else super().load(data)

    adapters = connection.adapters
    usual: dict[int, Any] = {}
    for name in ("date", "time", "timestamp", "timestamptz", "interval"):
        oid = adapters.types[name].oid
        usual[oid] = adapters.get_loader(oid, psycopg.pq.Format.TEXT)
        adapters.register_loader(oid, TextOfMonths if name == "interval" else TextIfNeeded)


# ---- psycopg2 --------------------------------------------------------------------------------------------------


def give_texts_by_psycopg2(raw: Any) -> None:
    """As :func:`give_texts`. The driver would give the largest date for infinity, and midnight for 24:00."""
    from psycopg2 import extensions

    def caster(exact: Any) -> Callable[[str | None, Any], Any]:
        def cast(text: str | None, cursor: Any) -> Any:
            if text is None or "infinity" in text or text.startswith("24:") or _MONTHS.search(text):
                return text
            try:
                return exact(text, cursor)
            except (ValueError, OverflowError, raw.Error):
                return text

        return cast

    for name in ("DATE", "TIME", "DATETIME", "DATETIMETZ", "INTERVAL"):
        exact = getattr(extensions, f"PY{name}")
        extensions.register_type(extensions.new_type(exact.values, f"trident_{name}", caster(exact)), raw)


# ---- pymysql ---------------------------------------------------------------------------------------------------


@cache
def _pymysql_connection() -> type[Any]:
    import pymysql
    from pymysql.cursors import Cursor

    class AnsweredConnection(pymysql.connections.Connection):  # type: ignore[misc]  # pymysql has no types
        """Every statement goes through `_execute_command`; then the server's first byte is waited for."""

        patience: AnswerWait | None = None
        packet_bytes: int | None = None
        """What the server takes in one statement."""

        def allow(self, patience: AnswerWait, read_s: float | None) -> None:
            """The handshake is over: from now on statements are waited for."""
            self.patience = patience
            self._read_timeout = patience.most_s if read_s is None else read_s
            with self.cursor(Cursor) as cursor:
                cursor.execute("SELECT @@max_allowed_packet")
                row = cursor.fetchone()
            assert row is not None
            self.packet_bytes = int(row[0])

        def _execute_command(self, command: Any, sql: Any) -> Any:
            text = sql.encode(self.encoding, "surrogateescape") if isinstance(sql, str) else sql
            if self.packet_bytes is not None and len(text) + 1 > self.packet_bytes:
                raise pymysql.err.DataError(
                    PACKET_TOO_LARGE,
                    f"a statement of {len(text):,} bytes; max_allowed_packet of the server is {self.packet_bytes:,}",
                )
            done = super()._execute_command(command, text)
            if self.patience is not None:
                self._await_answer(self.patience.watch())
            return done

        def _await_answer(self, silent: Callable[[bool], str]) -> None:
            poll = select.poll()
            poll.register(self._sock, select.POLLIN)
            while not poll.poll(_TICK_S * 1000):
                if says := silent(False):
                    self._force_close()
                    raise pymysql.err.OperationalError(2013, says)

    class FittingCursor(Cursor):  # type: ignore[misc]
        """Rows of one INSERT together are not more than the server takes."""

        def __init__(self, connection: Any) -> None:
            super().__init__(connection)
            if connection.packet_bytes is not None:
                self.max_stmt_length = min(Cursor.max_stmt_length, connection.packet_bytes - 1)

    AnsweredConnection.usual_cursor = FittingCursor
    return AnsweredConnection


def connect_pymysql(limits: Limits, *args: Any, **named: Any) -> Any:
    import pymysql

    kind = _pymysql_connection()
    # The greeting and the login are waited for as long as for the connection itself.
    hello = {"connect_timeout": limits.whole_connect_s, "read_timeout": limits.whole_connect_s}
    greeting = {**named, **{name: named.get(name) or value for name, value in hello.items()}}
    greeting["read_timeout"] = min(greeting["read_timeout"], greeting["connect_timeout"])
    greeting.setdefault("write_timeout", limits.answer_s)

    def answers() -> bool:
        try:
            pymysql.connect(*args, **greeting).close()
        except pymysql.MySQLError as error:
            return error.args[:1] not in [(code,) for code in _CANNOT_CONNECT]
        return True

    connection = kind(*args, **{"cursorclass": kind.usual_cursor, **greeting})
    try:
        connection.allow(AnswerWait(limits, answers), named.get("read_timeout"))
    except BaseException:
        with suppress(pymysql.MySQLError):
            connection.close()
        raise
    return connection


CONNECTORS: dict[str, Callable[..., Any]] = {"psycopg": connect_psycopg, "pymysql": connect_pymysql}
"""By SQLAlchemy's name of a driver: takes limits, and the arguments of the driver's `connect`."""
TEXT_GIVERS: dict[str, Callable[[Any], None]] = {"psycopg": give_texts, "psycopg2": give_texts_by_psycopg2}
"""By the same name: what Python cannot hold comes as text from this connection."""


EXTRA = "sqlalchemy>=2"


class Fault(StrEnum):
    """Kinds of errors; the value goes behind the name of the database in an error's text."""

    LOST = "does not answer"
    BUSY = "failed"
    FULL = "has no space"
    READ_ONLY = "takes no writes"
    UNAVAILABLE = "did not work"
    """A code that no table has, of a class that drivers use for what passes."""
    LOGIN = "cannot be opened"
    RIGHTS = "does not allow it"
    ABSENT = "does not have it"
    SETTING = "does not take it with its settings"
    VALUE = "does not accept it"
    UNREADABLE = "has a value that the driver cannot read"
    TOO_LARGE = "cannot take it"
    DAMAGED = "is damaged"


PASSING = frozenset({Fault.LOST, Fault.BUSY, Fault.FULL, Fault.READ_ONLY, Fault.UNAVAILABLE})
"""The same call may succeed later. All others are permanent: only a person can change the cause."""

_CURES = {
    "57014": "Raise statement_timeout_s, or make batches smaller.",
    "55P03": "Another session holds a lock: let it end, or raise lock_timeout_s.",
    "1205": "Another session holds a lock: let it end, or raise lock_timeout_s.",
    "1969": "Raise statement_timeout_s, or make batches smaller.",
    "3024": "Raise statement_timeout_s, or make batches smaller.",
    "54000": "The fields of a key may have about 2,700 bytes together: group by a digest of long ones.",
    "42P05": "A pooler shares sessions, and the driver prepares statements: add the extra prepare_threshold=0.",
    "26000": "A pooler shares sessions, and the driver prepares statements: add the extra prepare_threshold=0.",
    "08P01": "If a pooler is between, use pool_mode = transaction or session, and the extras that it takes.",
    "1665": "Set binlog_format to ROW or MIXED on the server.",
    "1175": "Set sql_safe_updates to 0 on the server.",
    "1364": "A column that somebody added has neither a default nor null: give it one.",
}
_BY_KIND = {
    Fault.LOST: "Start the server, or repair the network, and run the task again.",
    Fault.BUSY: "Run the task again.",
    Fault.FULL: "Free some space on the server, and run the task again.",
    Fault.READ_ONLY: "It is a standby: name the primary, or add the extra target_session_attrs=read-write.",
    Fault.UNAVAILABLE: "Run the task again; if the error stays, correct what it names.",
    Fault.LOGIN: "Correct the connection: login, password, database, extras.",
    Fault.SETTING: "Change the setting that the server names.",
    Fault.TOO_LARGE: "Raise max_allowed_packet of the server, or keep smaller values.",
    Fault.DAMAGED: "Restore it from a backup.",
}


@dataclass(frozen=True)
class DatabaseFault:
    """`code`: of the database; "" if the error has none. `text`: the driver's words, without secrets."""

    kind: Fault
    code: str
    text: str
    cure: str

    @property
    def passes(self) -> bool:
        return self.kind in PASSING


def fault_of(error: BaseException, database: str, connection: Connection) -> DatabaseFault:
    """:param database: SQLAlchemy's name. :param error: of SQLAlchemy, of the driver, or of the network."""
    original = getattr(error, "orig", None) or error
    code, text = _code_of(original), " ".join(connection.conceal(str(original)).split())
    kind = _kind_by_code(code, database, text) or _kind_by_class(error, original, text)
    return DatabaseFault(kind, code, text, _CURES.get(code, "") or _BY_KIND.get(kind, ""))


def errors_of(dialect: sqlalchemy.Dialect | None) -> tuple[type[Exception], ...]:
    """What SQLAlchemy, the driver and the network raise, for ``except``."""
    sa: Any = require_extra("sqlalchemy", EXTRA)
    driver: Any = getattr(dialect, "dbapi", None)
    driver_errors = (driver.Error, driver.Warning) if driver is not None else ()
    return (sa.exc.SQLAlchemyError, ConnectionError, TimeoutError, UnicodeDecodeError, *driver_errors)


# ---- codes -----------------------------------------------------------------------------------------------------


def _code_of(error: BaseException) -> str:
    first = error.args[0] if error.args else None
    if isinstance(first, int) and not isinstance(error, OSError):
        return str(first)  # pymysql has an SQLSTATE, too, which says less
    for name in ("sqlstate", "pgcode", "sqlite_errorcode"):
        if (code := getattr(error, name, None)) is not None:
            return str(code)
    return ""


_MYSQL_CODES: dict[Fault, tuple[int, ...]] = {
    Fault.LOST: (
        *(1042, 1043, 1053, 1077, 1078, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 4031),
        *(2002, 2003, 2005, 2006, 2012, 2013, 2026, 2055),
    ),
    Fault.BUSY: (1037, 1038, 1040, 1041, 1047, 1203, 1205, 1206, 1213, 1226, 1317, 1614, 1637, 1969, 3024, 3572),
    Fault.FULL: (3, 1021, 1026, 1114),
    Fault.READ_ONLY: (1036, 1207, 1290, 1792, 1836),
    Fault.LOGIN: (
        *(1044, 1045, 1049, 1129, 1130, 1251, 1275, 1524, 1698, 1820, 1862, 2049, 2054, 2058, 2059, 2061, 3118),
        *(4151,),
    ),
    Fault.RIGHTS: (1142, 1143, 1227, 1370, 1410, 1419),
    Fault.ABSENT: (1051, 1054, 1091, 1109, 1146, 1305, 1356, 1932),
    Fault.SETTING: (1175, 1193, 1231, 1568, 1662, 1663, 1664, 1665, 1666, 1668, 1785, 1786, 1787),
    Fault.TOO_LARGE: (PACKET_TOO_LARGE, 1301, 2020),
    Fault.DAMAGED: (126, 127, 134, 144, 145, 1034, 1035, 1194, 1195, 1712, 1877),
    Fault.VALUE: (
        *(1048, 1052, 1055, 1056, 1060, 1062, 1064, 1066, 1071, 1111, 1118, 1136, 1140, 1149, 1222, 1235, 1241),
        *(1242, 1248, 1264, 1265, 1292, 1347, 1364, 1366, 1406, 1411),
        *(1216, 1217, 1451, 1452, 1471, 1500, 1644, 1690, 1906, 1907, 3105, 3819, 4025),
    ),
}
_POSTGRES_CODES: dict[Fault, tuple[str, ...]] = {
    Fault.SETTING: ("08P01", "42P05", "26000"),
    Fault.LOST: ("08", "57P01", "57P02", "57P03", "57P05", "40003"),
    Fault.BUSY: ("40", "53200", "53300", "55006", "55P03", "57014", "25P03", "25P04"),
    Fault.FULL: ("53100",),
    Fault.READ_ONLY: ("25006",),
    Fault.LOGIN: ("28", "3D"),
    Fault.RIGHTS: ("42501",),
    Fault.ABSENT: ("42P01", "42703", "42704", "42883", "3F"),
    Fault.TOO_LARGE: ("54",),
    Fault.DAMAGED: ("XX",),
    Fault.VALUE: ("0A", "22", "23", "27", "42", "44", "P0"),
}
_MSSQL_CODES: dict[Fault, tuple[int, ...]] = {
    Fault.LOST: (20002, 20003, 20006, 20009, 10054),
    Fault.BUSY: (701, 1204, 1205, 1222, 8645),
    Fault.FULL: (1101, 1105, 9002),
    Fault.READ_ONLY: (3906,),
    Fault.LOGIN: (4060, 18452, 18456),
    Fault.RIGHTS: (229, 230, 262),
    Fault.ABSENT: (207, 208),
    Fault.DAMAGED: (823, 824, 825),
    Fault.VALUE: (102, 245, 515, 547, 2601, 2627, 2628, 8115, 8152),
}
# Result codes of SQLite without their extensions.
_SQLITE_CODES: dict[Fault, tuple[int, ...]] = {
    Fault.BUSY: (5, 6, 9),
    Fault.RIGHTS: (3, 8, 14, 23),
    Fault.LOGIN: (26,),
    Fault.FULL: (13,),
    Fault.UNAVAILABLE: (10,),
    Fault.DAMAGED: (11,),
    Fault.TOO_LARGE: (18,),
    Fault.VALUE: (1, 19, 20, 25),
}
_STANDBY = "during recovery"


def _kind_by_code(code: str, database: str, text: str) -> Fault | None:
    if database == "postgresql" or (len(code) == 5 and not code.isdigit()):
        if code.startswith("0A") and _STANDBY in text:
            return Fault.READ_ONLY
        longest = [
            (len(begin), kind)
            for kind, begins in _POSTGRES_CODES.items()
            for begin in begins
            if code and code.startswith(begin)
        ]
        return max(longest, key=lambda pair: pair[0])[1] if longest else None
    if not code.isdigit():
        return None
    number, tables = int(code), {"mssql": _MSSQL_CODES, "sqlite": _SQLITE_CODES}
    table = _MYSQL_CODES if database in MYSQL else tables.get(database, {})
    number &= 0xFF if database == "sqlite" else -1
    return next((kind for kind, codes in table.items() if number in codes), None)


# ---- without a code that is known ------------------------------------------------------------------------------

_REFUSED_LOGIN = (
    *("authentication failed", "no password supplied", "pg_hba.conf", "Login failed", "Access denied"),
    # libpq, and a server about libpq's `options`: the errors have no code
    *("invalid connection option", "invalid command-line argument", "unrecognized configuration parameter"),
    *("invalid value for parameter", "invalid integer value", "bad value for", "definition of service"),
    *("invalid sslmode value", "invalid target_session_attrs value"),
)
_MISSING = ("does not exist", "no such table")
_POOLER = ("prepared statement", "unsupported startup parameter")


def _kind_by_class(error: BaseException, original: BaseException, text: str) -> Fault:
    """By the classes that every driver has (PEP 249), and by the words of a login that failed."""
    if any(words in text for words in _REFUSED_LOGIN):
        return Fault.LOGIN
    if any(words in text for words in _POOLER):
        return Fault.SETTING
    kinds = {kind.__name__ for kind in (*type(error).__mro__, *type(original).__mro__)}
    if "OperationalError" in kinds and any(words in text for words in (*_MISSING, "permission denied")):
        return Fault.LOGIN
    if kinds & {"DataError", "ProgrammingError", "NotSupportedError", "UnicodeDecodeError"}:
        return Fault.UNREADABLE
    if kinds & {"IntegrityError", "ArgumentError", "CompileError", "NoSuchTableError"}:
        return Fault.VALUE
    if kinds & {"ConnectionError", "TimeoutError", "InterfaceError", "OperationalError"}:
        return Fault.LOST
    # SQLAlchemy's own error around what a value's conversion raised
    return Fault.VALUE if "StatementError" in kinds and "DBAPIError" not in kinds else Fault.UNAVAILABLE
