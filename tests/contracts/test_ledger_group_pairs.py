"""What every ledger promises about two steps of a group in one (L15, P5)."""

from __future__ import annotations

import pytest

from airflow_trident.errors import FencedError
from airflow_trident.ledger.base import Ledger
from airflow_trident.ledger.begin_result import NextBatches, NothingNew
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.ledger.znode_ledger import ZNodeLedger
from airflow_trident.protocol.decide import Full
from airflow_trident.protocol.statuses import Status
from airflow_trident.types import Json
from tests.contracts.test_ledger_groups import everything, gated_many, none_at_all, some_lines
from tests.fixtures import single
from tests.fixtures.ledger import (
    DEFINITION,
    Interrupted,
    Place,
    begun,
    claim,
    commit,
    processed,
)


def test_l15_p5_what_is_committed_makes_room_for_what_the_same_step_begins(ledger: Ledger) -> None:
    tickets = gated_many(ledger, 1, 3)
    claims = [claim(number) for number in range(4, 9)]
    result = ledger.committed(
        tickets, retention=1, then=NextBatches(claims, some_lines, max_pending=3, attempt_by="drain")
    )
    assert [one.status for one in result.records] == [Status.COMMITTED] * 3
    assert [(one.txid, one.new) for one in result.begun] == [(4, True), (5, True), (6, True)]
    assert [one.record for one in result.begun] == list(ledger.transactions(4))
    assert (ledger.view(0).pointer.committed, ledger.view(0).next_txid) == (3, 7)


def test_l15_what_cannot_be_begun_keeps_nobody_from_committing(ledger: Ledger) -> None:
    tickets = gated_many(ledger, 1, 2)
    result = ledger.committed(tickets[:1], then=NextBatches([claim(3)], some_lines, max_pending=1))
    assert (len(result.records), result.begun, result.why_not) == (1, (), Full(oldest=2, pending=1))
    result = ledger.committed(tickets[1:], then=NextBatches([claim(3)], none_at_all, max_pending=9))
    assert (len(result.records), result.begun, result.why_not) == (1, (), NothingNew())
    assert ledger.view(0).pointer.committed == 2


def test_l15_a_source_that_cannot_be_asked_leaves_both_undone(ledger: Ledger) -> None:
    def broken(txid: int, position: dict[str, Json], most: int) -> list[dict[str, Json]]:
        raise OSError("the folder is gone")

    tickets = gated_many(ledger, 1, 2)
    before = everything(ledger)
    with pytest.raises(OSError, match="the folder is gone"):
        ledger.committed(tickets, then=NextBatches([claim(3)], broken, max_pending=9))
    assert everything(ledger) == before
    assert len(ledger.committed(tickets).records) == 2


def test_l15_a_ticket_that_is_void_begins_nothing(place: Place) -> None:
    ledger, other = place.registered(), place.registered()
    tickets = gated_many(ledger, 1, 2)
    single.gate(other, 1, owner="somebody")
    before = everything(other)
    with pytest.raises(FencedError):
        ledger.committed(tickets, then=NextBatches([claim(3)], some_lines, max_pending=9))
    assert everything(other) == before


def test_what_single_steps_left_waiting_is_committed_as_a_group(ledger: Ledger) -> None:
    for number in (1, 2, 3):
        processed(ledger, begun(ledger, number))
    tickets = ledger.gate([1, 2, 3], owner="c")
    assert [one.status for one in ledger.committed(tickets).records] == [Status.COMMITTED] * 3


def test_l15_p10_what_is_committed_and_pruned_between_two_looks_of_a_group_is_not_called_damaged() -> None:
    tree = MemoryTree()
    slow = ZNodeLedger(Interrupted(tree, before="/tx/0000000000000000002"), "words")
    others = ZNodeLedger(MemoryZNodes(tree), "words")
    others.register(DEFINITION)
    tickets = gated_many(others, 1, 1)
    begun(others, 2)

    def overtake() -> None:
        slow.znodes.happens = lambda: None
        single.committed(others, single.gate(others, 1, owner="others"))
        commit(others, 2)
        begun(others, 3)
        commit(others, 3, retention=1)

    slow.znodes.happens = overtake
    with pytest.raises(FencedError, match="its record is gone"):
        slow.committed(tickets, then=NextBatches([claim(4)], some_lines, max_pending=9))
    assert [tx.txid for tx in slow.transactions()] == [3]
