"""What makes each staged batch, as a digest that is kept beside it.

A staged batch is found by its name. But the names of streams that are handed on are numbers of verbs (`~each-2`), and
the name of a state stays when its definition is changed: after a change of the DAG file, a batch that was staged before
may have the name of another one. Then it must not be taken for that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_trident.plan.commit.nodes import CarriedNode
from airflow_trident.plan.graph import Node, ordered
from airflow_trident.plan.nodes import EachNode, FilterNode, PartitionNode, PeekNode, ProjectNode, SourceNode, UnionNode
from airflow_trident.plan.stages import Plan
from airflow_trident.plan.transform_node import TransformNode, recorded_transforms
from airflow_trident.types import names_of
from airflow_trident.version import VERSION

_DIGITS = 16


def made_by(plan: Plan) -> dict[str, str]:
    """Name of each staged batch -> package version and digest.

    Rows of a state mean what the state's definition says, so the digest is that of the definition but for its place:
    what leads to the state may change, or the state may move, and the batch stays what it was. Tuples that are handed
    on mean what the stream does that they are of. As everywhere in a plan, a function is known by its name.
    """
    handed_on = [sink for sink in plan.staged if isinstance(sink, CarriedNode)]
    trees: dict[int, _Tree] = {}
    for node in ordered(handed_on):
        trees[id(node)] = _tree(node, [trees[id(one)] for one in node.inputs])
    found = {sink.name: trees[id(sink)].digest for sink in handed_on}
    staged = {sink.name for sink in plan.staged}
    for sink in plan.sinks:
        if sink.name in staged:
            found[sink.name] = _digest(sink.state.applied, *sink.state.inputs, *recorded_transforms(sink))
    return {name: f"{VERSION} {digest}" for name, digest in found.items()}


def made_otherwise(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The batches that something else makes now. Other versions of the package may say the same thing in other words:
    between them nothing is known, and nothing is said."""
    return sorted(name for name in before.keys() & now.keys() if _differ(before[name], now[name]))


def _differ(one: str, other: str) -> bool:
    return one != other and one.partition(" ")[0] == other.partition(" ")[0]


@dataclass(frozen=True, slots=True)
class _Tree:
    """What leads to a stream. `filters`: by expressions, which the plan moves to and fro between the other nodes, as it
    suits the branches beside them."""

    made: str
    filters: frozenset[str] = frozenset()

    @property
    def digest(self) -> str:
        return _digest(self.made, *sorted(self.filters))


def _tree(node: Node, above: Sequence[_Tree]) -> _Tree:
    if isinstance(node, CarriedNode) or (isinstance(node, ProjectNode) and node.implied):
        return above[0]
    if isinstance(node, FilterNode) and node.expression is not None:
        return replace(above[0], filters=above[0].filters | {str(node.expression)})
    if isinstance(node, EachNode | PartitionNode | ProjectNode):
        return replace(above[0], made=_digest(_text(node), above[0].made))
    return _Tree(_digest(_text(node), *(one.digest for one in above)))


def _text(node: Node) -> str:
    """What it does, without the names of nodes: these have numbers, which move when a verb is added before."""
    if isinstance(node, SourceNode):  # its place may change, as everywhere: which data a batch is, is its metadata
        return f"{node.name} {type(node.spout).__name__} {node.spout.adapts}"
    if isinstance(node, UnionNode):
        return f"{node.takes} {node.tag}"
    what = f"{node.said} {node.names}" if isinstance(node, TransformNode) else node.what
    passes = node.narrows or isinstance(node, FilterNode | PeekNode)  # which fields pass depends on other streams, too
    fields = () if passes else names_of(getattr(node, "outputs", node.schema))
    return f"{type(node).__name__} {what} {fields}"


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:_DIGITS]
