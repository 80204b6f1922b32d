"""Stateful functions in topologies: exactly once, whoever is killed, overtaken or late. Real stores, real SIGKILL."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.contracts.state import Applied, StateSpec
from airflow_trident.errors import (
    FencedError,
    LateBatchError,
    LedgerBehindStateError,
    StateBehindLedgerError,
    UserCodeError,
)
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.operations.state_functions import Stateful
from airflow_trident.protocol.checkpoint import Marks
from airflow_trident.protocol.records import Status
from airflow_trident.protocol.txids import Txids
from tests.fixtures.checkpoint import give, opened, undisturbed
from tests.fixtures.program import run_program
from tests.programs import stateful_trails as trails
from tests.programs.watched import WATCHED, watchers

REPOSITORY = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def _nobody_watches_later() -> Iterator[None]:
    yield
    watchers.clear()


# ---- the contract of states (T1 to T7), by a stateful function -------------------------------------------------


def test_every_batch_is_applied_once_and_in_order(tmp_path: Path) -> None:
    with opened(trails.spec(tmp_path)) as state:
        assert state.marker() is None
        assert [give(state, txid) for txid in (1, 2, 3)] == [Applied.APPLIED] * 3
        held = {key: value for (key,), (value,) in state.items() if key not in ("tuples", "last")}
        assert held == {"two": [1, 2], "three": [1], "four": [3], "five": [3]}
        assert sum(value for (key,), (value,) in state.items() if key == "tuples") == 9
        marker = state.marker()
        assert marker is not None
        assert (marker.high, marker.fence, marker.holes) == (3, 30, ())
        assert set(state.marks().values()) == {Marks(committed=3, fence=30)}


def test_an_applied_batch_is_skipped_and_a_higher_fence_recorded(tmp_path: Path) -> None:
    with opened(trails.spec(tmp_path)) as state:
        give(state, 1)
        before = trails.contents(state)
        assert give(state, 1, fence=15) is Applied.ALREADY
        assert trails.contents(state) == before
        with pytest.raises(FencedError):
            give(state, 2, fence=14)
        assert give(state, 2, fence=20) is Applied.APPLIED


def test_a_ticket_of_a_replaced_ledger_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with opened(trails.spec(tmp_path)) as state:
        give(state, 1)
        before = state.saved(), state.marks(), trails.contents(state)
        for change in ({"incarnation": "i2"}, {"position": {"words": "another"}}):
            with pytest.raises(LedgerBehindStateError):
                give(state, 1, fence=99, **change)
        assert (state.saved(), state.marks(), trails.contents(state)) == before
        assert give(state, 2, fence=20) is Applied.APPLIED, "its fence was recorded"


def test_a_function_whose_state_lacks_what_the_ledger_calls_committed_is_not_run(tmp_path: Path) -> None:
    with opened(trails.spec(tmp_path)) as state:
        give(state, 1)
        before = state.saved(), state.marks(), trails.contents(state)
        needed = {trails.spec(tmp_path).name: Txids.of(1, 2)}
        with pytest.raises(StateBehindLedgerError, match="up to 1 and lacks 2"):
            give(state, 3, needed=needed)
        assert (state.saved(), state.marks(), trails.contents(state)) == before
        assert [give(state, 2), give(state, 3, needed=needed)] == [Applied.APPLIED] * 2


def test_a_batch_that_was_skipped_cannot_come_late_because_the_function_depends_on_order(tmp_path: Path) -> None:
    with opened(trails.spec(tmp_path)) as state:
        give(state, 1)
        give(state, 3)
        with pytest.raises(LateBatchError, match="transaction 2 comes late"):
            give(state, 2, fence=40, late=True)
        marker = state.marker()
        assert marker is not None
        assert marker.holes == ((2, 2),)
        assert state.saved().record.previous == 1


# ---- all or nothing for readers, at every moment ---------------------------------------------------------------


def test_a_reader_sees_all_of_a_batch_or_nothing_at_every_step_of_its_commit(tmp_path: Path) -> None:
    expected = [undisturbed((1,)), undisturbed((1, 2))]
    watched, plain = trails.spec(tmp_path, WATCHED), trails.spec(tmp_path)
    seen: list[int] = []

    def look(what: str, where: str) -> None:
        with opened(plain) as reader:
            seen.append(expected.index(trails.contents(reader)))
            marker = reader.marker()
            assert marker is not None
            assert marker.high == seen[-1] + 1

    with opened(watched) as state:
        give(state, 1)
        watchers.append(look)
        give(state, 2)
    assert seen == sorted(seen)
    assert {0, 1} == set(seen)


def test_a_reader_is_not_confused_by_a_commit_that_happens_while_it_reads(tmp_path: Path) -> None:
    watched, plain = trails.spec(tmp_path, WATCHED), trails.spec(tmp_path)
    with opened(plain) as writer:
        give(writer, 1)
        interrupted: list[str] = []

        def commit_meanwhile(what: str, where: str) -> None:
            if (what, where) == ("committed_items", "1") and not interrupted:
                interrupted.append(what)
                give(writer, 2)

        watchers.append(commit_meanwhile)
        with opened(watched) as reader:
            assert trails.contents(reader) == undisturbed((1, 2))
        assert interrupted


# ---- overtaken at any step -------------------------------------------------------------------------------------


def steps_of_one_commit(folder: Path) -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    with opened(trails.spec(folder, WATCHED)) as state:
        give(state, 1)
        watchers.append(lambda what, where: seen.append((what, where)))
        give(state, 2)
        watchers.clear()
    return seen


@pytest.mark.parametrize("then", [2, 3], ids=["by one who commits the same", "by one who also commits the next"])
def test_a_committer_overtaken_before_any_of_its_steps_changes_nothing_any_more(tmp_path: Path, then: int) -> None:
    expected = undisturbed(tuple(range(1, then + 1)))
    steps = steps_of_one_commit(tmp_path / "steps")
    assert [step for step in steps if step[0] in ("write", "prepare", "commit", "rollback")] == [
        ("write", "$checkpoint"),  # take over
        ("write", "$checkpoint"),  # PREPARING
        ("prepare", "0"),
        ("prepare", "1"),
        ("write", "$checkpoint"),  # COMMITTING
        ("commit", "0"),
        ("commit", "1"),
        ("write", "$checkpoint"),  # COMMITTED
    ]
    outcomes = set()
    for number in range(len(steps)):
        folder = tmp_path / str(number)
        left = number + 1

        def overtake(what: str, where: str, folder: Path = folder) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                with opened(trails.spec(folder)) as newer:
                    for txid in range(2, then + 1):
                        give(newer, txid, fence=100 + txid)

        with opened(trails.spec(folder, WATCHED)) as old:
            give(old, 1)
            watchers.append(overtake)
            try:
                outcomes.add(str(give(old, 2)))
            except FencedError:
                outcomes.add("fenced")
            finally:
                watchers.clear()
            assert trails.contents(old) == expected, steps[number]
            assert set(old.marks().values()) == {Marks(committed=then, fence=100 + then)} or then == 2
    assert outcomes == {"fenced"}


class Strict(trails.Trails):
    """Cannot stand a state that changes under it."""

    def execute(self, word: str) -> None:
        if self.state.get("last", self.txid - 1) != self.txid - 1:
            raise ValueError("this cannot be")
        super().execute(word)


def test_the_error_of_a_function_that_was_overtaken_while_it_ran_is_not_taken_for_its_own(tmp_path: Path) -> None:
    def strict(provider: str) -> StateSpec:
        one = trails.spec(tmp_path, provider)
        return replace(one, stateful=Stateful(function=Strict(), partitions=2))

    calls = 0

    def overtake(what: str, where: str) -> None:
        nonlocal calls
        calls += (what, where) == ("get", "0")
        if (what, where, calls) == ("get", "0", 2):
            with opened(strict("sqlite")) as newer:
                give(newer, 2, fence=99)

    with opened(strict(WATCHED)) as old:
        give(old, 1)
        watchers.append(overtake)
        with pytest.raises(FencedError) as raised:
            give(old, 2)
        assert isinstance(raised.value.__context__, UserCodeError)


def test_a_committer_that_was_overtaken_can_take_over_again_with_a_new_ticket(tmp_path: Path) -> None:
    with opened(trails.spec(tmp_path)) as old, opened(trails.spec(tmp_path)) as new:
        give(old, 1, fence=1)
        give(new, 2, fence=5)
        with pytest.raises(FencedError):
            give(old, 2, fence=4)
        assert give(old, 2, fence=6) is Applied.ALREADY
        assert give(old, 3, fence=7) is Applied.APPLIED
        assert trails.contents(new) == undisturbed()


# ---- killed anywhere -------------------------------------------------------------------------------------------


def test_killed_before_any_statement_of_the_store_and_again_in_recovery_ends_like_an_undisturbed_run(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.programs.stateful_trails", str(tmp_path)],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    )
    report = json.loads(done.stdout)
    assert report["different"] == []
    assert report["contents"] == undisturbed()
    assert report["statements"] == report["killed"] > 150
    assert report["recoveries"] > 75


@pytest.mark.zookeeper
@pytest.mark.parametrize(
    "kill",
    [
        "write@$checkpoint@6",  # before PREPARING of transaction 2 is written (four writes each)
        "prepare@0@2",
        "prepare@1@2",
        "write@$checkpoint@7",  # before COMMITTING
        "commit@0@2",
        "commit@1@2",
        "write@$checkpoint@8",  # before COMMITTED
        "write@$checkpoint@9",  # after it
    ],
)
def test_a_topology_killed_between_two_steps_of_a_checkpoint_and_run_again_ends_like_an_undisturbed_one(
    kill: str, zookeeper: Any, ledger_root: str, tmp_path: Path
) -> None:
    def run(kill: str) -> int:
        return run_program("stateful_trails", zookeeper.hosts, ledger_root, tmp_path, **{trails.KILL: kill})

    assert run(kill) == -signal.SIGKILL
    assert run("") == 0
    with opened(trails.spec(tmp_path)) as state:
        assert trails.contents(state) == undisturbed()
    with open_ledger(ZooKeeperSettings(hosts=zookeeper.hosts), "trails", root=ledger_root) as ledger:
        assert [tx.status for tx in ledger.transactions()] == [Status.COMMITTED] * trails.TRANSACTIONS
