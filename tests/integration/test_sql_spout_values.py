"""Values that a column has and Python or the declared type has not: one error that names key and column, never another
value. And databases behind a pooler, or fed by a subscription."""

from __future__ import annotations

import datetime
import math
import random
import sqlite3
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_trident.contracts.state import Applied
from airflow_trident.errors import ConfigurationError, DamagedInputError, SourceChangedError
from airflow_trident.io.connections import Connection
from airflow_trident.spouts import sql
from airflow_trident.spouts.sql import SqlSpout
from airflow_trident.states.sql.postgres import PostgresState
from airflow_trident.states.sql.sqlalchemy_state import SqlState
from airflow_trident.types import INTERVAL
from tests.fixtures.mariadb import MariaDbServer
from tests.fixtures.pgbouncer import pooled
from tests.fixtures.postgres import PostgresServer, postgres_state, sql_state
from tests.fixtures.state import batch, content, counts, ticket
from tests.integration.test_sql_spout import read

POSTGRES = {
    "date": ["infinity", "-infinity", "0044-03-15 BC", "20000-01-01"],
    "timestamp": ["infinity", "0044-03-15 00:00 BC", "20000-01-01 00:00"],
    "timestamptz": ["-infinity", "0044-03-15 00:00 BC", "20000-01-01 00:00", "9999-12-31 23:00-12"],
    "time": ["24:00"],
    "interval": ["170000000 years", "1 month", "1 year -1 day", "-1 mons 00:00:01"],
    "float8": ["1e300", "0.1", "16777217", "1e-60"],
    "numeric": ["1.005", "NaN"],
    "int8": ["40000"],
}
DECLARED = {
    "timestamptz": "timestamp",
    "interval": INTERVAL,
    "float8": "float",
    "numeric": "decimal(10,2)",
    "int8": "short",
}
CASES = [(kind, text) for kind, texts in POSTGRES.items() for text in texts]


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.parametrize(("kind", "text"), CASES)
def test_a_value_of_postgres_that_does_not_fit_is_named_by_column_and_key(
    postgres: PostgresServer, kind: str, text: str, driver: str
) -> None:
    where = replace(postgres.connection, extra={"sqlalchemy_scheme": f"postgresql+{driver}"})
    query = f"SELECT 7 AS id, CAST('{text}' AS {kind}) AS v UNION ALL SELECT 8, NULL"
    fields = f"id long, v {DECLARED.get(kind, kind)}"
    one = SqlSpout("db", query=query, fields=fields, settle_s=0.0, connection=where, splits=1)
    with pytest.raises(DamagedInputError, match=r"'?v'?\b.*key 7\b|key 7\b.*'?v'?\b"):
        read(one, one.coordinator().initialize_transaction(1, None))


def maria_spout(mariadb: MariaDbServer, query: str, fields: str) -> SqlSpout:
    return SqlSpout("db", query=query, fields=fields, settle_s=0.0, connection=mariadb.connection, splits=1)


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ("id long, v time", "CAST('25:00:00' AS TIME)"),
        ("id long, v time", "CAST('-01:00:00' AS TIME)"),
        ("id long, v time", "CAST('838:59:59' AS TIME)"),
        ("id long, v boolean", "CAST(2 AS INT)"),
        ("id long, v float", "CAST(1e300 AS DOUBLE)"),
        ("id long, v short", "40000"),
        ("id long, v long", "CAST(18446744073709551615 AS UNSIGNED)"),
    ],
)
def test_a_value_of_mariadb_that_does_not_fit_is_named_by_column_and_key(
    mariadb: MariaDbServer, fields: str, value: str
) -> None:
    one = maria_spout(mariadb, f"SELECT 7 AS id, {value} AS v", fields)
    with pytest.raises(DamagedInputError, match=r"'?v'?\b.*key 7\b|key 7\b.*'?v'?\b"):
        read(one, one.coordinator().initialize_transaction(1, None))


def test_dates_that_mariadb_has_and_a_calendar_has_not_are_named(mariadb: MariaDbServer) -> None:
    database = "calendars"
    mariadb.run(
        f"CREATE OR REPLACE DATABASE {database}",
        f"CREATE TABLE {database}.t (id int, at datetime)",
        "SET sql_mode = ''",
        f"INSERT INTO {database}.t VALUES (7, '0000-00-00 00:00:00')",
    )
    where = replace(mariadb.connection, schema=database)
    one = SqlSpout("db", table="t", fields="id long, at timestamp", settle_s=0.0, connection=where)
    with pytest.raises(DamagedInputError, match=r"at.*key 7|key 7.*at"):
        read(one, one.coordinator().initialize_transaction(1, None))


