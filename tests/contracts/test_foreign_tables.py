"""Tables that others may write, too: staged files become their own, once, whatever happens meanwhile."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count, FixedBatchSpout, Topology
from airflow_trident.contracts.state import Applied, StagedFiles
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import (
    ConfigurationError,
    CorruptRecordError,
    FencedError,
    OutcomeUnknownError,
    PlanError,
    StagingError,
)
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.testing import MemoryLedger
from tests.fixtures.program import run_code
from tests.fixtures.state import SINKS, ticket
from tests.fixtures.table import TABLES, ForeignTable, after_the_commit, before_the_commit, staged


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> ForeignTable:
    return TABLES[request.param](tmp_path)


# ---- by reference ----------------------------------------------------------------------------------------------


def test_staged_files_become_the_tables_once_and_no_data_are_copied(table: ForeignTable, tmp_path: Path) -> None:
    files = staged(tmp_path, ("a", 1), ("b", 2), files=2)
    with table.opened() as state:
        assert state.apply_files(ticket(1), files) is Applied.APPLIED
        assert state.apply_files(ticket(1), files) is Applied.ALREADY
        assert state.apply_files(ticket(2), StagedFiles(paths=(), num_rows=0)) is Applied.APPLIED
    assert table.rows() == [("a", 1), ("a", 1), ("b", 2), ("b", 2)]
    assert {os.stat(path).st_ino for path in table.data_files()} == {os.stat(path).st_ino for path in files.paths}


def test_a_staged_file_that_is_gone_changes_nothing(table: ForeignTable, tmp_path: Path) -> None:
    files = staged(tmp_path, ("a", 1), files=2)
    os.remove(files.paths[1])
    with table.opened() as state:
        with pytest.raises(StagingError, match=r"is missing.*emitted again"):
            state.apply_files(ticket(1), files)
        assert state.marker() is None
    assert table.data_files() == []


def test_a_table_on_another_file_system_gets_copies(table: ForeignTable, tmp_path: Path, monkeypatch: Any) -> None:
    def other_device(source: str, target: str) -> None:
        if source in files.paths:
            raise OSError(18, "Invalid cross-device link")
        link(source, target)

    files, link = staged(tmp_path, ("a", 1)), os.link
    with table.opened() as state:
        monkeypatch.setattr(os, "link", other_device)
        state.apply_files(ticket(1), files)
    os.remove(files.paths[0])
    assert table.rows() == [("a", 1)]


# ---- crashes and races -----------------------------------------------------------------------------------------

WORKER = """
import sys
from pathlib import Path
from tests.fixtures.state import ticket
from tests.fixtures.table import TABLES, die_at, staged

