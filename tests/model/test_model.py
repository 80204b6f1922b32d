"""The protocol as a model, in every interleaving of small worlds; and that each of its guards is needed."""

from __future__ import annotations

import pytest

from tests.model.tlc import MUTANTS, STATES, check


@pytest.mark.model
@pytest.mark.parametrize("configuration", STATES)
def test_no_interleaving_breaks_a_promise(configuration: str) -> None:
    result = check(configuration)
    assert not result.violated, result.output
    assert result.states == STATES[configuration]


@pytest.mark.model
@pytest.mark.parametrize("defect", MUTANTS)
def test_the_model_checker_finds_that(defect: str) -> None:
    configuration, removed = MUTANTS[defect]
    result = check(configuration, removed)
    assert result.violated, f"{configuration} holds without {removed}: nothing needs that guard"


def test_a_million_states_are_checked_at_every_change() -> None:
    assert sum(STATES.values()) >= 1_000_000
