"""The list of asset events: every committed transaction is somebody's, and never that of two."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from airflow_trident.contracts.state import Marker
from airflow_trident.ledger.announcements import announce, announced_events, begin_events, settle
from airflow_trident.ledger.ledger import Ledger, ZNodeLedger
from airflow_trident.ledger.recovery import seed_from
from airflow_trident.protocol.announcements import MOST_AT_ONCE, AnnouncedEvents, first_of
from airflow_trident.protocol.records import Owner
from airflow_trident.protocol.txids import NO_TXIDS, Txids
from tests.fixtures.ledger import DEFINITION, OVER_ZNODES, Place, begun, commit

pytestmark = pytest.mark.parametrize("place", OVER_ZNODES, indirect=True)


def task(name: str) -> Owner:
    return Owner(dag_id="dag", run_id="run", task_id=name, try_number=1)


def seen(ledger: Ledger) -> AnnouncedEvents:
    found = announced_events(ledger)
    assert found is not None
    return found


def taken(ledger: Ledger, name: str, told: Txids = NO_TXIDS, given_up: str = "") -> list[int]:
    gone = [one for one in seen(ledger).announced if one.by == task(given_up)]
    return list(announce(ledger, by=task(name), delivered=told, given_up=gone))


def committed(ledger: Ledger, *numbers: int) -> None:
    for number in numbers:
        begun(ledger, number)
        commit(ledger, number)


def test_what_is_committed_before_events_are_asked_for_has_none_and_every_later_one_is_taken_on_once(
    place: Place,
) -> None:
    ledger = place.registered()
    assert announced_events(ledger) is None
    committed(ledger, 1, 2)
    begin_events(ledger)
    committed(ledger, 3, 4)
    begin_events(ledger)
    begun(ledger, 5)
    assert list(seen(ledger).due(ledger.view(0))) == [3, 4]
    assert taken(ledger, "a") == [3, 4]
    assert taken(ledger, "b") == []
    assert not seen(ledger).due(ledger.view(0))


def test_what_a_task_leaves_is_taken_on_by_the_next_one_but_for_what_airflow_has(place: Place) -> None:
    ledger = place.registered()
    begin_events(ledger)
    committed(ledger, 1, 2, 3)
    assert taken(ledger, "a") == [1, 2, 3]
    assert taken(ledger, "b", told=Txids.of(2), given_up="a") == [1, 3]
    committed(ledger, 4)
    assert taken(ledger, "c", told=Txids.span(1, 3), given_up="b") == [4]
    assert (seen(ledger).settled, [one.by.task_id for one in seen(ledger).announced]) == (Txids.span(1, 3), ["c"])


def test_after_a_repair_of_an_older_copy_airflow_is_asked_for_the_events_that_it_may_have_by_then(place: Place) -> None:
    ledger = cast(ZNodeLedger, place.registered())
    begin_events(ledger)
    committed(ledger, 1, 2)
    assert taken(ledger, "a") == [1, 2]
    assert taken(ledger, "b", told=Txids.of(1), given_up="a") == [2]
    begun_ms = ledger.transactions(2)[0].times_ms["begun"]
    # the states have four, so two were committed since; Airflow has the events of 2 and 4
    held = Marker(incarnation=ledger.paths().incarnation, high=4, fence=9, position={})
    seed = seed_from({"counts": held})
    assert seed is not None
    ledger.seed(DEFINITION, seed)
    events = seen(ledger)
    assert not events.due(ledger.view(0)), "nobody brings one before Airflow was asked"
    b, asked = events.announced
    assert (b.by, asked.by.is_task, list(asked.txids), asked.since_ms) == (task("b"), False, [3, 4], begun_ms)
    assert list(announce(ledger, by=task("c"), delivered=Txids.of(2, 4), given_up=events.announced)) == [3]


def test_a_repair_brings_no_event_of_what_no_state_has(place: Place) -> None:
    """It was skipped, and whoever repairs does not know what it was: it never comes."""
    ledger = cast(ZNodeLedger, place.registered())
    begin_events(ledger)
    committed(ledger, 1)
    assert taken(ledger, "a") == [1]
    held = {
        name: Marker(incarnation=ledger.paths().incarnation, high=4, fence=9, holes=holes, position={})
        for name, holes in (("counts", ((2, 3),)), ("late", ((2, 2),)))
    }
    seed = seed_from(held)
    assert seed is not None
    ledger.seed(DEFINITION, seed)
    asked = seen(ledger).announced[-1]
    assert list(asked.txids) == [3, 4]
    assert list(announce(ledger, by=task("b"), delivered=Txids.of(1), given_up=seen(ledger).announced)) == [3, 4]


def test_a_skipped_one_has_no_event_before_its_replay_is_committed_and_a_settled_one_never(place: Place) -> None:
    ledger = place.registered()
    begin_events(ledger)
    begun(ledger, 1)
    ledger.skip(1, "because")
    committed(ledger, 2, 3)
    assert taken(ledger, "a") == [2, 3]
    settle(ledger, txids=Txids.of(3), by=task("a"))
    commit(ledger, 1)
    assert taken(ledger, "b", given_up="a") == [1, 2]


def test_a_closed_one_has_no_event_when_its_record_is_gone_with_the_list_of_closed_ones(place: Place) -> None:
    ledger = place.registered()
    begin_events(ledger)
    begun(ledger, 1)
    ledger.skip(1, "because")
    for number in range(2, 6):
        begun(ledger, number)
        commit(ledger, number, retention=2)
    assert taken(ledger, "a") == [2, 3, 4, 5]
    ledger.close_transaction(1, "nobody wants it")
    begun(ledger, 6)
    commit(ledger, 6, retention=2)
    begun(ledger, 7)
    commit(ledger, 7, retention=2)
    assert ledger.view(1).tx is None
    assert not ledger.view(0).exceptions.closed
    assert taken(ledger, "b") == [6, 7]


def test_two_at_once_never_take_on_the_same(place: Place) -> None:
    ledger = place.registered()
    begin_events(ledger)
    committed(ledger, *range(1, 6))
    ledgers = [place.registered() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda one: taken(one[1], f"task-{one[0]}"), enumerate(ledgers)))
    assert sorted(txid for txids in found for txid in txids) == [1, 2, 3, 4, 5]


def test_a_task_takes_on_the_lowest_as_many_as_fit_into_a_request(place: Place) -> None:
    assert list(first_of(Txids(((1, 2), (5, 9))), 4)) == [1, 2, 5, 6]
    assert first_of(Txids.span(1, 9_000), MOST_AT_ONCE) == Txids.span(1, MOST_AT_ONCE)
    assert first_of(NO_TXIDS, 3) == NO_TXIDS