def test_values_of_mariadb_come_as_they_are(mariadb: MariaDbServer) -> None:
    query = (
        "SELECT 1 AS id, TRUE AS yes, FALSE AS no, b'1' AS bit, CAST('23:59:59.999999' AS TIME(6)) AS clock, "
        "CAST('00:00' AS TIME) AS midnight, 'a:b' AS colon, 1e10 AS x"
    )
    fields = "id long, yes boolean, no boolean, bit boolean, clock time, midnight time, colon string, x double"
    one = maria_spout(mariadb, query, fields)
    (row,) = read(one, one.coordinator().initialize_transaction(1, None))
    assert list(row.values()) == [
        *(1, True, False, True),
        *(datetime.time(23, 59, 59, 999999), datetime.time(0), "a:b", 1e10),
    ]


@pytest.mark.parametrize("end", [";", " -- the end", " ; ", " --"])
@pytest.mark.parametrize("server", ["postgres", "mariadb"])
def test_a_query_may_end_in_a_semicolon_or_a_comment(request: pytest.FixtureRequest, server: str, end: str) -> None:
    where = request.getfixturevalue(server).connection
    one = SqlSpout("db", query=f"SELECT 7 AS id{end}", fields="id long", settle_s=0.0, connection=where)
    assert read(one, one.coordinator().initialize_transaction(1, None)) == [{"id": 7}]


def test_a_float_of_mariadb_is_read_with_all_its_digits(mariadb: MariaDbServer) -> None:
    """The server writes six digits of it as text."""
    database = "floats"
    draw = random.Random(20)
    numbers = [
        struct.unpack("f", struct.pack("f", draw.uniform(-1, 1) * 10.0 ** draw.randint(-30, 30)))[0] for _ in range(200)
    ]
    mariadb.run(
        f"CREATE OR REPLACE DATABASE {database}",
        f"CREATE TABLE {database}.t (id int, x float, y float, z double)",
        f"INSERT INTO {database}.t VALUES "
        + ", ".join(f"({id_}, {x!r}, {x!r}, {x!r})" for id_, x in enumerate(numbers)),
    )
    where = replace(mariadb.connection, schema=database)
    fields = "id long, x float, y double, z double"
    one = SqlSpout("db", table="t", fields=fields, settle_s=0.0, connection=where, splits=1)
    rows = read(one, one.coordinator().initialize_transaction(1, None))
    assert [tuple(row.values()) for row in rows] == [(id_, x, x, x) for id_, x in enumerate(numbers)]


@pytest.mark.parametrize("server", ["postgres", "mariadb", "sqlite"])
def test_a_double_is_a_float_only_if_that_is_the_same_number(
    request: pytest.FixtureRequest, tmp_path: Path, server: str
) -> None:
    where = (
        Connection(conn_type="sqlite", host=str(tmp_path / "d.db"))
        if server == "sqlite"
        else request.getfixturevalue(server).connection
    )
    draw = random.Random(35)
    for _ in range(20):
        number = draw.uniform(-1, 1) * 10.0 ** draw.randint(-30, 30)
        if draw.random() < 0.5:
            (number,) = struct.unpack("f", struct.pack("f", number))
        is_single = struct.unpack("f", struct.pack("f", number)) == (number,)
        cast = {"postgres": f"CAST('{number!r}' AS float8)", "mariadb": f"{number!r} * 1e0", "sqlite": repr(number)}
        query = f"SELECT 7 AS id, {cast[server]} AS v"
        one = SqlSpout("db", query=query, fields="id long, v float", settle_s=0.0, connection=where, splits=1)
        metadata = one.coordinator().initialize_transaction(1, None)
        if is_single:
            assert read(one, metadata) == [{"id": 7, "v": number}]
        else:
            with pytest.raises(DamagedInputError, match=r"'v', where float is declared.*key 7"):
                read(one, metadata)


# ---- extras of a connection ------------------------------------------------------------------------------------

EXTRAS = {
    **dict.fromkeys(("prepare_threshold", "autocommit", "row_factory", "cursor_factory", "context"), "1"),
    "cursorclass": "x",
    "conv": "x",
    "use_unicode": "0",
    "defer_connect": "1",
    "client_encoding": "SQL_ASCII",
}
CONNECTED = {"psycopg": "postgres", "psycopg2": "postgres", "pymysql": "mariadb"}


