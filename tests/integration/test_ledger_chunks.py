"""Metadata that is kept apart from its record: lost, or pruned while somebody reads."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_trident.errors import CorruptRecordError
from airflow_trident.ledger.answers import Begun, StagedAttempt
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.ledger.znodes import Create, Delete, Op, ReadResult, Set
from airflow_trident.types import Json
from tests.fixtures import single
from tests.fixtures.ledger import DEFINITION, STAGED, Interrupted, claim, commit


def large(txid: int, position: dict[str, Json]) -> dict[str, Json]:
    return {"lines": [f"{txid}-{number}" for number in range(12_000)]}


@pytest.fixture
def tree() -> MemoryTree:
    tree = MemoryTree()
    ledger = ZNodeLedger(MemoryZNodes(tree), "words")
    ledger.register(DEFINITION)
    for number in (1, 2):
        single.begin(ledger, claim(number), large)
    commit(ledger, 1)
    return tree


def test_a_transaction_that_is_pruned_while_it_is_read_is_a_pruned_one(tree: MemoryTree) -> None:
    reader, writer = ZNodeLedger(Interrupted(tree, before="/m/"), "words"), ZNodeLedger(MemoryZNodes(tree), "words")

    def prune_the_first() -> None:
        reader.znodes.happens = lambda: None
        commit(writer, 2, retention=1)

    reader.znodes.happens = prune_the_first
    assert reader.view(1).tx is None
    assert [tx.txid for tx in reader.transactions()] == [2]


def test_a_list_that_is_read_while_its_first_is_pruned_goes_on_without_it(tree: MemoryTree) -> None:
    reader, writer = ZNodeLedger(Interrupted(tree, before="/m/"), "words"), ZNodeLedger(MemoryZNodes(tree), "words")

    def prune_the_first() -> None:
        reader.znodes.happens = lambda: None
        commit(writer, 2, retention=1)

    reader.znodes.happens = prune_the_first
    assert [tx.txid for tx in reader.transactions()] == [2]


def test_a_chunk_that_is_lost_is_named(tree: MemoryTree) -> None:
    ledger = ZNodeLedger(MemoryZNodes(tree), "words")
    folder = f"/airflow-trident/v1/words/{ledger.topology().incarnation}/m"
    first = min(tree.children(folder) or ())
    tree.apply([Delete(f"{folder}/{first}")])
    with pytest.raises(CorruptRecordError, match=r"a chunk of the metadata of .*/tx/0{18}1 is missing"):
        ledger.view(1)


class Counted(MemoryZNodes):
    """Says how much is read and written."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.chunk_reads = 0
        self.largest_write = 0

    def read(self, paths: Sequence[str] = (), folders: Sequence[str] = ()) -> ReadResult:
        self.chunk_reads += any("/m/" in path for path in paths)
        return super().read(paths, folders)

    def multi(self, ops: Sequence[Op]) -> None:
        self.largest_write = max(len(op.data) for op in ops if isinstance(op, Create | Set))
        super().multi(ops)


def window(txid: int, position: dict[str, Json]) -> dict[str, Json]:
    return {"files": {"seen": f"{txid:04d}" * 12_000}}


def test_status_changes_do_not_carry_the_metadata() -> None:
    """And who wrote it does not read it back."""
    znodes = Counted(MemoryTree())
    ledger = ZNodeLedger(znodes, "words")
    ledger.register(DEFINITION)
    assert isinstance(single.begin(ledger, claim(1), window), Begun)
    assert znodes.largest_write > 48_000
    for step in (
        lambda: single.attempt(ledger, 1, owner="emitter"),
        lambda: single.processed(ledger, 1, 0, STAGED),
        lambda: single.committed(ledger, single.gate(ledger, 1, owner="committer")),
    ):
        step()
        assert znodes.largest_write < 1_500
    assert znodes.chunk_reads == 0
    assert ledger.view(1).tx.metadata == window(1, {})


def test_metadata_of_a_group_is_read_in_one_round_trip() -> None:
    tree = MemoryTree()
    writer = ZNodeLedger(MemoryZNodes(tree), "words")
    writer.register(DEFINITION)
    for number in range(1, 6):
        single.begin(writer, claim(number), window, max_pending=5)
    txids = [1, 2, 3, 4, 5]
    staged = [StagedAttempt(txid=txid, attempt=0, staged=STAGED) for txid in txids]
    for use in (
        lambda ledger: ledger.attempt(txids, owner="emitter"),
        lambda ledger: ledger.processed(staged).records,
        lambda ledger: ledger.gate(txids, owner="committer"),
        lambda ledger: ledger.committed(ledger.gate(txids, owner="committer")).records,
        lambda ledger: ledger.transactions(),
    ):
        znodes = Counted(tree)
        assert len(use(ZNodeLedger(znodes, "words"))) == 5
        assert znodes.chunk_reads == 1
