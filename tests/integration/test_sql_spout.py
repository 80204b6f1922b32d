"""New rows of a table as batches: who commits late, what is refused, and that no secret shows."""

from __future__ import annotations

import datetime
import pickle
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from airflow_trident.errors import (
    ConfigurationError,
    DamagedInputError,
    SourceChangedError,
    SourceUnavailableError,
)
from airflow_trident.io.connections import Connection
from airflow_trident.io.database_limits import Limits
from airflow_trident.spouts.sql import SqlSpout
from airflow_trident.types import Json
from tests.fixtures.postgres import CONN_ID, PASSWORD, PostgresServer

FIELDS = (
    "id long, name string, amount decimal(10,2), at timestamp, ok boolean, data binary, x double, "
    "clock time, took interval day to second"
)


@pytest.fixture
def orders(postgres: PostgresServer, tmp_path: Path) -> str:
    name = f"orders_{abs(hash(str(tmp_path)))}"
    with postgres.connect() as connection:
        run(
            connection,
            f"CREATE TABLE {name} (id bigint GENERATED ALWAYS AS IDENTITY, name text, amount numeric(10,2), "
            "at timestamptz, ok boolean, data bytea, x double precision, clock time, took interval)",
        )
    return name


def run(connection: psycopg.Connection[Any], statement: str) -> None:
    connection.execute(statement.encode())


def insert(connection: psycopg.Connection[Any], table: str, *names: str) -> None:
    for name in names:
        run(
            connection,
            f"INSERT INTO {table} (name, amount, at, ok, data, x, clock, took) VALUES "
            f"('{name}', 1.50, '2024-01-01 12:00:00+01', true, '\\x00ff', 'NaN', "
            "'12:30', '1 day -5 microseconds')",
        )


def spout(table: str, **options: Any) -> SqlSpout:
    return SqlSpout(CONN_ID, table=table, **{"fields": FIELDS, "settle_s": 30.0, **options})


def read(one: SqlSpout, metadata: Json) -> list[dict[str, Any]]:
    emitter = pickle.loads(pickle.dumps(one.emitter()))
    batches = [batch for split in emitter.splits(metadata) for batch in emitter.read(split)]
    return pa.Table.from_batches(batches).to_pylist()


def test_values_of_every_type_come_as_the_fields_say(postgres: PostgresServer, orders: str) -> None:
    with postgres.connect() as connection:
        insert(connection, orders, "a")
        run(connection, f"INSERT INTO {orders} (name) VALUES (NULL)")
    one = spout(orders)
    metadata = one.coordinator().initialize_transaction(1, None)
    assert metadata == {"from": None, "to": 2, "rows": 2}
    first, second = read(one, metadata)
    assert first.pop("at") == datetime.datetime(2024, 1, 1, 11, tzinfo=datetime.UTC)
    assert (first.pop("clock"), first.pop("took")) == (datetime.time(12, 30), datetime.timedelta(1, microseconds=-5))
    assert str(first) == (
        "{'id': 1, 'name': 'a', 'amount': Decimal('1.50'), 'ok': True, 'data': b'\\x00\\xff', 'x': nan}"
    )
    assert set(second.values()) == {2, None}


def test_a_row_that_commits_late_with_a_lower_key_is_waited_for(postgres: PostgresServer, orders: str) -> None:
    coordinator = spout(orders).coordinator()
    with postgres.connect() as slow, postgres.connect() as quick:
        run(slow, "BEGIN")
        insert(slow, orders, "slow")
        insert(quick, orders, "quick")
        assert coordinator.is_ready(None)
        found: list[Json] = []
        asking = threading.Thread(target=lambda: found.append(coordinator.initialize_transaction(1, None)))
        asking.start()
        wait_until_asked(postgres)
        assert not found
        run(slow, "COMMIT")
        asking.join(30)
    assert found == [{"from": None, "to": 2, "rows": 2}]
    assert [row["name"] for row in read(spout(orders), found[0])] == ["slow", "quick"]


def wait_until_asked(postgres: PostgresServer) -> None:
    """Until the coordinator has looked for writers."""
    with postgres.connect() as connection:
        for _ in range(10_000):
            asked = connection.execute(
                "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%RowExclusiveLock%' AND pid <> pg_backend_pid()"
            )
            if asked.fetchone():
                return
    raise AssertionError("the coordinator never looked")


def test_while_a_writer_does_not_end_there_is_nothing_new(postgres: PostgresServer, orders: str) -> None:
    with postgres.connect() as slow, postgres.connect() as quick:
        run(slow, "BEGIN")
        insert(slow, orders, "slow")
        insert(quick, orders, "quick")
        assert spout(orders, settle_s=0.2).coordinator().initialize_transaction(1, None) is None
        run(slow, "ROLLBACK")
        insert(quick, orders, "later")
    metadata = spout(orders).coordinator().initialize_transaction(1, None)
    assert metadata == {"from": None, "to": 3, "rows": 2}


