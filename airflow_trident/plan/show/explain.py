"""Plans for people and programs. Deterministic: golden files are compared with it, and the digest is made from it.

Plans for programs: plain JSON. Version 1; fields are added, never changed.

The rewritten plan as a :class:`PlanPicture`: equal plans give equal pictures.
"""

from __future__ import annotations

import json
from collections.abc import Set
from enum import StrEnum
from typing import Any

from airflow_trident.names import Composed
from airflow_trident.plan.graph import Node, SinkNode, Sinks, ordered
from airflow_trident.plan.nodes import PartitionNode, PersistNode, SourceNode
from airflow_trident.plan.show.drawing import svg
from airflow_trident.plan.show.trees import begin_of, logical_text, trees
from airflow_trident.plan.stages import Plan, Stage
from airflow_trident.protocol.topologies import BoxKind, PlanBox, PlanPicture
from airflow_trident.types import Schema, ddl

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
    coalescing = plan.coalesces
    return (
        {"how": coalescing.how, "why": coalescing.why, "commits": coalescing.commits, "why_one": coalescing.why_one}
        if plan.sinks
        else None
    )


def _nodes(sinks: Sinks) -> list[dict[str, Any]]:
    """All nodes, each after its inputs."""
    nodes = ordered(sinks)
    streams = {node.name for node in nodes if isinstance(node, SourceNode)}
    return [_node(node, streams) for node in nodes]


def _node(node: Node, streams: Set[str] = frozenset()) -> dict[str, Any]:
    """:param streams: names that no state may have here, because a stream and a state may have the same name."""
    document: dict[str, Any] = {
        "name": _name(node, streams),
        "kind": type(node).__name__.removesuffix("Node"),
        "inputs": [_name(input_node, streams) for input_node in node.inputs],
        "fields": _fields(node.schema),
        "what": node.what,
    }
    if isinstance(node, SourceNode):
        document["filters"] = [str(expression) for expression in node.filters]
    return document


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


_IDENTIFIERS = Composed(joint="_", characters="A-Za-z0-9_")


class PlanFormat(StrEnum):
    """TEXT: the logical, rewritten and compiled plan. MERMAID, SVG: a picture of the compiled plan. JSON: all three
    plans."""

    TEXT = "text"
    MERMAID = "mermaid"
    SVG = "svg"
    JSON = "json"


def explain(plan: Plan, format: PlanFormat | str = PlanFormat.TEXT) -> str:
    """The meaning of a topology, and what runs."""
    return {PlanFormat.TEXT: _text, PlanFormat.MERMAID: _mermaid, PlanFormat.SVG: svg, PlanFormat.JSON: _json}[
        PlanFormat(format)
    ](plan)


def _json(plan: Plan) -> str:
    return json.dumps(exported(plan), indent=2) + "\n"


def _text(plan: Plan) -> str:
    notes = "".join(f"\n{note}" for note in plan.notes) + "\n" * bool(plan.notes)
    sources = {node.name: node for node in ordered(plan.rewritten) if isinstance(node, SourceNode)}
    rewritten = trees(tuple(sources[source.name] for source in plan.sources), plan.rewritten)
    compiled = [line for stage in plan.stages for line in stage_lines(stage)]
    lines = [
        logical_text(plan.topology, plan.sources, plan.logical) + notes,
        f"digest {plan.digest[:16]}",
        *([f"groups of transactions: {plan.coalesces}"] if plan.sinks else []),
        "",
        "rewritten plan",
        *rewritten,
        "",
        f"compiled plan: {len(plan.stages)} stages",
        *compiled,
        *_commit_lines(plan),
    ]
    return "\n".join(lines) + "\n"


def _commit_lines(plan: Plan) -> list[str]:
    lines: list[str] = []
    for number, level in enumerate(plan.commit, 1):
        behind = "".join(f", behind state {name}" for name in sorted(set(level.new_values.values())))
        lines += ["", f"commit phase {number}{behind}: {len(level.stages)} stages"]
        lines += [line for stage in level.stages for line in stage_lines(stage)]
    return lines


def stage_lines(stage: Stage) -> list[str]:
    """A stage as text: where its tuples come from, its nodes, and its sinks."""
    stages = f"stage{'s' * (len(stage.upstreams) > 1)} {' + '.join(map(str, stage.upstreams))}"
    begin = begin_of(stage.source) if stage.source else f"from {stages}"
    if stage.of_batches is not None:
        begin = f"{stage.of_batches.name} {stage.of_batches.what}, {begin}"
    if stage.exchange is not None:
        begin += f", repartitioned {stage.exchange.what}"
    lines = [f"stage {stage.index}: {begin}{_said(stage)}{' (kept: read more than once)' if stage.forks else ''}"]
    lines += [f"    {node.describe()}" for node in stage.nodes]
    lines += [f"    => {sink.end} ({ddl(sink.schema)})" for sink in stage.sinks]
    return lines


