"""Which fields a node needs of its inputs for those of its own that somebody uses. Pure."""

from __future__ import annotations

from airflow_trident.plan.nodes import (
    EachNode,
    FilterNode,
    FinalAggregateNode,
    Node,
    PartialAggregateNode,
    PartitionAggregateNode,
    PartitionNode,
    PeekNode,
    ProjectNode,
    UnionNode,
)
from airflow_trident.types import Schema, names_of


def needs(node: Node, before: Schema, used: frozenset[str], place: int = 0) -> frozenset[str]:
    """
    :param before: the schema of the input at `place`.
    :param used: the node's own fields that somebody uses.
    """
    if isinstance(node, EachNode):
        return (used - set(names_of(node.outputs))) | set(node.reads)
    if isinstance(node, FilterNode | PeekNode):
        return used | set(node.reads)
    if isinstance(node, PartialAggregateNode | PartitionAggregateNode | FinalAggregateNode):
        return frozenset(aggregate_reads(node))
    if isinstance(node, PartitionNode) and node.custom is None:
        return used | set(node.keys)
    if isinstance(node, ProjectNode):
        return used
    if isinstance(node, UnionNode):
        takes = zip(node.schema, node.takes[place], strict=True)
        return frozenset(name for field, name in takes if name is not None and field.name in used)
    return frozenset(names_of(before))


def aggregate_reads(node: PartialAggregateNode | PartitionAggregateNode | FinalAggregateNode) -> tuple[str, ...]:
    """The fields that an aggregating step needs: raw ones, or partial values where those were brought together."""
    merges = isinstance(node, FinalAggregateNode) and node.merges
    reads = list(node.groups)
    for one in node.aggregations:
        reads += [one.output[0].name] if merges else one.reads
    return tuple(dict.fromkeys(reads))
