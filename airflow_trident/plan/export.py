"""Plans for programs: plain JSON. Version 1; fields are added, never changed."""

from __future__ import annotations

from typing import Any

from airflow_trident.plan.describe import what
from airflow_trident.plan.graph import Sinks, ordered
from airflow_trident.plan.nodes import Node, PersistNode, SourceNode
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
        "logical": _nodes(plan.sinks),
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


def _nodes(sinks: Sinks) -> list[dict[str, Any]]:
    """Each after its inputs."""
    return [_node(node) for node in ordered(sinks)]


def _node(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": node.name,
        "kind": type(node).__name__.removesuffix("Node"),
        "inputs": [one.name for one in node.inputs],
        "fields": _fields(node.schema),
        "what": what(node).strip(),
    }
    if isinstance(node, SourceNode):
        found["what"] = node.spout.describe()
        found["filters"] = [str(one) for one in node.filters]
    if isinstance(node, PersistNode):
        found["what"] = node.state.describe()
    return found


def _stage(stage: Stage) -> dict[str, Any]:
    return {
        "index": stage.index,
        "source": stage.source.name if stage.source is not None else None,
        "upstreams": list(stage.upstreams),
        "union": stage.union.name if stage.union is not None else None,
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
