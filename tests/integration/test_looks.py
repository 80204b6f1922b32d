"""One look decides: between two looks of a task at the ledger another may commit, and no error comes of that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import FencedError, LateBatchError
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.protocol.records import Status
from airflow_trident.runtime.backfill import BackfillOutcome, Selection
from airflow_trident.runtime.phases import process
from tests.fixtures.runtime import World

CALLS = 12
"""More than any of these tasks makes."""


class Between:
    """A client of the ledger, after whose call number `when` something else happens."""

    def __init__(self, ledger: Ledger, when: int, happens: Callable[[], object]) -> None:
        self._ledger, self._left, self._happens = ledger, when, happens

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ledger, name)
        if not callable(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            result = found(*args, **options)
            self._left -= 1
            if self._left == 0:
                self._happens()
            return result

        return call


def ordered(folder: Path) -> World:
    """1 and 2 are processed into a state that depends on the order of batches; nothing was ever skipped."""
    world = World(folder, commutes=False)
    for number in (1, 2):
        world.begin(f"run-{number}")
        world.process(number)
    return world


def between(world: World, when: int) -> Ledger:
    return cast(Ledger, Between(world.ledger, when, lambda: world.committer().commit(2)))


@pytest.mark.parametrize("when", range(1, CALLS))
def test_an_emitter_that_is_run_again_while_its_transaction_is_committed(tmp_path: Path, when: int) -> None:
    world = ordered(tmp_path)
    with suppress(FencedError):
        process(between(world, when), world.topology, 2, LocalEngine(), world.staging, world.attempts())
    world.committer().commit(2)
    assert world.statuses() == [Status.COMMITTED] * 2
    assert world.counts() == {"a": "a", "b": "bb"}


@pytest.mark.parametrize("when", range(1, CALLS))
def test_a_committer_whose_transactions_another_one_commits(tmp_path: Path, when: int) -> None:
    world = ordered(tmp_path)
    replace(world.committer(), ledger=between(world, when)).commit(2, take_over=True)
    world.committer().commit(2)
    assert world.statuses() == [Status.COMMITTED] * 2
    assert world.counts() == {"a": "a", "b": "bb"}


@pytest.mark.parametrize("when", range(1, CALLS))
def test_a_backfill_of_a_transaction_that_is_committed_meanwhile(tmp_path: Path, when: int) -> None:
    world = ordered(tmp_path)
    (done,) = replace(world.backfill(), ledger=between(world, when)).run(Selection(first=2, last=2))
    assert LateBatchError.__name__ not in done.detail
    assert "order" not in done.detail
    assert done.outcome is not BackfillOutcome.FAILED or "void" in done.detail or "not the current" in done.detail
    world.committer().commit(2)
    assert world.statuses() == [Status.COMMITTED] * 2
