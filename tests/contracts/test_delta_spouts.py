"""A Delta spout keeps the promises of spouts (S1 to S5), and says what tables do that batches cannot follow."""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_trident.errors import (
    ConfigurationError,
    DamagedInputError,
    SourceChangedError,
    SourceUnavailableError,
)
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.spouts.delta.spout import DeltaSpout
from airflow_trident.testing.suites import SPOUT_CHECKS, SpoutCase, batch_rows, metadata_of_all
from airflow_trident.types import parse_declared
from tests.contracts.test_spouts import FIELDS, ROWS
from tests.fixtures.column_mapping import add, describe
from tests.fixtures.deletion_vectors import delete_rows

HOSTILE = ["", None, "x y", "é/%", "a=b", "c:d", "+&#?"]


def table(folder: Path, **options: Any) -> SpoutCase:
    """Five versions of unequal size; the third is empty."""
    path, cuts = folder / "t", [0, 1, 8, 8, 20, len(ROWS)]
    for begin, end in pairwise(cuts):
        write_deltalake(path, rows_to_table(parse_declared(FIELDS), ROWS[begin:end]), mode="append")
    spout = DeltaSpout(str(path), fields=FIELDS, **options)

    def take_away() -> DeltaSpout:
        for file in path.glob("*.parquet"):
            file.unlink()
        return spout

    return SpoutCase(spout, list(ROWS), take_away)


OPTIONS: dict[str, dict[str, Any]] = {
    "the snapshot by files": {"max_files": 2},
    "version by version": {"start": 0, "max_rows": 10},
    "by bytes": {"start": 0, "max_bytes": 1},
}


@pytest.mark.parametrize("check", SPOUT_CHECKS)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_delta_spout_keeps_its_promises(tmp_path: Path, options: str, check: Callable[[SpoutCase], None]) -> None:
    check(table(tmp_path, **OPTIONS[options]))


@pytest.mark.parametrize("metadata", [[], "x", 7, {}, {"from": 1}, {"from": [0, 0], "to": [1, 0]}])
def test_metadata_of_another_spout_is_an_error(tmp_path: Path, metadata: Any) -> None:
    spout = table(tmp_path).spout
    with pytest.raises(SourceChangedError, match=r"is not that of a TableSpout of a DeltaTable.*stream a new name"):
        spout.coordinator().initialize_transaction(2, metadata)
    with pytest.raises(SourceChangedError, match="is not that of a TableSpout of a DeltaTable"):
        spout.emitter().splits(metadata)


def spout_of(path: Path, fields: str = "n long", **options: Any) -> DeltaSpout:
    return DeltaSpout(str(path), fields=fields, **options)


def append(path: Path, *numbers: int, **options: Any) -> None:
    write_deltalake(path, pa.table({"n": pa.array(numbers, pa.int64())}), mode="append", **options)


def begin(spout: DeltaSpout, previous: Any = None) -> Any:
    return spout.coordinator().initialize_transaction(1, previous)


def numbers(spout: DeltaSpout, metadata: Any) -> list[int]:
    return sorted(row[0] for row in batch_rows(spout, metadata))


def test_latest_begins_behind_what_is_there_when_it_is_first_asked(tmp_path: Path) -> None:
    append(tmp_path, 1)
    spout = spout_of(tmp_path, start="latest")
    first = begin(spout)
    assert numbers(spout, first) == []
    assert begin(spout, first) is None
    append(tmp_path, 2)
    assert numbers(spout, begin(spout, first)) == [2]


def test_compaction_is_no_news_and_a_snapshot_is_read_as_it_was(tmp_path: Path) -> None:
    append(tmp_path, 1)
    append(tmp_path, 2)
    spout = spout_of(tmp_path, max_files=1)
    first = begin(spout)
    DeltaTable(tmp_path).optimize.compact()
    append(tmp_path, 3)
    second = begin(spout, first)
    third = begin(spout, second)
    assert sorted(numbers(spout, first) + numbers(spout, second)) == [1, 2]
    assert numbers(spout, third) == [3]
    assert begin(spout, third) is None


