"""Commands and notebooks that are killed: of these Airflow knows nothing, so their session with the ledger tells."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from airflow_trident import Count, FixedBatchSpout, SqliteState, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.answers import Begun
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.decide import Blocked
from airflow_trident.protocol.records import Claim, Status
from airflow_trident.runtime.backfill import Backfill, Selection
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.local import LocalRunner, owner_of_this_process
from airflow_trident.runtime.milestones import Milestone
from airflow_trident.runtime.phases import Attempts, coordinate, process
from airflow_trident.runtime.workers import at_work
from airflow_trident.tasks.asking_airflow import ask_airflow
from airflow_trident.tasks.waits import Until, wait_in_worker
from tests.fixtures import single
from tests.fixtures.ledger import DEFINITION
from tools import kills

pytestmark = pytest.mark.zookeeper
ROOT = Path(__file__).parents[2]
LIMIT_S = 60.0


def never_ends(word: str) -> str:
    """A function that tells its parent that it runs, and goes on until the process is killed."""
    os.write(1, b"at work\n")  # in one piece: a drain is at two transactions at once
    while True:
        time.sleep(60)
    return word


def topology(folder: str) -> Topology:
    made = Topology("words")
    words = made.new_stream("lines", FixedBatchSpout("word string", [("a",), ("b",)], max_batch_size=1))
    words.map(never_ends, "word string").group_by("word").persistent_aggregate(
        SqliteState(f"{folder}/words.db"), Count(), "count"
    )
    return made


def program(kind: str, hosts: str, root: str, folder: str) -> None:
    """What is killed: it works on transaction 1 and never ends."""
    kills.install()
    made = topology(folder)
    settings = ZooKeeperSettings(hosts=hosts, session_timeout_s=6.0)
    common: dict[str, Any] = {"topology": made, "staging_root": f"{folder}/staging"}
    with open_ledger(settings, "words", root=root) as ledger, LocalEngine() as engine:
        if kind == "notebook":
            LocalRunner(ledger=ledger, engine=engine, **common).run()
        elif kind == "drain":
            attempts = Attempts(owner=owner_of_this_process("airflow trident drain"))
            Drain(
                ledger=ledger, engine=engine, attempts=attempts, claim=Claim(key="d"), limits=DrainLimits(), **common
            ).run()
        elif kind == "two steps":
            begun = single.coordinate(ledger, made, Claim(key="1"))
            assert isinstance(begun, Begun)
            process(ledger, made, begun.txid, engine, f"{folder}/staging", Attempts(owner=owner_of_this_process()))
        else:
            owner = owner_of_this_process("airflow trident backfill")
            Backfill(ledger=ledger, engine=LocalEngine, owner=owner, **common).run(Selection(first=1, last=1))


def code_of(kind: str, zookeeper: EmbeddedZooKeeper, root: str, folder: Path) -> list[str]:
    """The program's command line."""
    arguments = [kind, zookeeper.hosts, root, str(folder)]
    code = f"from tests.integration.test_killed_programs import program; program(*{arguments!r})"
    return [sys.executable, "-c", code]


@contextmanager
def at_it(kind: str, zookeeper: EmbeddedZooKeeper, root: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The program, when it is in the middle of its work."""
    command = code_of(kind, zookeeper, root, folder)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "at work\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def ledger(zookeeper: EmbeddedZooKeeper, ledger_root: str) -> Iterator[ZNodeLedger]:
    with open_ledger(ZooKeeperSettings(hosts=zookeeper.hosts), "words", root=ledger_root) as made:
        yield made


def waits_for_2(ledger: ZNodeLedger, wait_s: float) -> object:
    """As a task waits whose transaction is 2."""
    look = ask_airflow(ledger, skip=False)
    return wait_in_worker(ledger, 2, Until.TURN, wait_s=wait_s, look_every_s=0.2, look=look, say=lambda _story: None)


@pytest.mark.parametrize("kind", ["notebook", "drain", "backfill"])
def test_who_waits_for_a_killed_program_notices_it(
    zookeeper: EmbeddedZooKeeper, ledger: ZNodeLedger, ledger_root: str, tmp_path: Path, kind: str
) -> None:
    made = topology(str(tmp_path))
    if kind == "backfill":
        coordinate(ledger, made, [Claim(key="1")])
        ledger.fail(1, single.attempt(ledger, 1, owner="before").attempt, "it failed")
    with at_it(kind, zookeeper, ledger_root, tmp_path) as process:
        coordinate(ledger, made, [Claim(key="2")], max_pending=9)
        record = ledger.view(1).tx
        assert record is not None
        assert record.owner.pid == process.pid
        assert record.owner.worker in {worker.name for worker in ledger.workers()}
        assert not isinstance(waits_for_2(ledger, 1.0), Blocked)  # it lives, and is left alone
        process.send_signal(signal.SIGKILL)
    verdict = waits_for_2(ledger, LIMIT_S)
    assert verdict == Blocked(by=1)
    record = ledger.view(1).tx
    assert record is not None
    assert record.status is Status.FAILED
    assert "no longer connected to the ledger" in record.error
    assert str(process.pid) in record.error


@pytest.mark.parametrize("kind", ["notebook", "drain", "two steps"])
def test_who_waits_for_a_program_that_was_killed_before_its_first_attempt_notices_it(
    zookeeper: EmbeddedZooKeeper, ledger: ZNodeLedger, ledger_root: str, tmp_path: Path, kind: str
) -> None:
    killed = tmp_path / "killed"
    crash = {kills.VARIABLE: f"{Milestone.BEGUN}@1:{killed}"}
    command = code_of(kind, zookeeper, ledger_root, tmp_path)
    done = subprocess.run(command, cwd=ROOT, env=os.environ | crash, check=False)
    assert done.returncode == -signal.SIGKILL
    coordinate(ledger, topology(str(tmp_path)), [Claim(key="2")], max_pending=9)
    assert waits_for_2(ledger, LIMIT_S) == Blocked(by=1)
    record = ledger.view(1).tx
    assert record is not None
    assert record.status is Status.FAILED
    assert "connected to the ledger" in record.error


def test_a_program_that_was_interrupted_is_at_work_no_longer_though_its_session_goes_on(ledger: ZNodeLedger) -> None:
    ledger.register(DEFINITION)
    work = ExitStack()
    me = work.enter_context(at_work(ledger, owner_of_this_process("a notebook")))
    assert [worker.name for worker in ledger.workers()] == [me.worker]
    work.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert ledger.workers() == []


def test_a_program_whose_session_was_lost_is_listed_again_under_its_name(
    zookeeper: EmbeddedZooKeeper, ledger: ZNodeLedger, ledger_root: str
) -> None:
    ledger.register(DEFINITION)
    with open_ledger(ZooKeeperSettings(hosts=zookeeper.hosts), "words", root=ledger_root) as program:
        with at_work(program, "a notebook") as me:
            old = program.znodes._client.client_id  # type: ignore[attr-defined]
            # The server ends a session for whoever knows its password.
            other = KazooClient(hosts=zookeeper.hosts, client_id=old)
            other.start()
            other.stop()
            other.close()
            deadline = time.monotonic() + LIMIT_S
            while program.znodes._client.client_id == old or not ledger.workers():  # type: ignore[attr-defined]
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert [worker.name for worker in ledger.workers()] == [me.worker]
        assert ledger.workers() == []
    assert os.getpid() == me.pid
