"""Groups while more than one thing goes wrong: a drain killed in the middle of halving, or while the ledger loses
requests and answers; and one bad transaction among a hundred."""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import pytest

from airflow_trident import Count, FixedBatchSpout, SqliteState, Topology
from airflow_trident.engine.engine import Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import SparkJobError
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.protocol.records import Claim, OnFailure, Status
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.milestones import Milestone
from airflow_trident.runtime.phases import Attempts
from airflow_trident.staging.manifest import Manifest
from tests.fixtures.grouped_words import OF_GROUPS, GroupedWords


@pytest.mark.zookeeper
@pytest.mark.parametrize(
    ("point", "then"),
    [
        (f"{Milestone.ATTEMPT_STARTED}@3*2", "5"),  # one half has its attempts, and nobody is at it
        (f"{Milestone.STAGED}@3", "runner"),
        (f"{Milestone.PUBLISHED}@4", "3"),
        (f"{Milestone.PROCESSED}@5", "1"),
    ],
)
def test_p9_a_drain_killed_while_it_halves_a_group_ends_like_one_that_was_not_killed(
    point: str, then: str, grouped_words: GroupedWords
) -> None:
    assert grouped_words.run("5", "halves", crash=point) == -signal.SIGKILL
    assert grouped_words.run(then, "halves") == 0
    grouped_words.require_all_committed()


@pytest.mark.zookeeper
def test_p9_a_drain_killed_again_and_again_while_requests_and_answers_are_lost_ends_the_same(
    grouped_words: GroupedWords,
) -> None:
    places = zip(OF_GROUPS, cycle((3, 8)), strict=False)
    points = [f"{point}@{txid}" for point, txid in places]
    kills, groups = 0, ("5", "3", "4")
    while grouped_words.run(groups[kills % 3], "lossy", "halves", crash=points) != 0:
        kills += 1
        assert kills <= len(points)
    assert len(grouped_words.died()) >= len(points) - 1  # where nothing is attempted a second time there is one less
    grouped_words.require_all_committed()


class Noted(LocalEngine):
    """Notes each pass; one with the bad transaction in it fails, and does not say which it was."""

    def __init__(self, bad: int) -> None:
        super().__init__()
        self.bad = bad
        self.passes: list[tuple[int, ...]] = []

    def run(self, job: Job) -> Manifest:
        self._begins([job])
        return super().run(job)

    def run_group(self, jobs: Sequence[Job]) -> Manifest:
        self._begins(jobs)
        return super().run_group(jobs) if len(jobs) > 1 else super().run(jobs[0])

    def _begins(self, jobs: Sequence[Job]) -> None:
        txids = tuple(job.slot.txid for job in jobs)
        self.passes.append(txids)
        if self.bad in txids:
            raise SparkJobError("poison", "Mend it.")


@pytest.mark.parametrize("bad", [1, 64, 100])
def test_one_bad_transaction_among_a_hundred_fails_alone_within_two_passes_for_each_halving(
    bad: int, tmp_path: Path
) -> None:
    made = Topology("hundred")
    words = made.new_stream("words", FixedBatchSpout("word string", [f"w{number}" for number in range(100)], 1))
    store = SqliteState(str(tmp_path / "counts.db"))
    words.group_by("word").persistent_aggregate(store, Count(), "n", name="counts")
    ledger, engine = MemoryLedger(made.name), Noted(bad)
    done = Drain(
        ledger=ledger,
        topology=made,
        engine=engine,
        staging_root=str(tmp_path / "staging"),
        attempts=Attempts(owner="drain", on_failure=OnFailure.SKIP),
        claim=Claim(key="drain"),
        limits=DrainLimits(group=100, tries=1),
        retention=200,
    ).run()
    others = tuple(txid for txid in range(1, 101) if txid != bad)
    assert sorted(done.committed) == list(others)
    assert [tx.txid for tx in ledger.transactions() if tx.status is not Status.COMMITTED] == [bad]
    assert engine.passes[0] == tuple(range(1, 101))
    assert [one for one in engine.passes if bad in one][-1] == (bad,)
    assert len(engine.passes) - 1 <= 2 * math.ceil(math.log2(100)) + 1
    with made.states["counts"].factory.make_state(made.states["counts"]) as state:
        assert sorted(key for (key,), _ in state.items()) == sorted(f"w{txid - 1}" for txid in others)