@pytest.mark.parametrize("driver", CONNECTED)
def test_no_extra_changes_how_a_driver_sends_and_reads(
    driver: str, request: pytest.FixtureRequest, tmp_path: Path, postgres: PostgresServer
) -> None:
    where = request.getfixturevalue(CONNECTED[driver]).connection
    scheme = {"sqlalchemy_scheme": f"postgresql+{driver}"} if where.conn_type == "postgres" else {}
    where = replace(where, extra={**EXTRAS, **scheme})
    one = SqlSpout("db", query="SELECT 7 AS id, 'é€' AS v", fields="v string", settle_s=0.0, connection=where)
    assert read(one, one.coordinator().initialize_transaction(1, None)) == [{"v": "é€"}]
    if driver == "psycopg":
        direct = counts(postgres_state(tmp_path))
        with replace(direct.factory, connection=where).make_state(direct) as state:
            state.apply(ticket(1), batch(direct, ("é€", 1)))
            assert content(state) == {("é€",): (1,)}


@pytest.mark.parametrize(
    ("server", "extra"),
    [
        *(("postgres", extra) for extra in ({"nonsense": 1}, {"sslmode": "x"}, {"options": "-c nonsense=1"})),
        *(("postgres", extra) for extra in ({"connect_timeout": "x"}, {"service": "x"})),
        *(("mariadb", extra) for extra in ({"nonsense": 1}, {"read_timeout": "x"}, {"port": "1"}, {"compress": "1"})),
        *(("mariadb", extra) for extra in ({"ssl": {"ca": "/nowhere"}}, {"init_command": "SET nonsense = 1"})),
    ],
)
def test_an_extra_that_a_driver_does_not_take_is_an_error_of_the_connection(
    request: pytest.FixtureRequest, server: str, extra: dict[str, Any]
) -> None:
    where = replace(request.getfixturevalue(server).connection, extra=extra)
    one = SqlSpout("db", query="SELECT 7 AS id", fields="id long", settle_s=0.0, connection=where)
    with pytest.raises(ConfigurationError):
        one.coordinator().initialize_transaction(1, None)
    spec = counts(PostgresState("db", connection=where) if server == "postgres" else SqlState("db", connection=where))
    with pytest.raises(ConfigurationError):
        spec.factory.make_state(spec)


def test_a_colon_in_a_query_is_a_colon(postgres: PostgresServer) -> None:
    query = "SELECT 1::bigint AS id, ' :id :x \\: %(y)s 50%' AS v WHERE '{\"a\": 1}'::jsonb ->> 'a' = '1'"
    one = SqlSpout("db", query=query, fields="id long, v string", settle_s=0.0, connection=postgres.connection)
    (row,) = read(one, one.coordinator().initialize_transaction(1, None))
    assert row["v"].replace("\\", "") == " :id :x : %(y)s 50%"


@pytest.mark.parametrize("digits", [-15, 0])
def test_a_double_is_read_as_it_is_whatever_the_role_prefers(postgres: PostgresServer, digits: int) -> None:
    where = replace(postgres.connection, extra={"options": f"-c extra_float_digits={digits} -c DateStyle=German"})
    query = "SELECT 1 AS id, 0.1::float8 + 0.2::float8 AS x, TIMESTAMPTZ '2024-02-29 12:00+01' AS at"
    one = SqlSpout("db", query=query, fields="x double, at timestamp", settle_s=0.0, connection=where)
    (row,) = read(one, one.coordinator().initialize_transaction(1, None))
    assert row == {"x": 0.1 + 0.2, "at": datetime.datetime(2024, 2, 29, 11, tzinfo=datetime.UTC)}
    assert math.isclose(row["x"], 0.3)


@pytest.mark.parametrize(("kind", "text"), [("timestamp", "2024-01-01 12:00:00.1234567"), ("time", "12:00:00,0000001")])
def test_digits_of_a_text_in_sqlite_that_a_type_cannot_hold_are_not_dropped(
    tmp_path: Path, kind: str, text: str
) -> None:
    where = Connection(conn_type="sqlite", host=str(tmp_path / "rows.db"))
    one = SqlSpout("db", query=f"SELECT 7 AS id, '{text}' AS v", fields=f"id long, v {kind}", connection=where)
    with pytest.raises(DamagedInputError, match=rf"holds '{text}'.*key 7"):
        read(one, one.coordinator().initialize_transaction(1, None))


def test_zeros_behind_the_microseconds_of_a_text_in_sqlite_are_none_of_its_digits(tmp_path: Path) -> None:
    where = Connection(conn_type="sqlite", host=str(tmp_path / "rows.db"))
    query = "SELECT 7 AS id, '2024-02-29 12:00:00.1234560' AS v"
    one = SqlSpout("db", query=query, fields="id long, v timestamp", connection=where)
    (row,) = read(one, one.coordinator().initialize_transaction(1, None))
    assert row["v"] == datetime.datetime(2024, 2, 29, 12, 0, 0, 123456, datetime.UTC)


