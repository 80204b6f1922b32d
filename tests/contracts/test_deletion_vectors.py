"""Delta tables of which somebody deletes rows by deletion vectors: no deleted row comes back, and no key is doubled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import DeltaState
from airflow_trident.contracts.state import Applied, StagedFiles
from airflow_trident.errors import ConfigurationError
from tests.fixtures.deletion_vectors import delete_rows, purge, rows_in
from tests.fixtures.rewrites import keyed, processed
from tests.fixtures.state import batch, counts, ticket
from tests.fixtures.table import ForeignDeltaTable, ForeignTable, before_the_commit, staged

Batch = Callable[[Any, int], StagedFiles]


def overwritten(folder: Path) -> tuple[ForeignTable, Batch]:
    table = ForeignDeltaTable(folder, partition_by=("word",), overwrites=True)
    return table, lambda _state, txid: staged(folder, ("a", txid), ("a", -txid))


def rewritten(folder: Path) -> tuple[ForeignTable, Batch]:
    table = keyed(folder, "delta")
    return table, lambda state, txid: processed(table, state, txid, (1, f"a{txid}"), (txid * 10, "b"))


@pytest.mark.parametrize("mode", [overwritten, rewritten])
def test_a_table_whose_rows_are_replaced_takes_none(
    mode: Callable[[Path], tuple[ForeignTable, Batch]], tmp_path: Path
) -> None:
    table, batch = mode(tmp_path)
    with table.opened() as state:
        assert state.apply_files(ticket(1), batch(state, 1)) is Applied.APPLIED
        again = batch(state, 2)
        delete_rows(tmp_path / "sales", 1)
        left = rows_in(tmp_path / "sales")
        with pytest.raises(ConfigurationError, match="has deletion vectors") as caught:
            state.apply_files(ticket(2), again)
        assert "APPLY (PURGE)" in caught.value.cure
    with pytest.raises(ConfigurationError, match="has deletion vectors"):
        table.opened()
    assert rows_in(tmp_path / "sales") == left, "nothing was applied"
    purge(tmp_path / "sales")
    with table.opened() as state:
        assert state.apply_files(ticket(2), batch(state, 2)) is Applied.APPLIED


def test_rows_are_appended_beside_deleted_ones(tmp_path: Path) -> None:
    table = ForeignDeltaTable(tmp_path)
    with table.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1), ("b", 2)))
        delete_rows(tmp_path / "sales", 1)
        assert state.apply_files(ticket(2), staged(tmp_path, ("c", 3))) is Applied.APPLIED
        assert state.apply_files(ticket(2), staged(tmp_path, ("c", 3))) is Applied.ALREADY
        assert rows_in(tmp_path / "sales") == [("a", 1), ("c", 3)]
        with pytest.raises(ConfigurationError, match="has deletion vectors"):
            list(state.items())


def test_vectors_that_come_between_the_look_and_the_commit_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, batch = overwritten(tmp_path)
    with table.opened() as state:
        state.apply_files(ticket(1), batch(state, 1))
        before_the_commit(table, state, monkeypatch, lambda: delete_rows(tmp_path / "sales", 1))
        with pytest.raises(ConfigurationError, match="has deletion vectors"):
            state.apply_files(ticket(2), batch(state, 2))
    assert rows_in(tmp_path / "sales") == [("a", 1)]


def test_a_state_does_not_count_what_somebody_deleted_of_its_runs(tmp_path: Path) -> None:
    spec = counts(DeltaState(str(tmp_path)))
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 1), ("b", 2)))
        (log,) = tmp_path.rglob("_delta_log")
        delete_rows(log.parent, 1)
        for refused in (
            lambda: state.apply(ticket(2), batch(spec, ("a", 1))),
            lambda: state.get_many([("b",)]),
            lambda: spec.factory.make_state(spec).get_many([("b",)]),
        ):
            with pytest.raises(ConfigurationError, match="has deletion vectors"):
                refused()
