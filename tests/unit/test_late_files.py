"""Late files: of which nobody can tell whether they were read. They are asked about, taken or ignored, each once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_trident.errors import ConfigurationError
from airflow_trident.spouts.files import consumed
from airflow_trident.spouts.files.batch_limits import LateFiles
from airflow_trident.spouts.files.listing import FoundFile
from airflow_trident.spouts.files.marks import name_mark
from tests.unit.test_consumed import HOUR, LIMITS, SECOND, STEPS, all_batches, choose, file, live


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS.filter(lambda step: step[0] != "chmod"), max_size=40), st.sampled_from([10_000, 3, 1]))
@example([("add", "", 0), ("transact", 1, None), ("move in", 4, 2 * HOUR), ("add", "b", 2 * HOUR)], 1)
@example(
    [("add", "", 0), ("transact", 1, None)]
    + [("burst", 3, 5 * HOUR), ("wait", HOUR, None)] * 2
    + [("transact", 1, None), ("wait", HOUR, None), ("burst", 2, 6 * HOUR), ("remove", 2, None)] * 3,
    1,
)
def test_late_files_are_taken_once_in_steps_between_which_marks_move(
    steps: list[tuple[str, Any, Any]], max_seen: int
) -> None:
    live(steps, max_seen, replace(LIMITS, late_files=LateFiles.TAKE))


LATE = [file("a", 10_000), file("very late", 100, 10_001)]


def test_a_file_that_comes_after_the_window_is_asked_about() -> None:
    _, before = choose(LATE[:1])
    with pytest.raises(ConfigurationError, match=r"'very late' in '/in' .*late_files=\"take\".*\"ignore\""):
        choose(LATE, before)
    with pytest.raises(ConfigurationError, match="'very late' and 1 more in"):
        choose([*LATE, file("z", 101, 10_001)], before)


def test_late_files_can_be_taken_once_or_ignored_for_ever() -> None:
    _, before = choose(LATE[:1])
    names, after = choose(LATE, before, late_files=LateFiles.TAKE)
    assert names == ["very late"]
    assert choose(LATE, after)[0] == []
    assert choose(LATE, before, late_files=LateFiles.IGNORE)[0] == []
    newer = [*LATE, file("new", 20_000)]
    names, after = choose(newer, before, late_files=LateFiles.IGNORE)
    assert names == ["new"]
    assert choose(newer, after)[0] == [], "the ignored one is not asked about again"


@pytest.mark.parametrize("years", [50, 10_000])
@pytest.mark.parametrize("late_files", [LateFiles.IGNORE, LateFiles.ERROR])
def test_all_that_comes_after_a_file_of_the_future_is_asked_about_and_not_ignored(
    late_files: LateFiles, years: int
) -> None:
    """While the window begins in the future: a hundred newer files would be ignored without a word."""
    ahead = file("ahead", 10_000 + years * 365 * 86_400, 10_000)
    _, before = choose([file("a", 10_000), ahead], now_s=10_000)
    new = [file(f"n{number}", 11_000 + number) for number in range(100)]
    with pytest.raises(ConfigurationError, match=r"'n0' and 99 more in '/in' .* in the future: .*late_files=\"take\""):
        choose([file("a", 10_000), ahead, *new], before, now_s=11_200, late_files=late_files)
    asked = [file("a", 10_000), ahead, *new]
    names, after = choose(asked, before, now_s=11_200, late_files=LateFiles.TAKE, max_files=99)
    assert names == [one.path for one in new[:99]]
    assert choose(asked, after, now_s=11_200, late_files=LateFiles.TAKE)[0] == ["n99"]


def test_what_is_late_by_this_clock_too_is_ignored_whatever_was_read() -> None:
    _, before = choose([file("a", 10_000), file("ahead", 50_000, 10_000)], now_s=10_000)
    there = [file("a", 10_000), file("ahead", 50_000, 10_000), file("late", 5_000, 11_000)]
    assert choose(there, before, now_s=11_000, late_files=LateFiles.IGNORE)[0] == []
    assert choose([*there, file("new", 49_000, 54_000)], before, now_s=54_000, late_files=LateFiles.IGNORE)[0] == [
        "new"
    ]


def test_late_files_that_do_not_fit_the_batch_are_not_lost() -> None:
    files = [file("a", 10_000), *(file(f"late {number}", 100 + number, 10_001) for number in range(5))]
    _, before = choose(files[:1])
    read = all_batches(files, before, late_files=LateFiles.TAKE, max_files=2)
    assert read == [["late 0", "late 1"], ["late 2", "late 3"], ["late 4"]]


def many_late(number: int, apart_s: float) -> list[FoundFile]:
    """A read file, and late ones, which came in another order than that of their times."""
    return [LATE[0], *(file(f"x/{n}", 100 + n * 37 % number, 10_001 + n * apart_s) for n in range(number))]


def test_late_files_are_known_by_name_until_a_mark_is_behind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """All names together would not fit into a request to ZooKeeper."""
    monkeypatch.setattr(consumed, "MAX_SEEN", 20)
    files = many_late(100, 1)
    _, before = choose(files[:1])
    read: list[str] = []
    for _ in range(10):
        names, before = choose(files, before, now_s=20_000, late_files=LateFiles.TAKE, max_files=10)
        read += names
        assert len(before.seen) <= 20
    assert sorted(read) == sorted(one.path for one in files[1:])
    assert choose(files, before, late_files=LateFiles.TAKE)[0] == []


def test_late_files_wait_until_a_mark_can_be_behind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumed, "MAX_SEEN", 10)
    monkeypatch.setattr(consumed, "MAX_TAKEN", 20)
    files = many_late(40, 0.1)
    _, before = choose(files[:1])
    read: list[list[str]] = []
    for now_s in (10_006, 10_006, 10_006, 10_006, 10_100, 10_100):
        names, before = choose(files, before, now_s=now_s, late_files=LateFiles.TAKE, max_files=10)
        read.append(names)
        if len(read) == 3:
            files.append(file("new", 10_006))
    assert read[2:4] == [[], ["new"]], "the clock does not tell yet what may come beside those that are left"
    assert sorted(one for names in read for one in names) == sorted(one.path for one in files[1:])


def test_too_many_late_files_that_came_at_once_are_an_error_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumed, "MAX_SEEN", 10)
    monkeypatch.setattr(consumed, "MAX_TAKEN", 20)
    files = many_late(60, 0)
    _, before = choose(files[:1])
    for _ in range(3):
        _, before = choose(files, before, late_files=LateFiles.TAKE, max_files=9)
    with pytest.raises(ConfigurationError, match=r"more than 30 files of the folder 'x' .*touch"):
        choose(files, before, late_files=LateFiles.TAKE, max_files=9)
    left = {name_mark(one.path) for one in files} - before.seen.keys()
    touched = [replace(one, mtime_ns=20_000 * SECOND) if name_mark(one.path) in left else one for one in files]
    assert len(choose(touched, before, late_files=LateFiles.TAKE, max_files=99)[0]) == 60 - 27


def test_a_folder_that_is_moved_in_is_asked_about() -> None:
    _, before = choose([file("x/a", 10_000)])
    with pytest.raises(ConfigurationError, match="'y/b'"):
        choose([file("x/a", 10_000), file("y/b", 100)], before)
