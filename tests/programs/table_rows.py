"""Writes rows into a table: ``python -m tests.programs.table_rows HOSTS ROOT FOLDER KIND MODE [drain]``.

Every batch has the key 0, and keys of its own. Crash tests kill it, write to the table, and run it again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from airflow_trident import DeltaTable, FixedBatchSpout, IcebergTable, Topology
from airflow_trident.contracts.state import StateFactory
from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.phases import Attempts
from tools import kills

FIELDS = "id long, word string, gone boolean"
TRANSACTIONS = 5
ROWS = [
    row
    for txid in range(1, TRANSACTIONS + 1)
    for row in [(0, f"of {txid}", None), (txid, f"first {txid}", None), (txid - 1 or 99, f"again {txid}", txid == 3)]
]
MODES: dict[str, dict[str, Any]] = {"append": {}, "overwrite": {}, "rewrite": {"keys": "id", "deleted": "gone"}}
"""Mode -> its other arguments. `overwrite` has a partition for each key."""


def table_of(kind: str, mode: str, folder: Path) -> StateFactory:
    partition_by = ("id",) if mode == "overwrite" else ()
    if kind == "delta":
        return DeltaTable(str(folder / "sales"), partition_by=partition_by)
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    return IcebergTable("sales.orders", properties=properties, partition_by=partition_by)


def topology(folder: Path, kind: str, mode: str) -> Topology:
    made = Topology("words")
    rows = made.new_stream("rows", FixedBatchSpout(FIELDS, ROWS, 3))
    rows.persist_table(table_of(kind, mode, folder), mode=mode, **MODES[mode])
    return made


def main(hosts: str, root: str, folder: str, kind: str, mode: str, drain: str = "") -> None:
    made, staging = topology(Path(folder), kind, mode), f"{folder}/staging"
    with open_ledger(ZooKeeperSettings(hosts=hosts), made.name, root=root) as ledger, LocalEngine() as engine:
        if drain:
            Drain(
                ledger=ledger,
                topology=made,
                engine=engine,
                staging_root=staging,
                attempts=Attempts(owner="drain"),
                claim=Claim(key="drain"),
            ).run()
            return
        LocalRunner(ledger=ledger, topology=made, engine=engine, staging_root=staging).run()


if __name__ == "__main__":
    kills.install()
    main(*sys.argv[1:])
