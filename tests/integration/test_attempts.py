"""Attempts that end before their time: failed by the user's own word, or because they took too long."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from airflow_trident import FailedException
from airflow_trident.engine.engine import Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import AttemptTimeoutError
from airflow_trident.protocol.records import Status, TxRecord
from airflow_trident.runtime import timeouts
from airflow_trident.staging.manifest import Manifest
from tests.fixtures.runtime import ALL, World
from tests.integration.test_drain import drain


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def record(world: World, txid: int) -> TxRecord:
    found = world.ledger.view(txid).tx
    assert found is not None
    return found


class Failing(LocalEngine):
    """A function fails the first `times` attempts."""

    def __init__(self, times: int, error: Exception) -> None:
        super().__init__()
        self.times = times
        self.error = error

    def run(self, job: Job) -> Manifest:
        self.times -= 1
        if self.times >= 0:
            raise self.error
        return super().run(job)


def test_a_failed_attempt_is_noted_in_its_own_words_and_followed_by_another(world: World) -> None:
    world.begin("one")
    with pytest.raises(FailedException, match="rates are missing"):
        world.process(1, Failing(1, FailedException("rates are missing")))
    noted = record(world, 1)
    assert (noted.status, noted.attempt, noted.error) == (Status.PROCESSING, 0, "FailedException: rates are missing")
    world.process(1)
    assert (record(world, 1).status, record(world, 1).attempt) == (Status.PROCESSED, 1)


def test_an_attempt_that_is_failed_for_good_fails_its_transaction_at_once(world: World) -> None:
    world.begin("one")
    with pytest.raises(FailedException):
        world.process(1, Failing(1, FailedException("withdrawn", retry=False)))
    assert record(world, 1).status is Status.FAILED


def test_a_drain_goes_on_with_another_attempt(world: World) -> None:
    result = drain(world, engine=Failing(2, FailedException("rates are missing")), max_pending=1)
    assert result.committed == (1, 2, 3, 4, 5)
    assert world.counts() == ALL
    assert record(world, 1).attempt == 2


class Hanging(LocalEngine):
    """Its first run does not end by itself, and cancelling does not help."""

    hangs = True

    def run(self, job: Job) -> Manifest:
        if self.hangs:
            self.hangs = False
            threading.Event().wait()
        return super().run(job)


class Stubborn(Hanging):
    """Takes whatever happens for an error that passes."""

    def run(self, job: Job) -> Manifest:
        while self.hangs:
            try:
                return super().run(job)
            except Exception:  # noqa: BLE001
                self.hangs = True
        return super().run(job)


@pytest.mark.parametrize("kind", [Hanging, Stubborn])
def test_what_cancelling_does_not_end_is_interrupted_and_noted(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: type[Hanging]
) -> None:
    monkeypatch.setattr(timeouts, "GRACE_S", 0.1)
    world.begin("one")
    engine = kind()
    with pytest.raises(AttemptTimeoutError, match=r"attempt 0 of transaction 1 took longer than 0\.1 s"):
        world.process(1, engine, timeout_s=0.1)
    noted = record(world, 1)
    assert noted.status is Status.PROCESSING
    assert noted.error.startswith("AttemptTimeoutError: attempt 0 of transaction 1 took longer")
    world.process(1, engine, timeout_s=600.0)
    assert record(world, 1).status is Status.PROCESSED
