"""A named worker in a process of its own, without Airflow: ``python -m tests.programs.named_worker NAME HOSTS ROOT
FOLDER [TOPOLOGY ...]``. It prints its progress line by line.

``AIRFLOW_TRIDENT_KILL=<step> before|after <number>`` kills it at its own write of this kind with this number:
``register``, ``acknowledge <status>``, ``advance <command>``, ``place``. ``AIRFLOW_TRIDENT_CRASH`` kills it at a
milestone of a transaction, as elsewhere. ``AIRFLOW_TRIDENT_WAIT_S``: how long it waits for a deployment and its name.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from airflow_trident import Count as CountAll
from airflow_trident import FixedBatchSpout, SqliteState, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.client import ZooKeeperZNodes
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import Claim, Command
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.local import owner_of_this_process
from airflow_trident.runtime.phases import Attempts
from airflow_trident.storm.workers.deployment import next_command
from airflow_trident.storm.workers.deployments import Deployments
from airflow_trident.storm.workers.worker import Means, NamedWorker, Patience
from tests.programs import word_count
from tools import kills

SESSION_S = 4.0
"""The shortest session that a server grants by default."""


def topologies(folder: Path) -> dict[str, Topology]:
    """`crash_test`: five transactions of a word count. `others`: three short ones."""
    others = Topology("others")
    lines = others.new_stream("lines", FixedBatchSpout("word string", [("a",), ("b",), ("a",)], 1))
    lines.group_by("word").persistent_aggregate(SqliteState(str(folder / "others.db")), CountAll(), "n")
    return {made.name: made for made in (word_count.topology(folder), others)}


class Killed(Deployments):
    """Dies at the step that the environment names."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        step, _, number = os.environ.get("AIRFLOW_TRIDENT_KILL", "").rpartition(" ")
        self._step, _, self._when = step.rpartition(" ")
        self._number = int(number or 0)
        self._seen: Counter[str] = Counter()

    def _at(self, step: str, when: str) -> None:
        if step == self._step and when == self._when:
            self._seen[step] += 1
            if self._seen[step] == self._number:
                os.kill(os.getpid(), signal.SIGKILL)

    def register(self, mine: Any) -> None:
        self._at("register", "before")
        super().register(mine)
        self._at("register", "after")

    def acknowledge(self, roster: Any, mine: Any) -> bool:
        self._at(f"acknowledge {mine.status}", "before")
        done = super().acknowledge(roster, mine)
        self._at(f"acknowledge {mine.status}", "after")
        return done

    def advance(self, roster: Any, *, by: str) -> bool:
        due = next_command(roster, Command.RUN)
        if due is not None:
            self._at(f"advance {due}", "before")
        done = super().advance(roster, by=by)
        if done:
            self._at(f"advance {due}", "after")
        return done

    def place(self, roster: Any, worker: str) -> bool:
        self._at("place", "before")
        done = super().place(roster, worker)
        if done:
            self._at("place", "after")
        return done


def main(name: str, hosts: str, root: str, folder: str, *only: str) -> None:
    settings = ZooKeeperSettings(hosts=hosts, session_timeout_s=SESSION_S)
    known = topologies(Path(folder))
    owner = owner_of_this_process(f"worker {name}")
    made = NamedWorker(
        name=name,
        deployments=Killed(ZooKeeperZNodes(settings), root),
        means=Means(
            code_of=known.__getitem__,
            open_ledger=lambda topology, life: open_ledger(settings, topology, root=root, incarnation=life),
            engine_of=lambda _topology: LocalEngine(),
            staging_root=f"{folder}/staging",
            attempts=Attempts(owner=owner),
            claim=Claim(key=f"worker/{owner.place}"),
            limits=DrainLimits(max_pending=2),
        ),
        owner=owner,
        progress=lambda line: print(line, flush=True),
        only=only,
        patience=Patience(poll_s=0.1, look_s=0.2, wait_s=float(os.environ.get("AIRFLOW_TRIDENT_WAIT_S", "0"))),
    )
    signal.signal(signal.SIGTERM, lambda *_: made.stop())
    kills.install()
    sys.exit(0 if made.run() else 3)


if __name__ == "__main__":
    main(*sys.argv[1:])
