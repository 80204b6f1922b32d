"""Aggregation inside a fused pass: partial before the shuffle, and final after it.

Arrow groups built-in combiners; a dictionary groups users' combiners and reducers. If a partial step has too many
groups, it emits them and starts again; a dictionary of any other step has a limit.

How aggregators and multi-reducers take rows. Only this module knows which rows are raw, which are partial values,
and what a group gives in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from decimal import Decimal
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_trident.engine.fused.frames import Frame
from airflow_trident.engine.key_limit import NO_LIMIT, KeyLimit
from airflow_trident.errors import UserCodeError
from airflow_trident.io.arrow import columns_of, fitted, grouped
from airflow_trident.io.values import UnfitValueError, coerce_column, coercer
from airflow_trident.operations.aggregators import Count
from airflow_trident.operations.equality import canonical
from airflow_trident.operations.interfaces import (
    Aggregator,
    CombinerAggregator,
    MergeKind,
    OperationContext,
    ReducerAggregator,
    TransactionAttempt,
)
from airflow_trident.operations.user_code import Border, prepared
from airflow_trident.operations.user_functions import function_name
from airflow_trident.plan.nodes import Aggregation, FinalAggregateNode, PartialAggregateNode, PartitionAggregateNode
from airflow_trident.types import REAL_TYPES, Schema, has_reals, is_nested, names_of, select

if TYPE_CHECKING:
    import pyarrow as pa

AnyAggregator: TypeAlias = CombinerAggregator[Any] | ReducerAggregator[Any] | Aggregator[Any]
AggregateStep: TypeAlias = PartialAggregateNode | PartitionAggregateNode | FinalAggregateNode


def merges(node: AggregateStep) -> bool:
    """Are its inputs partial values?"""
    return isinstance(node, FinalAggregateNode) and node.merges


def begins_empty(node: AggregateStep) -> bool:
    """Is there a result even without rows?"""
    return not node.groups and not isinstance(node, PartialAggregateNode)


def coercers(outputs: Schema) -> tuple[Callable[[Any], Any], ...]:
    """For each field a function that converts values to its type."""
    return tuple(coercer(field.type) for field in outputs)


class Emitted:
    """The collector of users' code: checks emitted values.

    :param fits: see :func:`coercers`; made once, because each group has a collector.
    """

    __slots__ = ("_border", "_fits", "rows")

    def __init__(self, border: Border, fits: tuple[Callable[[Any], Any], ...]) -> None:
        self._border = border
        self._fits = fits
        self.rows: list[tuple[Any, ...]] = []

    def emit(self, *values: Any) -> None:
        fits = self._fits
        if len(values) != len(fits):
            raise self._border.wrong_arity((), values, len(fits))
        try:
            self.rows.append(tuple([fit(value) for fit, value in zip(fits, values, strict=True)]))
        except UnfitValueError as error:
            raise self._border.error((), f"gave {error}") from error


class Fold:
    """One aggregation: how a group starts, takes a row and ends. Before the shuffle rows are raw; after it they are
    partial values for combiners, and raw for all others."""

    def __init__(
        self, outputs: Schema, aggregator: AnyAggregator, border: Border, batch: TransactionAttempt, *, partial: bool
    ) -> None:
        """
        :param aggregator: a prepared one.
        :param partial: do the rows hold partial values?
        """
        self.outputs = outputs
        self.aggregator = aggregator
        self.border = border
        self.reads = border.fields
        self.begin: Callable[[], Any]
        self.step: Callable[[Any, tuple[Any, ...]], Any]
        if isinstance(aggregator, Aggregator):
            self._general(aggregator, batch)
        elif isinstance(aggregator, ReducerAggregator):
            self.begin, self.step = aggregator.init, lambda value, row: aggregator.reduce(value, *row)
        else:
            self._combiner(aggregator, partial=partial)

    def _combiner(self, combiner: CombinerAggregator[Any], *, partial: bool) -> None:
        self.begin = combiner.zero
        if partial:
            self.step = lambda value, row: combiner.combine(value, row[0])
        else:
            self.step = lambda value, row: combiner.combine(value, combiner.init(*row))

    def _general(self, aggregator: Aggregator[Any], batch: TransactionAttempt) -> None:
        fits = coercers(self.outputs)
        take: Callable[..., Any] = aggregator.aggregate

        def begin() -> tuple[Any, Emitted]:
            emitted = Emitted(self.border, fits)
            return aggregator.init(batch, emitted), emitted

        def step(value: tuple[Any, Emitted], row: tuple[Any, ...]) -> tuple[Any, Emitted]:
            outcome = take(value[0], value[1], *row)
            if outcome is not None:
                self.border.require_in_place(row, outcome, value[0])
            return value

        self.begin, self.step = begin, step

    @property
    def is_single(self) -> bool:
        """Exactly one value per group?"""
        return not isinstance(self.aggregator, Aggregator)

    def start(self) -> Any:
        """The value of a group before its first row."""
        return self._guarded((), self.begin)

    def take(self, value: Any, row: tuple[Any, ...]) -> Any:
        return self._guarded(row, self.step, value, row)

    def _guarded(self, row: tuple[Any, ...], call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except BaseException as error:
            self.border.translate(row, error)
            raise

    def results(self, values: Sequence[Any]) -> list[Any]:
        """The values of all groups, for an aggregation that gives one each, checked against the declared type.

        :raises UserCodeError: one does not fit.
        """
        try:
            return list(coerce_column(values, self.outputs[0].type))
        except UnfitValueError as error:
            raise self.border.error((), f"gave {error}") from error

    def emits(self, value: Any) -> list[tuple[Any, ...]]:
        """All outputs of one group."""
        if not isinstance(self.aggregator, Aggregator):
            return [(output,) for output in self.results([value])]
        state, emitted = value
        self.border.require_in_place((), self._guarded((), self.aggregator.complete, state, emitted))
        rows: list[tuple[Any, ...]] = emitted.rows
        return rows


@contextmanager
def folds_of(node: AggregateStep, context: OperationContext) -> Iterator[list[Fold]]:
    """One fold per aggregation of a node, for one partition."""
    batch = TransactionAttempt(context.txid, context.attempt)
    partial = merges(node)
    with ExitStack() as lives:
        folds = []
        for aggregation in node.aggregations:
            reads = (aggregation.output[0].name,) if partial else aggregation.reads
            border = Border(node.name, function_name(aggregation.aggregator), reads, context.txid)
            aggregator = lives.enter_context(prepared(aggregation.aggregator, context, border))
            folds.append(Fold(aggregation.output, aggregator, border, batch, partial=partial))
        yield folds


def group_rows(folds: Sequence[Fold], key: tuple[Any, ...], values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """The tuples of one group: the cross product of its aggregations' outputs."""
    if len(folds) == 1:
        for part in folds[0].emits(values[0]):
            yield (*key, *part)
        return
    for parts in product(*(fold.emits(value) for fold, value in zip(folds, values, strict=True))):
        yield (*key, *(value for part in parts for value in part))


