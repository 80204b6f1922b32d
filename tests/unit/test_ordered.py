"""Objects whose names tell the order in which they came: each is read once, and a listing begins where it must."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_trident.errors import ConfigurationError, SourceChangedError
from airflow_trident.spouts.files import ordered
from airflow_trident.spouts.files.batch_limits import BatchLimits, LateFiles
from airflow_trident.spouts.files.consumed import consumed_from_json
from airflow_trident.spouts.files.listing import FoundFile
from airflow_trident.spouts.files.ordered import ReadInOrder, next_in_order, read_in_order_from_json

SECOND = 10**9


def limits(max_files: int = 100, window_s: float = 10, max_bytes: int = 10**6, min_age_s: float = 0) -> BatchLimits:
    return BatchLimits(
        max_files=max_files,
        max_bytes=max_bytes,
        min_age_ns=int(min_age_s * SECOND),
        late_window_ns=int(window_s * SECOND),
        late_files=LateFiles.ERROR,
    )


def file(name: str, at_s: float, size: int = 1, etag: str = '"e"') -> FoundFile:
    return FoundFile(name, size, int(at_s * SECOND), int(at_s * SECOND), etag)


def batch(
    files: list[FoundFile], before: ReadInOrder, given_limits: BatchLimits, now_s: float = 10**6
) -> tuple[list[str], ReadInOrder]:
    """Names of the next batch, and the position as the ledger has it."""
    found = iter([one for one in sorted(files, key=lambda one: one.path) if one.path > before.upto])
    chosen = next_in_order(found, before, given_limits, base="/in", now_ns=int(now_s * SECOND))
    if chosen is None:
        return [], before
    after = read_in_order_from_json(json.loads(json.dumps(chosen.after({}).to_json())))
    return [one.path for one in chosen.files], after


def all_read(files: list[FoundFile], before: ReadInOrder, given_limits: BatchLimits) -> list[str]:
    """Names of all batches until nothing is new: each has a file at least."""
    read: list[str] = []
    for _ in range(len(files) + 1):
        names, before = batch(files, before, given_limits)
        if not names:
            return read
        read += names
    raise AssertionError(f"files are read again and again: {read}")


@given(
    jitters=st.lists(st.integers(0, 10), min_size=1, max_size=40),
    max_files=st.integers(1, 4),
    looks=st.lists(st.integers(0, 3), min_size=40, max_size=40),
    removes=st.booleans(),
)
def test_what_keeps_the_rule_is_read_once_however_names_and_looks_fall(
    jitters: list[int], max_files: int, looks: list[int], removes: bool
) -> None:
    """Object n comes at second n, and its name is that of a second up to ten later: within the window."""
    there: list[FoundFile] = []
    read: list[str] = []
    before = ReadInOrder()
    for at, jitter in enumerate(jitters):
        there.append(file(f"{at + jitter:05}-{at}", at))
        for _ in range(looks[at]):
            names, before = batch(there, before, limits(max_files))
            read += names
            if removes:
                there = [one for one in there if one.path not in names]
    read += all_read(there, before, limits(max_files))
    assert sorted(read) == sorted(f"{at + jitter:05}-{at}" for at, jitter in enumerate(jitters))


@given(
    jitters=st.lists(st.integers(0, 10), min_size=1, max_size=40),
    max_files=st.integers(1, 4),
    looks=st.lists(st.integers(0, 3), min_size=40, max_size=40),
    away=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30)), max_size=10),
    most_away=st.sampled_from([1, 32]),
)
def test_objects_that_go_away_and_come_back_are_read_once(
    jitters: list[int], max_files: int, looks: list[int], away: list[tuple[int, int]], most_away: int
) -> None:
    """At second n some read objects go, and they are back some seconds later."""
    there: list[FoundFile] = []
    gone: list[tuple[int, FoundFile]] = []
    read: list[str] = []
    before = ReadInOrder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordered, "MAX_AWAY", most_away)
        for at, jitter in enumerate([*jitters, *[0] * 30]):
            there += [file(f"{at + jitter:05}-{at}", at)] + [one for back, one in gone if back == at]
            leaving = [(at + stays, one) for when, stays in away if when == at for one in there if one.path in read]
            gone = [one for one in gone if one[0] > at] + [one for one in leaving if one[0] > at][:3]
            there = [one for one in there if one not in [left for _, left in gone]]
            for _ in range(looks[at % 40]):
                names, before = batch(there, before, limits(max_files))
                read += names
        read += all_read(there, before, limits(max_files))
    assert sorted(set(read)) == sorted(read)
    assert {one.path for one in there} <= set(read)


def test_names_of_objects_that_are_away_are_kept_as_long_as_the_window() -> None:
    """Each is deleted when it has been read, and one comes back."""
    before, first = ReadInOrder(), file("000", 0)
    names, before = batch([first], before, limits())
    for at in range(1, 40):
        names, before = batch([file(f"{at:03}", at)], before, limits())
        assert names == [f"{at:03}"]
        assert len(before.marks) <= 12
        assert before.upto == ("" if at < 12 else f"{at - 11:03}")
        assert batch([file("000", 0), file(f"{at:03}", at)], before, limits())[0] == []


def test_a_listing_begins_behind_what_is_older_than_the_window() -> None:
    files = [file(f"{at:03}", at) for at in range(100)]
    names, after = batch(files, ReadInOrder(), limits())
    assert len(names) == 100
    assert after.upto == "088"
    assert len(after.seen) == 11
    assert batch(files, after, limits(window_s=0))[0] == []


def test_without_a_window_it_begins_behind_the_last_one_that_was_read() -> None:
    files = [file(f"{at:03}", 5) for at in range(100)]
    _, after = batch(files, ReadInOrder(), limits(40, window_s=0))
    assert (after.upto, after.seen) == ("039", {})


def test_no_more_is_listed_than_a_batch_needs() -> None:
    asked: list[str] = []

    def listing() -> Iterator[FoundFile]:
        for at in range(1000):
            asked.append(f"{at:04}")
            yield file(f"{at:04}", at)

    chosen = next_in_order(listing(), ReadInOrder(), limits(3), base="/in", now_ns=10**18, most=2)
    assert chosen is not None
    assert [len(one) for one in chosen.batches] == [3, 3]
    assert not chosen.complete
    assert len(asked) == 7


def test_names_that_were_not_reached_are_still_known() -> None:
    """Many come late, before one that was read."""
    files = [file("z", 5)]
    _, after = batch(files, ReadInOrder(), limits(2))
    files += [file(name, 6) for name in "abcdef"]
    assert all_read(files, after, limits(2)) == list("abcdef")


def test_a_young_object_holds_back_those_behind_it() -> None:
    files = [file("a", 1), file("b", 99), file("c", 2)]
    names, after = batch(files, ReadInOrder(), limits(window_s=0, min_age_s=10), now_s=100)
    assert (names, after.upto) == (["a"], "a")
    assert batch(files, after, limits(window_s=0, min_age_s=10), now_s=200)[0] == ["b", "c"]


def test_a_read_object_that_changed_is_an_error() -> None:
    _, after = batch([file("a", 5)], ReadInOrder(), limits())
    assert batch([file("a", 9)], after, limits())[0] == [], "another time alone is none"
    for changed in (file("a", 5, etag='"f"'), file("a", 5, size=2)):
        with pytest.raises(SourceChangedError, match="'a' in '/in' was consumed by an earlier transaction"):
            batch([changed], after, limits())


def test_more_names_than_can_be_kept_are_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered, "MAX_SEEN", 10)
    files = [file(f"{at:03}", 5) for at in range(11)]
    with pytest.raises(ConfigurationError, match=r"11 objects behind '' .* smaller late_window_s"):
        batch(files, ReadInOrder(), limits())
    assert len(batch(files, ReadInOrder(), limits(window_s=0))[0]) == 11


@pytest.mark.parametrize("metadata", [{"upto": 7, "files": []}, {"files": []}, {"ordered": 1}, [], "x"])
def test_a_position_of_another_kind_is_refused(metadata: Any) -> None:
    with pytest.raises(SourceChangedError):
        read_in_order_from_json(metadata)


def test_what_was_read_in_order_is_not_read_otherwise() -> None:
    with pytest.raises(SourceChangedError, match=r"of a FileSpout with ordered_names=True.*Set it again"):
        consumed_from_json({"files": [], **ReadInOrder(upto="a").to_json()})
