"""A Delta state as a table that is read without aggregating."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pytest

from airflow_trident.errors import ConfigurationError
from airflow_trident.operations.aggregators import Count
from airflow_trident.states.delta import published
from airflow_trident.states.delta.state import DeltaState
from airflow_trident.types import parse_declared
from tests.fixtures.state import batch, combined, counts, keep_longest, ticket


def spec_in(folder: Path) -> Any:
    return counts(DeltaState(str(folder), table="n"))


def read(folder: Path) -> dict[str, Any]:
    rows = deltalake.DeltaTable(str(folder / "n_latest")).to_pyarrow_table().to_pylist()
    found = {row.pop("word"): row for row in rows}
    assert len(found) == len(rows)
    return {word: next(iter(row.values())) for word, row in found.items()}


def test_the_published_table_has_one_row_for_a_key(tmp_path: Path) -> None:
    spec = spec_in(tmp_path)
    with spec.factory.make_state(spec) as state:
        assert not state.publish(), "nothing is applied"
        state.apply(ticket(1), batch(spec, ("a", 1), ("b", 2)))
        state.apply(ticket(2), batch(spec, ("a", 3)))
        assert state.publish()
        assert not state.publish()
        assert read(tmp_path) == {"a": 4, "b": 2}
        state.apply(ticket(3), batch(spec, ("b", 1), ("c", 1)))
        assert read(tmp_path) == {"a": 4, "b": 2}, "it is a step of its own"
        state.fold()
        assert state.publish()
    assert read(tmp_path) == {"a": 4, "b": 3, "c": 1}


def test_a_state_that_was_made_anew_is_published_anew(tmp_path: Path) -> None:
    spec = spec_in(tmp_path)
    with spec.factory.make_state(spec) as state:
        for txid in range(1, 6):
            state.apply(ticket(txid), batch(spec, ("a", 1)))
        assert state.publish()
    shutil.rmtree(tmp_path / "n")
    with spec.factory.make_state(spec) as state:
        for txid in (1, 2):
            state.apply(ticket(txid), batch(spec, ("b", 2)))
        assert state.publish()
        assert read(tmp_path) == {"b": 4}
        assert not state.publish()


def test_a_state_without_keys_is_one_row(tmp_path: Path) -> None:
    spec = combined(DeltaState(str(tmp_path), table="n"), "", "n long", Count())
    with spec.factory.make_state(spec) as state:
        for txid in (1, 2):
            state.apply(ticket(txid), batch(spec, (txid,)))
        assert state.publish()
    assert deltalake.DeltaTable(str(tmp_path / "n_latest")).to_pyarrow_table().to_pylist() == [{"n": 3}]


def test_a_key_that_was_removed_has_no_row(tmp_path: Path) -> None:
    spec = replace(
        combined(DeltaState(str(tmp_path), table="n"), "word string", "line string"),
        updater=keep_longest,
        staged=parse_declared("word string, line string"),
    )
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", "xx"), ("b", "y")))
        state.apply(ticket(2), batch(spec, ("b", None)))
        assert state.publish()
    assert read(tmp_path) == {"a": "xx"}


def test_who_is_late_publishes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, described = spec_in(tmp_path), published.described

    def newer(*args: Any) -> Any:
        monkeypatch.setattr(published, "described", described)
        with spec.factory.make_state(spec) as other:
            other.apply(ticket(2), batch(spec, ("a", 3)))
            assert other.publish()
        return described(*args)

    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 1)))
        monkeypatch.setattr(published, "described", newer)
        assert not state.publish()
    assert read(tmp_path) == {"a": 4}


WORKER = """
import os, signal, sys
from pathlib import Path
import deltalake
from tests.contracts.test_published_states import spec_in

spec, when = spec_in(Path(sys.argv[1])), sys.argv[2]
state = spec.factory.make_state(spec)
commit = deltalake.DeltaTable.create_write_transaction


def killed(*args, **options):
    if when == "after":
        commit(*args, **options)
    os.kill(os.getpid(), signal.SIGKILL)


deltalake.DeltaTable.create_write_transaction = killed
state.publish()
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_who_is_killed_has_published_all_or_nothing(tmp_path: Path, when: str) -> None:
    spec = spec_in(tmp_path)
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 1)))
        state.publish()
        state.apply(ticket(2), batch(spec, ("a", 3)))
    dead = subprocess.run([sys.executable, "-c", WORKER, str(tmp_path), when], check=False)
    assert dead.returncode == -signal.SIGKILL
    assert read(tmp_path) == {"a": 4 if when == "after" else 1}
    with spec.factory.make_state(spec) as state:
        assert state.publish() is (when == "before")
    assert read(tmp_path) == {"a": 4}


def test_a_table_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    spec = spec_in(tmp_path)
    other = replace(spec, name="other", factory=DeltaState(str(tmp_path), table="n_latest"))
    other.factory.make_state(other).close()
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 1)))
        with pytest.raises(ConfigurationError, match="is not what state 'counts' of topology 'words' was published as"):
            state.publish()
