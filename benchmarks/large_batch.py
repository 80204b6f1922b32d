"""`python -m benchmarks.large_batch`: the cost of one batch with very many files or very many partitions.

Files: how FileSpout decides on such a batch, and the size of its metadata in the ledger; the ledger refuses more than
it can send in one step. Partitions: a batch of as many splits, a few rows each, processed and read back, on the local
engine and on Spark, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

from airflow_trident import Count, FileSpout, MemoryState, Topology
from airflow_trident.engine.engine import Engine, Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import TridentError
from airflow_trident.ledger.answers import NextBatches
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.protocol.records import Claim
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Slot
from benchmarks.backlog import spent_ms
from benchmarks.peers import session
from benchmarks.scale import DEFINITION

ROWS = 8
"""Rows in each file."""


def write_files(folder: Path, count: int) -> None:
    for number in range(count):
        (folder / f"{number:07}.txt").write_text("".join(f"w{(number + row) % 1000}\n" for row in range(ROWS)))


def files_line(count: int) -> str:
    """One look at `count` files, which are one batch, and the step of the ledger that records it."""
    with tempfile.TemporaryDirectory() as name:
        write_files(Path(name), count)
        coordinator = FileSpout(name, max_files=count).coordinator()
        look_ms, batches = spent_ms(lambda: coordinator.next_batches(1, None, 1))
    ledger = MemoryLedger("large")
    ledger.register(DEFINITION)

    def begin() -> str:
        try:
            ledger.begin(
                NextBatches([Claim(key="1")], lambda *_: [{"lines": batches[0]}], max_pending=1, attempt_by="benchmark")
            )
        except TridentError as error:
            return f"refused: {error}".split(". ")[0]
        return "taken"

    begin_ms, answer = spent_ms(begin)
    return f"| {count:,} | {len(json.dumps(batches[0])):,} | {look_ms:.0f} | {begin_ms:.0f} | {answer} |"


def topology_of(folder: str, count: int) -> Topology:
    """Gives `count` partitions: with one byte for each split, a split is never more than one file."""
    topology = Topology("large")
    words = topology.new_stream("words", FileSpout(folder, fields="word string", max_files=count, split_bytes=1))
    words.group_by("word").persistent_aggregate(MemoryState(), Count(), "count", name="counts")
    return topology


def partitions_line(engine: str, count: int) -> str:
    """Processing and reading back; the engine is started before."""
    with tempfile.TemporaryDirectory() as data, tempfile.TemporaryDirectory() as staging:
        write_files(Path(data), count)
        topology = topology_of(data, count)
        metadata = {"words": topology.spouts["words"].coordinator().initialize_transaction(1, None)}
        slot = Slot(topology=topology.name, incarnation="none", txid=1, attempt=0)
        job = Job(plan=topology.compile(), slot=slot, metadata=metadata, staging_root=staging)
        run = _engine(engine).run
        began, spent = time.perf_counter(), time.process_time()
        manifest = run(job)
        work_s = time.perf_counter() - began
        rows = StagingArea(staging).read(manifest, "counts", topology.states["counts"].staged)
        assert sum(row["count"] for row in rows.to_pylist()) == count * ROWS
        files = sum(1 for _ in Path(staging).rglob("*.parquet"))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    cpu_s = time.process_time() - spent
    return f"| {engine} | {count:,} | {work_s:.1f} | {1000 * work_s / count:.1f} | {cpu_s:.1f} | {files} | {peak_mb} |"


def _engine(name: str) -> Engine:
    if name == "local":
        return LocalEngine()
    from airflow_trident.engine.spark.engine import SparkEngine
    from airflow_trident.engine.spark.sessions.session import GivenSession

    spark = session()
    spark.range(1).count()
    return SparkEngine(GivenSession(spark))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_batch", description=__doc__)
    parser.add_argument("--files", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--partitions", type=int, nargs="*", default=[100, 1_000, 10_000])
    given = parser.parse_args()
    print("| files in a batch | bytes of metadata | look ms | begin ms | the ledger |\n|---|---|---|---|---|")
    for count in given.files:
        print(files_line(count), flush=True)
    print("\n| engine | partitions | s | ms each | CPU of this process s | staged files | MB |")
    print("|---|---|---|---|---|---|---|")
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as alone:
        for engine in ("local", "spark"):
            for count in given.partitions:
                print(alone.apply(partitions_line, (engine, count)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
