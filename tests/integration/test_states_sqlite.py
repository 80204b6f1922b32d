"""What is peculiar to states in SQLite files: what other programs see in them, and files that cannot be used."""

from __future__ import annotations

import pickle
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.contracts.state import Applied
from airflow_trident.errors import (
    ConfigurationError,
    CorruptError,
    CorruptRecordError,
    DefinitionChangedError,
    StoreUnavailableError,
)
from airflow_trident.operations.aggregators import Count, Max, Sum
from airflow_trident.protocol.records import NO_ATTEMPT
from airflow_trident.states.sql.sqlite import SqliteState
from tests.fixtures.state import Product, batch, combined, content, counts, keep_longest, ticket


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "states.db"


def query(path: Path, statement: str) -> list[tuple[Any, ...]]:
    """As any other program would."""
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement).fetchall()


# ---- what other programs see -----------------------------------------------------------------------------------


def test_any_sqlite_client_can_query_the_columns(path: Path) -> None:
    spec = combined(SqliteState(str(path)), "word string, year int", "n long, latest timestamp", Count(), Max())
    with spec.factory.make_state(spec) as state:
        import datetime

        when = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)
        state.apply(ticket(1), batch(spec, ("a", 2024, 3, when), (None, 2023, 1, None)))
    assert query(path, "SELECT word, year, n, datetime(latest) FROM words_counts ORDER BY n") == [
        (None, 2023, 1, None),
        ("a", 2024, 3, "2024-05-01 12:00:00"),
    ]
    assert query(path, "SELECT _key FROM words_counts ORDER BY n") == [("[null,2023]",), ('["a",2024]',)]


def test_a_reader_sees_the_last_committed_batch_while_another_one_is_applied(path: Path) -> None:
    seen: list[Any] = []

    class Looking(Product):
        def combine(self, left: int, right: int) -> int:
            seen.extend(query(path, "SELECT n FROM words_counts"))
            return left * right

    spec = combined(SqliteState(str(path)), "word string", "n long", Looking())
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 2)))
        state.apply(ticket(2), batch(spec, ("a", 5)))
        assert seen == [(2,)]
        assert content(state) == {("a",): (10,)}


def test_the_marker_is_a_row_that_people_can_read(path: Path) -> None:
    spec = counts(SqliteState(str(path)))
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(3), batch(spec, ("a", 1)))
    assert query(path, "SELECT * FROM trident_applied") == [
        (
            "words",
            "counts",
            "words_counts",
            "(word string) -> (n long)",
            "i1",
            3,
            30,
            "[[1, 2]]",
            '{"lines": {"to": 3}}',
            NO_ATTEMPT,
        )
    ]


def test_get_many_gives_the_values_of_keys_in_their_order(path: Path) -> None:
    spec = counts(SqliteState(str(path)))
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, *((f"w{number}", number) for number in range(2000))))
        keys = [(f"w{number}",) for number in range(1999, -2, -1)]
        assert state.get_many(keys) == [(number,) for number in range(1999, -1, -1)] + [None]
        assert state.get_many([]) == []
        assert state.count() == 2000


def test_names_of_fields_may_be_words_of_sql(path: Path) -> None:
    spec = combined(SqliteState(str(path), table="my table; --"), "select string, _key_ long", "order long", Count())
    with spec.factory.make_state(spec) as state:
        for txid in (1, 2):
            state.apply(ticket(txid), batch(spec, ("a", 1, 1)))
        assert content(state) == {("a", 1): (2,)}


def test_a_topologys_name_need_not_be_an_identifier(path: Path) -> None:
    spec = counts(SqliteState(str(path)), topology="Zählung-1", name="per.word")
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 1)))
    assert query(path, "SELECT n FROM Z_hlung_1_per_word_07854622c658104e") == [(1,)]


def test_a_path_may_begin_with_a_tilde_or_be_relative_and_its_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    home = counts(SqliteState("~/a/b/home.db"))
    here = counts(SqliteState("c/here.db"))
    for spec in (home, here):
        with spec.factory.make_state(spec) as state:
            state.apply(ticket(1), batch(spec, ("a", 1)))
    assert (tmp_path / "a/b/home.db").exists()
    assert (tmp_path / "c/here.db").exists()


