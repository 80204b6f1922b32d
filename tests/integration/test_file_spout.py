"""FileSpout on real folders: which files are meant, in which batch they are, and what becomes of changed ones."""

from __future__ import annotations

import os
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_trident.errors import (
    ConfigurationError,
    SourceChangedError,
    SourceUnavailableError,
)
from airflow_trident.spouts.files import formats
from airflow_trident.spouts.files.spout import FileSpout
from airflow_trident.types import names_of
from tests.fixtures.file import begin, lines, names, put

# ---- which files are meant -------------------------------------------------------------------------------------

TREE = [
    "a.txt",
    "b.log",
    ".hidden",
    "_SUCCESS",
    "c.txt.tmp",
    "d.part",
    "e._COPYING_",
    "x[1].txt",
    "sub/f.txt",
    "sub/deep/g.txt",
    "sub/_temporary/h.txt",
    ".git/i.txt",
    "day=1/j.txt",
]


MEANT = [
    ("", False, ["a.txt", "b.log", "x[1].txt"]),
    ("", True, ["a.txt", "b.log", "x[1].txt", "sub/f.txt", "sub/deep/g.txt", "day=1/j.txt"]),
    ("*.txt", False, ["a.txt", "x[1].txt"]),
    ("?.txt", False, ["a.txt"]),
    ("*/*.txt", False, ["sub/f.txt", "day=1/j.txt"]),
    ("**/*.txt", False, ["a.txt", "x[1].txt", "sub/f.txt", "sub/deep/g.txt", "day=1/j.txt"]),
    ("**", False, ["a.txt", "b.log", "x[1].txt", "sub/f.txt", "sub/deep/g.txt", "day=1/j.txt"]),
    ("sub/**/g.txt", False, ["deep/g.txt"]),
    ("sub/**/**/*.txt", False, ["f.txt", "deep/g.txt"]),
    ("[ab].*", False, ["a.txt", "b.log"]),
    ("day=[12]/*", False, ["day=1/j.txt"]),
    ("a.txt", False, ["a.txt"]),
    ("x[1].txt", False, ["x[1].txt"]),
    ("_SUCCESS", False, ["_SUCCESS"]),
    ("c.txt.tmp", False, ["c.txt.tmp"]),
    ("_*", False, ["_SUCCESS"]),
    (".h*", False, [".hidden"]),
    ("sub/_temporary/*", False, ["h.txt"]),
    ("nothing-*", False, []),
]
"""Path below the tree, recursive, and what it means, relative to the folder before the first wildcard."""


@pytest.mark.parametrize(("path", "recursive", "expected"), MEANT)
def test_a_path_a_folder_and_a_pattern_mean_these_files(
    tmp_path: Path, path: str, recursive: bool, expected: list[str]
) -> None:
    for number, name in enumerate(TREE):
        put(tmp_path, name, mtime_s=1000 + number)
    found = begin(FileSpout(str(tmp_path / path), recursive=recursive))
    assert names(found) == expected


def test_links_to_files_are_read_and_links_in_a_circle_do_no_harm(tmp_path: Path) -> None:
    put(tmp_path, "real/a.txt", "a\n")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "link.txt").symlink_to(tmp_path / "real" / "a.txt")
    (folder / "broken.txt").symlink_to(tmp_path / "nowhere")
    (folder / "circle").symlink_to(folder)
    os.mkfifo(folder / "pipe.txt")
    spout = FileSpout(str(folder), recursive=True)
    metadata = begin(spout)
    assert names(metadata) == ["link.txt"]
    assert lines(spout, metadata) == ["a"]


