"""FixedBatchSpout: what its rows and fields may be."""

from __future__ import annotations

import datetime
import pickle
from typing import Any

import pytest

from airflow_trident.errors import ConfigurationError, DamagedInputError, FieldError
from airflow_trident.spouts.memory import FixedBatchSpout


def rows(spout: FixedBatchSpout) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    metadata = spout.coordinator().initialize_transaction(1, None)
    emitter = pickle.loads(pickle.dumps(spout)).emitter()
    for split in emitter.splits(metadata):
        for batch in emitter.read(split):
            found.extend(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return found


def test_types_that_are_not_written_are_those_of_the_first_values() -> None:
    spout = FixedBatchSpout("a, b, c double", [(None, 1, 2), ("x", None, None)])
    assert [str(field) for field in spout.schema] == ["a string", "b long", "c double"]
    assert rows(spout) == [(None, 1, 2.0), ("x", None, None)]


def test_rows_of_one_field_may_be_bare_values() -> None:
    assert rows(FixedBatchSpout("line", ["a", ("b",), "c"])) == [("a",), ("b",), ("c",)]
    assert rows(FixedBatchSpout("words array<string>", [["a", "b"], (["c"],)])) == [(["a", "b"],), (["c"],)]


def test_batches_and_their_splits_are_ranges_of_rows() -> None:
    spout = FixedBatchSpout("n", list(range(10)), max_batch_size=7, splits=3)
    coordinator = spout.coordinator()
    first = coordinator.initialize_transaction(1, None)
    second = coordinator.initialize_transaction(2, first)
    assert (first, second, coordinator.initialize_transaction(3, second)) == (
        {"from": 0, "to": 7},
        {"from": 7, "to": 10},
        None,
    )
    assert [split.body for split in spout.emitter().splits(first)] == [
        {"from": 0, "to": 3},
        {"from": 3, "to": 6},
        {"from": 6, "to": 7},
    ]
    assert [len(spout.emitter().splits({"from": 0, "to": size})) for size in range(5)] == [0, 1, 2, 3, 2]


def test_no_rows_are_no_transaction() -> None:
    assert not FixedBatchSpout("n long", []).coordinator().is_ready(None)
    with pytest.raises(FieldError, match="type of the new field 'n' is not known"):
        FixedBatchSpout("n", [])


@pytest.mark.parametrize("bad", [[("a",)], [("a", 1, 2)], ["ab"], [("a", 1), None]])
def test_a_row_of_another_width_is_refused_when_the_spout_is_made(bad: list[Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"row \d of FixedBatchSpout has \d values and there are 2 fields"):
        FixedBatchSpout("a string, b long", bad)


@pytest.mark.parametrize("bad", ["a text", b"bytes", {"a": 1}, 5, None])
def test_rows_that_are_no_list_are_not_taken_apart(bad: Any) -> None:
    with pytest.raises(ConfigurationError, match="Give a list of rows"):
        FixedBatchSpout("a string", bad)


ZONED = datetime.time(8, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("fields", "row"),
    [
        ("n long", "x"),
        ("n long", 2**63),
        ("s string", 1),
        ("d date", "x"),
        ("t time", ZONED),
        ("t time", 1),
        ("t array<array<time>>", ([[datetime.time(8)], [None, ZONED]],)),
        ("t map<time,long>", {ZONED: 1}),
        ("t map<long,array<time>>", {1: [ZONED]}),
        ("t struct<a:long,b:struct<at:time>>", {"a": 1, "b": {"at": ZONED}}),
        ("took interval day to second", 5.9),
    ],
)
def test_a_value_of_another_type_is_an_error_that_names_the_rows(fields: str, row: Any) -> None:
    with pytest.raises(DamagedInputError, match=r"rows 0 to 0 of FixedBatchSpout do not fit its fields"):
        rows(FixedBatchSpout(fields, [row]))
