"""What a task says while Spark is at work, for silence is when people kill tasks; and what its worker was at when it
died."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_trident import FileSpout, Function, Topology
from airflow_trident.engine.spark import progress
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.errors import SparkJobError
from tests.fixtures.engine import JobOf
from tests.fixtures.pieces import keep
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


class Deadly(Function):
    def execute(self, n: int) -> Iterator[int]:
        if n == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        yield n


def test_a_worker_that_is_killed_is_told_with_the_file_that_it_was_at(
    spark_engine: SparkEngine, job_of: JobOf, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(6):
        (tmp_path / "in" / f"{number}.csv").write_text(f"n\n{number}\n")

    def build(topology: Topology) -> None:
        files = topology.new_stream("s", FileSpout(str(tmp_path / "in"), format="csv", fields="n long"))
        keep(files.each("n", Deadly(), "same long"))

    job = job_of(build)
    with pytest.raises(SparkJobError) as caught:
        spark_engine.run(job)
    assert f"a Python worker of Spark ended while it was at the file '{tmp_path}/in/3.csv'. " in str(caught.value)
    assert "lack of memory" in caught.value.cure