def test_making_the_factory_opens_nothing_and_it_can_be_sent_elsewhere(path: Path) -> None:
    factory = SqliteState(str(path), table="t")
    assert pickle.loads(pickle.dumps(factory)) == factory
    assert factory.describe() == f"SqliteState({path}, t)"
    assert factory.capabilities.durable
    assert factory.capabilities.atomic
    assert not path.exists()


def test_a_commit_survives_without_a_clean_close(path: Path) -> None:
    """The write-ahead log alone holds it: the main file is not written before a checkpoint."""
    spec = counts(SqliteState(str(path)))
    state = spec.factory.make_state(spec)
    state.apply(ticket(1), batch(spec, ("a", 1)))
    copies = {suffix: Path(f"{path}{suffix}").read_bytes() for suffix in ("", "-wal")}
    state.close()
    for suffix, copy in copies.items():
        Path(f"{path.parent / 'copy.db'}{suffix}").write_bytes(copy)
    spec = counts(SqliteState(str(path.parent / "copy.db")))
    with spec.factory.make_state(spec) as state:
        assert content(state) == {("a",): (1,)}
        assert state.dialect.file.connection.execute("PRAGMA synchronous").fetchone() == (2,)  # type: ignore[attr-defined]


# ---- whose table is it -----------------------------------------------------------------------------------------


def test_a_table_that_somebody_else_made_is_left_alone(path: Path) -> None:
    query(path, "CREATE TABLE words_counts (word, n)")
    spec = counts(SqliteState(str(path)))
    with pytest.raises(ConfigurationError, match=r"'words_counts' .* belongs to something else.*another table"):
        spec.factory.make_state(spec)
    assert query(path, "SELECT name FROM sqlite_master") == [("words_counts",)]


def test_two_states_cannot_share_a_table(path: Path) -> None:
    one = counts(SqliteState(str(path), table="a_b_c"), topology="a_b", name="c")
    two = counts(SqliteState(str(path), table="A_b_c"), topology="A", name="b_c")
    one.factory.make_state(one).close()
    with pytest.raises(ConfigurationError, match=r"belongs to state 'c' of topology 'a_b', not to state 'b_c'"):
        two.factory.make_state(two)


def test_other_fields_under_the_same_name_are_refused(path: Path) -> None:
    spec = counts(SqliteState(str(path)))
    spec.factory.make_state(spec).close()
    for changed in (
        combined(spec.factory, "word string", "n double", Sum()),
        combined(spec.factory, "w string", "n long", Count()),
        replace(spec, factory=SqliteState(str(path), table="other")),
    ):
        with pytest.raises(DefinitionChangedError, match=r"is the table 'words_counts' with the fields .* new name"):
            changed.factory.make_state(changed)


@pytest.mark.parametrize("fields", ["word string, WORD string", "_key string", "_KEY long"])
def test_fields_that_cannot_be_columns_are_refused(path: Path, fields: str) -> None:
    spec = combined(SqliteState(str(path)), fields, "n long", Count())
    with pytest.raises(ConfigurationError, match="Rename the field"):
        spec.factory.make_state(spec)


@pytest.mark.parametrize("table", ["sqlite_x", "SQLITE_y", "trident_applied", "Trident_keyvalue_marks", ""])
def test_names_of_sqlite_and_of_the_marker_are_refused(path: Path, table: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the table"):
        SqliteState(str(path), table=table)


@pytest.mark.parametrize("text", ["", ":memory:", "file:x?mode=memory"])
def test_a_path_that_is_no_file_is_refused_when_the_dag_is_built(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"MemoryState|without a path"):
        SqliteState(text)


# ---- files that cannot be used ---------------------------------------------------------------------------------


def test_a_locked_file_is_retryable_and_nothing_was_applied(path: Path) -> None:
    spec = counts(SqliteState(str(path), busy_timeout_s=0.05))
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 1)))
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailableError, match=r"states\.db' is locked by another program.*Nothing was"):
                state.apply(ticket(2), batch(spec, ("a", 1)))
            other.execute("ROLLBACK")
        assert state.apply(ticket(2), batch(spec, ("a", 1))) is Applied.APPLIED
        assert content(state) == {("a",): (2,)}


