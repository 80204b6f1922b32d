"""Races of three processes for one batch of a table: one applies it, the others find it applied."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.contracts.state import Applied, StagedFiles
from tests.fixtures.program import Waiting
from tests.fixtures.rewrites import appended, found, keyed, processed, rows_of
from tests.fixtures.state import ticket
from tests.fixtures.table import TABLES, ForeignTable, staged

COMMITTER = """
import pickle, sys
from tests.fixtures.state import ticket

with open(sys.argv[1], "rb") as file:
    spec, files = pickle.load(file)
state = spec.factory.make_state(spec)
print("ready", flush=True)
sys.stdin.read()
with state:
    print(state.apply_files(ticket(2), files).value, flush=True)
"""
Rows = list[tuple[Any, ...]]


def appending(kind: str, folder: Path) -> tuple[ForeignTable, StagedFiles, Rows]:
    table = TABLES[kind](folder)
    with table.opened() as state:
        state.apply_files(ticket(1), staged(folder, ("a", 1)))
    return table, staged(folder, ("a", 2), ("b", 2)), [("a", 1), ("a", 2), ("b", 2)]


def overwriting(kind: str, folder: Path) -> tuple[ForeignTable, StagedFiles, Rows]:
    table = TABLES[kind](folder, partition_by=("word",), overwrites=True)
    with table.opened() as state:
        state.apply_files(ticket(1), staged(folder, ("a", 1), ("a", -1)))
    table.append("b")
    return table, staged(folder, ("a", 2)), [("a", 2), ("b", 0)]


def rewriting(kind: str, folder: Path) -> tuple[ForeignTable, StagedFiles, Rows]:
    table = keyed(folder, kind)
    with table.opened() as state:
        state.apply_files(ticket(1), processed(table, state, 1, (1, "a"), (2, "b")))
        appended(table, rows_of((7, "theirs")))
        files = processed(table, state, 2, (1, "new"), (3, "c"))
    return table, files, [(1, "new"), (2, "b"), (3, "c"), (7, "theirs")]


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("mode", [appending, overwriting, rewriting])
def test_of_three_processes_one_applies(
    mode: Callable[[str, Path], tuple[ForeignTable, StagedFiles, Rows]], kind: str, tmp_path: Path
) -> None:
    table, files, meant = mode(kind, tmp_path)
    work = tmp_path / "work.pickle"
    work.write_bytes(pickle.dumps((table.spec, files)))
    committers = [Waiting(COMMITTER, work) for _ in range(3)]
    for one in committers:
        one.go_on()
    ends = [one.ended() for one in committers]
    assert sorted(said for _, said in ends) == sorted([Applied.APPLIED.value, *[Applied.ALREADY.value] * 2])
    assert {code for code, _ in ends} == {0}
    assert (table.rows() if table.spec.keys == () else found(table)) == meant
    with table.opened() as state:
        assert state.apply_files(ticket(2), files) is Applied.ALREADY
