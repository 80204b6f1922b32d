"""Compaction by Spark: the rows that count stay, whoever commits, compacts or writes meanwhile, and no others do."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import DataScan

from airflow_trident.contracts.committed_table import ReplacedFiles
from airflow_trident.contracts.staged_batch import StagedFiles
from airflow_trident.contracts.state import Applied, StateSpec
from airflow_trident.contracts.upkeep import Upkeep
from airflow_trident.errors import ConfigurationError, CorruptRecordError, TableChangedError
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.runtime.upkeep import keep_up
from airflow_trident.staging.table_compaction import Compacted, CompactionWork, files_to_rewrite, upkeep_folder
from tests.contracts.test_table_upserts import FIELDS, changes, changes_table, latest, three
from tests.contracts.test_upkeep_at_once import at_once
from tests.fixtures.state import ticket
from tests.fixtures.table import TABLES, ForeignTable, before_the_commit

Compact = Callable[[StateSpec], bool]
SMALL = 1 << 20
ONE_KIND = ["parquet", *(pytest.param(kind, marks=pytest.mark.rare) for kind in TABLES if kind != "parquet")]
"""What each kind of table does is tested by others: the suite's time is limited."""


@pytest.fixture
def compact(spark_engine: Any, tmp_path: Path) -> Compact:
    """As the command and the operator do it."""

    def run(spec: StateSpec) -> bool:
        root = str(tmp_path / "staging")
        return keep_up(spec, Upkeep.COMPACT, [].append, engine=spark_engine, staging_root=root)

    return run


@pytest.mark.parametrize("kind", TABLES)
def test_spark_leaves_the_rows_that_count_and_nothing_else(kind: str, tmp_path: Path, compact: Compact) -> None:
    table = changes_table(TABLES[kind], tmp_path)
    with table.opened() as state:
        three(state, tmp_path)
        assert compact(table.spec)
        assert latest(table) == {1: "c", 3: "d"}
        assert table.read().num_rows == 2
        assert state.marker().fence == ticket(3).fence, "a compaction is of no committer"
        assert not compact(table.spec)
        assert not list((tmp_path / "staging" / "words").iterdir()), "its files belong to the table, or to nobody"
        state.apply_files(ticket(5), changes(tmp_path, 5, (1, None, True), (7, "f", None)))
        assert compact(table.spec)
        assert latest(table) == {3: "d", 7: "f"}
        late = changes(tmp_path, 4, (1, "late", None), (3, "e", None))
        assert state.apply_files(ticket(4, late=True, fence=60), late) is Applied.APPLIED
        assert latest(table) == {3: "e", 7: "f"}, "the deletion stayed for the transaction that could come late"
        assert compact(table.spec)
    assert latest(table) == {3: "e", 7: "f"}
    assert table.read().num_rows == 2


def test_spark_merges_partitions_each_and_finds_null_keys_and_ties_as_this_process_does(
    tmp_path: Path, compact: Compact
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        table: Any = changes_table(TABLES["parquet"], folder, partition_by=("word",))
        with table.opened() as state:
            for txid in range(1, 4):
                rows = [(key, f"part-{(key + txid) % 3}", key % 7 == 0) for key in range(txid, 40, txid)]
                state.apply_files(ticket(txid), changes(folder, txid, *rows))
        schema = pa.schema([("id", pa.int64()), ("word", pa.string()), ("gone", pa.bool_()), ("_txid", pa.int64())])
        theirs = [(None, None, None, 1), (None, None, True, 2), (None, None, False, 3), (2, None, None, None)]
        rows = [dict(zip(schema.names, row, strict=True)) for row in theirs]
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / "sales" / "_data" / "theirs.parquet")
        entry = {"path": "_data/theirs.parquet", "rows": 4, "bytes": 1000, "partition": [None]}
        table.publish(files=[*table.named(table.version()), entry])
    spec = replace(table.spec, factory=replace(table.spec.factory, path=str(here / "sales")))
    before = sorted(map(repr, spec.factory.latest().to_pylist()))  # type: ignore[attr-defined]
    with spec.factory.make_state(spec) as state:
        assert state.compact()  # type: ignore[attr-defined]
    assert compact(table.spec)
    found = [one.factory.dataset().to_table().to_pylist() for one in (spec, table.spec)]  # type: ignore[attr-defined]
    assert sorted(map(repr, found[1])) == sorted(map(repr, found[0]))
    assert sorted(map(repr, table.spec.factory.latest().to_pylist())) == before
    assert len(table.named(table.version())) == len({row["word"] for row in found[1]})


