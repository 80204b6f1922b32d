"""A time-out of a task, or Ctrl-C, in the middle of a commit to a table: Python raises it at any step, and then runs
what cleans up. What the table has is never removed. (A killed process cleans up nothing: `test_foreign_tables`.)"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.contracts.state import Applied
from tests.fixtures.state import ticket
from tests.fixtures.table import TABLES, after_the_commit, staged


class TimedOut(BaseException):
    """As Airflow's `AirflowTaskTimeout`: no `Exception`."""


@pytest.fixture(params=TABLES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def committed(kind: str, folder: Path, interrupt: Callable[[Any, Any], None]) -> None:
    """Applies three transactions, and a fourth that is interrupted; then again, as the next attempt does."""
    table = TABLES[kind](folder)
    rows = [("a", txid) for txid in range(1, 5)]
    with table.opened() as state:
        for txid in (1, 2, 3):
            state.apply_files(ticket(txid), staged(folder, rows[txid - 1]))
        interrupt(table, state)
        with pytest.raises(TimedOut):
            state.apply_files(ticket(4), staged(folder, rows[3]))
    with table.opened() as state:
        assert state.apply_files(ticket(4, fence=99), staged(folder, rows[3])) is Applied.ALREADY
        assert sorted(row for _, row in state.items()) == rows


def test_one_at_the_commit_itself(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed(kind, tmp_path, lambda table, state: after_the_commit(table, state, monkeypatch, TimedOut()))


def test_one_in_what_follows_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: Any, state: Any) -> None:
        step = type(state)._delete

        def timed_out(*_: Any, **__: Any) -> None:
            monkeypatch.setattr(type(state), "_delete", step)
            raise TimedOut

        monkeypatch.setattr(type(state), "_delete", timed_out)

    committed("delta", tmp_path, interrupt)


@pytest.mark.parametrize("error", [TimedOut(), RuntimeError("of a catalog's client")], ids=["time-out", "no answer"])
def test_one_before_the_catalog_of_an_iceberg_table_is_done(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, under_way = TABLES["iceberg"](tmp_path), list[Callable[[], None]]()
    with table.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
        send = type(state)._send

        def unanswered(self: Any, transaction: Any) -> None:
            under_way.append(lambda: send(self, transaction))
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(type(state), "_send", unanswered)
            with pytest.raises(BaseException, match=r"without an answer|^$"):
                state.apply_files(ticket(2), staged(tmp_path, ("a", 2)))
        for done in under_way:
            done()
    with table.opened() as state:
        assert state.apply_files(ticket(2, fence=99), staged(tmp_path, ("a", 2))) is Applied.ALREADY
        assert sorted(row for _, row in state.items()) == [("a", 1), ("a", 2)]
