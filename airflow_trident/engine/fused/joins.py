"""Joins without a loop over tuples: matching tuples are computed as arrays of positions, and columns are taken by
these. The result is that of :class:`Joiner`, tuple by tuple, in the same order.

Multi-reducers over the tagged union of their streams: the same code for every engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_trident.engine.fused.aggregate import Emitted, coercers, key_of_groups, shown_key
from airflow_trident.engine.fused.frames import BATCH_ROWS, Column, Frame
from airflow_trident.engine.key_limit import NO_LIMIT, KeyLimit
from airflow_trident.io.arrow import arrow_type, python_values
from airflow_trident.operations.interfaces import (
    GroupedMultiReducer,
    Joiner,
    JoinOutFieldsMode,
    JoinType,
    MultiReducer,
    OperationContext,
)
from airflow_trident.operations.state_functions import Row
from airflow_trident.operations.user_code import Border, prepared
from airflow_trident.operations.user_functions import function_name
from airflow_trident.plan.nodes import MultiReduceStepNode
from airflow_trident.types import Field, Schema, has_reals, names_of, select

if TYPE_CHECKING:
    import pyarrow as pa


def join(
    node: MultiReduceStepNode, joiner: Joiner, before: Schema, frames: Iterator[Frame], limit: KeyLimit
) -> Iterator[Frame]:
    """:param frames: all of one partition, with the schema `before` of the tagged union.
    :raises ConfigurationError: they have too many keys.
    """
    import numpy as np
    import pyarrow as pa

    filled_frames = [frame for frame in frames if frame.rows]
    if not filled_frames:
        return
    keys = select(before, node.groups, node.name)
    codes = _codes(keys, filled_frames, limit)
    _, firsts = np.unique(codes, return_index=True)
    whole = {
        field.name: _whole(field, filled_frames) for field in before if field.name in node.needs(before, frozenset())
    }
    shown = [_shown(field, whole[field.name].take(pa.array(firsts))) for field in keys]
    tags = whole[node.tag].to_numpy()
    sides = [_Side.of(codes, np.flatnonzero(tags == number), len(firsts)) for number in range(len(joiner.types))]
    needed = [side.counts > 0 for side, kind in zip(sides, joiner.types, strict=True) if kind is JoinType.INNER]
    groups = np.flatnonzero(np.all(needed, axis=0)) if needed else np.arange(len(firsts))
    values = [[whole[name] for name in reads] for reads in node.reads]
    for some in _parts(groups, sides):
        places = _places(some, sides)
        columns = _columns(joiner, shown, values, places)
        yield Frame(len(places[0]), dict(zip(names_of(node.schema), columns, strict=True)))


@dataclass(frozen=True)
class _Side:
    """The tuples of one stream, in numpy arrays: `places`, group after group; `counts` and `starts` of each group."""

    places: Any
    counts: Any
    starts: Any

    @classmethod
    def of(cls, codes: Any, places: Any, groups: int) -> _Side:
        import numpy as np

        counts = np.bincount(codes[places], minlength=groups)
        return cls(places[np.argsort(codes[places], kind="stable")], counts, np.cumsum(counts) - counts)

    @property
    def rows(self) -> Any:
        """How many rows each group gives: a missing side counts as one row of nulls."""
        import numpy as np

        return np.maximum(self.counts, 1)


def _codes(keys: Schema, frames: list[Frame], limit: KeyLimit) -> Any:
    """The group number of each tuple; groups are numbered in order of appearance."""
    import numpy as np

    key_of, numbers, codes = key_of_groups(keys), dict[Any, int](), list[Any]()
    for frame in frames:
        tuples = frame.tuples(names_of(keys))
        codes.append(np.fromiter((numbers.setdefault(key_of(key), len(numbers)) for key in tuples), np.int64))
        limit.require(len(numbers))
    return np.concatenate(codes)


def _whole(field: Field, frames: list[Frame]) -> pa.Array:
    """One column of all frames. Together, texts may be longer than Arrow's usual type can hold."""
    import pyarrow as pa

    large = {"string": pa.large_string(), "binary": pa.large_binary()}.get(field.type, arrow_type(field.type))
    return pa.concat_arrays([frame.arrow(field.name, field.type).cast(large) for frame in frames])


def _shown(field: Field, column: pa.Array) -> pa.Array:
    """The values of group fields in the output."""
    import pyarrow as pa

    if not has_reals(field.type):
        return column
    return pa.array(shown_key((field,))(tuple(python_values(column))), type=column.type)


def _parts(groups: Any, sides: list[_Side]) -> Iterator[Any]:
    """The groups, in parts that each give about a batch of rows."""
    import numpy as np

    ends = np.cumsum(np.prod([side.rows[groups] for side in sides], axis=0))
    begin, before = 0, 0
    while begin < len(groups):
        end = max(begin + 1, int(np.searchsorted(ends, before + BATCH_ROWS, side="right")))
        yield groups[begin:end]
        begin, before = end, int(ends[end - 1])


