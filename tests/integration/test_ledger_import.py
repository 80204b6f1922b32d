"""A ledger that was exported is the same one when it is put in again, and nothing is put over another."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from airflow_trident.errors import (
    ConfigurationError,
    CorruptRecordError,
    NewerRecordError,
    OutcomeUnknownError,
    TransitionError,
)
from airflow_trident.ledger.answers import Begun
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.znodes import Create, Op
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import Claim
from airflow_trident.types import Json
from tests.fixtures import single
from tests.fixtures.ledger import DEFINITION, STAGED, claim, commit


def filled(ledger: ZNodeLedger) -> dict[str, Json]:
    """Committed, FAILED, SKIPPED, PROCESSED and never attempted transactions; one with large metadata."""
    ledger.register(DEFINITION)
    for number in range(1, 7):
        size = 12_000 if number == 2 else 1
        single.begin(ledger, claim(number), lambda txid, _, size=size: {"lines": [txid] * size}, max_pending=9)  # type: ignore[misc]
    for number in (1, 2):
        commit(ledger, number, retention=5)
    ledger.skip(3, "withdrawn")
    single.attempt(ledger, 4, owner="me")
    ledger.fail(4, 0, "broken")
    single.attempt(ledger, 5, owner="me")
    single.processed(ledger, 5, 0, STAGED)
    exported: dict[str, Json] = json.loads(json.dumps(ledger.export()))
    return exported


@pytest.fixture
def exported() -> dict[str, Json]:
    return filled(ZNodeLedger(MemoryZNodes(MemoryTree()), "words"))


@pytest.mark.zookeeper
def test_what_was_exported_is_the_same_ledger_on_another_server_and_goes_on(
    exported: dict[str, Json], zookeeper: EmbeddedZooKeeper, ledger_root: str
) -> None:
    with open_ledger(ZooKeeperSettings(hosts=zookeeper.hosts), "words", root=ledger_root) as ledger:
        record = ledger.import_from(exported)
        assert record.incarnation == exported["topology"]["incarnation"]  # type: ignore[index,call-overload]
        assert ledger.export() == exported
        assert ledger.register(DEFINITION) == record
        again = single.begin(ledger, claim(5), lambda txid, _: None)
        assert (again.txid, again.new) == (5, False)  # type: ignore[union-attr]
        begun = single.begin(
            ledger, Claim(key="new"), lambda txid, position: {"lines": position["lines"]}, max_pending=9
        )
        assert isinstance(begun, Begun)
        assert begun.txid == 7
        assert single.attempt(ledger, 4, owner="again").attempt == 1


def test_nothing_is_put_over_a_ledger_that_began_a_transaction(exported: dict[str, Json]) -> None:
    ledger = ZNodeLedger(MemoryZNodes(MemoryTree()), "words")
    ledger.register(DEFINITION)
    single.begin(ledger, claim(1), lambda txid, _: {"lines": txid})
    before = ledger.export()
    with pytest.raises(
        TransitionError, match=r"begins at transaction 2: importing would lose it.*trident repair words"
    ):
        ledger.import_from(exported)
    assert ledger.export() == before


def test_a_ledger_that_never_began_one_is_replaced(exported: dict[str, Json]) -> None:
    tree = MemoryTree()
    ZNodeLedger(MemoryZNodes(tree), "words").register(DEFINITION)
    ledger = ZNodeLedger(MemoryZNodes(tree), "words")
    ledger.import_from(exported)
    assert ledger.export() == exported
    assert len(tree.children("/airflow-trident/v1/words") or ()) == 1


class CutOff(MemoryZNodes):
    """The process ends at the so manieth write."""

    left = 0

    def multi(self, ops: Sequence[Op]) -> None:
        self.left -= 1
        if self.left < 0:
            raise OutcomeUnknownError("killed", "")
        super().multi(ops)


def test_a_ledger_whose_coordinator_found_nothing_yet_is_replaced(exported: dict[str, Json]) -> None:
    """Its outcome, the plan and the list of events are notes beside the records."""
    ledger = ZNodeLedger(MemoryZNodes(MemoryTree()), "words")
    ledger.register(DEFINITION)
    paths = ledger.paths()
    ledger.znodes.multi([Create(path, b"{}") for path in (paths.coordinator, paths.plan, paths.events)])
    ledger.import_from(exported)
    assert ledger.export() == exported


def test_an_import_that_was_cut_off_is_no_ledger_until_it_is_done_again(exported: dict[str, Json]) -> None:
    tree, cuts = MemoryTree(), 0
    while True:
        znodes = CutOff(tree)
        znodes.left = cuts
        ledger = ZNodeLedger(znodes, "words", step_deadline_s=0.0)
        try:
            ledger.import_from(exported)
            break
        except OutcomeUnknownError:
            cuts += 1
        if tree.children("/airflow-trident/v1"):
            with pytest.raises(CorruptRecordError, match="is no ledger yet: an import is under way"):
                ZNodeLedger(MemoryZNodes(tree), "words").view(0)
    assert cuts >= 4
    assert ZNodeLedger(MemoryZNodes(tree), "words").export() == exported


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"version": 3}, NewerRecordError, "version 3"),
        ({"transactions": 7}, CorruptRecordError, "not what `ledger export` writes"),
        ({"transactions": []}, CorruptRecordError, "missing: 3, 4, 5, 6"),
        ({"next_txid": 9}, CorruptRecordError, "missing: 7, 8"),
        ({"pointer": {"committed": 1}}, CorruptRecordError, "pointer of the export"),
        ({"claims": None}, CorruptRecordError, "AttributeError"),
        ({"topology": {"name": "other"}}, ConfigurationError, "that of topology 'other', not of 'words'"),
    ],
)
def test_what_is_no_whole_export_is_refused_before_anything_is_written(
    exported: dict[str, Json], change: dict[str, Json], error: type[Exception], said: str
) -> None:
    tree = MemoryTree()
    with pytest.raises(error, match=said):
        ZNodeLedger(MemoryZNodes(tree), "words").import_from({**exported, **change})
    assert not tree.children("/airflow-trident/v1")
