"""Verbs that aggregate a batch: whole, by partition, by group, several aggregators in one pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import PlanError
from airflow_trident.operations.comparing import ComparisonAggregator, comparable, groupable
from airflow_trident.plan.nodes import AggregateNode, Aggregation, PartitionAggregateNode
from airflow_trident.topology.chained import ChainedAggregatorDeclarer
from airflow_trident.topology.grouped import GroupedStream
from airflow_trident.topology.repartition import Repartitioning
from airflow_trident.topology.signatures import aggregations
from airflow_trident.types import FieldSpec, names_of, require_distinct, select

if TYPE_CHECKING:
    from airflow_trident.topology.stream import Stream

Comparator = Callable[[Any, Any], int]
"""Negative, zero or positive as the first is less than, equal to or greater than the second."""


class Aggregating(Repartitioning):
    """Trident's aggregations of one batch.

    An aggregation is ``aggregator, output`` or ``inputs, aggregator, output``; several in one pass are tuples of those:
    ``aggregate((Count(), "n"), ("price", Sum(), "total"))``.
    """

    def group_by(self, fields: FieldSpec) -> GroupedStream:
        """Group by `fields`; nothing moves until an aggregation follows (Trident: GroupedStream)."""
        keys = self._some("group_by", fields, "Without groups use aggregate() of the stream itself.")
        require_distinct(keys)
        groupable("group_by", select(self.schema, keys, "group_by"))
        return GroupedStream(self._on(self._node), keys)

    def aggregate(self, *what: Any) -> Stream:
        """Aggregate the whole batch, also when it is empty: ``aggregate(Count(), "n")``,
        ``aggregate("price", Sum(), "total")``. Combiners and reducers give one tuple."""
        return self._aggregate((), what)

    def partition_aggregate(self, *what: Any) -> Stream:
        """Aggregate each partition for itself, also an empty one."""
        return self._partition_aggregate((), what)

    def chained_agg(self) -> ChainedAggregatorDeclarer:
        """Several aggregators in one pass, as Trident writes it:
        ``chained_agg().aggregate(Count(), "n").aggregate("price", Sum(), "total").chain_end()``."""
        return ChainedAggregatorDeclarer(self, ())

    def min_by(self, field: FieldSpec, comparator: Comparator | None = None) -> Stream:
        """The tuple of each partition with the smallest value of a field; none of an empty partition.

        Nulls are passed over; of equal tuples the later one wins. Use `global_()` before for the smallest of the batch.
        """
        return self._extreme("min_by", field, comparator, sign=-1)

    def max_by(self, field: FieldSpec, comparator: Comparator | None = None) -> Stream:
        """The tuple of each partition with the largest value of a field; as `min_by`."""
        return self._extreme("max_by", field, comparator, sign=1)

    def min(self, comparator: Comparator) -> Stream:
        """The smallest tuple of each partition; `comparator` gets two tuples of all fields."""
        return self._extreme("min", (), comparator, sign=-1)

    def max(self, comparator: Comparator) -> Stream:
        """The largest tuple of each partition; `comparator` gets two tuples of all fields."""
        return self._extreme("max", (), comparator, sign=1)

    def _extreme(self, verb: str, field: FieldSpec, comparator: Comparator | None, *, sign: int) -> Stream:
        names = self._select(verb, field)
        if len(names) > 1 or (not names and comparator is None):
            raise PlanError(f"{verb} got {len(names)} fields", f'Name one, as in {verb}("price").')
        if comparator is None:
            comparable(verb, select(self.schema, names, verb)[0])
        place = self.fields.index(names[0]) if names else None
        what = Aggregation(
            aggregator=ComparisonAggregator(place, comparator, sign), reads=self.fields, output=self.schema
        )
        return self._then(PartitionAggregateNode, verb, self.schema, groups=(), aggregations=(what,))

    def _aggregate(self, groups: tuple[str, ...], what: tuple[Any, ...], verb: str = "aggregate") -> Stream:
        return self._aggregation_node(AggregateNode, verb, groups, aggregations(verb, self.schema, what))

    def _partition_aggregate(self, groups: tuple[str, ...], what: tuple[Any, ...]) -> Stream:
        several = aggregations("partition_aggregate", self.schema, what)
        return self._aggregation_node(PartitionAggregateNode, "partition_aggregate", groups, several)

    def _aggregation_node(
        self, kind: type[Any], verb: str, groups: tuple[str, ...], several: tuple[Aggregation, ...]
    ) -> Stream:
        outputs = tuple(field for one in several for field in one.output)
        require_distinct((*groups, *names_of(outputs)))
        schema = (*select(self.schema, groups, "group_by"), *outputs)
        return self._then(kind, verb, schema, groups=groups, aggregations=several)
