"""A script that writes into a bucket: what of the objects there counts, and Spark's own S3A on a real server of S3."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import FileSink, FixedBatchSpout, Script
from airflow_trident.engine.engine import Job
from airflow_trident.engine.spark.script import JOB_CONF, ScriptEngine
from airflow_trident.engine.spark.submit import DriverTags
from airflow_trident.errors import ConfigurationError, StagingError, TridentError, UserCodeError
from airflow_trident.io.places import place_at
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest
from tests.fixtures.airflow import AirflowHome
from tests.fixtures.object_store import VARIABLE, Bucket, Lake, connection
from tests.fixtures.s3a import s3a_jars
from tests.fixtures.script import daily, job_of, written

GOOD = {"customer": ("string", ["ann", "bob"]), "cents": ("long", [12, 7])}


class Playing:
    """Replaces spark-submit and S3A: a run of the script puts the files that Spark would put."""

    def __init__(self, bucket: Bucket, folder: Path) -> None:
        self.bucket, self.folder = bucket, folder
        self.settings: dict[str, str] = {}
        self.outputs: dict[str, str] = {}
        self.inputs: dict[str, list[str]] = {}

    def key(self, url: str) -> str:
        found = re.fullmatch(rf"s3a://{self.bucket.name}/(.*)", url)
        assert found, url
        return found[1]

    def started(self, settings: dict[str, str]) -> None:
        self.settings = settings
        key = self.key(settings[JOB_CONF])
        job = json.loads(self.bucket.client.get_object(Bucket=self.bucket.name, Key=key)["Body"].read())
        self.outputs, self.inputs = job["outputs"], job["inputs"]

    def put(self, rows: dict[str, Any], run: str = "app-1", **options: Any) -> None:
        """As Spark by S3A, which leaves empty objects that are called like folders."""
        folder = self.folder / run
        written(folder, rows, **options)
        base = f"{self.key(self.outputs['daily'])}/{run}"
        for marker in (f"{self.key(self.outputs['daily'])}/", f"{base}/", f"{base}/_temporary/0/"):
            self.bucket.put(marker, b"")
        self.bucket.put(f"{base}/_temporary/0/task_1/part-0.snappy.parquet", b"half of it")
        for path in sorted(folder.iterdir(), key=lambda one: one.name.startswith("_")):
            if not path.name.endswith(".crc"):
                self.bucket.put(f"{base}/{path.name}", path.read_bytes())


Play = Callable[[Playing], None]


def run(play: Play, job: Job, bucket: Bucket, folder: Path) -> tuple[Manifest, Playing]:
    playing = Playing(bucket, folder)

    class Submitted:
        def __init__(self, settings: dict[str, str], modules: str, known: Callable[[str], None]) -> None:
            self.settings = settings

        def __call__(self, application: str, arguments: list[str], tags: DriverTags) -> None:
            playing.started(self.settings)
            play(playing)

        def cancel(self) -> None: ...

    return ScriptEngine("job.py", (), Submitted).run(job), playing


def in_bucket(tmp_path: Path, bucket: Bucket, **more: Any) -> tuple[Script, Job]:
    script = daily(tmp_path)
    return script, replace(job_of(script, tmp_path, **more), staging_root=f"{bucket.uri}/staging")


def rows_of(script: Script, manifest: Manifest, root: str) -> list[tuple[Any, ...]]:
    (sink,) = script.compile().staged
    return [tuple(row.values()) for row in StagingArea(root).read(manifest, "daily", sink.schema).to_pylist()]


def test_what_counts_are_the_files_of_the_run_that_succeeded_and_what_comes_later_is_in_no_manifest(
    tmp_path: Path, bucket: Bucket
) -> None:
    script, job = in_bucket(tmp_path, bucket)

    def play(playing: Playing) -> None:
        playing.put({**GOOD, "cents": ("long", [99, 99])}, "app-0", success=False)  # a driver that died
        playing.put(GOOD)

    manifest, playing = run(play, job, bucket, tmp_path)
    area = StagingArea(job.staging_root)
    area.publish(manifest)
    for late in ("app-0", "app-2", "app-1"):  # those that nobody could kill go on, also the one that counted
        playing.put({"customer": ("string", ["eve"]), "cents": ("long", [1])}, late, name="part-9")
    assert rows_of(script, area.load(job.slot), job.staging_root) == [("ann", 12), ("bob", 7)]
    assert [Path(file.path).name for file in manifest.files] == ["part-0.snappy.parquet"]
    server = {name.rpartition(".")[2]: value for name, value in playing.settings.items() if "bucket" in name}
    assert server["endpoint"] == bucket.proxy.url
    assert not [value for value in playing.settings.values() if "secret" in value or "access-key" in value]
    left = [entry.name for entry in place_at(bucket.uri).list("staging")]
    assert not [name for name in left if name.endswith(".json") and "manifest" not in name]


def _twice(playing: Playing) -> None:
    playing.put(GOOD)
    playing.put(GOOD, "app-2")


def _folder(playing: Playing) -> None:
    playing.put(GOOD)
    playing.bucket.put(f"{playing.key(playing.outputs['daily'])}/app-1/day=1/part-0.parquet", b"x")


def _no_parquet(playing: Playing) -> None:
    playing.put(GOOD)
    playing.bucket.put(f"{playing.key(playing.outputs['daily'])}/app-1/part-1.csv", b"ann,12")


REFUSED: dict[str, tuple[Play, type[TridentError], str]] = {
    "nothing": (lambda playing: None, UserCodeError, "wrote nothing to its output 'daily'"),
    "half": (lambda playing: playing.put(GOOD, success=False), UserCodeError, "left no _SUCCESS in its output"),
    "twice": (_twice, StagingError, "2 times in one attempt"),
    "folders": (_folder, UserCodeError, "wrote the folder 'day=1' into its output 'daily'"),
    "no parquet": (_no_parquet, UserCodeError, "which is no Parquet file of Spark"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_script_did_wrong_in_a_bucket_is_told(tmp_path: Path, bucket: Bucket, what: str) -> None:
    play, kind, text = REFUSED[what]
    with pytest.raises(kind, match=re.escape(text)):
        run(play, in_bucket(tmp_path, bucket)[1], bucket, tmp_path)


def test_a_narrower_number_is_widened_and_rows_of_what_is_no_file_lie_in_the_bucket_while_it_runs(
    tmp_path: Path, bucket: Bucket
) -> None:
    spout = FixedBatchSpout("customer string, cents long", [("ann", 5), ("bob", 7)], 2)
    output = ("customer string, cents long", FileSink(str(tmp_path / "lake")))
    script = Script("daily", inputs={"orders": spout}, outputs={"daily": output})
    job = replace(job_of(script, tmp_path), staging_root=f"{bucket.uri}/staging")
    seen: list[int] = []

    def play(playing: Playing) -> None:
        keys = [playing.key(url) for url in playing.inputs["orders"]]
        seen.extend(bucket.client.head_object(Bucket=bucket.name, Key=key)["ContentLength"] for key in keys)
        playing.put({"cents": ("integer", [5, 7]), "customer": ("string", ["ann", "bob"])})

    manifest, playing = run(play, job, bucket, tmp_path)
    assert seen
    assert all(seen)
    StagingArea(job.staging_root).publish(manifest)
    assert rows_of(script, manifest, job.staging_root) == [("ann", 5), ("bob", 7)]
    assert [Path(file.path).name for file in manifest.files] == ["part-0.snappy-widened.parquet"]
    inputs = {playing.key(url).removeprefix("staging/") for url in playing.inputs["orders"]}
    assert not inputs & {entry.name for entry in place_at(f"{bucket.uri}/staging").list("")}


@pytest.mark.parametrize("root", ["gs://bucket/x", "abfs://container/x", "hdfs://nn/x", "s3://bucket/a[1]"])
def test_where_a_script_cannot_write_is_refused_before_it_runs(tmp_path: Path, root: str) -> None:
    with pytest.raises(ConfigurationError, match="s3://bucket/prefix"):
        ScriptEngine("job.py", (), lambda settings, modules, known: None).run(  # type: ignore[arg-type,return-value]
            replace(job_of(daily(tmp_path), tmp_path), staging_root=root)
        )


# ---- Spark's S3A ---------------------------------------------------------------------------------------------------

SCRIPT = """
import airflow_trident_script as trident
from pyspark.sql import SparkSession, functions

