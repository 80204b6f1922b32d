"""What commits and cannot bring asset events puts its transactions on the list, for the task that can."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.announcements import announced_events, begin_events
from airflow_trident.protocol.records import Status
from airflow_trident.runtime.backfill import Selection
from airflow_trident.runtime.local import LocalRunner
from tests.fixtures.runtime import World
from tests.integration.test_drain import drain


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.topology.asset = "words"
    return made


def due(world: World) -> list[int]:
    """What the first task that can bring events finds."""
    begin_events(world.ledger)
    events = announced_events(world.ledger)
    assert events is not None
    return list(events.due(world.ledger.view(0)))


def runner(world: World) -> LocalRunner:
    return LocalRunner(ledger=world.ledger, topology=world.topology, engine=LocalEngine(), staging_root=world.staging)


def test_the_first_drain_by_a_program_needs_events_of_all_that_it_committed(world: World) -> None:
    drain(world, max_transactions=2)
    assert due(world) == [1, 2]


def test_a_topology_without_an_asset_has_no_list(world: World) -> None:
    world.topology.asset = ""
    drain(world)
    assert announced_events(world.ledger) is None


def test_what_was_committed_before_the_asset_was_given_needs_no_event(world: World) -> None:
    world.topology.asset = ""
    drain(world, max_transactions=2)
    world.topology.asset = "words"
    drain(world)
    assert due(world) == [3, 4, 5]


def test_a_backfill_by_a_program_needs_events_of_what_it_committed(world: World) -> None:
    world.begin("one")
    world.backfill().run(Selection(first=1, last=1))
    assert world.statuses() == [Status.COMMITTED]
    assert due(world) == [1]


@pytest.mark.parametrize("recovers", [False, True])
def test_a_runner_in_a_notebook_needs_events_of_what_it_committed(world: World, recovers: bool) -> None:
    world.begin("one")
    assert (runner(world).recover() if recovers else runner(world).run(max_transactions=1)) == [1]
    assert due(world) == [1]
