"""What is of Iceberg tables alone; what others may do meanwhile is in test_foreign_tables.py."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from math import isnan, nan
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from airflow_trident import IcebergTable
from airflow_trident.contracts.state import Applied, StateSpec
from airflow_trident.errors import ConfigurationError, CorruptRecordError
from airflow_trident.types import parse_declared
from tests.fixtures.state import batch, iceberg_table, ticket
from tests.fixtures.table import ForeignIcebergTable, staged


@pytest.fixture
def table(tmp_path: Path) -> ForeignIcebergTable:
    return ForeignIcebergTable(tmp_path)


# ---- what is said of a file ------------------------------------------------------------------------------------


def test_rows_of_every_type_are_read_back_and_found_by_their_statistics(tmp_path: Path) -> None:
    fields = parse_declared(
        "b byte, i int, n long, x double, word string, at timestamp, d date, t time, price decimal(10,2), yes boolean, "
        "raw binary, tags array<string>, counts map<string,long>, whole struct<a:short,b:array<double>>"
    )
    at = datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC)
    row = (1, 2, 3, 0.5, "w" * 100, at, date(2024, 2, 29), time(1, 2, 3, 4), Decimal("-1.50"), True, b"\0\xff")
    rows = [(*row, ["x", None], {"k": 1}, {"a": 7, "b": [1.0]}), (None,) * len(fields)]
    factory = iceberg_table(tmp_path)
    spec = StateSpec(topology="t", name="s", keys=(), values=fields, staged=fields, factory=factory)
    with factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, *rows))
        assert [found for _, found in state.items()] == rows
    foreign = ForeignIcebergTable(tmp_path).table
    for found in (
        "i == 2",
        "n == 3",
        "x == 0.5",
        f"word == '{'w' * 100}'",
        "price == -1.50",
        "yes == true",
        "n is null",
    ):
        assert foreign.scan(found).to_arrow().num_rows == 1, found


def test_rows_with_nan_are_not_deleted_by_the_statistics_of_the_others(tmp_path: Path) -> None:
    fields = parse_declared("x double")
    factory = iceberg_table(tmp_path)
    spec = StateSpec(topology="t", name="s", keys=(), values=fields, staged=fields, factory=factory)
    with factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, (1.0,), (nan,)))
    foreign = ForeignIcebergTable(tmp_path).table
    foreign.delete("x < 5")
    (left,) = foreign.scan().to_arrow()["x"].to_pylist()
    assert isnan(left)


def test_a_commit_has_one_snapshot_that_says_whose_it_is(table: ForeignIcebergTable, tmp_path: Path) -> None:
    with table.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1), files=3))
    (snapshot,) = table.table.snapshots()
    said = json.loads(snapshot.summary["airflow-trident/words/rows"])
    known = json.loads(table.table.properties["airflow-trident/words/rows"])
    position = known["marker"].pop("position")
    assert position == ticket(1).position, "once in the table, not once for each snapshot"
    assert said == known
    assert (said["marker"]["high"], snapshot.summary["added-data-files"]) == (1, "3")


# ---- tables that are there -------------------------------------------------------------------------------------

WORD, N = NestedField(1, "word", StringType()), NestedField(2, "n", LongType())
REFUSED: dict[str, tuple[list[Any], dict[str, str], str]] = {
    "a column less": ([WORD], {}, "has no column n"),
    "another type": ([WORD, NestedField(2, "n", IntegerType())], {}, "its column n is int, and the field long"),
    "a column more without nulls": ([WORD, N, NestedField(3, "x", LongType(), required=True)], {}, "x takes no nulls"),
    "an older format": ([WORD, N], {"format-version": "1"}, "it has format version 1"),
    "names of other columns": (
        [WORD, N],
        {"schema.name-mapping.default": '[{"field-id": 1, "names": ["word", "n"]}]'},
        "maps the name n to another column",
    ),
}


def made(table: ForeignIcebergTable, fields: list[Any], properties: dict[str, str]) -> Any:
    table.opened().close()
    catalog = table.table.catalog
    catalog.drop_table("sales.orders")
    return catalog.create_table("sales.orders", Schema(*fields), properties=properties)


@pytest.mark.parametrize("case", REFUSED)
def test_a_table_that_files_cannot_be_added_to_is_refused(table: ForeignIcebergTable, case: str) -> None:
    fields, properties, text = REFUSED[case]
    made(table, fields, properties)
    with pytest.raises(ConfigurationError) as caught:
        table.opened()
    assert text in str(caught.value)
    assert caught.value.cure


def test_a_table_that_is_refused_leaves_no_connection_to_its_catalog(
    table: ForeignIcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(table, [WORD], {})
    closed, close = [], SqlCatalog.close
    monkeypatch.setattr(SqlCatalog, "close", lambda self: closed.append(self) or close(self))
    with pytest.raises(ConfigurationError, match="has no column n"):
        table.opened()
    assert len(closed) == 1


def test_a_table_that_somebody_upgrades_to_version_3_is_refused_from_then_on(
    table: ForeignIcebergTable, tmp_path: Path
) -> None:
    """pyiceberg reads that version and does not write it."""
    with table.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
        path = Path(urlsplit(table.table.metadata_location).path)
        path.write_text(json.dumps({**json.loads(path.read_text()), "format-version": 3, "next-row-id": 1}))
        with pytest.raises(ConfigurationError, match="it has format version 3") as caught:
            state.apply_files(ticket(2), staged(tmp_path, ("b", 2)))
        assert "another table" in caught.value.cure
    assert table.rows() == [("a", 1)]


def test_a_partitioning_that_comes_later_is_refused_when_it_is_there(
    table: ForeignIcebergTable, tmp_path: Path
) -> None:
    with table.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
        with table.table.update_spec() as update:
            update.add_field("word", IdentityTransform())
        with pytest.raises(ConfigurationError, match="is partitioned by word"):
            state.apply_files(ticket(2), staged(tmp_path, ("a", -1)))
    assert table.rows() == [("a", 1)]


def test_columns_without_nulls_get_none(table: ForeignIcebergTable, tmp_path: Path) -> None:
    made(table, [WORD, NestedField(2, "n", LongType(), required=True)], {})
    with table.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
        with pytest.raises(ConfigurationError, match=r"column 'n' .* takes no nulls, and the batch has some"):
            state.apply_files(ticket(2), staged(tmp_path, ("b", None)))
        assert state.marker().high == 1
    assert table.rows() == [("a", 1)]


def test_a_column_that_others_rename_keeps_its_rows_and_ours_are_refused(
    table: ForeignIcebergTable, tmp_path: Path
) -> None:
    with table.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
        with table.table.update_schema() as update:
            update.rename_column("n", "many")
        with pytest.raises(ConfigurationError, match="has no column n"):
            state.apply_files(ticket(2), staged(tmp_path, ("b", 2)))
    assert table.read().to_pylist() == [{"word": "a", "many": 1}]


def test_a_marker_that_is_lost_damaged_or_set_back_is_not_guessed_at(
    table: ForeignIcebergTable, tmp_path: Path
) -> None:
    key = "airflow-trident/words/rows"
    with table.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
        older = table.table.properties[key]
        state.apply_files(ticket(2), staged(tmp_path, ("b", 2)))
    newest, summary = table.table.properties[key], table.table.current_snapshot().summary[key]
    for text in ("", "[]", json.dumps({**json.loads(newest), "of": ["other", "rows"]}), older, summary):
        table.table.transaction().set_properties({key: text}).commit_transaction()
        with pytest.raises(CorruptRecordError, match="is damaged"):
            table.opened()
    table.table.transaction().remove_properties(key).commit_transaction()
    with pytest.raises(CorruptRecordError, match="has no property"):
        table.opened()
    table.table.transaction().set_properties({key: newest}).commit_transaction()
    with table.opened() as state:
        assert state.apply_files(ticket(2), staged(tmp_path, ("b", 2))) is Applied.ALREADY


def test_a_table_is_loaded_once_when_it_is_opened(table: ForeignIcebergTable, monkeypatch: pytest.MonkeyPatch) -> None:
    table.opened().close()
    loaded, load = [], SqlCatalog.load_table
    monkeypatch.setattr(SqlCatalog, "load_table", lambda self, name: loaded.append(name) or load(self, name))
    table.opened().close()
    assert loaded == ["sales.orders"]


# ---- catalogs --------------------------------------------------------------------------------------------------


def test_a_connection_says_where_the_catalog_is_and_its_secrets_stay_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = iceberg_table(tmp_path)
    extra = {**(known.properties or {}), "header.token": "hidden-12345"}
    connection = {"conn_type": "iceberg", "login": "me", "password": "hidden-67890", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    spec = ForeignIcebergTable(tmp_path).spec
    factory = IcebergTable("sales.orders", conn_id="lake")
    with factory.make_state(replace(spec, factory=factory)) as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
    assert ForeignIcebergTable(tmp_path).rows() == [("a", 1)]
    sent = pickle.loads(pickle.dumps(factory))
    monkeypatch.delenv("AIRFLOW_CONN_LAKE")
    assert sent.place().properties["credential"] == "me:hidden-67890"
    sent.make_state(replace(spec, factory=sent)).close()
    assert "hidden" not in f"{factory!r} {factory.describe()} {sent!r} {sent.place().conceal('hidden-12345')}"


@pytest.mark.parametrize("name", ["", "orders", "sales.", ".orders", "sales..orders"])
def test_a_name_without_a_namespace_is_refused_when_the_dag_is_built(name: str) -> None:
    with pytest.raises(ConfigurationError, match="Give namespace and table"):
        IcebergTable(name)


def test_a_catalog_that_nobody_described_is_refused_with_the_cure(
    table: ForeignIcebergTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for options in ({"catalog": "nowhere"}, {"properties": {"type": "sql"}}, {"properties": {"type": "paper"}}):
        factory = IcebergTable("sales.orders", **options)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match=r"cannot be used.*pyiceberg.yaml"):
            factory.make_state(replace(table.spec, factory=factory))


def test_rows_of_others_are_read_too(table: ForeignIcebergTable, tmp_path: Path) -> None:
    with table.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
        table.append()
        assert sorted(row for _, row in state.items()) == [("a", 1), ("other", 0)]
