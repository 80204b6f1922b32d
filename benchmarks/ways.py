"""Compares several ways to the same result on one session: interleaved rounds, and a table of their times."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psutil

from airflow_trident import Topology
from airflow_trident.engine.engine import Job
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.sessions.session import GivenSession
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest, Slot

Result = TypeVar("Result")


@contextmanager
def processed(spark: Any, topology: Topology, metadata: Mapping[str, Any]) -> Iterator[tuple[Manifest, StagingArea]]:
    """Process one batch of a topology; its manifest, and where it is staged."""
    with tempfile.TemporaryDirectory() as staging:
        slot = Slot(topology=topology.name, incarnation="none", txid=1, attempt=0)
        job = Job(plan=topology.compile(), slot=slot, metadata=dict(metadata), staging_root=staging)
        yield SparkEngine(GivenSession(spark)).run(job), StagingArea(staging)


def staged(spark: Any, topology: Topology, metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows that one batch stages for the only state of a topology."""
    ((name, spec),) = topology.states.items()
    with processed(spark, topology, metadata) as (manifest, area):
        rows: list[dict[str, Any]] = area.read(manifest, name, spec.staged).to_pylist()
    return rows


def staged_count(spark: Any, topology: Topology, metadata: Mapping[str, Any]) -> int:
    """The number of rows that one batch stages; nobody reads them."""
    with processed(spark, topology, metadata) as (manifest, _):
        return sum(file.rows for file in manifest.files)


def compared(ways: Mapping[str, Callable[[], Result]], expected: Result, *, rows: int, runs: int, to: str) -> list[str]:
    """A table of the times; a first round warms up. CPU seconds are of this process and all below it: beside other
    work they say more than the clock.

    :param to: the way that the ratios compare with.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(runs + 1):
        for name, run in ways.items():
            began, before = time.perf_counter(), _cpu_s()
            assert run() == expected, f"{name} gave something else"
            if number:
                seconds[name].append(time.perf_counter() - began)
                spent[name].append(_cpu_s() - before)
    lines = [f"| way | s | rows/s | time / {to} (median of rounds) | CPU s | CPU / {to} |", "|---|---|---|---|---|---|"]
    for name, taken in seconds.items():
        median = statistics.median(taken)
        lines.append(
            f"| {name} | {median:.2f} | {rows / median:,.0f} | {_ratio(taken, seconds[to]):.2f} | "
            f"{statistics.median(spent[name]):.2f} | {_ratio(spent[name], spent[to]):.2f} |"
        )
    return lines


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def _cpu_s() -> float:
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])  # user and system, of it and of its children that ended
    return total
