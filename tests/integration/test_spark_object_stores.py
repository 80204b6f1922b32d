"""Tables in Azure and Google Cloud Storage, which Spark reads itself where its session has a file system for them."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_trident import TableSpout
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.io.hadoop import root_in_hadoop, uri_in_hadoop
from airflow_trident.io.object_stores import ObjectAddress
from tests.contracts.test_tables_on_gcs import FACTORIES, table_of
from tests.fixtures.engine import JobOf, run
from tests.fixtures.gcs import CONN_ID
from tests.fixtures.object_store import Lake
from tests.fixtures.program import Program
from tests.fixtures.state import batch, ticket
from tests.integration.test_spark_tables import job_for


def filled(kind: str, lake: Lake, folder: Path) -> None:
    table = table_of(kind, lake.name, folder)
    with table.opened() as state:
        for txid in (1, 2):
            state.apply(ticket(txid), batch(table.spec, *[(f"{txid}-{n % 7}", n) for n in range(500)], (None, None)))


def copied(bucket: str, folder: Path) -> None:
    """All objects as files."""
    store = ObjectAddress.parse("the bucket", f"gs://{CONN_ID}@{bucket}").store()
    for name in [one["path"] for page in obstore.list(store) for one in page]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(bytes(obstore.get(store, name).bytes()))


CLUSTER = "local-cluster[1,1,512]"
"""Executors in a process of their own, which are sent what they need as in any cluster."""


@pytest.mark.spark
@pytest.mark.parametrize(
    ("master", "kinds"),
    [
        pytest.param("local[2]", tuple(FACTORIES), marks=pytest.mark.rare),
        pytest.param(CLUSTER, tuple(FACTORIES), marks=pytest.mark.rare),
        (CLUSTER, ()),
    ],
)
def test_spark_reads_tables_and_files_by_the_file_system_of_its_session(
    gcs_lake: Lake, tmp_path: Path, master: str, kinds: tuple[str, ...]
) -> None:
    for kind in kinds:
        filled(kind, gcs_lake, tmp_path)
    pq.write_table(pa.table({"word": ["a", None], "n": [1, None]}), tmp_path / "one.parquet")
    store = ObjectAddress.parse("the bucket", f"gs://{CONN_ID}@{gcs_lake.name}").store()
    obstore.put(store, "in/one.parquet", (tmp_path / "one.parquet").read_bytes())
    copied(gcs_lake.name, tmp_path / "same")
    printed = tmp_path / "printed"
    program = Program("tables_by_session", tmp_path, gcs_lake.name, tmp_path / "same", master, *kinds, printed=printed)
    assert program.wait(300) == 0, printed.read_text()
    found = json.loads(printed.read_text().splitlines()[-1])
    for kind, rows, place in (*((kind, 1002, "lake") for kind in kinds), ("files", 2, "in")):
        assert "FileScan parquet" in found[kind]["plan"], (kind, printed.read_text())
        assert f"gs://{gcs_lake.name}/{place}" in found[kind]["plan"]
        assert found[kind]["rows"] == found[kind]["by_python"]
        assert len(found[kind]["rows"]) == rows


@pytest.mark.rare
@pytest.mark.spark
@pytest.mark.parametrize("kind", FACTORIES)
def test_a_session_without_such_a_file_system_leaves_them_to_python_and_says_so(
    spark_engine: SparkEngine,
    job_of: JobOf,
    gcs_lake: Lake,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    filled(kind, gcs_lake, tmp_path)
    spout = TableSpout(FACTORIES[kind](gcs_lake.name), fields="word string, n long")
    with caplog.at_level(logging.INFO):
        assert len(run(spark_engine, job_for(job_of, spout, "word string, n long"))["rows"]) == 1002
    (said,) = [one.getMessage() for one in caplog.records if "not Spark" in one.getMessage()]
    assert "the session has no file system for gs://" in said


def test_places_have_the_names_of_hadoops_connectors() -> None:
    def named(uri: str, **settings: str) -> str:
        place = ObjectAddress.parse("a table", uri)
        return root_in_hadoop(ObjectAddress(**{**vars_of(place), "settings": tuple(settings.items())}))

    def vars_of(place: ObjectAddress) -> dict[str, str]:
        return {name: getattr(place, name) for name in ("bucket", "prefix", "scheme", "account_host")}

    blob = "https://lake1.blob.core.windows.net"
    assert named("gcs://lake/a/b") == "gs://lake/a/b"
    assert named("abfs://con/a", account_name="lake1") == "abfss://con@lake1.dfs.core.windows.net/a"
    assert named("abfs://con", account_name="lake1", endpoint=blob) == "abfss://con@lake1.dfs.core.windows.net/"
    assert named("wasbs://con@lake1.blob.core.windows.net/a") == "abfss://con@lake1.dfs.core.windows.net/a"
    assert named("abfs://con/a", account_name="lake1", endpoint="http://127.0.0.1:10000/lake1") == ""
    assert named("abfs://con/a") == named("s3://con/a") == ""
    assert uri_in_hadoop("abfss://con@lake1.dfs.core.windows.net/a", {}) == "abfss://con@lake1.dfs.core.windows.net/a"
    assert uri_in_hadoop("abfs://con/a", {"AZURE_STORAGE_ACCOUNT_NAME": "lake1"}) == named(
        "abfs://con/a", account_name="lake1"
    )
    assert uri_in_hadoop("az://con/a", {"account_name": "lake1"}) == ""
