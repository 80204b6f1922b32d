"""Spouts of tables in a bucket, by a connection: the promises of spouts, for tables that others write."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from deltalake import write_deltalake

from airflow_trident import DeltaTable, IcebergTable
from airflow_trident.contracts.spout import Spout
from airflow_trident.errors import SourceUnavailableError
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.io.places import place_at
from airflow_trident.spouts.delta.spout import DeltaSpout
from airflow_trident.spouts.iceberg.spout import IcebergSpout
from airflow_trident.testing.suites import SpoutCase, batch_rows, check_changed_source, check_replay, metadata_of_all
from airflow_trident.types import parse_declared
from tests.contracts.test_spouts import FIELDS, ROWS
from tests.faults.http_proxy import Verdict
from tests.fixtures.catalog import open_catalog
from tests.fixtures.object_store import CONN_ID, VARIABLE, Lake

CUTS = [0, 1, 8, 20, len(ROWS)]
PARTS = [rows_to_table(parse_declared(FIELDS), ROWS[begin:end]) for begin, end in pairwise(CUTS)]
NAME = "sales.rows"


def delta(bucket: str, folder: Path) -> Spout:
    uri = f"s3://{bucket}/lake/rows"
    place = DeltaTable(uri, conn_id=CONN_ID).place().resolved()
    for part in PARTS:
        write_deltalake(place.where, part, mode="append", storage_options=dict(place.options))
    return DeltaSpout(uri, fields=FIELDS, conn_id=CONN_ID, max_files=2)


def iceberg(bucket: str, folder: Path) -> Spout:
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"s3://{CONN_ID}@{bucket}/lake",
    }
    resolved = IcebergTable(NAME, properties=properties).place().resolved()
    catalog = open_catalog(**resolved.properties)
    catalog.create_namespace("sales")
    table = catalog.create_table(NAME, schema=PARTS[0].schema)
    for part in PARTS:
        table.append(part)
    return IcebergSpout(NAME, fields=FIELDS, properties=properties, max_files=2)


@pytest.fixture(params=[delta, iceberg])
def spout(request: pytest.FixtureRequest, lake: Lake, tmp_path: Path) -> Spout:
    made: Spout = request.param(lake.name, tmp_path)
    return made


@pytest.mark.parametrize("check", [check_replay, check_changed_source])  # which read objects; others read the log
def test_a_spout_of_a_table_in_a_bucket_keeps_its_promises(
    spout: Spout, lake: Lake, check: Callable[[SpoutCase], None]
) -> None:
    def take_away() -> Spout:
        objects = place_at(f"s3://{CONN_ID}@{lake.name}")
        objects.delete([entry.name for entry in objects.list("") if entry.name.endswith(".parquet")])
        return spout

    check(SpoutCase(spout, list(ROWS), take_away))


def test_executors_read_it_without_the_connection(spout: Spout, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = metadata_of_all(spout)
    assert len(batches) == 2
    sent = pickle.dumps(spout.emitter())
    monkeypatch.delenv(VARIABLE)
    emitter = pickle.loads(sent)
    found = [
        row
        for metadata in batches
        for split in emitter.splits(metadata)
        for batch in emitter.read(split)
        for row in batch.to_pylist()
    ]
    expected = [row for part in PARTS for row in part.to_pylist()]
    assert sorted(found, key=str) == sorted(expected, key=str)


def test_a_bucket_that_is_away_is_said_and_what_was_begun_is_read_when_it_is_back(spout: Spout, lake: Lake) -> None:
    first, *_ = metadata_of_all(spout)
    before = batch_rows(spout, first)
    lake.server.rule("GET", Verdict.UNAVAILABLE, times=1000)
    with pytest.raises(SourceUnavailableError):
        batch_rows(spout, first)
    lake.server.rule("none", Verdict.PASS)
    assert batch_rows(spout, first) == before
