"""Applies one staged batch with little memory:
``python -m tests.programs.large_commit KIND FOLDER HOW MEGABYTES ROOT``.

It works as a committer, with everything that a committer needs. HOW: "as it comes", or "whole", as one table. ROOT: of
the staged batch.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pyarrow.parquet  # noqa: F401 - before the limit is set: its libraries need more than that

from airflow_trident import Count, DeltaTable, FileSink, FixedBatchSpout, SqliteState, Sum, TableSink, Topology
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.plan.nodes import PersistNode
from airflow_trident.runtime.staged_batches import apply_batch, rows_of, staged_batches
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Slot
from tests.fixtures.postgres import CONN_ID, postgres_state
from tests.fixtures.state import ticket

SLOT = Slot(topology="large", incarnation="i1", txid=2, attempt=0)


def topology_of(kind: str, folder: Path) -> Topology:
    topology = Topology("large")
    stream = topology.new_stream("rows", FixedBatchSpout("key string, n long", []))
    if kind == "rows in PostgreSQL":
        stream.partition_persist(TableSink(CONN_ID, schema="large", table="rows"), "key, n", name="state")
    elif kind == "files":
        stream.partition_persist(FileSink(str(folder / "out"), format="json"), "key, n", name="state")
    elif kind == "a table":
        stream.persist_table(DeltaTable(str(folder / "table")), name="state")
    else:
        store = SqliteState(str(folder / "state.db")) if kind == "SQLite" else postgres_state(folder)
        stream.group_by("key").persistent_aggregate(store, ("n", Sum(), "total"), (Count(), "count"), name="state")
    return topology


def sink_of(topology: Topology) -> PersistNode:
    (sink,) = topology.compile().sinks
    return sink


def main(kind: str, folder: Path, how: str, megabytes: int, root: str) -> None:
    topology = topology_of(kind, folder)
    sink, area = sink_of(topology), StagingArea(root)
    manifest = area.load(SLOT)
    with sink.state.factory.make_state(sink.state) as state:
        state.apply(ticket(1, topology="large"), arrow_schema(sink.schema).empty_table())
        status = Path("/proc/self/status").read_text().splitlines()
        used = next(int(line.split()[1]) for line in status if line.startswith("VmData"))
        most = used * 1024 + megabytes * 2**20
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        now = ticket(2, topology="large")
        batch = staged_batches(area, manifest, now, topology.compile())[sink.name]
        print(apply_batch(state, now, rows_of(batch) if how == "whole" else batch))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5])
