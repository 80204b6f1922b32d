"""A database that does something else than it is told: its tables were altered, or its settings change what statements
mean. Either it is refused by name and nothing stays, or the setting is ours."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_trident.contracts.state import Applied, StateFactory, StateSpec
from airflow_trident.errors import ConfigurationError, CorruptRecordError, TridentError
from airflow_trident.io.connections import Connection
from airflow_trident.operations.aggregators import Max, Sum
from airflow_trident.states.sql.sqlalchemy_state import SqlState
from airflow_trident.states.sql.sqlite import SqliteState
from airflow_trident.states.sql.store import SqlStore
from airflow_trident.states.sql.table_sink import TableSink
from tests.fixtures import mariadb as maria
from tests.fixtures.mariadb import mariadb_state
from tests.fixtures.postgres import CONN_ID, postgres_state, running, sql_state
from tests.fixtures.state import batch, combined, content, counts, product, ticket

Run = Callable[..., Any]


@dataclass(frozen=True)
class Place:
    """A state whose tables a person can alter: `run` executes statements, with ``{t}`` for the state's table."""

    factory: StateFactory
    run: Run

    def open(self, spec: StateSpec) -> SqlStore:
        state = spec.factory.make_state(spec)
        assert isinstance(state, SqlStore)
        return state


def in_postgres(folder: Path, make: Callable[..., Any] = postgres_state) -> Place:
    factory = make(folder, table="kept")

    def run(*statements: str) -> list[Any]:
        with running().connect() as connection:
            connection.execute(f"SET search_path = {factory.schema}".encode())
            for statement in statements:
                done = connection.execute(statement.format(t="kept").encode())
            return done.fetchall() if done.description else []

    return Place(factory, run)


def in_mariadb(folder: Path) -> Place:
    factory = mariadb_state(folder, table="kept")
    maria.running()
    maria.make_database(str(factory.schema))

    def run(*statements: str) -> list[Any]:
        return maria.running().run(*(one.format(t="kept") for one in statements), database=factory.schema)

    return Place(factory, run)


def in_sqlite(folder: Path) -> Place:
    path = folder / "states.db"

    def run(*statements: str) -> list[Any]:
        connection = sqlite3.connect(path)
        with connection:
            for statement in statements:
                rows = connection.execute(statement.format(t="kept")).fetchall()
        connection.close()
        return rows

    return Place(SqliteState(str(path), "kept"), run)


PLACES: dict[str, Callable[[Path], Place]] = {
    "postgres": in_postgres,
    "sqlalchemy on postgres": lambda folder: in_postgres(folder, sql_state),
    "mariadb": in_mariadb,
    "sqlite": in_sqlite,
}
_FUNCTION = "CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$BEGIN {} END$$"
_ON = "CREATE TRIGGER audit BEFORE INSERT ON {t} FOR EACH ROW EXECUTE FUNCTION meddle()"
_IN_POSTGRES = {
    "a trigger that drops rows": ((_FUNCTION.format("RETURN NULL;"), _ON), "trigger 'audit'"),
    "a trigger that changes rows": ((_FUNCTION.format("NEW.n = 0; RETURN NEW;"), _ON), "trigger 'audit'"),
    "a rule": (("CREATE RULE nothing AS ON UPDATE TO {t} DO INSTEAD NOTHING",), "rule 'nothing'"),
    "no log": (("ALTER TABLE {t} SET UNLOGGED",), "unlogged storage"),
    "an heir": (("CREATE TABLE heir () INHERITS ({t})",), "inheriting table"),
}
_IN_SQLITE = {
    "a trigger that drops rows": (
        ("CREATE TRIGGER audit BEFORE INSERT ON {t} BEGIN SELECT RAISE(IGNORE); END",),
        "trigger 'audit'",
    )
}
_IN_MARIADB = {
    "a trigger that changes rows": (
        ("CREATE TRIGGER audit BEFORE INSERT ON {t} FOR EACH ROW SET NEW.n = 0",),
        "trigger 'audit'",
    ),
    "no transactions": (("ALTER TABLE {t} ENGINE=MyISAM",), "MyISAM as the engine"),
    "no primary key": (("ALTER TABLE {t} DROP PRIMARY KEY",), "missing primary key"),
    "another primary key": (("ALTER TABLE {t} DROP PRIMARY KEY, ADD PRIMARY KEY (_key, n)",), "missing primary key"),
}
ALTERATIONS: dict[str, dict[str, tuple[tuple[str, ...], str]]] = {
    "postgres": {
        **_IN_POSTGRES,
        "a narrower column": (("ALTER TABLE {t} ALTER n TYPE integer",), "column of type integer.*'n'"),
        "an index that takes nulls for different": (
            ("DROP INDEX trident_key_{t}", "CREATE UNIQUE INDEX ON {t} (word)"),
            r"missing unique index NULLS NOT DISTINCT on \(word\)",
        ),
        "another order": (('ALTER TABLE {t} ALTER word TYPE text COLLATE "default"',), "text default.*'word'"),
    },
    "sqlalchemy on postgres": _IN_POSTGRES,
    "mariadb": _IN_MARIADB,
    "sqlite": _IN_SQLITE,
}
CASES = [(place, name) for place, cases in ALTERATIONS.items() for name in cases]


