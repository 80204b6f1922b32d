"""`repair` where a spout is opaque: each attempt chooses its batch anew, and states may have batches of several."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from airflow_trident import Count, SqliteState, Topology
from airflow_trident.contracts.state import Marker
from airflow_trident.engine.base import quiet
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import CorruptError, LedgerBehindStateError
from airflow_trident.ledger.backup.seeding import KnownTransactions, seed_from
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.ledger.znode_ledger import ZNodeLedger
from airflow_trident.protocol.records import Claim, TxRecord
from airflow_trident.protocol.statuses import Status
from airflow_trident.runtime.backfill import Backfill, BackfillOutcome, Selection
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.mending.repair import repair
from airflow_trident.runtime.phases import Attempts, coordinate, process
from tests.fixtures.runtime import copy_of
from tests.fixtures.spout import OpaqueFolderSpout, append


class Killed(BaseException):
    pass


def killed_after(state: str) -> Callable[[str], None]:
    def progress(line: str) -> None:
        if f"into state {state}" in line:
            raise Killed

    return progress


@dataclass(frozen=True)
class OpaqueWorld:
    """Two states that count rows of an opaque spout, `at_once` of them in each transaction."""

    folder: Path

    def topology(self, at_once: int = 2) -> Topology:
        topology = Topology("opaque")
        rows = topology.new_stream("rows", OpaqueFolderSpout(self.folder / "in", at_once=at_once)).group_by("id")
        for name in ("first", "second"):
            rows.persistent_aggregate(SqliteState(str(self.folder / f"{name}.db")), Count(), name)
        return topology

    @property
    def staging(self) -> str:
        return str(self.folder / "staging")

    def process(self, ledger: ZNodeLedger, txid: int) -> None:
        process(ledger, self.topology(), txid, LocalEngine(), self.staging, Attempts(owner="emitter"))

    def commit(
        self, ledger: ZNodeLedger, txid: int, progress: Callable[[str], None] = quiet, *, at_once: int = 2
    ) -> None:
        Committer(
            ledger=ledger,
            topology=self.topology(at_once),
            staging_root=self.staging,
            attempts=Attempts(owner="committer"),
            engine=LocalEngine,
            progress=progress,
        ).commit(txid)

    def commit_two_batches(self, ledger: ZNodeLedger, txid: int) -> None:
        """Of one transaction, which is not COMMITTED: both states have the first batch, then one has the other."""
        self.process(ledger, txid)
        with pytest.raises(Killed):
            self.commit(ledger, txid, killed_after("second"))
        shutil.rmtree(self.staging)  # so that the next committer emits the transaction again
        with pytest.raises(Killed):
            self.commit(ledger, txid, killed_after("first"), at_once=3)

    def replay_and_go_on(self, ledger: ZNodeLedger, txid: int) -> None:
        rest = {"ledger": ledger, "topology": self.topology(), "staging_root": self.staging}
        (done,) = Backfill(engine=LocalEngine, owner="person", **rest).run(Selection(first=txid, last=txid))
        assert done.outcome is BackfillOutcome.COMMITTED, done.detail
        LocalRunner(engine=LocalEngine(), **rest).run()

    def counts(self) -> list[dict[tuple[object, ...], tuple[object, ...]]]:
        found = []
        for spec in self.topology().states.values():
            with spec.factory.make_state(spec) as state:
                found.append(dict(state.items()))
        return found


@pytest.fixture
def opaque(tmp_path: Path) -> OpaqueWorld:
    append(tmp_path / "in", "part", [(number, "row") for number in range(8)])
    return OpaqueWorld(tmp_path)


def test_an_opaque_transaction_that_only_one_state_has_is_replaced_there_by_another_attempt(
    opaque: OpaqueWorld,
) -> None:
    ledger = ZNodeLedger(MemoryZNodes(MemoryTree()), "opaque")
    coordinate(ledger, opaque.topology(), Claim(key="run"))
    for _ in range(3):
        opaque.process(ledger, 1)
    with pytest.raises(Killed):
        opaque.commit(ledger, 1, killed_after("first"))
    lost = ZNodeLedger(MemoryZNodes(MemoryTree()), "opaque")
    seed = repair(lost, opaque.topology(), opaque.staging)
    assert (seed.unfinished is not None, seed.attempt) == (True, 2)
    opaque.replay_and_go_on(lost, 1)
    assert opaque.counts() == [{(number,): (1,) for number in range(8)}] * 2


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("txid", [1, 2])
def test_two_batches_of_an_opaque_transaction_are_both_replaced_if_it_is_known_where_it_began(
    opaque: OpaqueWorld, txid: int, begun: bool
) -> None:
    """Both states have it, and nothing above it: only the ledger that is there knows where it began."""
    tree = MemoryTree()
    ledger = ZNodeLedger(MemoryZNodes(tree), "opaque")
    coordinate(ledger, opaque.topology(), Claim(key="run-1"))
    if txid == 2:
        opaque.process(ledger, 1)
        opaque.commit(ledger, 1)
    backup = copy_of(tree)
    if txid == 2:
        coordinate(ledger, opaque.topology(), Claim(key="run-2"))
    if begun:
        backup = copy_of(tree)
    opaque.commit_two_batches(ledger, txid)
    restored = ZNodeLedger(MemoryZNodes(backup), "opaque")
    seed = repair(restored, opaque.topology(), opaque.staging)
    assert (seed.committed, seed.unfinished_txids, seed.attempt) == (txid - 1, (txid,), 1)
    assert restored.view(0).exceptions.unfinished == (txid,)
    opaque.replay_and_go_on(restored, txid)
    assert opaque.counts() == [{(number,): (1,) for number in range(8)}] * 2


def test_two_batches_are_refused_where_it_is_not_known_where_the_transaction_began(opaque: OpaqueWorld) -> None:
    ledger = ZNodeLedger(MemoryZNodes(MemoryTree()), "opaque")
    coordinate(ledger, opaque.topology(), Claim(key="run-1"))
    opaque.process(ledger, 1)
    opaque.commit(ledger, 1)
    coordinate(ledger, opaque.topology(), Claim(key="run-2"))
    opaque.commit_two_batches(ledger, 2)
    lost = ZNodeLedger(MemoryZNodes(MemoryTree()), "opaque")
    before = opaque.counts()
    with pytest.raises(CorruptError, match="different batches of transaction 2"):
        repair(lost, opaque.topology(), opaque.staging)
    another_life = ZNodeLedger(MemoryZNodes(MemoryTree()), "opaque")
    with pytest.raises(LedgerBehindStateError):
        coordinate(another_life, opaque.topology(), Claim(key="run-1"))
    assert another_life.view(0).topology.incarnation, "registered, in a life of which the states know nothing"
    with pytest.raises(CorruptError, match="different batches of transaction 2"):
        repair(another_life, opaque.topology(), opaque.staging)
    assert opaque.counts() == before


@pytest.mark.parametrize(
    ("incarnation", "committed", "certain"), [("x", 4, True), ("another life", 4, False), ("x", 3, False)]
)
def test_only_the_transaction_below_in_the_same_life_says_where_it_began(
    incarnation: str, committed: int, certain: bool
) -> None:
    below = TxRecord(
        txid=committed, status=Status.COMMITTED, attempt=0, metadata={"s": 3}, claim=Claim(key="run"), op="op"
    )
    newer = Marker(incarnation="x", high=5, fence=9, position={"s": 7}, attempt=2)
    held = {"a": newer, "b": replace(newer, position={"s": 6}, attempt=1)}
    known = KnownTransactions(incarnation=incarnation, committed=below)
    if not certain:
        with pytest.raises(CorruptError, match="different batches of transaction 5"):
            seed_from(held, known)
        return
    seed = seed_from(held, known)
    assert seed is not None
    assert (seed.committed, dict(seed.position), seed.attempt) == (4, {"s": 3}, 2)


def test_equal_positions_of_different_attempts_are_equal_batches_only_if_nothing_can_replace_them() -> None:
    """What is COMMITTED every state has from one attempt, and a source may give other rows up to the same position."""
    first = Marker(incarnation="x", high=1, fence=9, position={"s": 7}, attempt=2)
    later = replace(first, high=5)
    found = {}
    for held in ({"a": first, "b": replace(first, attempt=1)}, {"a": first, "b": first}):
        seed = seed_from(held)
        assert seed is not None
        found[held["b"].attempt] = seed.unfinished_txids
    assert found == {1: (1,), 2: ()}
    seed = seed_from({"a": later, "b": replace(later, attempt=1)})
    assert seed is not None
    assert (seed.committed, seed.unfinished, dict(seed.position)) == (5, None, {"s": 7})
