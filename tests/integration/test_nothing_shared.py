"""Executors on another machine: they share a bucket with the driver, and no folder."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_trident import Count, FileSpout, Function, SqliteState, Sum, Topology
from airflow_trident.engine.engine import Engine
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.sessions.local import LocalSessions
from airflow_trident.errors import UnseenFilesError
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.runtime.local import LocalRunner
from tests.fixtures.airflow import PROJECT
from tests.fixtures.namespaces import ALONE, Machines, has_namespaces, has_networks, two_machines
from tests.fixtures.object_store import VARIABLE, Bucket, connection, make_bucket
from tests.fixtures.standalone import standalone_cluster
from tests.integration.test_staging_on_s3 import contents

pytestmark = [pytest.mark.spark, pytest.mark.rare]


class Sees(Function):
    """Is the driver's file there, where rows are processed?"""

    def __init__(self, path: str) -> None:
        self.path = path

    def execute(self, n: int) -> Iterator[bool]:
        yield os.path.exists(self.path)


class Reaches(Function):
    """Where rows are processed: does a server answer that only the driver's own machine can reach; and is it that
    machine's network?"""

    def __init__(self, port: int, network: str) -> None:
        self.port, self.network = port, network

    def execute(self, n: int) -> Iterator[str]:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=60).close()
            yield "the driver's loopback"
        except ConnectionRefusedError:
            yield "the driver's network" if own_network() == self.network else "another network"


def own_network() -> str:
    return os.readlink("/proc/self/ns/net")


@pytest.fixture
def driver_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "driver"
    folder.mkdir()
    (folder / "witness").touch()
    return folder


@contextmanager
def moto(host: str) -> Iterator[str]:
    """``host:port`` of a server of S3."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(host, 0, verbose=False)
    server.start()
    try:
        yield "{}:{}".format(*server.get_host_and_port())
    finally:
        server.stop()


@contextmanager
def engine_of(folder: Path, driver_folder: Path, machines: Machines | None = None) -> Iterator[SparkEngine]:
    cluster_folder = folder / "cluster"
    cluster_folder.mkdir()
    memory = {"spark.executor.memory": "512m", "spark.driver.memory": "512m"}
    here = machines.here if machines else "127.0.0.1"
    conf = {"spark.driver.host": here, "spark.sql.shuffle.partitions": "2", **memory}
    with (
        standalone_cluster(cluster_folder, hidden=driver_folder, machines=machines) as cluster,
        SparkEngine(LocalSessions(cluster.master, conf=conf)) as made,
    ):
        yield made


def topology(bucket: Bucket, folder: Path, reaches: Reaches | None = None) -> Topology:
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
    if reaches is not None:
        found = lines.each("n", reaches, "reached string").group_by("reached")
        found.persistent_aggregate(state, Count(), "count", name="reached")
    return made


def run(made: Topology, engine: Engine, staging: str) -> list[int]:
    with MemoryLedger(made.name) as ledger:
        return LocalRunner(ledger=ledger, topology=made, engine=engine, staging_root=staging).run()


def check(made: Topology, engine: Engine, bucket: Bucket, driver_folder: Path) -> None:
    with pytest.raises(UnseenFilesError, match="executors write to another staging folder"):
        run(made, engine, str(driver_folder / "staging"))
    assert run(made, engine, f"{bucket.uri}/staging") == [1, 2]
    assert contents(made, "sums") == {"k0": 4, "k1": 6}
    assert contents(made, "last") == {"k0": 2, "k1": 3}
    assert contents(made, "seen") == {False: 10}


def test_executors_read_and_stage_in_the_bucket_alone(tmp_path: Path, bucket: Bucket, driver_folder: Path) -> None:
    if not has_namespaces():
        pytest.skip("users may not make namespaces here")
    with engine_of(tmp_path, driver_folder) as engine, socket.create_server(("127.0.0.1", 0)) as own:
        made = topology(bucket, driver_folder, Reaches(own.getsockname()[1], own_network()))
        check(made, engine, bucket, driver_folder)
    assert contents(made, "reached") == {"the driver's loopback": 10}


def test_executors_on_another_network_need_the_drivers_address_and_the_bucket_alone(
    tmp_path: Path, driver_folder: Path
) -> None:
    """The whole of it in networks that the test makes: no packet leaves them."""
    if not has_networks():
        pytest.skip("users may not make networks here")
    script = "import sys; from tests.integration.test_nothing_shared import on_two_machines as run; run(sys.argv[1])"
    command = [*ALONE, sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def on_two_machines(given: str) -> None:
    """In a process of its own. The driver, the master and the bucket are on one of them, the worker is on the other."""
    folder = Path(given)
    driver_folder = folder / "driver"
    with two_machines() as machines, moto(machines.here) as server, socket.create_server(("127.0.0.1", 0)) as own:
        os.environ[VARIABLE] = connection(f"http://{server}", read_timeout_s=60)
        bucket = Bucket(make_bucket(server), None, f"http://{server}")  # type: ignore[arg-type]
        made = topology(bucket, driver_folder, Reaches(own.getsockname()[1], own_network()))
        with engine_of(folder, driver_folder, machines) as engine:
            check(made, engine, bucket, driver_folder)
        assert contents(made, "reached") == {"another network": 10}
