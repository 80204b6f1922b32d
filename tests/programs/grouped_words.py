"""Count words in one process: ``python -m tests.programs.grouped_words HOSTS ROOT FOLDER GROUP``: by a drain that takes
so many transactions at a time (a number, or ``auto``), or, with ``runner``, one after the other as a notebook does.

Two states in two databases and nothing behind them: what the crash tests of groups kill and run again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from airflow_trident import Count, FixedBatchSpout, SqliteState, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.drains.drain import Drain, DrainLimits
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.phases import Attempts
from tools import kills

WORDS = [f"word{number % 7}" for number in range(48)]
TRANSACTIONS = 12


def topology(folder: Path) -> Topology:
    made = Topology("grouped_words")
    words = made.new_stream("words", FixedBatchSpout("word string", WORDS, 4)).group_by("word")
    for name in ("one", "two"):
        words.persistent_aggregate(SqliteState(str(folder / f"{name}.db")), Count(), "n", name=name)
    return made


def contents(folder: Path) -> dict[str, dict[str, int]]:
    """What the states hold."""
    found: dict[str, dict[str, int]] = {}
    for name, spec in topology(folder).states.items():
        with spec.factory.make_state(spec) as state:
            found[name] = {key: count for (key,), (count,) in state.items()}
    return found


def main(hosts: str, root: str, folder: str, group: str) -> None:
    made, staging = topology(Path(folder)), f"{folder}/staging"
    with open_ledger(ZooKeeperSettings(hosts=hosts), made.name, root=root) as ledger, LocalEngine() as engine:
        if group == "runner":
            LocalRunner(ledger=ledger, topology=made, engine=engine, staging_root=staging).run()
            return
        Drain(
            ledger=ledger,
            topology=made,
            engine=engine,
            staging_root=staging,
            attempts=Attempts(owner="drain"),
            claim=Claim(key="drain"),
            limits=DrainLimits(group=group),
        ).run()


if __name__ == "__main__":
    kills.install()
    main(*sys.argv[1:])
