"""Rewrites of partition nodes: as few exchanges of Spark as the meaning needs."""

from __future__ import annotations

from dataclasses import replace

from airflow_trident.plan.graph import Node, Sinks, ordered, readers_of, rebuilt
from airflow_trident.plan.groupings import Grouping
from airflow_trident.plan.nodes import PartitionNode, UnionNode


def colocate(sinks: Sinks) -> Sinks:
    """If a node that works on whole partitions follows a union before anything moves, it needs partition i of every
    input in one place: this adds a partition node. Otherwise partitions may simply stand side by side."""
    whole: set[int] = set()
    for node in reversed(ordered(sinks)):
        if node.whole_partitions or id(node) in whole:
            whole.update(id(one) for one in node.inputs if not isinstance(node, PartitionNode))

    def change(old: Node, node: Node) -> Node:
        if not isinstance(node, UnionNode) or id(old) not in whole:
            return node
        return PartitionNode(
            name=f"{node.name}.partition", schema=node.schema, inputs=(node,), grouping=Grouping.COLOCATED
        )

    return rebuilt(sinks, change)


def collapse(sinks: Sinks) -> Sinks:
    """Of two repartitions in a row only the second counts. If all inputs of a union are partitioned alike, the union is
    partitioned instead.

    A broadcast or a custom grouping repeats tuples, so it stays.
    """
    return rebuilt(sinks, _Collapsing(sinks).change)


class _Collapsing:
    def __init__(self, sinks: Sinks) -> None:
        self._readers = readers_of(sinks)

    def change(self, old: Node, node: Node) -> Node:
        if not isinstance(node, PartitionNode):
            return node
        before = node.input
        if self._readers[id(old.inputs[0])] > 1:  # other readers need it in any case
            return node
        if isinstance(before, PartitionNode) and not before.grouping.repeats:
            return replace(node, inputs=before.inputs)
        return self._over_union(node, before) if isinstance(before, UnionNode) else node

    def _over_union(self, node: PartitionNode, union: UnionNode) -> Node:
        """A repartition undoes what the inputs of a union did before, or they all did the same, which can be done
        once."""
        parts = [one for one in union.inputs if isinstance(one, PartitionNode) and not one.grouping.repeats]
        if node.grouping is Grouping.COLOCATED:
            how = _alike(union, parts)
            if how is None:
                return node
            node = replace(node, grouping=how[0], keys=how[1])
        if not parts:
            return node
        inputs = tuple(one.input if one in parts else one for one in union.inputs)
        return replace(node, inputs=(replace(union, inputs=inputs),))


def _alike(union: UnionNode, parts: list[PartitionNode]) -> tuple[Grouping, tuple[str, ...]] | None:
    """How all inputs are partitioned, in the names of the union; None if not all are, or not all alike."""
    if len(parts) != len(union.inputs):
        return None
    kinds = {one.grouping for one in parts}
    if all(kind.gathers for kind in kinds):
        return Grouping.GLOBAL, ()
    if kinds != {Grouping.FIELDS}:
        return None
    places = {
        tuple(takes.index(key) if key in takes else -1 for key in one.keys)
        for one, takes in zip(parts, union.takes, strict=True)
    }
    (first, *others) = places
    if others or -1 in first:
        return None
    return Grouping.FIELDS, tuple(union.fields[place] for place in first)