def _said(stage: Stage) -> str:
    """Hints and resources, if there are any."""
    hints = [f"{stage.partitions} partitions"] if stage.partitions else []
    hints += [f"at most {stage.at_most} partitions"] if stage.at_most else []
    hints += [f"{stage.cpu_percent:g} % of a core"] if stage.cpu_percent else []
    hints += [f"{stage.memory_mb:g} MB"] if stage.memory_mb else []
    return "".join(f", {hint}" for hint in hints)


def _mermaid(plan: Plan) -> str:
    lines = ["flowchart TD", *_mermaid_stages(plan.stages, "s", "stage", {})]
    for number, level in enumerate(plan.commit, 1):
        sources = {name: _IDENTIFIERS.of("state", state) for name, state in level.new_values.items()}
        sources |= {name: _IDENTIFIERS.of("handed", name) for name in level.carried}
        lines += _mermaid_stages(level.stages, f"c{number}s", f"commit phase {number}, stage", sources)
    return "\n".join(lines) + "\n"


def _mermaid_stages(stages: tuple[Stage, ...], s: str, title: str, sources: dict[str, str]) -> list[str]:
    """:param s: the beginning of the identifiers of stages.
    :param sources: source name -> the identifier of its origin, if that is drawn already.
    """
    lines: list[str] = []
    for stage in stages:
        lines.append(f'  subgraph {s}{stage.index}["{title} {stage.index}"]')
        origin = sources.get(stage.source.name) if stage.source else None
        names = [f"stream {stage.source.name}" if origin is None else stage.source.name] if stage.source else []
        names += [f"{stage.of_batches.name} {stage.of_batches.what}"] if stage.of_batches is not None else []
        names += [f"{node.name} {node.what}".strip() for node in stage.nodes] or ([] if names else ["pass"])
        for place, text in enumerate(names):
            lines.append(f'    {s}{stage.index}n{place}["{_escape(text)}"]')
            if place:
                lines.append(f"    {s}{stage.index}n{place - 1} --> {s}{stage.index}n{place}")
        lines.append("  end")
        last = f"{s}{stage.index}n{len(names) - 1}"
        if origin is not None:
            lines.append(f"  {origin} -.-> {s}{stage.index}n0")
        label = f'|"{_escape(stage.exchange.what)}"|' if stage.exchange is not None else ""
        for upstream in stage.upstreams:
            up = stages[upstream]
            place = len(up.nodes) - (0 if up.source or up.of_batches else 1)
            lines.append(f"  {s}{up.index}n{max(place, 0)} -->{label} {s}{stage.index}n0")
        lines += [f"  {last} --> {_mermaid_sink(sink)}" for sink in stage.sinks]
    return lines


def _mermaid_sink(sink: SinkNode) -> str:
    if isinstance(sink, PersistNode):
        return f'{_IDENTIFIERS.of("state", sink.name)}[("state {_escape(sink.name)}")]'
    return f'{_IDENTIFIERS.of("handed", sink.name)}(["{_escape(sink.name)}"])'


def _escape(text: str) -> str:
    return text.replace('"', "#quot;").replace("|", "#124;")


MOST_BOXES = 200
MOST_CHARACTERS = 300
"""The most characters in a box; ``airflow trident plan`` shows the rest."""


def picture_of(plan: Plan) -> PlanPicture:
    """What runs, from spouts to states; what follows from the new values of a state comes after that state."""
    nodes = ordered(plan.rewritten)
    boxes = tuple(map(_box, nodes[:MOST_BOXES]))
    return PlanPicture(digest=plan.digest, boxes=boxes, left_out=len(nodes) - len(boxes))


def _box(node: Node) -> PlanBox:
    description = node.state.factory.describe() if isinstance(node, PersistNode) else node.what
    return PlanBox(
        name=_picture_name(node),
        kind=_kind(node),
        what=description[:MOST_CHARACTERS],
        inputs=tuple(dict.fromkeys(map(_picture_name, node.inputs))),
    )


def _picture_name(node: Node) -> str:
    """A stream and a state may have the same name."""
    return f"state {node.name}" if isinstance(node, PersistNode) else node.name


def _kind(node: Node) -> BoxKind:
    if isinstance(node, SourceNode):
        return BoxKind.SPOUT
    if isinstance(node, PersistNode):
        return BoxKind.STATE
    return BoxKind.GROUPING if isinstance(node, PartitionNode) else BoxKind.OPERATION
