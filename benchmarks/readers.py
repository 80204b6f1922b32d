"""`python -m benchmarks.readers`: CSV and JSON files for the same transform on one session, read as `FileSpout` reads
them, by Arrow in Spark's Python workers, and by Spark's own readers.

Spark's readers come in by a `DataFrameSpout`, and refuse what they cannot read, as ours do.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv

from airflow_trident import DataFrameSpout, FileSpout, MemoryState, Topology
from benchmarks.peers import session
from benchmarks.ways import compared, staged_count

FILES, CUSTOMERS = 4, 1_000
FIELDS = "at timestamp, customer string, cents long"
GIVEN = "customer string, cents long, orders long"


def write(folder: Path, rows: int) -> None:
    """The same rows in both formats."""
    for part in range(FILES):
        numbers = range(part, rows, FILES)
        at = [f"2026-03-{1 + number % 28:02}T12:{number % 60:02}:00.000000Z" for number in numbers]
        customers = [f"customer {number % CUSTOMERS}" for number in numbers]
        cents = [number * 104_729 % 1_000_003 for number in numbers]
        table = pa.table({"at": at, "customer": customers, "cents": cents})
        for name in ("csv", "json"):
            (folder / name).mkdir(exist_ok=True)
        pa_csv.write_csv(table, folder / "csv" / f"{part}.csv")
        with (folder / "json" / f"{part}.json").open("w") as file:
            file.writelines(json.dumps(row) + "\n" for row in table.to_pylist())


def summed(orders: Any) -> Any:
    from pyspark.sql import functions as f

    return (
        orders.where("at > '2026-01-01'")
        .groupBy("customer")
        .agg(f.sum("cents").alias("cents"), f.count("*").alias("orders"))
    )


def by_spark(folder: Path, kind: str) -> DataFrameSpout:
    def read(spark: Any, _position: Any) -> Any:
        options = {"header": "true"} if kind == "csv" else {}
        return spark.read.options(mode="FAILFAST", **options).schema(FIELDS).format(kind).load(f"{folder}/{kind}")

    return DataFrameSpout(read, lambda previous: 1 if previous is None else None, fields=FIELDS)


def way(spark: Any, spout: Any) -> Callable[[], int]:
    topology = Topology("readers")
    made = topology.new_stream("orders", spout).transform(summed, GIVEN)
    made.partition_persist(MemoryState(), "customer, cents, orders", keys="customer", name="sums")
    topology.compile()  # once, and outside of what is measured
    metadata = {"orders": spout.coordinator().initialize_transaction(1, None)}
    return partial(staged_count, spark, topology, metadata)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readers", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    spark = session(conf={"spark.sql.session.timeZone": "UTC"})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, given.rows)
        print(f"{given.rows:,} rows in {FILES} files, n = {given.runs}")
        for kind in ("csv", "json"):
            ours = FileSpout(f"{folder}/{kind}/*", format=kind, fields=FIELDS, max_bytes=2**40)
            ways = {f"{kind} by Arrow": way(spark, ours), f"{kind} by Spark": way(spark, by_spark(folder, kind))}
            expected = min(given.rows, CUSTOMERS)
            lines = compared(ways, expected, rows=given.rows, runs=given.runs, to=f"{kind} by Arrow")
            print("\n" + "\n".join(lines), flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
