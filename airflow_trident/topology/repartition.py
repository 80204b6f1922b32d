"""Verbs that move tuples between partitions, and how many partitions there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_trident.errors import PlanError
from airflow_trident.operations.comparing import groupable
from airflow_trident.operations.grouping import CustomGrouping
from airflow_trident.plan.nodes import Grouping, PartitionNode
from airflow_trident.topology.local_verbs import PartitionLocal
from airflow_trident.topology.names import at_least_one, positive
from airflow_trident.types import FieldSpec, select

if TYPE_CHECKING:
    from airflow_trident.topology.stream import Stream


class Repartitioning(PartitionLocal):
    """Trident's repartitioning operations."""

    def partition_by(self, fields: FieldSpec) -> Stream:
        """Bring tuples with equal values of `fields` into one partition."""
        keys = self._some("partition_by", fields, "Use global_() to bring all tuples together.")
        groupable("partition_by", select(self.schema, keys, "partition_by"))
        return self._partition("partition_by", Grouping.FIELDS, keys=keys)

    def shuffle(self) -> Stream:
        """Spread tuples evenly over the partitions."""
        return self._partition("shuffle", Grouping.SHUFFLE)

    def local_or_shuffle(self) -> Stream:
        """Any distribution will do: tuples stay where they are."""
        return self._partition("local_or_shuffle", Grouping.LOCAL_OR_SHUFFLE)

    def global_(self) -> Stream:
        """Bring all tuples into one partition (Trident: global)."""
        return self._partition("global", Grouping.GLOBAL)

    def batch_global(self) -> Stream:
        """Bring all tuples of the batch into one partition."""
        return self._partition("batch_global", Grouping.BATCH_GLOBAL)

    def broadcast(self) -> Stream:
        """Bring every tuple into every partition."""
        return self._partition("broadcast", Grouping.BROADCAST)

    def identity_partition(self) -> Stream:
        """From partition i into partition i: nothing moves."""
        return self._partition("identity_partition", Grouping.IDENTITY)

    def partition(self, grouping: CustomGrouping) -> Stream:
        """Bring tuples where `grouping` says."""
        if not isinstance(grouping, CustomGrouping):
            raise PlanError(
                f"partition got {grouping!r}", "Give an object of a subclass of CustomGrouping, or use partition_by()."
            )
        return self._partition("partition", Grouping.CUSTOM, custom=grouping)

    def _partition(self, verb: str, grouping: Grouping, **arguments: Any) -> Stream:
        return self._then(PartitionNode, verb, self.schema, grouping=grouping, **arguments)

    # ---- parallelism and resources -----------------------------------------------------------------------------

    def parallelism_hint(self, partitions: int) -> Stream:
        """How many partitions this node has, and with it all nodes that no repartition divides from it; of several
        hints the largest (Trident: parallelismHint, which says it about the node, as this does, and gives the same
        stream back). A source has no more partitions than splits."""
        self._topology.set_node(self._node.name, parallelism=at_least_one("parallelism_hint", partitions))
        return self._on(self._node)

    def set_cpu_load(self, percent: float) -> Stream:
        """How much of a core the node's work on one partition needs; see `Topology.spark_conf`."""
        self._topology.set_node(self._node.name, cpu_percent=positive("set_cpu_load", percent))
        return self._on(self._node)

    def set_memory_load(self, megabytes: float) -> Stream:
        """How much memory the node's work on one partition needs; see `Topology.spark_conf`."""
        self._topology.set_node(self._node.name, memory_mb=positive("set_memory_load", megabytes))
        return self._on(self._node)
