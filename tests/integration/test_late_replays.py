"""A late replay beside live commits: whatever they remove, it ends, however long it takes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from airflow_trident import FileSink, FileSpout, Topology
from airflow_trident.engine.engine import Engine
from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryZNodes
from airflow_trident.protocol.records import Claim, Status
from airflow_trident.runtime.backfill import Backfill, BackfillOutcome, Selection
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.milestones import Milestone, told
from airflow_trident.runtime.phases import Attempts, coordinate, process
from airflow_trident.staging.manifest import Slot
from tests.fixtures import single

if TYPE_CHECKING:
    from airflow_trident.engine.spark.engine import SparkEngine

Hook = Callable[[str], None]


class Late:
    """Transaction 1 is SKIPPED; every live transaction is one more file. Each commit keeps one committed transaction,
    so that everything older goes at once."""

    retention = 1

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.znodes = MemoryZNodes()
        self.staging = str(folder / "staging")
        self.files = 0
        self.during: Hook = lambda _line: None
        (folder / "in").mkdir()
        self.put("late 1")
        self.begin("late")
        self.ledger().skip(1, "later")

    def ledger(self) -> ZNodeLedger:
        return ZNodeLedger(self.znodes, "words")

    def topology(self) -> Topology:
        during = self.during

        def seen(line: str) -> list[str]:
            during(line)
            return [line]

        made = Topology("words")
        lines = made.new_stream("lines", FileSpout(str(self.folder / "in/*.txt"), format="text"))
        lines.each("line", seen, "word string").project("word").partition_persist(
            FileSink(str(self.folder / "out")), "word", name="out"
        )
        return made

    def put(self, line: str) -> None:
        self.files += 1
        (self.folder / f"in/{self.files:05d}.txt").write_text(f"{line}\n")

    def begin(self, key: str) -> None:
        coordinate(self.ledger(), self.topology(), [Claim(key=key)], max_pending=9)

    def live(self) -> None:
        """One more transaction, by a process of its own."""
        self.put(f"live {self.files + 1}")
        txid = self.files
        self.begin(f"live {txid}")
        process(self.ledger(), self.topology(), txid, LocalEngine(), self.staging, Attempts(owner="live"))
        Committer(
            ledger=self.ledger(),
            topology=self.topology(),
            staging_root=self.staging,
            attempts=Attempts(owner="live"),
            engine=LocalEngine,
            retention=self.retention,
        ).commit(txid)

    def replay(self, engine: Callable[[], Engine] = LocalEngine) -> tuple[BackfillOutcome, str]:
        (done,) = Backfill(
            ledger=self.ledger(),
            topology=self.topology(),
            engine=engine,
            staging_root=self.staging,
            owner="late",
            retention=self.retention,
        ).run(Selection(first=1, last=1))
        return done.outcome, done.detail

    def rows(self) -> list[str]:
        files = (self.folder / "out").rglob("*.parquet")
        return sorted(word for file in files for word in pq.read_table(file).column("word").to_pylist())

    def slot(self, txid: int) -> Path:
        incarnation = self.ledger().topology().incarnation
        return Path(self.staging) / Slot(topology="words", incarnation=incarnation, txid=txid, attempt=0).path


def test_live_commits_between_every_two_steps_of_a_late_replay_take_nothing_from_it(tmp_path: Path) -> None:
    late, steps = Late(tmp_path), set[str]()
    late.live()

    def commit_live(step: str) -> None:
        if step not in steps:
            steps.add(step)
            late.live()
            late.live()

    def at_milestone(milestone: Milestone, txid: int) -> None:
        if txid == 1:
            commit_live(milestone)

    late.during = lambda line: commit_live("rows are read") if line == "late 1" else None
    with told(at_milestone):
        assert late.replay() == (BackfillOutcome.COMMITTED, "")
    assert {"rows are read", Milestone.STAGED, Milestone.PROCESSED, Milestone.GATE_OPENED} <= steps
    assert late.rows() == sorted(["late 1", *(f"live {number}" for number in range(2, late.files + 1))])
    late.live()
    assert not late.slot(1).parent.exists(), "when it is COMMITTED, it goes as any other"


@pytest.mark.parametrize("ending", ["killed", "failed"])
def test_what_a_late_replay_left_stays_until_a_person_has_ended_it(tmp_path: Path, ending: str) -> None:
    late = Late(tmp_path)
    late.live()
    ledger = late.ledger()
    record = single.attempt(ledger, 1, owner="killed")
    if ending == "failed":
        ledger.fail(1, record.attempt, "it failed")
    order = late.slot(1) / "an order.job"
    order.parent.mkdir(parents=True)
    order.write_text("of an application that is at work")
    for _ in range(3):
        late.live()
    assert order.exists()
    assert {tx.status for tx in ledger.transactions(2)} == {Status.COMMITTED}
    assert late.replay()[0] is BackfillOutcome.COMMITTED
    late.live()
    assert not order.exists()


def test_a_staged_batch_stays_as_long_as_the_record_that_names_it(tmp_path: Path) -> None:
    """SKIPPED transactions do not count as kept ones: so the oldest kept record is further back than the retention."""
    late = Late(tmp_path)
    late.retention = 2
    for _ in range(2):
        late.live()
    for _ in range(3):
        late.put("later")
        late.begin(f"skipped {late.files}")
        late.ledger().skip(late.files, "later")
    late.live()
    kept = [tx.txid for tx in late.ledger().transactions() if tx.status is Status.COMMITTED]
    assert kept == [3, 7]
    assert all(late.slot(txid).parent.exists() for txid in kept)
    assert not late.slot(2).parent.exists()


@pytest.mark.spark
def test_live_commits_between_two_staged_files_of_a_late_replay_on_spark(
    tmp_path: Path, spark_engine: SparkEngine
) -> None:
    """The second of its files is read only when the live transactions that came in between are COMMITTED."""
    late, gate = Late(tmp_path), str(tmp_path / "gate")
    os.mkfifo(gate)
    late.during = _Waits(gate)

    def commit_live() -> None:
        with open(gate, "w"):  # returns when the worker waits in the middle of its file
            late.during = lambda _line: None
            for _ in range(3):
                late.live()

    live = threading.Thread(target=commit_live, daemon=True)
    live.start()
    outcome = late.replay(lambda: nullcontext(spark_engine))  # type: ignore[arg-type, return-value]
    assert outcome == (BackfillOutcome.COMMITTED, "")
    live.join()
    assert late.rows() == ["late 1", "live 2", "live 3", "live 4"]


class _Waits:
    def __init__(self, gate: str) -> None:
        self.gate = gate

    def __call__(self, _line: str) -> None:
        with open(self.gate) as opened:
            opened.read()
