"""Many small splits are read by few tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_trident import FileSpout
from airflow_trident.engine.spark_worker import FEW_PARTITIONS, PARTITION_BYTES, partitions_for
from airflow_trident.protocol.spouts import Split


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


def test_the_file_spout_tells_how_large_its_splits_are(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"line\n" * 100)
    spout = FileSpout(str(tmp_path), split_bytes=200)
    splits = spout.emitter().splits(spout.coordinator().initialize_transaction(1, None))
    assert [split.size_bytes for split in splits] == [200, 200, 100]
