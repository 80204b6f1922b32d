"""The list of read files says what a dictionary says, whoever is killed while it is written, or it is an error."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_trident.errors import CorruptRecordError, SourceChangedError
from airflow_trident.io.place import PosixPlace, WriteTo
from airflow_trident.spouts.files import read_list
from airflow_trident.spouts.files.read_list import (
    ReadList,
    ReadPosition,
    ReadRecord,
    identity_mark,
    name_mark,
    sweep,
)


def record(number: int, identity: str = "a") -> ReadRecord:
    return ReadRecord(name_mark(f"f{number}"), identity_mark(identity))


def records(*numbers: int) -> list[ReadRecord]:
    return list(map(record, numbers))


def names(*numbers: int) -> list[bytes]:
    return [record(number).name for number in numbers]


class Killed(BaseException):
    """The process ends."""


@dataclass(frozen=True)
class Killing(PosixPlace):
    """Ends before or after the verb with this number; after a put, with a part of the file."""

    verb: int = 0
    after: bool = False
    _verbs: Iterator[int] = field(default_factory=lambda: iter(range(1, 1000)), compare=False)

    def _ends(self, *, after: bool) -> bool:
        return self.after == after and next(self._verbs) == self.verb

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        if self._ends(after=False):
            raise Killed
        return super().read(name, begin, end)

    def put(self, name: str, write: WriteTo) -> int:
        if self._ends(after=False):
            raise Killed
        size = super().put(name, write)
        if self._ends(after=True):
            os.truncate(self.at(name), size // 2)  # as on a file system that shows a part of a file
            raise Killed
        return size

    def delete(self, names: Sequence[str]) -> None:
        if self._ends(after=False):
            raise Killed
        super().delete(names)
        if self._ends(after=True):
            raise Killed


BATCHES = st.lists(
    st.tuples(st.sets(st.integers(0, 300), min_size=1, max_size=60), st.sampled_from("ab"), st.integers(0, 9)),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(batches=BATCHES, small=st.booleans())
def test_a_list_says_what_a_dictionary_says(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[set[int], str, int]], small: bool
) -> None:
    """`small`: also blocks and large chunks are reached by a few records."""
    place = PosixPlace(str(tmp_path_factory.mktemp("list")))
    read: dict[bytes, ReadRecord] = {}
    kept = [ReadPosition()]
    with pytest.MonkeyPatch.context() as patch:
        if small:
            for name, size in (("TAIL_RECORDS", 5), ("BLOCK_RECORDS", 4), ("_BLOCK_BYTES", 96), ("WHOLE_BYTES", 300)):
                patch.setattr(read_list, name, size)
        for txid, (numbers, identity, asked) in enumerate(batches, 1):
            reader = ReadList(place, ReadPosition.from_json(json.loads(json.dumps(kept[-1].to_json()))))
            looked_at = names(*range(300)) if asked > 6 else names(*range(asked * 30, asked * 30 + 3))
            assert reader.records_of(looked_at) == {name: read[name] for name in looked_at if name in read}
            fresh = [record(number, identity) for number in sorted(numbers)]
            kept.append(reader.add(txid, fresh))
            read |= {each.name: each for each in fresh}
            if asked == 0:
                kept = kept[-3:]
                sweep(place, kept, txid)
        assert ReadList(place, kept[-1]).records_of(names(*range(301))) == read
        there = set(names(*range(0, 301, 3)))
        assert ReadList(place, kept[-1]).missing(there) == len(read.keys() - there)
        for position in kept:
            ReadList(place, position).records_of(names(*range(301)))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("verb", range(1, 8))
def test_whoever_is_killed_the_next_one_sees_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: int, after: bool
) -> None:
    monkeypatch.setattr(read_list, "TAIL_RECORDS", 2)
    root, position, read = str(tmp_path), ReadPosition(), set[int]()
    for txid in range(1, 25):
        numbers = range(3 * txid, 3 * txid + 3)
        if txid % 5 == 0:
            with pytest.MonkeyPatch.context():
                try:
                    ReadList(Killing(root, verb=verb, after=after), position).add(txid, records(*numbers))
                    sweep(Killing(root, verb=verb, after=after), [position], txid - 1)
                except Killed:
                    pass
        reader = ReadList(PosixPlace(root), position)
        assert reader.records_of(names(*range(100))).keys() == set(names(*read))
        position = reader.add(txid, records(*numbers))
        read |= set(numbers)
    assert sweep(PosixPlace(root), [position], 24) > 0
    assert ReadList(PosixPlace(root), position).records_of(names(*range(100))).keys() == set(names(*read))


def test_two_coordinators_that_list_different_files_leave_one_list_and_garbage(tmp_path: Path) -> None:
    place = PosixPlace(str(tmp_path))
    before = ReadList(place).add(1, records(*range(100)))
    first = ReadList(place, before).add(2, records(*range(100, 180)))
    other = ReadList(place, before).add(2, records(*range(100, 190)))
    assert first != other
    assert ReadList(place, before).add(2, records(*range(100, 190))) == other, "the same again is the same chunk"
    assert ReadList(place, first).records_of(names(179, 185)).keys() == set(names(179))
    assert sweep(place, [first], 2) == 2, "what the first one took in, and the other one"
    assert ReadList(place, first).records_of(names(0, 179)).keys() == set(names(0, 179))


@pytest.mark.parametrize("number", [100, 20_000])
@pytest.mark.parametrize("damage", ["bit in the head", "bit in the body", "shorter", "torn", "gone", "exchanged"])
def test_a_chunk_that_is_lost_or_damaged_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str, number: int
) -> None:
    """Of the larger one a block is read."""
    monkeypatch.setattr(read_list, "WHOLE_BYTES", 10_000)
    place = PosixPlace(str(tmp_path))
    position = ReadList(place).add(1, records(*range(number)))
    assert position.newest
    file = tmp_path / position.newest.file
    content = file.read_bytes()
    if damage == "exchanged":
        exchanged = ReadList(place).add(1, records(*range(1, 100))).newest
        assert exchanged
        file.write_bytes((tmp_path / exchanged.file).read_bytes())
    elif damage == "gone":
        file.unlink()
    elif damage == "torn":
        file.write_bytes(content[:6])
    elif damage == "shorter":
        file.write_bytes(content[:-30])
    else:
        at = 20 if damage == "bit in the head" else content.index(record(7).name) + 14
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    asked = names(*range(number)) if damage == "shorter" else names(7)
    with pytest.raises(CorruptRecordError, match=r"the list of the files that were read is not whole.*ledger import"):
        ReadList(place, position).records_of(asked)


def test_chunks_stay_few_and_a_position_short(tmp_path: Path) -> None:
    reader = ReadList(PosixPlace(str(tmp_path)))
    most = 0
    for txid in range(1, 200):
        reader.add(txid, records(*range(70 * txid, 70 * txid + 70)))
        most = max(most, len(reader.chunks()))
        assert len(json.dumps(reader.position.to_json())) < 100
    assert most <= 7 * 3
    assert len(list(tmp_path.iterdir())) < 200


def test_few_files_need_no_chunk(tmp_path: Path) -> None:
    reader = ReadList(PosixPlace(str(tmp_path / "not made")))
    for number in range(64):
        reader.add(number + 1, records(number))
    assert not (tmp_path / "not made").exists()
    assert len(json.dumps(reader.position.to_json())) < 2_200
    assert reader.records_of(names(3, 70)).keys() == set(names(3))


def test_an_earlier_position_whose_chunks_were_swept_is_an_error(tmp_path: Path) -> None:
    reader, positions = ReadList(PosixPlace(str(tmp_path))), list[ReadPosition]()
    for txid in range(1, 30):
        positions.append(reader.add(txid, records(*range(70 * txid, 70 * txid + 70))))
    sweep(reader.place, positions[-1:], 29)
    with pytest.raises(CorruptRecordError, match="is not there"):
        ReadList(reader.place, positions[10]).records_of(names(70))


@pytest.mark.parametrize(
    "written", [{}, {"read": 3, "tail": ""}, {"read": None, "tail": "AAAA"}, {"read": [1, "x", 2], "tail": ""}, 7]
)
def test_other_metadata_is_no_position(written: Any) -> None:
    with pytest.raises(SourceChangedError, match="is not that of a FileSpout"):
        ReadPosition.from_json(written)
