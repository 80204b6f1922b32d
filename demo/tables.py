"""``python -m demo.tables``: what ``make demo-tables`` runs."""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import random
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from airflow_trident.protocol.records import Status, TxRecord
from airflow_trident.runtime.milestones import Milestone
from demo.folder import VARIABLE, DemoFolder, folder_from_environment
from demo.kills import Kill
from demo.perform import perform
from demo.report import compare, show_kills, show_ledger
from demo.screen import Screen
from demo.story import Play

DEFAULT_NAME = ".trident-tables"
FILES, ORDERS_OF_A_FILE = 4, 5000
CUSTOMERS = [f"customer-{number}" for number in range(40)]
BIG_CENTS = 100
DESCRIPTION = f"""\
Two DAGs sum the same orders: one by a function over DataFrames and by SQL, one by a PySpark script that spark-submit
starts. Each fills a Delta and an Iceberg table, through a real Airflow, Spark and ZooKeeper. Tasks are killed with
SIGKILL, one of them between its two tables; a run is cleared while it works, and one when all is done. In the end every
row of the four tables, as deltalake, pyiceberg and Spark read them, is compared with a plain loop over the orders.

Needs: pip install "airflow-trident[spark,delta,iceberg]". Everything is in one folder, {DEFAULT_NAME} in the current
one (or where {VARIABLE} says); only 127.0.0.1 is used. Run it again and it goes on where it stopped; delete the folder
to begin anew. Takes a few minutes.
"""


class Tables(Play):
    """Orders become a Delta table with sums by day and customer, and an Iceberg table with the big sums."""

    transactions = FILES
    lines = "orders"
    staged = "rows"
    clears = 3
    delta: str
    """Folder of the Delta table, below the demonstration's folder."""
    iceberg: str
    """Name of the Iceberg table."""

    def __init__(self) -> None:
        self.kills = (
            Kill(
                name=f"{self.dag}-emitter",
                dag=self.dag,
                point=Milestone.STAGED,
                txid=2,
                story="SIGKILL to the task that processed it: what Spark wrote was staged, but not published",
            ),
            Kill(
                name=f"{self.dag}-committer",
                dag=self.dag,
                point=Milestone.APPLIED,
                txid=4,
                story="SIGKILL to the task that committed it: the Delta table had the batch, the Iceberg table had not",
            ),
        )

    def prepare(self, folder: DemoFolder, stack: ExitStack) -> str:
        place, made = orders_folder(folder), not orders_folder(folder).exists()
        if made:
            write_orders(place)
        what = f"{FILES} files, {FILES * ORDERS_OF_A_FILE:,} generated orders in {place.name}/, for {self.dag}"
        return what + ("" if made else " (the same ones)")

    def environment(self, folder: DemoFolder) -> Mapping[str, str]:
        return {"AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"})}

    def report(self, screen: Screen, folder: DemoFolder, records: Mapping[int, TxRecord]) -> bool:
        screen.title(f"DAG {self.dag}: {self.story}")
        show_ledger(screen, records, read="orders", staged="rows staged")
        show_kills(screen, folder, records, self.kills)
        if self.cleared(folder).exists():
            screen.line(f"  tx {self.clears}  its run was cleared while it worked;")
            screen.line(f"        attempt {records[self.clears].attempt} is the one that counts.")
        daily, big = plain_sums(folder)
        tables = (("Delta", self._delta(folder), daily), ("Iceberg", self._iceberg(folder), big))
        equal = True
        for kind, readers, plain in tables:
            for reader, rows in readers.items():
                screen.line(f"\n  the {kind} table as {reader} reads it")
                equal &= compare(screen, Counter(rows), plain, "rows", "orders")
        return equal and all(record.status is Status.COMMITTED for record in records.values())

    def _delta(self, folder: DemoFolder) -> dict[str, list[str]]:
        import deltalake

        table = deltalake.DeltaTable(str(folder.root / self.delta))
        rows = table.to_pyarrow_table().to_pylist()
        return {"deltalake": list(map(row_text, rows)), "Spark": read_by_spark(folder, table.file_uris())}

    def _iceberg(self, folder: DemoFolder) -> dict[str, list[str]]:
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog(
            "default", type="sql", uri=f"sqlite:///{folder.root}/catalog.db", warehouse=f"file://{folder.root}/lake"
        )
        with closing(catalog):
            scan = catalog.load_table(self.iceberg).scan()
            files = [task.file.file_path for task in scan.plan_files()]
            rows = scan.to_arrow().to_pylist()
        return {"pyiceberg": list(map(row_text, rows)), "Spark": read_by_spark(folder, files)}


class Job(Tables):
    dag = "spark_job"
    dag_files = ("spark_job.py",)
    story = "a function over DataFrames, and SQL"
    delta, iceberg = "lake/daily", "sales.big"


class Scripted(Tables):
    dag = "spark_script"
    dag_files = ("spark_script.py", "components/daily.py")
    story = "a PySpark script by spark-submit"
    delta, iceberg = "lake/scripted", "sales.scripted"


# ---- the orders ------------------------------------------------------------------------------------------------


def orders_folder(folder: DemoFolder) -> Path:
    return folder.root / "timed"


def write_orders(place: Path) -> None:
    """Write all files. The folder only exists once it is complete."""
    chance, partial = random.Random(42), place.with_name(f"{place.name}.partial")
    partial.mkdir(exist_ok=True)
    begin = datetime.datetime(2026, 3, 1)
    for number in range(FILES):
        with open(partial / f"orders-{number}.csv", "w", newline="", encoding="utf-8") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(("at", "customer", "cents"))
            for _ in range(ORDERS_OF_A_FILE):
                at = begin + datetime.timedelta(seconds=chance.randrange(30 * 86_400))
                out.writerow((f"{at.isoformat()}Z", chance.choice(CUSTOMERS), chance.randint(1, 60)))
    partial.rename(place)


def plain_sums(folder: DemoFolder) -> tuple[Counter[str], Counter[str]]:
    """The rows that both tables must have, by plain loops. Each file is a batch with its own sums."""
    daily, big = Counter[str](), Counter[str]()
    for path in sorted(orders_folder(folder).iterdir()):
        sums = Counter[tuple[str, str]]()
        with open(path, encoding="utf-8") as file:
            for at, customer, cents in list(csv.reader(file))[1:]:
                sums[at[:10], customer] += int(cents)
        daily.update(f"{day} {customer} {cents}" for (day, customer), cents in sums.items())
        big.update(f"{customer} {cents}" for (_, customer), cents in sums.items() if cents >= BIG_CENTS)
    return daily, big


def row_text(row: Mapping[str, Any]) -> str:
    return " ".join(str(row[name]) for name in ("day", "customer", "cents") if name in row)


def read_by_spark(folder: DemoFolder, files: Iterable[str]) -> list[str]:
    """The rows of a table's files, by Spark's own Parquet reader: neither format has a jar for Spark 4.2."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", str(folder.work))
        .getOrCreate()
    )
    return [row_text(row.asDict()) for row in spark.read.parquet(*files).collect()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 if all rows are equal, 1 if not or on an error, 130 if interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m demo.tables", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", action="store_true", help="leave Airflow running in the end, until Ctrl-C")
    given = parser.parse_args(arguments)
    return perform([Job(), Scripted()], folder_from_environment(DEFAULT_NAME), keep=given.keep)


if __name__ == "__main__":
    sys.exit(main())
