"""States in any database: committers that are killed, cut off or late, and databases that have less."""

from __future__ import annotations

import math
import signal
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from airflow_trident.contracts.state import Applied, StateFactory, StateSpec
from airflow_trident.errors import (
    ConfigurationError,
    CorruptRecordError,
    DefinitionChangedError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from airflow_trident.io.connections import Connection
from airflow_trident.io.sql import make_engine
from airflow_trident.operations.aggregators import Sum
from airflow_trident.states.sql.sqlalchemy_state import SqlState
from airflow_trident.states.sql.store import SqlStore
from airflow_trident.types import parse_declared
from tests.faults.postgres_proxy import PostgresProxy
from tests.fixtures.postgres import PASSWORD, PostgresServer, postgres_state, sql_state
from tests.fixtures.program import run_code
from tests.fixtures.state import batch, combined, content, counts, keep_longest, product, sql_on_sqlite, ticket

pytestmark = pytest.mark.usefixtures("postgres")

ROWS = [(f"w{number}", 1 + number % 3) for number in range(700)]
DATABASES = {"sqlite": sql_on_sqlite, "postgres": sql_state}


def open_state(spec: StateSpec) -> SqlStore:
    state = spec.factory.make_state(spec)
    assert isinstance(state, SqlStore)
    return state


def opaque(factory: StateFactory) -> StateSpec:
    return replace(counts(factory), opaque=True)


# ---- killed ----------------------------------------------------------------------------------------------------

WORKER = """
import os, signal, sys
from pathlib import Path
import sqlalchemy as sa
from tests.integration.test_states_sql import DATABASES, ROWS, opaque
from tests.fixtures.state import batch, ticket

folder, database, where = sys.argv[1:]
spec = opaque(DATABASES[database](Path(folder)))
state = spec.factory.make_state(spec)


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def before_statement(connection, cursor, statement, *_):
    if statement.startswith(where):
        die()


sa.event.listen(sa.Engine, "before_cursor_execute", before_statement)
if where == "COMMIT":
    sa.event.listen(sa.Engine, "commit", die)
state.apply(ticket(2, attempt=1), batch(spec, *ROWS))
die()
"""
POINTS = [
    ("sqlite", "INSERT"),
    ("sqlite", "COMMIT"),
    ("postgres", "INSERT"),
    ("postgres", "COMMIT"),
    ("postgres", "after"),
]


@pytest.mark.parametrize(("database", "where"), POINTS)
def test_a_committer_killed_while_it_replaces_a_batch_leaves_the_old_batch_or_the_new_one(
    tmp_path: Path, database: str, where: str
) -> None:
    spec = opaque(DATABASES[database](tmp_path))
    with open_state(spec) as state:
        state.apply(ticket(1), batch(spec, *ROWS[:300], ("only here", 7)))
        state.apply(ticket(2), batch(spec, *ROWS[200:400], ("to be taken back", 3)))
        before = state.marker(), content(state)
    killed = run_code(WORKER, tmp_path, database, where)
    assert killed.returncode == -signal.SIGKILL
    with open_state(spec) as state:
        if where != "after":
            assert (state.marker(), content(state)) == before, "all or nothing"
        answer = state.apply(ticket(2, attempt=1), batch(spec, *ROWS))
        assert answer is (Applied.ALREADY if where == "after" else Applied.APPLIED)
        whole = {(word,): (n * 2,) if number < 300 else (n,) for number, (word, n) in enumerate(ROWS)}
        assert content(state) == whole | {("only here",): (7,)}


# ---- cut off, and in each other's way --------------------------------------------------------------------------


def through(proxy: PostgresProxy, postgres: PostgresServer, folder: Path) -> SqlState:
    where = replace(postgres.connection, port=proxy.port, extra={"sslmode": "disable", "gssencmode": "disable"})
    return replace(sql_state(folder), connection=where)


@pytest.mark.parametrize("statement", [b"SET fence", b"INSERT INTO", b"SET incarnation", b"COMMIT\0"])
def test_a_connection_cut_before_a_statement_arrives_leaves_nothing_and_says_so(
    postgres: PostgresServer, tmp_path: Path, statement: bytes
) -> None:
    with PostgresProxy(postgres.port) as proxy:
        spec = opaque(through(proxy, postgres, tmp_path))
        with open_state(spec) as state:
            state.apply(ticket(1), batch(spec, *ROWS[:100]))
            before = state.marker(), content(state)
            proxy.cut_before = statement
            # Of a COMMIT that did not arrive nobody on this side can know that.
            expected = OutcomeUnknownError if statement == b"COMMIT\0" else StoreUnavailableError
            with pytest.raises(expected, match=r"postgres://127.0.0.1") as caught:
                state.apply(ticket(2), batch(spec, *ROWS[50:150]))
            assert PASSWORD not in str(caught.value)
            assert proxy.cuts == 1
            proxy.cut_before = None
            assert (state.marker(), content(state)) == before, "through a new connection"
            assert state.apply(ticket(2), batch(spec, *ROWS[50:150])) is Applied.APPLIED


def test_a_commit_whose_answer_is_lost_is_unknown_and_run_again_it_is_already_there(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    with PostgresProxy(postgres.port) as proxy:
        spec = counts(through(proxy, postgres, tmp_path))
        with open_state(spec) as state:
            state.apply(ticket(1), batch(spec, *ROWS[:100]))
            proxy.cut_answer_of = b"COMMIT\0"
            with pytest.raises(OutcomeUnknownError, match="knows what is applied"):
                state.apply(ticket(2), batch(spec, *ROWS[50:150]))
            proxy.cut_answer_of = None
            assert proxy.cuts == 1
            assert state.apply(ticket(2), batch(spec, *ROWS[50:150])) is Applied.ALREADY
            assert state.count() == 150


@pytest.mark.parametrize("database", DATABASES)
def test_another_committer_that_holds_the_state_is_waited_for_only_so_long(tmp_path: Path, database: str) -> None:
    spec = counts(replace(DATABASES[database](tmp_path), lock_timeout_s=0.1))
    with open_state(spec) as one, open_state(spec) as other:
        one.apply(ticket(1), batch(spec, ("a", 1)))
        with one.dialect.transaction():
            one.dialect.lock()
            with pytest.raises(StoreUnavailableError, match="lock"):
                other.apply(ticket(2), batch(spec, ("a", 1)))
        assert other.apply(ticket(2), batch(spec, ("a", 1))) is Applied.APPLIED


# ---- a database that has less ----------------------------------------------------------------------------------


class Plain(PGDialect_psycopg):
    """Nobody knows its upsert, nor whether it has NaN."""

    name = "plain"
    supports_statement_cache = True


registry.register("plain.psycopg", __name__, "Plain")


@pytest.fixture
def plain(postgres: PostgresServer, tmp_path: Path) -> SqlState:
    where = replace(postgres.connection, extra={"sqlalchemy_scheme": "plain+psycopg"})
    return replace(sql_state(tmp_path), connection=where)


def test_without_an_upsert_of_its_own_keys_are_replaced_removed_and_taken_back(plain: SqlState) -> None:
    lines = combined(plain, "word string", "line string")
    spec = replace(lines, updater=keep_longest, staged=parse_declared("word string, line string"), opaque=True)
    with open_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", "a"), ("b", "bb"), ("c", "c")))
        state.apply(ticket(2), batch(spec, ("a", "aaa"), ("c", None), ("d", "d")))
        assert content(state) == {("a",): ("aaa",), ("b",): ("bb",), ("d",): ("d",)}
        state.apply(ticket(2, attempt=1, fence=21), batch(spec, ("a", None), ("b", "bbb")))
        assert content(state) == {("b",): ("bbb",), ("c",): ("c",)}


def test_what_the_database_cannot_hold_is_kept_beside_its_column(plain: SqlState) -> None:
    spec = combined(plain, "k double", "x double, y double", Sum(), Sum())
    rows = [(0.5, math.inf, 1.0), (math.nan, 2.0, -math.inf), (-math.inf, 0.0, 0.1)]
    with open_state(spec) as state:
        for txid in (1, 2):
            state.apply(ticket(txid), batch(spec, *rows))
        assert repr(sorted(state.items(), key=repr)) == repr(
            [((-math.inf,), (0.0, 0.2)), ((0.5,), (math.inf, 2.0)), ((math.nan,), (4.0, -math.inf))]
        )
        with state.dialect.engine.connect() as connection:
            table = f"{plain.schema}.words_counts"
            found = connection.execute(sa.text(f"SELECT k, x, y, trident_special FROM {table} WHERE k = 0.5")).one()
    assert tuple(found) == (0.5, None, 2.0, '{"x": "inf"}')


@pytest.mark.parametrize("database", DATABASES)
def test_the_name_of_a_table_is_a_name_and_nothing_else(tmp_path: Path, database: str) -> None:
    spec = opaque(replace(DATABASES[database](tmp_path), table='50%s :id "it" %(id)s'))
    for attempt in (0, 1):
        with open_state(spec) as state:
            state.apply(ticket(1, attempt=attempt), batch(spec, ("a", 1 + attempt)))
            assert content(state) == {("a",): (1 + attempt,)}
            assert state.count() == 1


# ---- refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"password": "wrong and secret"}, ConfigurationError, "authentication failed"),
        ({"port": 1}, StoreUnavailableError, "Nothing was applied"),
        ({"conn_type": "klingon"}, ConfigurationError, "type 'klingon'"),
        ({"conn_type": "oracle"}, ConfigurationError, "empty texts as null"),
    ],
)
def test_a_connection_that_cannot_work_is_one_clear_error_without_secrets(
    postgres: PostgresServer, tmp_path: Path, change: dict[str, Any], error: type[Exception], says: str
) -> None:
    factory = replace(sql_state(tmp_path), connection=replace(postgres.connection, **change))
    with pytest.raises(error, match=says) as caught:
        counts(factory).factory.make_state(counts(factory))
    shown = str(caught.value) + factory.describe() + repr(factory)
    assert not any(secret in shown for secret in (PASSWORD, "wrong and secret"))


