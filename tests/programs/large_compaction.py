"""Compacts a table of upserts with many keys: ``python -m tests.programs.large_compaction FOLDER HOW TRANSACTIONS``.

HOW: "spark", or "here" for this process alone. Prints how much memory the process took at most besides what it had
before, in megabytes, and how many rows are left.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_trident import FixedBatchSpout, ParquetTable, Topology
from airflow_trident.contracts.staged_batch import StagedFiles
from airflow_trident.contracts.state import StateSpec
from airflow_trident.contracts.upkeep import Upkeep
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.sessions.local import LocalSessions
from airflow_trident.runtime.upkeep import keep_up
from tests.fixtures.state import ticket

ROWS = 250_000
"""Of each transaction. Half of its keys come again in the next one."""


def spec_of(folder: Path) -> StateSpec:
    topology = Topology("large")
    stream = topology.new_stream("rows", FixedBatchSpout("id long, customer string, cents long", []))
    stream.persist_table(ParquetTable(str(folder / "table")), mode="upsert", keys="id", name="state")
    return topology.states["state"]


def filled(folder: Path, transactions: int) -> StateSpec:
    spec = spec_of(folder)
    with spec.factory.make_state(spec) as state:
        for txid in range(1, transactions + 1):
            ids = np.arange(ROWS, dtype=np.int64) + (txid - 1) * ROWS // 2
            customer = pa.DictionaryArray.from_arrays(
                pa.array(ids % 7, pa.int32()), [f"customer {n}" for n in range(7)]
            )
            columns = [ids, customer.cast(pa.string()), ids * 10 + txid, np.full(ROWS, txid)]
            path = folder / f"{txid}.parquet"
            pq.write_table(pa.table(columns, names=["id", "customer", "cents", "_txid"]), path)
            files = StagedFiles(paths=(str(path),), num_rows=ROWS)
            state.apply_files(ticket(txid, topology="large"), files)
    return spec


def peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def main(folder: Path, how: str, transactions: int) -> None:
    spec = filled(folder, transactions)
    if how == "spark":
        with SparkEngine(LocalSessions("local[2]", conf={"spark.driver.memory": "1g"})) as engine:
            before = peak_mb()
            keep_up(spec, Upkeep.COMPACT, print, engine=engine, staging_root=str(folder / "staging"))
    else:
        before = peak_mb()
        keep_up(spec, Upkeep.COMPACT, print)
    found = ParquetTable(str(folder / "table")).dataset()
    print(peak_mb() - before, found.count_rows())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