def test_a_tilde_and_a_relative_path_are_resolved_where_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, here = FileSpout("~/in/*.txt"), FileSpout("in")
    put(tmp_path, "in/a.txt", "x\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for spout in (home, here):
        assert lines(spout, begin(spout)) == ["x"]


@pytest.mark.parametrize("name", ["missing", "missing/*.txt", "missing.txt"])
def test_a_path_that_is_not_there_is_retryable_and_named(tmp_path: Path, name: str) -> None:
    coordinator = FileSpout(str(tmp_path / name)).coordinator()
    for ask in (coordinator.is_ready, lambda previous: coordinator.initialize_transaction(1, previous)):
        with pytest.raises(SourceUnavailableError, match=r"there is no '.*missing.*'\. Make it"):
            ask(None)


# ---- batches ---------------------------------------------------------------------------------------------------


def test_batches_are_cut_by_files_and_bytes_oldest_first(tmp_path: Path) -> None:
    for number, size in enumerate([10, 10, 10, 100, 1, 1]):
        put(tmp_path, f"{9 - number}.txt", "x" * size, mtime_s=1000 + number)
    spout = FileSpout(str(tmp_path), max_files=3, max_bytes=20)
    read, previous = [], None
    while (previous := begin(spout, previous)) is not None:
        read.append(names(previous))
    assert read == [["9.txt", "8.txt"], ["7.txt"], ["6.txt"], ["5.txt", "4.txt"]]


def test_a_listing_that_changes_between_attempts_does_not_change_the_batch(tmp_path: Path) -> None:
    put(tmp_path, "a.txt", "1\n", mtime_s=1000)
    spout = FileSpout(str(tmp_path))
    metadata = begin(spout)
    put(tmp_path, "0.txt", "new\n", mtime_s=900)
    assert lines(spout, metadata) == ["1"]
    assert names(begin(spout, metadata)) == ["0.txt"]


def test_is_ready_says_whether_there_is_a_batch_and_changes_nothing(tmp_path: Path) -> None:
    spout = FileSpout(str(tmp_path))
    assert not spout.coordinator().is_ready(None)
    put(tmp_path, "a.txt")
    assert spout.coordinator().is_ready(None)
    assert spout.coordinator().is_ready(None)
    assert not spout.coordinator().is_ready(begin(spout))


def test_a_file_of_the_future_or_of_the_year_1970_is_a_file(tmp_path: Path) -> None:
    put(tmp_path, "old.txt", mtime_s=0)
    put(tmp_path, "older.txt", mtime_s=-86400)
    put(tmp_path, "future.txt", mtime_s=4e9)
    spout = FileSpout(str(tmp_path))
    metadata = begin(spout)
    assert names(metadata) == ["older.txt", "old.txt", "future.txt"]
    assert begin(spout, metadata) is None
    put(tmp_path, "now.txt")
    assert names(begin(spout, metadata)) == ["now.txt"]


def test_a_name_that_was_not_read_is_new_whatever_its_times_are(tmp_path: Path) -> None:
    """A move leaves the times of what is inside as they are, the unchangeable ones too."""
    backlog = put(tmp_path, "elsewhere/b.txt", "b\n", mtime_s=500_000).parent
    read = put(tmp_path, "in/a/a.txt", "a\n", mtime_s=1_000_000)
    spout = FileSpout(str(tmp_path / "in"), recursive=True)
    first = begin(spout)
    backlog.rename(tmp_path / "in" / "backlog")
    put(tmp_path, "in/a/late.txt", mtime_s=500_000)
    second = begin(spout, first)
    assert sorted(names(second)) == ["a/late.txt", "backlog/b.txt"]
    read.rename(tmp_path / "in/a/renamed.txt")
    third = begin(spout, second)
    assert names(third) == ["a/renamed.txt"], "a renamed file is a new one"
    put(tmp_path, "in/a/a.txt", "a\n", mtime_s=1_000_000)
    assert begin(spout, third) is None, "its name was read"


def test_files_of_before_since_are_never_read(tmp_path: Path) -> None:
    for day in (1, 2, 3):
        at = datetime(2026, 1, day, tzinfo=UTC)
        put(tmp_path, f"{day}.txt", mtime_s=at.timestamp())
        found = begin(FileSpout(str(tmp_path), since=datetime(2026, 1, 2, tzinfo=UTC)))
    assert names(found) == ["2.txt", "3.txt"]
    assert names(begin(FileSpout(str(tmp_path), since="2026-01-02T01:00:00+01:00"))) == ["2.txt", "3.txt"]
    assert names(begin(FileSpout(str(tmp_path)), found)) == ["1.txt"], "without it they are new"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["create", "copy with old time", "move in"]), st.integers(0, 120)),
        st.tuples(st.just("transact"), st.integers(1, 3)),
        st.tuples(st.just("remove a read one"), st.integers(0, 9)),
    ),
    max_size=14,
)


@settings(max_examples=30, deadline=None)
@given(STEPS)
def test_each_file_is_in_exactly_one_batch(tmp_path_factory: Any, steps: list[tuple[str, int]]) -> None:
    root = tmp_path_factory.mktemp("spout")
    folder = root / "in"
    folder.mkdir()
    read: Counter[str] = Counter()
    previous: Any = None
    made: list[str] = []

    def transact(max_files: int) -> bool:
        nonlocal previous
        spout = FileSpout(str(folder), max_files=max_files)
        metadata = begin(spout, previous)
        if metadata is None:
            return False
        assert sorted(lines(spout, metadata)) == sorted(names(metadata)), "each file holds its own name"
        read.update(names(metadata))
        previous = metadata
        return True

    for kind, number in steps:
        name = f"{number % 3}-{len(made)}.txt"
        if kind == "create":
            put(folder, name, name, mtime_s=1_000_000)
        elif kind == "copy with old time":
            put(folder, name, name, mtime_s=1_000_000 - number)
        elif kind == "move in":
            put(root, name, name, mtime_s=1_000_000 - number).rename(folder / name)
        elif kind == "transact":
            transact(number)
            continue
        else:
            for old in [old for old in made if read[old]][:number]:
                (folder / old).unlink(missing_ok=True)
            continue
        made.append(name)
    while transact(2):
        assert sum(read.values()) <= len(made)
    assert read == Counter(made)


