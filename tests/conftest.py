"""Fixtures for every test: one real ZooKeeper server for all of them, and a root of its own in it for each test."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from tests.fixtures.airflow import airflow_database, airflow_home  # noqa: F401 - fixtures for all
from tests.fixtures.azurite import container, objects  # noqa: F401 - fixtures for all
from tests.fixtures.child import qtopology_folder  # noqa: F401 - a fixture for all
from tests.fixtures.child_spout import others, queue  # noqa: F401 - fixtures for all
from tests.fixtures.gcs import gcs, gcs_lake, gcs_object_server, gcs_server  # noqa: F401 - fixtures for all
from tests.fixtures.grouped_words import grouped_words  # noqa: F401 - a fixture for all
from tests.fixtures.hdfs import folder, hdfs  # noqa: F401 - fixtures for all
from tests.fixtures.kafka import kafka, topic  # noqa: F401 - fixtures for all
from tests.fixtures.mariadb import mariadb  # noqa: F401 - a fixture for all
from tests.fixtures.object_store import bucket, lake, object_server, s3_server  # noqa: F401 - fixtures for all
from tests.fixtures.postgres import postgres  # noqa: F401 - a fixture for all
from tests.fixtures.redis import client, where  # noqa: F401 - fixtures for all
from tests.fixtures.spark import (  # noqa: F401 - fixtures for all
    connect_engine,
    connect_server,
    job_of,
    local_engine,
    spark_engine,
    spark_session,
    submit_engine,
)
from tests.fixtures.standalone import spark_master  # noqa: F401 - a fixture for all

# The speed of a machine says nothing about whether the code is right.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("patient")


IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > 2**30 else None
"""A file system in memory with a gigabyte for servers, if the machine has one; else the folder of temporary files."""
FIRST = (
    *("tests/system/", "tests/simulation/", "tests/contracts/test_engine.py", "tests/integration/test_ten_minutes.py"),
    *("tests/integration/test_submitted_drain.py", "tests/integration/test_spark_server.py"),
)
"""Files that take minutes begin first, because one file goes to one process: otherwise one process would end late."""


def pytest_collection(session: pytest.Session) -> None:
    """What thousands of tests and their modules consist of is no garbage: to look for some in it again and again took
    a third of the time to collect the tests, and a twentieth of the time to run them."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((number for number, name in enumerate(FIRST) if item.nodeid.startswith(name)), len(FIRST))

    items.sort(key=place)


def pytest_unconfigure() -> None:
    """What clients log at the end of the process has no stream any more: Airflow's handlers write to those of pytest,
    which are closed. Without this, py4j's last line ends the output with a traceback."""
    logging.raiseExceptions = False


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[EmbeddedZooKeeper]:
    """A running server; its address is `.hosts`. A test that stops or kills a server starts its own. This one ends with
    the tests, so its files may be in memory: on a disk each write of a ledger waits for milliseconds."""
    with tempfile.TemporaryDirectory(prefix="zookeeper-", dir=IN_MEMORY) as data:
        server = EmbeddedZooKeeper(data, heap_mb=512)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture
def ledger_root() -> str:
    """A root for ledgers that no other test uses."""
    return f"/test-{uuid.uuid4().hex[:12]}"
