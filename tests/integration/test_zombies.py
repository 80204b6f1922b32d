"""The zombie matrix: a slow old attempt against its replacement ends as one attempt alone, on every state."""

from __future__ import annotations

import pytest

from benchmarks.zombies import ROWS, ours
from tests.state_fixtures import FACTORIES


@pytest.mark.parametrize("name", FACTORIES)
def test_whatever_an_old_attempt_still_does_the_batch_is_there_once(name: str) -> None:
    results = ours(name, FACTORIES[name])
    assert {one.case: one.rows for one in results} == {one.case: ROWS for one in results}
    assert len(results) == 4
