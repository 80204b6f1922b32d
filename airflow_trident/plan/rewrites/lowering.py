"""The first rewrite: turns what the user wrote into the few kinds of steps that engines run."""

from __future__ import annotations

from dataclasses import replace

from airflow_trident.operations.aggregators import Newest
from airflow_trident.plan.graph import Grouping, Node, Sinks, rebuilt
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
"""The field that names the stream of a tuple, by its number. No user's field can have this name, or those of the
others."""


def lower(sinks: Sinks) -> Sinks:
    """Turns aggregations, merges and multi-reducers into partial steps, unions, partition nodes and later steps;
    removes repartitions that move nothing."""
    return rebuilt(sinks, lambda _, node: _lowered(node))


def _lowered(node: Node) -> Node:
    if isinstance(node, PartitionNode) and node.grouping.stays:
        return node.input
    if isinstance(node, AggregateNode):
        return _aggregate(node)
    if isinstance(node, MergeNode):
        takes = tuple(input_node.fields for input_node in node.inputs)
        return UnionNode(name=node.name, schema=node.schema, inputs=node.inputs, takes=takes)
    if isinstance(node, MultiReduceNode):
        return _multi_reduce(node)
    return node


def _aggregate(node: AggregateNode) -> Node:
    """Combiners aggregate in each partition; then a group's partial values are brought together for the final step
    (Trident: Stream.aggregate, GroupedStream.aggregate). Other aggregators need all tuples of a group together, or
    those chosen from them."""
    before = node.input
    partial = tuple(aggregation for aggregation in map(_partial, node.aggregations) if aggregation is not None)
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


def _partial(aggregation: Aggregation) -> Aggregation | None:
    """The part that runs in every partition before tuples move; None if there is none."""
    if isinstance(aggregation.aggregator, Newest):
        return replace(aggregation, aggregator=aggregation.aggregator.before())
    return aggregation if aggregation.combiner else None


def _multi_reduce(node: MultiReduceNode) -> Node:
    """Makes one stream of all, each tuple marked with the number of its stream, so one repartition brings a group
    together. Its fields are the tag, the group fields, and then the fields of every stream, null for the others."""
    keys = tuple(
        Field(f"group {place}", field.type)
        for place, field in enumerate(select(node.inputs[0].schema, node.groups[0], node.name))
    )
    names = tuple(tuple(f"{place} {name}" for name in reads) for place, reads in enumerate(node.reads))
    payload: Schema = tuple(
        replace(field, name=f"{place} {field.name}")
        for place, (input_node, reads) in enumerate(zip(node.inputs, node.reads, strict=True))
        for field in select(input_node.schema, reads, node.name)
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