folder, kind, when, name = Path(sys.argv[1]), *sys.argv[2:]
table = TABLES[kind](folder)
state = table.opened()
owner = table.steps[name](state)
die_at(owner, name, when)
state.apply_files(ticket(3), staged(folder, ("b", 2)))
"""
CUTS = [(kind, when, step) for kind, made in TABLES.items() for step in made.steps for when in ("before", "after")]


@pytest.mark.parametrize(("kind", "when", "step"), CUTS, ids=[" ".join(cut) for cut in CUTS])
def test_a_committer_killed_anywhere_leaves_all_or_nothing(tmp_path: Path, kind: str, when: str, step: str) -> None:
    table = TABLES[kind](tmp_path)
    with table.opened() as state:
        for txid in (1, 2):
            state.apply_files(ticket(txid), staged(tmp_path, ("a", txid)))
    dead = run_code(WORKER, tmp_path, kind, when, step)
    assert dead.returncode == -signal.SIGKILL
    steps = list(table.steps)
    is_applied = steps.index(step) + (when == "after") > steps.index(table.decisive)
    assert (("b", 2) in table.rows()) is is_applied
    with table.opened() as state:
        answer = state.apply_files(ticket(3, fence=50), staged(tmp_path, ("b", 2)))
        assert answer is (Applied.ALREADY if is_applied else Applied.APPLIED)
    assert table.rows() == [("a", 1), ("a", 2), ("b", 2)]


def test_a_committer_that_was_stopped_before_its_commit_changes_nothing(
    table: ForeignTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def newer() -> None:
        with table.opened() as other:
            other.apply_files(ticket(1, fence=9), staged(tmp_path, ("a", 1)))

    with table.opened() as state:
        before_the_commit(table, state, monkeypatch, newer)
        with pytest.raises(FencedError):
            state.apply_files(ticket(1, fence=8), staged(tmp_path, ("zombie", 1)))
        assert state.apply_files(ticket(1, fence=10), staged(tmp_path, ("a", 1))) is Applied.ALREADY
    assert table.rows() == [("a", 1)]
    assert len(table.data_files()) == 1, "what was brought in vain is removed"
    logs = ("_delta_log", "_versions")
    beside = [path for path in (tmp_path / "sales").rglob("*.json") if path.parent.name not in logs]
    assert len(beside) <= 2, "markers that no commit names are removed, too"


def test_a_committer_that_was_stopped_before_it_recorded_its_fence_changes_nothing(
    table: ForeignTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is there already: only the marker would change, and must not go back to a lower fence."""

    def newer() -> None:
        with table.opened() as other:
            assert other.apply_files(ticket(1, fence=99), staged(tmp_path, ("a", 1))) is Applied.ALREADY

    with table.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
        before_the_commit(table, state, monkeypatch, newer)
        with pytest.raises(FencedError):
            state.apply_files(ticket(1, fence=98), staged(tmp_path, ("a", 1)))
        assert state.marker().fence == 99


