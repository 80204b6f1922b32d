"""Delta tables and states in a container of Azure Blob Storage, by a connection of type ``wasb``."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from airflow_trident import DeltaTable, TableSpout
from airflow_trident.contracts.spout import Emitter
from airflow_trident.errors import ConfigurationError
from airflow_trident.io.object_services import AZURE
from tests.fixtures.azurite import ACCOUNT, CONN_ID, KEY, VARIABLE, Container, connection, container_sas
from tests.fixtures.table import TABLES


def rows_of(emitter: Emitter, metadata: Any) -> list[tuple[Any, ...]]:
    batches = [batch for split in emitter.splits(metadata) for batch in emitter.read(split)]
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


WAYS: dict[str, Callable[[Container], dict[str, Any]]] = {
    "key": lambda container: {"host": container.direct, "password": KEY},
    "SAS token of the container": lambda container: {
        "extra": {"sas_token": f"{container.direct}?{container_sas(container.name)}"}
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_a_table_is_written_and_read_by_the_connection(
    way: str, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One commit: azurite lists from the beginning where it is asked for what is behind a name, so that delta-rs finds
    a second one wrong."""
    monkeypatch.setenv(VARIABLE, json.dumps({"conn_type": "wasb", **WAYS[way](container)}))
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "another")
    table = DeltaTable(f"abfs://{container.name}/lake/sales", conn_id=CONN_ID)
    place = table.place().resolved()
    deltalake.write_deltalake(place.where, pa.table({"n": [1, 2]}), storage_options=dict(place.options))
    spout = TableSpout(table, fields="n long")
    metadata = spout.coordinator().initialize_transaction(1, None)
    sent = pickle.dumps(spout.emitter())
    monkeypatch.delenv(VARIABLE)
    assert sorted(rows_of(pickle.loads(sent), metadata)) == [(1,), (2,)]
    assert KEY not in f"{table!r} {place!r} {spout.describe()} {metadata}"


def test_a_key_of_the_environment_that_delta_rs_would_prefer_is_refused(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps({"conn_type": "wasb", **WAYS["SAS token of the container"](container)}))
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    with pytest.raises(ConfigurationError, match=r"AZURE_STORAGE_ACCOUNT_KEY is set.*delta-rs.*Take"):
        DeltaTable(f"abfs://{container.name}/sales", conn_id=CONN_ID).place().resolved()


def test_hadoops_address_is_no_user_in_a_uri_and_a_connection_before_a_container_is_one() -> None:
    made = DeltaTable("abfss://lake@shop.dfs.core.windows.net/sales").place()
    assert made.service is AZURE
    for uri in ("abfs://blobs@lake/sales", "abfss://lake:secret@shop.dfs.core.windows.net/sales"):
        with pytest.raises(ConfigurationError, match="conn_id=") as caught:
            DeltaTable(uri)
        assert "secret" not in str(caught.value)


def test_what_the_connection_says_is_said_in_the_words_of_delta_rs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, connection("http://127.0.0.1:1/one", account_name=ACCOUNT))
    place = DeltaTable("abfs://lake/sales", conn_id=CONN_ID).place().resolved()
    assert place.options == {
        "account_name": ACCOUNT,
        "account_key": KEY,
        "endpoint": "http://127.0.0.1:1/one",
        "allow_http": "true",
        "timeout": "2s",
        "max_retries": "3",
    }
    monkeypatch.setenv(VARIABLE, connection("https://127.0.0.1:1/one", connection_verify="/ca.pem"))
    with pytest.raises(ConfigurationError, match=r"\(connection_verify\).*Let the machine trust"):
        DeltaTable("abfs://lake/sales", conn_id=CONN_ID).place().resolved()


def test_a_wrong_key_is_one_error_with_its_cure(
    container: Container, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, connection(container.direct, key="b3RoZXI="))
    table: Any = TABLES["delta"](tmp_path)
    table.spec = replace(table.spec, factory=DeltaTable(f"abfs://{container.name}/sales", conn_id=CONN_ID))
    with pytest.raises(ConfigurationError, match="See the key of the connection"):
        table.opened()
