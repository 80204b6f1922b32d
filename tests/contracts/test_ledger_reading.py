"""What every ledger promises, over every implementation: waiting, listing, exporting."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from airflow_trident.ledger.ledger import Ledger
from airflow_trident.protocol.records import NO_ATTEMPT, Status
from tests.fixtures import single
from tests.fixtures.ledger import (
    Place,
    begun,
    claim,
    committed_up_to,
    statuses,
)

# ---- waiting ---------------------------------------------------------------------------------------------------


def test_waiting_ends_when_the_transaction_changes(place: Place) -> None:
    waiter, worker = place.registered(), place.registered()
    begun(worker, 1)
    seen = waiter.view(1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiter.wait_for_change, 1, seen, 60.0)
        single.attempt(worker, 1, owner="e")
        assert waiting.result(60) is True


def test_waiting_ends_when_another_transaction_fails(place: Place) -> None:
    waiter, worker = place.registered(), place.registered()
    begun(worker, 1)
    begun(worker, 2)
    seen = waiter.view(2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiter.wait_for_change, 2, seen, 60.0)
        worker.fail(1, NO_ATTEMPT, "killed")
        assert waiting.result(60) is True


def test_a_change_before_the_wait_is_not_missed(place: Place) -> None:
    waiter, worker = place.registered(), place.registered()
    begun(worker, 1)
    seen = waiter.view(1)
    single.attempt(worker, 1, owner="e")
    assert waiter.wait_for_change(1, seen, 60.0) is True


def test_waiting_in_vain_ends_at_its_time(ledger: Ledger) -> None:
    begun(ledger, 1)
    assert ledger.wait_for_change(1, ledger.view(1), 0.05) is False


# ---- the rest --------------------------------------------------------------------------------------------------


def test_topologies_do_not_know_of_each_other(place: Place) -> None:
    one, two = place.registered("one"), place.registered("two")
    committed_up_to(one, 2)
    assert begun(two, 1) == 1
    assert statuses(two) == {1: Status.PROCESSING}


def test_the_export_has_everything(ledger: Ledger) -> None:
    committed_up_to(ledger, 2)
    begun(ledger, 3)
    ledger.skip(3, "x")
    export = ledger.export()
    assert (export["next_txid"], export["pointer"]) == (4, {"committed": 3, "fence": 2})
    assert export["exceptions"] == {"failed": [], "skipped": [3], "late": [], "replaying": [], "closed": []}
    assert [record["status"] for record in export["transactions"]] == ["COMMITTED", "COMMITTED", "SKIPPED"]
    assert export["claims"] == {claim(number).key: number for number in (1, 2, 3)}
    assert export["version"] == 1
    assert export["topology"]["definition"]["spouts"] == {"lines": {"text": "FixedBatchSpout", "kind": "transactional"}}


def test_transactions_are_listed_in_order_and_by_range(ledger: Ledger) -> None:
    committed_up_to(ledger, 5)
    assert [record.txid for record in ledger.transactions(2, 4)] == [2, 3, 4]
    assert [record.txid for record in ledger.transactions(4)] == [4, 5]


def test_times_say_when_each_status_was_entered(ledger: Ledger) -> None:
    committed_up_to(ledger, 1)
    record = ledger.view(1).tx
    assert record is not None
    order = ["begun", "PROCESSING", "PROCESSED", "COMMITTING", "COMMITTED"]
    assert sorted(record.times_ms, key=lambda name: record.times_ms[name]) == order or list(record.times_ms) == order
    assert set(record.times_ms) == set(order)
