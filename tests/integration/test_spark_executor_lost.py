"""An executor dies in the middle of an attempt, and users' code gives something else each time it runs: what is staged
comes from one run of it, or the attempt fails."""

from __future__ import annotations

import os
import signal
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import FixedBatchSpout, Function, OperationContext, Stream, Topology
from airflow_trident.arrow import table_to_rows
from airflow_trident.engine.base import Job
from airflow_trident.engine.spark import SparkEngine
from airflow_trident.engine.spark_local import LocalSessions
from airflow_trident.errors import SparkJobError
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.base import Manifest
from tests.engine_fixtures import keep, make_job

pytestmark = pytest.mark.spark

SPLITS, ROWS = 4, 400
EXECUTOR = b"CoarseGrainedExecutorBackend"


class Stamp(Function):
    """Another one in each run of a partition."""

    output_types = "string"

    def prepare(self, context: OperationContext) -> None:
        self.stamp = uuid.uuid4().hex

    def execute(self, *values: Any) -> Iterator[str]:
        yield self.stamp


class Killer(Function):
    """Kills its own executor, once, as soon as somebody else has gone through to the end."""

    output_types = "int"

    def __init__(self, folder: Path, *, waits: bool) -> None:
        self.killed, self.ended = folder / "killed", folder / "ended"
        self.waits = waits

    def execute(self, *values: Any) -> Iterator[int]:
        if not self.killed.exists() and (self.ended.exists() or not self.waits):
            self.killed.touch()
            os.kill(executor(), signal.SIGKILL)
        yield 0

    def cleanup(self) -> None:
        self.ended.touch()


def executor() -> int:
    """The process of the executor above this Python worker."""
    pid = os.getppid()
    while EXECUTOR not in Path(f"/proc/{pid}/cmdline").read_bytes():
        assert pid > 1, "no executor above"
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


@pytest.fixture(scope="module")
def engine() -> Iterator[SparkEngine]:
    conf = {
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "4",
        "spark.shuffle.io.maxRetries": "1",  # by default Spark asks a dead executor for 15 seconds
        "spark.shuffle.io.retryWait": "100ms",
    }
    with SparkEngine(LocalSessions("local-cluster[2,1,512]", conf=conf)) as engine:
        yield engine


def stamped(topology: Topology) -> Stream:
    rows = [(number // (ROWS // SPLITS), number) for number in range(ROWS)]
    spout = FixedBatchSpout("split long, number long", rows, ROWS, splits=SPLITS)
    return topology.new_stream("numbers", spout).each("number", Stamp(), "stamp")


def stamps(job: Job, manifest: Manifest) -> dict[int, set[str]]:
    """Split -> the stamps that its rows have, in all states."""
    area, found = StagingArea(job.staging_root), defaultdict(set)
    for sink in job.plan.sinks:
        rows: list[Any] = table_to_rows(area.read(manifest, sink.name, sink.schema))
        assert sorted(number for _, number, *_ in rows) == list(range(ROWS))
        for split, _, stamp, *_ in rows:
            found[split].add(stamp)
    return dict(found)


def staged_by_one_run(engine: SparkEngine, job: Job) -> None:
    """As Airflow's retries do it."""
    for _ in range(3):
        try:
            found = stamps(job, engine.run(job))
        except SparkJobError:
            continue
        assert {split: len(several) for split, several in found.items()} == dict.fromkeys(range(SPLITS), 1)
        return
    raise AssertionError("every attempt failed")


def test_rows_behind_a_shuffle_come_from_one_run(engine: SparkEngine, tmp_path: Path) -> None:
    killer = Killer(tmp_path, waits=True)
    job = make_job(
        lambda topology: keep(stamped(topology).partition_by("number").each("number", killer, "zero")),
        tmp_path / "staging",
    )
    staged_by_one_run(engine, job)
    assert killer.killed.exists()


def test_states_that_are_made_of_the_same_rows_get_those_of_one_run(engine: SparkEngine, tmp_path: Path) -> None:
    killer = Killer(tmp_path, waits=False)

    def fork(topology: Topology) -> None:
        rows = stamped(topology)
        keep(rows, "first")
        keep(rows.each("number", killer, "zero"), "second")

    job = make_job(fork, tmp_path / "staging")
    staged_by_one_run(engine, job)
    assert killer.killed.exists()
