"""One aggregator in a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_trident.operations.api import Aggregator, CombinerAggregator, MergeKind, ReducerAggregator
from airflow_trident.operations.calls.function_names import function_name
from airflow_trident.operations.expr.dtypes import JAVA_DIGITS, decimal_parts
from airflow_trident.operations.multireduce import Joiner
from airflow_trident.operations.newest import Newest
from airflow_trident.operations.summaries import MaxBy, MinBy
from airflow_trident.types import Schema, select


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """One aggregator with the fields that it reads and the fields that it gives: one field, or more for an
    `Aggregator`."""

    aggregator: CombinerAggregator[Any] | ReducerAggregator[Any] | Aggregator[Any]
    reads: tuple[str, ...]
    output: Schema

    @property
    def combiner(self) -> CombinerAggregator[Any] | None:
        return self.aggregator if isinstance(self.aggregator, CombinerAggregator) else None

    @property
    def reducer(self) -> ReducerAggregator[Any] | None:
        return self.aggregator if isinstance(self.aggregator, ReducerAggregator) else None

    @property
    def merge_kind(self) -> MergeKind | None:
        """None: only its own code can merge it."""
        return self.combiner.merge_kind if self.combiner else None

    def in_sql(self, before: Schema) -> bool:
        """Can Spark's SQL do it on raw tuples with these fields? For MaxBy it ranks by negated values, and rounds
        negated decimals of more digits."""
        if self.merge_kind is not None:
            return True
        if type(self.aggregator) is MaxBy:
            _, by = select(before, self.reads, str(self))
            digits, _ = decimal_parts(by.type) or (0, 0)
            return digits <= JAVA_DIGITS
        return type(self.aggregator) is MinBy

    def __str__(self) -> str:
        return f"{said(self.aggregator)}({', '.join(self.reads)})"


def said(operation: Any) -> str:
    """An operation by name; some of this package's need more than that. `describe` of a user's class is not ours."""
    return operation.describe() if isinstance(operation, Newest | Joiner) else function_name(operation)
