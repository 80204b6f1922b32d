"""Aggregation inside a fused pass: partial, before rows move, and final, after.

Built-in combiners are grouped by Arrow, a chunk at a time; users' combiners and reducers by a dictionary. A partition
whose groups become too many hands out what it has and begins again, in the partial step, where that is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_trident.arrow import arrow_type
from airflow_trident.engine.frames import Frame
from airflow_trident.errors import TridentError
from airflow_trident.operations.aggregators import Count
from airflow_trident.operations.base import CombinerAggregator, MergeKind, OperationContext
from airflow_trident.operations.calls import Border, prepared
from airflow_trident.operations.values import UnfitValueError, coerce_column
from airflow_trident.plan.explain import function_name
from airflow_trident.plan.nodes import Aggregation, FinalAggregateNode, PartialAggregateNode
from airflow_trident.types import Schema, select

if TYPE_CHECKING:
    import pyarrow as pa

AggregateStep: TypeAlias = PartialAggregateNode | FinalAggregateNode

MAX_GROUPS = 1_000_000
"""Groups that a partial step holds before it hands them out: some hundred megabytes."""
_ARROW_NAMES = {MergeKind.ADD: "sum", MergeKind.MIN: "min", MergeKind.MAX: "max"}


def aggregate_reads(node: AggregateStep) -> tuple[str, ...]:
    """The fields that the step needs: raw ones, or partial values where those were brought together."""
    reads = list(node.groups)
    for one in node.aggregations:
        partial = isinstance(node, FinalAggregateNode) and one.combiner is not None
        reads += [one.output[0].name] if partial else one.reads
    return tuple(dict.fromkeys(reads))


def aggregate(
    node: AggregateStep, before: Schema, frames: Iterator[Frame], context: OperationContext
) -> Iterator[Frame]:
    """All rows of a partition, combined by groups. A final step without groups gives one row even for none."""
    if isinstance(node, PartialAggregateNode) and _by_arrow(node, before):
        return _arrow_partial(node, before, frames)
    return _by_dictionary(node, before, frames, context)


def is_builtin(node: AggregateStep) -> bool:
    """May SQL or Arrow do it?"""
    return all(one.combiner is not None and one.combiner.merge_kind is not None for one in node.aggregations)


def _by_arrow(node: AggregateStep, before: Schema) -> bool:
    """Arrow groups by neither arrays nor as we do by reals (NaN, -0.0), and its min and max pass over NaN."""
    used = select(before, aggregate_reads(node), node.name)
    exact = {field.name: not field.type.startswith(("array", "float", "double")) for field in used}
    extremes = [one for one in node.aggregations if one.combiner and one.combiner.merge_kind is not MergeKind.ADD]
    return (
        is_builtin(node)
        and all(exact[name] for name in node.groups)
        and all(exact[name] for one in extremes for name in one.reads)
    )


# ---- by Arrow --------------------------------------------------------------------------------------------------


def _arrow_partial(node: PartialAggregateNode, before: Schema, frames: Iterator[Frame]) -> Iterator[Frame]:
    import pyarrow as pa

    waiting: list[pa.Table] = []
    rows = 0
    for frame in frames:
        part = _group(node, _initial(node, before, frame))
        waiting.append(part)
        rows += part.num_rows
        if rows > MAX_GROUPS:
            whole = _group(node, pa.concat_tables(waiting))
            if whole.num_rows > MAX_GROUPS // 2:  # merging no longer helps
                yield _frame(whole)
                waiting, rows = [], 0
            else:
                waiting, rows = [whole], whole.num_rows
    if waiting:
        yield _frame(_group(node, pa.concat_tables(waiting)) if len(waiting) > 1 else waiting[0])


def _initial(node: PartialAggregateNode, before: Schema, frame: Frame) -> pa.Table:
    """The value of every single row: `init` of the built-ins, in columns."""
    import numpy as np
    import pyarrow as pa

    types = {field.name: field.type for field in before}
    columns = {name: frame.arrow(name, types[name]) for name in node.groups}
    for one in node.aggregations:
        (output,) = one.output
        if isinstance(one.aggregator, Count):
            columns[output.name] = pa.array(np.ones(frame.rows, dtype=np.int64))
            continue
        column = frame.arrow(one.reads[0], types[one.reads[0]]).cast(arrow_type(output.type))
        columns[output.name] = column.fill_null(_zero(column)) if _kind(one) is MergeKind.ADD else column
    return pa.table(columns)


def _group(node: PartialAggregateNode, table: pa.Table) -> pa.Table:
    """Rows of equal groups into one."""
    import pyarrow as pa

    wide = table
    for one in node.aggregations:
        name = one.output[0].name
        if _kind(one) is MergeKind.ADD and _may_overflow(table.column(name)):  # Arrow's sums wrap round silently
            place = wide.column_names.index(name)
            wide = wide.set_column(place, name, wide.column(name).cast(pa.decimal128(19, 0)))
    how = [(one.output[0].name, _ARROW_NAMES[_kind(one)]) for one in node.aggregations]
    grouped = wide.group_by(list(node.groups), use_threads=False).aggregate(how)
    columns = [grouped.column(name) for name in node.groups]
    columns += [grouped.column(f"{name}_{function}") for name, function in how]
    # a sum that no longer fits is an error here, as it is in SQL
    return pa.Table.from_arrays(columns, names=table.column_names).cast(table.schema)


def _may_overflow(column: pa.ChunkedArray) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_int64(column.type) or not len(column):
        return False
    ends = pc.min_max(column).as_py()
    largest = max(abs(ends["min"] or 0), abs(ends["max"] or 0))
    return bool(largest * len(column) >= 2**63)


def _kind(one: Aggregation) -> MergeKind:
    assert one.combiner is not None
    assert one.combiner.merge_kind is not None
    return one.combiner.merge_kind


def _zero(column: pa.Array) -> Any:
    import pyarrow as pa

    return pa.scalar(0, pa.int64()).cast(column.type)


def _frame(table: pa.Table) -> Frame:
    whole = table.combine_chunks()
    columns = {
        name: whole.column(name).chunk(0) if whole.column(name).num_chunks else [] for name in table.column_names
    }
    return Frame(table.num_rows, columns)


# ---- by a dictionary -------------------------------------------------------------------------------------------


class _Fold:
    """One aggregation: how a group begins and how a row comes in. Rows are raw before rows moved and for reducers, and
    hold partial values after."""

    def __init__(self, node: AggregateStep, one: Aggregation, txid: int) -> None:
        self.output = one.output[0]
        self.aggregator = one.aggregator
        final = isinstance(node, FinalAggregateNode)
        merges = final and one.combiner is not None
        self.reads: tuple[str, ...] = (self.output.name,) if merges else one.reads
        self.border = Border(node.name, function_name(one.aggregator), self.reads, txid)
        self.begin: Callable[[], Any] = lambda: None
        self.step: Callable[[Any, tuple[Any, ...]], Any]
        if not isinstance(one.aggregator, CombinerAggregator):
            reducer = one.aggregator
            self.begin, self.step = reducer.init, lambda value, row: reducer.reduce(value, *row)
            return
        combiner = one.aggregator
        self.begin = combiner.zero
        if merges:
            self.step = lambda value, row: combiner.combine(value, row[0])
        else:
            self.step = lambda value, row: combiner.combine(value, combiner.init(*row))

    def take(self, value: Any, row: tuple[Any, ...]) -> Any:
        try:
            return self.step(value, row)
        except TridentError:
            raise
        except Exception as error:
            raise self.border.raised(row, error) from error


def _by_dictionary(
    node: AggregateStep, before: Schema, frames: Iterator[Frame], context: OperationContext
) -> Iterator[Frame]:
    key_of = _key_of(select(before, node.groups, node.name))
    folds = [_Fold(node, one, context.txid) for one in node.aggregations]
    partial = isinstance(node, PartialAggregateNode)
    groups: dict[Any, tuple[tuple[Any, ...], list[Any]]] = {}
    if not partial and not node.groups:
        groups[()] = ((), [fold.begin() for fold in folds])
    with ExitStack() as lives:
        for fold in folds:
            lives.enter_context(prepared(fold.aggregator, context, fold.border))
        for frame in frames:
            _fold_frame(node, folds, frame, groups, key_of)
            if partial and len(groups) > MAX_GROUPS:
                yield _result(node, folds, groups)
                groups = {}
        if groups:
            yield _result(node, folds, groups)


def _fold_frame(
    node: AggregateStep, folds: list[_Fold], frame: Frame, groups: dict[Any, Any], key_of: Callable[[Any], Any]
) -> None:
    rows = [frame.tuples(fold.reads) for fold in folds]
    for key, *reads in zip(frame.tuples(node.groups), *rows, strict=True):
        known = groups.get(hashed := key_of(key))
        if known is None:
            known = groups[hashed] = (key, [fold.begin() for fold in folds])
        values = known[1]
        for place, fold in enumerate(folds):
            values[place] = fold.take(values[place], reads[place])


def _key_of(groups: Schema) -> Callable[[tuple[Any, ...]], Any]:
    """From the values of the group fields to what tells groups apart: an array's elements; NaN is one group."""
    if any(field.type.startswith(("array", "float", "double")) for field in groups):
        return _hashable
    return lambda key: key


def _hashable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_hashable(one) for one in value)
    return "NaN" if value != value else value


def _result(node: AggregateStep, folds: list[_Fold], groups: dict[Any, Any]) -> Frame:
    keys = zip(*(key for key, _ in groups.values()), strict=True)
    columns: dict[str, Any] = {name: list(values) for name, values in zip(node.groups, keys, strict=True)}
    for place, fold in enumerate(folds):
        values = [folded[place] for _, folded in groups.values()]
        try:
            columns[fold.output.name] = list(coerce_column(values, fold.output.type))
        except UnfitValueError as error:
            raise fold.border.error((), f"gave {error}") from error
    return Frame(len(groups), columns)
