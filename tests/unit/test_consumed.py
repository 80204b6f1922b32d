"""Each file is in exactly one batch, or a person is asked: random lives of a folder in a simulated file system."""

from __future__ import annotations

import json
import sys
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_trident.errors import SourceChangedError
from airflow_trident.spouts.files import consumed
from airflow_trident.spouts.files.batch_limits import BatchLimits
from airflow_trident.spouts.files.consumed import Consumed, consumed_from_json, next_batch
from airflow_trident.spouts.files.listing import Listing
from airflow_trident.spouts.files.marks import folder_mark
from tests.fixtures.consumed import HOUR, LIMITS, SECOND, Folder, all_batches, choose, file

AGES = st.one_of(st.just(0), st.integers(0, 10 * SECOND), st.integers(0, HOUR), st.integers(0, 30 * HOUR))
STEPS = st.one_of(
    st.tuples(st.just("add"), st.sampled_from(["", "a", "b"]), AGES),
    st.tuples(st.just("burst"), st.integers(2, 6), AGES),
    st.tuples(st.just("move in"), st.integers(1, 4), AGES),
    st.tuples(st.just("chmod"), st.integers(0, 50), st.none()),
    st.tuples(st.just("remove"), st.integers(0, 50), st.none()),
    st.tuples(st.just("wait"), st.one_of(st.integers(0, 5_000_000), st.integers(0, 3 * HOUR)), st.none()),
    st.tuples(st.just("transact"), st.integers(1, 4), st.none()),
    st.tuples(st.just("transact"), st.integers(1, 4), st.none()),
    st.tuples(st.just("appears while listed"), st.integers(0, 60 * SECOND), AGES),
)
CLOCKS = st.one_of(
    STEPS.filter(lambda step: step[0] not in ("chmod", "remove")),
    st.tuples(st.just("clock back"), st.integers(0, 9 * HOUR), st.none()),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, max_size=40), st.sampled_from([10_000, 3, 1]))