@pytest.mark.parametrize("change", ["delete", "overwrite", "restore"])
def test_a_version_that_changes_rows_is_an_error_or_is_left_out(tmp_path: Path, change: str) -> None:
    append(tmp_path, 1, 2)
    spout, skipping = spout_of(tmp_path), spout_of(tmp_path, changes="skip")
    first = begin(spout)
    if change == "overwrite":
        write_deltalake(tmp_path, pa.table({"n": pa.array([7, 8], pa.int64())}), mode="overwrite")
    else:
        DeltaTable(tmp_path).delete("n = 1" if change == "delete" else None)
    if change == "restore":  # which puts the file back that was read
        first = begin(skipping, first) or first
        DeltaTable(tmp_path).restore(0)
    append(tmp_path, 3)
    operation = "WRITE" if change == "overwrite" else "DELETE"
    with pytest.raises(SourceChangedError, match=rf"version 1 of .* \({operation}\)"):
        begin(spout, first)
    second = begin(skipping, first)
    assert second["skipped"] == ([1, 2] if change == "restore" else [1])
    assert numbers(skipping, second) == [3]


@pytest.mark.parametrize("more", [0, 1, 3])
@pytest.mark.parametrize("split", [False, True])
def test_a_table_that_was_restored_from_an_old_copy_is_refused_however_it_went_on(
    tmp_path: Path, more: int, split: bool
) -> None:
    path = tmp_path / "t"
    append(path, 1)
    shutil.copytree(path, tmp_path / "copy")
    append(path, 2)
    append(path, 3)
    spout = spout_of(path, max_files=2 if split else 9)
    one = begin(spout)
    assert len(numbers(spout, one)) == (2 if split else 3)
    shutil.rmtree(path)
    shutil.move(tmp_path / "copy", path)
    for number in range(more):
        append(path, 10 + number)
    for read in (lambda: begin(spout, one), lambda: numbers(spout, one)):
        with pytest.raises(SourceChangedError, match=r"an old copy|as of version 2 cannot be put together"):
            read()


def test_a_file_that_was_vacuumed_is_an_error(tmp_path: Path) -> None:
    append(tmp_path, 1)
    append(tmp_path, 2)
    spout = spout_of(tmp_path)
    first = begin(spout)
    opened = DeltaTable(tmp_path)
    opened.optimize.compact()
    opened.vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(SourceChangedError, match=r"is gone.*vacuumed too early"):
        numbers(spout, first)


def test_a_log_that_was_cleaned_up_is_an_error(tmp_path: Path) -> None:
    append(tmp_path, 1)
    spout = spout_of(tmp_path)
    first = begin(spout)
    append(tmp_path, 2)
    append(tmp_path, 3)
    second = begin(spout, first)
    DeltaTable(tmp_path).create_checkpoint()
    for version in (0, 1):
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(SourceChangedError, match="no longer has version 1"):
        numbers(spout, second)
    with pytest.raises(SourceChangedError, match="as of version 0 cannot be put together"):
        numbers(spout, first)


def test_many_versions_without_data_are_passed_by_a_transaction_without_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_trident.spouts.table_log.QUIET_VERSIONS", 4)
    append(tmp_path, 1)
    spout = spout_of(tmp_path)
    first = begin(spout)
    opened = DeltaTable(tmp_path)
    for number in range(4):
        assert begin(spout, first) is None
        opened.alter.set_table_properties({"delta.logRetentionDuration": f"interval {number + 1} days"})
    second = begin(spout, first)
    assert (numbers(spout, second), second["to"]) == ([], [5, 0])
    for number in range(5):
        (tmp_path / "_delta_log" / f"{number:020}.json").rename(tmp_path / f"{number}.json")
    assert numbers(spout, second) == [], "it needs no log of what it passes"


def test_a_table_that_was_made_anew_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    append(tmp_path / "t", 1)
    spout = spout_of(tmp_path / "t")
    first = begin(spout)
    shutil.rmtree(tmp_path / "t")
    append(tmp_path / "t", 5)
    append(tmp_path / "t", 6)
    with pytest.raises(SourceChangedError, match="was made anew"):
        begin(spout, first)
    with pytest.raises(SourceChangedError, match="was made anew"):
        numbers(spout, first)


