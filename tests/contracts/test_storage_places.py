"""Places that cannot work, connections that do not fit and addresses that are none: refused when an attempt begins."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from airflow_trident.errors import ConfigurationError, Outcome, TridentError
from airflow_trident.io.object_arrow import arrow_files
from airflow_trident.io.object_stores import ObjectAddress
from airflow_trident.io.place import Place
from airflow_trident.io.places import place_at
from tests.contracts.test_storage import put
from tests.faults.http_proxy import Answer, Rule, Verdict
from tests.fixtures.object_store import CONN_ID, VARIABLE, Bucket, connection
from tests.fixtures.program import run_code

# ---- what is found when an attempt begins ----------------------------------------------------------------------


def s3_error(status: int, code: str) -> Rule:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>said {code}</Message></Error>".encode()
    return lambda request: Answer(status, body)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (s3_error(403, "InvalidAccessKeyId"), "InvalidAccessKeyId: .*access key of the connection"),
        (s3_error(403, "SignatureDoesNotMatch"), "SignatureDoesNotMatch.*secret key"),
        (s3_error(403, "AccessDenied"), "AccessDenied.*the right to list, read, write and delete"),
        (s3_error(403, "Unheard"), "Unheard.*Give this user the right"),
        (s3_error(400, "ExpiredToken"), "ExpiredToken.*Renew the session token"),
        (s3_error(403, "RequestTimeTooSkewed"), "RequestTimeTooSkewed.*Set the clock"),
        (s3_error(301, "PermanentRedirect"), "bucket's region.*region_name"),
        (s3_error(400, "AuthorizationHeaderMalformed"), "AuthorizationHeaderMalformed.*bucket's region"),
        (lambda request: Verdict.UNCONDITIONAL, "takes a name twice.*conditional writes"),
    ],
)
def test_a_place_that_cannot_work_is_one_error_with_its_cure(rule: Rule, text: str, bucket: Bucket) -> None:
    bucket.proxy.rule = rule
    with pytest.raises(ConfigurationError, match=text) as caught:
        place_at(bucket.uri).check()
    assert bucket.uri in str(caught.value)
    assert "a-secret-key" not in str(caught.value)
    assert caught.value.outcome is Outcome.FAIL


def test_a_bucket_that_is_not_there_is_named(bucket: Bucket) -> None:
    storage = place_at("s3://objects@no-such-bucket/x")
    with pytest.raises(ConfigurationError, match=r"'s3://objects@no-such-bucket/x' \(NoSuchBucket.*Make the bucket"):
        storage.check()
    for verb in (lambda: storage.read("a"), lambda: list(storage.list("a")), lambda: put(storage, "a", b"")):
        with pytest.raises(ConfigurationError, match="NoSuchBucket"):
            verb()


def test_no_credentials_at_all_is_one_error_with_its_cure(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.proxy.rule = lambda request: Answer(404)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", bucket.proxy.url)
    with pytest.raises(
        ConfigurationError, match=r"no credentials for 's3://.*AWS_ACCESS_KEY_ID.*connection of type aws"
    ):
        place_at(f"s3://{bucket.name}").check()


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (None, "there is no connection 'objects'"),
        ('{"conn_type": "postgres"}', "'objects' is of type 'postgres'.*needs one of type 'aws'"),
        ('{"conn_type": "aws", "extra": {"role_arn": "arn:x"}}', "has the extra 'role_arn', which is not followed"),
        (
            '{"conn_type": "aws", "login": "a", "password": "b", "extra": {"endpoint_url": "no url"}}',
            "'no url' of 's3://obj.*no URL",
        ),
    ],
)
def test_a_connection_that_does_not_fit_is_refused(
    written: str | None, text: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    if written is None:
        monkeypatch.delenv(VARIABLE)
    else:
        monkeypatch.setenv(VARIABLE, written)
    with pytest.raises(TridentError, match=text):
        place_at(bucket.uri).check()


# ---- addresses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("s3://", "it is no s3://.connection@.bucket"),
        ("s3://UPPER/x", "it is no s3://.connection@.bucket"),
        ("s3://b/x", "it is no s3://.connection@.bucket"),
        ("s3://bucket/a/../b", "it is no s3://.connection@.bucket"),
        ("s3://bucket//b", "it is no s3://.connection@.bucket"),
        ("s3://bucket/x?versionId=1", "it is no s3://.connection@.bucket"),
        ("s3://key:secret@bucket/x", r"keys in its URI \(bucket 'bucket'\).*connection of type aws"),
        ("gs://UPPER/x", "it is no gs://.connection@.bucket"),
        ("gs://bucket/a//b", "it is no gs://.connection@.bucket"),
        ("gs://key:secret@bucket/x", r"keys in its URI \(bucket 'bucket'\).*type google_cloud_platform"),
        ("ftp://host/x", "mounted file systems, s3://, abfs:// and gs:// only"),
        ("hdfs://", "it is no hdfs://.connection@..nameservice./path"),
        ("hdfs://host/a/../b", "it is no hdfs://.connection@..nameservice./path"),
        ("hdfs://host/a:b", "it is no hdfs://.connection@..nameservice./path"),
        ("hdfs://host:port/a", "it is no hdfs://.connection@..nameservice./path"),
        ("hdfs://host/a?op=OPEN", "it is no hdfs://.connection@..nameservice./path"),
        ("webhdfs:///a", "it is no hdfs://.connection@..nameservice./path or webhdfs://namenode"),
        ("hdfs://user:secret@host/a", "password in its URI .host 'host'.*connection of type webhdfs"),
        ("webhdfs://user@host:9870/a", "takes no connection.*Write hdfs://user@/a.*or set HADOOP_USER_NAME"),
        ("abfs://UPPER/x", "it is no abfs://.connection@.container"),
        ("abfs://a--b/x", "it is no abfs://.connection@.container"),
        ("abfs://container//b", "it is no abfs://.connection@.container"),
        ("abfs://container/x?snapshot=1", "it is no abfs://.connection@.container"),
        ("abfss://account.dfs.core.windows.net/x", "it is no abfs://.connection@.container"),
        ("abfss://container@account.core/x", "it is no abfs://.connection@.container"),
        ("abfss://a.b@account.dfs.core.windows.net/x", "it is no abfs://.connection@.container"),
        ("abfs://account:secret@container/x", r"keys in its URI \(bucket 'container'\).*connection of type wasb"),
        ("az://container/x", "Write abfs://.connection@.container"),
        ("adl://account.azuredatalakestore.net/x", "Write abfs://.connection@.container"),
    ],
)
def test_what_is_no_place_is_refused_before_anything_is_opened(uri: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as caught:
        place_at(uri)
    assert "secret" not in str(caught.value)


def test_a_place_that_was_resolved_needs_no_connection_any_more(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = pickle.dumps(place_at(bucket.uri).resolved())
    monkeypatch.delenv(VARIABLE)
    there: Place = pickle.loads(sent)
    assert there.put_once("t/m", b"x")
    assert "a-secret-key" not in repr(there)


def test_without_a_connection_the_environment_is_asked(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.direct)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    assert place_at(f"s3://{bucket.name}").put_once("t/m", b"x")


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"verify": "/no/ca.pem"}, r"certificates in '/no/ca\.pem', which cannot be read"),
        ({"config_kwargs": {"read_timeout": "long"}}, "'long' as read_timeout"),
        ({"config_kwargs": {"connect_timeout": "long"}}, "'long' as connect_timeout"),
    ],
)
def test_pyarrow_reads_with_certificates_and_time_outs_of_the_connection(
    extra: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, connection("https://127.0.0.1:1", **extra))
    place = ObjectAddress.parse("it", f"s3://{CONN_ID}@bucket/a")
    with pytest.raises(ConfigurationError, match=text):
        arrow_files(place).open_input_file(place.key("b"))


IN_A_FORK = """
import os
from airflow_trident.errors import ConfigurationError
from airflow_trident.io.object_stores import ObjectAddress

place = ObjectAddress.parse("it", "s3://bucket/a")
place.store()
if os.fork() == 0:
    try:
        place.store()
    except ConfigurationError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
place.store()
"""


def test_a_fork_of_a_process_that_used_a_store_does_not_wait_for_ever() -> None:
    done = run_code(IN_A_FORK)
    assert done.returncode == 0, done.stdout
    assert "was forked from process" in done.stdout
    assert "spawn or forkserver" in done.stdout
