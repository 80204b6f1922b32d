"""Key-value states in a file: what a step costs, who comes in between, and what SQLite alone can meet."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.errors import (
    ConfigurationError,
    CorruptRecordError,
    FencedError,
    NewerRecordError,
    StoreUnavailableError,
)
from airflow_trident.states.keyvalue.sqlite import SqliteKeyValueState, SqliteStateProvider
from tests.fixtures.keyvalue import STEPS, State, committed, prepare


@pytest.mark.parametrize("rows", [1_000, 20_000])
def test_k10_the_work_of_a_step_does_not_grow_with_the_state(rows: int, tmp_path: Path) -> None:
    """Counted in instructions of SQLite's machine, so that it does not depend on the machine of the test."""
    with SqliteStateProvider(str(tmp_path / "states.db")).new_state("n") as state:
        for number in range(rows):
            state.put(number, number)
        state.prepare_commit(1, fence=1)
        state.commit(1, fence=1)
        ticks = 0

        def tick() -> int:
            nonlocal ticks
            ticks += 1
            return 0

        state._connection.set_progress_handler(tick, 1)
        for number in range(10):
            state.put(number, -1)
            state.delete(number + 500)
        state.prepare_commit(2, fence=1)
        state.commit(2, fence=1)
        state.put(1, 1)
        state.prepare_commit(3, fence=1)
        state.rollback(fence=1)
        assert 0 < ticks < 3_000


@pytest.mark.parametrize("step", ["prepare", "commit", "commit at once", "roll back"])
def test_k9_k11_nobody_gets_between_the_check_of_a_fence_and_the_write(step: str, tmp_path: Path) -> None:
    """A newer committer tries before every statement of a step: it comes before the step or after it."""
    before: set[str] = set()
    for number in range(1, 9):
        path = str(tmp_path / f"{number}.db")
        with (
            SqliteStateProvider(path).new_state("n") as old,
            SqliteStateProvider(path, busy_timeout_s=0.0).new_state("n") as newer,
        ):
            committed(old, 1, fence=5, a=1)
            old.put("a", 2)
            if step == "commit":
                prepare(old, 2, fence=5)
            statements, overtook = 0, False

            def overtake(_: str, number: int = number, newer: State = newer) -> None:
                nonlocal statements, overtook
                statements += 1
                if statements == number:
                    try:
                        newer.rollback(fence=9)
                        overtook = True
                    except StoreUnavailableError:
                        overtook = False

            old._connection.set_trace_callback(overtake)
            try:
                STEPS[step](old, 5)
                before.add("done")
                assert not overtook
            except FencedError:
                before.add("fenced")
                assert overtook
            old._connection.set_trace_callback(None)
            assert old.marks().fence == (9 if overtook else 5)
    assert before == {"done", "fenced"}


def test_a_file_of_a_newer_version_is_not_guessed_at(tmp_path: Path) -> None:
    provider = SqliteStateProvider(str(tmp_path / "states.db"))
    provider.new_state("n").close()
    connection = sqlite3.connect(provider.path)
    connection.execute("UPDATE trident_keyvalue_format SET version = 2")
    connection.commit()
    connection.close()
    with pytest.raises(NewerRecordError, match="version 2"):
        provider.new_state("n")


def test_a_damaged_value_is_an_error_and_not_a_missing_key(tmp_path: Path) -> None:
    provider = SqliteStateProvider(str(tmp_path / "states.db"))
    with provider.new_state("n") as state:
        committed(state, 1, a=1)
        state._connection.execute("UPDATE trident_keyvalue_committed SET value = '{'")
        with pytest.raises(CorruptRecordError, match="namespace 'n'"):
            state.get("a")


def test_a_file_that_is_no_database_or_locked_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no database, and long enough to be told apart from one\n" * 20)
    with pytest.raises(ConfigurationError, match="not an SQLite file"):
        SqliteStateProvider(str(tmp_path / "text")).new_state("n")
    with SqliteStateProvider(str(tmp_path / "states.db"), busy_timeout_s=0.0).new_state("n") as state:
        assert isinstance(state, SqliteKeyValueState)
        other = sqlite3.connect(state.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        state.put("a", 1)
        with pytest.raises(StoreUnavailableError, match="locked"):
            state.prepare_commit(1, fence=1)
        other.execute("ROLLBACK")
        other.close()
        committed(state, 1)
        assert state.get("a") == 1, "the pending write was lost"


@pytest.mark.parametrize("path", ["", ":memory:", "file:x?mode=memory", 7])
def test_a_path_that_is_no_file_is_refused(path: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot keep states|without a path"):
        SqliteStateProvider(path)
