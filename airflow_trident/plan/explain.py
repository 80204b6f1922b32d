"""Plans for people: text and mermaid. Deterministic: golden files are compared with it; the digest is made of it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow_trident.operations.multireduce import Joiner
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
    SourceNode,
    UnionNode,
)
from airflow_trident.types import ddl

if TYPE_CHECKING:
    from airflow_trident.plan.stages import Plan, Stage


class PlanFormat(StrEnum):
    TEXT = "text"
    MERMAID = "mermaid"


def explain(plan: Plan, format: PlanFormat | str = PlanFormat.TEXT) -> str:
    """The logical and the compiled plan."""
    if PlanFormat(format) is PlanFormat.MERMAID:
        return _mermaid(plan)
    compiled = "\n".join(line for stage in plan.stages for line in _stage_lines(stage))
    logical = logical_text(plan.topology, plan.sources, plan.sinks)
    notes = "".join(f"\n{note}" for note in plan.notes) + "\n" * bool(plan.notes)
    return f"{logical}{notes}\ndigest {plan.digest[:16]}\n\ncompiled plan: {len(plan.stages)} stages\n{compiled}\n"


def logical_text(topology: str, sources: tuple[SourceNode, ...], sinks: tuple[PersistNode, ...]) -> str:
    """The logical plan as trees, one per source. Names, fields and types; no addresses, no ids."""
    lines = [f"topology {topology}", "", *_trees(sources, sinks)]
    return "\n".join(lines) + "\n"


def _trees(sources: tuple[Node, ...], sinks: tuple[PersistNode, ...]) -> list[str]:
    """One tree per source; a node with several inputs stands below the first of them in full."""
    children: dict[int, list[Node]] = {}
    seen: set[int] = set()
    waiting: list[Node] = list(sinks)
    while waiting:
        node = waiting.pop(0)
        if id(node) in seen:
            continue
        seen.add(id(node))
        for one in node.inputs:
            children.setdefault(id(one), []).append(node)
            waiting.append(one)
    lines: list[str] = []
    shown: set[int] = set()
    for source in sources:
        _tree(source, children, "", lines, shown)
    return lines


def _tree(node: Node, children: dict[int, list[Node]], indent: str, lines: list[str], shown: set[int]) -> None:
    if id(node) in shown:
        lines.append(f"{indent}{node.name}, see above")
        return
    shown.add(id(node))
    lines.append(f"{indent}{describe(node)}")
    for child in children.get(id(node), []):
        _tree(child, children, indent + "  ", lines, shown)


def describe(node: Node) -> str:
    """One line about a node: what it does and the fields that come out."""
    if isinstance(node, PersistNode):
        return f"state {node.name}: {node.state.describe()}"
    if isinstance(node, SourceNode):
        return f"stream {node.name}: {node.spout.describe()}, {node.spout.kind} -> ({ddl(node.schema)})"
    return f"{node.name} {_what(node)}-> ({ddl(node.schema)})"


def _what(node: Node) -> str:
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
    return f"{function_name(one.aggregator)}({', '.join(one.reads)})"


def function_name(function: Any) -> str:
    """The name of a function or of an object's class: the same in every process."""
    return str(getattr(function, "__qualname__", type(function).__qualname__)).rpartition("<locals>.")[2]


def _stage_lines(stage: Stage) -> list[str]:
    stages = f"stage{'s' * (len(stage.upstreams) > 1)} {' + '.join(map(str, stage.upstreams))}"
    begin = f"read stream {stage.source.name}" if stage.source else f"from {stages}"
    if stage.exchange is not None:
        begin += f", repartitioned {_what(stage.exchange).strip()}"
    lines = [f"stage {stage.index}: {begin}{' (kept: read more than once)' if stage.forks else ''}"]
    lines += [f"    {describe(node)}" for node in stage.nodes]
    lines += [f"    => staged for state {sink.name} ({ddl(sink.schema)})" for sink in stage.sinks]
    return lines


def _mermaid(plan: Plan) -> str:
    lines = ["flowchart TD"]
    for stage in plan.stages:
        lines.append(f'  subgraph s{stage.index}["stage {stage.index}"]')
        names = [f"stream {stage.source.name}"] if stage.source else []
        names += [f"{node.name} {_what(node)}".strip() for node in stage.nodes] or ([] if names else ["pass"])
        for place, text in enumerate(names):
            lines.append(f'    s{stage.index}n{place}["{_escape(text)}"]')
            if place:
                lines.append(f"    s{stage.index}n{place - 1} --> s{stage.index}n{place}")
        lines.append("  end")
        last = f"s{stage.index}n{len(names) - 1}"
        label = f'|"{_escape(_what(stage.exchange).strip())}"|' if stage.exchange is not None else ""
        for upstream in stage.upstreams:
            up = plan.stages[upstream]
            place = len(up.nodes) - (0 if up.source else 1)
            lines.append(f"  s{up.index}n{max(place, 0)} -->{label} s{stage.index}n0")
        lines += [f'  {last} --> state_{_ident(sink.name)}[("state {_escape(sink.name)}")]' for sink in stage.sinks]
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace('"', "#quot;").replace("|", "#124;")


def _ident(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)