@pytest.mark.parametrize(("place", "name"), CASES)
def test_tables_that_somebody_altered_are_refused_by_name_and_nothing_stays(
    tmp_path: Path, place: str, name: str
) -> None:
    at, (statements, says) = PLACES[place](tmp_path), ALTERATIONS[place][name]
    spec = counts(at.factory)
    with at.open(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 1), ("b", 2)))
        before = state.marker(), content(state)
        at.run(*statements)
        with pytest.raises(ConfigurationError, match=f"{says}.*Nothing was applied"):
            state.apply(ticket(2), batch(spec, ("a", 1), ("c", 3)))
        assert (state.marker(), content(state)) == before
    with pytest.raises(ConfigurationError, match=says):
        at.open(spec)


def test_the_triggers_of_a_table_with_any_name_are_seen(tmp_path: Path) -> None:
    factory = sql_state(tmp_path, table='a:b%c"d')
    spec = counts(factory)
    with factory.make_state(spec) as state, running().connect() as connection:
        connection.execute(f"SET search_path = {factory.schema}".encode())
        connection.execute(_FUNCTION.format("RETURN NEW;").encode())
        connection.execute(_ON.format(t='"a:b%c""d"').encode())
        with pytest.raises(ConfigurationError, match="trigger 'audit'"):
            state.apply(ticket(1), batch(spec, ("a", 1)))


@pytest.mark.parametrize("place", ["postgres", "mariadb", "sqlite"])
def test_a_trigger_that_a_person_allows_is_no_reason_to_refuse(tmp_path: Path, place: str) -> None:
    at = PLACES[place](tmp_path)
    with at.open(counts(at.factory)):
        pass
    trail = {
        "postgres": (_FUNCTION.format("INSERT INTO trail VALUES (NEW.word); RETURN NEW;"), _ON),
        "mariadb": ("CREATE TRIGGER audit AFTER INSERT ON {t} FOR EACH ROW INSERT INTO trail VALUES (NEW.word)",),
        "sqlite": ("CREATE TRIGGER audit AFTER INSERT ON {t} BEGIN INSERT INTO trail VALUES (NEW.word); END",),
    }
    at.run("CREATE TABLE trail (word text)", *trail[place])
    with pytest.raises(ConfigurationError, match=r"allow_triggers=\('audit',\)"):
        at.open(counts(at.factory))
    spec = counts(replace(at.factory, allow_triggers=("audit",)))
    with at.open(spec) as state:
        assert state.apply(ticket(1), batch(spec, ("a", 1))) is Applied.APPLIED
        assert content(state) == {("a",): (1,)}
    assert [tuple(row) for row in at.run("SELECT word FROM trail")] == [("a",)]


@pytest.mark.parametrize("place", ["postgres", "sqlite"])
@pytest.mark.parametrize("make", [counts, product])
def test_rows_that_an_allowed_trigger_drops_are_counted_and_refused(
    tmp_path: Path, place: str, make: Callable[[StateFactory], StateSpec]
) -> None:
    at = PLACES[place](tmp_path)
    spec = make(replace(at.factory, allow_triggers=("audit",)))
    with at.open(spec) as state:
        at.run(*ALTERATIONS[place]["a trigger that drops rows"][0])
        with pytest.raises(ConfigurationError, match=r"sent 2 rows.*has 0 rows changed.*Nothing was applied"):
            state.apply(ticket(1), batch(spec, ("a", 1), ("b", 2)))
        assert (state.marker(), content(state)) == (None, {})


