"""Engines for tests, each started once: a local Spark application, a Spark Connect server, spark-submit."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.engine_fixtures import JobOf, make_job

if TYPE_CHECKING:
    from airflow_trident.engine.local import LocalEngine
    from airflow_trident.engine.spark import SparkEngine
    from airflow_trident.engine.spark_submit import SubmitEngine

START_LIMIT_S = 120
SMALL = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "512m"}


@pytest.fixture
def job_of(tmp_path: Path) -> JobOf:
    """Makes the job of a topology's first transaction, staged below the test's own folder."""
    return lambda build, attempt=0: make_job(build, tmp_path / "staging", attempt=attempt)


@pytest.fixture
def local_engine() -> LocalEngine:
    from airflow_trident.engine.local import LocalEngine

    return LocalEngine()


@pytest.fixture(scope="session")
def spark_engine() -> Iterator[SparkEngine]:
    """One Spark application in this process for all tests."""
    from airflow_trident.engine.spark import SparkEngine
    from airflow_trident.engine.spark_local import LocalSessions

    with SparkEngine(LocalSessions("local[2]", conf={"spark.driver.memory": "512m"})) as engine:
        yield engine


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real Spark Connect server, from the jars of the installed pyspark."""
    folder = tmp_path_factory.mktemp("connect")
    port = free_port()
    with start_connect_server(folder, port) as process:
        try:
            wait_for(lambda: listens(port) or _ended(process, folder))
            yield f"sc://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def start_connect_server(folder: Path, port: int) -> subprocess.Popen[bytes]:
    import pyspark

    from airflow_trident.engine.spark_local import ONE_SHOT_JAVA_OPTIONS, QUIET_LOG

    home = os.path.dirname(pyspark.__file__)
    java = f"{ONE_SHOT_JAVA_OPTIONS} -Djava.io.tmpdir={folder} -Dlog4j2.configurationFile={QUIET_LOG.as_uri()}"
    conf = {
        **SMALL,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.extraJavaOptions": java,
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    arguments = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    with open(folder / "log", "wb") as log:
        return subprocess.Popen(
            [os.path.join(home, "bin", "spark-submit"), "--master", "local[2]", *arguments, *server],
            cwd=folder,
            env={**os.environ, "PATH": path, "SPARK_HOME": home, "PYSPARK_PYTHON": sys.executable},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


@pytest.fixture(scope="session")
def connect_engine(connect_server: str) -> Iterator[SparkEngine]:
    from airflow_trident.engine.spark import SparkEngine
    from airflow_trident.engine.spark_connect import ConnectSessions

    with SparkEngine(ConnectSessions(connect_server)) as engine:
        yield engine


@pytest.fixture(scope="session")
def submit_engine() -> SubmitEngine:
    from airflow_trident.engine.spark_submit import SparkSubmitProcess, SubmitEngine

    process = SparkSubmitProcess("local[2]", SMALL)
    return SubmitEngine(process, process.cancel)


# ---- small helpers ---------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def wait_for(condition: Callable[[], bool], limit_s: float = START_LIMIT_S) -> None:
    """Until it holds; the limit only bounds a test that would hang."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


def _ended(process: subprocess.Popen[bytes], folder: Path) -> bool:
    if process.poll() is not None:
        raise AssertionError(f"the server ended: {(folder / 'log').read_text(errors='replace')[-2000:]}")
    return False
