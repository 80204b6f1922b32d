"""An executor dies in the middle of an attempt, and users' code gives something else each time it runs: what is staged
comes from one run of it, or the attempt fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import FixedBatchSpout, Function, OperationContext, Stream, Topology
from airflow_trident.engine.engine import Job
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.sessions.local import LocalSessions
from airflow_trident.errors import SparkJobError
from airflow_trident.io.arrow import table_to_rows
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest
from tests.fixtures.engine import keep, make_job
from tests.fixtures.spark import soon

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
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


def engine() -> SparkEngine:
    conf = {
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": soon(),
        "spark.sql.shuffle.partitions": "4",
        "spark.shuffle.io.maxRetries": "1",  # by default Spark asks a dead executor for 15 seconds
        "spark.shuffle.io.retryWait": "100ms",
    }
    return SparkEngine(LocalSessions("local-cluster[2,1,512]", conf=conf))


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


def shuffle(topology: Topology, killer: Killer) -> None:
    keep(stamped(topology).partition_by("number").each("number", killer, "zero"))


def fork(topology: Topology, killer: Killer) -> None:
    rows = stamped(topology)
    keep(rows, "first")
    keep(rows.each("number", killer, "zero"), "second")


def play(kind: str, made: SparkEngine, folder: Path) -> None:
    """One attempt after the other, until one succeeds."""
    folder.mkdir()
    killer = Killer(folder, waits=kind == "shuffle")
    write = shuffle if kind == "shuffle" else fork
    staged_by_one_run(made, make_job(lambda topology: write(topology, killer), folder / "staging"))
    assert killer.killed.exists()


def play_all(folder: str) -> None:
    with engine() as made:
        for kind in ("shuffle", "fork"):
            play(kind, made, Path(folder) / kind)


def test_what_is_staged_comes_from_one_run_although_an_executor_died(tmp_path: Path) -> None:
    """Rows behind a shuffle, and states that are made of the same rows. In a process of its own: one that has an
    application already would not start this one."""
    code = f"from {__name__} import play_all; play_all({str(tmp_path)!r})"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
