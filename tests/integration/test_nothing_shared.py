"""Executors on another machine: they share a bucket with the driver, and no folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_trident import Count, FileSpout, Function, SqliteState, Sum, Topology
from airflow_trident.engine.base import Engine
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.sessions.local import LocalSessions
from airflow_trident.errors import UnseenFilesError
from airflow_trident.ledger.memory import MemoryLedger
from airflow_trident.runtime.local import LocalRunner
from tests.fixtures.namespaces import has_namespaces
from tests.fixtures.object_store import Bucket
from tests.fixtures.standalone import standalone_cluster
from tests.integration.test_staging_on_s3 import contents

pytestmark = [pytest.mark.spark, pytest.mark.rare]


class Sees(Function):
    """Is the driver's file there, where rows are processed?"""

    def __init__(self, path: str) -> None:
        self.path = path

    def execute(self, n: int) -> Iterator[bool]:
        yield os.path.exists(self.path)


@pytest.fixture(autouse=True)
def namespaces() -> None:
    if not has_namespaces():
        pytest.skip("this machine gives no namespaces")


@pytest.fixture
def driver_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "driver"
    folder.mkdir()
    (folder / "witness").touch()
    return folder


@pytest.fixture
def engine(tmp_path: Path, driver_folder: Path) -> Iterator[SparkEngine]:
    cluster_folder = tmp_path / "cluster"
    cluster_folder.mkdir()
    memory = {"spark.executor.memory": "512m", "spark.driver.memory": "512m"}
    conf = {"spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "2", **memory}
    with (
        standalone_cluster(cluster_folder, hidden=driver_folder) as cluster,
        SparkEngine(LocalSessions(cluster.master, conf=conf)) as made,
    ):
        yield made


def topology(bucket: Bucket, folder: Path) -> Topology:
    for number in range(4):
        rows = [{"k": f"k{n % 2}", "n": n} for n in range(number + 1)]
        bucket.put(f"in/{number}.json", "".join(json.dumps(row) + "\n" for row in rows))
    made = Topology("apart")
    spout = FileSpout(f"{bucket.uri}/in", format="json", fields="k string, n long", max_files=2)
    lines = made.new_stream("lines", spout)
    state = SqliteState(str(folder / "s.db"))
    lines.group_by("k").persistent_aggregate(state, "n", Sum(), "sum", name="sums")
    seen = lines.each("n", Sees(str(folder / "witness")), "sees boolean")
    seen.group_by("sees").persistent_aggregate(state, Count(), "count", name="seen")
    seen.partition_persist(SqliteState(str(folder / "r.db")), "k, n", keys="k", order_by="n", name="last")
    return made


def run(made: Topology, engine: Engine, staging: str) -> list[int]:
    with MemoryLedger(made.name) as ledger:
        return LocalRunner(ledger=ledger, topology=made, engine=engine, staging_root=staging).run()


def test_executors_read_and_stage_in_the_bucket_alone(engine: SparkEngine, bucket: Bucket, driver_folder: Path) -> None:
    made = topology(bucket, driver_folder)
    with pytest.raises(UnseenFilesError, match="executors write to another staging folder"):
        run(made, engine, str(driver_folder / "staging"))
    assert run(made, engine, f"{bucket.uri}/staging") == [1, 2]
    assert contents(made, "sums") == {"k0": 4, "k1": 6}
    assert contents(made, "last") == {"k0": 2, "k1": 3}
    assert contents(made, "seen") == {False: 10}
