"""Processes and commits one batch of very many rows: ``python -m tests.programs.gigabyte KIND FOLDER ROWS MEGABYTES``.

The whole process, libraries included, may take that much memory, and prints how much it took. It stages the files piece
by piece, as workers do, and commits them by a committer, with the ledger's verbs between.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import load_catalog

from airflow_trident import DeltaTable, FixedBatchSpout, IcebergTable, TableSink, Topology
from airflow_trident.engine.engine import Engine, Job
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.phases import Attempts, coordinate, process
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest
from tests.fixtures.postgres import CONN_ID, running

KINDS = ("Delta", "Iceberg", "PostgreSQL")
"""Into tables by reference, and copied into PostgreSQL."""
FIELDS = "id long, customer string, cents long"
ROWS_OF_A_FILE = 250_000


def catalog_of(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


def topology_of(kind: str, folder: Path) -> Topology:
    topology = Topology("large")
    stream = topology.new_stream("rows", FixedBatchSpout(FIELDS, [(0, "", 0)], 1))
    if kind == "PostgreSQL":
        stream.partition_persist(
            TableSink(CONN_ID, schema="gigabyte", table="rows"), "id, customer, cents", name="state"
        )
    elif kind == "Delta":
        stream.persist_table(DeltaTable(str(folder / "table")), name="state")
    else:
        stream.persist_table(IcebergTable("sales.rows", properties=catalog_of(folder)), name="state")
    return topology


def found(kind: str, folder: Path) -> tuple[int, int]:
    """How many rows the table has, and the sum of their ids."""
    if kind == "PostgreSQL":
        with running().connect() as connection:
            counted, total = connection.execute("SELECT count(*), sum(id) FROM gigabyte.rows").fetchone() or (0, 0)
            return int(counted), int(total)
    if kind == "Delta":
        ids = deltalake.DeltaTable(str(folder / "table")).to_pyarrow_dataset().to_table(["id"])
    else:
        table = load_catalog("default", **catalog_of(folder)).load_table("sales.rows")
        ids = table.scan(selected_fields=("id",)).to_arrow()
    return ids.num_rows, pc.sum(ids["id"]).as_py()


class ManyRows(Engine):
    """Stages rows of its own, whatever the batch is."""

    name = "many rows"

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def run(self, job: Job) -> Manifest:
        (sink,) = job.plan.sinks
        area, files = StagingArea(job.staging_root), []
        for first in range(0, self._rows, ROWS_OF_A_FILE):
            ids = np.arange(first, min(first + ROWS_OF_A_FILE, self._rows), dtype=np.int64)
            customers = pc.binary_join_element_wise("customer", pc.cast(pa.array(ids % 100_003), pa.string()), " ")
            table = pa.table([ids, customers, ids % 1_000_003], schema=arrow_schema(sink.schema))
            files.append(area.write(job.slot, sink.name, table))
        sinks = job.plan.staged_fields
        return Manifest(slot=job.slot, files=tuple(files), rows_read=self._rows, sinks=sinks)


def main(kind: str, folder: Path, rows: int, megabytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (megabytes * 2**20, megabytes * 2**20))
    topology, ledger, engine = topology_of(kind, folder), MemoryLedger("large"), ManyRows(rows)
    attempts, staging = Attempts(owner="test"), str(folder / "staging")
    ledger.register(topology.definition())
    coordinate(ledger, topology, [Claim(key="run")])
    process(ledger, topology, 1, engine, staging, attempts)
    committer = Committer(
        ledger=ledger, topology=topology, staging_root=staging, attempts=attempts, engine=lambda: engine
    )
    committer.commit(1)
    (record,) = ledger.transactions()
    print(record.status.value, _peak_megabytes())


def _peak_megabytes() -> int:
    """Resident."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) // 1024


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
