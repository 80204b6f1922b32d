"""Walking and rebuilding the graph of nodes above some sinks. A rewrite is a function from sinks to sinks; nodes that
it does not touch stay the same objects, so that what was shared stays shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from airflow_trident.plan.nodes import Node, SinkNode

Sinks: TypeAlias = tuple[SinkNode, ...]


def ordered(sinks: Iterable[Node]) -> list[Node]:
    """Every node once, each after its inputs."""
    done: dict[int, Node] = {}
    waiting: list[tuple[Node, bool]] = [(sink, False) for sink in reversed(list(sinks))]
    while waiting:
        node, entered = waiting.pop()
        if id(node) in done:
            continue
        if entered:
            done[id(node)] = node
            continue
        waiting.append((node, True))
        waiting += [(one, False) for one in reversed(node.inputs)]
    return list(done.values())


def readers_of(sinks: Iterable[Node]) -> Counter[int]:
    """How many inputs of nodes each node is, by `id`."""
    return Counter(id(one) for node in ordered(sinks) for one in node.inputs)


def rebuilt(sinks: Sinks, change: Callable[[Node, Node], Node]) -> Sinks:
    """The graph with every node changed, inputs first.

    :param change: gets a node as it was and the same with its inputs changed, and gives what takes its place.
    """
    new: dict[int, Node] = {}
    for node in ordered(sinks):
        inputs = tuple(new[id(one)] for one in node.inputs)
        same = all(one is old for one, old in zip(inputs, node.inputs, strict=True))
        new[id(node)] = change(node, node if same else replace(node, inputs=inputs))
    return tuple(new[id(sink)] for sink in sinks)  # type: ignore[misc]
