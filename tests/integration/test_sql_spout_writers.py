"""Rows that commit late, by whatever name of a table and in whatever way they are written: each is read once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from airflow_trident.io.connections import Connection
from airflow_trident.spouts import sql
from airflow_trident.spouts.sql import SqlSpout
from airflow_trident.types import Json
from tests.fixtures.postgres import PASSWORD, PostgresServer

COLUMNS = "(id bigserial, k int DEFAULT 1, n text"


@pytest.fixture
def place(postgres: PostgresServer, tmp_path: Path) -> str:
    """A schema with capitals, quoted."""
    name = f'"Sales {abs(hash(str(tmp_path)))}"'
    run(postgres, f"CREATE SCHEMA {name}")
    return name


def run(where: PostgresServer | psycopg.Connection[Any], *statements: str) -> None:
    if isinstance(where, PostgresServer):
        with where.connect() as connection:
            run(connection, *statements)
    else:
        for statement in statements:
            where.execute(statement.encode())


def spout(postgres: PostgresServer, place: str, table: str, settle_s: float = 30.0) -> SqlSpout:
    plain = f"{place}.{table}".replace('"', "")
    return SqlSpout("db", table=plain, fields="id long, n string", settle_s=settle_s, connection=postgres.connection)


def all_rows(one: SqlSpout) -> tuple[list[tuple[int, str]], Json]:
    """Of the first batch and the next; and the metadata of the first."""
    found: list[tuple[int, str]] = []
    first = metadata = one.coordinator().initialize_transaction(1, None)
    while metadata is not None:
        emitter = one.emitter()
        for split in emitter.splits(metadata):
            for batch in emitter.read(split):
                found += [(row["id"], row["n"]) for row in batch.to_pylist()]
        metadata = one.coordinator().initialize_transaction(2, metadata)
    return found, first


PLAIN = f"CREATE TABLE {{s}}.orders {COLUMNS})"
PARTITIONED = (
    f"CREATE TABLE {{s}}.orders {COLUMNS}) PARTITION BY LIST (k)",
    "CREATE TABLE {s}.one PARTITION OF {s}.orders FOR VALUES IN (1)",
)
VIEW = (PLAIN, "CREATE VIEW {s}.seen AS SELECT id, n FROM {s}.orders")
HIDDEN = (
    PLAIN,
    "CREATE FUNCTION {s}.all_orders() RETURNS SETOF {s}.orders LANGUAGE plpgsql AS "
    "$$BEGIN RETURN QUERY EXECUTE 'SELECT * FROM {s}.orders'; END$$",
    "CREATE VIEW {s}.seen AS SELECT id, n FROM {s}.all_orders()",
)
INHERITED = (PLAIN, "CREATE TABLE {s}.one () INHERITS ({s}.orders)")
WAYS = {
    "a table in small letters": ((PLAIN,), "orders", "orders"),
    "a table with capitals": ((f'CREATE TABLE {{s}}."Orders" {COLUMNS})',), '"Orders"', '"Orders"'),
    "a name with a percent sign": ((f'CREATE TABLE {{s}}."a%" {COLUMNS})',), '"a%"', '"a%"'),
    "a view": (VIEW, "orders", "seen"),
    "a view of a function": (HIDDEN, "orders", "seen"),
    "a partition": (PARTITIONED, "one", "orders"),
    "a table by way of its partitions' table": (PARTITIONED, "orders", "one"),
    "a table that inherits": (INHERITED, "one", "orders"),
}
"""What is made, which table is written, and which is read."""


def made(postgres: PostgresServer, place: str, way: str) -> tuple[str, str]:
    """The table that is written, and the one that is read."""
    statements, written, read = WAYS[way]
    run(postgres, *(statement.format(s=place) for statement in statements))
    return written, read


@pytest.mark.parametrize("way", WAYS)
def test_while_a_writer_is_open_there_is_nothing_new_and_then_all_rows_come_once(
    postgres: PostgresServer, place: str, way: str
) -> None:
    written, read = made(postgres, place, way)
    write = f"INSERT INTO {place}.{written} (n) VALUES "
    with postgres.connect() as slow, postgres.connect() as quick:
        run(slow, "BEGIN", f"{write} ('slow')")
        run(quick, f"{write} ('quick')")
        coordinator = spout(postgres, place, read, settle_s=0.2).coordinator()
        assert coordinator.is_ready(None)
        assert coordinator.initialize_transaction(1, None) is None
        run(slow, "COMMIT")
    found, first = all_rows(spout(postgres, place, read))
    assert (found, first) == ([(1, "slow"), (2, "quick")], {"from": None, "to": 2, "rows": 2})


@contextmanager
def inserting(postgres: PostgresServer, place: str, table: str) -> Iterator[None]:
    """Somebody who has drawn a key and computes the rest of the row, which is written at the end."""
    key = abs(hash(place)) % 2**31
    run(
        postgres,
        f"CREATE FUNCTION {place}.held() RETURNS text LANGUAGE sql VOLATILE AS "
        f"$$SELECT pg_advisory_xact_lock({key}); SELECT 'slow'$$",
    )
    with postgres.connect() as holder, postgres.connect() as slow:
        run(holder, f"SELECT pg_advisory_lock({key})")
        statement = f"INSERT INTO {place}.{table} (id, n) VALUES (DEFAULT, {place}.held())"
        writing = threading.Thread(target=run, args=(slow, statement))
        writing.start()
        asked = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = {key} AND NOT granted"
        while holder.execute(asked.encode()).fetchone() == (0,):
            assert writing.is_alive()
        try:
            yield
        finally:
            run(holder, f"SELECT pg_advisory_unlock({key})")
            writing.join(30)


@pytest.mark.parametrize("way", ["a table with capitals", "a view", "a table by way of its partitions' table"])
def test_a_writer_who_has_drawn_its_key_and_written_nothing_yet_is_waited_for(
    postgres: PostgresServer, place: str, way: str
) -> None:
    written, read = made(postgres, place, way)
    # The first row of a sequence gives its writer a transaction id, the next ones do not.
    run(postgres, f"INSERT INTO {place}.{written} (n) VALUES ('first')")
    with inserting(postgres, place, written):
        run(postgres, f"INSERT INTO {place}.{written} (n) VALUES ('quick')")
        assert spout(postgres, place, read, settle_s=0.2).coordinator().initialize_transaction(1, None) is None
    found, _ = all_rows(spout(postgres, place, read))
    assert found == [(1, "first"), (2, "slow"), (3, "quick")]


@pytest.mark.parametrize("way", ["a table with capitals", "a view", "a partition"])
def test_a_writer_that_is_prepared_while_it_is_waited_for_is_waited_for(
    postgres: PostgresServer, place: str, way: str
) -> None:
    written, read = made(postgres, place, way)
    write = f"INSERT INTO {place}.{written} (n) VALUES "
    one = spout(postgres, place, read)
    with postgres.connect() as slow:
        run(slow, "BEGIN", f"{write} ('slow')")
        run(postgres, f"{write} ('quick')")
        found: list[Json] = []
        asking = threading.Thread(target=lambda: found.append(one.coordinator().initialize_transaction(1, None)))
        asking.start()
        wait_for_a_look(postgres, asking)
        run(slow, f"PREPARE TRANSACTION '{place}'")
        try:
            wait_for_a_look(postgres, asking)
            assert not found
        finally:
            run(slow, f"COMMIT PREPARED '{place}'")
        asking.join(30)
    assert found == [{"from": None, "to": 2, "rows": 2}]
    assert all_rows(one)[0] == [(1, "slow"), (2, "quick")]


def wait_for_a_look(postgres: PostgresServer, asking: threading.Thread) -> None:
    """Until the coordinator has begun to look for writers after now, and looked."""
    ended = (
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%%RowExclusiveLock%%' "
        "AND state = 'idle in transaction' AND pid <> pg_backend_pid() AND query_start > %s"
    )
    with postgres.connect() as connection:
        now = connection.execute("SELECT clock_timestamp()").fetchone()
        while connection.execute(ended, now).fetchone() == (0,):
            assert asking.is_alive(), "the coordinator does not wait"


def test_a_writer_of_another_table_holds_up_a_view_alone(postgres: PostgresServer, place: str) -> None:
    run(postgres, *(statement.format(s=place) for statement in VIEW), f"CREATE TABLE {place}.other (n text)")
    run(postgres, f"INSERT INTO {place}.orders (n) VALUES ('one')")
    with postgres.connect() as other:
        run(other, "BEGIN", f"INSERT INTO {place}.other VALUES ('x')")
        assert all_rows(spout(postgres, place, "orders"))[0] == [(1, "one")]
        assert spout(postgres, place, "seen", settle_s=0.2).coordinator().initialize_transaction(1, None) is None
        run(other, "ROLLBACK")
    assert all_rows(spout(postgres, place, "seen"))[0] == [(1, "one")]


def watched_sleep(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long who waits for writers wants to sleep; other threads sleep as ever."""
    slept: list[float] = []
    monkeypatch.setattr(sql, "time", SimpleNamespace(monotonic=time.monotonic, sleep=slept.append))
    return slept