def test_a_state_of_other_fields_or_in_a_table_of_others_is_refused(tmp_path: Path) -> None:
    factory = sql_on_sqlite(tmp_path)
    with open_state(counts(factory)):
        pass
    with pytest.raises(DefinitionChangedError, match=r"word string.*new name"):
        open_state(combined(factory, "word string", "n double", Sum()))
    with pytest.raises(ConfigurationError, match=r"WORDS_counts.*belongs to state 'counts' of .*table="):
        open_state(counts(replace(factory, table="WORDS_counts"), topology="other"))
    with pytest.raises(ConfigurationError, match=r"'N'.*no case"):
        open_state(combined(factory, "n string", "N long", Sum(), name="twice"))
    assert factory.connection is not None
    with make_engine(factory.connection, "test", poolclass=sa.NullPool).begin() as connection:
        connection.execute(sa.text("CREATE TABLE of_others (x int)"))
    with pytest.raises(ConfigurationError, match=r"of_others.*belongs to something else"):
        open_state(counts(replace(factory, table="of_others"), name="new"))


def test_a_postgres_state_may_be_in_the_same_schema(tmp_path: Path) -> None:
    for factory in (postgres_state(tmp_path), sql_state(tmp_path, table="other"), postgres_state(tmp_path)):
        spec = counts(factory)
        with spec.factory.make_state(spec) as state:
            state.apply(ticket(1), batch(spec, ("a", 2)))
            assert list(state.items()) == [(("a",), (2,))]


