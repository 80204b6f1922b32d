"""The contract tests that every change runs: each promise over each kind of implementation, but not every combination
of the two. `make contracts` runs all of them."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.ledger.ledger import Ledger
from airflow_trident.states.keyvalue.base import StateProvider
from tests.fixtures.behind import restore, site  # noqa: F401 - fixtures
from tests.fixtures.keyvalue import PROVIDERS, State
from tests.fixtures.ledger import LEDGERS, Place
from tests.fixtures.open_state import factory, spec  # noqa: F401 - fixtures

EVERY_PRODUCT = os.environ.get("AIRFLOW_TRIDENT_CONTRACTS") == "all"

LOSSY = (
    "znodes that apply and lose every acknowledgement",
    "znodes that lose every second request",
    "znodes that delay every second request",
    "znodes whose delayed requests arrive before the repeated ones",
)
"""Each test of the ledger runs over one of these, always the same one; the simulation loses answers everywhere."""

LARGE = ("oracle", "znodes in memory", "real ZooKeeper")
"""Ledgers for the tests of metadata with several chunks, which are written in the same step as everything else.
Metadata that are larger than one request to ZooKeeper go only to the real one, because only it has that limit."""
LARGEST_BYTES = 1_500_000

FORGETFUL = " that loses its answers"
"""States with this name repeat every apply, which T2 and T12 are about. In tests of anything else the one of SQLite is
enough."""
OF_ANSWERS = ("test_states.py", "test_state_groups.py", "test_state_group_cuts.py", "test_keyvalue_states.py")
MARIADB = "sqlalchemy on mariadb"
OF_MARIADB = ("test_states.py", "test_opaque_states.py")
"""What `make test` tries on MariaDB, where the code of SqlState runs as on PostgreSQL; `make contracts` tries all."""
SEEDS = 1
"""Random orders over each store; the simulation plays more of them with the decision that all stores share."""
SHARED_OUT = {
    "test_t9_a_newer_attempt_takes_the_batch_of_the_older_one_back": 3,
    "test_t9_the_first_txid_of_all_is_replaced_and_the_next_goes_on_from_there": 3,
    "test_t9_replaced_by_an_empty_batch_and_by_a_full_one_again": 3,
    "test_t9_whoever_opens_the_state_next_can_take_the_batch_back": 3,
    "test_t9_a_zombie_of_the_old_attempt_is_fenced": 3,
    "test_t9_only_the_highest_txid_can_be_replaced": 3,
    "test_t9_a_late_batch_stays_when_the_highest_txid_is_replaced": 2,
    "test_t12_any_cut_of_batches_into_groups_ends_in_the_same_rows": 2,
    "test_t12_after_the_step_each_ticket_alone_is_there_already": 2,
    "test_t12_tickets_that_are_not_one_step_are_refused": 3,
    "test_t12_one_of_a_group_with_another_batch_is_refused_and_changes_nothing": 3,
    "test_a_request_that_is_refused_lost_or_slow_is_asked_again_and_gives_the_same": 2,
    "test_every_commit_prepares_operations_of_its_own": 3,
}
"""Tests of cases over stores -> how many shares their cases have. A store gets one share, the next store the next one:
every store runs each test, and every case runs over several stores."""


@pytest.fixture(params=LEDGERS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Each kind of ledger in turn."""
    with LEDGERS[request.param](request) as found:
        yield found


@pytest.fixture
def ledger(place: Place) -> Ledger:
    """A ledger of each kind, whose topology is registered."""
    return place.registered()


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest, tmp_path: Path) -> StateProvider:
    """Each kind of key-value store in turn."""
    return PROVIDERS[request.param](tmp_path)


@pytest.fixture
def state(provider: StateProvider) -> Iterator[State]:
    """An open key-value state of each kind."""
    with provider.new_state("count-0") as opened:
        yield opened


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left = [] if EVERY_PRODUCT else [item for item in items if _is_for_all(item)]
    if left:
        gone = set(map(id, left))
        items[:] = [item for item in items if id(item) not in gone]
        config.hook.pytest_deselected(items=left)


def _is_for_all(item: Any) -> bool:
    """Does only `make contracts` run the test?"""
    if not hasattr(item, "callspec") or item.path.parent.name != "contracts":
        return False
    params = [one for one in item.callspec.params.values() if isinstance(one, str)]
    if "large_metadata" in item.name:
        places = LARGE[-1:] if item.callspec.params.get("size", 0) >= LARGEST_BYTES else LARGE
        return not any(one in places for one in params)
    if item.callspec.params.get("seed", 0) >= SEEDS:
        return True
    drawn = LOSSY[zlib.crc32(f"{item.path.name}::{item.originalname}".encode()) % len(LOSSY)]
    if any(one in LOSSY and one != drawn for one in params):
        return True
    if MARIADB in params and item.path.name not in OF_MARIADB:
        return True
    shares = SHARED_OUT.get(item.originalname, 1)
    if (zlib.crc32(item.originalname.encode()) + sum(item.callspec.indices.values())) % shares:
        return True
    return item.path.name not in OF_ANSWERS and FORGETFUL in item.name and f"sqlite{FORGETFUL}" not in item.name
