"""Many partitions in one drain: in groups, a damaged one alone, and each exactly once whoever is killed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.engine.engine import Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import SourceGoneError, TridentError
from airflow_trident.protocol.partitions import OnMissing
from airflow_trident.protocol.records import Claim, OnFailure, Status
from airflow_trident.runtime.drains.drain import Drain, DrainResult
from airflow_trident.runtime.drains.keys import AskedPartitions, KeyOutcome
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.drains.order import DrainFiles, answer, collect
from airflow_trident.runtime.milestones import Milestone, told
from airflow_trident.runtime.phases import Attempts
from airflow_trident.staging.manifest import Manifest
from tests.integration.test_partitions import AT, Days, Killed, register

KEYS = tuple((date(2026, 2, 1) + timedelta(days=number)).isoformat() for number in range(40))
FIRST, SECOND, THIRD, *_ = KEYS


class CountingEngine(LocalEngine):
    """Counts its passes, and the transactions of the largest."""

    passes = 0
    largest = 0

    def run(self, job: Job) -> Manifest:
        return self._counted([job], super().run(job))

    def run_group(self, jobs: Sequence[Job]) -> Manifest:
        return self._counted(jobs, super().run_group(jobs))

    def _counted(self, jobs: Sequence[Job], manifest: Manifest) -> Manifest:
        self.passes += 1
        self.largest = max(self.largest, len(jobs))
        return manifest


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with LocalEngine() as opened:
        yield opened


@pytest.fixture
def days(tmp_path: Path, engine: LocalEngine) -> Iterator[Days]:
    opened = Days(tmp_path, engine)
    yield opened
    opened.ledger.close()


def drain_of(days: Days, *keys: str, claim: str = "drain", limits: DrainLimits | None = None, **how: Any) -> Drain:
    return Drain(
        ledger=days.ledger,
        topology=days.topology,
        engine=days.engine,
        staging_root=days.staging,
        attempts=Attempts(owner="drain", on_failure=OnFailure.SKIP),
        claim=Claim(key=claim),
        limits=limits or DrainLimits(tries=1),
        partitions=AskedPartitions(keys=keys, **how),
    )


def drained(days: Days, *keys: str, **how: Any) -> DrainResult:
    return drain_of(days, *keys, **how).run()


def outcomes(result: DrainResult) -> dict[str, str]:
    return {key.key: str(key.outcome) for key in result.keys}


# ---- groups ----------------------------------------------------------------------------------------------------


def test_many_partitions_go_in_groups_and_a_damaged_one_fails_alone(days: Days) -> None:
    for number, key in enumerate(KEYS):
        days.deliver(key, ("a", number), ("b", 1))
    damaged = days.deliver(KEYS[20], ("a", 1))
    damaged.write_text('[["a", "one"]]')
    with CountingEngine() as engine:
        days.engine = engine
        result = drained(days, *KEYS, limits=DrainLimits(group=16, tries=1))
    assert {key for key, outcome in outcomes(result).items() if outcome == "failed"} == {KEYS[20]}
    assert len(result.committed) == len(KEYS) - 1
    assert engine.largest == 16
    assert engine.passes < 8
    assert days.sums == days.expected(*(key for key in KEYS if key != KEYS[20]))
    damaged.write_text('[["a", 7]]')
    again = drained(days, *KEYS, claim="again")
    assert [key.key for key in again.keys if key.outcome is KeyOutcome.COMMITTED] == [KEYS[20]]
    assert list(outcomes(again).values()).count("unchanged") == len(KEYS) - 1
    assert days.sums == days.expected(*KEYS)


def test_partitions_that_cannot_begin_do_not_stop_the_others(days: Days) -> None:
    days.deliver(FIRST, ("a", 1))
    gone = days.deliver(FIRST, ("b", 1), name="gone")
    drained(days, FIRST)
    gone.unlink()
    days.deliver(THIRD, ("c", 3))
    drain = drain_of(days, FIRST, SECOND, THIRD, claim="second")
    result = drain.run()
    assert outcomes(result) == {FIRST: "failed", SECOND: "failed", THIRD: "committed"}
    assert isinstance(drain.errors[0], SourceGoneError)
    assert "has data of the partition 2026-02-02" in result.keys[1].detail
    how = {"gone": OnMissing.TAKE, "empty": OnMissing.TAKE, "reason": "the shop is closed"}
    assert outcomes(drained(days, FIRST, SECOND, claim="third", **how)) == {FIRST: "committed", SECOND: "committed"}
    assert days.sums == days.expected(FIRST, SECOND, THIRD)
    assert days.ledger.view(3).tx.accepted == ("the shop is closed",)


@pytest.mark.parametrize(("redo", "txids"), [(False, ()), (True, (3, 4))])
def test_what_is_committed_and_unchanged_is_done_again_only_if_it_is_asked_for(
    days: Days, redo: bool, txids: tuple[int, ...]
) -> None:
    for key in (FIRST, SECOND):
        days.deliver(key, ("a", 1))
    drained(days, FIRST, SECOND)
    assert drained(days, FIRST, SECOND, claim="again", redo=redo).committed == txids
    assert days.sums == days.expected(FIRST, SECOND)


def test_limits_leave_partitions_for_the_next_drain(days: Days) -> None:
    for key in KEYS[:5]:
        days.deliver(key, ("a", 1))
    result = drained(days, *KEYS[:5], limits=DrainLimits(max_transactions=2, tries=1))
    assert [key.outcome for key in result.keys] == [KeyOutcome.COMMITTED] * 2 + [KeyOutcome.UNFINISHED] * 3
    assert drained(days, *KEYS[:5], claim="next").committed == (3, 4, 5)


# ---- what changes, and who else is at work ---------------------------------------------------------------------


def test_a_source_that_changes_while_its_group_is_processed_is_taken_as_it_is(days: Days) -> None:
    for key in KEYS[:4]:
        days.deliver(key, ("a", 1))

    def change(milestone: Milestone, txid: int) -> None:
        if milestone is Milestone.BEGUN and txid == 2:
            days.deliver(SECOND, ("a", 5), ("z", 1))

    with told(change):
        result = drained(days, *KEYS[:4])
    assert set(outcomes(result).values()) == {"committed"}
    assert days.sums == days.expected(*KEYS[:4])


def test_a_transaction_that_another_run_has_processed_is_only_committed(days: Days) -> None:
    register(days)
    days.deliver(FIRST, ("a", 1))
    days.deliver(SECOND, ("a", 1))
    days.asked(FIRST, "scheduled")
    days.emit(1)
    attempt = days.ledger.view(1).tx.attempt
    assert drained(days, FIRST, SECOND).committed == (1, 2)
    assert days.ledger.view(1).tx.attempt == attempt
    assert days.sums == days.expected(FIRST, SECOND)


@pytest.mark.parametrize("at", AT)
def test_a_drain_that_is_killed_is_gone_on_with_by_the_same_claim(days: Days, at: Milestone) -> None:
    for key in KEYS[:4]:
        days.deliver(key, ("a", 1), ("b", 2))

    def kill(milestone: Milestone, txid: int) -> None:
        if milestone is at and txid == 3:
            raise Killed

    with told(kill), pytest.raises(Killed):
        drained(days, *KEYS[:4], redo=True)
    result = drained(days, *KEYS[:4], redo=True)
    assert [key.txid for key in result.keys] == [1, 2, 3, 4]
    assert set(outcomes(result).values()) == {"committed"}
    assert days.sums == days.expected(*KEYS[:4])
    assert set(days.statuses()) == {Status.COMMITTED}


def test_the_same_claim_asks_anew_for_a_partition_that_failed_before(days: Days) -> None:
    path = days.deliver(FIRST, ("a", 1))
    path.write_text("damaged")
    assert outcomes(drained(days, FIRST)) == {FIRST: "failed"}
    days.deliver(FIRST, ("a", 1))
    assert outcomes(drained(days, FIRST)) == {FIRST: "committed"}
    assert days.sums == days.expected(FIRST)


def test_a_partition_whose_commit_has_begun_is_done_after_it(days: Days) -> None:
    register(days)
    days.deliver(FIRST, ("a", 1))
    days.asked(FIRST, "first")
    days.emit(1)
    days.ledger.gate([1], owner="committer")
    days.deliver(FIRST, ("a", 2))
    days.deliver(SECOND, ("a", 2))
    result = drained(days, FIRST, SECOND)
    assert outcomes(result) == {FIRST: "committed", SECOND: "committed"}
    assert days.sums == days.expected(FIRST, SECOND)


# ---- its result ------------------------------------------------------------------------------------------------


def test_the_result_of_a_submitted_drain_has_what_became_of_each_partition(days: Days, tmp_path: Path) -> None:
    days.deliver(FIRST, ("a", 1))
    result = drained(days, FIRST, SECOND)
    files = DrainFiles(order=str(tmp_path / "order"), result=str(tmp_path / "result"))
    answer(files.result, result)
    assert collect(files) == result
    answer(files.result, replace(result, keys=()))
    assert collect(files) == replace(result, keys=())


def test_a_key_that_is_none_of_the_topology_is_refused_before_anything_begins(days: Days) -> None:
    days.deliver(FIRST, ("a", 1))
    with pytest.raises(TridentError, match="is no key of a day"):
        drain_of(days, FIRST, "2026-2-2")
