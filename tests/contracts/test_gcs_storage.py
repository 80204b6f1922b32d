"""Google Cloud Storage besides what every storage promises: what connections say, what errors mean, and what FileSpout,
FileSink and staging do with it."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import FileSink, FileSpout, FixedBatchSpout, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ConfigurationError, Outcome, SourceChangedError
from airflow_trident.io.connections import Connection
from airflow_trident.io.object_arrow import arrow_files
from airflow_trident.io.object_services import GCS
from airflow_trident.io.object_stores import ObjectAddress
from airflow_trident.io.place import PROBE, Place
from airflow_trident.io.places import place_at
from airflow_trident.runtime.drains.order import connections_of
from tests.faults.http_proxy import Answer, Request, Rule, Verdict
from tests.fixtures.gcs import CONN_ID, VARIABLE, GcsBucket, account_key, connection, new_key
from tests.fixtures.gcs_server import MACHINE_TOKEN, error
from tests.integration.test_file_spout import begin, lines
from tests.integration.test_staging_on_s3 import WORDS, contents, run, topology

SECRET = json.loads(account_key())["private_key"].split("\n")[1]


def said(status: int, code: str, details: str = "") -> Rule:
    return lambda request: Answer(status, error(code, "No.", details))


def connected(**extra: Any) -> Connection:
    return Connection(conn_id="c", conn_type="google_cloud_platform", extra=extra)


# ---- ways to get there -----------------------------------------------------------------------------------------


WAYS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "JSON key": lambda file: {"keyfile_dict": account_key()},
    "JSON key as an object": lambda file: {"keyfile_dict": json.loads(account_key())},
    "JSON key from a form": lambda file: {"keyfile_dict": account_key().replace("\\n", "\\\\n")},
    "key file": lambda file: {"key_path": str(file)},
    "extras of an older connection": lambda file: {
        "extra__google_cloud_platform__key_path": str(file),
        "extra__google_cloud_platform__scope": "https://www.googleapis.com/auth/cloud-platform",
        "extra__google_cloud_platform__project": "tests",
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_name_a_key_leads_there(
    way: str, gcs: GcsBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key.json"
    file.write_text(account_key())
    extra = {"gcs.endpoint": gcs.direct, **WAYS[way](file)}
    monkeypatch.setenv(VARIABLE, json.dumps({"conn_type": "google_cloud_platform", "extra": extra}))
    sent = pickle.dumps(place_at(gcs.uri).resolved())
    file.unlink()
    monkeypatch.delenv(VARIABLE)
    there: Place = pickle.loads(sent)
    assert there.put_once("t/m", b"x")
    assert SECRET not in repr(there)


def test_without_a_key_the_machine_is_asked_who_it_is(gcs: GcsBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps({"conn_type": "google_cloud_platform"}))
    monkeypatch.setenv("GOOGLE_BASE_URL", gcs.direct)
    monkeypatch.setenv("GCE_METADATA_HOST", gcs.server.address)
    monkeypatch.setenv("HOME", "/nowhere")
    for uri in (gcs.uri, f"gs://{gcs.name}/gs", f"GCS://{gcs.name}/gcs"):
        assert place_at(uri).put_once("t/m", b"x")


def test_a_token_of_the_environment_is_taken_where_no_connection_is_named(
    gcs: GcsBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_BASE_URL", gcs.direct)
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", MACHINE_TOKEN)
    assert place_at(f"gs://{gcs.name}").put_once("t/m", b"x")
    with pytest.raises(ConfigurationError, match=r"has a key, and GOOGLE_BEARER_TOKEN is set.*Take GOOGLE_BEARER"):
        place_at(gcs.uri).put_once("t/m", b"x")


def test_anonymous_users_read_what_all_may_read_and_nothing_else(
    gcs: GcsBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcs.put("a/b", b"0123456789")
    gcs.server.public.add(gcs.name)
    monkeypatch.setenv(VARIABLE, gcs.connection(is_anonymous=True))
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "of another one")
    place = ObjectAddress.parse("it", f"{gcs.uri}/a")
    with pickle.loads(pickle.dumps(arrow_files(place))).open_input_file(place.key("b")) as file:
        assert (file.size(), file.read_at(3, 4)) == (10, b"456")
    with pytest.raises(ConfigurationError, match=r"AccessDenied.*Anonymous caller.*right to list, read, write and"):
        place_at(gcs.uri).check()


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"keyfile_dict": "{no json"}, "keyfile_dict of the connection 'c' is no JSON.*Paste the whole JSON key"),
        ({"keyfile_dict": '{"type": "authorized_user"}'}, "is no key of a service account"),
        ({"keyfile_dict": '{"client_email": "a", "private_key": "b"}'}, "has no private_key_id.*Paste"),
        ({"key_path": "/nowhere/key.json"}, "key file '/nowhere/key.json', which cannot be read here .No such file"),
        ({"key_path": "/a", "keyfile_dict": "{}"}, "has both key_path and keyfile_dict.*Leave one"),
        ({"impersonation_chain": "other@tests"}, "has the extra 'impersonation_chain', which is not followed"),
        ({"credential_config_file": "{}"}, "has the extra 'credential_config_file', which is not followed"),
        ({"scope": "https://www.googleapis.com/auth/devstorage.read_only"}, "has the extra 'scope'.*its roles"),
    ],
)
def test_what_a_connection_says_and_is_not_followed_is_refused(extra: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        GCS.settings_of(connected(**extra))


def test_a_driver_elsewhere_is_told_the_content_of_the_key_file_of_a_sink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key.json"
    file.write_text(account_key())
    extra = {"extra__google_cloud_platform__key_path": str(file), "project": "tests"}
    monkeypatch.setenv(VARIABLE, json.dumps({"conn_type": "google_cloud_platform", "extra": extra}))
    topology = Topology("letters")
    letters = topology.new_stream("letters", FixedBatchSpout("letter string", ["a"]))
    letters.partition_persist(FileSink(f"gs://{CONN_ID}@lake/out"), "letter")
    sent = connections_of(topology)[CONN_ID]
    file.unlink()
    assert (
        GCS.settings_of(sent)["service_account_key"]
        == GCS.settings_of(connected(keyfile_dict=account_key()))["service_account_key"]
    )
    assert sent.extra["project"] == "tests"
    assert SECRET not in repr(sent)


# ---- what does not work ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (new_key(), "AuthenticationRequired: .*key of the connection is one that the service account still has"),
        (account_key().replace(SECRET, SECRET[::-1]), "cannot be opened .*See the connection"),
    ],
    ids=["another key", "damaged key"],
)
def test_a_wrong_key_is_one_error_with_its_cure(
    key: str, text: str, gcs: GcsBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, connection(gcs.direct, key=key))
    with pytest.raises(ConfigurationError, match=text) as caught:
        place_at(gcs.uri).check()
    assert gcs.uri in str(caught.value)
    assert not any(line in str(caught.value) for line in json.loads(key)["private_key"].split("\n")[1:-2])
    assert caught.value.outcome is Outcome.FAIL


def test_an_expired_token_is_one_error_with_its_cure(gcs: GcsBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_BASE_URL", gcs.direct)
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "ya29.expired")
    with pytest.raises(
        ConfigurationError, match=r"AuthenticationRequired.*token of the environment.*expired"
    ) as caught:
        place_at(f"gs://{gcs.name}").check()
    assert "ya29" not in str(caught.value)


def test_a_bucket_that_is_not_there_is_named(gcs: GcsBucket) -> None:
    storage = place_at(f"gs://{CONN_ID}@no-such-bucket/x")
    with pytest.raises(ConfigurationError, match=r"@no-such-bucket/x' \(NoSuchBucket.*Make the bucket"):
        storage.check()
    for verb in (
        lambda: storage.read("a"),
        lambda: list(storage.list("a")),
        lambda: storage.put("a", lambda file: None),
    ):
        with pytest.raises(ConfigurationError, match="NoSuchBucket"):
            verb()


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (
            said(403, "AccessDenied", "tests@tests.iam does not have storage.objects.create access."),
            "AccessDenied: No. tests@tests.iam does not have storage.objects.create access.*role Storage Object User",
        ),
        (said(403, "Unheard"), "Unheard.*Give this account the right"),
        (said(401, "Unheard"), "Unheard.*key of the connection"),
        (said(403, "RetentionPolicyNotMet"), "without retention policy"),
        (said(400, "UserProjectMissing"), "whose requester pays are not supported"),
        (lambda request: Verdict.UNCONDITIONAL, "takes a name twice.*Google Cloud Storage has them"),
    ],
)
def test_a_place_that_cannot_work_is_one_error_with_its_cure(rule: Rule, text: str, gcs: GcsBucket) -> None:
    gcs.proxy.rule = rule
    with pytest.raises(ConfigurationError, match=text):
        place_at(gcs.uri).check()


def test_an_object_that_google_decompresses_is_refused(gcs: GcsBucket) -> None:
    """It is given whole then, and never in parts."""
    gcs.put("in/a", gzip.compress(b"1\n"), {"Content-Encoding": "gzip"})
    spout = FileSpout(f"{gcs.uri}/in")
    metadata = begin(spout)
    with pytest.raises(ConfigurationError, match="without Content-Encoding gzip"):
        lines(spout, metadata)


def test_no_credentials_at_all_is_one_error_with_its_cure(gcs: GcsBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    gcs.proxy.rule = lambda request: Answer(404)
    monkeypatch.setenv("HOME", "/nowhere")
    for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
        monkeypatch.setenv(name, gcs.proxy.url.removeprefix("http://"))
    with pytest.raises(ConfigurationError, match=r"no credentials for 'gs://.*GOOGLE_APPLICATION_CREDENTIALS"):
        place_at(f"gs://{gcs.name}").check()


def test_of_names_that_are_deleted_those_that_are_gone_do_not_keep_the_others(gcs: GcsBucket) -> None:
    """Each is a request of its own, and answered by 404 if it is not there."""
    storage = place_at(gcs.uri)
    names = [f"t/{number:02}" for number in range(30)]
    for name in names[1::7]:
        storage.put(name, lambda file: None)
    storage.delete(names)
    assert list(storage.list("t")) == []


# ---- spouts, sinks, staging ------------------------------------------------------------------------------------


def test_a_spout_reads_what_it_recorded_as_long_as_the_bucket_has_it(gcs: GcsBucket) -> None:
    """Each object has a generation, also in a bucket that keeps only the newest."""
    gcs.put("in/a", "1\n2\n")
    spout = FileSpout(f"{gcs.uri}/in", split_bytes=2)
    metadata = begin(spout)
    gcs.put("in/a", "3\n4\n")
    with pytest.raises(SourceChangedError, match="its content is another"):
        lines(spout, metadata)
    gcs.put("in/a", "1\n2\n")
    assert lines(spout, metadata) == ["1", "2"]
    gcs.remove("in/a")
    with pytest.raises(SourceChangedError, match=r"/in/a', which the transaction recorded, is gone"):
        lines(spout, metadata)
    gcs.keep_versions()
    assert lines(spout, metadata) == ["1", "2"]


def test_a_sink_publishes_and_deletes(gcs: GcsBucket) -> None:
    folder = place_at(f"{gcs.uri}/out")
    folder.check()
    folder.put("h", lambda file: file.write(b"123"))
    assert folder.show("h", "a.csv")
    assert (sorted(folder.names()), folder.open("a.csv").read()) == ([PROBE, "a.csv"], b"123")
    assert not folder.show("h", "a.csv")
    folder.delete(["a.csv"])
    assert list(folder.names()) == [PROBE]


def test_a_topology_stages_in_a_bucket(gcs: GcsBucket, tmp_path: Path) -> None:
    asked: list[Request] = []
    gcs.proxy.rule = lambda request: (asked.append(request), Verdict.PASS)[1]
    made = topology(tmp_path)
    assert run(made, LocalEngine(), f"{gcs.uri}/some/prefix") == [1, 2, 3]
    assert contents(made, "counts") == WORDS
    staged = [entry.name for entry in place_at(gcs.uri).list("some/prefix/on_s3")]
    assert sum(name.endswith("/manifest.json") for name in staged) == 3
    assert all(request.path.startswith(f"/{gcs.name}/some/prefix/") for request in asked if request.method == "PUT")