spark = SparkSession.builder.getOrCreate()
orders = spark.read.parquet(*trident.inputs(spark, "orders"))
daily = orders.groupBy("customer").agg(functions.sum("cents").alias("cents"))
daily.repartition(3, "customer").write.parquet(trident.output(spark, "daily"))
"""
DAG = """
from airflow.sdk import DAG
from airflow_trident import FileSink, FileSpout, Script, TridentSparkSubmitOperator

FIELDS = "customer string, cents long"

def task(name, **more):
    orders = FileSpout("s3://objects@BUCKET/orders", format="csv", fields=FIELDS, max_files=1)
    script = Script(
        name, inputs={"orders": orders}, outputs={"daily": (FIELDS, FileSink(f"s3://objects@BUCKET/{name}"))}
    )
    with DAG(name, schedule=None) as dag:
        TridentSparkSubmitOperator(
            task_id="daily", topology=script, application="FOLDER/job.py", staging_dir="s3://objects@BUCKET/staging",
            conf={"spark.sql.shuffle.partitions": "1", "spark.ui.enabled": "false"}, driver_memory="512m", **more,
        )
    return dag

good = task("good", driver_class_path="JARS/*")
bare = task("bare", tries=1)
"""
PLAY = """
import io
import buckets
import pyarrow.parquet as pq
from tests.fixtures.object_store import Bucket