def _places(groups: Any, sides: list[_Side]) -> list[pa.Array]:
    """For each row: the number of its group, and the position of each side's tuple, or null. The last side changes
    fastest."""
    import numpy as np
    import pyarrow as pa

    rows = np.prod([side.rows[groups] for side in sides], axis=0)
    of = np.repeat(groups, rows)
    rest = np.arange(len(of)) - np.repeat(np.cumsum(rows) - rows, rows)
    positions = []
    for side in reversed(sides):
        rest, at = np.divmod(rest, side.rows[of])
        missing = side.counts[of] == 0
        places = np.where(missing, 0, side.starts[of] + at)
        positions.append(pa.array(side.places[places] if len(side.places) else places, mask=missing))
    return [pa.array(of), *reversed(positions)]


def _columns(
    joiner: Joiner, keys: list[pa.Array], values: list[list[pa.Array]], places: list[pa.Array]
) -> Iterator[Column]:
    """Columns in the order of the joined fields."""
    import pyarrow as pa
    import pyarrow.compute as pc

    of, tuples = places[0], places[1:]
    if joiner.mode is JoinOutFieldsMode.COMPACT:
        yield from (key.take(of) for key in keys)
        yield from (column.take(at) for side, at in zip(values, tuples, strict=True) for column in side)
        return
    for layout, side, at in zip(joiner.layout, values, tuples, strict=True):
        there = pc.if_else(at.is_valid(), of, pa.scalar(None, of.type))
        for is_key, place in layout:
            yield keys[place].take(there) if is_key else side[place].take(at)


def multi_reduce(
    node: MultiReduceStepNode,
    before: Schema,
    rows: Iterable[Row],
    context: OperationContext,
    max_keys: int = NO_LIMIT,
) -> Iterator[Row]:
    """:param rows: all of one partition, with the schema `before` of the union.
    :raises ConfigurationError: they have more than `max_keys` groups."""
    limit = KeyLimit(node.name, max_keys, context)
    names = names_of(before)
    tag = names.index(node.tag)
    places = [[names.index(name) for name in reads] for reads in node.reads]
    fields = [tuple(name.partition(" ")[2] for name in reads) for reads in node.reads]
    borders = [Border(node.name, function_name(node.reducer), field_names, context.txid) for field_names in fields]
    keys = [names.index(name) for name in node.groups]
    key_of, shown = (make(select(before, node.groups, node.name)) for make in (key_of_groups, shown_key))
    groups: dict[Any, tuple[Row, Any]] = {}
    with prepared(node.reducer, context, borders[0]) as reducer:
        calls = _Calls(reducer, Emitted(borders[0], coercers(node.schema)), borders)
        if not keys:
            groups[()] = ((), calls.init(()))
        for row in rows:
            group = tuple(row[place] for place in keys)
            hashed = key_of(group)
            if hashed not in groups:
                group = shown(group)
                groups[hashed] = (group, calls.init(group))
                limit.require(len(groups))
                yield from calls.taken()
            group, state = groups[hashed]
            stream = row[tag]
            calls.execute(state, stream, group, tuple(row[place] for place in places[stream]))
            yield from calls.taken()
        for group, state in groups.values():
            calls.complete(state, group)
            yield from calls.taken()


@dataclass
class _Calls:
    """One reducer, grouped or not."""

    _reducer: MultiReducer[Any] | GroupedMultiReducer[Any]
    _emitted: Emitted
    _borders: Sequence[Border]

    def init(self, group: Row) -> Any:
        if isinstance(self._reducer, GroupedMultiReducer):
            return self._call(0, (), self._reducer.init, group, self._emitted)
        return self._call(0, (), self._reducer.init, self._emitted)

    def execute(self, state: Any, stream: int, group: Row, values: Row) -> None:
        if isinstance(self._reducer, GroupedMultiReducer):
            outcome = self._call(stream, values, self._reducer.execute, state, stream, group, self._emitted, *values)
        else:
            outcome = self._call(stream, values, self._reducer.execute, state, stream, self._emitted, *values)
        if outcome is not None:
            self._borders[stream].require_in_place(values, outcome, state)

    def complete(self, state: Any, group: Row) -> None:
        if isinstance(self._reducer, GroupedMultiReducer):
            outcome = self._call(0, (), self._reducer.complete, state, group, self._emitted)
        else:
            outcome = self._call(0, (), self._reducer.complete, state, self._emitted)
        self._borders[0].require_in_place((), outcome)

    def taken(self) -> list[Row]:
        """The outputs emitted since the last call."""
        rows, self._emitted.rows = self._emitted.rows, []
        return rows

    def _call(self, stream: int, values: Row, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except BaseException as error:
            self._borders[stream].translate(values, error)
            raise
