"""Runs a small word count in one process: ``python -m tests.programs.word_count HOSTS ROOT FOLDER [PENDING]``.
With PENDING, by a drain with so many transactions under way. The environment variable STAGING is the place to stage,
instead of below FOLDER; a number there is the size up to which the ledger keeps staged batches, in bytes.

Two streams, two states in two databases, batches of four lines, and a commit phase of two levels after them with
windows over counts and times. Crash tests kill it and run it again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow_trident import Count, FixedBatchSpout, Function, Max, Min, SqliteState, Sum, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.phases import Attempts
from tools import kills

LINES = [(f"line {number} of the file has word{number % 7} and word{number % 3}",) for number in range(20)]
TITLES = [(f"title {number % 5}",) for number in range(12)]
TRANSACTIONS = 5


class Split(Function):
    def execute(self, line: str) -> Iterator[str]:
        yield from line.split()


class Clock(Function):
    """Gives another hour for each line."""

    def execute(self, line: str) -> Iterator[datetime]:
        yield datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=int(line.split()[1]))


def topology(folder: Path) -> Topology:
    made = Topology("crash_test")
    words = made.new_stream("lines", FixedBatchSpout("line string", LINES, 4)).each("line", Split(), "word")
    store = SqliteState(str(folder / "words.db"))
    counts = words.group_by("word").persistent_aggregate(store, Count(), "count")
    changed = counts.new_values_stream()
    changed.group_by("word").persistent_aggregate(store, Count(), "batches")
    most = changed.persistent_aggregate(SqliteState(str(folder / "most.db")), "count", Max(), "most")
    most.new_values_stream().persistent_aggregate(store, "most", Sum(), "of_most")
    windows = words.sliding_window(10, 5, store, ("word", Min(), "first"), (Count(), "tuples"), bounds=True)
    windows.partition_persist(store, "window_end, first, tuples", keys="window_end", name="windows")
    timed = words.each("line", Clock(), "at timestamp")
    length = timedelta(hours=5)
    hours = timed.tumbling_window(length, store, ("word", Min(), "first"), time="at", bounds=True, name="hours_window")
    hours.partition_persist(store, "window_start, first", keys="window_start", name="hours")
    titles = made.new_stream("titles", FixedBatchSpout("title string", TITLES, 4))
    titles.persistent_aggregate(SqliteState(str(folder / "titles.db")), Count(), "titles")
    return made


def contents(folder: Path) -> dict[str, list[object]]:
    """The content of the states, sorted."""
    found: dict[str, list[object]] = {}
    for name, spec in topology(folder).states.items():
        with spec.factory.make_state(spec) as state:
            found[name] = sorted(state.items())
    return found


def main(hosts: str, root: str, folder: str, pending: str = "") -> None:
    made, staging = topology(Path(folder)), os.environ.get("STAGING", f"{folder}/staging")
    chunk_bytes = int(staging) if staging.isdigit() else 0
    settings = ZooKeeperSettings(hosts=hosts)
    with open_ledger(settings, made.name, root=root, chunk_bytes=chunk_bytes) as ledger, LocalEngine() as engine:
        if pending:
            Drain(
                ledger=ledger,
                topology=made,
                engine=engine,
                staging_root=staging,
                attempts=Attempts(owner="drain"),
                claim=Claim(key="drain"),
                limits=DrainLimits(max_pending=int(pending)),
            ).run()
            return
        LocalRunner(ledger=ledger, topology=made, engine=engine, staging_root=staging).run()


if __name__ == "__main__":
    kills.install()
    main(*sys.argv[1:])
