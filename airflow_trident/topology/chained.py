"""Several aggregators in one pass, as Trident writes them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import PlanError
from airflow_trident.plan.nodes import AggregateNode, Aggregation, PartitionAggregateNode
from airflow_trident.topology.signatures import aggregations
from airflow_trident.types import require_distinct

if TYPE_CHECKING:
    from airflow_trident.topology.aggregating import Aggregating
    from airflow_trident.topology.stream import Stream


class _Chain(StrEnum):
    """A chain is of one kind (Trident: ChainedFullAggregatorDeclarer, ChainedPartitionAggregatorDeclarer)."""

    FULL = "aggregate"
    PARTITION = "partition_aggregate"


class ChainedAggregatorDeclarer:
    """Collects aggregators until `chain_end`. Of several that emit more than one tuple the cross product comes out; if
    one emits none, the product is empty."""

    def __init__(
        self,
        stream: Aggregating,
        groups: tuple[str, ...],
        kind: _Chain | None = None,
        several: tuple[Aggregation, ...] = (),
    ) -> None:
        self._stream = stream
        self._groups = groups
        self._kind = kind
        self._several = several

    def aggregate(self, *what: Any) -> ChainedAggregatorDeclarer:
        """One more aggregator of the whole batch or group."""
        return self._with(_Chain.FULL, what)

    def partition_aggregate(self, *what: Any) -> ChainedAggregatorDeclarer:
        """One more aggregator of each partition."""
        return self._with(_Chain.PARTITION, what)

    def chain_end(self) -> Stream:
        """The stream of what they give.

        :raises PlanError: there is no aggregator in the chain.
        """
        if self._kind is None:
            raise PlanError("chain_end() after no aggregator", 'Put one before it, as in aggregate(Count(), "n").')
        node = AggregateNode if self._kind is _Chain.FULL else PartitionAggregateNode
        return self._stream._aggregation_node(node, "chained_agg", self._groups, self._several)

    def _with(self, kind: _Chain, what: tuple[Any, ...]) -> ChainedAggregatorDeclarer:
        if self._kind not in (None, kind):
            raise PlanError(
                f"a chain has both {self._kind}() and {kind}()", "Make it of one kind: all tuples, or each partition's."
            )
        several = (*self._several, *aggregations(kind, self._stream.schema, what))
        require_distinct((*self._groups, *(field.name for one in several for field in one.output)))
        return ChainedAggregatorDeclarer(self._stream, self._groups, kind, several)
