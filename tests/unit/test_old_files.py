"""What is known of read files that are older than the window: those that go away and come back with their old times are
read files, and those that come late are new. Random lives of a bucket, whose objects have the time of their upload's
begin, and single rules."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_trident.errors import ConfigurationError, SourceChangedError
from airflow_trident.spouts.files import consumed
from airflow_trident.spouts.files.consumed import Consumed, consumed_from_json
from airflow_trident.spouts.files.contents import RecordedFile
from airflow_trident.spouts.files.listing import FoundFile
from airflow_trident.spouts.files.old_files import MAX_STRETCHES, cells_from_text, cells_of, cells_to_text, changes
from airflow_trident.spouts.files.spout import FileSpout
from tests.fixtures.consumed import HOUR, LIMITS, SECOND, Folder, choose, file

GONE_AND_BACK = "in '/in' that should have been read are not those that were: .* some that were read had gone away"


@dataclass
class Bucket(Folder):
    """A bucket that keeps what was deleted."""

    deleted: dict[str, tuple[int, FoundFile]] = field(default_factory=dict)
    back_again: set[str] = field(default_factory=set)

    def add(self, folder: str, age: int, *, moved: bool = False) -> None:
        super().add(folder, age, moved=True)

    def upload_ends(self, age: int) -> None:
        self.add("", age)

    def remove(self, place: int) -> None:
        before = dict(self.files)
        super().remove(place)
        self.deleted |= {path: was for path, was in before.items() if path not in self.files}

    def expire(self, age: int) -> None:
        for path, was in list(self.files.items()):
            if was[1].mtime_ns < self.now - age:
                self.deleted[path] = self.files.pop(path)

    def put_anew(self, place: int) -> None:
        """An object that was read gets other content, and a new time. The name of one that was away is free."""
        back = self.back_again
        there = sorted(path for path, (number, _) in self.files.items() if self.read[number] and path not in back)
        if there:
            path = there[place % len(there)]
            number, was = self.files[path]
            self.files[path] = (number, replace(was, size=was.size + 1, mtime_ns=self.now, ctime_ns=self.now))
            self.touched.add(number)

    def undelete(self, places: int) -> None:
        for path in sorted(self.deleted)[:places]:
            self.back_again.add(path)
            self.files[path] = self.deleted.pop(path)
            self.touched.add(self.files[path][0])

    def touch_what_was_in_no_batch(self, question: str) -> None:
        if consumed_anew := re.search(r"the file '([^']+)'.* in '/in' was consumed", question):
            number, _ = self.files.pop(consumed_anew[1])
            assert number in self.touched, f"a needless question: {question}"
            return
        assert "had gone away" in question
        assert self.touched or self.deleted, f"a needless question: {question}"
        self.now = max(self.now, consumed_from_json(self.state).settled_ns) + SECOND
        for path, (number, found) in list(self.files.items()):
            if not self.read[number]:
                self.files[path] = (number, replace(found, mtime_ns=self.now, ctime_ns=self.now))
            elif number in self.touched:
                self.deleted[path] = self.files.pop(path)


AGES = st.integers(0, 30 * HOUR)
STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 4)),
    st.tuples(st.just("upload ends"), AGES),
    st.tuples(st.just("remove"), st.integers(0, 50)),
    st.tuples(st.just("expire"), AGES),
    st.tuples(st.just("undelete"), st.integers(1, 4)),
    st.tuples(st.just("put_anew"), st.integers(0, 50)),
    st.tuples(st.just("wait"), st.integers(0, 3 * HOUR)),
    st.tuples(st.just("transact"), st.integers(1, 4)),
    st.tuples(st.just("transact"), st.integers(1, 4)),
)
AWAY_AND_BACK = [
    ("add", 2), ("transact", 4), ("wait", 3 * HOUR), ("add", 1), ("transact", 1), ("remove", 0), ("add", 1),
    ("transact", 1), ("undelete", 1),
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, max_size=40))
@example(AWAY_AND_BACK)
@example(
    [("add", 3), ("transact", 4), ("wait", 3 * HOUR), ("add", 1), ("transact", 1), ("put_anew", 0), ("put_anew", 1)]
)
@example([*AWAY_AND_BACK[:5], ("put_anew", 1), ("add", 2), ("transact", 4)])
@example([*AWAY_AND_BACK[:-1], ("upload ends", 2 * HOUR)])
@example([*AWAY_AND_BACK[:5], ("wait", 3 * HOUR), ("add", 1), ("transact", 1), ("expire", 5 * HOUR)])
def test_no_object_is_read_twice_or_lost_however_it_goes_and_comes(steps: list[tuple[str, int]]) -> None:
    bucket = Bucket()
    for kind, one in steps:
        if kind == "add":
            for _ in range(one):
                bucket.add("", 0)
        elif kind == "upload ends":
            bucket.upload_ends(one)
        elif kind == "wait":
            bucket.turn_clock(one)
        elif kind == "transact":
            bucket.transact(replace(LIMITS, max_files=one))
        else:
            getattr(bucket, kind)(one)
        bucket.now += 1
    bucket.read_all()
    assert all(times == 1 for times in bucket.read.values()), "no object is read twice"
    assert all(bucket.read[number] == 1 for number, _ in bucket.files.values()), "no object is lost"


NUMBERS = st.sets(st.integers(0, 10**6), max_size=60)


@given(NUMBERS, NUMBERS, NUMBERS)
@example(set(range(2_000)), {-1, -2}, {-3})
@example(set(), set(range(30)), set(range(30, 60)))
def test_cells_tell_all_names_that_came_and_went_or_that_they_cannot(
    both: set[int], before: set[int], now: set[int]
) -> None:
    def files(numbers: set[int]) -> list[FoundFile]:
        return [file(f"f{number}", 1) for number in numbers]

    earlier = cells_from_text(cells_to_text(cells_of(files(both | before))))
    difference = changes(earlier, cells_of(files(both | now)))
    came, went = now - before - both, before - now - both
    if difference is None:
        assert len(came | went) > 8, "a few can always be told"
        return
    assert all(map(difference.has_come, files(came)))
    assert all(map(difference.has_gone, files(went)))
    assert len(difference.came) == len(came)
    assert len(difference.went) == len(went)


# ---- single rules ----------------------------------------------------------------------------------------------


LATER_S = 86_400.0 * 1_000


def days(number: int) -> list[FoundFile]:
    """A file of each day."""
    return [file(f"day {day}", 86_400 * day) for day in range(1, number + 1)]


def read(files: list[FoundFile], before: Consumed | None = None, **limits: Any) -> Consumed:
    """What is known after one more file; as it is written."""
    names, after = choose(files, before, now_s=LATER_S, max_files=10**6, **limits)
    assert names
    return consumed_from_json(json.loads(json.dumps(after.to_json())))


def day_by_day(number: int) -> Consumed:
    before: Consumed | None = None
    for day in range(1, number + 1):
        before = read(days(day), before)
    assert before
    return before


def test_an_old_file_that_went_away_and_came_back_is_a_read_one() -> None:
    files = days(8)
    before = day_by_day(7)
    away = read([*files[:2], *files[4:]], before)
    assert choose([*files[:2], *files[4:]], away)[0] == []
    assert choose(files, away)[0] == [], "all are back"
    with pytest.raises(SourceChangedError, match=GONE_AND_BACK):
        choose([*files[:4], *files[4:], file("late", 2.5 * 86_400)], read([files[0], *files[3:]], before))
    back = read([*files, file("day 9", 86_400 * 9)], away)
    came = file("late", 3.5 * 86_400)
    assert choose([*files, file("day 9", 86_400 * 9), came], back)[0] == ["late"], "nothing is away any more"


def test_a_file_that_goes_away_while_it_is_in_the_window_is_known_after_it() -> None:
    first, second = file("a", 10_000), file("b", 10_100)
    before = read([file("0", 1_000), first, second])
    before = read([file("0", 1_000), second, file("c", 10_200)], before)
    before = read([file("0", 1_000), second, file("c", 10_200), file("d", 20_000)], before)
    assert all(len(name) == 16 for name in before.seen)
    assert len(before.seen) == 1, "the window is past it"
    assert choose([file("0", 1_000), first, second, file("c", 10_200), file("d", 20_000)], before)[0] == []


def test_a_late_upload_is_found_though_older_objects_expire() -> None:
    files = days(8)
    before = day_by_day(8)
    late = file("late", 86_400 * 7.5)
    assert choose([*files[5:], late], before, now_s=LATER_S)[0] == ["late"]
    assert choose([late, files[7]], before, now_s=LATER_S)[0] == ["late"], "one came, and its neighbour in time went"
    with pytest.raises(SourceChangedError, match="files came or went"):
        choose([late, files[7]], replace(before, cells=()), now_s=LATER_S)  # as an earlier version recorded it


def test_what_is_kept_is_bounded_and_says_more_of_the_newest() -> None:
    before = day_by_day(100)
    assert before.old
    assert len(before.old) == MAX_STRETCHES
    assert sum(one.there.files for one in before.old) == 99
    assert len(json.dumps(before.to_json()["old"])) < 1200
    assert choose([*days(100), file("late", 86_400 * 98.5)], before, now_s=LATER_S)[0] == ["late"]
    emptied = read([file("new", 86_400 * 101)], before)
    assert emptied.old
    assert not any(one.there.files for one in emptied.old)
    assert all(one.gone.files for one in emptied.old)


def anew(*files: FoundFile, at_s: float = 86_400 * 9) -> list[FoundFile]:
    """The same, written again one after the other."""
    return [file(one.path, at_s + number, size=2) for number, one in enumerate(files)]


def with_new_between(*files: FoundFile) -> list[FoundFile]:
    new = [file(f"between {number}", 86_400 * 9 + number + 0.5) for number in range(len(files))]
    return [each for pair in zip(anew(*files), new, strict=True) for each in pair]


WRITTEN_ANEW = {
    "one among new ones": lambda old: [*old[1:], file("n1", 86_400 * 8.5), *anew(old[0]), file("n2", 86_400 * 9.5)],
    "some, one after the other": lambda old: [*old[:2], *old[4:], *anew(*old[2:4]), file("new", 86_400 * 9.5)],
    "all, of several stretches": lambda old: [*anew(*reversed(old[:7])), *old[7:], file("new", 86_400 * 9.5)],
    "all that have not expired": lambda old: [*anew(*old[3:7]), *old[7:]],
    "one, while another came late": lambda old: [*old[1:], file("late", 86_400 * 6.5), *anew(old[0])],
    "two, with a new one in between": lambda old: [*old[1:2], *old[3:], *with_new_between(old[0], old[2])],
    "three, where one went away and one came late": lambda old: [
        *old[4:],
        file("late", 86_400 * 6.5),
        *with_new_between(*old[:3]),
    ],
    "one, where others expired": lambda old: [*old[3:6], old[7], *anew(old[6])],
}


@pytest.mark.parametrize("case", WRITTEN_ANEW)
def test_a_read_file_older_than_the_window_that_is_written_anew_is_not_new(case: str) -> None:
    before = day_by_day(8)
    there = WRITTEN_ANEW[case](days(8))
    with pytest.raises(SourceChangedError, match=r"'day \d' .*in '/in' was consumed .* written anew.*another name"):
        choose(there, before, now_s=LATER_S)
    times = {one.path: one.mtime_ns for one in days(8)}
    as_before = [replace(one, mtime_ns=times.get(one.path, one.mtime_ns)) for one in there]
    ignored, _ = choose(as_before, before, now_s=LATER_S, late_files="ignore", max_files=99)
    assert set(ignored) == {one.path for one in there} - times.keys()
    renamed = [replace(one, path=f"{one.path} again") if one.size == 2 else one for one in there]
    names, after = choose(renamed, before, now_s=LATER_S, max_files=99)
    assert set(names) == {one.path for one in renamed} - {one.path for one in days(8)}
    assert choose(renamed, after, now_s=LATER_S)[0] == []


def test_a_read_file_that_got_another_old_time_is_asked_about_as_all_late_ones() -> None:
    restored = file("day 2", 86_400 * 4.5, LATER_S)
    with pytest.raises(ConfigurationError, match="'day 2' in '/in' is older than what has been read"):
        choose([days(8)[0], *days(8)[2:], restored], day_by_day(8), now_s=LATER_S)


def test_a_file_written_anew_among_many_that_were_touched_is_told() -> None:
    files = [file(f"f{number}", 86_400 + number) for number in range(300)]
    before = read([*files, *days(3)[1:]], read(files))
    touched = [replace(each, ctime_ns=int(86_400 * 5 * SECOND)) for each in files[1:]]
    with pytest.raises(SourceChangedError, match="'f0' in '/in' was consumed"):
        choose([*touched, *days(3)[1:], *anew(files[0])], before, now_s=LATER_S, late_files="ignore")


def test_too_many_changes_at_once_are_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """200 files were written anew, with 200 new ones in between."""
    monkeypatch.setattr(consumed, "MAX_UNSETTLED", 0)

    def put(name: str, time_s: float) -> None:
        (tmp_path / name).write_text(f"{name} at {time_s}")
        os.utime(tmp_path / name, (time_s, time_s))

    for number in range(200):
        put(f"old {number}", 10_000 + number)
    put("newest", 20_000)
    coordinator = FileSpout(tmp_path, late_window_s=0).coordinator()
    before = coordinator.initialize_transaction(1, None)
    for number in range(200):
        put(f"old {number}", 30_000 + number)
        put(f"new {number}", 30_000.5 + number)
    assert coordinator.is_ready(before)
    assert not caplog.messages
    coordinator.initialize_transaction(2, before)
    assert [
        message for message in caplog.messages if "200 files that were read went away or were written anew" in message
    ]


def test_a_file_written_anew_is_read_if_its_transaction_takes_it_as_it_is() -> None:
    there = [*days(8)[1:], *anew(days(8)[0])]
    taken = day_by_day(8).knows([RecordedFile(path="day 1", size=2, mtime_ns=there[-1].mtime_ns)])
    assert choose(there, taken, now_s=LATER_S)[0] == []
    assert choose([*there, file("new", 86_400 * 9.5)], taken, now_s=LATER_S)[0] == ["new"]


def test_a_name_is_free_once_its_file_was_away_when_a_transaction_began() -> None:
    away = read([*days(8)[1:], file("day 9", 86_400 * 9)], day_by_day(8))
    again = file("day 1", 86_400 * 9.5)
    assert choose([*days(8)[1:], file("day 9", 86_400 * 9), again], away, now_s=LATER_S)[0] == ["day 1"]


def test_files_that_were_touched_have_not_gone_away() -> None:
    """With `late_files="ignore"` they are looked at as old ones again, once others are newer."""
    before = day_by_day(5)
    touched = [replace(one, ctime_ns=6 * 86_400 * SECOND) for one in days(5)]
    for day in (6, 7, 8):
        newer = [file(f"day {number}", 86_400 * number) for number in range(6, day + 1)]
        before = read([*touched, *newer], before, late_files="ignore")
        assert before.old
        assert not any(one.gone.files for one in before.old)


def test_an_earlier_version_reads_and_writes_beside_this_one() -> None:
    before = day_by_day(5)
    written = before.to_json()
    old = written["old"]
    assert isinstance(old, dict)
    assert {name: old[name] for name in ("files", "total")} == {"files": 4, "total": old["total"]}
    del old["stretches"]
    earlier = consumed_from_json(json.loads(json.dumps(written)))
    assert earlier.old
    assert len(earlier.old) == 1
    assert choose([*days(5), file("late", 86_400 * 2.5)], earlier)[0] == ["late"]
    assert choose(days(6), earlier)[0] == ["day 6"]
