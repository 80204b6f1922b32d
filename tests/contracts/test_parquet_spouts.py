"""Spouts of Parquet tables: the promises of spouts, and all that others do to such a table."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_trident import ParquetTable, TableSpout
from airflow_trident.contracts.spout import Spout
from airflow_trident.contracts.staged_batch import StagedFiles
from airflow_trident.contracts.state import StateSpec
from airflow_trident.errors import (
    ConfigurationError,
    CorruptRecordError,
    DamagedInputError,
    SourceChangedError,
    SourceUnavailableError,
)
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.staging.storage import storage_at
from airflow_trident.types import parse_declared
from tests.contracts.test_spouts import CHECKS, FIELDS, ROWS, Source, metadata_of_all, rows_of
from tests.faults.http_proxy import Verdict, first
from tests.fixtures.azurite import Objects
from tests.fixtures.object_store import VARIABLE, Bucket
from tests.fixtures.state import ticket
from tests.fixtures.table import ForeignParquetTable, staged

_INLINE = "airflow_trident.states.parquet.table.INLINE"


class Table(ForeignParquetTable):
    """A topology appends to it, and others do."""

    def put(self, *numbers: int, files: int = 1) -> None:
        """A transaction of the topology."""
        with self.opened() as state:
            marker = state.marker()
            txid = 1 if marker is None else marker.high + 1
            rows = [("ours", number) for number in numbers]
            batch = staged(self.folder, *rows, files=files) if rows else StagedFiles(paths=(), num_rows=0)
            state.apply_files(ticket(txid), batch)

    def keeping(self, versions: int) -> Table:
        factory: Any = replace(self.spec.factory, keep_versions=versions)  # type: ignore[type-var]
        self.spec = replace(self.spec, factory=factory)
        return self

    def spout(self, fields: str = "n long", **options: Any) -> Spout:
        return TableSpout(self.spec.factory, fields=fields, **options)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def begin(spout: Spout, previous: Any = None) -> Any:
    return spout.coordinator().initialize_transaction(1, previous)


def numbers(spout: Spout, metadata: Any) -> list[int]:
    return sorted(row[0] for row in rows_of(spout, metadata))


# ---- the promises ----------------------------------------------------------------------------------------------


def source(factory: ParquetTable, take_away: Callable[[], None], **options: Any) -> Source:
    """Six versions of unequal size; the first and the fourth are without rows."""
    schema, cuts = parse_declared(FIELDS), [0, 1, 8, 8, 20, len(ROWS)]
    spec = StateSpec(topology="t", name="rows", keys=(), values=schema, staged=schema, factory=factory)
    with factory.make_state(spec) as state:
        for txid, (begin, end) in enumerate(pairwise(cuts), 1):
            state.apply(ticket(txid), rows_to_table(schema, ROWS[begin:end]))
    spout = TableSpout(factory, fields=FIELDS, **options)

    def taken_away() -> Spout:
        take_away()
        return spout

    return Source(spout, list(ROWS), taken_away)


def take_away(root: str) -> None:
    assert storage_at(root).delete("") > 0


OPTIONS: dict[str, dict[str, Any]] = {
    "the snapshot by files": {"max_files": 2},
    "version by version": {"start": 1, "max_rows": 10},
    "by bytes": {"start": 1, "max_bytes": 1},
}


@pytest.mark.parametrize("inline", [2, 256], ids=["in lists", "in versions"])
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("options", OPTIONS)
def test_the_spout_of_a_folder_keeps_its_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, check: Callable[[Source], None], inline: int
) -> None:
    monkeypatch.setattr(_INLINE, inline)
    factory = ParquetTable(str(tmp_path / "t"))
    check(source(factory, lambda: shutil.rmtree(tmp_path / "t" / "_data"), **OPTIONS[options]))


@pytest.mark.parametrize("objects", ["bucket", pytest.param("container", marks=pytest.mark.rare)], indirect=True)
@pytest.mark.parametrize("check", CHECKS)
def test_the_spout_of_a_bucket_keeps_its_promises(objects: Objects, check: Callable[[Source], None]) -> None:
    root = f"{objects.uri}/lake/t"
    check(source(ParquetTable(root), lambda: take_away(f"{root}/_data"), start=1, max_files=1))


@pytest.mark.parametrize("metadata", [[], "x", 7, {}, {"from": 1}, {"table": "t", "from": [0, 0], "to": [1, 0]}])
def test_metadata_of_another_spout_is_an_error(table: Table, metadata: Any) -> None:
    table.put(1)
    with pytest.raises(SourceChangedError, match=r"is not that of a TableSpout of a Parquet table.*a new name"):
        begin(table.spout(), metadata)
    with pytest.raises(SourceChangedError, match="is not that of a"):
        table.spout().emitter().splits(metadata)


def test_what_it_is_told_by_a_connection_goes_with_it(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    made = source(ParquetTable(f"{bucket.uri}/t"), lambda: None)
    sent = pickle.loads(pickle.dumps(made.spout))
    monkeypatch.delenv(VARIABLE)
    assert sorted(rows_of(sent, begin(sent))) == sorted(ROWS)
    assert sent.describe() == f"TableSpout({bucket.uri}/t)"
    assert "secret" not in f"{sent.describe()} {begin(sent)} {sent.emitter().splits(begin(sent))}"


# ---- from where on ---------------------------------------------------------------------------------------------


def test_it_begins_where_it_is_told_and_takes_what_topology_and_others_append(table: Table) -> None:
    table.opened().close()
    latest = table.spout(start="latest")
    behind_nothing = begin(latest)
    assert numbers(latest, behind_nothing) == []
    table.put(1)
    table.append()
    assert numbers(latest, begin(latest, behind_nothing)) == [0, 1]
    table.put(3)
    spout = table.spout(start=3, max_files=1)
    assert [numbers(spout, one) for one in metadata_of_all(spout)] == [[0], [3]]
    assert begin(table.spout(start=5)) is None
    for wrong in (0, 6):
        with pytest.raises(ConfigurationError, match=rf"version {wrong} .* Begin at one of 2 to 5"):
            begin(table.spout(start=wrong))


def test_a_snapshot_is_read_in_parts_and_what_comes_meanwhile_afterwards(table: Table) -> None:
    for number in (1, 2, 3):
        table.put(number)
    spout = table.spout(max_files=2)
    one = begin(spout)
    table.put(4)
    two = begin(spout, one)
    assert spout.coordinator().lag(one) == {"files": 2}
    assert [numbers(spout, part) for part in (one, two)] == [[1, 2], [3, 4]]
    assert begin(spout, two) is None
    table.put()
    empty = begin(spout, two)
    assert (numbers(spout, empty), begin(spout, empty)) == ([], None)
    table.put(5)
    assert numbers(spout, begin(spout, two)) == numbers(spout, begin(spout, empty)) == [5]


def test_what_is_read_does_not_grow_with_the_files_of_the_table(bucket: Bucket, tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.spec = replace(table.spec, factory=ParquetTable(f"{bucket.uri}/t"))
    spout, asked, last = table.spout(start=1), [], None
    for txid in range(1, 9):
        table.put(txid, files=150)
        before = bucket.proxy.asked.copy()
        last = begin(spout, last)
        asked.append(dict(bucket.proxy.asked - before)["GET"])
    assert len(set(asked[4::2])) == 1, asked
    assert max(asked[4:]) - min(asked[4:]) <= 1, "the list that the version begins, if it does"


# ---- what others do --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["delete", "compact"])
def test_a_version_that_takes_files_away_is_an_error_or_is_left_out(table: Table, change: str) -> None:
    table.put(1, 2)
    spout, skipping = table.spout(), table.spout(changes="skip")
    one = begin(spout)
    if change == "delete":
        table.append("gone")
        table.delete("gone")
    else:
        table.compact()
    table.put(3)
    with pytest.raises(SourceChangedError, match=r"version \d of the Parquet table .* changes or deletes rows"):
        begin(spout, one)
    two = begin(skipping, one)
    assert two["skipped"]
    assert numbers(skipping, two) == ([0, 3] if change == "delete" else [3])
    assert numbers(spout, one) == [1, 2]


def test_a_table_that_was_made_anew_is_not_taken_for_the_old_one(table: Table) -> None:
    table.put(1)
    spout = table.spout()
    one = begin(spout)
    shutil.rmtree(table.root)
    table.put(7)
    table.put(8)
    for read in (lambda: begin(spout, one), lambda: numbers(spout, one)):
        with pytest.raises(SourceChangedError, match=r"was made anew.*Restore the old one"):
            read()


@pytest.mark.parametrize("more", [0, 1, 3])
def test_a_table_that_was_restored_from_an_old_copy_is_refused_however_it_went_on(table: Table, more: int) -> None:
    table.put(1)
    shutil.copytree(table.root, table.folder / "copy")
    table.put(2)
    spout = table.spout()
    one = begin(spout)
    shutil.rmtree(table.root)
    shutil.move(table.folder / "copy", table.root)
    for number in range(more):
        table.append(f"new {number}")
    for read in (lambda: begin(spout, one), lambda: numbers(spout, one)):
        with pytest.raises(SourceChangedError, match=r"no version 3 as the transaction recorded it.*an old copy"):
            read()


def test_versions_that_are_not_kept_are_refused_and_not_passed_over(table: Table) -> None:
    table.keeping(2).put(1)
    spout = table.spout()
    one = begin(spout)
    table.put(2)
    two = begin(spout, one)
    assert numbers(spout, two) == [2]
    for number in (3, 4, 5):
        table.put(number)
    for read in (lambda: begin(spout, one), lambda: numbers(spout, one), lambda: begin(spout, two)):
        with pytest.raises(SourceChangedError, match=r"no longer has version \d.*keep_versions"):
            read()
    factory: Any = table.spec.factory
    first_kept = factory.versions()[0]
    with pytest.raises(ConfigurationError, match=rf"versions {first_kept} to .* are kept"):
        begin(table.spout(start=first_kept))


def test_a_table_of_an_older_package_is_refused_until_a_topology_has_appended_to_it(table: Table) -> None:
    table.put(1)
    (table.root / "_versions" / f"{2:019d}.json").write_text(json.dumps({**table.version(), "table_id": None}))
    with pytest.raises(ConfigurationError, match=r"version 2 of .* has no table_id.*append to it once"):
        begin(table.spout())
    table.put(2)
    assert numbers(table.spout(), begin(table.spout())) == [1, 2]
    assert table.version()["table_id"]
    table.append()
    assert table.version()["table_id"] == table.version(3)["table_id"]


def test_a_file_that_is_gone_or_has_other_rows_is_an_error(table: Table) -> None:
    table.put(1)
    spout = table.spout()
    one = begin(spout)
    (path,) = table.data_files()
    content = path.read_bytes()
    path.unlink()  # else the staged file is changed, too
    with pytest.raises(SourceChangedError, match=r"is gone.*keep_versions"):
        numbers(spout, one)
    path.write_bytes(content[:-9])
    with pytest.raises(DamagedInputError, match=r"cannot be read as \(n long\)"):
        numbers(spout, one)
    pq.write_table(pq.read_table(table.folder / "staged-0-1.parquet").slice(0, 0), path)
    with pytest.raises(DamagedInputError, match="has 0 rows and should have 1"):
        numbers(spout, one)


def test_columns_that_came_later_are_null_in_older_rows_and_partitions_are_columns(tmp_path: Path) -> None:
    table = Table(tmp_path, partition_by=("word",))
    with table.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1), (None, 2)))
    table.add_column()
    spout = table.spout("n double, more string, word string")
    assert sorted(rows_of(spout, begin(spout)), key=str) == [(1.0, None, "a"), (2.0, None, None)]
    assert spout.lineage_datasets(None) == (table.spec.factory.lineage_dataset(table.spec),)


def test_what_cannot_be_read_right_is_refused(table: Table, bucket: Bucket) -> None:
    with pytest.raises(SourceUnavailableError, match="there is no Parquet table"):
        begin(table.spout())
    table.put(1)
    with pytest.raises(ConfigurationError, match="has no column 'x'"):
        begin(table.spout("x long"))
    wrong = table.spout("n date")
    with pytest.raises(DamagedInputError, match=r"cannot be read as \(n date\)"):
        numbers(wrong, begin(wrong))
    for options in ({"max_files": 0}, {"start": "first"}, {"changes": "maybe"}):
        with pytest.raises(ConfigurationError, match="TableSpout with"):
            table.spout(**options)
    path = max((table.root / "_versions").glob("*.json"))
    path.write_text("{")
    with pytest.raises(CorruptRecordError, match="is damaged"):
        begin(table.spout())
    in_bucket = source(ParquetTable(f"{bucket.uri}/t"), lambda: None).spout
    one = begin(in_bucket)
    for read in (lambda: begin(in_bucket), lambda: rows_of(in_bucket, one)):
        bucket.proxy.rule = first("GET", Verdict.UNAVAILABLE, times=99)
        with pytest.raises(SourceUnavailableError):
            read()
