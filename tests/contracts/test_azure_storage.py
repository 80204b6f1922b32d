"""Azure Blob Storage besides what every storage promises: what connections say."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest.mock import ANY

import pytest

from airflow_trident.errors import ConfigurationError
from airflow_trident.io.connections import Connection
from airflow_trident.io.object_arrow import arrow_files
from airflow_trident.io.object_services import AZURE
from airflow_trident.io.object_stores import ObjectAddress
from airflow_trident.io.place import PROBE, Place
from airflow_trident.io.places import place_at
from tests.fixtures.azurite import ACCOUNT, KEY, VARIABLE, Container, account_url, connection, container_sas, sas

OTHER_KEY = "b3RoZXI="
URL = "https://shop.blob.core.windows.net"


# ---- ways to get there -----------------------------------------------------------------------------------------


WAYS: dict[str, Callable[[str], dict[str, Any]]] = {
    "key": lambda url: {"host": url, "login": ACCOUNT, "password": KEY},
    "key without a login": lambda url: {"host": url, "password": KEY},
    "shared access key": lambda url: {"host": url, "extra": {"shared_access_key": KEY}},
    "account key": lambda url: {"host": url, "extra": {"account_key": KEY}},
    "extra of an older connection": lambda url: {"host": url, "extra": {"extra__wasb__shared_access_key": KEY}},
    "SAS token": lambda url: {"host": url, "login": ACCOUNT, "extra": {"sas_token": sas()}},
    "SAS token before a password": lambda url: {"host": url, "password": "x", "extra": {"sas_token": f"?{sas()}"}},
    "SAS URL": lambda url: {"extra": {"sas_token": f"{url}?{sas()}"}},
    "connection string": lambda url: {
        "login": "another",
        "extra": {"connection_string": f"AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={url};"},
    },
    "connection string with a SAS token": lambda url: {
        "extra": {"connection_string": f"BlobEndpoint={url}/;SharedAccessSignature={sas()}"}
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_say_who_one_is_leads_there_whatever_the_environment_says(
    way: str, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps({"conn_type": "wasb", **WAYS[way](account_url(container.server))}))
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "another")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", OTHER_KEY)
    assert place_at(container.uri).put_once("t/m", b"x")


def test_without_a_connection_the_environment_is_asked(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", container.direct)
    for scheme in ("abfs", "abfss", "wasb", "wasbs", "ABFS"):
        assert place_at(f"{scheme}://{container.name}/{scheme}").put_once("t/m", b"x")


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"login": "shop"}, {"account_name": "shop", "endpoint": URL}),
        ({"login": "shop", "host": "an-id-of-a-directory"}, {"account_name": "shop", "endpoint": URL}),
        ({"host": "shop.blob.core.windows.net"}, {"account_name": "shop", "endpoint": URL}),
        ({"host": f"{URL}/"}, {"account_name": "shop", "endpoint": URL}),
        ({"host": "http://azurite:10000/one"}, {"account_name": "one", "endpoint": "http://azurite:10000/one"}),
        (
            {"host": "https://data.example", "extra": {"account_name": "shop"}},
            {"account_name": "shop", "endpoint": "https://data.example"},
        ),
        (
            {"host": URL, "login": "a-client", "password": "a-secret", "extra": {"tenant_id": "t"}},
            {
                "account_name": "shop",
                "endpoint": URL,
                "credential_type": "client_secret",
                "client_id": "a-client",
                "client_secret": "a-secret",
                "tenant_id": "t",
            },
        ),
        (
            {"login": "shop", "extra": {"managed_identity_client_id": "m", "workload_identity_tenant_id": "w"}},
            {"account_name": "shop", "endpoint": URL, "client_id": "m", "tenant_id": "w"},
        ),
        (
            {"extra": {"connection_string": "AccountName=shop;AccountKey=a==;EndpointSuffix=core.chinacloudapi.cn"}},
            {
                "account_name": "shop",
                "endpoint": "https://shop.blob.core.chinacloudapi.cn",
                "credential_type": "access_key",
                "account_key": "a==",
            },
        ),
        (
            {"extra": {"connection_string": "UseDevelopmentStorage=true"}},
            {
                "account_name": "devstoreaccount1",
                "endpoint": "http://127.0.0.1:10000/devstoreaccount1",
                "credential_type": "access_key",
                "account_key": ANY,
            },
        ),
        ({"host": "https://shop.dfs.core.windows.net/"}, {"account_name": "shop", "endpoint": URL}),
        ({"host": f"{URL}/lake"}, {"account_name": "shop", "endpoint": URL}),
        ({"extra": {"connection_string": f"BlobEndpoint={URL}/ \n"}}, {"account_name": "shop", "endpoint": URL}),
        (
            {"extra": {"sas_token": f"{URL}/lake?sv=1&sig=2"}},
            {"account_name": "shop", "endpoint": URL, "credential_type": "sas_token", "sas_key": "sv=1&sig=2"},
        ),
        (
            {"login": "shop", "host": "https://data.example", "password": "k"},
            {
                "account_name": "shop",
                "endpoint": "https://data.example",
                "credential_type": "access_key",
                "account_key": "k",
            },
        ),
        (
            {"login": "a-client", "password": "s", "extra": {"tenant_id": "t", "account_name": "shop"}},
            {
                "account_name": "shop",
                "endpoint": URL,
                "credential_type": "client_secret",
                "client_id": "a-client",
                "client_secret": "s",
                "tenant_id": "t",
            },
        ),
    ],
)
def test_a_connection_is_read_as_airflows_hook_reads_it(fields: dict[str, Any], settings: dict[str, str]) -> None:
    assert AZURE.settings_of(Connection(conn_id="c", conn_type="wasb", **fields)) == settings


def test_the_authority_of_another_cloud_is_followed() -> None:
    extra = {"tenant_id": "t", "client_secret_auth_config": {"authority": "login.chinacloudapi.cn"}}
    found = AZURE.settings_of(Connection(conn_type="wasb", host=URL, login="c", password="s", extra=extra))
    assert found["authority_host"] == "https://login.chinacloudapi.cn"


def test_time_outs_retries_and_certificates_are_called_as_azures_own_client_calls_them() -> None:
    extra = {"connection_timeout": 3, "read_timeout": 4, "retry_total": 0, "connection_verify": "/ca.pem"}
    assert AZURE.client_of(Connection(extra=extra)) == {
        "connect_timeout": "3",
        "read_timeout": "4",
        "max_retries": "0",
        "root_certificate": "/ca.pem",
    }


@pytest.mark.parametrize(
    "uri", ["abfss://lake@shop.dfs.core.windows.net/a/b", "wasbs://lake@shop.blob.core.windows.net/a/b"]
)
def test_hadoops_address_names_the_account_and_no_connection(uri: str) -> None:
    place = ObjectAddress.parse("it", f" {uri}/ ")
    assert (place.bucket, place.prefix, place.conn_id, place.where) == ("lake", "a/b", "", uri)
    assert dict(place.settings) == {"account_name": "shop", "endpoint": URL}
    assert pickle.loads(pickle.dumps(place)) == place


@pytest.mark.parametrize("way", ["SAS token", "connection string"])
def test_pyarrow_reads_with_the_credentials_of_the_connection_and_shows_none(
    way: str, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    container.put("a/b", b"0123456789")
    monkeypatch.setenv(VARIABLE, json.dumps({"conn_type": "wasb", **WAYS[way](container.direct)}))
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", OTHER_KEY)
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=2")
    place = ObjectAddress.parse("it", f"{container.uri}/a")
    files = pickle.loads(pickle.dumps(arrow_files(place)))
    with files.open_input_file(place.key("b")) as file:
        assert (file.size(), file.read(), file.read_at(3, 4)) == (10, b"0123456789", b"456")
    with pytest.raises(FileNotFoundError):
        files.open_input_file(place.key("c"))
    expired = sas(end=timedelta(minutes=-5))
    monkeypatch.setenv(VARIABLE, connection(container.direct, key="", sas_token=expired))
    with pytest.raises(ConfigurationError, match=r"cannot read 'a/b'.*SAS token") as caught:
        arrow_files(place).open_input_file(place.key("b"))
    assert "sig=" not in str(caught.value)


def test_the_sas_token_of_a_container_is_enough_to_publish_and_to_delete(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = container_sas(container.name)
    monkeypatch.setenv(VARIABLE, connection(container.direct, key="", sas_token=token, retry_total=0))
    folder = place_at(f"{container.uri}/out")
    folder.check()
    folder.put("h", lambda file: file.write(b"123"))
    assert folder.show("h", "a.csv")
    assert (sorted(folder.names()), folder.open("a.csv").read()) == ([PROBE, "a.csv"], b"123")
    folder.delete(["a.csv"])
    assert list(folder.names()) == [PROBE]


def test_a_place_that_was_resolved_needs_no_connection_any_more(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = pickle.dumps(place_at(container.uri).resolved())
    monkeypatch.delenv(VARIABLE)
    there: Place = pickle.loads(sent)
    assert there.put_once("t/m", b"x")
    assert KEY not in repr(there)


def test_of_names_that_are_deleted_those_that_are_gone_do_not_keep_the_others(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, container.connection(read_timeout_s=30))
    storage = place_at(container.uri)
    names = [f"t/{number:03}" for number in range(300)]
    for name in names[::30]:
        storage.put(name, lambda file: None)
    before = container.proxy.asked["POST"]
    storage.delete(names)
    assert container.proxy.asked["POST"] - before == 2
    assert list(storage.list("t")) == []