@pytest.mark.parametrize("options", [{"table": ""}, {"table": "x" * 48}, {"table": "Trident_Applied"}])
def test_a_table_that_cannot_be_is_refused_when_the_dag_is_built(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the table"):
        SqlState("db", **options)
    with pytest.raises(ConfigurationError, match="above 0"):
        SqlState("db", lock_timeout_s=0)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        ("DELETE FROM trident_jdbc_applied", "is gone"),
        ("UPDATE trident_jdbc_applied SET holes = 'x'", "cannot be read"),
        ("DROP TABLE words_counts", "its table words_counts is gone"),
    ],
)
def test_what_somebody_deleted_or_wrote_is_not_guessed_at(tmp_path: Path, harm: str, says: str) -> None:
    spec = product(sql_on_sqlite(tmp_path))
    with open_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 2)))
        where = Connection(conn_type="sqlite", host=str(tmp_path / "jdbc.db"))
        with make_engine(where, "test", poolclass=sa.NullPool).begin() as connection:
            connection.execute(sa.text(harm))
        with pytest.raises(CorruptRecordError, match=says):
            open_state(spec).apply(ticket(2), batch(spec, ("a", 2))) if "DROP" in harm else state.marker()


@pytest.mark.parametrize(("extra", "exact"), [({}, True), ({"use_datetime2": "0"}, "0")])
def test_a_driver_that_cuts_times_to_milliseconds_is_told_not_to(extra: dict[str, str], exact: Any) -> None:
    engine = make_engine(Connection(conn_type="mssql", host="nowhere", extra=extra), "test", module=sqlite3)
    seen: dict[str, Any] = {}

    @sa.event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, _arguments: Any, named: dict[str, Any]) -> None:
        seen.update(named)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        engine.connect()
    assert seen["use_datetime2"] == exact
