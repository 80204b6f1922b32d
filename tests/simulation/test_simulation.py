"""Production code against itself, hundreds of times, with every accident that the seeds lead to.

`make histories HISTORIES=100000` plays more; `python -m tests.simulation SEED --kind KIND` plays one and prints it.
"""

from __future__ import annotations

import re

import pytest

from tests.simulation.day_mutants import MUTANTS
from tests.simulation.history import Verdict, play
from tests.simulation.kinds import KINDS
from tests.simulation.mutants import FOUND, first_found
from tests.simulation.runner import Part, parts_of, play_all

HISTORIES, FEWER = 16, 8
"""Histories of each kind. Those of tasks take twice as long, and some kinds are mixtures of two."""
MORE = {"bound": 300, "groups-bound": 100}
"""Of kinds that nobody has played by the hundred thousand yet."""
WITHIN_SEEDS = 1_000
"""Every defect is found within this number of histories."""


@pytest.fixture(scope="module")
def played() -> list[Part]:
    mixed = [kind for kind in KINDS if KINDS[kind].tasks or KINDS[kind].levels or kind.startswith("groups-")]
    counts = {kind: FEWER if kind in mixed else HISTORIES for kind in KINDS} | MORE
    return list(play_all([part for kind, count in counts.items() for part in parts_of([kind], count, size=25)], 2))


@pytest.mark.parametrize("kind", KINDS)
def test_no_promise_is_broken_by_whatever_happens_in_histories_of(kind: str, played: list[Part]) -> None:
    mine = [part for part in played if part.kind == kind]
    broken = [(seed, what) for part in mine for seed, what in part.broken.items()]
    assert not broken, "\n".join(
        f"python -m tests.simulation {seed} --kind {kind}    # {what}" for seed, what in broken
    )
    assert sum(part.transactions for part in mine) > sum(part.last - part.first for part in mine)


@pytest.mark.parametrize("kind", ["transactional", "tasks"])
def test_a_seed_plays_the_same_history_again(kind: str) -> None:
    def names_apart(verdict: Verdict) -> str:
        return re.sub(r"\b[0-9a-f]{8}\b", "<incarnation>", "\n".join((*verdict.trace, verdict.broken)))

    for seed in range(4):
        first, second = play(seed, kind), play(seed, kind)
        assert first.steps == second.steps
        assert names_apart(first) == names_apart(second)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulation_finds_production_code_that(name: str) -> None:
    # First the seed that found it when all were played from 0: `python -m tests.simulation mutants --write`.
    found = first_found(MUTANTS[name], [FOUND.get(name, 0), *range(WITHIN_SEEDS)])
    assert found is not None, f"not one of {WITHIN_SEEDS} histories notices: {name}"
    assert re.match(r"P\d+: (?!\w*(Type|Attribute|Name|Key)Error)", found.broken), found.broken
