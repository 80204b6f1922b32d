"""Counts the items of a queue that a spout in another program reads: ``python -m tests.programs.child_lines HOSTS ROOT
FOLDER [KILL...]``. A KILL is as in :mod:`tests.programs.spooled_words`, for the steps poll, ack and link."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from airflow_trident import Count, SqliteState, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.storm import ShellSpout
from airflow_trident.storm.components.spouts import ChildSource
from tests.programs.spooled_words import dying
from tools import kills

COMPONENT = Path(__file__).parent / "components" / "queue_spout.py"


def topology(folder: Path) -> Topology:
    made = Topology("child_lines")
    command = [sys.executable, "-I", "-S", str(COMPONENT), str(folder)]
    spout = ShellSpout(command, "size int, line string", str(folder / "spool"), max_rows=4, idle_s=0)
    lines = made.new_stream("lines", spout)
    lines.group_by("line").persistent_aggregate(SqliteState(str(folder / "lines.db")), Count(), "count")
    return made


def contents(folder: Path) -> dict[str, int]:
    spec = topology(folder).states["count"]
    with spec.factory.make_state(spec) as state:
        return {str(key[0]): int(value[0]) for key, value in state.items()}


def main(hosts: str, root: str, folder: str, *kills: str) -> None:
    ChildSource.poll = dying("poll", ChildSource.poll, list(kills))  # type: ignore[method-assign]
    ChildSource.ack = dying("ack", ChildSource.ack, list(kills))  # type: ignore[method-assign]
    os.link = dying("link", os.link, list(kills))  # publishes every file: batch, mark, staged manifest
    made = topology(Path(folder))
    with open_ledger(ZooKeeperSettings(hosts=hosts), made.name, root=root) as ledger, LocalEngine() as engine:
        LocalRunner(ledger=ledger, topology=made, engine=engine, staging_root=f"{folder}/staging").run()


if __name__ == "__main__":
    kills.install()
    main(*sys.argv[1:])