@pytest.mark.parametrize("kind", ONE_KIND)
def test_two_compactions_by_spark_and_here_and_a_commit_at_once_leave_the_latest_rows(
    kind: str, tmp_path: Path, compact: Compact, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = changes_table(TABLES[kind], tmp_path)
    with table.opened() as state:
        three(state, tmp_path)
        owner = table.steps[table.decisive](state)
    newer = changes(tmp_path, 4, (1, "newer", None), (5, "e", None))

    def committed() -> Applied:
        with table.opened() as state:
            return state.apply_files(ticket(4), newer)

    *compacted, applied = at_once(
        monkeypatch,
        owner,
        table.decisive,
        lambda: compact(table.spec),
        lambda: keep_up(table.spec, Upkeep.COMPACT, [].append),
        committed,
    )
    assert applied is Applied.APPLIED
    assert True in compacted
    assert latest(table) == {1: "newer", 3: "d", 5: "e"}
    while compact(table.spec):
        pass
    assert latest(table) == {1: "newer", 3: "d", 5: "e"}
    assert table.read().num_rows == 3


@pytest.mark.parametrize("kind", TABLES)
def test_files_that_others_rewrite_while_spark_reads_or_before_the_commit_are_read_anew(
    kind: str, tmp_path: Path, spark_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, works = changes_table(TABLES[kind], tmp_path), list[CompactionWork]()
    with table.opened() as state, upkeep_folder(str(tmp_path / "staging"), "words") as (storage, slot):
        three(state, tmp_path)

        def by(work: CompactionWork) -> Compacted:
            works.append(work)
            if len(works) == 1:
                table.forget()  # the files are gone before Spark has read them
            if len(works) == 2:
                before_the_commit(table, state, monkeypatch, lambda: table.delete("d"))
            found: Compacted = spark_engine.compact_table(work, storage, slot, [].append)
            return found

        assert state.compact(by=by)
    assert len(works) == 3
    assert latest(table) == {1: "c"}
    assert table.read().num_rows == 1
    left = [path for path in table.data_files() if path.name.startswith("trident-compacted-")]
    assert len(left) == 1, "what was written in vain is removed"


def test_a_catalogue_that_lists_files_in_another_order_each_time_loses_no_row(
    tmp_path: Path, compact: Compact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a REST catalogue may that plans scans itself."""
    table, order, plan = changes_table(TABLES["iceberg"], tmp_path), count(), DataScan.plan_files

    def another(scan: DataScan) -> list[Any]:
        found, first = list(plan(scan)), next(order)
        return [found[(first + place) % len(found)] for place in range(len(found))]

    monkeypatch.setattr(DataScan, "plan_files", another)
    with table.opened() as state:
        three(state, tmp_path)
        assert compact(table.spec)
        state.apply_files(ticket(4), changes(tmp_path, 4, (3, "new", None), (5, "e", None)))
        big = changes(tmp_path, 5, *((key, f"w{key}", None) for key in range(10, 20)))
        state.apply_files(ticket(5), big)
    with monkeypatch.context() as patch:
        patch.setattr("airflow_trident.staging.table_compaction._SMALL_BYTES", 0)  # only files that lose rows
        assert compact(table.spec)
    assert latest(table) == {1: "c", 3: "new", 5: "e", **{key: f"w{key}" for key in range(10, 20)}}
    assert table.read().num_rows == 13


def test_a_file_that_is_gone_though_nobody_has_changed_the_table_is_an_error_at_once(
    tmp_path: Path, spark_engine: Any
) -> None:
    table: Any = changes_table(TABLES["parquet"], tmp_path)
    works = list[CompactionWork]()
    with table.opened() as state, upkeep_folder(str(tmp_path / "staging"), "words") as (storage, slot):
        three(state, tmp_path)
        next(iter(table.data_files())).unlink()

        def by(work: CompactionWork) -> Compacted:
            works.append(work)
            assert len(works) == 1
            found: Compacted = spark_engine.compact_table(work, storage, slot, [].append)
            return found

        with pytest.raises(CorruptRecordError, match=r"_data/trident-.* is gone, and .*Bring the file back"):
            state.compact(by=by)
    assert len(table.named(table.version())) == 3, "nothing was changed"


def rewritten(kind: str, folder: Path) -> ForeignTable:
    """A table of rewritten rows with two files."""
    table = changes_table(TABLES[kind], folder)
    table.spec = replace(table.spec, staged=FIELDS[:3], values=FIELDS[1:3], rewrites=True)
    with table.opened() as state:
        for txid, key in ((1, 1), (2, 2)):
            rows = {"id": [key], "word": [f"w{key}"], "gone": [False]}
            state.apply(ticket(txid), pa.table(rows, schema=arrow_schema(FIELDS[:3])))
    return table


@pytest.mark.parametrize("how", ["here", "by Spark"])
@pytest.mark.parametrize("kind", ONE_KIND)
def test_small_files_of_rewritten_tables_are_merged_and_a_batch_of_before_is_processed_again(
    kind: str, how: str, tmp_path: Path, compact: Compact
) -> None:
    table = rewritten(kind, tmp_path)
    keep = compact if how == "by Spark" else (lambda spec: keep_up(spec, Upkeep.COMPACT, [].append))
    with table.opened() as state:
        before = state.committed()
        assert len(before.paths) == 2
        assert keep(table.spec)
        assert not keep(table.spec)
        assert len(state.committed().paths) == 1
        assert sorted(state.items()) == [((1,), ("w1", False)), ((2,), ("w2", False))]
        path = tmp_path / "staged.parquet"
        pq.write_table(pa.table({"id": [2], "word": ["new"], "gone": [False]}, schema=arrow_schema(FIELDS[:3])), path)
        read = ReplacedFiles(version=before.version, gone=(before.paths[1],))
        with pytest.raises(TableChangedError):
            state.apply_files(ticket(3), StagedFiles(paths=(str(path),), num_rows=1, replaces=read))
        state.apply_files(ticket(3), StagedFiles(paths=(str(path),), num_rows=1))
        assert sorted(state.items()) == [((1,), ("w1", False)), ((2,), ("new", False))]


def test_small_files_are_merged_and_so_are_those_that_lose_rows_up_to_the_size_of_a_file() -> None:
    sizes = [SMALL, SMALL, 200 * SMALL, 200 * SMALL, SMALL, 100 * SMALL, 100 * SMALL]
    parts = ["a", "a", "a", "a", "b", "c", "c"]
    assert files_to_rewrite(sizes, parts, [9] * 7, [9, 9, 9, 8, 9, 9, 9]) == [[0, 1], [3]]
    assert files_to_rewrite(sizes, parts, [9] * 7, [9, 9, 9, 0, 9, 1, 1]) == [[0, 1, 3], [5, 6]]
    assert files_to_rewrite(sizes, parts, [9] * 7, [9, 9, 9, 9, 8, 8, 8]) == [[0, 1], [4], [5], [6]]
    assert files_to_rewrite([], [], [], []) == []


def test_what_a_killed_upkeep_has_left_is_removed_when_it_is_old(tmp_path: Path) -> None:
    old, young, other = (tmp_path / "words" / name for name in ("upkeep-old", "upkeep-young", "incarnation"))
    for path in (old, young, other):
        path.mkdir(parents=True)
    for path in (old, other):
        os.utime(path, (1, 1))
    ended = tmp_path / "words" / "upkeep-ended"  # as one that ends between being listed and being looked at
    ended.symlink_to("nowhere")
    with upkeep_folder(str(tmp_path), "words") as (storage, slot):
        assert Path(storage.at(slot.path)).is_dir()
        assert not old.exists()
    ended.unlink()
    assert sorted(path.name for path in (tmp_path / "words").iterdir()) == ["incarnation", "upkeep-young"]
    with (
        pytest.raises(ConfigurationError, match=r"leaves its files in a folder.*staging_dir="),
        upkeep_folder("s3://lake@bucket/staging", "words"),
    ):
        pass
