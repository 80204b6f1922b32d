"""The zombie matrix: a slow old attempt against its replacement ends as one attempt alone, on every state and sink."""

from __future__ import annotations

import pytest

from benchmarks.zombies import ROWS, ours, stores
from tests.fixtures.object_store import Bucket


@pytest.mark.parametrize("name", stores())
def test_whatever_an_old_attempt_still_does_the_batch_is_there_once(name: str) -> None:
    results = ours(name, stores()[name])
    assert {one.case: one.rows for one in results} == {one.case: ROWS for one in results}
    assert len(results) == 4


@pytest.mark.parametrize("name", ["sqlite", "sink: files"])
def test_whatever_an_old_attempt_still_stages_on_s3_the_batch_is_there_once(name: str, bucket: Bucket) -> None:
    results = ours(name, stores()[name], f"{bucket.uri}/staging")
    assert {one.case: one.rows for one in results} == {one.case: ROWS for one in results}
    assert bucket.proxy.asked["PUT"] > 8
