"""P12: what a killed backfill was at is on a list, and the same command takes it to its end. The kills are SIGKILL."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_trident.errors import TridentError
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.workers import Worker
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import OnFailure, Owner, Status
from airflow_trident.runtime.backfill import BackfillOutcome, Selection
from airflow_trident.runtime.milestones import Milestone
from tests.fixtures import single
from tests.fixtures.runtime import ALL, World
from tools.kills import VARIABLE, install

pytestmark = pytest.mark.zookeeper

POINTS = [
    Milestone.ATTEMPT_STARTED,
    Milestone.STAGED,
    Milestone.PUBLISHED,
    Milestone.PROCESSED,
    Milestone.GATE_OPENED,
    Milestone.APPLIED,
    Milestone.COMMITTED,
]


class Durable(World):
    """A world whose ledger outlives a process."""

    def __init__(self, folder: Path, hosts: str, root: str) -> None:
        super().__init__(folder)
        self.client = lambda: open_ledger(ZooKeeperSettings(hosts=hosts), "world", root=root)
        self.ledger = self.client()
        self.ledger.register(self.topology.definition())

    def begun(self) -> None:
        """All five transactions are begun; 3 has a row that its function cannot stand."""
        self.sickness.words.add("poison")
        for number in range(1, 6):
            self.begin(f"run-{number}")

    def killed(self, selection: Selection, point: Milestone, txid: int) -> None:
        """A backfill in a process of its own, killed at a point."""
        child = os.fork()
        if not child:
            try:
                os.environ[VARIABLE] = f"{point}@{txid}:{self.folder}/died"
                install()
                self.ledger = self.client()
                self.backfill().run(selection)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


@pytest.fixture
def world(tmp_path: Path, zookeeper: EmbeddedZooKeeper, ledger_root: str) -> Iterator[Durable]:
    made = Durable(tmp_path, zookeeper.hosts, ledger_root)
    yield made
    made.ledger.close()


def failed(world: Durable) -> Selection:
    """3 is FAILED and blocks 4 and 5, which are processed."""
    for number in (1, 2, 4, 5):
        world.process(number)
    with pytest.raises(TridentError):
        world.process(3, last_try=True)
    world.committer().commit(2)
    return Selection(failed=True)


def skipped(world: Durable) -> Selection:
    """3 is SKIPPED and not passed yet: 2 is processed only."""
    for number in (1, 2, 4, 5):
        world.process(number)
    with pytest.raises(TridentError):
        world.process(3, last_try=True, on_failure=OnFailure.SKIP)
    world.committer().commit(1)
    return Selection(first=3, last=3)


def late(world: Durable) -> Selection:
    """3 is SKIPPED and all the others are COMMITTED."""
    selection = skipped(world)
    world.committer().commit(5)
    return selection


def processed(world: Durable) -> Selection:
    """3 is processed, with a function that a person has mended since; nothing is committed."""
    world.sickness.words.clear()
    for number in range(1, 6):
        world.process(number)
    return Selection(first=3, last=3)


CASES = [(before, point) for before in (failed, late) for point in POINTS]
CASES += [(before, point) for before in (skipped, processed) for point in POINTS[:4]]  # its turn has not come


@pytest.mark.parametrize(("before", "point"), CASES)
def test_p12_what_a_killed_backfill_was_at_is_taken_up_by_backfill_failed(
    world: Durable, before: Callable[[Durable], Selection], point: Milestone
) -> None:
    world.begun()
    selection = before(world)
    world.sickness.words.clear()
    world.killed(selection, point, 3)
    listed = 3 in world.ledger.view(0).exceptions.unfinished
    tx = world.ledger.view(3).tx
    assert tx is not None
    assert listed or tx.status in (Status.PROCESSED, Status.COMMITTING, Status.COMMITTED)

    world.backfill().run(Selection(failed=True))
    assert world.statuses() == [Status.COMMITTED] * 5
    assert world.counts() == ALL
    assert world.backfill().run(Selection(failed=True)) == []


def test_backfill_failed_leaves_to_a_live_worker_what_it_is_at_and_a_named_transaction_is_taken_over(
    world: Durable,
) -> None:
    world.begun()
    failed(world)
    world.sickness.words.clear()
    with world.client() as other:
        other.enlist(Worker(host="elsewhere", pid=7, task="a/run/emit try 2", txid=3, since_ms=1))
        single.attempt(
            other, 3, owner=Owner(dag_id="a", run_id="run", task_id="emit", try_number=2, host="elsewhere", pid=7)
        )
        (left,) = world.backfill().run(Selection(failed=True))
        assert (left.txid, left.outcome) == (3, BackfillOutcome.AT_WORK)
        assert "elsewhere/7" in left.detail
        (taken,) = world.backfill().run(Selection(first=3, last=3))
        assert taken.outcome is BackfillOutcome.COMMITTED


def test_backfill_failed_commits_what_is_processed_and_whose_run_has_ended(world: Durable) -> None:
    world.begun()
    world.sickness.words.clear()
    for number in range(1, 6):
        world.process(number)
    done = world.backfill().run(Selection(failed=True))
    assert [(one.txid, one.outcome) for one in done] == [(n, BackfillOutcome.COMMITTED) for n in range(1, 6)]
    assert world.counts() == ALL
