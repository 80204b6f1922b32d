"""`python -m benchmarks.joins`: two Parquet sources joined by a number, ours and Spark's own join on one session.

Both read the same files and write every joined row into Parquet files; ours stages them for a state.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from airflow_trident import FileSpout, MemoryState, Topology
from benchmarks.peers import session
from benchmarks.ways import compared, staged_count

FILES = 4


def write(folder: Path, rows: int) -> None:
    """Write each key once on both sides, in different orders."""
    for side, (step, name) in {"left": (7_919, "order"), "right": (104_729, "price")}.items():
        (folder / side).mkdir()
        for part in range(FILES):
            numbers = range(part, rows, FILES)
            keys = pa.array([number * step % rows for number in numbers], pa.int64())
            values = pa.array([f"{name} {number}" for number in numbers])
            pq.write_table(pa.table({"key": keys, name: values}), folder / side / f"{part}.parquet")


def ours(spark: Any, folder: Path) -> Callable[[], int]:
    topology = Topology("joins")
    spouts = {
        side: FileSpout(f"{folder}/{side}/*.parquet", format="parquet", fields=f"key long, {name} string")
        for side, name in (("left", "order"), ("right", "price"))
    }
    streams = [topology.new_stream(side, spout) for side, spout in spouts.items()]
    joined = topology.join(streams, ["key", "key"], "key, order, price")
    joined.partition_persist(MemoryState(), "key, order, price", keys="key", name="joined")
    topology.compile()  # once, and outside of what is measured
    metadata = {side: spout.coordinator().initialize_transaction(1, None) for side, spout in spouts.items()}
    return partial(staged_count, spark, topology, metadata)


def plain(spark: Any, folder: Path) -> Callable[[], int]:
    def run() -> int:
        left, right = (spark.read.parquet(f"{folder}/{side}") for side in ("left", "right"))
        with tempfile.TemporaryDirectory() as out:
            left.join(right, "key").write.parquet(f"{out}/joined")
            return int(ds.dataset(f"{out}/joined").count_rows())

    return run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.joins", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="on either side")
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    spark = session()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, given.rows)
        ways = {"Spark's own": plain(spark, folder), "ours": ours(spark, folder)}
        table = compared(ways, given.rows, rows=given.rows, runs=given.runs, to="Spark's own")
    spark.stop()
    print(f"{given.rows:,} x {given.rows:,} rows, n = {given.runs}\n")
    print("\n".join(table))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
