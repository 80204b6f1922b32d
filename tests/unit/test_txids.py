"""Sets of txids as ranges, against plain sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_trident.protocol.txids import Txids

SETS = st.frozensets(st.integers(1, 30))


def is_tidy(found: Txids) -> bool:
    return all(first <= last for first, last in found.ranges) and all(
        before[1] + 1 < after[0] for before, after in zip(found.ranges, found.ranges[1:], strict=False)
    )


@given(SETS, SETS)
def test_they_are_sets(left: frozenset[int], right: frozenset[int]) -> None:
    one, two = Txids.of(*left), Txids.of(*right)
    for found, wanted in ((one | two, left | right), (one - two, left - right), (one & two, left & right)):
        assert set(found) == wanted
        assert list(found) == sorted(wanted)
        assert len(found) == len(wanted)
        assert bool(found) == bool(wanted)
        assert is_tidy(found)
        assert found == Txids.of(*wanted)
        assert (found.lowest, found.highest) == (min(wanted, default=None), max(wanted, default=None))
        assert {txid for txid in range(40) if txid in found} == wanted


@given(SETS, st.integers(0, 30))
def test_a_run_goes_as_far_as_it_has_no_gap(txids: frozenset[int], begin: int) -> None:
    wanted = begin
    while wanted + 1 in txids:
        wanted += 1
    assert Txids.of(*txids).run_up_from(begin) == wanted


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 5)), max_size=8))
def test_ranges_may_come_in_any_order_and_overlap(ranges: list[tuple[int, int]]) -> None:
    found = Txids.joined((first, first + more) for first, more in ranges)
    assert is_tidy(found)
    assert set(found) == {txid for first, more in ranges for txid in range(first, first + more + 1)}


@pytest.mark.parametrize(
    ("txids", "text"), [(Txids(), ""), (Txids.of(3), "3"), (Txids.of(9, 3, 5, 7, 6), "3, 5 to 7, 9")]
)
def test_they_read_as_people_write_them(txids: Txids, text: str) -> None:
    assert str(txids) == text


def test_a_text_names_no_more_than_a_person_can_read() -> None:
    assert str(Txids.of(*range(1, 101, 2))).endswith("37, 39 and 30 more ranges")


def test_a_set_of_a_million_in_one_range_is_one_range() -> None:
    found = Txids.span(1, 10**6) - Txids.of(500)
    assert found.ranges == ((1, 499), (501, 10**6))
    assert (10**6 in found, 500 in found, len(Txids.span(5, 4))) == (True, False, 0)
