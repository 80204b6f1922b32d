"""`python -m benchmarks.groups`: many small transactions in one Spark job, and in one each.

The cost of the processing phase of a word count until its staged batches are published, without ledger and states: of a
plain Spark job over all the data; of a pass for each transaction; of passes of groups, by transaction and by key; and
of the same with a user's function instead of expressions. All read the same files and give the same counts.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc

from airflow_trident.engine.engine import Job
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.sessions.local import LocalSessions
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest, Slot
from benchmarks.data import WORDS_PER_LINE, Corpus, digest_of, make
from benchmarks.ours import by_transaction, topology_of
from benchmarks.peers import CORES, HEAP, counted

Way = Callable[[], list[pa.Table]]
SLOT = Slot(topology="bench", incarnation="none", txid=0, attempt=0)


def jobs_of(task: dict[str, Any], count: int) -> list[Job]:
    """One job for each of `count` transactions."""
    topology = topology_of(task)
    plan, coordinator = topology.compile(), topology.spouts["lines"].coordinator()
    jobs, position = list[Job](), None
    for txid in range(1, count + 1):
        position = coordinator.initialize_transaction(txid, position)
        slot = replace(SLOT, txid=txid)
        jobs.append(Job(plan=plan, slot=slot, metadata={"lines": position}, staging_root=task["staging"]))
    return jobs


def plain(session: Any, folder: str) -> list[pa.Table]:
    return [counted(session.read.text(folder)).toArrow()]


def in_groups(engine: SparkEngine, jobs: Sequence[Job], most: int) -> list[pa.Table]:
    """:param most: transactions in a group; 1: one pass each."""
    found = []
    for begin in range(0, len(jobs), most):
        group = jobs[begin : begin + most]
        found.append(_published(group, engine.run_group(group)))
    return found


def _published(jobs: Sequence[Job], manifest: Manifest) -> pa.Table:
    area = StagingArea(jobs[0].staging_root)
    area.publish_group(manifest)
    (sink,) = jobs[0].plan.staged
    attempts = {job.slot.txid: job.slot.attempt for job in jobs}
    return pa.concat_tables(area.read_each(manifest, attempts, sink.name, sink.schema))


def digest(tables: Sequence[pa.Table]) -> str:
    whole = pa.concat_tables([table.select(["word", "count"]).cast(SCHEMA) for table in tables])
    merged = whole.group_by("word").aggregate([("count", "sum")])
    return digest_of(zip(merged["word"].to_pylist(), merged["count_sum"].to_pylist(), strict=True))


SCHEMA = pa.schema([("word", pa.string()), ("count", pa.int64())])


def cpu_s() -> float:
    """Processor time of this process and all below it, JVM and Python workers, also of those that have ended."""
    me = psutil.Process()
    spent = [one.cpu_times() for one in (me, *me.children(recursive=True))]
    return sum(one.user + one.system + one.children_user + one.children_system for one in spent)


def measured(ways: dict[str, tuple[Way, int]], given: argparse.Namespace, expected: str) -> list[str]:
    """A table, after a round to warm up. Times of ways that took fewer transactions are scaled up to all of them."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(given.runs + 1):
        for name, (run, count) in ways.items():
            began, cpu_before_s = time.perf_counter(), cpu_s()
            tables = run()
            spent = time.perf_counter() - began, cpu_s() - cpu_before_s
            words = sum(pc.sum(table["count"]).as_py() for table in tables)
            assert words == count * given.lines * WORDS_PER_LINE, f"{name} counted {words} words"
            if number:
                taken[name].append((spent[0] * given.batches / count, spent[1] * given.batches / count))
            elif count == given.batches:
                assert digest(tables) == expected, f"{name} gave something else"
    lines = ["| way | s | CPU s | s / plain | CPU / plain |", "|---|---|---|---|---|"]
    base = taken["plain"]
    for name, spent_each in taken.items():
        s, cpu = (statistics.median(column) for column in zip(*spent_each, strict=True))
        ratios = [(a / c, b / d) for (a, b), (c, d) in zip(spent_each, base, strict=True)]
        s_ratio, cpu_ratio = (statistics.median(column) for column in zip(*ratios, strict=True))
        lines.append(f"| {name} | {s:.2f} | {cpu:.2f} | {s_ratio:.2f} | {cpu_ratio:.2f} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groups", description=__doc__)
    parser.add_argument("--batches", type=int, default=1_000)
    parser.add_argument("--lines", type=int, default=1_000, help="of a batch")
    parser.add_argument("--group", type=int, default=200, help="transactions in a group, at most")
    parser.add_argument("--single", type=int, default=100, help="transactions of the ways with a pass each; 0: none")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--functions", action="store_true", help="with a user's function, too")
    parser.add_argument("--folder", type=Path, default=Path(".trident-bench"), help="for data")
    given = parser.parse_args()
    made = make(Corpus(batches=given.batches, lines=given.lines), given.folder.absolute() / "data")
    sessions = LocalSessions(f"local[{CORES}]", conf={"spark.driver.memory": HEAP}, one_shot=False)
    with tempfile.TemporaryDirectory(prefix="trident-groups-") as folder, SparkEngine(sessions) as engine:
        session = sessions.open(SLOT).session
        ways: dict[str, tuple[Way, int]] = {"plain": (partial(plain, session, str(made.folder)), given.batches)}
        few = min(given.single, given.batches)
        for functions in [False, True][: 1 + given.functions]:
            task = {"data": str(made.folder), "staging": folder, "state": "unused.db", "functions": functions}
            jobs, about = jobs_of(task, given.batches), ", a function" * functions
            if few:
                ways[f"a pass each{about}"] = partial(_each_attempt, engine, jobs[:few], 1), few
            for how, group in (("by transaction", list(map(by_transaction, jobs))), ("by key", jobs)):
                ways[f"groups, {how}{about}"] = partial(_each_attempt, engine, group, given.group), given.batches
        table = measured(ways, given, made.digest)
    print(f"{made.corpus.title}, groups of {given.group}, n = {given.runs}\n")
    print("\n".join(table))
    return 0


_attempts = iter(range(10**9))


def _each_attempt(engine: SparkEngine, jobs: Sequence[Job], most: int) -> list[pa.Table]:
    """Runs as new attempts, because published batches do not change."""
    attempt = next(_attempts)
    return in_groups(engine, [replace(job, slot=replace(job.slot, attempt=attempt)) for job in jobs], most)


if __name__ == "__main__":
    raise SystemExit(main())
