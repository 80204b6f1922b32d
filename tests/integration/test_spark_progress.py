"""What the log of a task says while Spark is at work: silence is when people kill tasks."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_trident.engine.spark import progress
from airflow_trident.engine.spark.engine import SparkEngine
from tests.fixtures.engine import JobOf
from tests.fixtures.spark import endless

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("name", ["spark_engine", "connect_engine"])
def test_while_a_job_runs_its_log_says_how_many_rows_were_read_so_far(
    name: str, job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The function goes on when the log has said it, and not before."""
    monkeypatch.setattr(progress, "FIRST_S", 0.05)
    monkeypatch.setattr(progress, "EVERY_S", 0.05)
    monkeypatch.setattr(progress, "COUNT_EVERY_S", 0.0)
    engine: SparkEngine = request.getfixturevalue(name)
    said = threading.Event()

    def told(line: str) -> None:
        if line.startswith("transaction 1, state ") and "1 rows read so far" in line:
            said.set()
            (tmp_path / "enough").touch()

    job = replace(job_of(endless(tmp_path)), progress=told)
    assert engine.run(job).rows_read == 1
    assert said.is_set()