def test_a_file_that_is_no_database_is_left_as_it_is(path: Path) -> None:
    text = "word,n\n" * 200
    path.write_text(text)
    spec = counts(SqliteState(str(path)))
    with pytest.raises(ConfigurationError, match=r"states\.db' is not an SQLite file"):
        spec.factory.make_state(spec)
    assert path.read_text() == text


def test_a_folder_in_place_of_the_file_is_a_configuration_error(path: Path) -> None:
    path.mkdir()
    spec = counts(SqliteState(str(path)))
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        spec.factory.make_state(spec)


def test_a_file_in_place_of_the_folder_is_a_configuration_error(path: Path) -> None:
    path.write_text("")
    spec = counts(SqliteState(str(path / "states.db")))
    with pytest.raises(ConfigurationError, match=r"the folder of the state .*states\.db'"):
        spec.factory.make_state(spec)


def test_a_damaged_file_is_an_error_and_not_an_empty_state(path: Path) -> None:
    spec = counts(SqliteState(str(path)))
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, *((f"w{number}", 1) for number in range(5000))))
    content_ = bytearray(path.read_bytes())
    content_[8192:] = b"\x55" * len(content_[8192:])
    path.write_bytes(content_)
    with pytest.raises(CorruptError, match=r"damaged .*Restore"), spec.factory.make_state(spec) as state:
        list(state.items())


@pytest.mark.parametrize("damage", ["holes = '['", "holes = '[[1]]'", "position = '{'", "fence = 'x'", "high = 'x'"])
def test_a_damaged_marker_is_an_error_and_not_a_missing_one(path: Path, damage: str) -> None:
    spec = counts(SqliteState(str(path)))
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 1)))
        query(path, f"UPDATE trident_applied SET {damage}")
        with pytest.raises(CorruptRecordError, match=r"'counts' in trident_applied .* cannot be read.*copy"):
            state.marker()
        with pytest.raises(CorruptRecordError):
            state.apply(ticket(2), batch(spec, ("a", 1)))
        assert content(state) == {("a",): (1,)}


def test_a_marker_row_that_was_deleted_is_an_error_and_nothing_is_applied(path: Path) -> None:
    spec = counts(SqliteState(str(path)))
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 1)))
        query(path, "DELETE FROM trident_applied")
        with pytest.raises(CorruptRecordError, match="is gone"):
            state.apply(ticket(1), batch(spec, ("a", 1)))
        assert content(state) == {("a",): (1,)}
    with pytest.raises(ConfigurationError, match="belongs to something else"):
        spec.factory.make_state(spec)


def test_a_table_that_somebody_changed_is_an_error(path: Path) -> None:
    spec = counts(SqliteState(str(path)))
    with spec.factory.make_state(spec) as state:
        query(path, "ALTER TABLE words_counts RENAME COLUMN n TO m")
        with pytest.raises(ConfigurationError, match=r"not as it was made.*restore"):
            state.apply(ticket(1), batch(spec, ("a", 1)))
        assert state.marker() is None


def test_an_updater_that_changes_the_file_through_its_state_sees_the_stores_own_errors(path: Path) -> None:
    """An error of the store inside user code is the store's, not the user's."""

    def failing(state: Any, rows: Any) -> None:
        raise StoreUnavailableError("the other store is down", "Try again.")

    spec = replace(combined(SqliteState(str(path)), "word string", "line string"), updater=failing)
    with spec.factory.make_state(spec) as state, pytest.raises(StoreUnavailableError, match="other store"):
        state.apply(ticket(1), batch(spec, ("a", "x")))
    spec = replace(spec, updater=keep_longest)
    with spec.factory.make_state(spec) as state:
        query(path, "DROP TABLE words_counts")
        with pytest.raises(ConfigurationError, match="not as it was made"):
            state.apply(ticket(1), batch(spec, ("a", "x")))