# ---- changed and vanished files --------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["longer", "shorter", "same size", "gone", "a folder now", "its folder is gone"])
def test_a_file_that_is_not_as_recorded_is_an_error_never_other_rows(tmp_path: Path, change: str) -> None:
    path = put(tmp_path, "in/a.txt", "1\n2\n", mtime_s=1000)
    put(tmp_path, "in/b.txt", "3\n", mtime_s=1001)
    spout = FileSpout(str(tmp_path / "in"))
    metadata = begin(spout)
    if change == "its folder is gone":
        (tmp_path / "in").rename(tmp_path / "out")
    elif change in ("gone", "a folder now"):
        path.unlink()
        if change == "a folder now":
            path.mkdir()
    else:
        path.write_text({"longer": "1\n2\n3\n", "shorter": "1\n", "same size": "9\n9\n"}[change])
    with pytest.raises(SourceChangedError, match=r"replay"):
        lines(spout, metadata)


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "BATCH_ROWS", 1)
    path = put(tmp_path, "a.txt", "1\n2\n", mtime_s=1000)
    spout = FileSpout(str(tmp_path))
    emitter = spout.emitter()
    (split,) = emitter.splits(begin(spout))
    batches = emitter.read(split)
    assert next(batches).num_rows == 1
    with path.open("a") as file:
        file.write("3\n")
    with pytest.raises(SourceChangedError, match=r"a\.txt' changed since"):
        list(batches)


def test_a_single_file_that_vanished_is_an_error_of_the_recorded_batch(tmp_path: Path) -> None:
    path = put(tmp_path, "a.txt", "1\n")
    spout = FileSpout(str(path))
    metadata = begin(spout)
    path.unlink()
    with pytest.raises(SourceChangedError, match="which the transaction recorded"):
        lines(spout, metadata)


def test_putting_the_file_back_as_it_was_makes_the_transaction_replayable(tmp_path: Path) -> None:
    path = put(tmp_path, "a.txt", "1\n", mtime_s=1000)
    spout = FileSpout(str(tmp_path))
    metadata = begin(spout)
    path.unlink()
    with pytest.raises(SourceChangedError):
        lines(spout, metadata)
    put(tmp_path, "a.txt", "1\n", mtime_s=1000)
    assert lines(spout, metadata) == ["1"]


# ---- arguments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"encoding_errors": "guess"}, "encoding_errors='guess'. Use one of error, replace"),
        ({"format": "xml"}, "format='xml'. Use one of text, csv, json, parquet"),
        ({"format": "csv"}, "does not know their columns"),
        ({"format": "parquet"}, "does not know their columns"),
        ({"fields": "a string, b string"}, "has one string field"),
        ({"fields": "n long"}, "has one string field"),
        ({"format": "csv", "fields": "a array<string>"}, "cannot hold the field 'a'"),
        ({"changed": "maybe"}, "changed='maybe'. Use one of error, read"),
        ({"late_files": "take"}, "with late_files: it went.* is new, however old it is.*`since`.*source mark-read"),
        ({"late_window_s": 60}, "with late_window_s: it went.*`lookback_s`"),
        ({"since": "2026-01-31"}, "since is '2026-01-31' (it has no time zone). Write a moment with its time zone"),
        ({"since": "Monday"}, "since is 'Monday'"),
        ({"lookback_s": 60}, "lookback_s=60 without ordered_names=True"),
        ({"extra_columns": "maybe"}, "extra_columns='maybe'"),
        ({"max_files": 0}, "max_files=0. It must be at least 1"),
        ({"max_bytes": 0}, "max_bytes=0"),
        ({"min_age_s": -1}, "min_age_s=-1"),
        ({"lookback_s": -1}, "lookback_s=-1. It must be at least 0"),
        ({"split_bytes": 0}, "split_bytes=0"),
        ({"max_files": 1.5}, "max_files=1.5. It must be at least 1, and whole"),
        ({"max_bytes": "1GB"}, "max_bytes='1GB'"),
        ({"max_files": True}, "max_files=True"),
        ({"min_age_s": float("nan")}, "min_age_s=nan"),
        ({"min_age_s": timedelta(hours=1)}, "min_age_s=datetime.timedelta"),
        ({"path": ""}, "without a path"),
    ],
)
def test_a_wrong_argument_is_an_error_where_the_spout_is_made(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        FileSpout(**{"path": "in", **arguments})
    assert all(part in str(caught.value) for part in said.split(".*"))


def test_text_has_the_field_line_unless_another_name_is_given() -> None:
    assert names_of(FileSpout("in").schema) == ("line",)
    assert names_of(FileSpout("in", fields="sentence").schema) == ("sentence",)
    assert FileSpout("in", recursive=True).describe() == "FileSpout(text, in, recursive)"
