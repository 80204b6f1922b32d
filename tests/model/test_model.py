"""The protocol as a model, in every interleaving of small worlds; each of its guards is needed.

`make model` proves all of it. Here a part is proved, and that nothing has changed since the last proof.
"""

from __future__ import annotations

import pytest

from tests.model.tlc import KEY, KEY_MUTANTS, KEY_STATES, MUTANTS, PROVED, QUICK, QUICK_MUTANTS, STATES, check, digest


@pytest.mark.model
@pytest.mark.parametrize("configuration", QUICK)
def test_no_interleaving_breaks_a_promise(configuration: str) -> None:
    result = check(configuration)
    assert not result.violated, result.output
    assert result.states == STATES[configuration]


@pytest.mark.model
@pytest.mark.parametrize("defect", QUICK_MUTANTS)
def test_the_model_checker_finds_that(defect: str) -> None:
    configuration, removed = MUTANTS[defect]
    result = check(configuration, removed)
    assert result.violated, f"{configuration} holds without {removed}: nothing needs that guard"


@pytest.mark.model
def test_a_key_of_a_bound_topology_always_has_one_look_that_serves_its_requests() -> None:
    result = check(KEY)
    assert not result.violated, result.output
    assert result.states == KEY_STATES


@pytest.mark.model
@pytest.mark.parametrize("guard", ["each look is written", "passed"])
def test_a_guard_of_the_index_of_keys_is_needed(guard: str) -> None:
    assert guard in KEY_MUTANTS.values()
    assert check(KEY, (guard,)).violated


def test_the_model_is_the_one_that_was_proved_whole() -> None:
    assert PROVED.read_text().strip() == digest(), "the model has changed: prove it again with `make model`"


def test_a_million_states_are_checked_at_every_change_of_the_model() -> None:
    assert sum(STATES.values()) >= 1_000_000
