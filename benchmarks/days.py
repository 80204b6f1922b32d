"""`python -m benchmarks.days`: topologies that are bound to days, beside plain Spark on the same session.

Many missing days in one drain, with a ledger in a real ZooKeeper, beside one plain job over all of them; both write the
sum of each shop and day into SQLite with full sync. One large day into a Delta table by day, beside a plain job that
replaces the day by `replaceWhere`. All read the same Parquet files. And a look at an unchanged day of very many files,
beside the listing of its folder.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_trident import DeltaTable, FileSpout, Partitions, SqliteState, Sum, Topology
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.sessions.session import GivenSession
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.runtime.local import LocalRunner
from benchmarks.peers import session
from benchmarks.ways import compared
from tests.fixtures.delta_spark import delta_settings

BEGIN = date(2024, 1, 1)
SHOPS = 100


def keys(days: int) -> list[str]:
    return [(BEGIN + timedelta(days=number)).isoformat() for number in range(days)]


def write(folder: Path, days: int, rows: int) -> int:
    """A file for each day. Returns the sum of all cents."""
    total = 0
    for number, key in enumerate(keys(days)):
        cents = [(number + row) * 104_729 % 10_007 for row in range(rows)]
        shops = [f"shop {row * 7_919 % SHOPS}" for row in range(rows)]
        path = folder / f"day={key}" / "orders.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"shop": shops, "cents": pa.array(cents, pa.int64())}), path)
        total += sum(cents)
    return total


def topology_of(folder: Path) -> tuple[Topology, Any]:
    topology = Topology(f"days-{uuid.uuid4().hex[:8]}", partitions=Partitions("day", begin=BEGIN.isoformat()))
    spout = FileSpout(f"{folder}/day={{partition}}/*.parquet", format="parquet", fields="shop string, cents long")
    return topology, topology.new_stream("orders", spout)


def run(topology: Topology, spark: Any, hosts: str, named: list[str]) -> int:
    """Does these days. Returns how many transactions were committed."""
    settings = ZooKeeperSettings(hosts=hosts)
    with tempfile.TemporaryDirectory() as staging, open_ledger(settings, topology.name, root="/benchmark") as ledger:
        engine = SparkEngine(GivenSession(spark))
        runner = LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=staging)
        return len(runner.run(partitions=named))


# ---- many days into a database ---------------------------------------------------------------------------------


def drained(spark: Any, hosts: str, folder: Path, days: int) -> Callable[[], int]:
    def drain() -> int:
        with tempfile.TemporaryDirectory() as states:
            topology, orders = topology_of(folder)
            state = SqliteState(f"{states}/shop.db")
            orders.group_by("day, shop").persistent_aggregate(state, "cents", Sum(), "cents", name="sales")
            assert run(topology, spark, hosts, keys(days)) == days
            (spec,) = topology.states.values()
            with spec.factory.make_state(spec) as opened:
                return sum(cents for _, (cents,) in opened.items())

    return drain


def at_once(spark: Any, folder: Path) -> Callable[[], int]:
    def job() -> int:
        rows = spark.read.parquet(str(folder)).groupBy("day", "shop").sum("cents").toArrow().to_pylist()
        with tempfile.TemporaryDirectory() as states, closing(sqlite3.connect(f"{states}/shop.db")) as database:
            database.execute("PRAGMA synchronous = FULL")
            database.execute("CREATE TABLE sales (day TEXT, shop TEXT, cents INTEGER, PRIMARY KEY (day, shop))")
            values = [(str(row["day"]), row["shop"], row["sum(cents)"]) for row in rows]
            database.executemany("INSERT INTO sales VALUES (?, ?, ?)", values)
            database.commit()
            (total,) = database.execute("SELECT sum(cents) FROM sales").fetchone()
            return int(total)

    return job


# ---- a large day into a table ----------------------------------------------------------------------------------


def bound(spark: Any, hosts: str, folder: Path, table: str) -> Callable[[], int]:
    topology, orders = topology_of(folder)
    orders.persist_table(DeltaTable(table, partition_by="day"), name="orders")

    def redo() -> int:
        assert run(topology, spark, hosts, keys(1)) == 1
        return rows_of(table)

    return redo


def replaced(spark: Any, folder: Path, table: str) -> Callable[[], int]:
    def job() -> int:
        (key,) = keys(1)
        frame = spark.read.parquet(f"{folder}/day={key}").selectExpr("*", f"DATE'{key}' AS day")
        writer = frame.write.format("delta").partitionBy("day").mode("overwrite")
        writer.option("replaceWhere", f"day = '{key}'").save(table)
        return rows_of(table)

    return job


def rows_of(table: str) -> int:
    return int(deltalake.DeltaTable(table).to_pyarrow_dataset().count_rows())


# ---- a look at a day of very many files ------------------------------------------------------------------------


def looks(folder: Path, files: int, runs: int) -> str:
    """A look at an unchanged day, beside the listing of its folder, in turn."""
    (key,) = keys(1)
    day = folder / f"day={key}"
    day.mkdir(parents=True)
    for number in range(files):
        (day / f"{number:06}.json").write_text('{"shop": "a", "cents": 1}\n')
    days = Partitions("day", begin=BEGIN.isoformat())
    spout = FileSpout(f"{folder}/day={{partition}}/*.json", format="json", fields="shop string, cents long").bound(days)
    partition, coordinator = days.parse(key), spout.coordinator()
    recorded = coordinator.partition(partition)
    ways = {
        "listing": lambda: spout.source_at(spout.path.of(partition)).list(),
        "look": lambda: coordinator.partition(partition, recorded),
    }
    seconds = {name: list[float]() for name in ways}
    for _ in range(runs):
        for name, way in ways.items():
            begin = time.process_time()
            way()
            seconds[name].append(time.process_time() - begin)
    listing, look = (statistics.median(seconds[name]) for name in ways)
    return f"listing {listing * 1e3:.0f} ms of CPU, look {look * 1e3:.0f} ms: {look / listing:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=400)
    parser.add_argument("--rows", type=int, default=10_000, help="of each of the many days")
    parser.add_argument("--large", type=int, default=1_000_000, help="rows of the large day")
    parser.add_argument("--files", type=int, default=20_000, help="of the day that is looked at")
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trident-look-") as path:
        print(f"a look at an unchanged day of {given.files:,} files; goal: at most 1.3 of the listing")
        print(looks(Path(path), given.files, given.runs), flush=True)
    spark = session(conf=delta_settings())
    with tempfile.TemporaryDirectory(prefix="trident-days-") as path:
        folder = Path(path)
        server = EmbeddedZooKeeper(folder / "zookeeper", heap_mb=512)
        server.start()
        try:
            total = write(folder / "many", given.days, given.rows)
            ways = {"plain": at_once(spark, folder / "many")}
            ways["drain"] = drained(spark, server.hosts, folder / "many", given.days)
            print(f"{given.days} missing days of {given.rows:,} rows; goal: at most 1.6")
            print(
                "\n".join(compared(ways, total, rows=given.days * given.rows, runs=given.runs, to="plain")), flush=True
            )
            write(folder / "large", 1, given.large)
            ways = {"plain": replaced(spark, folder / "large", f"{folder}/plain")}
            ways["bound"] = bound(spark, server.hosts, folder / "large", f"{folder}/bound")
            print(f"a day of {given.large:,} rows into a Delta table by day, done again; goal: at most 1.15")
            print("\n".join(compared(ways, given.large, rows=given.large, runs=given.runs, to="plain")), flush=True)
        finally:
            server.stop()
            spark.stop()


if __name__ == "__main__":
    main()
