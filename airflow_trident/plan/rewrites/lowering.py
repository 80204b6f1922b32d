"""The first rewrite: what the user said, in the few kinds of steps that engines do."""

from __future__ import annotations

from dataclasses import replace

from airflow_trident.operations.newest import Newest
from airflow_trident.plan.graph import Node, Sinks, rebuilt
from airflow_trident.plan.groupings import Grouping
from airflow_trident.plan.nodes import (
    AggregateNode,
    Aggregation,
    FinalAggregateNode,
    MergeNode,
    MultiReduceNode,
    MultiReduceStepNode,
    PartialAggregateNode,
    PartitionNode,
    UnionNode,
)
from airflow_trident.types import Field, Schema, select

TAG = "of stream"
"""The field that says of which stream a tuple is. No field of a user can have this name, or those of the others."""


def lower(sinks: Sinks) -> Sinks:
    """Aggregations, merges and multi-reducers as partial steps, unions, partition nodes and later steps, without
    repartitions that move nothing."""
    return rebuilt(sinks, lambda _, node: _lowered(node))


def _lowered(node: Node) -> Node:
    if isinstance(node, PartitionNode) and node.grouping.stays:
        return node.input
    if isinstance(node, AggregateNode):
        return _aggregate(node)
    if isinstance(node, MergeNode):
        takes = tuple(one.fields for one in node.inputs)
        return UnionNode(name=node.name, schema=node.schema, inputs=node.inputs, takes=takes)
    if isinstance(node, MultiReduceNode):
        return _multi_reduce(node)
    return node


def _aggregate(node: AggregateNode) -> Node:
    """Combiners aggregate in each partition, then a group's partial values come together for the final step (Trident:
    Stream.aggregate, GroupedStream.aggregate). Others need all tuples of a group together, or those chosen from
    them."""
    before = node.input
    partial = tuple(one for one in map(_partial, node.aggregations) if one is not None)
    if len(partial) == len(node.aggregations):
        before = PartialAggregateNode(
            name=f"{node.name}.partial",
            schema=node.schema,
            inputs=(before,),
            groups=node.groups,
            aggregations=partial,
        )
    together = PartitionNode(
        name=f"{node.name}.partition",
        schema=before.schema,
        inputs=(before,),
        grouping=Grouping.FIELDS if node.groups else Grouping.GLOBAL,
        keys=node.groups,
    )
    return FinalAggregateNode(
        name=f"{node.name}.final",
        schema=node.schema,
        inputs=(together,),
        groups=node.groups,
        aggregations=node.aggregations,
    )


def _partial(one: Aggregation) -> Aggregation | None:
    """What is done in every partition before tuples move; None if nothing can be."""
    if isinstance(one.aggregator, Newest):
        return replace(one, aggregator=one.aggregator.before())
    return one if one.combiner else None


def _multi_reduce(node: MultiReduceNode) -> Node:
    """All streams as one, each tuple marked with the number of its stream, so that one repartition brings a group
    together: its fields are the tag, the group fields and then the fields of every stream, null for the others."""
    keys = tuple(
        Field(f"group {place}", field.type)
        for place, field in enumerate(select(node.inputs[0].schema, node.groups[0], node.name))
    )
    names = tuple(tuple(f"{place} {name}" for name in reads) for place, reads in enumerate(node.reads))
    payload: Schema = tuple(
        replace(field, name=f"{place} {field.name}")
        for place, (one, reads) in enumerate(zip(node.inputs, node.reads, strict=True))
        for field in select(one.schema, reads, node.name)
    )
    takes = tuple(
        (None, *groups, *(name if place == other else None for other, reads in enumerate(node.reads) for name in reads))
        for place, groups in enumerate(node.groups)
    )
    union = UnionNode(
        name=f"{node.name}.union",
        schema=(Field(TAG, "int"), *keys, *payload),
        inputs=node.inputs,
        takes=takes,
        tag=TAG,
    )
    names_of_keys = tuple(key.name for key in keys)
    before: Node = union
    if keys:
        before = PartitionNode(
            name=f"{node.name}.partition",
            schema=union.schema,
            inputs=(union,),
            grouping=Grouping.FIELDS,
            keys=names_of_keys,
        )
    return MultiReduceStepNode(
        name=node.name,
        schema=node.schema,
        inputs=(before,),
        reducer=node.reducer,
        tag=TAG,
        reads=names,
        groups=names_of_keys,
    )
