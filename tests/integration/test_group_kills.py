"""P9 of groups: whatever a killed drain leaves of a group, whoever comes next, in whatever cut, ends the same."""

from __future__ import annotations

import signal

import pytest

from airflow_trident.runtime.milestones import Milestone
from tests.fixtures.grouped_words import OF_GROUPS, GroupedWords

pytestmark = pytest.mark.zookeeper


@pytest.mark.parametrize("txid", [4, 8])
def test_p9_a_drain_killed_at_every_point_of_a_group_ends_like_one_that_was_not_killed(
    txid: int, grouped_words: GroupedWords
) -> None:
    """4 ends the first group, 8 is in the middle of the second one."""
    points = [f"{point}@{txid}" for point in OF_GROUPS]
    kills = 0
    while grouped_words.run("5" if txid == 8 else "4", crash=points) != 0:
        kills += 1
        assert kills <= len(points)
    assert grouped_words.died() == set(points)
    grouped_words.require_all_committed()


@pytest.mark.parametrize("after", ["1", "3", "runner"])
@pytest.mark.parametrize("point", [Milestone.PUBLISHED, Milestone.GATE_OPENED, Milestone.APPLIED])
def test_p9_what_a_killed_group_left_is_taken_up_in_another_cut(
    point: Milestone, after: str, grouped_words: GroupedWords
) -> None:
    assert grouped_words.run("5", crash=f"{point}@3") == -signal.SIGKILL
    if after == "runner":  # it takes over what is committed by somebody else only when that one is known to be dead
        assert grouped_words.run("1") == 0
    assert grouped_words.run(after) == 0
    grouped_words.require_all_committed()


@pytest.mark.parametrize("who", ["tasks", "backfill"])
def test_p9_who_takes_several_outside_of_a_drain_is_killed_at_every_point_and_ends_the_same(
    who: str, grouped_words: GroupedWords
) -> None:
    """7 is in the middle of the second group."""
    points = [f"{point}@7" for point in OF_GROUPS]
    kills = 0
    while grouped_words.run(who, crash=points) != 0:
        kills += 1
        assert kills <= len(points)
    assert grouped_words.died() == set(points)
    grouped_words.require_all_committed()