def test_rows_of_one_key_are_in_one_batch(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (k integer, name text)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(number // 3, str(number)) for number in range(9)])
    connection.close()
    where = Connection(conn_type="sqlite", host=str(path))
    one = SqlSpout("files", table="t", key="k", fields="name string", max_rows=4, connection=where)
    first = one.coordinator().initialize_transaction(1, None)
    second = one.coordinator().initialize_transaction(2, first)
    assert (first, second) == ({"from": None, "to": 1, "rows": 6}, {"from": 1, "to": 2, "rows": 3})
    assert [row["name"] for metadata in (first, second) for row in read(one, metadata)] == list("012345678")
    assert one.coordinator().initialize_transaction(3, second) is None


def test_splits_have_about_as_many_rows_each_wherever_the_keys_lie(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    keys = [1, 2, 3, 3, 3, 4, 5, 10**12, 10**12 + 1, 10**15]
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (k integer)")
        connection.executemany("INSERT INTO t VALUES (?)", [(key,) for key in keys])
    connection.close()
    where = Connection(conn_type="sqlite", host=str(path))
    one = SqlSpout("files", table="t", key="k", fields="k long", splits=4, connection=where)
    metadata = one.coordinator().initialize_transaction(1, None)
    rows = [
        [row["k"] for piece in one.emitter().read(split) for row in piece.to_pylist()]
        for split in one.emitter().splits(metadata)
    ]
    assert sorted(key for part in rows for key in part) == keys
    assert [len(part) for part in rows] == [5, 1, 2, 2]  # by width of the keys it were 9 and 1


def test_texts_and_numbers_of_sqlite_are_times_where_times_are_declared(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (k integer, day text, clock text, at text, took integer)")
        row = (1, "2024-02-29", "08:30:00.500000", "2024-02-29 08:30:00.000000", -5)
        connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", [row, (2, *[None] * 4)])
    connection.close()
    where = Connection(conn_type="sqlite", host=str(path))
    fields = "day date, clock time, at timestamp, took interval day to second"
    for source in ({"table": "t"}, {"query": "SELECT * FROM t"}):
        one = SqlSpout("files", key="k", fields=fields, connection=where, max_bytes=10**6, **source)
        metadata = one.coordinator().initialize_transaction(1, None)
        day = datetime.date(2024, 2, 29)
        at = datetime.datetime(2024, 2, 29, 8, 30, tzinfo=datetime.UTC)
        first, second = read(one, metadata)
        assert list(first.values()) == [day, datetime.time(8, 30, 0, 500_000), at, datetime.timedelta(microseconds=-5)]
        assert set(second.values()) == {None}
    one = SqlSpout("files", table="t", key="k", fields="day time", connection=where)
    with pytest.raises(DamagedInputError, match=r"rows do not fit the fields \(day time\): .*2024-02-29"):
        read(one, one.coordinator().initialize_transaction(1, None))


def test_a_price_that_is_declared_a_whole_number_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (k integer, price real)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(1, 2.0), (2, 1.99)])
    connection.close()
    where = Connection(conn_type="sqlite", host=str(path))
    one = SqlSpout("files", table="t", key="k", fields="k long, price long", connection=where)
    says = r"rows do not fit the fields \(.*\): .*'price'.* holds 1.99.*key 2"
    with pytest.raises(DamagedInputError, match=says):
        read(one, one.coordinator().initialize_transaction(1, None))


def test_a_time_with_a_zone_is_refused(postgres: PostgresServer) -> None:
    query = "SELECT 1 AS id, TIMETZ '08:00+02' AS clock"
    one = SqlSpout(CONN_ID, query=query, key="id", fields="clock time", settle_s=0.0)
    with pytest.raises(DamagedInputError, match=r"do not fit .* where time is declared"):
        read(one, one.coordinator().initialize_transaction(1, None))


@pytest.mark.parametrize("statement", ["DELETE FROM {t} WHERE id = 1", "UPDATE {t} SET id = DEFAULT WHERE id = 1"])
def test_a_recorded_row_that_is_gone_is_an_error_and_never_fewer_rows(
    postgres: PostgresServer, orders: str, statement: str
) -> None:
    one = spout(orders)
    with postgres.connect() as connection:
        insert(connection, orders, "a", "b")
        metadata = one.coordinator().initialize_transaction(1, None)
        emitter = one.emitter()
        splits = emitter.splits(metadata)
        run(connection, statement.format(t=orders))
    with pytest.raises(SourceChangedError, match=r"has 1 rows with keys up to 2.*recorded 2"):
        emitter.splits(metadata)
    with pytest.raises(SourceChangedError):
        [list(emitter.read(split)) for split in splits]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"fields": "id long, nothing long"}, ConfigurationError, "nothing"),
        ({"table": "absent"}, ConfigurationError, "absent"),
        ({"key": "name"}, ConfigurationError, "whole numbers"),
        ({"fields": "id long, name double"}, DamagedInputError, "do not fit"),
        ({"change": {"password": "wrong and secret"}}, ConfigurationError, "authentication failed"),
        ({"change": {"port": 1}}, SourceUnavailableError, "cannot be read"),
        ({"change": {"conn_type": "klingon"}}, ConfigurationError, "type 'klingon'"),
    ],
)
def test_what_cannot_be_read_is_one_clear_error_without_secrets(
    postgres: PostgresServer, orders: str, options: Any, error: type[Exception], says: str
) -> None:
    with postgres.connect() as connection:
        insert(connection, orders, "a")
    where = replace(postgres.connection, **options.get("change", {}))
    given = {"table": orders, "fields": FIELDS, **{key: value for key, value in options.items() if key != "change"}}
    one = SqlSpout("db", connection=where, **given)
    with pytest.raises(error, match=says) as caught:
        read(one, one.coordinator().initialize_transaction(1, None))
    shown = str(caught.value) + one.describe() + repr(one.emitter())
    assert not any(secret in shown for secret in (PASSWORD, "wrong and secret"))