def test_rows_that_a_trigger_changes_whom_the_user_may_not_see_are_read_again(tmp_path: Path) -> None:
    at = in_mariadb(tmp_path)
    spec = counts(replace(at.factory, allow_triggers=("audit",)))
    with at.open(spec) as state:
        at.run(*_IN_MARIADB["a trigger that changes rows"][0])
        with pytest.raises(ConfigurationError, match=r"sent \(5,\) for key \('a',\).*has \(0,\).*Nothing was applied"):
            state.apply(ticket(1), batch(spec, ("a", 5)))
        assert (state.marker(), content(state)) == (None, {})


def test_a_key_that_is_twice_is_an_error_and_not_a_choice(tmp_path: Path) -> None:
    at = in_mariadb(tmp_path)
    spec = counts(at.factory)
    with at.open(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 5)))
        at.run("ALTER TABLE {t} DROP PRIMARY KEY", "INSERT INTO {t} SELECT * FROM {t}")
        with pytest.raises(CorruptRecordError, match=r"the key \('a',\) twice"):
            state.get_many([("a",)])


@pytest.mark.parametrize("make", [counts, product])
@pytest.mark.parametrize("kind", ["sqlite", "sqlalchemy"])
@given(value=st.one_of(st.text("ab01-N", min_size=1, max_size=5), st.binary(min_size=1, max_size=3)))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_value_of_another_type_that_somebody_else_wrote_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, kind: str, make: Callable[[StateFactory], StateSpec], value: Any
) -> None:
    """SQLite adds a number to a text as if the text were one, or zero."""
    at = in_sqlite(tmp_path_factory.mktemp("kept"))
    path = str(at.factory.path)  # type: ignore[attr-defined]
    other = SqlState("db", "kept", connection=Connection(conn_type="sqlite", host=path))
    spec = make(at.factory if kind == "sqlite" else other)
    with at.open(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 2), ("b", 2)))
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE kept SET n = ? WHERE word = 'a'", (value,))
            ((kept,),) = connection.execute("SELECT n FROM kept WHERE word = 'a'")
        is_number = isinstance(kept, int)  # the column's affinity has made one of the text
        with nullcontext() if is_number else pytest.raises(CorruptRecordError, match=r"has .* in column 'n', .* long"):
            state.apply(ticket(2), batch(spec, ("a", 1), ("b", 1)))
        with nullcontext() if is_number else pytest.raises(CorruptRecordError, match="in column 'n'"):
            content(state)
        changed = is_number and make is counts
        assert state.get_many([("b",)]) == [(3 if changed else 2,)]


def test_a_sink_counts_its_rows(tmp_path: Path) -> None:
    folder = in_postgres(tmp_path)
    assert isinstance(folder.factory.schema, str)
    sink = TableSink(CONN_ID, table="kept", schema=folder.factory.schema, allow_triggers=("audit",))
    spec = replace(counts(sink), keys=(), values=(), combiners=())
    with folder.open(spec) as state:
        folder.run(_FUNCTION.format("IF NEW.n = 1 THEN RETURN NULL; END IF; RETURN NEW;"), _ON)
        with pytest.raises(ConfigurationError, match=r"sent 2 rows.*has 1 rows changed"):
            state.apply(ticket(1), batch(spec, ("a", 1), ("b", 2)))
        assert folder.run("SELECT count(*) FROM {t}") == [(0,)]
    with pytest.raises(ConfigurationError, match="trigger 'audit'"):
        folder.open(replace(spec, factory=replace(sink, allow_triggers=())))


@pytest.mark.parametrize("allowed", ["audit", ("",), [1]])
def test_names_of_triggers_are_a_tuple_of_names(allowed: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"allow_triggers=.*tuple of names"):
        SqliteState("states.db", allow_triggers=allowed)


def test_rows_that_a_policy_hides_are_an_error(tmp_path: Path) -> None:
    at = in_postgres(tmp_path)
    spec = counts(at.factory)
    role = f"r{abs(hash(str(tmp_path)))}"
    with at.open(spec):
        pass
    at.run(
        f"CREATE ROLE {role} LOGIN PASSWORD 'reading'",
        f"GRANT ALL ON SCHEMA {at.factory.schema} TO {role}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA {at.factory.schema} TO {role}",
        "CREATE POLICY visible ON {t} USING (n > 1)",
        "ALTER TABLE {t} ENABLE ROW LEVEL SECURITY",
    )
    where = replace(running().connection, login=role, password="reading")
    with pytest.raises(ConfigurationError, match=r"row security of table 'kept'"):
        at.open(counts(replace(at.factory, connection=where)))


# ---- settings --------------------------------------------------------------------------------------------------

