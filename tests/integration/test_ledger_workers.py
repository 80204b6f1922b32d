"""Live workers on a real ZooKeeper: listed while their session lives, and no longer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.workers import Worker
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from tests.fixtures.ledger import DEFINITION

pytestmark = pytest.mark.zookeeper


def worker(number: int, txid: int | None = None) -> Worker:
    return Worker(host="host", pid=number, task=f"dag/run/task{number} try 1", txid=txid, since_ms=number)


PROGRAM = """
import sys
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from tests.integration.test_ledger_workers import worker
ledger = open_ledger(ZooKeeperSettings(hosts=sys.argv[1], session_timeout_s=2.0), "words", root=sys.argv[2])
ledger.enlist(worker(3))
print("enlisted", flush=True)
sys.stdin.read()
"""


def test_a_worker_is_listed_until_it_says_good_bye_or_is_killed(zookeeper: EmbeddedZooKeeper, ledger_root: str) -> None:
    settings = ZooKeeperSettings(hosts=zookeeper.hosts)
    with open_ledger(settings, "words", root=ledger_root) as onlooker:
        onlooker.register(DEFINITION)
        assert onlooker.workers() == []
        with open_ledger(settings, "words", root=ledger_root) as first:
            first.enlist(worker(2, txid=7))
            first.enlist(worker(1))
            assert onlooker.workers() == [worker(1), worker(2, txid=7)]
        assert onlooker.workers() == []
        program = [sys.executable, "-c", PROGRAM, zookeeper.hosts, ledger_root]
        root = Path(__file__).parents[2]
        with subprocess.Popen(program, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "enlisted\n"
            assert onlooker.workers() == [worker(3)]
            process.send_signal(signal.SIGKILL)
        while onlooker.workers():  # the server ends the session of the killed one by itself
            assert onlooker.topology()


def test_a_forked_child_has_an_entry_of_its_own(zookeeper: EmbeddedZooKeeper, ledger_root: str) -> None:
    with open_ledger(ZooKeeperSettings(hosts=zookeeper.hosts), "words", root=ledger_root) as ledger:
        ledger.register(DEFINITION)
        ledger.enlist(worker(1))
        child = os.fork()
        if child == 0:
            ledger.enlist(worker(2))
            os._exit(0 if list(ledger.workers()) == [worker(1), worker(2)] else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert worker(1) in ledger.workers()


def test_a_ledger_in_memory_lists_who_is_at_work_until_it_is_closed() -> None:
    with MemoryLedger("words") as ledger:
        ledger.register(DEFINITION)
        ledger.enlist(worker(1))
        assert list(ledger.workers()) == [worker(1)]
    assert list(ledger.workers()) == []
