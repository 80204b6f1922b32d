"""Ledgers of every kind behind one handle, and short words for what tests do with them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from airflow_trident.ledger.base import Begun, Ledger
from airflow_trident.ledger.fake import FakeTree, FakeZNodes, Fault
from airflow_trident.ledger.memory import MemoryLedger
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.settings import ZooKeeperSettings
from airflow_trident.ledger.znode_ledger import ZNodeLedger
from airflow_trident.ledger.znodes import Op
from airflow_trident.protocol.records import (
    Claim,
    CommitTicket,
    Definition,
    SpoutDefinition,
    StagedRef,
    StateDefinition,
    TxRecord,
)
from airflow_trident.protocol.statuses import Status
from airflow_trident.types import Json

DEFINITION = Definition(
    spouts={"lines": SpoutDefinition(text="FixedBatchSpout")},
    states={"counts": StateDefinition(text="word, n (sqlite)")},
)
STAGED = StagedRef(manifest="t/manifest.json", rows_read=7, rows={"counts": 3}, bytes=120)
OTHER_STAGED = StagedRef(manifest="t/other.json", rows_read=7, rows={"counts": 3}, bytes=120)


@dataclass
class Place:
    """Where the ledgers of one test are: `open` gives one more client of the same ledgers."""

    name: str
    open: Callable[..., Ledger]

    def registered(self, topology: str = "words", **options: object) -> Ledger:
        ledger = self.open(topology, **options)
        ledger.register(DEFINITION)
        return ledger


@contextmanager
def memory(request: pytest.FixtureRequest) -> Iterator[Place]:
    ledgers: dict[str, MemoryLedger] = {}

    def open_one(topology: str = "words", **options: int) -> Ledger:
        return ledgers.setdefault(topology, MemoryLedger(topology, **options))

    yield Place("memory", open_one)


def _fake(name: str, fault_of: Callable[[], Callable[[Sequence[Op]], Fault | None] | None]):
    @contextmanager
    def place(request: pytest.FixtureRequest) -> Iterator[Place]:
        tree = FakeTree()

        def open_one(topology: str = "words", **options: object) -> Ledger:
            return ZNodeLedger(FakeZNodes(tree, fault_of=fault_of()), topology, **options)

        yield Place(name, open_one)

    return place


def _in_turn(*faults: Fault | None) -> Callable[[], Callable[[Sequence[Op]], Fault | None]]:
    def fresh() -> Callable[[Sequence[Op]], Fault | None]:
        turn = itertools.cycle(faults)
        return lambda ops: next(turn)

    return fresh


@contextmanager
def overtaken(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Every second request is delayed, and arrives just before the one that repeats it."""
    tree = FakeTree()

    def open_one(topology: str = "words", **options: object) -> Ledger:
        turn = itertools.cycle((Fault.LATE, None))

        def fault_of(ops: Sequence[Op]) -> Fault | None:
            tree.release()
            return next(turn)

        return ZNodeLedger(FakeZNodes(tree, fault_of=fault_of), topology, **options)

    yield Place("overtaken", open_one)


@contextmanager
def real(request: pytest.FixtureRequest) -> Iterator[Place]:
    server = request.getfixturevalue("zookeeper")
    root = request.getfixturevalue("ledger_root")
    settings = ZooKeeperSettings(hosts=server.hosts)
    with ExitStack() as opened:

        def open_one(topology: str = "words", **options: object) -> Ledger:
            ledger = open_ledger(settings, topology, root=root)
            if options:
                ledger = ZNodeLedger(ledger.znodes, topology, root, **options)
            opened.callback(ledger.close)
            return ledger

        yield Place("zookeeper", open_one)


LEDGERS = {
    "memory": memory,
    "fake znodes": _fake("fake znodes", lambda: None),
    "fake that applies and loses every acknowledgement": _fake("crippled", _in_turn(Fault.LOST_AFTER)),
    "fake that loses every second request": _fake("lossy", _in_turn(Fault.LOST_BEFORE, None)),
    "fake that delays every second request": _fake("late", _in_turn(Fault.LATE, None)),
    "fake whose delayed requests arrive before the repeated ones": overtaken,
    "real ZooKeeper": real,
}
OVER_ZNODES = [name for name in LEDGERS if name != "memory"]


# ---- short words -----------------------------------------------------------------------------------------------


def claim(number: int, **more: object) -> Claim:
    return Claim(key=f"dag/run-{number}/-1", dag_id="dag", run_id=f"run-{number}", run_ms=1_000 * number, **more)


def lines(txid: int, position: dict[str, Json]) -> dict[str, Json]:
    """Metadata of a source that has one more line for every transaction."""
    before = position.get("lines") or {"until": 0}
    return {"lines": {"from": before["until"], "until": before["until"] + 1}}


def nothing(txid: int, position: dict[str, Json]) -> None:
    return None


def begun(ledger: Ledger, number: int, max_pending: int = 100) -> int:
    result = ledger.begin(claim(number), lines, max_pending=max_pending)
    assert isinstance(result, Begun), result
    return result.txid


def processed(ledger: Ledger, txid: int) -> TxRecord:
    record = ledger.start_attempt(txid, owner="emitter")
    return ledger.processed(txid, record.attempt, STAGED)


def gated(ledger: Ledger, txid: int) -> CommitTicket:
    processed(ledger, txid)
    return ledger.gate(txid, owner="committer")


def commit(ledger: Ledger, txid: int, retention: int = 50) -> TxRecord:
    return ledger.committed(gated(ledger, txid), retention=retention)


def committed_up_to(ledger: Ledger, last: int, retention: int = 50) -> None:
    for number in range(1, last + 1):
        commit(ledger, begun(ledger, number), retention)


def brought_to(ledger: Ledger, txid: int, status: Status) -> None:
    """Bring a transaction that was just begun, and whose turn has come, to a status."""
    if status is Status.PROCESSING:
        ledger.start_attempt(txid, owner="emitter")
    if status in (Status.PROCESSED, Status.COMMITTING, Status.COMMITTED):
        processed(ledger, txid)
    if status in (Status.COMMITTING, Status.COMMITTED):
        ticket = ledger.gate(txid, owner="committer")
        if status is Status.COMMITTED:
            ledger.committed(ticket)
    if status is Status.FAILED:
        ledger.fail(txid, ledger.start_attempt(txid, owner="emitter").attempt, "used up")
    if status in (Status.SKIPPED, Status.CLOSED):
        ledger.skip(txid, "let the others pass")
    if status is Status.CLOSED:
        ledger.close_transaction(txid, "nobody wants it")


def statuses(ledger: Ledger) -> dict[int, Status]:
    return {record.txid: record.status for record in ledger.transactions()}
