"""Iceberg tables whose rows somebody deletes by files of their own: no deleted row comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_trident import TableSpout
from airflow_trident.contracts.state import Applied
from airflow_trident.errors import ConfigurationError, TableChangedError
from tests.fixtures.delete_files import delete_equal, delete_row
from tests.fixtures.rewrites import found, keyed, processed
from tests.fixtures.state import ticket
from tests.fixtures.table import ForeignIcebergTable, staged


def delete_place(table: ForeignIcebergTable, place: int, **values: Any) -> None:
    """A row of the table's only file."""
    (task,) = table.table.scan().plan_files()
    delete_row(table.table, task.file.file_path, place, tuple(values.values()))


def test_rows_of_a_rewritten_table_stay_deleted(tmp_path: Path) -> None:
    table: Any = keyed(tmp_path, "iceberg")
    with table.opened() as state:
        state.apply_files(ticket(1), processed(table, state, 1, (1, "a"), (2, "b"), (3, "c")))
        delete_place(table, 1)
        assert found(table) == [(1, "a"), (3, "c")]
        assert state.apply_files(ticket(2), processed(table, state, 2, (1, "new"))) is Applied.APPLIED
        assert found(table) == [(1, "new"), (3, "c")]


def test_a_row_that_is_deleted_between_processing_and_commit_stays_so(tmp_path: Path) -> None:
    table: Any = keyed(tmp_path, "iceberg")
    with table.opened() as state:
        state.apply_files(ticket(1), processed(table, state, 1, (1, "a"), (2, "b"), (3, "c")))
        again = processed(table, state, 2, (1, "new"))
        delete_place(table, 1)
        with pytest.raises(TableChangedError):
            state.apply_files(ticket(2), again)
        assert found(table) == [(1, "a"), (3, "c")]


def test_a_partition_is_replaced_with_its_delete_files(tmp_path: Path) -> None:
    table = ForeignIcebergTable(tmp_path, partition_by=("word",), overwrites=True)
    with table.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1), ("a", 2)))
        delete_place(table, 1, word="a")
        assert table.rows() == [("a", 1)]
        state.apply_files(ticket(2), staged(tmp_path, ("b", 2)))
        assert table.rows() == [("a", 1), ("b", 2)]
        state.apply_files(ticket(3), staged(tmp_path, ("a", 9), ("a", 10)))
    assert table.rows() == [("a", 9), ("a", 10), ("b", 2)], "what was deleted of old files deletes nothing of new ones"


def test_rows_are_appended_beside_deleted_ones_and_the_spout_reads_none_of_them(tmp_path: Path) -> None:
    table = ForeignIcebergTable(tmp_path)
    with table.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1), ("b", 2)))
        delete_place(table, 1)
        state.apply_files(ticket(2), staged(tmp_path, ("c", 3)))
        assert sorted(row for _, row in state.items()) == [("a", 1), ("c", 3)]
    assert table.rows() == [("a", 1), ("c", 3)]
    spout = TableSpout(table.spec.factory, fields="word string, n long", start="snapshot")
    with pytest.raises(ConfigurationError, match="deleted rows in files of their own"):
        spout.coordinator().initialize_transaction(1, None)


def test_equality_deletes_are_refused_where_rows_would_come_back(tmp_path: Path) -> None:
    table: Any = keyed(tmp_path, "iceberg")
    with table.opened() as state:
        state.apply_files(ticket(1), processed(table, state, 1, (1, "a"), (2, "b")))
        again = processed(table, state, 2, (1, "new"))
        delete_equal(table.table, "id", 2)
        for refused in (lambda: state.apply_files(ticket(2), again), lambda: processed(table, state, 2, (1, "x"))):
            with pytest.raises(ConfigurationError, match="equality delete files") as caught:
                refused()
            assert "rewrite_data_files" in caught.value.cure
    spout = TableSpout(table.spec.factory, fields="id long", start="snapshot")
    with pytest.raises(ConfigurationError, match="equality delete files"):
        spout.coordinator().initialize_transaction(1, None)
