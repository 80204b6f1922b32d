"""Many small splits are read by few tasks."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from airflow_trident import FileSpout
from airflow_trident.contracts.spout import Split
from airflow_trident.engine.spark.workers import FEW_PARTITIONS, PARTITION_BYTES, dealt, partitions_for


@pytest.mark.parametrize(
    ("sizes", "partitions"),
    [
        ([1], 1),
        ([1] * FEW_PARTITIONS, FEW_PARTITIONS),
        ([1] * 5_000, FEW_PARTITIONS),
        ([PARTITION_BYTES] * 100, 100),
        ([PARTITION_BYTES // 10] * 1_000, 100),
        ([None] * 1_000, 1_000),
        ([10 * PARTITION_BYTES] * 40, 40),
    ],
)
def test_small_splits_share_a_partition_and_large_or_unknown_ones_do_not(
    sizes: list[int | None], partitions: int
) -> None:
    assert partitions_for([Split(index, None, size) for index, size in enumerate(sizes)]) == partitions


@pytest.mark.parametrize(("count", "partitions"), [(64, 32), (100, 33), (1_000, 32), (7, 3)])
def test_partitions_of_packed_splits_have_about_as_many_bytes(count: int, partitions: int) -> None:
    """Spark gives partition i the numbers from i * count // partitions."""
    splits = [Split(index, None, 1 + index * index) for index in range(count)]  # grows with the age
    order = dealt(splits, partitions)
    assert sorted(split.index for split in order) == list(range(count))
    ends = [place * count // partitions for place in range(partitions + 1)]
    bytes_of = [sum(split.size_bytes or 0 for split in order[a:b]) for a, b in pairwise(ends)]
    assert max(bytes_of) <= sum(bytes_of) / partitions + count * count


def test_splits_of_unknown_size_stay_where_they_are() -> None:
    splits = tuple(Split(index, None) for index in range(40))
    assert dealt(splits, 8) == splits


def test_the_file_spout_tells_how_large_its_splits_are(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"line\n" * 100)
    spout = FileSpout(str(tmp_path), split_bytes=200)
    splits = spout.emitter().splits(spout.coordinator().initialize_transaction(1, None))
    assert [split.size_bytes for split in splits] == [200, 200, 100]
