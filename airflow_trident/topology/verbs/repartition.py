"""Verbs that move tuples between partitions, or set parallelism and resources."""

from __future__ import annotations

from typing import Any

from airflow_trident.errors import PlanError
from airflow_trident.names import at_least_one, positive
from airflow_trident.operations.comparing import groupable
from airflow_trident.operations.grouping import CustomGrouping
from airflow_trident.plan.groupings import Grouping
from airflow_trident.plan.nodes import PartitionNode
from airflow_trident.topology.stream_base import S, some, then
from airflow_trident.types import FieldSpec, select


def repartition(stream: S, verb: str, grouping: Grouping, **arguments: Any) -> S:
    return then(stream, PartitionNode, verb, stream.schema, grouping=grouping, **arguments)


def partition_by(stream: S, fields: FieldSpec) -> S:
    keys = some(stream, "partition_by", fields, "Use global_() to bring all tuples together.")
    groupable("partition_by", select(stream.schema, keys, "partition_by"))
    return repartition(stream, "partition_by", Grouping.FIELDS, keys=keys)


def partition(stream: S, grouping: CustomGrouping) -> S:
    if not isinstance(grouping, CustomGrouping):
        raise PlanError(
            f"partition got {grouping!r}", "Give an object of a subclass of CustomGrouping, or use partition_by()."
        )
    return repartition(stream, "partition", Grouping.CUSTOM, custom=grouping)


# ---- parallelism and resources ---------------------------------------------------------------------------------


def parallelism_hint(stream: S, partitions: int) -> S:
    stream.topology.set_node(stream.node.name, parallelism=at_least_one("parallelism_hint", partitions))
    return stream


def set_cpu_load(stream: S, percent: float) -> S:
    stream.topology.set_node(stream.node.name, cpu_percent=positive("set_cpu_load", percent))
    return stream


def set_memory_load(stream: S, megabytes: float) -> S:
    stream.topology.set_node(stream.node.name, memory_mb=positive("set_memory_load", megabytes))
    return stream
