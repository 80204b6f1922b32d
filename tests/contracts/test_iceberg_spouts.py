"""Spouts of Iceberg tables: the promises of spouts, and all that others do to such a table."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType

from airflow_trident.errors import (
    ConfigurationError,
    DamagedInputError,
    SourceChangedError,
    SourceUnavailableError,
)
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.spouts.iceberg import spout as spout_module
from airflow_trident.spouts.iceberg.spout import IcebergSpout, _Columns
from airflow_trident.spouts.table_log import RecentValues
from airflow_trident.testing.suites import SPOUT_CHECKS, SpoutCase, batch_rows, metadata_of_all
from airflow_trident.types import parse_declared
from tests.contracts.test_spouts import FIELDS, ROWS
from tests.fixtures.catalog import open_catalog
from tests.fixtures.state import ticket
from tests.fixtures.table import ForeignIcebergTable, staged

NAME = "sales.rows"
HOSTILE = ["", None, "x y", "é/%", "a=b", "+&#?"]


def properties(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}


class Table:
    """An Iceberg table as others see it who know nothing of this package."""

    def __init__(self, folder: Path, schema: pa.Schema | None = None, version: int = 2) -> None:
        self.folder = folder
        self.catalog = open_catalog(**properties(folder))
        self.catalog.create_namespace_if_not_exists("sales")
        of_format = {"format-version": str(version)}
        self.catalog.create_table(NAME, schema=schema or pa.schema([("n", pa.int64())]), properties=of_format)

    @property
    def table(self) -> Any:
        return self.catalog.load_table(NAME)

    def append(self, *numbers: int) -> None:
        self.table.append(pa.table({"n": pa.array(numbers, pa.int64())}))

    def expire(self, *ids: int) -> None:
        self.table.maintenance.expire_snapshots().by_ids(list(ids)).commit()

    def ids(self) -> list[int]:
        return [one.snapshot_id for one in self.table.metadata.snapshots]

    def roll_back(self, snapshot_id: int) -> None:
        self.table.manage_snapshots().rollback_to_snapshot(snapshot_id).commit()

    def spout(self, fields: str = "n long", **options: Any) -> IcebergSpout:
        return IcebergSpout(NAME, fields=fields, properties=properties(self.folder), **options)


@pytest.fixture
def made(tmp_path: Path) -> Table:
    return Table(tmp_path)


def begin(spout: IcebergSpout, previous: Any = None) -> Any:
    return spout.coordinator().initialize_transaction(1, previous)


def numbers(spout: IcebergSpout, metadata: Any) -> list[int]:
    return sorted(row[0] for row in batch_rows(spout, metadata))


# ---- the promises ----------------------------------------------------------------------------------------------


def source(folder: Path, **options: Any) -> SpoutCase:
    """Four snapshots of unequal size."""
    cuts = [0, 1, 8, 20, len(ROWS)]
    parts = [rows_to_table(parse_declared(FIELDS), ROWS[begin:end]) for begin, end in pairwise(cuts)]
    table = Table(folder, parts[0].schema)
    for part in parts:
        table.table.append(part)

    def take_away() -> IcebergSpout:
        for file in folder.rglob("*.parquet"):
            file.unlink()
        return spout

    spout = table.spout(FIELDS, **options)
    return SpoutCase(spout, list(ROWS), take_away)


OPTIONS: dict[str, dict[str, Any]] = {
    "the snapshot by files": {"max_files": 2},
    "the snapshot by rows": {"max_rows": 10},
    "by bytes": {"max_bytes": 1},
}


@pytest.mark.parametrize("check", SPOUT_CHECKS)
@pytest.mark.parametrize("options", OPTIONS)
def test_an_iceberg_spout_keeps_its_promises(tmp_path: Path, options: str, check: Callable[[SpoutCase], None]) -> None:
    check(source(tmp_path, **OPTIONS[options]))


@pytest.mark.parametrize("metadata", [[], "x", 7, {}, {"from": 1}, {"table": "t", "from": [0, 0], "to": [1, 0]}])
def test_metadata_of_another_spout_is_an_error(tmp_path: Path, metadata: Any) -> None:
    spout = source(tmp_path).spout
    with pytest.raises(SourceChangedError, match=r"is not that of a TableSpout of an IcebergTable.*stream a new name"):
        spout.coordinator().initialize_transaction(2, metadata)
    with pytest.raises(SourceChangedError, match="is not that of a TableSpout of an IcebergTable"):
        spout.emitter().splits(metadata)


# ---- what others do --------------------------------------------------------------------------------------------


def test_snapshot_by_snapshot_from_the_one_that_is_named(made: Table) -> None:
    for number in (1, 2, 3):
        made.append(number)
    spout = made.spout(start=made.ids()[1], max_files=1)
    assert [numbers(spout, one) for one in metadata_of_all(spout)] == [[2], [3]]
    with pytest.raises(ConfigurationError, match="has no snapshot 7"):
        begin(made.spout(start=7))


def test_latest_begins_behind_what_is_there_when_it_is_first_asked(made: Table) -> None:
    spout = made.spout(start="latest")
    empty = begin(spout)
    assert numbers(spout, empty) == []
    made.append(1)
    assert numbers(spout, begin(spout, empty)) == [1]
    first = begin(spout)
    assert (numbers(spout, first), begin(spout, first)) == ([], None)
    made.append(2)
    assert numbers(spout, begin(spout, first)) == [2]


def test_a_snapshot_of_several_files_is_read_in_parts_and_what_comes_meanwhile_afterwards(made: Table) -> None:
    for number in (1, 2, 3):
        made.append(number)
    spout = made.spout(max_files=2)
    first = begin(spout)
    made.append(4)
    second = begin(spout, first)
    third = begin(spout, second)
    found = [numbers(spout, one) for one in (first, second)]
    assert sorted(found[0] + found[1]) == [1, 2, 3, 4]
    assert (len(found[0]), third) == (2, None)
    assert [numbers(spout, one) for one in (first, second)] == found


def test_a_snapshot_that_only_holds_rows_in_other_files_is_no_news(made: Table) -> None:
    made.append(1)
    made.append(2)
    spout = made.spout()
    first = begin(spout)
    table = made.table
    files = [task.file for task in table.scan().plan_files()]
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as update:
        for file in files:
            update.delete_data_file(file)
        update.append_data_file(files[0])
    with pytest.raises(SourceChangedError, match="changes or deletes rows"):
        begin(spout, first)
    written = Path(made.table.metadata_location.removeprefix("file://"))  # as others write it: this library cannot
    written.write_text(written.read_text().replace('"operation":"overwrite"', '"operation":"replace"'))
    assert made.table.current_snapshot().summary.operation.value == "replace"
    second = begin(spout, first)
    assert (numbers(spout, second), begin(spout, second)) == ([], None)
    made.append(3)
    assert numbers(spout, begin(spout, first)) == numbers(spout, begin(spout, second)) == [3]
    assert numbers(spout, first) == [1, 2]
    made.expire(*made.ids()[:2])
    made.append(4)
    assert numbers(spout, begin(spout, second)) == [3, 4]


@pytest.mark.parametrize("change", ["delete", "overwrite"])
def test_a_snapshot_that_changes_rows_is_an_error_or_is_left_out(made: Table, change: str) -> None:
    made.append(1, 2)
    spout, skipping = made.spout(), made.spout(changes="skip")
    first = begin(spout)
    if change == "delete":
        made.table.delete("n = 1")
    else:
        made.table.overwrite(pa.table({"n": pa.array([7], pa.int64())}), overwrite_filter="n = 1")
    made.append(3)
    with pytest.raises(SourceChangedError, match=r"version \d of the Iceberg table .* changes or deletes rows"):
        begin(spout, first)
    second = begin(skipping, first)
    assert second["skipped"]
    assert 3 in numbers(skipping, second)
    assert 2 not in numbers(skipping, second)


def test_a_table_that_was_rolled_back_is_refused_and_what_was_recorded_is_still_read(made: Table) -> None:
    made.append(1)
    made.append(2)
    spout = made.spout()
    first = begin(spout)
    one, two = made.ids()
    made.roll_back(one)
    with pytest.raises(SourceChangedError, match=rf"was rolled back .* does not come from snapshot {two}"):
        begin(spout, first)
    made.append(3)
    with pytest.raises(SourceChangedError, match="was rolled back"):
        begin(spout, first)
    assert numbers(spout, first) == [1, 2]
    made.table.manage_snapshots().set_current_snapshot(two).commit()
    assert begin(spout, first) is None
    made.append(4)
    assert numbers(spout, begin(spout, first)) == [4]


def test_what_was_expired_before_it_was_read_is_refused_and_what_was_read_may_be_expired(made: Table) -> None:
    made.append(1)
    spout = made.spout()
    first = begin(spout)
    made.append(2)
    made.append(3)
    one, two, _ = made.ids()
    made.expire(one)
    second = begin(spout, first)
    assert numbers(spout, second) == [2, 3]
    with pytest.raises(SourceChangedError, match=rf"has no snapshot {one} any more, which the transaction recorded"):
        numbers(spout, first)
    made.expire(two)
    with pytest.raises(SourceChangedError, match="that are to be read were expired"):
        begin(spout, first)
    with pytest.raises(SourceChangedError, match="that are to be read were expired"):
        numbers(spout, second)
    assert begin(spout, second) is None


def test_a_transaction_that_only_passes_snapshots_needs_none_of_them(made: Table) -> None:
    made.append(1)
    spout = made.spout()
    first = begin(spout)
    made.append()
    second = begin(spout, first)
    assert second["passes"]
    assert "passes" not in first
    made.append(2)
    made.expire(*made.ids()[:2])
    assert numbers(spout, second) == []
    assert numbers(spout, begin(spout, second)) == [2]
    earlier = {key: value for key, value in second.items() if key != "passes"}
    with pytest.raises(SourceChangedError, match="which the transaction recorded"):  # an earlier version wrote it
        numbers(spout, earlier)


def test_a_table_that_was_made_anew_is_not_taken_for_the_old_one(made: Table) -> None:
    made.append(1)
    spout = made.spout()
    first = begin(spout)
    made.catalog.drop_table(NAME)
    again = made.catalog.create_table(NAME, schema=pa.schema([("n", pa.int64())]))
    again.append(pa.table({"n": pa.array([5], pa.int64())}))
    with pytest.raises(SourceChangedError, match="was made anew"):
        begin(spout, first)
    with pytest.raises(SourceChangedError, match="any more, which the transaction recorded"):
        numbers(spout, first)


def test_a_file_that_is_gone_or_has_other_rows_is_an_error(made: Table) -> None:
    made.append(1)
    spout = made.spout()
    first = begin(spout)
    (path,) = made.folder.rglob("data/*.parquet")
    content = path.read_bytes()
    pq.write_table(pq.read_table(path).slice(0, 0), path)
    with pytest.raises(DamagedInputError, match="has 0 rows and should have 1"):
        numbers(spout, first)
    path.write_bytes(content[:-9])
    with pytest.raises(DamagedInputError, match=r"cannot be read as \(n long\)"):
        numbers(spout, first)
    path.unlink()
    with pytest.raises(SourceChangedError, match="is gone"):
        numbers(spout, first)


@pytest.mark.parametrize(
    ("file", "text"),
    [("*-m0.avro", "a manifest of"), ("snap-*.avro", "a manifest of"), ("*.metadata.json", "the metadata file of")],
)
@pytest.mark.parametrize("cut", [True, False])
def test_a_damaged_manifest_or_metadata_file_is_an_error(
    made: Table, file: str, text: str, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.append(1)
    spout = made.spout()
    metadata = begin(spout)
    path = max(made.folder.rglob(file))
    content = path.read_bytes()
    half = len(content) // 2
    path.write_bytes(content[:half] if cut else content[:half] + b"\xff" * half)
    monkeypatch.setattr(spout_module, "SNAPSHOTS", RecentValues[Any](4))  # as in another process
    for read in (lambda: begin(spout), lambda: numbers(spout, metadata)):
        with pytest.raises(DamagedInputError, match=f"{text} the Iceberg table 'sales.rows' cannot be read"):
            read()


# ---- what is in the files --------------------------------------------------------------------------------------


def test_columns_are_found_by_their_ids_renamed_widened_added_and_partitioned(tmp_path: Path) -> None:
    schema = pa.schema([("p", pa.string()), ("d", pa.date32()), ("small", pa.int32()), ("old", pa.string())])
    made = Table(tmp_path, schema)
    with made.table.update_spec() as update:
        update.add_field("p", IdentityTransform(), "p")
        update.add_field("d", IdentityTransform(), "d")
    days = [datetime.date(2026, 1, number + 1) for number in range(len(HOSTILE))]
    columns = {"p": HOSTILE, "d": days, "small": [1] * 6, "old": ["x"] * 6}
    made.table.append(pa.table(columns, schema=schema))
    spout = made.spout("p string, d date, wide long, new string, late double")
    with made.table.update_schema() as update:
        update.rename_column("old", "new")
        update.rename_column("small", "wide")
        update.add_column("late", LongType())
    with made.table.update_schema() as update:
        update.update_column("wide", LongType())
        update.delete_column("late")
    with pytest.raises(ConfigurationError, match="has no column 'late'"):
        begin(spout)
    with made.table.update_schema() as update:
        update.add_column("late", IntegerType())
    found = [row for metadata in metadata_of_all(spout) for row in batch_rows(spout, metadata)]
    assert sorted(found, key=str) == sorted(
        [(p, day, 1, "x", None) for p, day in zip(HOSTILE, days, strict=True)], key=str
    )


def test_a_column_that_a_file_lacks_has_its_default_and_spark_which_has_none_does_not_read_it(made: Table) -> None:
    """Tables of format version 3 have defaults; pyiceberg does not write them."""
    made.append(1)
    with made.table.update_schema() as update:
        update.add_column("late", LongType())
    spout = made.spout("n long, late long")
    (split,) = spout.emitter().splits(begin(spout))
    body: Any = split.body
    given = pq.read_schema(body["path"].removeprefix("file://"))
    assert _Columns.of(body["table"], spout.schema).are_in(given, body["spec"])
    table = json.loads(body["table"])
    table["schemas"][0]["fields"][1]["initial-default"] = 7
    with_default = replace(split, body={**body, "table": json.dumps(table)})
    (piece,) = spout.emitter().read(with_default)
    assert piece.to_pylist() == [{"n": 1, "late": 7}]
    assert not _Columns.of(json.dumps(table), spout.schema).are_in(given, body["spec"])


def test_a_file_is_read_piece_by_piece(tmp_path: Path) -> None:
    """What Arrow holds meanwhile is a part of it."""
    many = 800_000
    table = Table(tmp_path, pa.schema([("n", pa.int64()), ("word", pa.string())]))
    rows = pa.table({"n": pa.array(range(many), pa.int64()), "word": [f"{number:0100}" for number in range(many)]})
    table.table.append(rows)
    spout = table.spout("n long, word string")
    (split,) = spout.emitter().splits(begin(spout))
    size, first, held = rows.nbytes, 0, 0
    del rows
    before = pa.total_allocated_bytes()
    for piece in spout.emitter().read(split):
        assert piece.column(0).to_pylist() == list(range(first, first + piece.num_rows))
        first += piece.num_rows
        held = max(held, pa.total_allocated_bytes() - before)
    assert first == many
    assert held < size / 3


def test_what_a_topology_appended_by_reference_is_read(tmp_path: Path) -> None:
    theirs = ForeignIcebergTable(tmp_path)
    with theirs.opened() as state:
        written = theirs.spec.factory.lineage_dataset(theirs.spec)
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1), ("b", 2)))
    factory: Any = theirs.spec.factory
    spout = IcebergSpout(factory.name, fields="word string, n long", properties=factory.properties)
    assert sorted(batch_rows(spout, begin(spout))) == [("a", 1), ("b", 2)]
    assert spout.lineage_datasets(begin(spout)) == (written,)


def test_what_cannot_be_read_right_is_refused(made: Table) -> None:
    with pytest.raises(SourceUnavailableError, match=r"there is no Iceberg table 'sales.none'"):
        begin(IcebergSpout("sales.none", fields="n long", properties=properties(made.folder)))
    made.append(1)
    with pytest.raises(ConfigurationError, match="has no column 'x'"):
        begin(made.spout("x long"))
    wrong = made.spout("n date")
    with pytest.raises(DamagedInputError, match=r"the field 'n' holds values of type int64, where date is declared"):
        numbers(wrong, begin(wrong))
    with pytest.raises(ConfigurationError, match="Give namespace and table"):
        IcebergSpout("rows", fields="n long")
    with pytest.raises(ConfigurationError, match="max_files=0"):
        made.spout(max_files=0)


def test_snapshots_from_before_an_upgrade_of_the_format_are_not_taken_for_one_another(tmp_path: Path) -> None:
    """They all have the sequence number 0."""
    table = Table(tmp_path, version=1)
    for number in (1, 2, 3):
        table.append(number)
    with pytest.raises(ConfigurationError, match=r"format version 1.*Upgrade it"):
        begin(table.spout())
    with table.table.transaction() as transaction:
        transaction.upgrade_table_version(2)
    second = table.ids()[1]
    for spout in (table.spout(), table.spout(start=second)):
        with pytest.raises(ConfigurationError, match=r"several snapshots .* number 0.*one commit after the upgrade"):
            begin(spout)
    later = table.spout(start="latest")
    first = begin(later)
    table.append(4)
    whole = table.spout()
    assert numbers(whole, begin(whole)) == [1, 2, 3, 4]
    assert numbers(later, begin(later, first)) == [4]
