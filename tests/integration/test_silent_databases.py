"""Databases that fall silent, and errors of drivers wherever they are raised: each client has a deadline, and each
error is one of ours."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from airflow_trident.contracts.state import Applied, StateFactory
from airflow_trident.errors import (
    ConfigurationError,
    OutcomeUnknownError,
    SourceUnavailableError,
    StoreUnavailableError,
    TridentError,
)
from airflow_trident.io import database_drivers, sql
from airflow_trident.io.connections import Connection
from airflow_trident.operations.aggregators import Max
from airflow_trident.spouts.sql import SqlSpout
from airflow_trident.states.sql.postgres import PostgresState
from airflow_trident.states.sql.sqlalchemy_state import SqlState
from airflow_trident.states.sql.sqlite import SqliteState
from tests.faults.silent import SilentProxy
from tests.fixtures import mariadb as maria
from tests.fixtures.mariadb import MariaDbServer, mariadb_state
from tests.fixtures.postgres import CONN_ID, postgres_state, running, sql_state
from tests.fixtures.state import batch, combined, content, counts, ticket

SHORT = {"connect_timeout_s": 1.0, "lock_timeout_s": 0.5, "statement_timeout_s": 1.0}
STATES: dict[str, Callable[..., StateFactory]] = {
    "postgres": postgres_state,
    "sqlalchemy on postgres": sql_state,
    "mariadb": mariadb_state,
}


def server_of(kind: str) -> Connection:
    return maria.running().connection if kind == "mariadb" else running().connection


def through(proxy: SilentProxy, kind: str) -> Connection:
    extra = {} if kind == "mariadb" else {"sslmode": "disable", "gssencmode": "disable"}
    return replace(server_of(kind), port=proxy.port, extra=extra)


@pytest.fixture
def proxy(request: pytest.FixtureRequest) -> Iterator[SilentProxy]:
    with SilentProxy(f"127.0.0.1:{server_of(request.getfixturevalue('kind')).port}") as made:
        yield made


@pytest.mark.parametrize("kind", STATES)
def test_a_commit_in_a_silent_database_ends_and_is_run_again(tmp_path: Path, kind: str, proxy: SilentProxy) -> None:
    direct = counts(STATES[kind](tmp_path))
    with direct.factory.make_state(direct) as state:
        state.apply(ticket(1), batch(direct, ("a", 1)))
    spec = counts(replace(direct.factory, connection=through(proxy, kind), **SHORT))
    with spec.factory.make_state(spec) as state:
        assert state.get_many([("a",)]) == [(1,)]
        proxy.hush_at = b"INSERT INTO"
        with pytest.raises(StoreUnavailableError, match="Nothing was applied"):
            state.apply(ticket(2), batch(spec, ("a", 1)))
        with pytest.raises(StoreUnavailableError):  # a new connection, or one that is gone
            state.marker()
    with pytest.raises(StoreUnavailableError):
        spec.factory.make_state(spec)
    with direct.factory.make_state(direct) as state:
        assert state.apply(ticket(2), batch(direct, ("a", 1))) is Applied.APPLIED
        assert content(state) == {("a",): (2,)}


@pytest.mark.parametrize("kind", ["postgres", "sqlalchemy on postgres"])
def test_of_a_commit_that_a_silent_database_has_got_nobody_knows_the_outcome(
    tmp_path: Path, kind: str, proxy: SilentProxy
) -> None:
    STATES[kind](tmp_path).make_state(counts(STATES[kind](tmp_path))).close()
    spec = counts(replace(STATES[kind](tmp_path), connection=through(proxy, kind), **SHORT))
    with spec.factory.make_state(spec) as state:
        proxy.hush_at = b"COMMIT\0"
        with pytest.raises(OutcomeUnknownError):
            state.apply(ticket(2), batch(spec, ("a", 1)))


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_silent_source_ends_the_look_for_new_rows(kind: str, proxy: SilentProxy) -> None:
    query = "SELECT 1 AS id"
    one = SqlSpout("db", query=query, fields="id long", settle_s=0.0, connection=through(proxy, kind), **SHORT)
    assert one.coordinator().is_ready(None)
    proxy.hush_at = b"SELECT 1 AS id"
    for _ in range(2):
        with pytest.raises(SourceUnavailableError, match="cannot be read"):
            one.coordinator().is_ready(None)


@pytest.mark.parametrize("kind", ["sqlalchemy on postgres", "mariadb"])
def test_a_server_that_takes_no_other_connection_is_silent_long_before_the_limit_of_a_statement(
    tmp_path: Path, kind: str, proxy: SilentProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_drivers, "_LOOK_EVERY_S", 0.2)
    STATES[kind](tmp_path).make_state(counts(STATES[kind](tmp_path))).close()
    limits = {**SHORT, "connect_timeout_s": 2.0, "statement_timeout_s": 3600.0}
    spec = counts(replace(STATES[kind](tmp_path), connection=through(proxy, kind), **limits))
    with spec.factory.make_state(spec) as state:
        proxy.hush_at = b"INSERT INTO"
        with pytest.raises(StoreUnavailableError, match="took no other connection"):
            state.apply(ticket(2), batch(spec, ("a", 1)))


def test_a_stopped_server_is_noticed_before_and_behind_the_connection(tmp_path: Path, mariadb: MariaDbServer) -> None:
    spec = counts(replace(mariadb_state(tmp_path), **SHORT))
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 1)))
        mariadb.send(signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnavailableError):
                state.apply(ticket(2), batch(spec, ("a", 1)))
            with pytest.raises(StoreUnavailableError):
                spec.factory.make_state(spec)
        finally:
            mariadb.send(signal.SIGCONT)
        assert state.apply(ticket(2), batch(spec, ("a", 1))) is Applied.APPLIED


def test_who_alters_a_table_is_waited_for_only_so_long(tmp_path: Path) -> None:
    limits = {**SHORT, "statement_timeout_s": 5.0}
    spec = counts(replace(mariadb_state(tmp_path), **limits))
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 1)))
        with maria.running().connect(database=spec.factory.schema) as other, other.cursor() as cursor:
            cursor.execute("LOCK TABLES words_counts WRITE, trident_jdbc_applied WRITE")
            for ask in (
                lambda: state.apply(ticket(2), batch(spec, ("a", 1))),
                lambda: state.get_many([("a",)]),
                lambda: spec.factory.make_state(spec),
            ):
                with pytest.raises(StoreUnavailableError, match="lock_timeout_s"):
                    ask()
    where = running()
    plain = counts(postgres_state(tmp_path, **limits))
    with plain.factory.make_state(plain) as state, where.connect() as other, other.transaction():
        schema = plain.factory.schema
        other.execute(f"LOCK TABLE {schema}.words_counts, {schema}.trident_applied".encode())
        for ask in (lambda: state.get_many([("a",)]), state.marker, lambda: plain.factory.make_state(plain)):
            with pytest.raises(StoreUnavailableError, match="lock_timeout_s"):
                ask()


# ---- every call of a driver ------------------------------------------------------------------------------------


class Raises:
    """The call number `at` of a driver raises `error`; `calls` counts."""

    def __init__(self, at: int, error: Callable[[], Exception]) -> None:
        self.at, self.error, self.calls = at, error, 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == self.at:
            raise self.error()


class Watched:
    """An object of a driver, whose methods tell `raises` before they are called."""

    def __init__(self, inner: Any, raises: Raises) -> None:
        self.__dict__.update(inner=inner, raises=raises)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found) or name in ("close", "create_function"):
            return found

        def call(*args: Any, **named: Any) -> Any:
            self.raises()
            made = found(*args, **named)
            return Watched(made, self.raises) if isinstance(made, sqlite3.Cursor) else made

        return call

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.inner)


def use(factory: StateFactory) -> None:
    """All that is done with a state."""
    spec = replace(counts(factory), opaque=True)
    with factory.make_state(spec) as state:
        for attempt in range(2):
            state.apply(ticket(1, attempt=attempt), batch(spec, ("a", 1), ("b", 2)))
        state.get_many([("a",)])
        assert content(state) == {("a",): (1,), ("b",): (2,)}
        assert state.marker() is not None


def walk(play: Callable[[], None], arm: Callable[[Raises], None], error: Callable[[], Exception], step: int) -> int:
    """Play with an error at every `step`-th call until no call is left; how many errors there were."""
    for count, at in enumerate(range(1, 10_000, step)):
        raises = Raises(at, error)
        arm(raises)
        try:
            play()
        except TridentError:
            pass
        else:
            # An error in what ends a connection, or in a look whether it is alive, may be of no consequence.
            if raises.calls < at:
                return count
    raise AssertionError("it never ends")


def test_an_error_of_the_driver_is_one_of_ours_whichever_call_raises_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    armed: list[Raises] = []

    def connect(_limits: Any, *args: Any, **named: Any) -> Any:
        return Watched(sqlite3.connect(*args, **named), armed[-1])

    monkeypatch.setitem(sql.CONNECTORS, "pysqlite", connect)
    number = iter(range(10_000))

    def play() -> None:
        where = Connection(conn_type="sqlite", host=str(tmp_path / f"{next(number)}.db"))
        use(SqlState("db", connection=where))

    assert walk(play, armed.append, lambda: sqlite3.OperationalError("no"), 3) > 10


def test_an_error_of_pymysql_is_one_of_ours_also_where_sqlalchemy_does_not_look(
    tmp_path: Path, mariadb: MariaDbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A permanent error and a lost connection in turn."""
    kinds = cycle([(1142, "denied"), (2013, "lost")])

    def error() -> Exception:
        return pymysql.err.OperationalError(*next(kinds))

    kind = database_drivers._pymysql_connection()
    armed: list[Raises] = []
    plain = kind._execute_command

    def watched(self: Any, command: Any, statement: Any) -> Any:
        armed[-1]()
        return plain(self, command, statement)

    monkeypatch.setattr(kind, "_execute_command", watched)
    number = iter(range(10_000))

    def play() -> None:
        use(mariadb_state(tmp_path / str(next(number))))

    assert walk(play, armed.append, error, 9) > 5
    where = mariadb.connection

    def read() -> None:
        one = SqlSpout("db", query="SELECT 1 AS id", fields="id long", settle_s=0.0, connection=where)
        metadata = one.coordinator().initialize_transaction(1, None)
        assert [list(one.emitter().read(split)) for split in one.emitter().splits(metadata)]

    assert walk(read, armed.append, error, 1) > 10