@pytest.mark.parametrize("start", ["snapshot", 0])
def test_partition_columns_and_columns_that_came_later_are_there(tmp_path: Path, start: Any) -> None:
    fields = "p string, n long, d date, b boolean, t timestamp, late double"
    rows = [(value, number, number % 3) for number, value in enumerate(HOSTILE)]
    data = pa.table(
        {
            "p": pa.array([row[0] for row in rows]),
            "n": pa.array([row[1] for row in rows], pa.int64()),
            "d": pa.array([row[2] for row in rows], pa.date32()),
            "b": pa.array([number % 2 == 0 for number in range(len(rows))]),
            "t": pa.array([number * 86_400_000_000 for number in range(len(rows))], pa.timestamp("us", "UTC")),
        }
    )
    write_deltalake(tmp_path, data, partition_by=["p", "d", "b", "t"])
    more = data.append_column("late", pa.array([0.5] * len(rows)))
    write_deltalake(tmp_path, more, mode="append", schema_mode="merge")
    spout = spout_of(tmp_path, fields, start=start)
    found = [row for metadata in metadata_of_all(spout) for row in batch_rows(spout, metadata)]
    expected = [
        (*row.values(),) for table in (data.append_column("late", pa.nulls(7)), more) for row in table.to_pylist()
    ]
    # Delta cannot tell an empty text from null in a partition column.
    expected = [(row[0] or None, *row[1:]) for row in expected]
    assert sorted(found, key=str) == sorted(expected, key=str)


