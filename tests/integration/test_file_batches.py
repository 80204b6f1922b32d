"""How FileSpout cuts a batch into splits, and several batches out of one listing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_trident.errors import (
    SourceChangedError,
)
from airflow_trident.spouts.files import formats
from airflow_trident.spouts.files.spout import FileSpout
from tests.fixtures.file import begin, lines, names, put

# ---- splits ----------------------------------------------------------------------------------------------------


def test_large_text_files_are_read_in_parts_that_hold_every_line_once(tmp_path: Path) -> None:
    text = "".join(f"line {number}{'x' * (number % 50)}\n" for number in range(1000)) + "no end"
    put(tmp_path, "a.txt", text)
    for split_bytes in (1000, 4096, len(text) - 1, len(text)):
        spout = FileSpout(str(tmp_path), split_bytes=split_bytes)
        metadata = begin(spout)
        assert len(spout.emitter().splits(metadata)) == -(-len(text) // split_bytes)
        assert lines(spout, metadata) == text.split("\n")


def test_only_files_that_can_be_cut_at_lines_are_cut(tmp_path: Path) -> None:
    import gzip

    put(tmp_path, "a.txt.gz", gzip.compress(os.urandom(3000).hex().encode()))
    put(tmp_path, "b.csv", "n\n" + "1\n" * 3000)
    for options in ({}, {"format": "csv", "fields": "n long"}):
        spout = FileSpout(str(tmp_path), split_bytes=100, **options)
        splits = spout.emitter().splits(begin(spout))
        cut = [split for split in splits if isinstance(split.body, dict) and "begin" in split.body]
        assert bool(cut) is not bool(options)
        assert all(str(split.body["path"]).endswith("b.csv") for split in cut)  # type: ignore[index, call-overload]


def test_batches_are_of_bounded_size(tmp_path: Path) -> None:
    put(tmp_path, "a.txt", "x\n" * 200_000)
    spout = FileSpout(str(tmp_path))
    (split,) = spout.emitter().splits(begin(spout))
    sizes = [batch.num_rows for batch in spout.emitter().read(split)]
    assert sum(sizes) == 200_000
    assert max(sizes) <= formats.BATCH_ROWS
    assert pa.record_batch([["x"]], names=["line"]).num_rows == 1


# ---- several batches at a time ---------------------------------------------------------------------------------


def test_several_batches_come_from_one_listing_and_leave_off_where_one_after_the_other_would(tmp_path: Path) -> None:
    for number in range(7):
        put(tmp_path, f"{number}.txt", f"line {number}\n", mtime_s=1_000_000_000 + number)
    spout = FileSpout(str(tmp_path), max_files=2)
    alone: list[Any] = [begin(spout)]
    while following := begin(spout, alone[-1]):
        alone.append(following)
    listed = []
    spout._listings.new = lambda: listed.append(1) or type(spout._listings).new(spout._listings)  # type: ignore[method-assign]
    together: Any = spout.coordinator().next_batches(11, None, 3)
    assert listed == [1]
    assert [names(one) for one in together] == [names(one) for one in alone[:3]]
    assert [one.keys() for one in together[:-1]] == [{"files", "upto"}] * 2
    assert together[-1] == alone[2]
    assert [lines(spout, one) for one in together] == [["line 0", "line 1"], ["line 2", "line 3"], ["line 4", "line 5"]]
    assert spout.coordinator().size_bytes(together[0]) == 14
    together = spout.coordinator().next_batches(11, None, 3)
    rest = spout.coordinator().next_batches(14, together[-1], 3)
    assert [names(one) for one in rest] == [["6.txt"]]
    assert spout.coordinator().next_batches(15, rest[-1], 3) == []


def test_only_the_last_of_several_batches_says_where_to_go_on(tmp_path: Path) -> None:
    for name in "abc":
        put(tmp_path, name, "a line\n")
    spout = FileSpout(str(tmp_path), max_files=1)
    coordinator = spout.coordinator()
    first: Any
    first, *_, last = coordinator.next_batches(5, None, 3)
    with pytest.raises(SourceChangedError, match="begun with those up to 7"):
        coordinator.initialize_transaction(8, first)
    put(tmp_path, "a", "another line\n")
    mended: Any = coordinator.accept_source(first)
    assert lines(spout, mended) == ["another line"]
    assert coordinator.follow_source(first, mended) == first
    assert coordinator.initialize_transaction(8, coordinator.follow_source(last, mended)) is None