def key_of_groups(groups: Schema) -> Callable[[tuple[Any, ...]], Any]:
    """A function from the values of the group fields to a hashable key; NaN is one group."""
    if any(is_nested(field.type) or field.type in REAL_TYPES for field in groups):
        return _hashable
    return lambda key: key


def shown_key(groups: Schema) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """A function from the group fields of any tuple to those of the output: -0.0 and 0.0 are one group with the output
    0.0, as in Spark's SQL."""
    if any(has_reals(field.type) for field in groups):
        return lambda key: tuple(map(canonical, key))
    return lambda key: key


def _hashable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_hashable(part) for part in value)
    return "NaN" if value != value else value


MAX_GROUPS = 1_000_000
"""How many groups a partial step holds before it emits them: some hundred megabytes."""
_ARROW_NAMES: Mapping[MergeKind | None, str] = {MergeKind.ADD: "sum", MergeKind.MIN: "min", MergeKind.MAX: "max"}


def aggregate(
    node: AggregateStep,
    before: Schema,
    frames: Iterator[Frame],
    context: OperationContext,
    max_keys: int = NO_LIMIT,
) -> Iterator[Frame]:
    """Aggregates all rows of a partition by groups. A final step without groups gives one row even without input.

    :param max_keys: so many groups at most may be in a dictionary at once.
    :raises ConfigurationError: there are more.
    """
    limit = KeyLimit(node.name, max_keys, context)
    if not _by_arrow(node, before):
        return _by_dictionary(node, before, frames, limit)
    if isinstance(node, PartialAggregateNode):
        return _arrow_partial(node, before, frames, context.txid)
    return _arrow_whole(node, before, frames, limit)


