"""Tables in buckets, which Spark reads itself where it has Hadoop's S3A; else Python reads them."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_trident import DeltaTable, IcebergTable, TableSpout
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.io.hadoop import S3AFiles
from airflow_trident.io.object_stores import ObjectAddress
from airflow_trident.types import parse_declared
from tests.contracts.test_tables_on_s3 import FACTORIES, table_of
from tests.fixtures.engine import JobOf, run
from tests.fixtures.object_store import CONN_ID, Lake
from tests.fixtures.parquet_in_spark import reader_of
from tests.fixtures.program import Program
from tests.fixtures.s3a import s3a_jars
from tests.fixtures.state import batch, ticket
from tests.integration.test_spark_object_stores import CLUSTER
from tests.integration.test_spark_tables import job_for

FIELDS = "word string, n long"
KEYS = {"access_key_id": "an-access-key", "secret_access_key": "a-secret-key"}


def filled(kind: str, lake: Lake, folder: Path) -> None:
    table = table_of(kind, lake.name, folder)
    with table.opened() as state:
        for txid in (1, 2):
            state.apply(ticket(txid), batch(table.spec, *[(f"{txid}-{n % 7}", n) for n in range(500)], (None, None)))


@pytest.mark.rare
@pytest.mark.spark
@pytest.mark.parametrize("master", ["local[2]", CLUSTER])
def test_spark_reads_tables_in_buckets_with_the_keys_of_the_connection(lake: Lake, tmp_path: Path, master: str) -> None:
    for kind in FACTORIES:
        filled(kind, lake, tmp_path)
    place = ObjectAddress.parse("in", f"s3://{CONN_ID}@{lake.name}/in").resolved()
    for number in range(3):
        rows = pa.table({"word": [f"w{number}", None], "n": [number, None]}, arrow_schema(parse_declared(FIELDS)))
        pq.write_table(rows, tmp_path / "one.parquet")
        place.obstore().put(place.store(), f"{number} of 3.parquet", (tmp_path / "one.parquet").read_bytes())
    printed = tmp_path / "printed"
    program = Program("tables_on_s3", tmp_path, lake.name, s3a_jars(), master, printed=printed)
    assert program.wait(300) == 0, printed.read_text()
    text = printed.read_text()
    found = json.loads(text.splitlines()[-1])
    assert found["files"].pop("rows_of_frame") == 6
    assert "was replaced or removed while Spark read it" in found["files"].pop("replaced")
    assert found["files"].pop("refused")
    for kind, rows in (*((kind, 1002) for kind in FACTORIES), ("files", 6)):
        assert "FileScan parquet" in found[kind]["plan"], (kind, text)
        assert found[kind]["rows"] == found[kind]["by_python"]
        assert len(found[kind]["rows"]) == rows
    assert "secret-key" not in text
    assert "an-access-key" not in text
    assert "spark.driver.memory" in found["shown"]
    assert "[s3a-" in found["shown"]
    assert found["events"]["plans"] > 0
    assert found["events"]["keys"] is False


@pytest.mark.rare
@pytest.mark.spark
@pytest.mark.parametrize("kind", FACTORIES)
def test_a_session_without_s3a_leaves_tables_in_buckets_to_python_and_says_so(
    spark_engine: SparkEngine, job_of: JobOf, lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    filled(kind, lake, tmp_path)
    spout = TableSpout(FACTORIES[kind](lake.name, tmp_path), fields="word string, n long")
    job = job_for(job_of, spout, "word string, n long")
    assert reader_of(spark_engine, job) == "Python"
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert len(run(spark_engine, job)["rows"]) == 1002
    (said,) = [one.getMessage() for one in caplog.records if "not Spark" in one.getMessage()]
    assert "has no org.apache.hadoop.fs.s3a.S3AFileSystem (hadoop-aws" in said


# ---- settings --------------------------------------------------------------------------------------------------


def test_keys_are_those_of_one_reading_and_of_one_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    made = S3AFiles.of({**KEYS, "endpoint": "http://127.0.0.1:9"}, {"read_timeout": "2.5", "max_retries": "3"})
    assert isinstance(made, S3AFiles)
    assert made.options(["lake", "lake"]) == {
        f"fs.{made.scheme}.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.s3a.bucket.lake.access.key": "an-access-key",
        "fs.s3a.bucket.lake.secret.key": "a-secret-key",
        "fs.s3a.bucket.lake.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "fs.s3a.bucket.lake.path.style.access": "true",
        "fs.s3a.bucket.lake.endpoint": "http://127.0.0.1:9",
        "fs.s3a.bucket.lake.connection.ssl.enabled": "false",
        "fs.s3a.bucket.lake.endpoint.region": "us-east-1",
        "fs.s3a.bucket.lake.connection.timeout": "2500ms",
        "fs.s3a.bucket.lake.attempts.maximum": "4",
    }
    assert "secret" not in repr(made)
    schemes = {made.scheme}
    for other in ({"secret_access_key": "b"}, {"session_token": "c"}, {"endpoint": "https://x"}):
        one = S3AFiles.of({**KEYS, "endpoint": "http://127.0.0.1:9", **other}, {})
        assert isinstance(one, S3AFiles)
        schemes.add(one.scheme)
    assert len(schemes) == 4
    token = S3AFiles.of({**KEYS, "session_token": "c", "region": "eu-west-1"}, {})
    assert isinstance(token, S3AFiles)
    options = token.options(["lake"])
    assert options["fs.s3a.bucket.lake.session.token"] == "c"
    assert options["fs.s3a.bucket.lake.endpoint.region"] == "eu-west-1"
    assert options["fs.s3a.bucket.lake.aws.credentials.provider"].endswith("TemporaryAWSCredentialsProvider")
    assert options["fs.s3a.bucket.lake.endpoint"] == ""
    assert token.conceal("no c of an-access-key") == "no *** of ***"


def test_what_s3a_cannot_be_told_is_left_to_python(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert "give it keys" in str(S3AFiles.of({}, {}))
    assert "certificates" in str(S3AFiles.of(KEYS, {"allow_invalid_certificates": "true"}))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an-access-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-key")
    assert isinstance(S3AFiles.of({}, {}), S3AFiles)
    delta = DeltaTable(f"s3://{lake.name}/t", conn_id=CONN_ID).place().resolved().s3_settings()
    assert isinstance(delta, dict)
    assert delta.items() > KEYS.items()
    odd = DeltaTable("s3://lake/t", storage_options={"aws_skip_signature": "true"}).place().resolved().s3_settings()
    assert odd == "S3A is not told of the storage option 'skip_signature'"
    assert "S3 only" in str(DeltaTable("abfs://lake/t").place().s3_settings())
    iceberg = FACTORIES["iceberg"](lake.name, tmp_path)
    assert isinstance(iceberg, IcebergTable)
    found = iceberg.place().resolved().s3_settings()
    assert isinstance(found, tuple)
    assert found[0].items() > KEYS.items()
    assert found[1] == {"read_timeout": "30"}
    signed = IcebergTable("a.b", properties={"s3.signer": "rest"}).place().s3_settings()
    of_google = IcebergTable("a.b", properties={"gcs.service.host": "http://x"}).place().s3_settings()
    assert of_google == "S3A is not told of the property 'gcs.service.host'"
    assert "Google" in str(DeltaTable("gs://lake/t").place().s3_settings())
    assert signed == "S3A is not told of the property 's3.signer'"
