"""Joins by a field of any type, with duplicates and nulls among the keys, and their right results from a few lines of
Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from hypothesis import strategies as st

from airflow_trident import FixedBatchSpout, Function, OperationContext, Stream, Topology
from tests.fixtures.engine import keep
from tests.generated.in_python import key_of
from tests.generated.types import VALUES, Row, Rows

BEHIND = ("nothing", "a number", "a class")
"""What follows a join: if it is told the number of partitions, the join may be made in another way."""


@dataclass(frozen=True)
class JoinCase:
    """Two or three streams of (number, key), and how they are joined. `nested`: the key is in an array of arrays."""

    type_text: str
    sides: tuple[Rows, ...]
    outer: tuple[bool, ...]
    preserves: bool
    nested: bool
    behind: str


def _cases(type_text: str) -> st.SearchStrategy[JoinCase]:
    rows = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([*VALUES[type_text], None])), max_size=6)
    return st.integers(2, 3).flatmap(
        lambda count: st.builds(
            JoinCase,
            st.just(type_text),
            st.tuples(*[rows] * count),
            st.tuples(*[st.booleans()] * count),
            st.booleans(),
            st.booleans(),
            st.sampled_from(BEHIND),
        )
    )


JOINS = st.sampled_from(list(VALUES)).flatmap(_cases)


class Told(Function):
    """Asks for its partition, and fails if the answer is wrong."""

    output_types = "boolean"

    def prepare(self, context: OperationContext) -> None:
        assert 0 <= context.partition_index < context.num_partitions

    def execute(self, *values: Any) -> Iterator[bool]:
        yield values[0] is None


def join_up(topology: Topology, case: JoinCase) -> dict[str, list[Row]]:
    """Builds the join; the name of its state, and the rows that must be staged for it."""
    streams = [_stream(topology, case, place) for place in range(len(case.sides))]
    fields = [name for stream in streams for name in stream.fields]
    if not case.preserves:
        fields = ["key", *fields[::2]]
    kinds = ["outer" if outer else "inner" for outer in case.outer]
    mode = "preserve" if case.preserves else "compact"
    joined = topology.join(streams, [stream.fields[1] for stream in streams], fields, kinds, mode)
    rows = list(_rows(case))
    if case.behind == "a number":
        joined = joined.parallelism_hint(3)
    if case.behind == "a class":
        joined, rows = (
            joined.each("n0", Told(), "missing"),
            [(*row, row[0 if case.preserves else 1] is None) for row in rows],
        )
    keep(joined, "joined")
    return {"joined": rows}


def _stream(topology: Topology, case: JoinCase, place: int) -> Stream:
    spout = FixedBatchSpout(f"n{place} long, k{place} {case.type_text}", case.sides[place], splits=2)
    stream = topology.new_stream(f"side_{place}", spout)
    if not case.nested:
        return stream
    type_text = f"array<array<{case.type_text}>>"
    return stream.each(f"k{place}", lambda k: [[[k], None]], f"a{place} {type_text}").project(f"n{place}, a{place}")


def _rows(case: JoinCase) -> Iterator[Row]:
    """Trident's join: all combinations of each group; the fields of a missing side are null."""
    for key in {key_of(row[1]): row[1] for side in case.sides for row in side}.values():
        groups = [[row for row in side if key_of(row[1]) == key_of(key)] for side in case.sides]
        if all(group or outer for group, outer in zip(groups, case.outer, strict=True)):
            for combined in product(*(group or [None] for group in groups)):
                yield _row(case, _shown(case, key), combined)


def _row(case: JoinCase, key: Any, combined: tuple[Row | None, ...]) -> Row:
    if case.preserves:
        return tuple(value for row in combined for value in ((None, None) if row is None else (row[0], key)))
    return (key, *(None if row is None else row[0] for row in combined))


def _shown(case: JoinCase, key: Any) -> Any:
    """The zero without a sign, because both zeros are one key."""
    key = key + 0.0 if isinstance(key, float) else key
    return [[key], None] if case.nested else key
