"""Options and connections: what is written is what is meant, or one clear error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_trident import settings
from airflow_trident.cli.commands import doctor
from airflow_trident.errors import ConfigurationError
from airflow_trident.hooks.zookeeper import ZooKeeperHook, settings_of


def connection(**fields: Any) -> Connection:
    return Connection(**{"conn_id": "zk", "conn_type": "zookeeper", "host": "zk1:2181,zk2:2181", **fields})


def test_hosts_login_and_extras_become_settings() -> None:
    found = settings_of(
        connection(login="airflow", password="secret", extra='{"chroot": "/trident", "session_timeout_s": 12}')
    )
    assert (found.hosts, found.chroot, found.session_timeout_s, found.tls) == (
        "zk1:2181,zk2:2181",
        "/trident",
        12.0,
        None,
    )
    assert found.auth is not None
    assert (found.auth.user, found.auth.password) == ("airflow", "secret")
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("host", "hosts"),
    [
        ("zk1", "zk1:2182"),
        ("zk1,zk2:2181,zk3", "zk1:2182,zk2:2181,zk3:2182"),
        ("[::1],[::2]:2181", "[::1]:2182,[::2]:2181"),
    ],
)
def test_a_port_of_its_own_belongs_to_each_host_without_one(host: str, hosts: str) -> None:
    assert settings_of(connection(host=host, port=2182)).hosts == hosts


def test_a_folder_behind_the_hosts_is_none_of_the_port() -> None:
    found = settings_of(connection(host="zk1,zk2/air", port=2182))
    assert (found.hosts, found.chroot) == ("zk1:2182,zk2:2182", "/air")


def test_the_path_of_a_uri_which_airflow_calls_schema_is_not_passed_over() -> None:
    with pytest.raises(ConfigurationError, match=r"has the schema 'airflow'.*\"chroot\": \"/airflow\""):
        settings_of(connection(host="zk1", port=2181, schema="airflow"))


def test_tls_checks_the_host_name_unless_told_otherwise(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    strict = settings_of(connection(extra=f'{{"use_ssl": true, "ca": "{ca}"}}')).tls
    loose = settings_of(connection(extra=f'{{"use_ssl": "True", "ca": "{ca}", "check_hostname": "false"}}')).tls
    assert strict is not None
    assert strict.check_hostname
    assert loose is not None
    assert not loose.check_hostname


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"conn_type": "http"}, "type 'http'"),
        ({"host": ""}, "no host"),
        ({"host": "zk1:port"}, "no host:port"),
        ({"login": "airflow"}, "only one of login and password"),
        ({"extra": '{"use_tls": true}'}, "use_tls"),
        ({"extra": '{"use_ssl": "perhaps"}'}, "neither true nor false"),
        ({"extra": '{"ca": "/ca.pem"}'}, "without use_ssl"),
        ({"extra": '{"session_timeout_s": "soon"}'}, "no number of seconds"),
        ({"extra": '{"chroot": "airflow"}'}, "chroot"),
        ({"extra": '["use_ssl"]'}, "'zk' are not a JSON object"),
        ({"extra": "use_ssl=true"}, "'zk' are not a JSON object"),
    ],
)
def test_a_connection_that_cannot_be_meant_is_one_clear_error(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        settings_of(connection(**fields))


def test_options_have_defaults_and_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.number(settings.MAX_PENDING, least=1) == 2
    monkeypatch.setenv("AIRFLOW__TRIDENT__MAX_PENDING", "7")
    assert settings.number(settings.MAX_PENDING, least=1) == 7


@pytest.mark.parametrize("written", ["0", "2.5", "many", "nan", "inf"])
def test_a_number_that_cannot_be_meant_names_the_option(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TRIDENT__MAX_PENDING", written)
    with pytest.raises(ConfigurationError, match="AIRFLOW__TRIDENT__MAX_PENDING"):
        settings.number(settings.MAX_PENDING, least=1)


def test_a_switch_that_cannot_be_meant_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TRIDENT__DEFERRABLE", "maybe")
    with pytest.raises(ConfigurationError, match="AIRFLOW__TRIDENT__DEFERRABLE"):
        settings.flag(settings.DEFERRABLE)


def test_staging_is_where_the_task_says_else_as_configured_else_in_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", "/somewhere/airflow")
    assert settings.staging_root() == "/somewhere/airflow/trident/staging"
    monkeypatch.setenv("AIRFLOW__TRIDENT__STAGING_DIR", "/shared/staging")
    assert settings.staging_root() == "/shared/staging"
    assert settings.staging_root("/mine") == "/mine"
    monkeypatch.setenv("AIRFLOW__TRIDENT__STAGING_DIR", "shared/staging")
    with pytest.raises(ConfigurationError, match="'shared/staging' is another folder in each process"):
        settings.staging_root()


@pytest.mark.parametrize(
    ("staging", "sources"),
    [
        ("", "/somewhere/airflow/trident/sources"),
        ("/shared/trident/staging/", "/shared/trident/sources"),
        ("/staging", "/staging/sources"),
        ("s3://bucket", "s3://bucket/sources"),
        ("s3://conn@bucket/trident/staging", "s3://conn@bucket/trident/sources"),
        ("hdfs:///trident", "hdfs:///trident/sources"),
    ],
)
def test_lists_of_read_files_are_beside_staging_or_where_the_option_says(
    monkeypatch: pytest.MonkeyPatch, staging: str, sources: str
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", "/somewhere/airflow")
    monkeypatch.setenv("AIRFLOW__TRIDENT__STAGING_DIR", staging)
    monkeypatch.setenv("AIRFLOW_CONN_ZOOKEEPER_DEFAULT", "zookeeper://127.0.0.1:1")
    assert settings.sources_root() == sources
    with ZooKeeperHook().get_ledger("words") as ledger:
        assert ledger.sources_root == sources
    with ZooKeeperHook().get_ledger("words", staging_dir="/of/the/task") as ledger:
        assert ledger.sources_root == "/of/the/sources"
    monkeypatch.setenv("AIRFLOW__TRIDENT__SOURCES_DIR", "/lists")
    assert settings.sources_root("/of/the/task") == settings.sources_root() == "/lists"
    monkeypatch.setenv("AIRFLOW__TRIDENT__SOURCES_DIR", "lists")
    with pytest.raises(ConfigurationError, match=r"sources_dir = 'lists' is another folder in each process"):
        settings.sources_root()


def test_the_doctor_says_that_lists_are_on_another_disk_than_staging(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert not list(doctor._apart(str(tmp_path / "staging")))
    monkeypatch.setattr(settings, "sources_root", lambda _: "/proc")
    tmp_path.joinpath("staging").mkdir()
    (finding,) = doctor._apart(str(tmp_path / "staging"))
    assert (finding.level, finding.subject) == ("warn", "sources")
    assert "/proc is on another disk" in finding.text
    assert "[trident] sources_dir" in finding.text


@pytest.mark.parametrize(
    ("value", "root", "rows_in_errors", "kept"),
    [
        ("auto", "s3://bucket/staging", "True", 262_144),
        ("auto", "/shared/staging", "True", 0),
        ("auto", "file:/shared/staging", "True", 0),
        ("auto", "s3://bucket/staging", "False", 0),
        ("on", "/shared/staging", "False", 262_144),
        ("off", "s3://bucket/staging", "True", 0),
    ],
)
def test_small_batches_are_kept_in_the_ledger_where_the_option_says_so(
    value: str, root: str, rows_in_errors: str, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__TRIDENT__STAGING_IN_LEDGER", value)
    monkeypatch.setenv("AIRFLOW__TRIDENT__ROWS_IN_ERRORS", rows_in_errors)
    assert settings.chunk_bytes(root) == kept
    monkeypatch.setenv("AIRFLOW__TRIDENT__STAGING_DIR", root)
    assert settings.chunk_bytes() == kept


def test_another_value_of_staging_in_ledger_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TRIDENT__STAGING_IN_LEDGER", "sometimes")
    with pytest.raises(ConfigurationError, match="none of auto, on and off"):
        settings.chunk_bytes()
