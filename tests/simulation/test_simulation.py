"""Production code against itself, thousands of times, with every accident that a seed can think of.

AIRFLOW_TRIDENT_HISTORIES=100000 plays more; `python -m tests.simulation SEED` plays one again and prints it.
"""

from __future__ import annotations

import multiprocessing
import os
import re
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.simulation.history import Verdict, play
from tests.simulation.mutants import first_found
from tests.simulation.opaque_mutants import MUTANTS

HISTORIES = int(os.environ.get("AIRFLOW_TRIDENT_HISTORIES", "800"))
WITHIN_SEEDS = 1_000
"""Every defect is found by one of so many histories."""


def _broken_of(first: int, last: int, restores: bool, opaque: bool) -> tuple[list[Verdict], int]:
    """The histories that broke a promise, and how many transactions there were in all of them."""
    verdicts = [play(seed, restores=restores, opaque=opaque) for seed in range(first, last)]
    return [verdict for verdict in verdicts if verdict.broken], sum(verdict.transactions for verdict in verdicts)


def _play_all(count: int, *, restores: bool = False, opaque: bool = False) -> tuple[list[Verdict], int]:
    size = max(1, count // 20)
    parts = [(first, min(first + size, count)) for first in range(0, count, size)]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(_broken_of, first, last, restores, opaque) for first, last in parts]
        results = [job.result() for job in jobs]
    return [verdict for broken, _ in results for verdict in broken], sum(count for _, count in results)


def _said(broken: list[Verdict], options: str = "") -> str:
    return "\n".join(
        f"python -m tests.simulation {verdict.seed}{options}    # {verdict.broken}" for verdict in broken[:5]
    )


def test_no_promise_is_broken_by_kills_pauses_lost_answers_late_writes_duplicates_and_people() -> None:
    broken, transactions = _play_all(HISTORIES)
    assert not broken, _said(broken)
    assert transactions > 2 * HISTORIES


def test_opaque_no_record_is_skipped_or_doubled_whatever_batches_the_attempts_choose() -> None:
    broken, transactions = _play_all(HISTORIES // 2, opaque=True)
    assert not broken, _said(broken, " --opaque")
    assert transactions > HISTORIES


@pytest.mark.parametrize("opaque", [False, True])
def test_a_ledger_restored_from_an_old_copy_is_refused_and_nothing_is_lost_in_silence(opaque: bool) -> None:
    broken, transactions = _play_all(HISTORIES // 5, restores=True, opaque=opaque)
    assert not broken, _said(broken, " --restores" + " --opaque" * opaque)
    assert transactions > HISTORIES // 5


def test_a_seed_plays_the_same_history_again() -> None:
    def names_apart(verdict: Verdict) -> str:
        return re.sub(r"\b[0-9a-f]{8}\b", "<incarnation>", "\n".join((*verdict.trace, verdict.broken)))

    for seed in range(5):
        first, second = play(seed), play(seed)
        assert first.steps == second.steps
        assert names_apart(first) == names_apart(second)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulation_finds_production_code_that(name: str) -> None:
    found = first_found(MUTANTS[name], WITHIN_SEEDS)
    assert found is not None, f"not one of {WITHIN_SEEDS} histories notices: {name}"
    assert re.match(r"P\d+: (?!\w*(Type|Attribute|Name|Key)Error)", found.broken), found.broken