POSTGRES_SETTINGS = [
    "extra_float_digits = -3",
    "bytea_output = escape",
    "standard_conforming_strings = off",
    "DateStyle = German",
    "TimeZone = 'America/New_York'",
    "IntervalStyle = sql_standard",
    "synchronous_commit = off",
    "default_transaction_isolation = serializable",
    "default_transaction_read_only = on",
    "transform_null_equals = on",
    "lock_timeout = 0",
]
MARIADB_SETTINGS = [
    "sql_mode = 'EMPTY_STRING_IS_NULL'",
    "sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'",
    "sql_mode = 'PAD_CHAR_TO_FULL_LENGTH'",
    "sql_mode = ''",
    "sql_safe_updates = 1",
    "sql_select_limit = 1",
    "sql_auto_is_null = 1",
    "autocommit = 1",
    "completion_type = 2",
    "tx_isolation = 'READ-UNCOMMITTED'",
    "time_zone = '-08:00'",
    "unique_checks = 0",
]
_ROWS = [("", b"\x00\\x", 0.1 + 0.2), (None, None, math.pi * 1e300), ("a\\'b\"", b"", -5e-324)]


def with_every_type(factory: StateFactory) -> StateSpec:
    spec = combined(factory, "k string", "b binary, x double", Max(), Sum())
    return replace(spec, updater=put_all, combiners=(), opaque=True)


def put_all(state: Any, rows: Any) -> None:
    for key, *value in rows:
        state.multi_get([(key,)])
        state.multi_put([(key,)], [tuple(value)])


def settings_of(place: str, at: Place, setting: str) -> Iterator[StateFactory]:
    name, _, value = setting.partition(" = ")
    if place == "mariadb":
        user = f"u{abs(hash(setting)) % 10**9}"
        server = maria.running()
        server.run(
            f"CREATE OR REPLACE USER {user} IDENTIFIED BY 'reading'",
            f"GRANT ALL ON `{at.factory.schema}`.* TO {user}",
            # for users without SUPER
            f'SET GLOBAL init_connect = "SET {setting}"',
        )
        try:
            yield replace(at.factory, connection=replace(server.connection, login=user, password="reading"))
        finally:
            server.run("SET GLOBAL init_connect = ''")
        return
    role = f"r{abs(hash((place, setting)))}"
    running().connect().close()
    at.run(
        f"CREATE ROLE {role} LOGIN PASSWORD 'reading'",
        f"GRANT ALL ON DATABASE postgres TO {role}",
        f"GRANT ALL ON SCHEMA {at.factory.schema} TO {role}",
        f"ALTER ROLE {role} SET {name} = {value}",
    )
    where = replace(running().connection, login=role, password="reading")
    yield replace(at.factory, connection=where)


@pytest.mark.parametrize(
    ("place", "setting"),
    [
        *(("postgres", setting) for setting in POSTGRES_SETTINGS),
        *(("sqlalchemy on postgres", setting) for setting in POSTGRES_SETTINGS[:9]),
        *(("mariadb", setting) for setting in MARIADB_SETTINGS),
    ],
)
def test_settings_of_roles_and_servers_change_nothing(tmp_path: Path, place: str, setting: str) -> None:
    at = PLACES[place](tmp_path)
    if place != "mariadb":
        at.run(f"CREATE SCHEMA IF NOT EXISTS {at.factory.schema}")
    with contextmanager(settings_of)(place, at, setting) as factory:
        spec = with_every_type(factory)
        with at.open(spec) as state:
            for attempt in range(2):
                state.apply(ticket(1, attempt=attempt), batch(spec, *_ROWS))
            expected = {(key,): (data, number) for key, data, number in _ROWS}
            assert content(state) == expected
            assert state.get_many([(key,) for key, *_ in _ROWS]) == list(expected.values())


def test_a_session_in_which_triggers_do_not_fire_is_refused(tmp_path: Path) -> None:
    at = in_postgres(tmp_path)
    where = replace(running().connection, extra={"options": "-c session_replication_role=replica"})
    with pytest.raises(ConfigurationError, match="role of the session 'replica'"):
        at.open(counts(replace(at.factory, connection=where)))


def test_a_character_set_that_loses_characters_is_refused(tmp_path: Path) -> None:
    at = in_mariadb(tmp_path)
    where = replace(maria.running().connection, extra={"charset": "latin1"})
    with pytest.raises(TridentError, match=r"charset='latin1', which loses characters.*utf8mb4"):
        at.open(counts(replace(at.factory, connection=where)))
