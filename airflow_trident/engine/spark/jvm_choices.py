"""The first tuples of a batch, chosen by Spark itself: `FirstN`, and `min_by` and `max_by` of one partition. Spark
keeps the first of each partition before the shuffle; a Python pass would need all tuples in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_trident.engine.spark.jvm_nodes import Columns
from airflow_trident.operations.builtin import FirstNAggregator
from airflow_trident.operations.comparing import ComparisonAggregator
from airflow_trident.plan.graph import Node
from airflow_trident.plan.nodes import Aggregation, PartitionAggregateNode, PartitionNode
from airflow_trident.types import select

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PLACE = "place of tuple"
"""A column. No field of a user can have this name."""


@dataclass(frozen=True)
class JvmChoice:
    """The first `count` of all tuples in the order of a field, or in stream order. Of tuples with equal values, those
    first in the stream win, with `latest` those last.

    `field`: the position of the field. `reverse`: the largest first. `nulls`: include tuples whose field is null, at
    the end.
    """

    given: Aggregation
    count: int
    field: int | None
    reverse: bool
    nulls: bool = True
    latest: bool = False

    @classmethod
    def of(cls, how: PartitionNode, nodes: tuple[Node, ...]) -> JvmChoice | None:
        """The choice at the start of a stage, after a repartition into one partition; None: there is none, or Spark
        cannot make it."""
        first = nodes[0] if nodes else None
        if not how.grouping.gathers or not isinstance(first, PartitionAggregateNode) or first.groups:
            return None
        if len(first.aggregations) != 1 or any(node.runs_without_tuples for node in nodes[1:]):
            return None
        (one,) = first.aggregations
        if [field.type for field in select(how.schema, one.reads, first.name)] != [field.type for field in one.output]:
            return None
        match one.aggregator:
            case FirstNAggregator(n=count, place=place, reverse=reverse):
                return cls(one, count, place, reverse)
            case ComparisonAggregator(place=int(place), comparator=None, sign=sign):
                return cls(one, 1, place, sign > 0, nulls=False, latest=True)
        return None

    def data(self, columns: Columns, data: DataFrame) -> DataFrame:
        """The chosen tuples in one partition, in order."""
        data = data.select(*columns.given(self.given), columns.functions.monotonically_increasing_id().alias(_PLACE))
        names = [columns.named(field.name) for field in self.given.output]
        place = columns.named(_PLACE)
        order = [place.desc() if self.latest else place.asc()]
        if self.field is not None:
            by = names[self.field]
            data = data if self.nulls else data.where(by.isNotNull())
            order.insert(0, by.desc_nulls_last() if self.reverse else by.asc_nulls_last())
        return data.orderBy(*order).limit(self.count).select(*names)
