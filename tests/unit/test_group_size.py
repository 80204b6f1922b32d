"""How many transactions a drain processes together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_trident.protocol.records import Claim, Status, TxRecord
from airflow_trident.runtime.drains.drain_passes import parts_of
from airflow_trident.runtime.drains.limits import (
    FIRST,
    GROUP_BYTES,
    MOST_IN_GROUP,
    REMEMBERED,
    ROW_BYTES,
    DrainLimits,
    GroupSize,
    next_size,
)
from airflow_trident.staging.manifest import Manifest, Slot, StagedFile, StagedMember

SHARE = GROUP_BYTES // 64
"""What a group may read, in 64 parts."""


def records(count: int) -> list[TxRecord]:
    return [
        TxRecord(txid=txid, status=Status.PROCESSING, attempt=0, metadata={}, claim=Claim(key=str(txid)), op="")
        for txid in range(1, count + 1)
    ]


def cut(size: GroupSize, shares: list[int | None]) -> list[int]:
    sizes = [None if one is None else one * SHARE for one in shares]
    return [len(group) for group in size.cut(records(len(sizes)), lambda record: sizes[record.txid - 1])]


def test_it_grows_while_passes_are_short_up_to_the_most() -> None:
    size = GroupSize(DrainLimits(), together=True)
    found = []
    for _ in range(5):
        found.append(size.now)
        size.passed(size.now, 0.5)
    assert found == [FIRST, 32, 128, MOST_IN_GROUP, MOST_IN_GROUP]


def test_it_shrinks_after_a_long_pass_but_the_first_ones_and_after_a_failure() -> None:
    size = GroupSize(DrainLimits(), together=True)
    for _ in range(2):
        size.passed(8, 60.0, cold=True)  # the JVM started
        assert size.now == 8
    size.passed(8, 60.0)
    assert size.now == 4
    size.failed()
    size.failed()
    size.failed()
    assert size.now == 1


PASSES = st.lists(st.tuples(st.integers(1, 200), st.floats(0.0, 1e4)), min_size=1, max_size=6)


@given(st.integers(1, 200), PASSES)
def test_the_next_size_stays_within_bounds(now: int, took: list[tuple[int, float]]) -> None:
    assert max(1, now // 2) <= next_size(now, took) <= 4 * now


def settled(by_itself_s: float, each_s: float) -> int:
    """The size that it comes to."""
    size = GroupSize(DrainLimits(), together=True)
    for _ in range(30):
        size.passed(size.now, by_itself_s + each_s * size.now)
    return size.now


def test_it_comes_to_what_takes_some_seconds_or_pays_for_the_pass() -> None:
    assert settled(0.2, 0.01) == MOST_IN_GROUP
    assert settled(1.0, 0.1) == 40
    assert settled(0.0, 10.0) == 1
    assert settled(20.0, 0.5) == 40  # a busy machine: smaller ones would take nearly as long
    assert settled(20.0, 0.0) == MOST_IN_GROUP


def test_a_slow_start_does_not_keep_groups_small_for_ever() -> None:
    size = GroupSize(DrainLimits(), together=True)
    for place, took_s in enumerate((60.0, 30.0, 12.0, 6.0)):  # the JVM started, on a machine that was busy
        size.passed(size.now, took_s, cold=place == 0)
    assert size.now == 1
    for _ in range(10):
        size.passed(size.now, 1.5 + 0.01 * size.now)
    assert size.now == MOST_IN_GROUP


def test_a_pass_reads_no_more_than_its_bytes() -> None:
    size = GroupSize(DrainLimits(), together=True)
    assert cut(size, [20, 20, 20, 20, 80, 1, 1]) == [3, 1, 1, 2]
    assert cut(size, [100, 100]) == [1, 1]
    assert size.now == 1
    assert cut(size, [1] * 20) == [8, 8, 4]
    for _ in range(3):
        size.passed(size.now, 0.1)
    assert cut(size, [2] * 40) == [32, 8]
    assert size.now == GROUP_BYTES // (2 * SHARE)


def staged(rows_read: list[int], staged_bytes: int = 0) -> Manifest:
    slots = [Slot(topology="any", incarnation="one", txid=number, attempt=0) for number in range(1, len(rows_read) + 1)]
    members = [
        StagedMember(txid=slot.txid, attempt=0, rows_read=rows, rows={})
        for slot, rows in zip(slots, rows_read, strict=True)
    ]
    file = StagedFile(state="any", path="any", rows=1, bytes=staged_bytes)
    return Manifest(slot=slots[-1], files=(file,), rows_read=sum(rows_read), sinks={}, group=tuple(members))


def test_where_spouts_do_not_say_it_there_are_few_until_passes_have_read_some() -> None:
    size = GroupSize(DrainLimits(), together=True)
    size.passed(8, 0.1)
    assert cut(size, [None] * 20) == [8, 8, 4]
    assert size.now == 8
    size.staged(staged([10, 4 * SHARE // ROW_BYTES, 10]))
    assert cut(size, [None] * 20) == [16, 4]  # as the largest
    assert size.now == 16
    size.staged(staged([10, 10], staged_bytes=64 * SHARE))
    assert cut(size, [None] * 3) == [2, 1]  # what they stage is more than what was thought of their rows
    for _ in range(REMEMBERED):
        size.staged(staged([10]))
        size.passed(size.now, 0.1)
    assert cut(size, [None] * 40)[0] > 16  # the large ones are long ago
    assert cut(size, [None, 80, None]) == [1, 1, 1]  # what is known counts


def test_a_pass_whose_rows_nobody_counted_teaches_nothing() -> None:
    size = GroupSize(DrainLimits(), together=True)
    size.passed(8, 0.1)
    size.staged(staged([-1, -1]))
    assert cut(size, [None] * 20) == [8, 8, 4]


@pytest.mark.parametrize(
    ("limits", "together", "now"),
    [
        (DrainLimits(group=50), True, 50),
        (DrainLimits(group=50), False, 1),
        (DrainLimits(), False, 1),
        (DrainLimits(max_pending=6), True, 3),
        (DrainLimits(max_pending=1), True, 1),
        (DrainLimits(group="17"), True, 17),
    ],
)
def test_what_a_person_says_holds(limits: DrainLimits, together: bool, now: int) -> None:
    size = GroupSize(limits, together=together)
    assert size.now == now
    for _ in range(5):
        size.passed(now, 0.1)
    assert size.now == now


def test_a_failed_pass_is_followed_by_the_one_to_blame_and_the_others_or_by_halves() -> None:
    group = records(5)

    def parts(txid: int | None) -> list[list[int]]:
        return [[one.txid for one in part] for part in parts_of(group, txid)]

    assert parts(3) == [[3], [1, 2, 4, 5]]
    assert parts(None) == [[1, 2], [3, 4, 5]]
    assert parts(99) == [[1, 2], [3, 4, 5]]
