"""How aggregators take rows: the one place that knows which rows are raw and which hold partial values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from airflow_trident.errors import TridentError
from airflow_trident.operations.base import CombinerAggregator
from airflow_trident.operations.calls import Border
from airflow_trident.operations.values import UnfitValueError, coerce_column
from airflow_trident.plan.explain import function_name
from airflow_trident.plan.nodes import Aggregation, FinalAggregateNode, PartialAggregateNode
from airflow_trident.types import Schema

AggregateStep: TypeAlias = PartialAggregateNode | FinalAggregateNode


def aggregate_reads(node: AggregateStep) -> tuple[str, ...]:
    """The fields that the step needs: raw ones, or partial values where those were brought together."""
    reads = list(node.groups)
    for one in node.aggregations:
        partial = isinstance(node, FinalAggregateNode) and one.combiner is not None
        reads += [one.output[0].name] if partial else one.reads
    return tuple(dict.fromkeys(reads))


class Fold:
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

    def results(self, values: Sequence[Any]) -> list[Any]:
        """The values of all groups, held against the declared type.

        :raises UserCodeError: one does not fit.
        """
        try:
            return list(coerce_column(values, self.output.type))
        except UnfitValueError as error:
            raise self.border.error((), f"gave {error}") from error


def key_of_groups(groups: Schema) -> Callable[[tuple[Any, ...]], Any]:
    """From the values of the group fields to what tells groups apart: an array's elements; NaN is one group."""
    if any(field.type.startswith(("array", "float", "double")) for field in groups):
        return _hashable
    return lambda key: key


def _hashable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_hashable(one) for one in value)
    return "NaN" if value != value else value
