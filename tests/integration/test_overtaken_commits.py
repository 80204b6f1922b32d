"""Commits of two transactions at once: a late one, below the commit pointer, and the next one above it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count, FixedBatchSpout, SqliteState, Topology
from airflow_trident.contracts.wing import Beside
from airflow_trident.errors import GoneOverError, LateBatchError, PassedOverError
from airflow_trident.ledger.verbs import common
from airflow_trident.protocol.decide import AlreadyCommitted
from airflow_trident.protocol.diagnosis import Health, diagnose
from airflow_trident.protocol.records import Status
from airflow_trident.runtime import commit
from airflow_trident.runtime.backfill import BackfillOutcome, Selection
from airflow_trident.runtime.commit import SweepResult
from airflow_trident.runtime.repair import take_back
from airflow_trident.tasks.task_instances import evidence_of
from tests.fixtures import single
from tests.fixtures.ledger import STAGED
from tests.fixtures.runtime import ALL, WORDS, Joined, Split, World


class Pair(World):
    """Two states in two databases; the second one may depend on the order of batches."""

    most_together = 200

    def make(self) -> Topology:
        made = Topology("world")
        words = made.new_stream("lines", FixedBatchSpout("line string", WORDS, 1)).each(
            "line", Split(self.sickness), "word"
        )
        grouped = words.group_by("word")
        grouped.persistent_aggregate(SqliteState(str(self.folder / "first.db")), Count(), "first")
        second = SqliteState(str(self.folder / "second.db"))
        if self.commutes:
            grouped.persistent_aggregate(second, Count(), "count")
        else:
            grouped.persistent_aggregate(second, "word", Joined(), "count")
        return made

    def held(self, name: str) -> dict[str, Any]:
        spec = self.topology.states[name]
        with spec.factory.make_state(spec) as state:
            return {key[0]: value[0] for key, value in state.items()}

    def commit(self, txid: int, between: Callable[[], object] = lambda: None) -> SweepResult:
        """:param between: done once, after the first state has the transaction and before the second has it."""
        todo = [between]

        def progress(line: str) -> None:
            names_it = f"transaction {txid}," in line or f"transactions {txid} to" in line
            while todo and names_it and "into state first" in line:
                todo.pop()()

        return replace(self.committer(), progress=progress, most_together=self.most_together).commit(
            txid, take_over=True
        )


def prepared(world: Pair, count: int) -> Pair:
    """1 is COMMITTED, 2 SKIPPED and passed, the others up to `count` are processed."""
    for txid in range(1, count + 1):
        world.begin(f"run-{txid}")
        if txid != 2:
            world.process(txid)
            continue
        world.ledger.skip(2, "a person said so")
        world.commit(1)
    return world


@pytest.mark.parametrize("together", [1, 200])
def test_a_commit_that_a_late_one_overtakes_goes_on_with_a_new_fence(tmp_path: Path, together: int) -> None:
    world = prepared(Pair(tmp_path), 5)
    world.most_together = together

    world.process(2)
    result = world.commit(3, between=lambda: world.committer().commit(2))
    assert (result.own, result.committed) == (AlreadyCommitted(3), (3, 4, 5))
    assert [world.held(name) for name in ("first", "count")] == [ALL, ALL]


def test_a_late_commit_that_the_next_one_overtakes_goes_on_with_a_new_fence(tmp_path: Path) -> None:
    world = prepared(Pair(tmp_path), 3)
    world.process(2)
    result = world.commit(2, between=lambda: world.commit(3))
    assert result.own == AlreadyCommitted(2)
    assert world.statuses() == [Status.COMMITTED] * 3
    assert world.held("first") == world.held("count")


def test_what_was_passed_never_gets_into_one_state_alone_where_the_other_depends_on_order(tmp_path: Path) -> None:
    """Transaction 3 may commit at any moment from when 2 was skipped: also between the two states of 2."""
    world = prepared(Pair(tmp_path, commutes=False), 3)
    before = world.held("first")
    with pytest.raises(LateBatchError, match="passed"):
        world.process(2)
    assert world.statuses()[1] is Status.SKIPPED
    record = single.attempt(world.ledger, 2, owner="who looked before 1 was committed")
    single.processed(world.ledger, 2, record.attempt, STAGED)
    with pytest.raises(LateBatchError, match="passed"):
        world.commit(2, between=lambda: world.commit(3))
    assert world.held("first") == before
    assert world.ledger.skip(2, "again").status is Status.SKIPPED
    assert world.commit(3).committed == (3,)


@pytest.mark.parametrize("applied", [False, True])
def test_what_a_group_went_over_is_replayed_when_that_is_committed(tmp_path: Path, applied: bool) -> None:
    """2 was SKIPPED when the gate of 1 and 3 was opened; whoever opened it is killed.

    :param applied: and the first state has both by then.
    """
    world = Pair(tmp_path)
    for txid in (1, 2, 3):
        world.begin(f"run-{txid}")
    world.process(1)
    world.process(3)
    world.ledger.skip(2, "a person said so")

    def killed() -> None:
        raise KeyboardInterrupt

    if applied:
        with pytest.raises(KeyboardInterrupt):
            world.commit(1, between=killed)
    else:
        world.ledger.gate([1, 3], owner="test")
    with pytest.raises(PassedOverError, match="the commit of transaction 3 went over it"):
        world.process(2)
    (told,) = world.backfill().run(Selection(first=2, last=2))
    assert (told.outcome, "--txid 3`" in told.detail) == (BackfillOutcome.FAILED, True)
    both = world.backfill().run(Selection(first=2, last=3))
    assert [one.outcome for one in both] == [BackfillOutcome.FAILED, BackfillOutcome.COMMITTED]
    assert world.statuses() == [Status.COMMITTED, Status.SKIPPED, Status.COMMITTED]
    (late,) = world.backfill().run(Selection(first=2, last=2))
    assert late.outcome is BackfillOutcome.COMMITTED
    assert [world.held(name) for name in ("first", "count")] == [{"a": 1, "b": 2, "poison": 1, "c": 1}] * 2


def test_a_ledger_that_an_older_version_blocked_is_found_by_the_doctor_and_mended_by_its_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That version took up 2 when the first state had 1 and 3 already."""
    world = Pair(tmp_path)
    for txid in (1, 2, 3):
        world.begin(f"run-{txid}")
    world.process(1)
    world.process(3)
    world.ledger.skip(2, "a person said so")

    def killed() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.commit(1, between=killed)
    with monkeypatch.context() as older:
        older.setattr(common, "require_not_passed_over", lambda snap, tx: None)
        world.process(2)
    assert "went over it" not in diagnose(evidence_of(world.ledger, Beside(())))[0].why
    with pytest.raises(GoneOverError, match="`airflow trident doctor` names the commands"):
        world.commit(3)
    cure = diagnose(evidence_of(world.ledger, Beside(())))[0].cure
    commands = re.findall(r"`airflow trident ([^`]+)`", cure)
    assert commands == ["take-back world 2", "skip world 2", "backfill world --txid 3", "backfill world --txid 2"]

    take_back(world.ledger, world.topology, 2, owner="a person", reason="gone over")
    world.ledger.skip(2, "gone over")
    for txid in (3, 2):
        world.backfill().run(Selection(first=txid, last=txid))
    assert world.statuses() == [Status.COMMITTED] * 3
    assert [world.held(name) for name in ("first", "count")] == [{"a": 1, "b": 2, "poison": 1, "c": 1}] * 2
    assert diagnose(evidence_of(world.ledger, Beside(())))[0].state is Health.IDLE


# ---- what is emitted again between a committer's look and its gate ---------------------------------------------


@pytest.mark.parametrize("together", [1, 200])
def test_what_was_emitted_again_since_the_committer_looked_is_committed_by_the_same_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """It opens no gate by the older record, and looks again: nobody else is at it."""
    world, again = Pair(tmp_path), [2, 1]
    world.most_together = together
    for number in (1, 2):
        world.begin(f"run-{number}")
        world.process(number)
    look = commit.may_commit

    def looked(*given: Any, **named: Any) -> Any:
        found = look(*given, **named)
        if again:
            world.process(again.pop())
        return found

    monkeypatch.setattr(commit, "may_commit", looked)
    assert world.commit(2).committed == (1, 2)
    assert again == []
    assert [tx.attempt for tx in world.ledger.transactions()] == [1, 1]
    assert world.held("first") == world.held("count")
