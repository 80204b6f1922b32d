"""Tables in a bucket of Google Cloud Storage, by a connection of type ``google_cloud_platform``."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import DeltaTable, IcebergTable, TableSpout
from airflow_trident.contracts.state import Applied
from airflow_trident.errors import ConfigurationError
from airflow_trident.io.object_services import GCS
from tests.contracts.test_tables_on_s3 import rows_of
from tests.fixtures.gcs import CONN_ID, VARIABLE, GcsBucket, account_key, connection, new_key
from tests.fixtures.object_store import Lake
from tests.fixtures.state import batch, ticket
from tests.fixtures.table import TABLES, staged

SECRET = json.loads(account_key())["private_key"].split("\n")[1]
FACTORIES: dict[str, Callable[[str], Any]] = {
    "delta": lambda bucket: DeltaTable(f"gcs://{bucket}/lake/sales", conn_id=CONN_ID),
}


def table_of(kind: str, bucket: str, folder: Path) -> Any:
    table = TABLES[kind](folder)
    table.spec = replace(table.spec, factory=FACTORIES[kind](bucket))
    return table


@pytest.mark.parametrize("kind", FACTORIES)
def test_each_batch_is_there_once_and_a_spout_reads_it(
    kind: str, gcs_lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(kind, gcs_lake.name, tmp_path)
    with table.opened() as state:
        assert state.apply_files(ticket(1), staged(tmp_path, ("a", 1), files=2)) is Applied.APPLIED
        assert state.apply(ticket(2), batch(table.spec, ("b", 2))) is Applied.APPLIED
    spout = TableSpout(table.spec.factory, fields="word string, n long")
    metadata = spout.coordinator().initialize_transaction(1, None)
    sent = pickle.dumps((table.spec.factory, spout.emitter()))
    monkeypatch.delenv(VARIABLE)
    factory, emitter = pickle.loads(sent)
    spec = replace(table.spec, factory=factory)
    with factory.make_state(spec) as state:
        assert state.apply_files(ticket(2, fence=99), staged(tmp_path, ("b", 2))) is Applied.ALREADY
    assert rows_of(spec) == [("a", 1), ("a", 1), ("b", 2)]
    read = [part for split in emitter.splits(metadata) for part in emitter.read(split)]
    assert sorted(tuple(row.values()) for part in read for row in part.to_pylist()) == rows_of(spec)
    assert SECRET not in f"{factory!r} {spout.describe()} {metadata}"


def test_a_wrong_key_is_one_error_with_its_cure(
    gcs_lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = new_key()
    monkeypatch.setenv(VARIABLE, connection(gcs_lake.server.url, key=key))
    with pytest.raises(ConfigurationError, match=r"AuthenticationRequired.*key of the connection is one") as caught:
        table_of("delta", gcs_lake.name, tmp_path).opened()
    assert not any(line in str(caught.value) for line in json.loads(key)["private_key"].split("\n")[1:-2])
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "another one's")
    with pytest.raises(ConfigurationError, match="GOOGLE_BEARER_TOKEN is set"):
        table_of("delta", gcs_lake.name, tmp_path).opened()


def test_what_the_connection_says_is_said_in_the_words_of_delta_rs(gcs: GcsBucket) -> None:
    place = DeltaTable(f"gs://{gcs.name}/sales", conn_id=CONN_ID).place()
    assert place.service is GCS
    options = dict(place.resolved().options)
    assert json.loads(options.pop("service_account_key"))["client_email"] == "tests@tests.iam"
    assert options == {
        "base_url": gcs.proxy.url,
        "skip_signature": "false",
        "allow_http": "true",
        "timeout": "2s",
        "max_retries": "3",
    }


def test_an_iceberg_warehouse_takes_the_machines_credentials_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg's files of Google take a token, or what the machine has."""
    table = IcebergTable("sales.orders", properties={"type": "sql", "warehouse": f"gs://{CONN_ID}@lake/tables"})
    monkeypatch.setenv(VARIABLE, connection("https://storage.example"))
    with pytest.raises(ConfigurationError, match=r"has a key.*Set GOOGLE_APPLICATION_CREDENTIALS on each"):
        table.place().resolved()
    monkeypatch.setenv(VARIABLE, json.dumps({"conn_type": "google_cloud_platform", "extra": {"project": "p"}}))
    assert table.place().resolved().properties == {"type": "sql", "warehouse": "gs://lake/tables"}