def _by_arrow(node: AggregateStep, before: Schema) -> bool:
    """Arrow groups neither nested values nor, by our rules, reals (NaN, -0.0), and its min and max ignore NaN."""
    used = select(before, node.reads, node.name)
    exact = {field.name: not is_nested(field.type) and field.type not in REAL_TYPES for field in used}
    extremes = [
        aggregation
        for aggregation in node.aggregations
        if aggregation.combiner and aggregation.merge_kind is not MergeKind.ADD
    ]
    return (
        node.is_builtin
        and all(exact[name] for name in node.groups)
        and all(
            exact[name]
            for aggregation in extremes
            for name in ((aggregation.output[0].name,) if merges(node) else aggregation.reads)
        )
    )


# ---- by Arrow --------------------------------------------------------------------------------------------------


def _arrow_partial(node: PartialAggregateNode, before: Schema, frames: Iterator[Frame], txid: int) -> Iterator[Frame]:
    import pyarrow as pa

    waiting: list[pa.Table] = []
    rows = 0
    for frame in (nonempty for nonempty in frames if nonempty.rows):
        part = _group(node, _initial(node, before, frame, txid), txid)
        waiting.append(part)
        rows += part.num_rows
        if rows > MAX_GROUPS:
            whole = _group(node, pa.concat_tables(waiting), txid)
            if whole.num_rows > MAX_GROUPS // 2:  # merging no longer helps
                yield _frame(whole)
                waiting, rows = [], 0
            else:
                waiting, rows = [whole], whole.num_rows
    if waiting:
        yield _frame(_group(node, pa.concat_tables(waiting), txid) if len(waiting) > 1 else waiting[0])


def _arrow_whole(node: AggregateStep, before: Schema, frames: Iterator[Frame], limit: KeyLimit) -> Iterator[Frame]:
    """All groups of a partition at once. For no input, or a sum that does not fit, the aggregators give the result."""
    import pyarrow as pa

    whole: pa.Table | None = None
    filled_frames = [frame for frame in frames if frame.rows]
    if filled_frames:
        with suppress(UserCodeError):
            values = pa.concat_tables(_initial(node, before, frame, limit.context.txid) for frame in filled_frames)
            whole = _group(node, values, limit.context.txid)
    if whole is not None:
        yield _frame(whole)
        return
    yield from _by_dictionary(node, before, iter(filled_frames), limit)


def _initial(node: AggregateStep, before: Schema, frame: Frame, txid: int) -> pa.Table:
    """The value of each single row: for raw rows `init` of the built-ins, in columns; for partial values the value
    itself."""
    import numpy as np
    import pyarrow as pa

    types = {field.name: field.type for field in before}
    columns = {name: frame.arrow(name, types[name]) for name in node.groups}
    for aggregation in node.aggregations:
        (output,) = aggregation.output
        if merges(node):
            columns[output.name] = frame.arrow(output.name, types[output.name])
            continue
        if isinstance(aggregation.aggregator, Count):
            columns[output.name] = pa.array(np.ones(frame.rows, dtype=np.int64))
            continue
        column = _of_type(frame.arrow(aggregation.reads[0], types[aggregation.reads[0]]), aggregation, node, txid)
        columns[output.name] = column.fill_null(_zero(column)) if aggregation.merge_kind is MergeKind.ADD else column
    return pa.table(columns)


def _of_type(column: pa.Array, aggregation: Aggregation, node: AggregateStep, txid: int) -> pa.Array:
    """
    :raises UserCodeError: a value does not fit the declared result.
    """
    try:
        return fitted(column, aggregation.output[0].type)
    except UnfitValueError as error:
        raise _border(node, aggregation, txid).error((), f"gave {error}") from error


def _border(node: AggregateStep, aggregation: Aggregation, txid: int) -> Border:
    return Border(node.name, function_name(aggregation.aggregator), aggregation.reads, txid)


