"""A rewrite: fields that nobody uses are left out, from the source on."""

from __future__ import annotations

from dataclasses import replace

from airflow_trident.plan.graph import Sinks, ordered, rebuilt
from airflow_trident.plan.nodes import (
    EachNode,
    FilterNode,
    Node,
    PartitionNode,
    PeekNode,
    ProjectNode,
    SourceNode,
    UnionNode,
)
from airflow_trident.plan.rewrites.needs import needs
from airflow_trident.types import Schema, names_of

_CHOOSERS = (SourceNode, ProjectNode, UnionNode)


def prune(sinks: Sinks) -> Sinks:
    """Sources, projections and unions give what is used; before a repartition a projection drops what is not, because
    what moves costs. A projection that drops nothing goes. One field stays where none is used: rows must be counted by
    something."""
    used = _used(sinks)

    def change(old: Node, node: Node) -> Node:
        wanted = used[id(old)]
        if isinstance(node, _CHOOSERS):
            chosen = _choosing(node, wanted)
            idle = isinstance(chosen, ProjectNode) and chosen.schema == chosen.input.schema
            return chosen.input if idle else chosen
        if isinstance(node, PartitionNode):
            return _partition(node, wanted)
        if isinstance(node, EachNode):
            return _with_schema(node, (*node.input.schema, *node.outputs))
        return _with_schema(node, node.input.schema) if isinstance(node, FilterNode | PeekNode) else node

    return rebuilt(sinks, change)


def _used(sinks: Sinks) -> dict[int, frozenset[str]]:
    """Of every node, by `id`, the fields that its readers need."""
    used: dict[int, frozenset[str]] = {}
    for node in reversed(ordered(sinks)):
        own = used.get(id(node), frozenset())
        if isinstance(node, (*_CHOOSERS, PartitionNode)):
            own = own or frozenset(node.fields[:1])
        used[id(node)] = own
        for place, one in enumerate(node.inputs):
            used[id(one)] = used.get(id(one), frozenset()) | needs(node, one.schema, own, place)
    return used


def _choosing(node: Node, wanted: frozenset[str]) -> Node:
    places = [place for place, field in enumerate(node.schema) if field.name in wanted]
    schema = tuple(node.schema[place] for place in places)
    if schema == node.schema:
        return node
    if isinstance(node, UnionNode):
        takes = tuple(tuple(names[place] for place in places) for names in node.takes)
        return replace(node, schema=schema, takes=takes)
    return replace(node, schema=schema)


def _partition(node: PartitionNode, wanted: frozenset[str]) -> Node:
    kept = tuple(field for field in node.input.schema if field.name in needs(node, node.input.schema, wanted))
    if kept == node.input.schema:
        return _with_schema(node, kept)
    before = ProjectNode(name=f"{node.name}.project", schema=kept, inputs=(node.input,))
    return replace(node, schema=kept, inputs=(before,))


def _with_schema(node: Node, schema: Schema) -> Node:
    return node if names_of(schema) == node.fields else replace(node, schema=schema)
