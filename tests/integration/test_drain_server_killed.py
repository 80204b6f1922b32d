"""The ZooKeeper server killed under a running drain, and started again."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from airflow_trident.engine.engine import Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.zookeeper.client import ZooKeeperZNodes
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import Claim, Status
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.phases import Attempts
from airflow_trident.staging.manifest import Manifest
from tests.fixtures.runtime import ALL, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


PATIENCE_S = 600.0
"""No outage lasts so long, however slowly a loaded machine starts Java: what is tested is not that calls give up (see
`test_ledger_faults.py`), but that those who wait lose nothing."""


class Killer:
    """Kills the server at stated moments, and starts it again on the same data and port."""

    def __init__(self, server: EmbeddedZooKeeper) -> None:
        self.server = server
        self.hosts = server.hosts
        self.kills: list[str] = []
        self.killed = threading.Event()

    def kill(self, when: str) -> None:
        self.kills.append(when)
        os.kill(self.server.status().pid, signal.SIGKILL)
        self.killed.set()
        again = self.server.start()
        assert (again.started_here, again.hosts) == (True, self.hosts)

    def on_progress(self, line: str) -> None:
        if "transaction 4," in line and "into state" in line:
            self.kill("a batch is in the state and not COMMITTED")


class Deadly(LocalEngine):
    """The server is killed when transaction 2 is processed; transaction 1 is to be recorded while there is none."""

    def __init__(self, killer: Killer) -> None:
        super().__init__()
        self.killer = killer

    def run(self, job: Job) -> Manifest:
        done = super().run(job)
        if job.slot.txid == 1:
            assert self.killer.killed.wait(PATIENCE_S)
        if job.slot.txid == 2:
            self.killer.kill("a batch is processed and not recorded")
        return done


@pytest.mark.zookeeper
def test_p9_zookeeper_killed_while_a_batch_is_processed_and_while_one_is_committed_costs_no_record(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_trident.io.servers.START_DEADLINE_S", PATIENCE_S)
    server = EmbeddedZooKeeper(tmp_path / "zookeeper")
    server.start()
    killer = Killer(server)
    settings = ZooKeeperSettings(hosts=server.hosts, op_deadline_s=PATIENCE_S, connect_deadline_s=PATIENCE_S)
    world.ledger = ZNodeLedger(ZooKeeperZNodes(settings), world.topology.name, step_deadline_s=PATIENCE_S)
    try:
        with world.ledger:
            result = Drain(
                ledger=world.ledger,
                topology=world.topology,
                engine=Deadly(killer),
                staging_root=world.staging,
                attempts=Attempts(owner="drain"),
                claim=Claim(key="drain/run-1"),
                limits=DrainLimits(group=1),
                progress=killer.on_progress,
            ).run()
            ended = [(tx.status, tx.attempt) for tx in world.ledger.transactions()]
    finally:
        server.stop()
    assert killer.kills == ["a batch is processed and not recorded", "a batch is in the state and not COMMITTED"]
    assert (result.committed, ended) == ((1, 2, 3, 4, 5), [(Status.COMMITTED, 0)] * 5)
    assert world.counts() == ALL
