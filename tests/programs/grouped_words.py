"""Count words in one process: ``python -m tests.programs.grouped_words HOSTS ROOT FOLDER GROUP [HOW ...]``: by a drain
that takes so many transactions at a time (a number, or ``auto``), or, with ``runner``, one after the other as a
notebook does. HOW: ``halves``: passes with transaction 3 and others fail, so that they are run again in halves;
``lossy``: of four steps of the ledger one is lost, and of one the answer.

Two states in two databases and nothing behind them: what the crash tests of groups kill and run again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from airflow_trident import Count, FixedBatchSpout, SqliteState, Topology
from airflow_trident.engine.base import Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import OutcomeUnknownError, SparkJobError
from airflow_trident.ledger.znode_ledger import ZNodeLedger
from airflow_trident.ledger.znodes import Op
from airflow_trident.ledger.zookeeper.client import ZooKeeperZNodes
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.drains.drain import Drain, DrainLimits
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.phases import Attempts
from airflow_trident.staging.manifest import Manifest
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


class Halves(LocalEngine):
    """Gets by with transaction 3 if there is no other one beside it."""

    def run_group(self, jobs: Sequence[Job]) -> Manifest:
        if len(jobs) > 1 and any(job.slot.txid == 3 for job in jobs):
            raise SparkJobError("too much at once", "Run it again.")
        return super().run_group(jobs)


class Lossy(ZooKeeperZNodes):
    """Of four steps the first one is lost, and of the third the answer."""

    def __init__(self, settings: ZooKeeperSettings) -> None:
        super().__init__(settings)
        self._faults = cycle(("request", "", "answer", ""))

    def multi(self, ops: Sequence[Op]) -> None:
        fault = next(self._faults)
        if fault != "request":
            super().multi(ops)
        if fault:
            raise OutcomeUnknownError(f"the {fault} was lost", "Run the same step again.")


def main(hosts: str, root: str, folder: str, group: str, *how: str) -> None:
    made, staging = topology(Path(folder)), f"{folder}/staging"
    settings = ZooKeeperSettings(hosts=hosts)
    client = (Lossy if "lossy" in how else ZooKeeperZNodes)(settings)
    engine = Halves() if "halves" in how else LocalEngine()
    with ZNodeLedger(client, made.name, root) as ledger, engine:
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