def _group(node: AggregateStep, table: pa.Table, txid: int) -> pa.Table:
    """Merges rows of equal groups into one."""
    import pyarrow as pa

    wide = table
    for aggregation in node.aggregations:
        name = aggregation.output[0].name
        column = table.column(name)
        if pa.types.is_duration(column.type):  # Arrow does not compare durations
            column = column.cast(pa.int64())
        elif aggregation.merge_kind is MergeKind.ADD and _may_overflow(column):
            column = column.cast(_wider(column.type))
        wide = wide.set_column(wide.column_names.index(name), name, column)
    how = [(aggregation.output[0].name, _ARROW_NAMES[aggregation.merge_kind]) for aggregation in node.aggregations]
    merged = grouped(wide, node.groups, how)
    width = len(node.groups)
    columns = [
        column.cast(table.schema.field(name).type) for name, column in zip(node.groups, merged[:width], strict=True)
    ]
    for aggregation, (name, _), column in zip(node.aggregations, how, merged[width:], strict=True):
        try:
            columns.append(column.cast(table.schema.field(name).type))
        except pa.ArrowInvalid as error:  # a sum that no longer fits is an error, as in SQL
            raise _border(node, aggregation, txid).error((), f"gave a value that does not fit ({error})") from error
    return pa.Table.from_arrays(columns, schema=table.schema)


def _may_overflow(column: pa.ChunkedArray) -> bool:
    """May a sum not fit the column's type? Arrow's sums wrap silently, also those of decimals."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not len(column) or pa.types.is_floating(column.type):
        return False
    ends = pc.min_max(column).as_py()
    largest = max(_units(ends["min"]), _units(ends["max"]))
    limit = 10**column.type.precision if pa.types.is_decimal(column.type) else 2**63
    return bool(largest * len(column) >= limit)


def _units(value: Any) -> int:
    """The absolute value without its decimal point; 0 for null."""
    if not isinstance(value, Decimal):
        return abs(int(value or 0))
    _, digits, _ = value.as_tuple()
    return int("".join(map(str, digits)))


def _wider(narrow: pa.DataType) -> pa.DataType:
    """A type that holds any possible sum; the cast back raises if a sum does not fit."""
    import pyarrow as pa

    return pa.decimal256(76, narrow.scale) if pa.types.is_decimal(narrow) else pa.decimal128(38, 0)


def _zero(column: pa.Array) -> Any:
    import pyarrow as pa

    return pa.scalar(0, column.type)


def _frame(table: pa.Table) -> Frame:
    whole = table.combine_chunks()
    columns = {
        name: whole.column(name).chunk(0) if whole.column(name).num_chunks else [] for name in table.column_names
    }
    return Frame(table.num_rows, columns)


# ---- by a dictionary -------------------------------------------------------------------------------------------


def _by_dictionary(node: AggregateStep, before: Schema, frames: Iterator[Frame], limit: KeyLimit) -> Iterator[Frame]:
    key_of, shown = (make(select(before, node.groups, node.name)) for make in (key_of_groups, shown_key))
    partial = isinstance(node, PartialAggregateNode)
    groups: dict[Any, tuple[tuple[Any, ...], list[Any]]] = {}
    with folds_of(node, limit.context) as folds:
        if begins_empty(node):
            groups[()] = ((), [fold.start() for fold in folds])
        for frame in frames:
            _fold_frame(node, folds, frame, groups, key_of, shown)
            if not partial:
                limit.require(len(groups))
            elif len(groups) > MAX_GROUPS:
                yield _result(node, folds, groups)
                groups = {}
        if groups:
            yield _result(node, folds, groups)


def _fold_frame(
    node: AggregateStep,
    folds: list[Fold],
    frame: Frame,
    groups: dict[Any, Any],
    key_of: Callable[[Any], Any],
    shown: Callable[[Any], Any],
) -> None:
    rows = [frame.tuples(fold.reads) for fold in folds]
    fold, row = folds[0], ()
    try:
        for key, *reads in zip(frame.tuples(node.groups), *rows, strict=True):
            group = groups.get(hashed := key_of(key))
            if group is None:
                group = groups[hashed] = (shown(key), [fold.begin() for fold in folds])
            values = group[1]
            for place, fold in enumerate(folds):
                row = reads[place]
                values[place] = fold.step(values[place], row)
    except BaseException as error:
        fold.border.translate(row, error)
        raise


def _result(node: AggregateStep, folds: list[Fold], groups: dict[Any, Any]) -> Frame:
    if not all(fold.is_single for fold in folds):
        rows = [row for key, values in groups.values() for row in group_rows(folds, key, values)]
        return Frame.of_rows(rows, names_of(node.schema))
    keys = columns_of([key for key, _ in groups.values()], len(node.groups))
    columns: dict[str, Any] = dict(zip(node.groups, keys, strict=True))
    for place, fold in enumerate(folds):
        columns[fold.outputs[0].name] = fold.results([folded[place] for _, folded in groups.values()])
    return Frame(len(groups), columns)