# SQLAlchemy drops a connection whose first statements failed, without closing it; psycopg warns then.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_error_of_psycopg_is_one_of_ours_whatever_waits_for_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = database_drivers._psycopg_connection()
    running()
    armed: list[Raises] = []
    plain = kind.wait

    def watched(self: Any, *args: Any, **named: Any) -> Any:
        armed[-1]()
        return plain(self, *args, **named)

    monkeypatch.setattr(kind, "wait", watched)
    number = iter(range(10_000))
    for kind_of_state, step in ((PostgresState, 9), (SqlState, 13)):

        def play(made: Any = kind_of_state) -> None:
            schema = f"walked_{made.__name__}_{next(number)}".lower()
            with running().connect() as connection:  # by a connection that nothing watches
                connection.execute(f"CREATE SCHEMA {schema}".encode())
            use(made(CONN_ID, schema=schema))

        assert walk(play, armed.append, lambda: psycopg.OperationalError("no"), step) > 3


def test_a_permanent_error_is_not_retried(tmp_path: Path, mariadb: MariaDbServer) -> None:
    """1142, 1049, 1054, 1364: pymysql calls all of them OperationalError."""
    spec = counts(mariadb_state(tmp_path))
    database = spec.factory.schema
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 1)))
        for statement, says in (
            ("ALTER TABLE words_counts ADD more int NOT NULL", r"more.*default"),
            ("ALTER TABLE words_counts CHANGE n m bigint", r"Unknown column"),
        ):
            mariadb.run(statement, database=database)
            with pytest.raises(ConfigurationError, match=says):
                state.apply(ticket(2), batch(spec, ("b", 1)))
    mariadb.run("CREATE OR REPLACE USER poor IDENTIFIED BY 'reading'", f"GRANT SELECT ON `{database}`.* TO poor")
    poor = replace(mariadb.connection, login="poor", password="reading")
    other = counts(replace(mariadb_state(tmp_path), connection=poor), name="other")
    with pytest.raises(ConfigurationError, match="denied"):
        other.factory.make_state(other)
    nowhere = counts(replace(mariadb_state(tmp_path), connection=replace(mariadb.connection, schema="nowhere")))
    with pytest.raises(ConfigurationError, match="nowhere"):
        nowhere.factory.make_state(nowhere)
    spout = SqlSpout("db", query="SELECT nothing AS id", fields="id long", connection=mariadb.connection)
    with pytest.raises(ConfigurationError, match="nothing"):
        spout.coordinator().is_ready(None)


