"""Connections of Python drivers that end when their server is silent, and give values that Python cannot hold as text.

A server answers within the limit of a statement, and a little later if it ends the statement itself. It may be silent
much earlier: stopped, or behind a network that swallows packets. So while an answer is due, a second connection is
opened from time to time. A server that does not answer it either is silent.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow_trident.io.database_limits import Limits

if TYPE_CHECKING:
    import psycopg

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


def give_texts(connection: psycopg.Connection[Any]) -> None:
    """Dates, times and intervals that Python has not, such as infinity, year 20000, or 24:00, come as their text."""
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

    adapters = connection.adapters
    usual: dict[int, Any] = {}
    for name in ("date", "time", "timestamp", "timestamptz", "interval"):
        oid = adapters.types[name].oid
        usual[oid] = adapters.get_loader(oid, psycopg.pq.Format.TEXT)
        adapters.register_loader(oid, TextIfNeeded)


# ---- psycopg2 --------------------------------------------------------------------------------------------------


def give_texts_by_psycopg2(raw: Any) -> None:
    """As :func:`give_texts`. The driver would give the largest date for infinity, and midnight for 24:00."""
    from psycopg2 import extensions

    def caster(exact: Any) -> Callable[[str | None, Any], Any]:
        def cast(text: str | None, cursor: Any) -> Any:
            if text is None or "infinity" in text or text.startswith("24:"):
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
