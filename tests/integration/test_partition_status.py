"""What is true of the partitions of a topology, as the ledger and the sources have it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.partition_status import (
    KeyChoice,
    KeyStatus,
    PartitionStatus,
    changed_sources,
    chosen_partitions,
    partition_statuses,
)
from airflow_trident.runtime.partitions import PartitionRequest, begin_partition
from tests.fixtures.days import DAYS, deliver, shops

FIRST, SECOND, THIRD, FOURTH = (f"2026-01-0{day}" for day in range(1, 5))
NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[LocalRunner]:
    topology = shops(tmp_path / "in", name=f"shop-{tmp_path.name}")
    with MemoryLedger(topology.name) as ledger, LocalEngine() as engine:
        yield LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=str(tmp_path / "staging"))


def looked(runner: LocalRunner) -> list[PartitionStatus]:
    return partition_statuses(runner.ledger, DAYS, clock=lambda: NOW)


def test_each_partition_up_to_now_has_the_status_of_its_last_transaction(runner: LocalRunner, tmp_path: Path) -> None:
    for key in (FIRST, SECOND, THIRD):
        deliver(tmp_path / "in", key, [("a", 1), ("b", 2)])
    runner.run(partitions=[FIRST, SECOND])
    runner.run(partitions=[FIRST])
    damaged = deliver(tmp_path / "in", THIRD, [])
    damaged.write_text('[["a", "one"]]')
    with pytest.raises(Exception, match="one"):
        runner.run(partitions=[THIRD])
    assert [(status.key, status.n, str(status.status)) for status in looked(runner)] == [
        (FIRST, 2, "COMMITTED"),
        (SECOND, 1, "COMMITTED"),
        (THIRD, 1, "FAILED"),
        (FOURTH, 0, "MISSING"),
        ("2026-01-05", 0, "OPEN"),
    ]
    first, _, third, *_ = looked(runner)
    assert (first.txid, first.committed_txid, dict(first.rows or {})) == (3, 3, {"sums": 2})
    assert (third.txid, third.committed_txid, third.rows) == (4, 0, None)
    assert "one" in third.error
    damaged.write_text('[["a", 1]]')
    deliver(tmp_path / "in", SECOND, [("c", 1)], name="late")
    changed = changed_sources(runner.ledger, runner.topology, looked(runner))
    assert {status.key: str(status.change) for status in changed if status.change} == {SECOND: "1 new"}
    chosen = {choice: keys(runner, choice) for choice in KeyChoice}
    assert chosen[KeyChoice.CHANGED] == [SECOND]
    assert chosen[KeyChoice.FAILED] == [THIRD]
    assert chosen[KeyChoice.MISSING] == [FOURTH]


def keys(runner: LocalRunner, choice: KeyChoice) -> list[str]:
    chosen = chosen_partitions(runner.ledger, runner.topology, choice, FIRST, FOURTH)
    return [status.key for status in chosen]


def test_a_partition_that_a_person_skipped_is_neither_failed_nor_missing(runner: LocalRunner, tmp_path: Path) -> None:
    deliver(tmp_path / "in", FIRST, [("a", 1)])
    runner.ledger.register(runner.topology.definition())
    begin_partition(runner.ledger, runner.topology, PartitionRequest(key=FIRST, claim=Claim(key="request")))
    assert looked(runner)[0].status is KeyStatus.PROCESSING
    runner.ledger.skip(1, "nobody wants it")
    assert looked(runner)[0].status is KeyStatus.SKIPPED
    runner.ledger.close_transaction(1, "nobody wants it")
    assert (looked(runner)[0].status, looked(runner)[0].n) == (KeyStatus.MISSING, 1)


def test_what_the_ledger_has_forgotten_is_committed(tmp_path: Path) -> None:
    topology = shops(tmp_path / "in", name=f"shop-{tmp_path.name}")
    with MemoryLedger(topology.name) as ledger, LocalEngine() as engine:
        runner = LocalRunner(
            ledger=ledger, topology=topology, engine=engine, staging_root=str(tmp_path / "staging"), retention=1
        )
        for key in (FIRST, SECOND, THIRD):
            deliver(tmp_path / "in", key, [("a", 1)])
            runner.run(partitions=[key])
        first, *_ = statuses = partition_statuses(ledger, DAYS, clock=lambda: NOW)
        assert (first.status, first.rows, first.committed_txid) == (KeyStatus.COMMITTED, None, 1)
        assert not [status.key for status in changed_sources(ledger, topology, statuses) if status.change]