client = Bucket("BUCKET", None, "http://DIRECT").client
def names(prefix):
    return [one["Key"] for one in client.list_objects_v2(Bucket="BUCKET", Prefix=prefix).get("Contents", [])]

def body(key):
    return client.get_object(Bucket="BUCKET", Key=key)["Body"].read()

(ti,) = buckets.good.test().get_task_instances()
files = [key for key in names("good/") if key.endswith(".parquet")]
rows = [row for key in files for row in pq.read_table(io.BytesIO(body(key))).to_pylist()]
rows = sorted([row["customer"], row["cents"]] for row in rows)
manifests = [body(key).decode() for key in names("staging/good") if key.endswith("manifest.json")]
found = {"state": ti.state, "txids": ti.xcom_pull("daily"), "rows": rows}
found |= {"manifests": manifests, "staged": names("staging/good")}
(ti,) = buckets.bare.test().get_task_instances()
tell({**found, "bare": ti.state, "committed": [key for key in names("bare/") if key.endswith(".parquet")]})
"""


@pytest.mark.rare
@pytest.mark.airflow
@pytest.mark.zookeeper
@pytest.mark.spark
def test_spark_writes_by_s3a_and_the_table_has_exactly_what_its_success_was_about(
    airflow_home: AirflowHome, lake: Lake
) -> None:
    """With the keys of its own environment; where it has no S3A, that is said."""
    folder, server = airflow_home.folder, lake.server
    client = Bucket(lake.name, None, f"http://{server.direct}").client  # type: ignore[arg-type]
    for number in (1, 2):
        text = f"customer,cents\nann,{number}\nbob,{number}\nann,{10 * number}\neve,{100 * number}\n"
        client.put_object(Bucket=lake.name, Key=f"orders/{number}.csv", Body=text.encode())
    (folder / "job.py").write_text(SCRIPT)

    def filled(text: str) -> str:
        jars, direct = str(s3a_jars()), server.direct
        return (
            text.replace("FOLDER", str(folder))
            .replace("BUCKET", lake.name)
            .replace("JARS", jars)
            .replace("DIRECT", direct)
        )

    airflow_home.write_dag("buckets", filled(DAG))
    airflow_home.options |= {
        "PYTHONPATH": f"{airflow_home.dags}:{airflow_home.environment['PYTHONPATH']}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[2]"}',
        VARIABLE: connection(server.url, read_timeout_s=30),
        "AWS_ACCESS_KEY_ID": "an-access-key",
        "AWS_SECRET_ACCESS_KEY": "a-secret-key",
    }
    server.asked()
    told = airflow_home.python(filled(PLAY))
    assert (told["state"], told["txids"]) == ("success", [1, 2]), airflow_home.output
    assert told["rows"] == sorted(
        [name, cents] for n in (1, 2) for name, cents in (("ann", 11 * n), ("bob", n), ("eve", 100 * n))
    )
    # Each manifest names exactly what lies beside its _SUCCESS, which came after all of it.
    puts = [path.partition("?")[0].removeprefix(f"/{lake.name}/") for method, path in server.asked() if method == "PUT"]
    named = {file["path"] for text in told["manifests"] for file in json.loads(text)["files"]}
    assert len(told["manifests"]) == 2
    staged = {name.removeprefix("staging/") for name in told["staged"]}
    assert {name for name in staged if name.endswith(".parquet")} == named
    assert len(named) > 2
    for success in [name for name in puts if name.endswith("/_SUCCESS") and "good" in name]:
        beside = [at for at, name in enumerate(puts) if name.startswith(success.removesuffix("_SUCCESS"))]
        assert any("/_temporary/" in puts[at] for at in beside)  # its committer copies
        assert puts.index(success) > max(at for at in beside if puts[at].endswith(".parquet"))
    assert (told["bare"], told["committed"]) == ("failed", [])
    assert "this Spark has no file system for s3a://, where this transaction is staged" in airflow_home.output
    assert "hadoop-aws:VERSION" in airflow_home.output
