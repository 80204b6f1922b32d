"""The zombie matrix: a slow old attempt against its replacement ends as one attempt alone, on every state and sink."""

from __future__ import annotations

import pytest

from benchmarks.zombies import ROWS, ours, stores


@pytest.mark.parametrize("name", stores())
def test_whatever_an_old_attempt_still_does_the_batch_is_there_once(name: str) -> None:
    results = ours(name, stores()[name])
    assert {one.case: one.rows for one in results} == {one.case: ROWS for one in results}
    assert len(results) == 4
