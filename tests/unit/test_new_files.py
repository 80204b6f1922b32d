"""Each file is in exactly one batch, or a changed one is named: random lives of a folder beside a plain dictionary."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_trident.errors import SourceChangedError
from airflow_trident.io.place import PosixPlace
from airflow_trident.spouts.files import new_files, read_list
from airflow_trident.spouts.files.listing import FoundFile
from airflow_trident.spouts.files.new_files import ContentOf, FileSearch, record_of
from airflow_trident.spouts.files.read_list import ReadList, ReadPosition
from airflow_trident.spouts.files.read_options import BatchRules, ChangedFiles

RULES = BatchRules(max_files=3, max_bytes=10**9)
READ = replace(RULES, changed=ChangedFiles.READ)


def look(reader: ReadList, rules: BatchRules, now_ns: int = 0, content_of: ContentOf = lambda _: "") -> FileSearch:
    return FileSearch(reader=reader, rules=rules, base="/in", now_ns=now_ns, content_of=content_of)


STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 40), st.integers(-50, 50)),
    st.tuples(st.just("touch"), st.integers(0, 40), st.integers(-50, 50)),
    st.tuples(st.just("rename"), st.integers(0, 40), st.integers(0, 40)),
    st.tuples(st.just("remove"), st.integers(0, 40), st.just(0)),
    st.tuples(st.just("put back"), st.integers(0, 40), st.just(0)),
    st.tuples(st.just("transact"), st.integers(1, 4), st.integers(1, 3)),
)


@dataclass
class World:
    """A folder in which files come, change, go and come back with any times, and the contents that were read."""

    place: PosixPlace
    files: dict[str, tuple[FoundFile, int]] = field(default_factory=dict)
    away: dict[str, tuple[FoundFile, int]] = field(default_factory=dict)
    read: Counter[tuple[str, int]] = field(default_factory=Counter)
    last: dict[str, int] = field(default_factory=dict)
    state: str = "null"
    contents: int = 0
    txid: int = 0

    def apply(self, kind: str, number: int, other: int, rules: BatchRules) -> None:
        path = f"f{number}"
        if kind == "put":
            self.contents += 1
            self.files[path] = (FoundFile(path, self.contents, other, other), self.contents)
        elif kind == "transact":
            self.transact(replace(rules, max_files=number), other)
        elif kind == "put back" and path in self.away:
            self.files[path] = self.away.pop(path)
        elif path in self.files and kind == "touch":
            file, content = self.files[path]
            self.files[path] = (replace(file, mtime_ns=other), content)
        elif path in self.files and kind == "rename":
            file, content = self.files.pop(path)
            self.files[f"f{other}"] = (replace(file, path=f"f{other}"), content)
        elif path in self.files and kind == "remove":
            self.away[path] = self.files.pop(path)

    def transact(self, rules: BatchRules, most: int = 1) -> bool:
        changed = {
            path for path, (_, content) in self.files.items() if path in self.last and self.last[path] != content
        }
        files = [file for file, _ in self.files.values()]
        reader = ReadList(self.place, ReadPosition.from_json(json.loads(self.state)))

        def content_of(file: FoundFile) -> str:
            return str(self.files[file.path][1])

        looking = look(reader, rules, content_of=content_of)
        if changed and rules.changed is ChangedFiles.ERROR:
            with pytest.raises(SourceChangedError, match=rf"the file '({'|'.join(changed)})'.*in '/in' was consumed"):
                looking.next_batches(files, most)
            for path in changed:
                del self.files[path]
            return True
        batches = looking.next_batches(files, most)
        if not batches.files:
            return False
        self.txid += 1
        records = [record_of(file, content_of(file)) for file in batches.files]
        self.state = json.dumps(reader.add(self.txid, [*batches.touched, *records]).to_json())
        for file in batches.files:
            content = self.files[file.path][1]
            assert self.last.get(file.path) != content, "no file is read twice"
            self.read[file.path, content] += 1
            self.last[file.path] = content
        return True


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=60), st.sampled_from([RULES, READ]), st.sampled_from([64, 2]))
def test_every_file_is_read_once_whatever_its_times_are(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]], rules: BatchRules, tail: int
) -> None:
    world = World(PosixPlace(str(tmp_path_factory.mktemp("list"))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_list, "TAIL_RECORDS", tail)
        for kind, number, other in steps:
            world.apply(kind, number, other, rules)
        while world.transact(rules):
            pass
    assert all(world.last[path] == content for path, (_, content) in world.files.items()), "no file is lost"


def choose(files: list[FoundFile], **rules: Any) -> list[list[str]]:
    chosen = look(ReadList(), replace(RULES, **rules), now_ns=1000).next_batches(files, 9)
    return [[file.path for file in batch] for batch in chosen.batches]


def test_batches_are_cut_by_size_and_number_oldest_first() -> None:
    sizes = {"d": 500, "a": 60, "c": 1, "b": 40}
    files = [FoundFile(path, size, ord(path), 0) for path, size in sizes.items()]
    assert choose(files, max_bytes=100) == [["a", "b"], ["c"], ["d"]]
    assert choose(files, max_files=2, since_ns=ord("b")) == [["b", "c"], ["d"]]
    assert choose(files, min_age_ns=1000 - ord("b")) == [["a", "b", "c"], ["d"]]
    aged = [replace(file, ctime_ns=file.mtime_ns) for file in files]
    assert choose(aged, min_age_ns=1000 - ord("b")) == [["a", "b"]]
    young = [replace(file, ctime_ns=999 if file.path == "a" else 0, mtime_ns=0) for file in files]
    assert choose(young, min_age_ns=1000) == [["a", "b", "c"], ["d"]], "either time may be wrong"


def test_a_young_file_does_not_hold_up_older_ones() -> None:
    files = [FoundFile("moved in", 1, 5, 999), FoundFile("old", 1, 990, 990), FoundFile("young", 1, 995, 995)]
    assert choose(files, min_age_ns=10) == [["moved in", "old"]]


def test_a_touched_file_is_read_from_its_content_once() -> None:
    file, asked = FoundFile("a", 1, 5, 5), list[str]()

    def content_of(file: FoundFile) -> str:
        asked.append(file.path)
        return "content"

    reader = ReadList()
    reader.add(1, [record_of(file, "content")])
    files = [replace(file, mtime_ns=6), FoundFile("b", 1, 7, 7)]
    chosen = look(reader, RULES, content_of=content_of).next_batches(files)
    assert [new.path for new in chosen.files] == ["b"]
    reader.add(2, chosen.touched)
    assert [new.path for new in look(reader, RULES, content_of=content_of).next_batches(files).files] == ["b"]
    assert asked == ["a"]


def test_many_files_that_come_at_once_leave_a_short_position(tmp_path: Path) -> None:
    files = [FoundFile(f"f{number}", 1, 7, 7) for number in range(60_000)]
    place, state, names = PosixPlace(str(tmp_path)), "null", set[str]()
    for txid in range(1, 5):
        reader = ReadList(place, ReadPosition.from_json({"files": [], **json.loads(state)} if txid > 1 else None))
        batches = look(reader, replace(RULES, max_files=15_000)).next_batches(files)
        names |= {file.path for file in batches.files}
        state = json.dumps(reader.add(txid, map(record_of, batches.files)).to_json())
        assert len(state) < 100
    assert len(names) == 60_000


ORDERED = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, 3)), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@given(ORDERED, st.sampled_from([2, 1000]))
def test_in_the_order_of_names_nothing_is_lost_and_a_listing_becomes_short(
    steps: list[tuple[int, int, int]], page: int
) -> None:
    """Names sort behind those of objects that are older by 5; some of the new ones sort before younger ones."""
    rules, reader, after = replace(RULES, max_files=2, lookback_ns=5), ReadList(), ""
    there, read, now = dict[str, FoundFile](), list[str](), 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(new_files, "PAGE_FILES", page)
        for txid, (came, passed, most) in enumerate([*steps, *[(0, 0, 3)] * 40], 1):
            now += passed
            for number in range(came):
                name = f"{now - (number * 2) % 5:04d}-{txid:04d}-{number}"
                there[name] = FoundFile(name, 1, now, now)
            listed = sorted((file for file in there.values() if file.path > after), key=lambda file: file.path)
            chosen = look(reader, rules).next_in_order(listed, after, most)
            reader.add(txid, [*chosen.touched, *map(record_of, chosen.files)])
            read, after = read + [file.path for file in chosen.files], chosen.after
    assert sorted(read) == sorted(there), "each is read once"
    newest = max((file.mtime_ns for file in there.values()), default=0)
    assert all(file.mtime_ns >= newest - 9 for file in there.values() if file.path > after)