def test_of_a_table_of_another_server_that_time_is_waited(
    postgres: PostgresServer, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = postgres.connection
    server, schema = place.replace("Sales", "Server"), place.replace('"', "")
    run(
        postgres,
        PLAIN.format(s=place),
        "CREATE EXTENSION IF NOT EXISTS postgres_fdw",
        f"CREATE SERVER {server} FOREIGN DATA WRAPPER postgres_fdw "
        f"OPTIONS (host '{one.host}', port '{one.port}', dbname '{one.schema}')",
        f"CREATE USER MAPPING FOR postgres SERVER {server} OPTIONS (user '{one.login}', password '{PASSWORD}')",
        f"CREATE TABLE {place}.everywhere (id bigint, k int, n text) PARTITION BY LIST (k)",
        f"CREATE FOREIGN TABLE {place}.there PARTITION OF {place}.everywhere FOR VALUES IN (1) SERVER {server} "
        f"OPTIONS (schema_name '{schema}', table_name 'orders')",
        f"INSERT INTO {place}.orders (n) VALUES ('one')",
    )
    slept = watched_sleep(monkeypatch)
    for table in ("there", "everywhere"):
        metadata = spout(postgres, place, table, settle_s=7.5).coordinator().initialize_transaction(1, None)
        assert metadata == {"from": None, "to": 1, "rows": 1}
    assert slept == [7.5, 7.5]


@pytest.fixture(scope="module")
def replica() -> Iterator[Connection]:
    server = PostgresServer()
    server.start()
    try:
        run(server, "CREATE TABLE orders (id bigserial, n text)", "INSERT INTO orders (n) VALUES ('one')")
        server.become_replica()
        yield server.connection
    finally:
        server.stop()


def test_on_a_replica_that_time_is_waited_for_the_writers_of_the_primary_cannot_be_seen(
    replica: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = watched_sleep(monkeypatch)
    one = SqlSpout("db", table="orders", fields="id long, n string", settle_s=7.5, connection=replica)
    assert one.coordinator().initialize_transaction(1, None) == {"from": None, "to": 1, "rows": 1}
    assert slept == [7.5]
