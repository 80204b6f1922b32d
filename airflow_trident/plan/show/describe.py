"""Nodes in a line of text each, the same in every process."""

from __future__ import annotations

from typing import Any

from airflow_trident.operations.multireduce import Joiner
from airflow_trident.operations.newest import Newest
from airflow_trident.plan.commit.nodes import GivenTuples, NewValuesNode, StateQueryNode
from airflow_trident.plan.nodes import (
    AggregateNode,
    Aggregation,
    EachNode,
    FilterNode,
    FinalAggregateNode,
    Grouping,
    MapNode,
    MergeNode,
    MultiReduceNode,
    MultiReduceStepNode,
    Node,
    PartialAggregateNode,
    PartitionAggregateNode,
    PartitionNode,
    PeekNode,
    PersistNode,
    SinkNode,
    SourceNode,
    UnionNode,
)
from airflow_trident.types import ddl


def describe(node: Node) -> str:
    """One line about a node: what it does and the fields that come out."""
    if isinstance(node, PersistNode):
        return f"state {node.name}: {node.state.describe()}"
    if isinstance(node, SourceNode):
        told = "".join(f", told of {one}" for one in node.filters)
        return f"stream {node.name}: {node.spout.describe()}, {node.spout.kind}{told} -> ({ddl(node.schema)})"
    return f"{node.name} {what(node)}-> ({ddl(node.schema)})"


def begin_of(source: SourceNode) -> str:
    """Where a stage's tuples come from."""
    return source.spout.describe() if isinstance(source.spout, GivenTuples) else f"read stream {source.name}"


def end_of(sink: SinkNode) -> str:
    """What becomes of a stage's output."""
    if not isinstance(sink, PersistNode):
        return f"handed on as {sink.name}"
    return f"{'applied to' if sink.state.in_order else 'staged for'} state {sink.name}"


def what(node: Node) -> str:
    """What it does, with a space behind, without fields; empty where the name says it."""
    if isinstance(node, NewValuesNode | StateQueryNode):
        return _of_state(node)
    if isinstance(node, PeekNode):
        return f"{function_name(node.function)}({', '.join(node.reads)}) "
    if isinstance(node, EachNode | FilterNode):
        if node.expression is not None:
            return f"{node.expression} "
        return f"{function_name(node.function)}({', '.join(node.reads)}) "
    if isinstance(node, MapNode):
        return f"{function_name(node.function)}(*) "
    if isinstance(node, PartitionNode):
        return f"{_grouping(node)} "
    if isinstance(node, MergeNode | UnionNode):
        return f"of {', '.join(one.name for one in node.inputs)} "
    if isinstance(node, MultiReduceNode):
        by = "; ".join(", ".join(keys) for keys in node.groups)
        names = ", ".join(one.name for one in node.inputs)
        return f"{_reducer(node.reducer)} of {names} {f'by ({by})' if any(node.groups) else 'by partition'} "
    if isinstance(node, MultiReduceStepNode):
        by = ", ".join(node.groups)
        return f"{_reducer(node.reducer)} {f'by ({by})' if by else 'by partition'} "
    if isinstance(node, PartitionAggregateNode):
        by = f" by ({', '.join(node.groups)})" if node.groups else ""
        return f"{', '.join(map(_aggregation, node.aggregations))}{by} of each partition "
    if isinstance(node, AggregateNode | PartialAggregateNode | FinalAggregateNode):
        by = f"by ({', '.join(node.groups)})" if node.groups else "of the batch"
        return f"{', '.join(map(_aggregation, node.aggregations))} {by} "
    return ""


def _of_state(node: NewValuesNode | StateQueryNode) -> str:
    if isinstance(node, NewValuesNode):
        return f"of state {node.persist.name} "
    when = ", after the commit" if node.after_commit else ""
    return f"{function_name(node.function)}({', '.join(node.reads)}) of state {node.state.name}{when} "


def _grouping(node: PartitionNode) -> str:
    return {
        Grouping.SHUFFLE: "evenly",
        Grouping.LOCAL_OR_SHUFFLE: "anywhere",
        Grouping.GLOBAL: "into one partition",
        Grouping.BATCH_GLOBAL: "into one partition",
        Grouping.FIELDS: f"by ({', '.join(node.keys)})",
        Grouping.BROADCAST: "into every partition",
        Grouping.IDENTITY: "partition by partition",
        Grouping.CUSTOM: f"as {function_name(node.custom)} says",
    }[node.grouping]


def _reducer(reducer: Any) -> str:
    if isinstance(reducer, Joiner):
        return f"{' '.join(reducer.types)} {reducer.mode}"
    return function_name(reducer)


def _aggregation(one: Aggregation) -> str:
    described = one.aggregator.describe() if isinstance(one.aggregator, Newest) else function_name(one.aggregator)
    return f"{described}({', '.join(one.reads)})"


def function_name(function: Any) -> str:
    """The name of a function or of an object's class: the same in every process."""
    return str(getattr(function, "__qualname__", type(function).__qualname__)).rpartition("<locals>.")[2]