def test_who_locks_the_table_or_computes_for_ever_does_not_stop_a_task(postgres: PostgresServer, orders: str) -> None:
    with postgres.connect() as other:
        run(other, f"BEGIN; LOCK TABLE {orders} IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(SourceUnavailableError, match=r"lock timeout.* raise lock_timeout_s"):
            spout(orders, lock_timeout_s=0.1).coordinator().is_ready(None)
    slow = SqlSpout(CONN_ID, query="SELECT 1 AS id FROM pg_sleep(600)", fields="id long", statement_timeout_s=0.1)
    with pytest.raises(SourceUnavailableError, match=r"statement timeout.* Raise statement_timeout_s"):
        slow.coordinator().is_ready(None)


@pytest.mark.parametrize(
    ("scheme", "arguments", "setting"),
    [
        ("postgresql+psycopg", {"connect_timeout": 7, "tcp_user_timeout": 60_000}, "lock_timeout', '8000'"),
        ("postgresql+asyncpg", {}, "statement_timeout', '9000'"),
        ("mysql+pymysql", {"connect_timeout": 7, "write_timeout": 14}, "lock_wait_timeout = 8"),
        ("mariadb+mysqlconnector", {}, "lock_wait_timeout = 8"),
        ("mssql+pymssql", {"login_timeout": 7, "timeout": 9}, "LOCK_TIMEOUT 8000"),
        ("sqlite", {"timeout": 8}, "busy_timeout = 8000"),
        ("oracle", {}, ""),
    ],
)
def test_each_database_is_told_the_limits_in_its_own_words(
    scheme: str, arguments: dict[str, float], setting: str
) -> None:
    database, _, driver = scheme.partition("+")
    limits = Limits(connect_s=7, lock_s=8, statement_s=9)
    given = limits.arguments(database, driver)
    assert {name: given[name] for name in arguments} == arguments
    assert bool(given) == bool(arguments)
    assert setting in "".join([*limits.session(database, writes=False), *limits.transaction(database, writes=False)])


def test_what_the_options_of_a_connection_say_is_left_as_it_is() -> None:
    limits = Limits(connect_s=7, lock_s=8, statement_s=9)
    (one,) = limits.transaction("postgresql", writes=True, options="-c statement_timeout=0")
    assert "'lock_timeout', '8000'" in one
    assert "'statement_timeout'" not in one
    (neither,) = limits.transaction("postgresql", writes=True, options="-c statement_timeout=0 -c lock_timeout=1s")
    assert "'lock_timeout'" not in neither


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"table": "t", "query": "q"},
        *({"table": "t", **one} for one in ({"max_rows": 0}, {"settle_s": -1}, {"lock_timeout_s": 0})),
    ],
)
def test_arguments_that_mean_nothing_are_refused_when_the_dag_is_built(options: Any) -> None:
    with pytest.raises(ConfigurationError):
        SqlSpout("db", fields=FIELDS, **options)


def test_metadata_of_another_spout_is_not_guessed_at() -> None:
    where = Connection(conn_type="sqlite", host="nowhere.db")
    with pytest.raises(SourceChangedError, match="not that of a SqlSpout"):
        SqlSpout("db", table="t", fields="id long", connection=where).emitter().splits({"files": []})


def test_max_bytes_is_judged_by_a_sample(postgres: PostgresServer, orders: str) -> None:
    with postgres.connect() as connection:
        insert(connection, orders, *["x" * 1000] * 20)
    one = spout(orders, fields="id long, name string", max_bytes=5_000)
    metadata = one.coordinator().initialize_transaction(1, None)
    assert isinstance(metadata, dict)
    assert metadata["rows"] == 4
    with pytest.raises(ConfigurationError, match="max_bytes"):
        spout(orders, max_bytes=0)
