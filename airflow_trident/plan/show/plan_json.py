"""Plans for programs: plain JSON. Version 1; fields are added, never changed."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from airflow_trident.plan.graph import Node, Sinks, ordered
from airflow_trident.plan.nodes import PersistNode, SourceNode
from airflow_trident.plan.stages import Plan, Stage
from airflow_trident.types import Schema

VERSION = 1


def exported(plan: Plan) -> dict[str, Any]:
    """The plan as JSON; the schema is described in docs/reference/plans.md."""
    return {
        "version": VERSION,
        "topology": plan.topology,
        "digest": plan.digest,
        "notes": list(plan.notes),
        "coalesces": _coalesces(plan),
        "logical": _nodes(plan.logical),
        "rewritten": _nodes(plan.rewritten),
        "stages": [_stage(stage) for stage in plan.stages],
        "commit": [
            {
                "new_values": level.new_values,
                "carried": list(level.carried),
                "stages": [_stage(stage) for stage in level.stages],
            }
            for level in plan.commit
        ],
    }


def _coalesces(plan: Plan) -> dict[str, Any] | None:
    found = plan.coalesces
    return (
        {"how": found.how, "why": found.why, "commits": found.commits, "why_one": found.why_one} if plan.sinks else None
    )


def _nodes(sinks: Sinks) -> list[dict[str, Any]]:
    """All nodes, each after its inputs."""
    nodes = ordered(sinks)
    streams = {node.name for node in nodes if isinstance(node, SourceNode)}
    return [_node(node, streams) for node in nodes]


def _node(node: Node, streams: Set[str] = frozenset()) -> dict[str, Any]:
    """:param streams: names that no state may have here, because a stream and a state may have the same name."""
    found: dict[str, Any] = {
        "name": _name(node, streams),
        "kind": type(node).__name__.removesuffix("Node"),
        "inputs": [_name(one, streams) for one in node.inputs],
        "fields": _fields(node.schema),
        "what": node.what,
    }
    if isinstance(node, SourceNode):
        found["filters"] = [str(one) for one in node.filters]
    return found


def _name(node: Node, streams: Set[str]) -> str:
    return f"state {node.name}" if isinstance(node, PersistNode) and node.name in streams else node.name


def _stage(stage: Stage) -> dict[str, Any]:
    return {
        "index": stage.index,
        "source": stage.source.name if stage.source is not None else None,
        "upstreams": list(stage.upstreams),
        "union": stage.union.name if stage.union is not None else None,
        "transform": stage.of_batches.name if stage.of_batches is not None else None,
        "exchange": _node(stage.exchange) if stage.exchange is not None else None,
        "nodes": [node.name for node in stage.nodes],
        "states": [sink.name for sink in stage.sinks if isinstance(sink, PersistNode)],
        "hands_on": [sink.name for sink in stage.sinks if not isinstance(sink, PersistNode)],
        "kept": stage.forks,
        "partitions": stage.partitions,
        "at_most": stage.at_most,
        "cpu_percent": stage.cpu_percent,
        "memory_mb": stage.memory_mb,
        "fields": _fields(stage.schema),
    }


def _fields(schema: Schema) -> list[dict[str, str]]:
    return [{"name": field.name, "type": field.type} for field in schema]
