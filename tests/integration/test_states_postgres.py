"""States in PostgreSQL: what the server does, what it refuses, and what people see in the tables."""

from __future__ import annotations

import datetime
import pickle
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.contracts.state import Applied, StateSpec
from airflow_trident.errors import (
    ConfigurationError,
    CorruptRecordError,
    DefinitionChangedError,
    FencedError,
    StoreUnavailableError,
)
from airflow_trident.io.connections import Connection
from airflow_trident.operations.aggregators import Count, Max, Sum
from airflow_trident.states.sql.postgres import PostgresDialect, PostgresState
from airflow_trident.states.sql.store import SqlStore
from airflow_trident.types import INTERVAL, Field
from tests.fixtures.postgres import PASSWORD, PostgresServer, postgres_state
from tests.fixtures.state import batch, combined, content, counts, product, ticket

SPECS = {"added by the server": counts, "merged by us": product}
OPAQUE = {f"opaque, {kind}": kind for kind in SPECS}
ROWS = [(f"w{number}", 1 + number % 3) for number in range(500)]

pytestmark = pytest.mark.usefixtures("postgres")


def open_state(spec: StateSpec) -> SqlStore:
    state = spec.factory.make_state(spec)
    assert isinstance(state, SqlStore)
    return state


def spec_of(kind: str, folder: Path | str, **options: Any) -> StateSpec:
    return replace(SPECS[OPAQUE.get(kind, kind)](postgres_state(folder, **options)), opaque=kind in OPAQUE)


# ---- what the server does --------------------------------------------------------------------------------------


@pytest.mark.parametrize("opaque", [False, True])
def test_the_arithmetic_of_built_in_aggregators_is_the_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opaque: bool
) -> None:
    def combine(*_: Any) -> Any:
        raise AssertionError("the server adds")

    monkeypatch.setattr(Sum, "combine", combine)
    spec = combined(postgres_state(tmp_path), "k string", "n long, d decimal(38,2), x double", *[Sum()] * 3)
    spec = replace(spec, opaque=opaque)
    with spec.factory.make_state(spec) as state:
        for txid in (1, 2):
            state.apply(ticket(txid), batch(spec, ("a", 1, 2, 0.5), (None, 3, 4, None)))
        assert content(state) == {("a",): (2, 4, 1.0), (None,): (6, 8, None)}


def test_the_table_is_for_people_to_query(postgres: PostgresServer, tmp_path: Path) -> None:
    factory = postgres_state(tmp_path, table="sales")
    spec = replace(combined(factory, "shop string", "seen timestamp, tags array<string>", Max(), Max()))
    spec = replace(spec, updater=put_all, combiners=())
    rows = batch(spec, ("é", None, ["x", None]), (None, None, []))
    with open_state(spec) as state:
        state.apply(ticket(1), rows)
        assert state.count() == 2
    with postgres.connect() as connection:
        place = f"{factory.schema}.sales"
        found = connection.execute(f"SELECT shop, tags FROM {place} WHERE tags @> '[\"x\"]'".encode()).fetchall()
    assert found == [("é", ["x", None])]


