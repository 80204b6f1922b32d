"""Graphs of nodes as indented text. The digest of a plan is made from it."""

from __future__ import annotations

from collections import deque

from airflow_trident.plan.graph import Node
from airflow_trident.plan.nodes import GivenTuples, SourceNode


def begin_of(source: SourceNode) -> str:
    """Where a stage's tuples come from."""
    return source.what if isinstance(source.spout, GivenTuples) else f"read stream {source.name}"


def logical_text(topology: str, sources: tuple[SourceNode, ...], sinks: tuple[Node, ...]) -> str:
    """The logical plan as trees, one per source. Names, fields and types; no addresses, no ids."""
    lines = [f"topology {topology}", "", *trees(sources, sinks)]
    return "\n".join(lines) + "\n"


def trees(sources: tuple[Node, ...], sinks: tuple[Node, ...]) -> list[str]:
    """One tree per source; a node with several inputs stands in full below the first of them."""
    children: dict[int, list[Node]] = {}
    seen: set[int] = set()
    waiting = deque(sinks)
    while waiting:
        node = waiting.popleft()
        if id(node) in seen:
            continue
        seen.add(id(node))
        for input_node in node.inputs:
            children.setdefault(id(input_node), []).append(node)
            waiting.append(input_node)
    lines: list[str] = []
    shown: set[int] = set()
    remaining = [(source, "") for source in reversed(sources)]
    while remaining:  # no recursion: a topology may be deeper than Python's stack
        node, indent = remaining.pop()
        if id(node) in shown:
            lines.append(f"{indent}{node.name}, see above")
            continue
        shown.add(id(node))
        lines.append(f"{indent}{node.describe()}")
        remaining += [(child, indent + "  ") for child in reversed(children.get(id(node), []))]
    return lines
