"""Workers of two versions at one ledger: what the older left is gone on with, what the newer adds is tolerated."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.errors import NewerRecordError
from airflow_trident.ledger.answers import Begun
from airflow_trident.ledger.layout import LedgerPaths, topology_path
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.ledger.znodes import Create, Set
from airflow_trident.protocol.records import Claim, Command, Status
from airflow_trident.protocol.topologies import Definition, SpoutDefinition, StateDefinition
from tests.fixtures import single
from tests.fixtures.ledger import STAGED

GOLDEN = Path(__file__).parent.parent / "golden" / "records"
ROOT = "/trident"
PATH = topology_path(ROOT, "words")
LIFE = LedgerPaths(PATH, "3f2a9c1d")
DEFINITION = Definition(
    spouts={"lines": SpoutDefinition(text="FileSpout")},
    states={"counts": StateDefinition(text="word string, n long (sqlite)")},
)
RECORDS = (PATH, LIFE.head, LIFE.commit, LIFE.exceptions, LIFE.tx(43))


def golden(name: str, **changes: Any) -> bytes:
    body = json.loads((GOLDEN / name).read_bytes())
    return json.dumps(body | changes).encode() if changes else (GOLDEN / name).read_bytes()


@pytest.fixture
def tree() -> MemoryTree:
    """A ledger from records of version 1: 42 is committed, 43 was begun."""
    tree = MemoryTree()
    znodes = MemoryZNodes(tree)
    znodes.ensure(PATH.rpartition("/")[0])
    exceptions = json.dumps({"v": 1, "failed": [], "skipped": [], "late": []}).encode()
    claim = json.loads(golden("v1-claim.json"))
    znodes.multi(
        [
            Create(PATH, golden("v1-topology.json", command="run", definition=asdict(DEFINITION))),
            *map(Create, LIFE.folders()),
            Create(LIFE.head, golden("v1-head.json", next=44)),
            Create(LIFE.commit, golden("v1-commit.json")),
            Create(LIFE.exceptions, exceptions),
            Create(LIFE.tx(42), golden("v1-tx-committed.json")),
            Create(LIFE.tx(43), golden("v1-tx-begun.json")),
            Create(LIFE.claim(claim["key"]), golden("v1-claim.json")),
        ]
    )
    return tree


def ledger_of(tree: MemoryTree) -> ZNodeLedger:
    return ZNodeLedger(MemoryZNodes(tree), "words", ROOT)


def stored(tree: MemoryTree, path: str) -> dict[str, Any]:
    node = tree.get(path)
    assert node is not None
    found: dict[str, Any] = json.loads(node.data)
    return found


def test_a_worker_goes_on_with_the_ledger_of_version_1(tree: MemoryTree) -> None:
    ledger = ledger_of(tree)
    assert ledger.register(DEFINITION).created_ms == 1766000000000
    again = single.begin(ledger, Claim(key=json.loads(golden("v1-claim.json"))["key"]), lambda *_: None)
    assert again == Begun(record=ledger.view(42).tx, txid=42, new=False)
    record = single.attempt(ledger, 43, owner="new", plan="abc")
    single.processed(ledger, 43, record.attempt, STAGED)
    single.committed(ledger, single.gate(ledger, 43, owner="new"))
    begun = single.begin(ledger, Claim(key="next"), lambda _txid, position: {"lines": position["lines"]})
    assert isinstance(begun, Begun)
    assert begun.txid == 44
    view = ledger.view(43)
    assert (view.pointer.committed, view.pointer.fence) == (43, 45)
    assert view.tx is not None
    assert (view.tx.status, view.tx.plan) == (Status.COMMITTED, "abc")


def rewritten(tree: MemoryTree, path: str, **more: Any) -> None:
    """As a worker of a newer version writes it."""
    node = tree.get(path)
    assert node is not None
    MemoryZNodes(tree).multi([Set(path, json.dumps({**json.loads(node.data), **more}).encode(), node.version)])


@pytest.fixture
def begun(tree: MemoryTree) -> MemoryTree:
    ledger = ledger_of(tree)
    ledger.set_command(Command.PAUSE)
    ledger.set_command(Command.RUN)
    single.attempt(ledger, 43, owner="older")
    return tree


def test_what_a_newer_worker_writes_beside_is_read_and_kept(begun: MemoryTree) -> None:
    rewritten(begun, PATH, colour="green")
    rewritten(begun, LIFE.tx(43), heat=[1, 2])
    for path in (LIFE.head, LIFE.commit, LIFE.exceptions):
        rewritten(begun, path, more=1)
    ledger = ledger_of(begun)
    assert ledger.set_command(Command.PAUSE).extra == {"colour": "green"}
    single.processed(ledger, 43, single.attempt(ledger, 43, owner="older").attempt, STAGED)
    assert single.committed(ledger, single.gate(ledger, 43, owner="older")).status is Status.COMMITTED
    assert stored(begun, PATH)["colour"] == "green"
    assert stored(begun, LIFE.tx(43))["heat"] == [1, 2]
    again = ledger.export()
    assert again["topology"]["colour"] == "green"  # type: ignore[call-overload, index]


@pytest.mark.parametrize("path", RECORDS)
def test_a_feature_that_a_worker_does_not_know_is_refused(begun: MemoryTree, path: str) -> None:
    rewritten(begun, path, features=["two-heads"])
    with pytest.raises(NewerRecordError, match=f"{path} uses what this airflow-trident does not know: 'two-heads'"):
        ledger_of(begun).view(43)


@pytest.mark.parametrize(
    "step",
    [
        lambda ledger: ledger.set_command(Command.PAUSE),
        lambda ledger: single.begin(ledger, Claim(key="next"), lambda *_: {"lines": 1}),
        lambda ledger: single.attempt(ledger, 43, owner="older"),
        lambda ledger: single.processed(ledger, 43, 0, STAGED),
        lambda ledger: single.gate(ledger, 43, owner="older"),
        lambda ledger: ledger.fail(43, 0, "x"),
        lambda ledger: ledger.skip(43, "x"),
        lambda ledger: ledger.register(Definition(spouts={}, states={}), accept_change=True),
    ],
)
def test_a_feature_of_the_topology_keeps_those_who_do_not_know_it_from_every_step(
    begun: MemoryTree, step: Callable[[ZNodeLedger], object]
) -> None:
    rewritten(begun, PATH, features=["two-heads"])
    before = {path: begun.get(path) for path in RECORDS}
    with pytest.raises(NewerRecordError, match="two-heads"):
        step(ledger_of(begun))
    assert {path: begun.get(path) for path in RECORDS} == before