@example([("add", "", 0), ("transact", 1, None), ("move in", 1, 2 * HOUR)], 10_000)
@example([("add", "", 0), ("transact", 1, None), ("chmod", 0, None), ("wait", HOUR, None), ("add", "a", 0)], 1)
@example([("burst", 6, 0), ("transact", 2, None), ("transact", 2, None)], 1)
@example(
    [("add", "a", 0), ("add", "b", 0), ("transact", 4, None), ("appears while listed", 30 * SECOND, 2 * HOUR)], 10_000
)
@example(
    [("add", "a", 0), ("transact", 1, None), ("burst", 3, HOUR // 2), ("wait", HOUR, None), ("add", "a", 0)]
    + [("transact", 2, None)] * 2,
    1,
)
def test_every_file_is_read_exactly_once_or_a_person_is_asked(steps: list[tuple[str, Any, Any]], max_seen: int) -> None:
    live(steps, max_seen)


@settings(max_examples=400, deadline=None)
@given(st.lists(CLOCKS, max_size=40), st.sampled_from([10_000, 3, 1]))
@example(
    [("add", "", 0), ("transact", 1, None), ("clock back", 2 * HOUR, None), ("burst", 6, 0), ("wait", 3 * HOUR, None)],
    10_000,
)
@example(
    [("burst", 5, 0), ("transact", 4, None), ("clock back", 2 * HOUR, None), ("burst", 6, 0)]
    + [("transact", 2, None), ("clock back", 2 * HOUR, None), ("burst", 3, HOUR)],
    1,
)
def test_a_clock_that_is_set_back_hides_no_file(steps: list[tuple[str, Any, Any]], max_seen: int) -> None:
    """Nothing is removed here: see `test_removed_files_while_the_clock_is_behind_are_asked_about`."""
    live(steps, max_seen)


def live(steps: list[tuple[str, Any, Any]], max_seen: int, limits: BatchLimits = LIMITS) -> None:
    folder = Folder()
    moved = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumed, "MAX_SEEN", max_seen)
        if not any(kind in ("remove", "chmod") for kind, *_ in steps):  # else a person is asked what came and went
            patch.setattr(consumed, "MAX_UNSETTLED", max_seen)
            patch.setattr(consumed, "MAX_FOLDERS", max_seen)
        for kind, one, other in steps:
            if kind == "add":
                folder.add(one, other)
            elif kind == "burst":
                for _ in range(one):
                    folder.add("a", other)
            elif kind == "move in":
                moved += 1
                for _ in range(one):
                    folder.add(f"moved{moved}", other, moved=True)
            elif kind == "chmod":
                folder.touch_status(one)
            elif kind == "remove":
                folder.remove(one)
            elif kind in ("wait", "clock back"):
                folder.turn_clock(one if kind == "wait" else -one)
            elif kind == "transact":
                folder.transact(replace(limits, max_files=one))
            else:
                # The folder "a" was listed before the file came, "b" after a later one.
                seen = folder.listing().files
                folder.add("a", other)
                folder.now += one
                known = set(folder.files)
                folder.add("b", 0)
                late = tuple(file for path, (_, file) in folder.files.items() if path not in known)
                folder.transact(limits, Listing(seen + late, took_ns=one))
            folder.now += 1
        folder.read_all(limits)
    assert all(times == 1 for times in folder.read.values()), "no file is read twice"
    assert all(folder.read[number] == 1 for number, _ in folder.files.values()), "no file is lost"


# ---- single rules ----------------------------------------------------------------------------------------------


def test_oldest_files_come_first_and_equal_times_by_path() -> None:
    assert choose([file("b", 5), file("c", 4), file("a", 5)])[0] == ["c", "a", "b"]


def test_a_batch_ends_before_it_is_too_large_but_has_a_file() -> None:
    files = [file("a", 1, size=60), file("b", 2, size=40), file("c", 3, size=1), file("d", 4, size=500)]
    assert all_batches(files, max_bytes=100, max_files=9) == [["a", "b"], ["c"], ["d"]]


def test_young_files_wait_and_are_not_lost_behind_older_ones() -> None:
    files = [file("old", 100), file("young", 995)]
    names, before = choose(files, now_s=1000, min_age_ns=10 * SECOND)
    assert names == ["old"]
    assert choose(files, before, now_s=1004, min_age_ns=10 * SECOND)[0] == []
    assert choose(files, before, now_s=1005, min_age_ns=10 * SECOND)[0] == ["young"]


def test_a_time_in_the_future_does_not_hold_a_file_back() -> None:
    assert choose([file("future", 5_000, 900)], now_s=1000)[0] == ["future"]
    assert choose([file("future", 5_000, 900)], now_s=1000, min_age_ns=10 * SECOND)[0] == ["future"]
    assert choose([file("future", 5_000, 995)], now_s=1000, min_age_ns=10 * SECOND)[0] == []


@pytest.mark.parametrize("time_s", [-1e-9, -1, -1e11])
def test_files_of_times_before_1970_are_files_as_all_others(time_s: float) -> None:
    files = [file("b", time_s, 1_000), file("c", time_s, 1_000), file("now", 9_000)]
    assert all_batches(files, max_files=1) == [["b"], ["c"], ["now"]]
    assert all_batches(files, max_files=2) == [["b", "c"], ["now"]]
    _, before = choose(files[:2])
    before = consumed_from_json(json.loads(json.dumps(before.to_json())))
    came = file("a", time_s - 3_000, 999_000)
    assert choose([*files[:2], came], before)[0] == ["a"], "it is in the window"
    assert choose([*files[1:2], came], choose([*files[1:2], came], before)[1])[0] == []


def test_what_an_earlier_version_wrote_of_files_before_1970_is_no_place_behind_which_they_are_new() -> None:
    """It took them for new again and again, and its cursor never came to any file."""
    written: dict[str, Any] = {
        "cursor": {"mtime_ns": -1, "path": "", "ctime_ns": 1_000 * SECOND + 1},
        "window_ns": 0, "folders": folder_mark(""), "seen": "", "contents": "",
        "old": {"files": 0, "total": "0", "stretches": [[0, 0, "0"]]},
    }  # fmt: skip
    files = [file("a", -1, 1_000), file("b", 9_000)]
    assert all_batches(files, consumed_from_json(written), max_files=1) == [["a"], ["b"]]


@pytest.mark.parametrize("damage", ["old", "contents", "seen", "cursor"])
def test_metadata_without_one_of_its_parts_is_an_error_and_not_a_position_that_knows_less(damage: str) -> None:
    written = choose([file("a", 10_000)])[1].to_json()
    del written[damage]
    with pytest.raises(SourceChangedError, match="is not that of a FileSpout"):
        consumed_from_json(written)


def test_a_file_that_comes_late_within_the_window_is_read() -> None:
    _, before = choose([file("a", 10_000)])
    names, after = choose([file("a", 10_000), file("late", 7_000, 10_001)], before)
    assert names == ["late"]
    assert after.cursor == before.cursor
    assert choose([file("a", 10_000), file("late", 7_000, 10_001)], after)[0] == []


def test_a_read_file_of_the_window_may_go_away_and_come_back() -> None:
    """Whatever was read meanwhile, and wherever it stood among the others; what lies before the window is forgotten."""
    files = [file(f"f{number}", 10_000 + 100 * number) for number in range(5)]
    _, before = choose(files, max_files=9)
    for step, away in enumerate(([0], [4], [1, 2], range(5), [0, 2, 4])):
        new = file(f"new{step}", 10_500 + step)
        there = [one for number, one in enumerate(files) if number not in away]
        names, before = choose([*there, new], before)
        assert names == [new.path]
        files = [*files, new]
        before = consumed_from_json(json.loads(json.dumps(before.to_json())))
        back = [replace(one, ctime_ns=20_000 * SECOND) for one in files]
        assert choose(back, before)[0] == []
        assert len(before.seen) == len(files)
    _, later = choose([file("hours later", 30_000)], before)
    assert len(later.seen) == 1
    assert not later.contents


def test_a_read_file_that_changed_is_an_error_within_the_window() -> None:
    _, before = choose([file("a", 10_000)])
    for changed in (file("a", 10_001), file("a", 9_000), file("a", 10_000, size=2)):
        with pytest.raises(SourceChangedError, match=r"'a' in '/in' was consumed by an earlier .* Write new files"):
            choose([changed], before)


def test_a_read_file_that_was_only_touched_is_still_read() -> None:
    _, before = choose([file("a", 10_000)])
    assert choose([file("a", 10_000, 99_999)], before)[0] == []


DAY_AHEAD = [file("ahead", 100_000)]
BEHIND_S = 100_000 - 7_200


def test_files_that_came_after_the_clock_was_set_back_are_new() -> None:
    _, before = choose([file(f"old {number}", 10_000 + number) for number in range(5)], max_files=9)
    files = [file(f"old {number}", 10_000 + number) for number in range(5)] + DAY_AHEAD
    _, before = choose(files, before)
    came = [file(f"new {number}", BEHIND_S + 10 * number) for number in range(5)]
    names, after = choose([*files, *came], before, now_s=BEHIND_S + 60, max_files=2)
    assert names == ["new 0", "new 1"], "while the clock is behind"
    names, after = choose([*files, *came], after, now_s=200_000, max_files=9)
    assert names == ["new 2", "new 3", "new 4"], "and when it has passed"
    assert choose([*files, *came], after, now_s=200_000)[0] == []


def test_files_that_cannot_be_told_from_read_ones_are_refused_until_they_are_touched() -> None:
    old = [file("a", 10_000), file("b", 20_000), file("c", 30_000)]
    _, before = choose([*old, *DAY_AHEAD], max_files=9)
    came = [file("n1", 15_000), file("n2", 25_000)]  # twice set back: they are no neighbours
    for now_s in (26_000, 200_000):
        assert choose([*old, *DAY_AHEAD, *came], before, now_s=now_s)[0] == ["n1", "n2"]
        with pytest.raises(SourceChangedError, match=r"in '/in' .* not those that were: the clock was set back.*touch"):
            choose([*old, *DAY_AHEAD, *came], replace(before, cells=()), now_s=now_s)  # as of an earlier version
    touched = [file("n1", 200_001), file("n2", 200_002)]
    assert choose([*old, *DAY_AHEAD, *touched], before, now_s=200_003)[0] == ["n1", "n2"]


def test_removed_files_while_the_clock_is_behind_are_asked_about() -> None:
    old = [file("a", 10_000), file("b", 20_000), *DAY_AHEAD]
    _, before = choose(old, max_files=9)
    assert choose(old[1:], before, now_s=100_060)[0] == [], "read files may go"
    assert choose(old[1:], before, now_s=100_000 - 3_600)[0] == [], "the window says which are new"
    with pytest.raises(SourceChangedError, match="the clock was set back behind 1970-01-02T03:46:40"):
        choose(old[1:], before, now_s=BEHIND_S)
    assert choose([*old[1:], file("instead", 15_000)], before)[0] == ["instead"]
    with pytest.raises(SourceChangedError, match="files came or went"):
        choose([*old[1:], file("instead", 15_000)], replace(before, cells=()))


def test_the_content_says_whether_a_file_of_another_time_is_the_read_one() -> None:
    chosen = next_batch(Listing((file("a", 10_000),), 0), Consumed(), LIMITS, base="/in", now_ns=0)
    assert chosen
    before = consumed_from_json(json.loads(json.dumps(chosen.after({"a": "digest of a"}).to_json())))
    restored = Listing((file("a", 20_000), file("b", 20_001)), 0)

    def again(content: str) -> list[str]:
        found = next_batch(restored, before, LIMITS, base="/in", now_ns=0, content_of=lambda _: content)
        return [one.path for one in found.files] if found else []

    assert again("digest of a") == ["b"]
    with pytest.raises(SourceChangedError, match=r"'a' in '/in' was consumed .* accept-source"):
        again("another")


def test_what_is_kept_of_read_files_is_bounded() -> None:
    files = [file(f"f{number:06}", 10_000 + number / 1000) for number in range(30_000)]
    names, after = choose(files, max_files=10**6)
    assert len(names) == 30_000
    assert len(after.seen) <= consumed.MAX_SEEN + 5_001, "those of the last five seconds besides"
    assert choose(files, after)[0] == []
    assert len(json.dumps(after.to_json())) < 512 * 1024
    _, later = choose([*files, file("new", 20_000)], after)
    assert len(later.seen) == 1


AT_ONCE: dict[str, tuple[float, float, int, int]] = {  # first and last time, folders, window in seconds
    "newer": (10_000, 10_001, 1, 3_600),
    "newer, of one time": (10_000, 10_000, 1, 3_600),
    "of the window": (5_000, 5_001, 30_000, 3_600),
    "of the window, of one time": (5_000, 5_000, 1, 3_600),
    "old, in an HDFS": (1_000, 1_000, 1, sys.maxsize // SECOND),
}


@pytest.mark.parametrize("case", AT_ONCE)
def test_files_that_come_at_once_leave_a_position_that_fits_into_a_request(case: str) -> None:
    """60,000 files unpacked within a second, and looked at in that second."""
    first_s, last_s, folders, window_s = AT_ONCE[case]
    limits = {"max_files": 15_000, "late_window_ns": window_s * SECOND}
    read = file("read before", 8_000)
    _, before = choose([read], now_s=8_001, **limits)
    times = (first_s + (last_s - first_s) * number / 60_000 for number in range(60_000))
    files = [file(f"{number % folders}/f{number:06}", time_s, 10_002) for number, time_s in enumerate(times)]
    names: list[str] = []
    while len(names) < 60_000:
        more, before = choose([read, *files], before, now_s=10_003, **limits)
        assert more, "the stream goes on"
        names += more
        written = json.dumps(before.to_json())
        assert len(zlib.compress(written.encode())) < 450_000
        before = consumed_from_json(json.loads(written))
    assert sorted(names) == sorted(each.path for each in files)
    came = file("0/comes later", (first_s + last_s) / 2, 10_002)
    assert choose([read, *files, came], before, now_s=10_003, **limits)[0] == [came.path]


def test_names_that_are_no_utf8_are_names(tmp_path: Any) -> None:
    strange = b"a\xff".decode(errors="surrogateescape")
    _, after = choose([file(strange, 10)])
    assert choose([file(strange, 10)], consumed_from_json(json.loads(json.dumps(after.to_json()))))[0] == []