def test_a_row_below_the_first_range_that_comes_late_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"

    def add(*keys: int) -> None:
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS t (id integer)")
            connection.executemany("INSERT INTO t VALUES (?)", [(key,) for key in keys])
        connection.close()

    add(5, 6)
    one = SqlSpout("db", table="t", fields="id long", connection=Connection(conn_type="sqlite", host=str(path)))
    first = one.coordinator().initialize_transaction(1, None)
    assert first == {"from": None, "to": 6, "rows": 2}
    add(2, 9)
    with pytest.raises(SourceChangedError, match=r"1 rows of .* came with keys up to 6"):
        one.coordinator().initialize_transaction(2, first)
    # what a version before recorded
    earlier = {"from": 4, "to": 6, "rows": 2}
    assert one.coordinator().initialize_transaction(2, earlier) == {"from": 6, "to": 9, "rows": 1}
    assert [row["id"] for row in read(one, earlier)] == [5, 6]


# ---- behind a pooler -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pooler(postgres: PostgresServer) -> Iterator[Connection]:
    with pooled(postgres.connection) as where:
        yield where


@pytest.mark.parametrize("make", [postgres_state, sql_state])
def test_a_state_behind_a_pooler_that_shares_transactions_works(
    tmp_path: Path, pooler: Connection, make: Any, postgres: PostgresServer
) -> None:
    direct = counts(make(tmp_path))
    direct.factory.make_state(direct).close()
    spec = counts(replace(make(tmp_path), connection=pooler))
    with spec.factory.make_state(spec) as one, spec.factory.make_state(spec) as other:
        # more often than a driver waits before it prepares a statement
        for txid in range(1, 15):
            assert (one, other)[txid % 2].apply(ticket(txid), batch(spec, ("a", 1), ("b", txid))) is Applied.APPLIED
        assert content(other)[("a",)] == (14,)


def test_a_spout_leaves_no_setting_in_a_connection_that_others_share(
    pooler: Connection, postgres: PostgresServer
) -> None:
    import psycopg

    names = ("lock_timeout", "statement_timeout", "TimeZone", "DateStyle", "extra_float_digits")
    shown = "SELECT " + ", ".join(f"current_setting('{name}')" for name in names)

    def settings() -> Any:
        at = pooler
        with psycopg.connect(
            host=at.host, port=at.port, dbname=at.schema, user=at.login, password=at.password, prepare_threshold=None
        ) as connection:
            return connection.execute(shown.encode()).fetchone()

    before = settings()
    query = "SELECT g AS id FROM generate_series(1, 50) g"
    limits = {"lock_timeout_s": 3, "statement_timeout_s": 4}
    one = SqlSpout("db", query=query, fields="id long", settle_s=0.0, connection=pooler, **limits)
    assert len(read(one, one.coordinator().initialize_transaction(1, None))) == 50
    assert settings() == before


# ---- fed by a subscription -------------------------------------------------------------------------------------


def test_of_a_table_that_a_subscription_fills_the_time_is_waited(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writers of the publisher cannot be seen here."""
    slept: list[float] = []
    import time

    monkeypatch.setattr(sql, "time", SimpleNamespace(monotonic=time.monotonic, sleep=slept.append))
    with postgres.connect() as connection:
        connection.execute("DROP TABLE IF EXISTS subscribed")
        connection.execute("CREATE TABLE subscribed (id bigint)")
        connection.execute("INSERT INTO subscribed VALUES (1)")
        connection.execute(
            "CREATE SUBSCRIPTION fills CONNECTION 'host=nowhere.invalid dbname=x' PUBLICATION p "
            "WITH (connect = false, slot_name = NONE, enabled = false)"
        )
        # as ALTER SUBSCRIPTION ... REFRESH would, with a publisher
        connection.execute("SET allow_system_table_mods = on")
        connection.execute(
            "INSERT INTO pg_subscription_rel (srsubid, srrelid, srsubstate) "
            "SELECT oid, CAST('subscribed' AS regclass), 'r' FROM pg_subscription WHERE subname = 'fills'"
        )
        try:
            one = SqlSpout("db", table="subscribed", fields="id long", settle_s=7.5, connection=postgres.connection)
            assert one.coordinator().initialize_transaction(1, None) == {"from": None, "to": 1, "rows": 1}
        finally:
            connection.execute("DELETE FROM pg_subscription_rel")
            connection.execute("DROP SUBSCRIPTION fills")
    assert slept == [7.5]


def test_a_pooler_of_statements_is_refused_with_its_setting() -> None:
    from airflow_trident.io.database_drivers import Fault, fault_of

    class Refused(Exception):
        sqlstate = "08P01"

    fault = fault_of(Refused("transaction blocks not allowed"), "postgresql", Connection())
    assert (fault.kind, fault.passes) == (Fault.SETTING, False)
    assert "pool_mode" in fault.cure
