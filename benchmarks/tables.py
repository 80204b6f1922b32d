"""`python -m benchmarks.tables`: rows appended to a table, by a commit of staged files and by the library's own write.

Both begin with the same rows in memory and end with a table that has them. Ours writes and syncs the staged files, as
an executor does, a file on each core, and commits them by reference. The library writes its files with what threads it
takes, and commits them, without a sync.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
from pyiceberg.catalog import load_catalog

from airflow_trident import DeltaTable, IcebergTable
from airflow_trident.contracts.state import StagedFiles, StateSpec
from airflow_trident.io.place import PosixPlace
from airflow_trident.protocol.records import CommitTicket, StagedRef
from airflow_trident.staging.area import write_part
from airflow_trident.staging.manifest import Slot
from airflow_trident.types import parse_declared
from benchmarks.ways import compared

FIELDS = parse_declared("id long, customer string, cents long")
FILES = 4
MANY_FILES = 30


def batch(rows: int) -> pa.Table:
    ids = pa.array(range(rows), pa.int64())
    customers = pa.array([f"customer {number * 7_919 % 100_003}" for number in range(rows)])
    cents = pa.array([number * 104_729 % 1_000_003 for number in range(rows)], pa.int64())
    return pa.table({"id": ids, "customer": customers, "cents": cents})


def spec_of(factory: Any) -> StateSpec:
    return StateSpec(topology="sales", name="rows", keys=(), values=FIELDS, staged=FIELDS, factory=factory)


def append(state: Any, txid: int, table: pa.Table, folder: Path, files: int = FILES) -> int:
    """Stages the rows in so many files and commits them; the number of rows."""
    step = -(-table.num_rows // files)
    slot = Slot(topology="sales", incarnation="none", txid=txid, attempt=0)
    storage = PosixPlace(str(folder / "staging"))
    slices = [table.slice(first, step) for first in range(0, table.num_rows, step)]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as cores:
        parts = list(cores.map(lambda rows: write_part(storage, slot, "rows", rows, by_reference=True), slices))
    ticket = CommitTicket(
        topology="sales",
        incarnation="none",
        txid=txid,
        attempt=0,
        fence=txid,
        position={"to": txid},
        staged=StagedRef(manifest="", rows_read=0, rows={}, bytes=0),
    )
    footers = {storage.at(one.path): one.footer for one in parts}
    state.apply_files(ticket, StagedFiles(paths=tuple(footers), num_rows=table.num_rows, footers=footers))
    return sum(one.rows for one in parts)


def ours(factory: Any, table: pa.Table, folder: Path) -> Callable[[], int]:
    state, txids = factory.make_state(spec_of(factory)), count(1)
    return lambda: append(state, next(txids), table, folder)


def by_deltalake(table: pa.Table, folder: Path) -> Callable[[], int]:
    def run() -> int:
        before = 0
        if (folder / "theirs").exists():
            before = deltalake.DeltaTable(str(folder / "theirs")).to_pyarrow_dataset().count_rows()
        deltalake.write_deltalake(str(folder / "theirs"), table, mode="append")
        return int(deltalake.DeltaTable(str(folder / "theirs")).to_pyarrow_dataset().count_rows()) - before

    return run


def by_pyiceberg(table: pa.Table, properties: dict[str, str]) -> Callable[[], int]:
    catalog = load_catalog("theirs", **properties)
    catalog.create_namespace_if_not_exists("sales")
    theirs = catalog.create_table("sales.theirs", table.schema)

    def run() -> int:
        theirs.append(table)
        return int(theirs.current_snapshot().summary["added-records"])

    return run


def requests(folder: Path) -> Iterator[str]:
    """A table: what one commit into a bucket writes and reads, for batches of one file and of many."""
    from tests.fixtures.object_store import CONN_ID, VARIABLE, Lake, ObjectServer, connection, make_bucket

    server = ObjectServer()
    try:
        os.environ[VARIABLE] = connection(server.url, read_timeout_s=30)
        lake = Lake(make_bucket(server.direct), server)
        catalog = {"type": "sql", "uri": f"sqlite:///{folder}/lake.db", "warehouse": f"s3://{CONN_ID}@{lake.name}/w"}
        tables: tuple[Any, ...] = (
            DeltaTable(f"s3://{lake.name}/delta", conn_id=CONN_ID),
            IcebergTable("sales.counted", properties=catalog),
        )
        yield "| table | files of the batch | objects written besides | reads |"
        yield "|---|---|---|---|"
        for factory in tables:
            with factory.make_state(spec_of(factory)) as state:
                for txid, files in enumerate((1, 1, MANY_FILES, 1), 1):
                    lake.asked_by_a_commit()
                    append(state, txid, batch(1_000), folder, files)
                    written, reads = lake.asked_by_a_commit()
                    if txid > 1:  # the first one makes the table
                        yield f"| {factory.describe().split('(')[0]} | {files} | {len(written)} | {reads} |"
    finally:
        server.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="of each append (10,000,000 take 1 GB of memory)")
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    table = batch(given.rows)
    print(f"{given.rows:,} rows, n = {given.runs}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
        pairs = {
            "deltalake": (by_deltalake(table, folder), DeltaTable(f"{folder}/delta")),
            "pyiceberg": (by_pyiceberg(table, catalog), IcebergTable("sales.ours", properties=catalog)),
        }
        for library, (theirs, factory) in pairs.items():
            ways = {library: theirs, factory.describe().split("(")[0]: ours(factory, table, folder)}
            print("\n" + "\n".join(compared(ways, given.rows, rows=given.rows, runs=given.runs, to=library)))
        print("\n" + "\n".join(requests(folder)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