# ---- sizes -----------------------------------------------------------------------------------------------------


def test_a_value_above_what_a_server_takes_is_refused_and_names_the_setting(
    tmp_path: Path, mariadb: MariaDbServer
) -> None:
    spec = combined(mariadb_state(tmp_path), "k long", "text string", Max())
    mariadb.run("SET GLOBAL max_allowed_packet = 1048576")
    try:
        with spec.factory.make_state(spec) as state:
            # together they are many times a packet, each of them is not
            rows = [(number, "x'\\" * 100_000) for number in range(12)]
            state.apply(ticket(1), batch(spec, *rows))
            assert content(state) == {(key,): (text,) for key, text in rows}
            with pytest.raises(ConfigurationError, match=r"max_allowed_packet of the server.*Nothing was applied"):
                state.apply(ticket(2), batch(spec, (99, "y" * 2_000_000)))
            assert state.apply(ticket(2), batch(spec, (99, "y"))) is Applied.APPLIED
    finally:
        mariadb.run("SET GLOBAL max_allowed_packet = 16777216")


def on_sqlite(folder: Path) -> SqliteState:
    return SqliteState(str(folder / "states.db"))


@pytest.mark.parametrize("rows", [10_000, pytest.param(200_000, marks=pytest.mark.rare)])
@pytest.mark.parametrize("make", [*STATES.values(), on_sqlite])
def test_a_batch_above_every_buffer_is_whole(tmp_path: Path, make: Callable[..., StateFactory], rows: int) -> None:
    spec = combined(make(tmp_path), "k long", "text string, b binary", Max(), Max())
    escaped = "\\'\"\n" * 1_000_000
    large = [(-1, "é" * 2_500_000, None), (-2, None, bytes(range(256)) * 20_000), (-3, escaped, b"\\'" * 9)]
    small = [(number, f"t{number}", None) for number in range(rows)]
    with spec.factory.make_state(spec) as state:
        for txid in (1, 2):
            state.apply(ticket(txid), batch(spec, *large, *small))
        assert state.get_many([(key,) for key, *_ in large]) == [tuple(values) for _, *values in large]
        assert state.count() == rows + len(large)
