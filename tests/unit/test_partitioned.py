"""Partitions that appear, disappear and come back; limits; many of them; what is told of success."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.contracts.partitioned_spout import PartitionedSpout
from airflow_trident.errors import ConfigurationError, SourceChangedError, SourceUnavailableError
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.types import Json, parse_declared
from tests.fixtures.spout import FolderSpout, OpaqueFolderSpout, append


@dataclass(frozen=True)
class Counters(PartitionedSpout):
    """Each partition counts up by one per batch; `there` can be read, `silent` give nothing."""

    there: tuple[str, ...]
    silent: tuple[str, ...] = ()
    max_partitions: int | None = None
    forgets: bool = False

    @property
    def schema(self) -> Any:
        return parse_declared("id string, n long")

    def describe(self) -> str:
        return "Counters"

    def partitions(self) -> list[str]:
        return list(self.there)

    def next_part(self, partition: str, last: Json) -> Json:
        assert last is None or isinstance(last, int)
        return None if partition in self.silent else (last or 0) + 1

    def read_part(self, partition: str, part: Json) -> Any:
        yield from rows_to_table(self.schema, [(partition, part)]).to_batches()

    def forget(self, partition: str, last: Json) -> bool:
        return self.forgets


def parts(spout: PartitionedSpout, previous: Json) -> tuple[dict[str, Json], Json]:
    metadata = json.loads(json.dumps(spout.coordinator().initialize_transaction(1, previous)))
    return metadata["parts"], metadata


@pytest.mark.parametrize("kind", [FolderSpout, OpaqueFolderSpout])
def test_a_partition_that_disappears_goes_on_where_it_stopped_when_it_is_back(
    tmp_path: Path, kind: type[FolderSpout]
) -> None:
    folder = tmp_path / "in"
    append(folder, "a", [(number, "a") for number in range(9)])
    append(folder, "b", [(number, "b") for number in range(9)])
    spout = kind(folder)
    first, metadata = parts(spout, None)
    assert first == {"a": {"from": 0, "to": 3}, "b": {"from": 0, "to": 3}}
    (folder / "b").rename(tmp_path / "b")
    append(folder, "c", [(1, "c")])
    second, metadata = parts(spout, metadata)
    assert second == {"a": {"from": 3, "to": 6}, "c": {"from": 0, "to": 1}}
    third, metadata = parts(spout, metadata)
    assert third == {"a": {"from": 6, "to": 9}}
    (tmp_path / "b").rename(folder / "b")
    fourth, _ = parts(spout, metadata)
    assert fourth == {"b": {"from": 3, "to": 6}}


def test_a_recorded_partition_that_is_gone_is_a_changed_source_or_a_reason_for_another_attempt(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for name in "abcdefgh":
        append(folder, name, [(1, name)])
    spout, opaque = FolderSpout(folder), OpaqueFolderSpout(folder)
    _, metadata = parts(spout, None)
    for name in "abcdefg":
        (folder / name).unlink()
    with pytest.raises(SourceChangedError, match=r"partitions 'a', .* and 2 more of the recorded batch cannot be read"):
        spout.emitter().splits(metadata)
    with pytest.raises(SourceUnavailableError, match="next attempt takes the partitions that are there then"):
        opaque.emitter().splits(metadata)
    again, _ = parts(opaque, None)
    assert again == {"h": {"from": 0, "to": 1}}


def test_partitions_that_found_no_room_come_first_in_the_next_batch() -> None:
    spout = Counters(there=("a", "b", "c", "d", "e"), max_partitions=2)
    seen, metadata = [], None
    for _ in range(5):
        batch, metadata = parts(spout, metadata)
        seen.append(batch)
    assert seen == [{"a": 1, "b": 1}, {"c": 1, "d": 1}, {"a": 2, "e": 1}, {"b": 2, "c": 2}, {"d": 2, "e": 2}]


def test_a_batch_has_no_more_rows_than_allowed_but_always_one_partition(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for name, count in (("a", 2), ("b", 9), ("c", 1)):
        append(folder, name, [(number, name) for number in range(count)])
    spout = FolderSpout(folder, at_once=9, max_rows=3)
    sizes, metadata = [], None
    for _ in range(3):
        batch, metadata = parts(spout, metadata)
        sizes.append({name: spout.rows_of(part) for name, part in batch.items()})
    assert sizes == [{"a": 2}, {"b": 9}, {"c": 1}]


def test_nothing_new_in_any_partition_is_nothing_new() -> None:
    assert Counters(there=("a",), silent=("a",)).coordinator().initialize_transaction(1, None) is None
    assert not Counters(there=()).coordinator().is_ready(None)


def test_a_partition_that_is_gone_for_good_is_carried_no_further() -> None:
    _, metadata = parts(Counters(there=("a", "b")), None)
    _, kept = parts(Counters(there=("a",)), metadata)
    assert isinstance(kept, dict)
    assert kept["kept"] == {"b": 1}
    _, forgotten = parts(Counters(there=("a",), forgets=True), kept)
    assert isinstance(forgotten, dict)
    assert forgotten["kept"] == {}


def test_thousands_of_partitions_are_cut_into_few_splits_and_read_whole() -> None:
    names = tuple(f"p{number:05d}" for number in range(5_000))
    spout = Counters(there=names)
    _, metadata = parts(spout, None)
    emitter = spout.emitter()
    splits = emitter.splits(metadata)
    assert len(splits) <= spout.max_splits
    rows = [row["id"] for split in splits for batch in emitter.read(split) for row in batch.to_pylist()]
    assert rows == list(names)
    _, after = parts(replace(spout, silent=names[1:]), metadata)
    assert isinstance(after, dict)
    assert len(after["kept"]) == 4_999


@pytest.mark.parametrize("name", ["max_partitions", "max_rows", "max_splits"])
def test_a_limit_below_one_is_refused_by_name(name: str) -> None:
    spout = Counters(there=("a",))
    object.__setattr__(spout, name, 0)
    with pytest.raises(ConfigurationError, match=f"{name}=0"):
        spout.coordinator()
