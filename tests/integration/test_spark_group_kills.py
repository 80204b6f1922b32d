"""P9 of groups that Spark processes: a drain and its passes killed, and whoever comes next ends the same."""

from __future__ import annotations

import signal
from itertools import cycle

import pytest

from airflow_trident.runtime.milestones import Milestone
from tests.fixtures.grouped_words import OF_GROUPS, GroupedWords
from tools.kills import IN_PASS

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark]

KINDS = {"by key": (), "by transaction": ("apart",)}
LAST_STATE = f"{Milestone.APPLIED}@3*2"
EVERYWHERE = (*(f"{point}@3" for point in (*OF_GROUPS, IN_PASS)), LAST_STATE)


@pytest.mark.rare
@pytest.mark.parametrize("kind", KINDS)
def test_p9_a_drain_on_spark_killed_at_every_point_ends_like_one_that_was_not_killed(
    kind: str, grouped_words: GroupedWords
) -> None:
    """Each run goes on where the one before died; in groups of another size each time."""
    how, kills = KINDS[kind], 0
    while grouped_words.run(("5", "4", "3")[kills % 3], "spark", *how, crash=EVERYWHERE) != 0:
        kills += 1
        assert kills <= len(EVERYWHERE)
    assert grouped_words.died() == set(EVERYWHERE)
    grouped_words.require_all_committed(*how)


def cases() -> list[object]:
    """Beside the rare ones the one where the next one finds most: a group that one state has and another has not. What
    a pass leaves that did not end is in `contracts/test_engine_groups.py`.

    Of point, kind and who comes after, every two meet; that all three do is only more of the same, and takes twice as
    long.
    """
    normal = {
        (f"{Milestone.APPLIED}@3", "by key", "runner"),
    }
    kinds = cycle(KINDS)
    met = {(point, next(kinds), after) for point in EVERYWHERE for after in ("1", "3", "runner")}
    return [
        pytest.param(*one, marks=[] if one in normal else [pytest.mark.rare], id=" ".join(one))
        for one in sorted(met | normal)
    ]


@pytest.mark.parametrize(("point", "kind", "after"), cases())
def test_p9_what_a_killed_group_of_spark_left_is_taken_up_in_another_cut_and_by_another_engine(
    point: str, kind: str, after: str, grouped_words: GroupedWords
) -> None:
    how = KINDS[kind]
    again = point.startswith(Milestone.ATTEMPT_STARTED)  # there is a second attempt where a pass failed
    halves, crash = (["halves"], f"{point}*2") if again else ([], point)
    assert grouped_words.run("5", "spark", *how, *halves, crash=crash) == -signal.SIGKILL
    if after == "runner":  # it takes over what is committed by somebody else only when that one is known to be dead
        assert grouped_words.run("1", *how) == 0
    assert grouped_words.run(after, *how) == 0
    grouped_words.require_all_committed(*how)


@pytest.mark.rare
@pytest.mark.parametrize(("point", "kind"), [(f"{IN_PASS}@3", "by transaction"), (f"{Milestone.APPLIED}@3", "by key")])
def test_p9_a_killed_group_of_transforms_is_taken_up_in_another_cut(
    point: str, kind: str, grouped_words: GroupedWords
) -> None:
    how = (*KINDS[kind], "made")
    assert grouped_words.run("5", "spark", *how, crash=point) == -signal.SIGKILL
    assert grouped_words.run("4", "spark", *how) == 0
    grouped_words.require_all_committed(*how)