def test_members_of_structs_are_those_of_the_table_and_null_in_files_that_are_older(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_deltalake(path, pa.table({"s": [{"a": 1}], "xs": [[{"n": 1}]]}))
    newer = pa.table({"s": [{"a": 2, "b": 3}], "xs": [[{"n": 2}]]})
    write_deltalake(path, newer, mode="append", schema_mode="merge")
    spout = spout_of(path, "s struct<a:long,b:long>, xs array<struct<n:long>>", start=0)
    found = [row for metadata in metadata_of_all(spout) for row in batch_rows(spout, metadata)]
    assert found == [({"a": 1, "b": None}, [{"n": 1}]), ({"a": 2, "b": 3}, [{"n": 2}])]
    for fields, said in (
        ("s struct<a:long,B:long>", "has no column 's.B'"),
        ("s struct<a:long>", "has a member 's.b' that is not declared"),
        ("xs array<struct<m:long>>", "has no column 'xs.element.m'"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            begin(spout_of(path, fields))


@pytest.mark.parametrize("note", ["org.apache.spark.legacyDateTime", "org.apache.spark.legacyINT96"])
def test_days_that_spark_counted_in_another_calendar_are_refused(tmp_path: Path, note: str) -> None:
    write_deltalake(tmp_path, pa.table({"day": [datetime.date(1001, 1, 7)]}))
    (file,) = tmp_path.glob("*.parquet")
    content = pq.read_table(file).replace_schema_metadata({note: "", "org.apache.spark.version": "3.5.1"})
    pq.write_table(content, file)
    spout = spout_of(tmp_path, "day date")
    with pytest.raises(DamagedInputError, match=r"the field 'day' of row 1 holds .*1001.*Julian calendar"):
        numbers(spout, begin(spout))


def test_what_cannot_be_read_right_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailableError, match="there is no Delta table"):
        begin(spout_of(tmp_path / "none"))
    append(tmp_path / "t", 1)
    with pytest.raises(ConfigurationError, match="has no column 'x'"):
        begin(spout_of(tmp_path / "t", "x long"))
    spout = spout_of(tmp_path / "t", "n string")
    with pytest.raises(DamagedInputError, match="cannot be read as \\(n string\\)"):
        numbers(spout, begin(spout))


@pytest.mark.parametrize("start", ["snapshot", 0])
@pytest.mark.parametrize("path", ["s3://b/x", "file:///x", "file:/x", "hdfs:/x", "/x", "../x", "abfss://c@a/x"])
def test_files_that_lie_elsewhere_are_refused(tmp_path: Path, path: str, start: Any) -> None:
    append(tmp_path, 1)
    added = {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}
    (tmp_path / "_delta_log" / f"{1:020}.json").write_text(json.dumps({"add": added}))
    with pytest.raises(ConfigurationError, match=r"files elsewhere.*Read the table that was cloned"):
        begin(spout_of(tmp_path, start=start, max_files=9))


@pytest.mark.parametrize("stats", ["{", "[]", "7", '{"numRecords": "x"}', '{"numRecords": []}'])
def test_a_version_that_cannot_be_read_is_damaged(tmp_path: Path, stats: str) -> None:
    append(tmp_path, 1)
    added = {"path": "x", "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True, "stats": stats}
    actions = [{"add": added}, {"commitInfo": None}, {"remove": None}]
    (tmp_path / "_delta_log" / f"{1:020}.json").write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(DamagedInputError, match=r"version 1 in the log of .* cannot be read"):
        begin(spout_of(tmp_path, start=0))


@pytest.mark.parametrize("start", ["snapshot", 0])
@pytest.mark.parametrize("fields", ["n long, b binary", "n long, b string"])
def test_bytes_by_which_a_table_is_partitioned_are_refused(tmp_path: Path, fields: str, start: Any) -> None:
    data = pa.table({"n": pa.array([1], pa.int64()), "b": pa.array([b"\\\x00\xff"])})
    write_deltalake(tmp_path, data, partition_by=["b"])
    with pytest.raises(ConfigurationError, match=r"partitioned by 'b': values of type binary.* by texts"):
        begin(spout_of(tmp_path, fields, start=start))
    spout = spout_of(tmp_path, start=start)
    assert numbers(spout, begin(spout)) == [1], "other columns are read"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_files": 0}, "max_files=0"),
        ({"start": "newest"}, "start='newest'"),
        ({"start": -1}, "start=-1"),
        ({"changes": "hide"}, "changes='hide'"),
    ],
)
def test_arguments_that_cannot_work_are_refused(options: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        DeltaSpout("t", fields="n long", **options)


def test_the_last_days_that_spark_wrote_in_its_old_form_are_read(tmp_path: Path) -> None:
    days = [datetime.datetime(year, 12, 31, 23, 59, 59, 999_999, datetime.UTC) for year in (1, 2024, 9999)]
    data = pa.table({"t": pa.array(days, pa.timestamp("us", "UTC"))})
    write_deltalake(tmp_path, data)
    (path,) = tmp_path.glob("*.parquet")
    size = path.stat().st_size
    noted = data.replace_schema_metadata({"org.apache.spark.version": "4.2.0"})
    pq.write_table(noted, path, use_deprecated_int96_timestamps=True)
    assert path.stat().st_size != size
    spout = spout_of(tmp_path, "t timestamp")
    assert sorted(batch_rows(spout, begin(spout))) == [(day,) for day in days]


# ---- deletion vectors and column mapping -----------------------------------------------------------------------


def of_partition(path: Path, value: str, *numbers: int) -> None:
    data = pa.table({"p": [value] * len(numbers), "n": pa.array(numbers, pa.int64())})
    write_deltalake(path, data, partition_by=["p"], mode="append")


def test_rows_of_a_snapshot_that_a_vector_deletes_do_not_come(tmp_path: Path) -> None:
    of_partition(tmp_path, "x y", 0, 1, 2)
    of_partition(tmp_path, "%é", 3, 4, 5)
    delete_rows(tmp_path, 0, 2)
    spout = spout_of(tmp_path, "p string, n long", max_files=1)
    metadata = metadata_of_all(spout)
    assert len(metadata) == 2
    for later in (False, True):
        found = [row for each in metadata for row in batch_rows(spout, each)]
        assert sorted(found) == [("%é", 4), ("x y", 0), ("x y", 1), ("x y", 2)]
        emitter = spout.emitter()
        assert emitter.data_frame(None, metadata[0]) is emitter.batch_for_script(metadata[0], "") is None
        if not later:
            delete_rows(tmp_path, 1)
            of_partition(tmp_path, "x y", 6)
    with pytest.raises(SourceChangedError, match=r"version 3 of .* \(DELETE\) changes or deletes rows"):
        begin(spout, metadata[-1])
    skipping = spout_of(tmp_path, "p string, n long", changes="skip")
    third = begin(skipping, metadata[-1])
    assert (third["skipped"], batch_rows(skipping, third)) == ([3], [("x y", 6)])


def test_vectors_of_large_files_delete_rows_of_each_of_their_pieces(tmp_path: Path) -> None:
    append(tmp_path, *range(140_000))
    gone = {0, 7, 65_535}
    delete_rows(tmp_path, *gone)
    spout = spout_of(tmp_path)
    assert numbers(spout, begin(spout)) == [number for number in range(140_000) if number not in gone]


def test_a_vector_that_was_vacuumed_is_an_error(tmp_path: Path) -> None:
    append(tmp_path, 1, 2)
    delete_rows(tmp_path, 0, in_file="ab^-aqEH.-t@S}K{vb[*k^")
    spout = spout_of(tmp_path)
    with pytest.raises(SourceChangedError, match="deletion vector"):
        numbers(spout, begin(spout))


@pytest.mark.parametrize("mode", ["name", "id"])
def test_columns_that_a_table_maps_are_found_in_its_files(tmp_path: Path, mode: str) -> None:
    """By the name in its log, or by the id in its files, whatever they are called there, and after a renaming."""
    longs, texts = pa.array([1, 2], pa.int64()), pa.array(["a", "b"])
    n, word, more = {"name": ("col-1", "col-2", "col-4"), "id": ("else", "n", "word")}[mode]
    columns = {"n": ("long", "col-1"), "word": ("string", "col-2"), "p": ("string", "col-3")}
    describe(tmp_path, mode, columns, partition_by="p")
    add(tmp_path, "1.parquet", {word: (2, texts), n: (1, longs)}, {"col-3": "x"})
    first = begin(spout_of(tmp_path, "n long, p string, word string"))
    found = batch_rows(spout_of(tmp_path, "p string, n long, word string"), first)
    assert sorted(found) == [("x", 1, "a"), ("x", 2, "b")]
    columns = {"n": ("long", "col-1"), "text": ("string", "col-2"), "part": ("string", "col-3"), "p": ("long", "col-4")}
    describe(tmp_path, mode, columns, partition_by="part")
    add(tmp_path, "2.parquet", {n: (1, longs), word: (2, texts), more: (4, longs)}, {"col-3": None})
    spout = spout_of(tmp_path, "part string, p long, text string")
    second = begin(spout, first)
    assert sorted(batch_rows(spout, first)) == [("x", None, "a"), ("x", None, "b")]
    assert sorted(batch_rows(spout, second), key=str) == [(None, 1, "a"), (None, 2, "b")]
    whole = spout_of(tmp_path, "part string, p long, text string", start="snapshot")
    assert sorted(batch_rows(whole, begin(whole)), key=str) == sorted(
        [("x", None, "a"), ("x", None, "b"), (None, 1, "a"), (None, 2, "b")], key=str
    )
    emitter = spout.emitter()
    assert emitter.data_frame(None, second) is emitter.batch_for_script(second, "") is None


def test_mapped_columns_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    describe(tmp_path, "name", {"n": ("long", "col-1")}, partition_by="n")
    with pytest.raises(ConfigurationError, match="type struct its members too \\('n'\\)"):
        begin(spout_of(tmp_path, "n array<struct<a: long>>"))
    append(tmp_path / "t", 1)
    log = tmp_path / "t" / "_delta_log" / f"{0:020}.json"
    log.write_text(log.read_text().replace('"configuration":{}', '"configuration":{"delta.columnMapping.mode":"name"}'))
    with pytest.raises(DamagedInputError, match="its column 'n' has no"):
        begin(spout_of(tmp_path / "t"))