def test_the_style_of_intervals_that_the_server_prefers_does_not_matter(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    where = replace(postgres.connection, extra={"options": "-c IntervalStyle=iso_8601"})
    factory = replace(postgres_state(tmp_path), conn_id="", connection=where)
    spec = combined(factory, f"took {INTERVAL}", f"longest {INTERVAL}", Max())
    took = datetime.timedelta(days=400, microseconds=-1)
    with open_state(spec) as state:
        for txid in (1, 2):
            state.apply(ticket(txid), batch(spec, (took, took), (-took, None)))
        assert content(state) == {(took,): (took,), (-took,): (None,)}
        assert state.get_many([(took,)]) == [(took,)]


def test_the_zone_and_the_style_of_dates_that_the_server_prefers_do_not_matter(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    where = replace(postgres.connection, extra={"options": "-c TimeZone=Europe/Berlin -c DateStyle=German"})
    factory = replace(postgres_state(tmp_path), conn_id="", connection=where)
    spec = combined(factory, "at timestamp, day date", "most timestamp, last date", Max(), Max())
    days = [datetime.date.min, datetime.date(2024, 2, 29), datetime.date.max]
    rows = [
        (datetime.datetime.combine(day, datetime.time(hour, 59, 59), datetime.UTC), day)
        for day, hour in zip(days, (0, 12, 23), strict=True)
    ]
    with open_state(spec) as state:
        for txid in (1, 2):
            state.apply(ticket(txid), batch(spec, *(row + row for row in rows)))
        assert content(state) == {row: row for row in rows}
        assert state.get_many(rows) == rows


def put_all(state: Any, rows: Any) -> None:
    for key, *value in rows:
        state.multi_put([(key,)], [tuple(value)])


@pytest.mark.parametrize("kind", ["added by the server", "opaque, merged by us"])
def test_the_work_of_a_batch_does_not_grow_with_the_state(postgres: PostgresServer, tmp_path: Path, kind: str) -> None:
    spec = spec_of(kind, tmp_path)
    rows = batch(spec, *((f"w{number * 17}", 1) for number in range(50)), (None, 1))
    with open_state(spec) as state:
        read = []
        for txid, keys in ((1, 1_000), (3, 40_000)):
            state.apply(ticket(txid), batch(spec, *((f"w{number}", 1) for number in range(keys))))
            before = blocks(postgres, state)
            state.apply(ticket(txid + 1), rows)
            read.append(blocks(postgres, state) - before)
    # A few more levels of the index, never the table: that would be hundreds of blocks.
    assert 0 < read[1] < 2 * read[0] + 100, read


def blocks(postgres: PostgresServer, state: SqlStore) -> int:
    """Blocks of the state's table and index that were touched so far."""
    # Statistics of a session come late unless it is asked for them.
    dialect = state.dialect
    assert isinstance(dialect, PostgresDialect)
    dialect.connection.execute("SELECT pg_stat_force_next_flush()")
    with postgres.connect() as connection:
        row = connection.execute(
            "SELECT heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit FROM pg_statio_user_tables "
            "WHERE schemaname = %s AND relname = %s",
            [dialect.schema, dialect.table],
        ).fetchone()
    assert row is not None
    return int(row[0])


# ---- what is refused -------------------------------------------------------------------------------------------


def test_another_committer_that_holds_the_state_is_waited_for_only_so_long(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    spec = counts(postgres_state(tmp_path, lock_timeout_s=0.2))
    with open_state(spec) as state, postgres.connect() as other:
        state.apply(ticket(1), batch(spec, ("a", 1)))
        with other.transaction():
            other.execute(f"SELECT * FROM {state.dialect.markers} FOR UPDATE".encode())
            with pytest.raises(StoreUnavailableError, match=r"lock timeout.*lock_timeout_s.*Nothing"):
                state.apply(ticket(2), batch(spec, ("a", 1)))
        assert state.apply(ticket(2), batch(spec, ("a", 1))) is Applied.APPLIED
        with pytest.raises(FencedError):
            state.apply(ticket(3, fence=1), batch(spec, ("a", 1)))


def test_a_key_that_no_index_can_hold_is_an_error_and_nothing_is_applied(tmp_path: Path) -> None:
    spec = counts(postgres_state(tmp_path))
    # Not to be compressed: the server compresses keys.
    long = "".join(chr(number) for number in random.Random(1).choices(range(0x4E00, 0x9FFF), k=9000))
    with spec.factory.make_state(spec) as state:
        with pytest.raises(ConfigurationError, match=r"index row.*2,700 bytes"):
            state.apply(ticket(1), batch(spec, (long, 1)))
        assert state.marker() is None


@pytest.mark.parametrize("kind", [*SPECS, *OPAQUE])
def test_the_names_of_a_schema_and_of_columns_are_names_and_nothing_else(postgres: PostgresServer, kind: str) -> None:
    name = 'of "us"; DROP TABLE x -- 50%s (:topology) :state'
    name = f"{name} {[*SPECS, *OPAQUE].index(kind)}"
    factory = PostgresState(connection=postgres.connection, schema=name, table="kept 50%s off")
    spec = replace(SPECS[OPAQUE.get(kind, kind)](factory), opaque=kind in OPAQUE)
    fields = (Field("50%s word", "string"), Field("%(n)s", "long"))
    spec = replace(spec, keys=fields[:1], values=fields[1:], staged=fields)
    for attempt in range(2):
        with spec.factory.make_state(spec) as state:
            assert isinstance(state.dialect, PostgresDialect)
            assert state.dialect.schema == name
            state.apply(ticket(1, attempt=attempt), batch(spec, ("a", 1), (None, 2)))
            assert content(state) == {("a",): (1,), (None,): (2,)}
            assert state.get_many([("a",), (None,), ("b",)]) == [(1,), (2,), None]


def test_a_value_that_the_driver_cannot_read_is_not_a_lost_connection(postgres: PostgresServer, tmp_path: Path) -> None:
    spec = combined(postgres_state(tmp_path), "word string", "at timestamp", Max())
    with open_state(spec) as state, postgres.connect() as connection:
        connection.execute(f"INSERT INTO {state.dialect.data} VALUES ('a', 'infinity')".encode())
        with pytest.raises(ConfigurationError, match=r"value that the driver cannot read.*Correct the value"):
            list(state.items())
        with pytest.raises(ConfigurationError, match="driver cannot read"):
            state.get_many([("a",)])


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"password": "wrong and secret"}, ConfigurationError, "authentication failed"),
        ({"schema": "nowhere"}, ConfigurationError, 'database "nowhere" does not exist'),
        ({"login": "nobody_here"}, ConfigurationError, "authentication failed"),
        ({"extra": {"sslmod": "require"}}, ConfigurationError, "sslmod"),
        ({"extra": {"sslmode": "require"}}, StoreUnavailableError, "does not support SSL"),
        ({"port": 1}, StoreUnavailableError, "does not answer"),
        ({"conn_type": "mysql"}, ConfigurationError, "of type 'mysql'"),
    ],
)
def test_a_connection_that_cannot_work_is_one_clear_error_without_secrets(
    postgres: PostgresServer, tmp_path: Path, change: Any, error: type[Exception], says: str
) -> None:
    spec = counts(PostgresState(connection=replace(postgres.connection, **change)))
    with pytest.raises(error, match=says) as caught:
        spec.factory.make_state(spec)
    shown = str(caught.value) + repr(spec.factory) + spec.describe()
    assert caught.value.__cause__ is None
    assert not any(secret in shown for secret in (PASSWORD, "wrong and secret"))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_state_of_other_fields_or_in_a_table_of_others_is_refused(postgres: PostgresServer, tmp_path: Path) -> None:
    factory = postgres_state(tmp_path, table="mine")
    with factory.make_state(counts(factory)):
        pass
    with pytest.raises(DefinitionChangedError, match=r"word string.*now it should be"):
        factory.make_state(combined(factory, "word string", "n double", Sum()))
    with pytest.raises(ConfigurationError, match="belongs to state 'counts' of topology 'words'"):
        factory.make_state(counts(factory, name="other"))
    with postgres.connect() as connection:
        connection.execute(f"CREATE TABLE {factory.schema}.theirs (a int)".encode())
    theirs = replace(factory, table="theirs")
    with pytest.raises(ConfigurationError, match="belongs to something else"):
        theirs.make_state(counts(theirs, name="third"))


