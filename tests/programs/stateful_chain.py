"""Runs a chain of stateful functions: ``python -m tests.programs.stateful_chain HOSTS ROOT FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.runtime.local import LocalRunner
from tests.seeds.stateful_words import topology
from tools import kills


def main(hosts: str, root: str, folder: str) -> None:
    made = topology(Path(folder))
    with open_ledger(ZooKeeperSettings(hosts=hosts), made.name, root=root) as ledger, LocalEngine() as engine:
        LocalRunner(ledger=ledger, topology=made, engine=engine, staging_root=f"{folder}/staging").run()


if __name__ == "__main__":
    kills.install()
    main(*sys.argv[1:])
