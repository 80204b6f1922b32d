"""The contract of engines: every topology gives on every engine what it gives on the local one (E1 to E4)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_trident.engine.base import Engine
from airflow_trident.engine.local import LocalEngine
from airflow_trident.engine.spark import SparkEngine
from airflow_trident.engine.spark_local import LocalSessions
from tests.engine_fixtures import TOPOLOGIES, job_of, run

pytestmark = pytest.mark.spark


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkEngine]:
    with SparkEngine(LocalSessions("local[2]")) as engine:
        yield engine


ENGINES: dict[str, str] = {"spark": "spark"}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(ENGINES[request.param])
    return found


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_a_batch_gives_the_same_rows_as_on_the_local_engine(engine: Engine, name: str, tmp_path: Path) -> None:
    job = job_of(TOPOLOGIES[name], tmp_path)
    assert run(engine, job) == run(LocalEngine(), job)