def test_a_copy_in_the_place_of_the_table_may_have_an_index_of_another_name(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    factory = postgres_state(tmp_path, table="price")
    spec = counts(factory)
    with factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 1)))
    with postgres.connect() as connection:
        connection.execute(f"SET search_path = {factory.schema}".encode())
        connection.execute("ALTER TABLE price RENAME TO old")
        connection.execute("CREATE TABLE price (LIKE old INCLUDING ALL)")
        connection.execute("INSERT INTO price SELECT * FROM old")
    with factory.make_state(spec) as state:
        state.apply(ticket(2), batch(spec, ("a", 1)))
        assert content(state) == {("a",): (2,)}


def test_a_user_who_may_not_create_tables_is_told_so(postgres: PostgresServer, tmp_path: Path) -> None:
    with postgres.connect() as connection:
        connection.execute("CREATE ROLE reader LOGIN PASSWORD 'reading'")
    where = replace(postgres.connection, login="reader", password="reading")
    factory = replace(postgres_state(tmp_path), connection=where)
    with pytest.raises(ConfigurationError, match=r"permission denied.*create tables"):
        factory.make_state(counts(factory))


def test_a_marker_that_somebody_deleted_or_wrote_is_not_guessed_at(postgres: PostgresServer, tmp_path: Path) -> None:
    spec = counts(postgres_state(tmp_path))
    with open_state(spec) as state, postgres.connect() as connection:
        markers = state.dialect.markers
        state.apply(ticket(1), batch(spec, ("a", 1)))
        connection.execute(f"UPDATE {markers} SET holes = 'none'".encode())
        with pytest.raises(CorruptRecordError, match="cannot be read"):
            state.apply(ticket(2), batch(spec, ("a", 1)))
        connection.execute(f"DELETE FROM {markers}".encode())
        with pytest.raises(CorruptRecordError, match="is gone"):
            state.apply(ticket(2), batch(spec, ("a", 1)))


@pytest.mark.parametrize(
    "options", [{"table": "x" * 48}, {"table": ""}, {"table": "trident_applied"}, {"schema": ""}, {"lock_timeout_s": 0}]
)
def test_what_postgres_cannot_have_is_refused_when_the_dag_is_built(options: Any) -> None:
    with pytest.raises(ConfigurationError):
        PostgresState("postgres_default", **options)


def test_long_names_get_a_table_that_fits(tmp_path: Path) -> None:
    factory = postgres_state(tmp_path)
    first, second = (counts(factory, topology="t" * 60, name=f"counts_{number}") for number in (1, 2))
    with factory.make_state(first) as one, factory.make_state(second) as two:
        one.apply(ticket(1, topology="t" * 60), batch(first, ("a", 1)))
        assert (len(content(one)), len(content(two))) == (1, 0)


def test_a_connection_type_is_described_without_secrets() -> None:
    assert PostgresState("db", "t", schema="s").describe() == "PostgresState(db, s.t)"
    where = Connection(conn_type="postgres", host="h", schema="d", password=PASSWORD)
    assert PostgresState(connection=where).describe() == "PostgresState(postgres://h/d)"
    assert PASSWORD not in repr(PostgresState(connection=where))
    assert Count().merge_kind is not None
