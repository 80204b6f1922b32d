"""Keeps a table with one row of each key: ``python -m tests.programs.rewritten_table HOSTS ROOT FOLDER [drain]``.

Every batch has the key 0, and keys of its own. Crash tests kill it, write to the table, and run it again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from airflow_trident import FixedBatchSpout, ParquetTable, Topology
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


def topology(folder: Path) -> Topology:
    made = Topology("words")
    rows = made.new_stream("rows", FixedBatchSpout(FIELDS, ROWS, 3))
    rows.persist_table(ParquetTable(str(folder / "sales")), mode="rewrite", keys="id", deleted="gone")
    return made


def main(hosts: str, root: str, folder: str, drain: str = "") -> None:
    made, staging = topology(Path(folder)), f"{folder}/staging"
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
