"""Random files beside Python's own `csv` and `json`, in blocks of a few bytes; `make fuzz` plays more of the same."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.readers import CASES


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**63))
def test_random_files_are_read_as_python_reads_them_or_refused(name: str, seed: int) -> None:
    CASES[name](Random(seed))
