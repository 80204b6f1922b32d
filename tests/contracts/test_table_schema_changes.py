"""What somebody does to the columns of a table between the decision about a batch and its commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import LongType, NestedField, StringType, StructType

from airflow_trident.contracts.state import Applied, StagedFiles
from airflow_trident.errors import ConfigurationError
from airflow_trident.types import parse_declared
from tests.fixtures.rewrites import appended, keyed, processed, rows_of
from tests.fixtures.state import ticket
from tests.fixtures.table import (
    TABLES,
    ForeignDeltaTable,
    ForeignIcebergTable,
    before_the_commit,
    staged,
)

FIELDS = parse_declared("word string, n int")
WORDS = {pa.string(): "string", pa.int32(): "int", pa.int64(): "long"}


@dataclass(frozen=True, kw_only=True)
class Change:
    """`rows`: what it makes of all rows. `iceberg`: the same as an update of the schema. `error`: of our commit; else
    it is no harm. Not `nullable`: about nulls, of which plain Parquet tables know nothing."""

    rows: Callable[[pa.Table], pa.Table]
    iceberg: Callable[[Any], Any]
    error: str = ""
    nullable: bool = True


def retyped(table: pa.Table) -> pa.Table:
    return table.set_column(table.column_names.index("n"), "n", table["n"].cast(pa.int64()))


def without_nulls(table: pa.Table, name: str) -> pa.Table:
    return table.cast(pa.schema([one.with_nullable(one.name != name) for one in table.schema]))


def with_more(table: pa.Table) -> pa.Table:
    return table.append_column("more", pa.array(["x"] * len(table), pa.string()))


CHANGES = {
    "a column more": Change(rows=with_more, iceberg=lambda update: update.add_column("more", StringType())),
    "another order": Change(
        rows=lambda table: table.select(["n", "word"]), iceberg=lambda update: update.move_first("n")
    ),
    "ours without nulls": Change(
        rows=lambda table: without_nulls(table, "n"),
        iceberg=lambda update: update.update_column("n", required=True),
        nullable=False,
    ),
    "another name": Change(
        rows=lambda table: table.rename_columns([{"n": "many"}.get(name, name) for name in table.column_names]),
        iceberg=lambda update: update.rename_column("n", "many"),
        error="has no column n",
    ),
    "one of ours less": Change(
        rows=lambda table: table.drop(["n"]),
        iceberg=lambda update: update.delete_column("n"),
        error="has no column n",
    ),
    "a wider type": Change(
        rows=retyped,
        iceberg=lambda update: update.update_column("n", LongType()),
        error="its column n is long, and the field int",
    ),
    "a column more without nulls": Change(
        rows=lambda table: without_nulls(with_more(table), "more"),
        iceberg=lambda update: update.add_column("more", StringType(), required=True),
        error="more takes no nulls",
        nullable=False,
    ),
}


def change(table: Any, how: Change) -> None:
    if isinstance(table, ForeignIcebergTable):
        with table.table.update_schema(allow_incompatible_changes=True) as update:
            how.iceberg(update)
        return
    deltalake.write_deltalake(table.table, how.rows(table.read()), mode="overwrite", schema_mode="overwrite")


def files(folder: Path, word: str, n: int) -> StagedFiles:
    path = folder / f"{word}.parquet"
    pq.write_table(pa.table({"word": [word], "n": pa.array([n], pa.int32())}), path)
    return StagedFiles(paths=(str(path),), num_rows=1)


CASES = [(kind, name) for kind in TABLES for name in CHANGES]


@pytest.mark.parametrize(("kind", "name"), CASES, ids=[": ".join(case) for case in CASES])
def test_columns_that_change_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    how, table = CHANGES[name], TABLES[kind](tmp_path, FIELDS)
    with table.opened() as state:
        state.apply_files(ticket(1), files(tmp_path, "a", 1))
        before_the_commit(table, state, monkeypatch, lambda: change(table, how))
        if not how.error:
            assert state.apply_files(ticket(2), files(tmp_path, "b", 2)) is Applied.APPLIED
            assert table.rows() == [("a", 1), ("b", 2)]
            return
        with pytest.raises(ConfigurationError, match=how.error) as caught:
            state.apply_files(ticket(2), files(tmp_path, "b", 2))
        assert caught.value.cure
    iceberg = isinstance(table, ForeignIcebergTable)  # which reads no older rows of a new column without nulls
    left = table.table.scan(selected_fields=("word",)).to_arrow() if iceberg else table.read()
    assert left["word"].to_pylist() == ["a"]
    assert len(table.data_files()) == 1, "what was brought in vain is removed"


def partition(table: Any) -> None:
    """By word, with all rows that are there."""
    if isinstance(table, ForeignIcebergTable):
        with table.table.update_spec() as update:
            update.add_identity("word")
        return
    rows = table.read()
    if isinstance(table, ForeignDeltaTable):
        deltalake.write_deltalake(table.table, rows, mode="overwrite", schema_mode="overwrite", partition_by=["word"])
        return
    table.publish(partition_by=["word"], files=[])
    table.publish(files=table.written(rows))


@pytest.mark.parametrize("kind", TABLES)
def test_another_partitioning_before_the_commit_is_refused_and_nothing_is_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    table = TABLES[kind](tmp_path, FIELDS)
    with table.opened() as state:
        state.apply_files(ticket(1), files(tmp_path, "a", 1))
        before_the_commit(table, state, monkeypatch, lambda: partition(table))
        with pytest.raises(ConfigurationError, match=r"is partitioned by word.*partition_by=\['word'\]"):
            state.apply_files(ticket(2), files(tmp_path, "b", 2))
    assert table.rows() == [("a", 1)]
    assert len(table.data_files()) == 1, "what was brought in vain is removed"
    again = TABLES[kind](tmp_path, FIELDS, partition_by=("word",))
    with again.opened() as state:
        assert state.apply_files(ticket(2, fence=50), files(tmp_path, "b", 2)) is Applied.APPLIED
    assert table.rows() == [("a", 1), ("b", 2)]


def test_a_column_that_gets_its_name_back_takes_the_batch_that_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ForeignIcebergTable(tmp_path, FIELDS)
    with table.opened() as state:
        state.apply_files(ticket(1), files(tmp_path, "a", 1))
        before_the_commit(table, state, monkeypatch, lambda: change(table, CHANGES["another name"]))
        with pytest.raises(ConfigurationError):
            state.apply_files(ticket(2), files(tmp_path, "b", 2))
        with table.table.update_schema() as update:
            update.rename_column("many", "n")
        assert state.apply_files(ticket(2, fence=50), files(tmp_path, "b", 2)) is Applied.APPLIED
    assert table.rows() == [("a", 1), ("b", 2)]


def test_retries_that_somebody_sets_for_commits_do_not_bring_a_batch_in_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ForeignIcebergTable(tmp_path)

    def newer() -> None:
        with table.opened() as other:
            assert other.apply_files(ticket(2, fence=50), staged(tmp_path, ("b", 2))) is Applied.APPLIED

    with table.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
        table.table.transaction().set_properties({"commit.retry.num-retries": "4"}).commit_transaction()
        before_the_commit(table, state, monkeypatch, newer)
        assert state.apply_files(ticket(2, fence=50), staged(tmp_path, ("b", 2))) is Applied.ALREADY
    assert table.rows() == [("a", 1), ("b", 2)]


def test_a_rewritten_file_keeps_columns_of_others_whose_names_go_on_to_new_ones(tmp_path: Path) -> None:
    """Also members of a struct: it is written with the ids of all of them."""
    table = keyed(tmp_path, "iceberg")
    assert isinstance(table, ForeignIcebergTable)

    def renamed(before: str, after: str) -> None:
        with table.table.update_schema() as update:
            update.rename_column(f"theirs.{before}", after)
        with table.table.update_schema() as update:
            update.add_column(("theirs", before), LongType())

    with table.opened() as state:
        with table.table.update_schema() as update:
            update.add_column("theirs", StructType(NestedField(100, "a", LongType(), required=False)))
        theirs = pa.array([{"a": 10}, {"a": 20}], pa.struct({"a": pa.int64()}))
        appended(table, rows_of((1, "a"), (2, "b")).append_column("theirs", theirs))
        renamed("a", "b")
        state.apply_files(ticket(1), processed(table, state, 1, (1, "ours")))
        renamed("b", "c")
        state.apply(ticket(2), rows_of((3, "ours")))
    rows = {row["id"]: row["theirs"] for row in table.read().to_pylist()}
    assert rows == {1: None, 2: {"a": None, "b": None, "c": 20}, 3: None}
