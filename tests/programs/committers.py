"""Runs Storm's TransactionalWords in one process: ``python -m tests.programs.committers HOSTS ROOT FOLDER``.

It has two committers with databases of their own, one after the other. Crash tests kill it and run it again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.runtime.local import LocalRunner
from tests.seeds import words
from tests.seeds.database import Database
from tools import kills


def databases(folder: Path) -> tuple[Database, Database]:
    return Database(str(folder / "counts.db")), Database(str(folder / "buckets.db"))


def main(hosts: str, root: str, folder: str) -> None:
    made = words.builder(*databases(Path(folder))).build()
    with open_ledger(ZooKeeperSettings(hosts=hosts), made.name, root=root) as ledger, LocalEngine() as engine:
        LocalRunner(ledger=ledger, topology=made, engine=engine, staging_root=f"{folder}/staging").run()


if __name__ == "__main__":
    kills.install()
    main(*sys.argv[1:])
