"""How aggregators and multi-reducers take rows. Only this module knows which rows are raw, which are partial values,
and what a group gives in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Any, TypeAlias

from airflow_trident.io.values import UnfitValueError, coerce_column, coercer
from airflow_trident.operations.api import (
    Aggregator,
    CombinerAggregator,
    OperationContext,
    ReducerAggregator,
    TransactionAttempt,
)
from airflow_trident.operations.calls.function_names import function_name
from airflow_trident.operations.calls.user_code import Border, prepared
from airflow_trident.plan.nodes import FinalAggregateNode, PartialAggregateNode, PartitionAggregateNode
from airflow_trident.types import REAL_TYPES, Schema, has_reals, is_nested

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

        def begin() -> tuple[Any, Emitted]:
            emitted = Emitted(self.border, fits)
            return aggregator.init(batch, emitted), emitted

        def step(value: tuple[Any, Emitted], row: tuple[Any, ...]) -> tuple[Any, Emitted]:
            aggregator.aggregate(value[0], value[1], *row)
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
            return [(one,) for one in self.results([value])]
        state, emitted = value
        self._guarded((), self.aggregator.complete, state, emitted)
        rows: list[tuple[Any, ...]] = emitted.rows
        return rows


@contextmanager
def folds_of(node: AggregateStep, context: OperationContext) -> Iterator[list[Fold]]:
    """One fold per aggregation of a node, for one partition."""
    batch = TransactionAttempt(context.txid, context.attempt)
    partial = merges(node)
    with ExitStack() as lives:
        folds = []
        for one in node.aggregations:
            reads = (one.output[0].name,) if partial else one.reads
            border = Border(node.name, function_name(one.aggregator), reads, context.txid)
            aggregator = lives.enter_context(prepared(one.aggregator, context, border))
            folds.append(Fold(one.output, aggregator, border, batch, partial=partial))
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
        return lambda key: tuple(map(_without_sign_of_zero, key))
    return lambda key: key


def _without_sign_of_zero(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_without_sign_of_zero(one) for one in value]
    return value + 0.0 if isinstance(value, float) else value


def _hashable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_hashable(one) for one in value)
    return "NaN" if value != value else value
