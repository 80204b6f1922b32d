"""What the page costs and counts: round trips to ZooKeeper, and bytes of an answer, whatever lies in the ledger."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryZNodes
from airflow_trident.plugin import page_data
from airflow_trident.plugin.page_data import Choice
from airflow_trident.plugin.rows import Sight, summary
from airflow_trident.protocol.diagnosis import Evidence
from airflow_trident.protocol.records import Claim, Exceptions, StagedRef, Status
from airflow_trident.protocol.txids import Txids
from tests.fixtures import single
from tests.fixtures.page import DEFINITION

SIGHT = Sight(frozenset({"words"}), unowned=True)
STAGED = StagedRef(manifest="m", rows_read=1, rows={"count": 1}, bytes=1)


def ledger_of(statuses: list[Status]) -> tuple[ZNodeLedger, MemoryZNodes]:
    """A topology whose transactions have these statuses."""
    ledger = ZNodeLedger(znodes := MemoryZNodes(), "words")
    ledger.register(DEFINITION)
    for txid, status in enumerate(statuses, 1):
        claim = Claim(key=str(txid), dag_id="words", run_id=f"run-{txid}")
        single.begin(
            ledger, claim, lambda txid, _position: {"lines": {"from": txid}}, max_pending=10**6, attempt_by="a test"
        )
        if status in (Status.FAILED, Status.SKIPPED):
            ledger.fail(txid, 0, "in vain", skip="why" if status is Status.SKIPPED else "")
        elif status is not Status.PROCESSING:
            single.processed(ledger, txid, 0, STAGED)
        if status is Status.COMMITTED:
            single.committed(ledger, single.gate(ledger, txid, owner="a test"), retention=10**6)
    return ledger, znodes


def page_of(ledger: ZNodeLedger, *wanted: Status) -> tuple[list[int], int | None]:
    choice = Choice(statuses=frozenset(wanted))
    page, _, found = page_data._page(ledger, ledger.view(0), choice, SIGHT, visible=True)
    return [one.txid for one in page], found


@pytest.mark.parametrize("seed", range(20))
def test_the_number_of_those_that_are_found_is_the_number_of_those_that_have_the_status(seed: int) -> None:
    draw = random.Random(seed)
    done = draw.choices([Status.COMMITTED, Status.SKIPPED], k=draw.randint(0, 20))
    pending = draw.choices([Status.PROCESSING, Status.PROCESSED, Status.FAILED, Status.SKIPPED], k=draw.randint(0, 20))
    ledger, _ = ledger_of(done + pending)
    kept = {one.txid: one.status for one in ledger.transactions()}
    for wanted in [(one,) for one in Status] + [(Status.PROCESSING, Status.COMMITTED)]:
        txids = sorted((txid for txid, status in kept.items() if status in wanted), reverse=True)
        assert page_of(ledger, *wanted) == (txids, len(txids))


def test_a_sparse_page_costs_a_few_round_trips() -> None:
    ledger, znodes = ledger_of([Status.SKIPPED if txid % 10 == 0 else Status.COMMITTED for txid in range(150)])

    def cost(read: Callable[[], object]) -> int:
        before = znodes.round_trips
        read()
        return znodes.round_trips - before

    assert cost(lambda: page_of(ledger, Status.SKIPPED)) <= 4
    late = page_of(ledger, Status.SKIPPED)[0]
    assert len(late) == 15
    for txid in late:
        single.attempt(ledger, txid, owner="a test")
    view = ledger.view(0)
    assert cost(lambda: page_data.open_transactions(ledger, view)) <= 2


def test_skipped_transactions_do_not_make_an_answer_long() -> None:
    ledger, _ = ledger_of([Status.COMMITTED])
    view = ledger.view(0)
    many = Exceptions(skipped=Txids.span(2, 200_001))
    object.__setattr__(view, "exceptions", many)
    shown = summary(Evidence(view=view), visible=True)
    assert shown["skipped"] == {"count": 200_000, "txids": "2 to 200001"}
    assert len(json.dumps(shown)) < 2_000
