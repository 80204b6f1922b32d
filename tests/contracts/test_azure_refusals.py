"""Azure Blob Storage: each thing that does not work is one error with its cure."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from airflow_trident.errors import ConfigurationError, Outcome, StoreUnavailableError, TridentError
from airflow_trident.io.object_stores import ObjectAddress
from airflow_trident.io.places import place_at
from tests.contracts.test_azure_storage import OTHER_KEY
from tests.faults.http_proxy import Answer, Rule, Verdict
from tests.fixtures.azurite import CONN_ID, KEY, VARIABLE, Container, account_url, connection, sas


def said(code: str, status: int = 403, more: str = "") -> Rule:
    body = f"\ufeff<?xml version='1.0'?><Error><Code>{code}</Code><Message>No.\nTime:1</Message>{more}</Error>".encode()
    return lambda request: Answer(status, body)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"key": OTHER_KEY}, "failed to authenticate.*See the key of the connection"),
        ({"sas_token": sas(end=timedelta(minutes=-5))}, "failed to authenticate.*SAS token"),
        ({"sas_token": sas(begin=timedelta(minutes=50))}, "failed to authenticate.*SAS token"),
        ({"sas_token": sas(rights="r")}, "AuthorizationPermissionMismatch: .*right to list, read, write and delete"),
    ],
    ids=["wrong key", "expired token", "token of later", "token for reading only"],
)
def test_a_server_that_refuses_is_one_error_with_its_cure(
    change: dict[str, Any], text: str, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, connection(container.direct, **change))
    with pytest.raises(ConfigurationError, match=text) as caught:
        place_at(container.uri).check()
    assert container.uri in str(caught.value)
    assert KEY not in str(caught.value)
    assert "sig=" not in str(caught.value)
    assert caught.value.outcome is Outcome.FAIL


def test_a_container_that_is_not_there_is_named(container: Container) -> None:
    storage = place_at(f"abfs://{CONN_ID}@no-such-container/x")
    with pytest.raises(ConfigurationError, match=r"@no-such-container/x' \(ContainerNotFound.*Make the container"):
        storage.check()
    for verb in (
        lambda: storage.read("a"),
        lambda: list(storage.list("a")),
        lambda: storage.put("a", lambda file: None),
    ):
        with pytest.raises(ConfigurationError, match="ContainerNotFound"):
            verb()


DETAIL = "<AuthenticationErrorDetail>%s</AuthenticationErrorDetail>"


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (said("AuthenticationFailed", more=DETAIL % "Request date header too old: 'Sat'"), "Set the clock"),
        (
            said("AuthenticationFailed", more=DETAIL % "Signature not valid in the specified time frame"),
            "SAS token that is valid now",
        ),
        (said("AuthenticationFailed", more=DETAIL % "Signature did not match."), "See the SAS token"),
        (said("AuthorizationFailure"), "firewall.*right to list, read, write and delete"),
        (said("KeyBasedAuthenticationNotPermitted"), "takes no keys"),
        (said("InvalidAuthenticationInfo", 401), "InvalidAuthenticationInfo: No.*client id, secret and tenant"),
        (said("AccountIsDisabled"), "Name an account that is not disabled"),
        (said("BlobArchived", 409), "BlobArchived.*to an online tier"),
        (said("LeaseIdMissing", 412), "LeaseIdMissing.*Break the lease"),
        (said("BlobImmutableDueToPolicy", 409), "without a policy that keeps blobs"),
        (said("ContainerBeingDeleted", 409), "ContainerBeingDeleted"),
        (said("Unheard"), "Unheard.*Give this user the right"),
    ],
)
def test_what_azure_alone_says_is_one_error_with_its_cure(rule: Rule, text: str, container: Container) -> None:
    container.proxy.rule = rule
    with pytest.raises(ConfigurationError, match=text):
        place_at(container.uri).check()


@pytest.mark.parametrize("status", [400, 401])
def test_a_client_whose_secret_has_expired_is_one_error_with_its_cure(
    status: int, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"tenant_id": "t", "retry_total": 0, "client_secret_auth_config": {"authority": container.proxy.url}}
    monkeypatch.setenv(VARIABLE, connection(account_url(container.server), key="a-client-secret", **extra))
    container.proxy.rule = lambda request: Answer(status, b'{"error":"invalid_client"}')
    with pytest.raises(ConfigurationError, match=r"invalid_client.*See client id, secret and tenant") as caught:
        place_at(container.uri).check()
    assert "a-client-secret" not in str(caught.value)
    container.proxy.rule = lambda request: Answer(503)
    with pytest.raises(StoreUnavailableError):
        place_at(container.uri).check()


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        (
            "abfss://lake@shop.blob.core.windows.net/a?sv=1&sig=secret",
            r"'abfss://lake@shop.*/a\?\.\.\.': it is no abfs://",
        ),
        ("https://shop.blob.core.windows.net/lake?sv=1&sig=secret", r"cannot use 'https://shop.*/lake\?\.\.\.'"),
        ("az://shop:secret@lake/a", r"cannot use 'az://shop:\.\.\.@lake/a'"),
        ("s3://key:se/secret@bucket/a", r"cannot use 's3://key:\.\.\.@bucket/a'"),
        ("abfs://lake/a\\b", "it is no abfs://"),
        ("s3://bucket/a\x01b", "it is no s3://"),
    ],
)
def test_an_address_that_is_none_is_refused_without_showing_secrets(uri: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as caught:
        ObjectAddress.parse("it", uri)
    assert "secret" not in str(caught.value)


def test_a_store_that_takes_a_name_twice_is_refused(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, container.connection(sas_token=sas()))  # a key would sign the condition, too
    container.proxy.rule = lambda request: Verdict.UNCONDITIONAL
    with pytest.raises(ConfigurationError, match=r"takes a name twice.*Azure Blob Storage has them"):
        place_at(container.uri).check()


def test_no_credentials_at_all_is_one_error_with_its_cure(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    container.proxy.rule = lambda request: Answer(404)
    monkeypatch.setenv(VARIABLE, json.dumps({"conn_type": "wasb", "host": account_url("127.0.0.1:1")}))
    monkeypatch.setenv("AZURE_MSI_ENDPOINT", f"{container.proxy.url}/metadata/identity/oauth2/token")
    with pytest.raises(ConfigurationError, match=r"no credentials for 'abfs://.*AZURE_STORAGE_ACCOUNT_KEY.*type wasb"):
        place_at(container.uri).check()


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ({"conn_type": "aws"}, "'blobs' is of type 'aws', and abfs:// needs one of type 'wasb'"),
        ({"conn_type": "wasb", "password": "x"}, "'blobs' names no account.*its URL as its host"),
        (
            {"conn_type": "wasb", "login": "client", "password": "x", "extra": {"tenant_id": "t"}},
            "has a tenant_id.*names no account.*account's URL",
        ),
        (
            {"conn_type": "wasb", "login": "client", "host": "shop", "password": "x", "extra": {"tenant_id": "t"}},
            "has a tenant_id.*names no account.*account's URL",
        ),
        (
            {"conn_type": "wasb", "login": "a", "password": KEY, "extra": {"connection_verify": "/no/such.pem"}},
            "names certificates in '/no/such.pem', which cannot be read.*Put the file on each machine",
        ),
        (
            {"conn_type": "wasb", "login": "a", "password": KEY, "extra": {"read_timeout": "soon"}},
            "'blobs' has 'soon' as read_timeout, which is no number.*of seconds",
        ),
        (
            {"conn_type": "wasb", "login": "a", "password": KEY, "extra": {"retry_total": -1}},
            "has '-1' as max_retries",
        ),
        ({"conn_type": "wasb", "extra": {"connection_string": "AccountKey=x"}}, "names no account.*Copy it whole"),
        (
            {"conn_type": "wasb", "login": "a", "extra": {"proxies": {"https": "x"}}},
            "extra 'proxies'.*not followed",
        ),
        (
            {"conn_type": "wasb", "host": "ftp://a.b", "login": "a", "password": KEY},
            "'ftp://a.b' of .* no URL",
        ),
    ],
)
def test_a_connection_that_does_not_fit_is_refused(
    written: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps(written))
    with pytest.raises(TridentError, match=text):
        place_at(f"abfs://{CONN_ID}@container").check()


def test_without_an_account_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ConfigurationError, match=r"cannot be opened.*AZURE_\* of the environment"):
        place_at("abfs://container").check()
