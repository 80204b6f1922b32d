"""Requests of named workers while nothing changes, counted; and that their watches report what does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from airflow_trident import Count, FixedBatchSpout, MemoryState, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.protocol.records import Claim, Command
from airflow_trident.runtime.local import owner_of_this_process
from airflow_trident.runtime.phases import Attempts
from airflow_trident.storm.workers.deployment import Roster, WorkerStatus
from airflow_trident.storm.workers.deployments import Deployed, Deployments, deploy
from airflow_trident.storm.workers.worker import Means, NamedWorker, Patience

LIMIT_S = 60.0
RESTS = 20


class Watched(Deployments):
    """Counts the waits, and the requests between them."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(MemoryZNodes(tree))
        self.requests_at_wait: list[int] = []
        self.waited = threading.Condition()

    def wait_for_change(self, deployed: Deployed, timeout_s: float, *, worker: str) -> bool:
        with self.waited:
            self.requests_at_wait.append(self.znodes.round_trips)
            self.waited.notify_all()
        return super().wait_for_change(deployed, timeout_s, worker=worker)

    def requests_of_rests(self) -> int:
        """Requests from one wait that begins now to the one that is RESTS later."""
        with self.waited:
            first = len(self.requests_at_wait)
            assert self.waited.wait_for(lambda: len(self.requests_at_wait) > first + RESTS, LIMIT_S)
            return self.requests_at_wait[first + RESTS] - self.requests_at_wait[first]


class Site:
    def __init__(self, folder: Path, opened: ExitStack) -> None:
        self.folder, self.opened, self.tree = folder, opened, MemoryTree()
        self.onlooker = Deployments(MemoryZNodes(self.tree))
        self.topologies: dict[str, Topology] = {}

    def deploy(self, name: str, *workers: str) -> ZNodeLedger:
        topology = self.topologies[name] = Topology(name)
        lines = topology.new_stream("lines", FixedBatchSpout("word string", [("a",)], 1))
        lines.group_by("word").persistent_aggregate(MemoryState(f"{self.folder}/{name}"), Count(), "n")
        ledger = ZNodeLedger(MemoryZNodes(self.tree), name)
        ledger.register(topology.definition())
        self.onlooker.ensure_folder()
        deploy(ledger, workers)
        return ledger

    def start(self, name: str, *, reread_s: float = LIMIT_S) -> Watched:
        deployments, owner = Watched(self.tree), owner_of_this_process(f"worker {name}")
        worker = NamedWorker(
            name=name,
            deployments=deployments,
            means=Means(
                code_of=self.topologies.__getitem__,
                open_ledger=lambda topology, life: ZNodeLedger(MemoryZNodes(self.tree), topology, incarnation=life),
                engine_of=lambda _topology: LocalEngine(),
                staging_root=f"{self.folder}/staging",
                attempts=Attempts(owner=owner),
                claim=Claim(key=f"worker/{name}"),
            ),
            owner=owner,
            progress=lambda _line: None,
            patience=Patience(poll_s=LIMIT_S, look_s=0.01, reread_s=reread_s, wait_s=LIMIT_S),
        )
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        self.opened.callback(thread.join, LIMIT_S)
        self.opened.callback(worker.stop)
        return deployments

    def until(self, topology: str, reached: Callable[[Roster], bool]) -> None:
        while True:
            deployed = self.onlooker.read()
            roster = deployed.rosters[topology]
            if reached(roster):
                return
            assert self.onlooker.wait_for_change(deployed, LIMIT_S, worker=roster.deployment.workers[0]), roster


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with made(tmp_path) as found:
        yield found


@contextmanager
def made(folder: Path) -> Iterator[Site]:
    with ExitStack() as opened:
        yield Site(folder, opened)


def is_running(*expected: str) -> Callable[[Roster], bool]:
    return lambda roster: sorted(str(roster.status(name)) for name in roster.deployment.workers) == sorted(expected)


def test_while_nothing_changes_a_worker_asks_nothing_however_much_is_deployed(site: Site) -> None:
    for number in range(5):
        site.deploy(f"topology-{number}", "w1", "w2")
    workers = [site.start("w1"), site.start("w2")]
    for name in site.topologies:
        site.until(name, is_running(WorkerStatus.RUNNING, WorkerStatus.STANDBY))
    for worker in workers:
        worker.requests_of_rests()  # others' answers may still arrive
        assert worker.requests_of_rests() == 0


def test_what_others_change_is_seen_by_its_watch(site: Site) -> None:
    """No worker reads the records again by itself within the limit of the test."""
    ledger = site.deploy("words", "w1", "w2")
    site.start("w1")
    site.start("w2")
    both = is_running(WorkerStatus.RUNNING, WorkerStatus.STANDBY)
    site.until("words", both)
    ledger.set_command(Command.PAUSE)
    site.until("words", is_running(WorkerStatus.PAUSED, WorkerStatus.PAUSED))
    ledger.set_command(Command.RUN)
    site.until("words", both)
    site.deploy("later", "w1", "w2")  # a deployment that was not there
    site.until("later", both)
    other = site.deploy("other", "w3")  # one that named others so far
    deploy(other, ["w2"])
    site.until("other", is_running(WorkerStatus.RUNNING))
    for name in site.topologies:
        ZNodeLedger(MemoryZNodes(site.tree), name).set_command(Command.SHUTDOWN)


def test_a_worker_reads_the_records_again_from_time_to_time_whatever_its_watches_report(site: Site) -> None:
    site.deploy("words", "w1")
    worker = site.start("w1", reread_s=0.02)
    site.until("words", is_running(WorkerStatus.RUNNING))
    worker.requests_of_rests()
    assert worker.requests_of_rests() > 0
