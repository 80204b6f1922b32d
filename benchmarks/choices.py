"""`python -m benchmarks.choices`: the best tuple of each group and the first of a batch, ours and Spark's own.

Both read the same Parquet files and write the chosen tuples to Parquet files; ours stages them for a state.
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
from pyspark.sql import functions as f

from airflow_trident import FileSpout, MemoryState, Topology
from airflow_trident.functions import FirstN, MaxBy
from benchmarks.peers import session
from benchmarks.ways import compared, staged_count

FILES = 4
GROUPS = 10_000
FIRST = 100


def write(folder: Path, rows: int) -> None:
    """Write orders, all with different cents."""
    for part in range(FILES):
        numbers = range(part, rows, FILES)
        columns = {
            "customer": pa.array([number * 104_729 % GROUPS for number in numbers], pa.int64()),
            "item": pa.array([f"item {number}" for number in numbers]),
            "cents": pa.array([number * 7_919 % rows for number in numbers], pa.int64()),
        }
        pq.write_table(pa.table(columns), folder / f"{part}.parquet")


def ours(spark: Any, folder: Path, choose: Callable[[Any], Any]) -> Callable[[], int]:
    topology = Topology("choices")
    spout = FileSpout(f"{folder}/*.parquet", format="parquet", fields="customer long, item string, cents long")
    chosen = choose(topology.new_stream("orders", spout))
    chosen.partition_persist(MemoryState(), list(chosen.fields), keys=[], name="chosen")
    topology.compile()  # once, and outside of what is measured
    metadata = {"orders": spout.coordinator().initialize_transaction(1, None)}
    return partial(staged_count, spark, topology, metadata)


def plain(spark: Any, folder: Path, choose: Callable[[Any], Any]) -> Callable[[], int]:
    def run() -> int:
        with tempfile.TemporaryDirectory() as out:
            choose(spark.read.parquet(str(folder))).write.parquet(f"{out}/chosen")
            return int(ds.dataset(f"{out}/chosen").count_rows())

    return run


CHOICES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], int]] = {
    f"the best item of each of {GROUPS:,} customers": (
        lambda orders: orders.group_by("customer").aggregate("item, cents", MaxBy(), "item"),
        lambda orders: orders.groupBy("customer").agg(f.max_by("item", "cents").alias("item")),
        GROUPS,
    ),
    f"the first {FIRST} by cents": (
        lambda orders: orders.apply_assembly(FirstN(FIRST, "cents", reverse=True)),
        lambda orders: orders.orderBy(f.desc("cents")).limit(FIRST),
        FIRST,
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.choices", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    spark = session()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, given.rows)
        for what, (of_ours, of_spark, expected) in CHOICES.items():
            ways = {"Spark's own": plain(spark, folder, of_spark), "ours": ours(spark, folder, of_ours)}
            table = compared(ways, expected, rows=given.rows, runs=given.runs, to="Spark's own")
            print(f"{what}, of {given.rows:,} rows, n = {given.runs}\n")
            print("\n".join(table), end="\n\n")
    spark.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
