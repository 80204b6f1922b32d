"""Engines for tests, each started once: a local Spark application, a Spark Connect server, spark-submit."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.engine_fixtures import JobOf, make_job

if TYPE_CHECKING:
    from airflow_trident.engine.local import LocalEngine
    from airflow_trident.engine.spark import SparkEngine
    from airflow_trident.engine.spark_server import EmbeddedConnectServer
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
    server = small_connect_server(tmp_path_factory.mktemp("connect"))
    server.start()
    try:
        yield server.url
    finally:
        server.stop()


def small_connect_server(folder: Path, port: int = 0) -> EmbeddedConnectServer:
    """Not started. Tests that stop or kill a server start one of their own."""
    from airflow_trident.engine.spark_java import ONE_SHOT_JAVA_OPTIONS
    from airflow_trident.engine.spark_server import EmbeddedConnectServer

    java = f"{ONE_SHOT_JAVA_OPTIONS} -Djava.io.tmpdir={folder}"
    conf = {**SMALL, "spark.driver.extraJavaOptions": java}
    return EmbeddedConnectServer(folder, port=port, master="local[2]", heap_mb=512, conf=conf)


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


def wait_for(condition: Callable[[], bool], limit_s: float = START_LIMIT_S) -> None:
    """Until it holds; the limit only bounds a test that would hang."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)