def test_an_answer_that_was_lost_is_asked_of_the_table(
    table: ForeignTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = staged(tmp_path, ("a", 1))
    with table.opened() as state:
        after_the_commit(table, state, monkeypatch, OSError("connection reset by peer"))
        with pytest.raises(OutcomeUnknownError, match="without an answer"):
            state.apply_files(ticket(1), files)
        assert state.apply_files(ticket(1), files) is Applied.ALREADY
    assert table.rows() == [("a", 1)]


def test_a_storage_that_calls_our_own_commit_another_one_does_not_make_us_remove_its_files(
    table: ForeignTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It repeated the request by itself, and found the name taken."""

    def newer() -> None:
        with table.opened() as other:
            assert other.apply_files(ticket(2, fence=99), staged(tmp_path, ("b", 2))) is Applied.ALREADY

    with table.opened() as state:
        after_the_commit(table, state, monkeypatch, table.lost)
        assert state.apply_files(ticket(1), staged(tmp_path, ("a", 1))) is Applied.APPLIED
        after_the_commit(table, state, monkeypatch, table.lost, newer)
        with pytest.raises(FencedError):
            state.apply_files(ticket(2), staged(tmp_path, ("b", 2)))
        assert state.marker().high == 2
    assert table.rows() == [("a", 1), ("b", 2)]


# ---- what others do meanwhile ----------------------------------------------------------------------------------


def test_appends_and_compactions_of_others_between_decision_and_commit_are_no_harm(
    table: ForeignTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with table.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
        before_the_commit(table, state, monkeypatch, table.append)
        assert state.apply_files(ticket(2), staged(tmp_path, ("b", 2))) is Applied.APPLIED
        before_the_commit(table, state, monkeypatch, table.compact)
        assert state.apply_files(ticket(3), staged(tmp_path, ("c", 3))) is Applied.APPLIED
    assert table.rows() == [("a", 1), ("b", 2), ("c", 3), ("other", 0)]


def test_the_marker_survives_whatever_cleans_up(table: ForeignTable, tmp_path: Path) -> None:
    with table.opened() as state:
        for txid in (1, 2):
            state.apply_files(ticket(txid), staged(tmp_path, ("a", txid)))
    table.forget()
    with table.opened() as state:
        assert state.apply_files(ticket(2, fence=50), staged(tmp_path, ("a", 2))) is Applied.ALREADY
        assert state.apply_files(ticket(3, fence=50), staged(tmp_path, ("a", 3))) is Applied.APPLIED
    assert table.rows() == [("a", 1), ("a", 2), ("a", 3)]


def test_rows_that_others_delete_do_not_come_back(table: ForeignTable, tmp_path: Path) -> None:
    files = staged(tmp_path, ("a", 1))
    with table.opened() as state:
        state.apply_files(ticket(1), files)
        table.delete("a")
        assert state.apply_files(ticket(1, fence=50), files) is Applied.ALREADY
    assert table.rows() == []


def test_a_table_that_was_taken_back_below_the_marker_is_refused_until_that_is_undone(
    table: ForeignTable, tmp_path: Path
) -> None:
    state = table.opened()
    for txid in (1, 2):
        state.apply_files(ticket(txid), staged(tmp_path, ("a", txid)))
    undo = table.take_back()
    for again in (False, True):  # others go on with it
        for act in (state.marker, lambda: state.apply_files(ticket(3), staged(tmp_path, ("a", 3))), table.opened):
            with pytest.raises(CorruptRecordError, match=r"restored to|rolled back or replaced"):
                act()
        if not again:
            table.append()
    undo()
    assert table.rows() == [("a", 1), ("a", 2)]
    assert state.apply_files(ticket(3), staged(tmp_path, ("a", 3))) is Applied.APPLIED
    state.close()


def test_a_column_more_is_null_in_our_rows(
    table: ForeignTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with table.opened() as state:
        before_the_commit(table, state, monkeypatch, table.add_column)
        assert state.apply_files(ticket(1), staged(tmp_path, ("a", 1))) is Applied.APPLIED
        assert state.apply_files(ticket(2), staged(tmp_path, ("b", 2))) is Applied.APPLIED
    assert table.rows() == [("a", 1), ("b", 2)]
    assert table.read()["more"].to_pylist() == [None, None]


def test_a_column_of_ours_that_is_gone_is_refused_before_anything_is_added(
    table: ForeignTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with table.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
        before_the_commit(table, state, monkeypatch, table.drop_column)
        with pytest.raises(ConfigurationError, match="has no column n"):
            state.apply_files(ticket(2), staged(tmp_path, ("b", 2)))
    assert table.read().to_pylist() == [{"word": "a"}]


def test_two_topologies_append_to_one_table(table: ForeignTable, tmp_path: Path) -> None:
    for topology in ("words", "others"):
        with table.spec.factory.make_state(replace(table.spec, topology=topology)) as state:
            assert state.apply_files(ticket(1), staged(tmp_path, (topology, 1))) is Applied.APPLIED
    assert table.rows() == [("others", 1), ("words", 1)]


# ---- in a topology ---------------------------------------------------------------------------------------------


def test_a_topology_appends_its_stream_to_a_table(table: ForeignTable, tmp_path: Path) -> None:
    topology = Topology("words")
    words = topology.new_stream("words", FixedBatchSpout("word string, n long", [("a", 1), ("b", 2)]))
    words.persist_table(table.spec.factory, name="sales")
    with MemoryLedger("words") as ledger:
        runner = LocalRunner(ledger=ledger, topology=topology, engine=LocalEngine(), staging_root=str(tmp_path / "st"))
        runner.run()
    assert table.rows() == [("a", 1), ("b", 2)]
    assert {os.stat(path).st_nlink for path in table.data_files()} == {2}, "the staged files themselves"


def test_what_is_no_table_and_other_modes_are_refused_when_the_dag_is_built(table: ForeignTable) -> None:
    words = Topology("words").new_stream("words", FixedBatchSpout("word string", ["a"]))
    factory = SINKS[table.sink](table.folder)
    with pytest.raises(PlanError, match="persist_table got mode='upsert', which is gone"):
        words.persist_table(factory, mode="upsert")
    with pytest.raises(PlanError, match="persist_table got"):
        words.persist_table("sales")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="only appends"):
        words.group_by("word").persistent_aggregate(factory, Count(), "n")
    with pytest.raises(ConfigurationError, match=r"neither times nor intervals|which no Iceberg table has"):
        words.each("word", lambda word: [None], "took interval day to second").persist_table(factory)
