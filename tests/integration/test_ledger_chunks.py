"""Metadata that is kept apart from its record: lost, or pruned while somebody reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from airflow_trident.errors import CorruptRecordError
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.ledger.znode_ledger import ZNodeLedger
from airflow_trident.ledger.znodes import Delete, ReadResult
from airflow_trident.types import Json
from tests.fixtures.ledger import DEFINITION, claim, commit


class Interrupted(MemoryZNodes):
    """Something happens just before chunks are read."""

    happens: Callable[[], None] = staticmethod(lambda: None)

    def read(self, paths: Sequence[str] = (), folders: Sequence[str] = ()) -> ReadResult:
        if any("/m/" in path for path in paths):
            self.happens()
        return super().read(paths, folders)


def large(txid: int, position: dict[str, Json]) -> dict[str, Json]:
    return {"lines": [f"{txid}-{number}" for number in range(12_000)]}


@pytest.fixture
def tree() -> MemoryTree:
    tree = MemoryTree()
    ledger = ZNodeLedger(MemoryZNodes(tree), "words")
    ledger.register(DEFINITION)
    for number in (1, 2):
        ledger.begin(claim(number), large)
    commit(ledger, 1)
    return tree


def test_a_transaction_that_is_pruned_while_it_is_read_is_a_pruned_one(tree: MemoryTree) -> None:
    reader, writer = ZNodeLedger(Interrupted(tree), "words"), ZNodeLedger(MemoryZNodes(tree), "words")

    def prune_the_first() -> None:
        reader.znodes.happens = lambda: None
        commit(writer, 2, retention=1)

    reader.znodes.happens = prune_the_first
    assert reader.view(1).tx is None
    assert [tx.txid for tx in reader.transactions()] == [2]


def test_a_list_that_is_read_while_its_first_is_pruned_goes_on_without_it(tree: MemoryTree) -> None:
    reader, writer = ZNodeLedger(Interrupted(tree), "words"), ZNodeLedger(MemoryZNodes(tree), "words")

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
