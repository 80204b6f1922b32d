"""What a named worker reports of an error in the ledger: never a row where that is forbidden; its log has all."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import UserCodeError
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.protocol.records import Claim, Owner
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.phases import Attempts
from airflow_trident.storm.workers.deployment import WorkerStatus
from airflow_trident.storm.workers.deployments import Deployments, deploy
from airflow_trident.storm.workers.worker import Means, NamedWorker, Patience
from airflow_trident.topology.topology import Topology
from tests.fixtures.runtime import World

SECRET = "poison"
"""A word that the function refuses; its error quotes it."""


class Site:
    """One worker in a thread, over znodes in memory; `log`: what it prints."""

    def __init__(self, folder: Path, *, rows_in_errors: bool, code_of: Exception | None = None) -> None:
        self.world, self.tree, self.code_of = World(folder), MemoryTree(), code_of
        self.world.sickness.words.add(SECRET)
        self.lines: queue.Queue[str] = queue.Queue()
        self.log: list[str] = []
        self.onlooker = Deployments(MemoryZNodes(self.tree))
        self.onlooker.ensure_folder()
        with self.ledger() as ledger:
            ledger.register(self.world.topology.definition())
            deploy(ledger, ["w1"])
        owner = Owner(program="worker", host="h", pid=1)
        means = Means(
            code_of=self.code,
            open_ledger=self.ledger,
            engine_of=lambda _topology: LocalEngine(),
            staging_root=self.world.staging,
            attempts=Attempts(owner=owner, rows_in_errors=rows_in_errors),
            claim=Claim(key="worker"),
            limits=DrainLimits(tries=1),
        )
        self.worker = NamedWorker(
            name="w1",
            deployments=Deployments(MemoryZNodes(self.tree)),
            means=means,
            owner=owner,
            progress=self.say,
            patience=Patience(poll_s=600, look_s=0.01),  # no second drain, which would report that it is blocked
        )

    def say(self, line: str) -> None:
        self.log.append(line)
        self.lines.put(line)

    def ledger(self, *_: str) -> ZNodeLedger:
        return ZNodeLedger(MemoryZNodes(self.tree), "world")

    def code(self, _name: str) -> Topology:
        if self.code_of is not None:
            raise self.code_of
        return self.world.topology

    def error(self, status: WorkerStatus) -> str:
        """What the worker reports with this answer, as soon as there is something."""
        while True:
            roster = self.onlooker.roster("world")
            found = roster.acknowledged.get("w1") if roster is not None else None
            if found is not None and found.status is status and found.error:
                return found.error
            self.lines.get(timeout=60)


@contextmanager
def running(site: Site) -> Iterator[Site]:
    thread = threading.Thread(target=site.worker.run)
    thread.start()
    try:
        yield site
    finally:
        site.worker.stop()
        thread.join()


@pytest.mark.parametrize("rows", [False, True])
def test_the_error_of_a_transaction_quotes_its_row_only_where_it_may(tmp_path: Path, rows: bool) -> None:
    with running(Site(tmp_path, rows_in_errors=rows)) as site:
        error = site.error(WorkerStatus.RUNNING)
    assert error.startswith("UserCodeError")
    assert (SECRET in error) is rows
    assert any(f"cannot stand {SECRET}" in line for line in site.log)


@pytest.mark.parametrize("rows", [False, True])
def test_the_error_of_an_initialisation_quotes_its_row_only_where_it_may(tmp_path: Path, rows: bool) -> None:
    refused = UserCodeError(f"cannot stand {SECRET}")
    with running(Site(tmp_path, rows_in_errors=rows, code_of=refused)) as site:
        error = site.error(WorkerStatus.INIT_FAILED)
    assert error.startswith("UserCodeError")
    assert (SECRET in error) is rows
    assert any(f"cannot stand {SECRET}" in line for line in site.log)
