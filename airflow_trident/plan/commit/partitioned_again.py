"""What a level of the commit phase runs again, so that tuples from a lower level return to their partitions.

A stream is handed on as a whole, without its partitions. If a node works on whole partitions and combines such a stream
with others, the last repartition of the stream and everything after it run again on the handed-on tuples. Then
partition i is the same for all streams. A branch without a repartition has no partitions that mean anything: it is
handed on as it is.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

from airflow_trident.errors import PlanError
from airflow_trident.plan.commit.nodes import NewValuesNode, StateQueryNode
from airflow_trident.plan.graph import Node, Sinks, ordered
from airflow_trident.plan.groupings import Grouping
from airflow_trident.plan.nodes import PartitionNode

Again: TypeAlias = defaultdict[int, set[int]]
"""Level -> ids of nodes of lower levels that run again in it."""


def partitioned_again(sinks: Sinks, levels: dict[int, int]) -> Again:
    """:param levels: of every node, by `id`."""
    by_partition = _by_partition(sinks)
    again: Again = defaultdict(set)
    for node in ordered(sinks):
        for one in _tuples_of(node):
            if levels[id(one)] < levels[id(node)] and id(node) in by_partition:
                again[levels[id(node)]] |= _since_repartition(one, node)
    return again


def _by_partition(sinks: Sinks) -> set[int]:
    """Nodes, by `id`, for which the partition of a tuple matters: those that work on whole partitions, and all before
    them up to a repartition."""
    found: set[int] = set()
    for node in reversed(ordered(sinks)):
        stays = isinstance(node, PartitionNode) and node.grouping is Grouping.COLOCATED
        if stays or node.whole_partitions:
            found.add(id(node))
        if id(node) in found:
            found.update(id(one) for one in _tuples_of(node) if stays or not one.moves)
    return found


def _tuples_of(node: Node) -> tuple[Node, ...]:
    """The inputs whose tuples it goes on with: new values are read from the state, whatever led to that."""
    return () if isinstance(node, NewValuesNode) else node.inputs


def _since_repartition(node: Node, reader: Node) -> set[int]:
    """The node and what is above it, up to and including the repartitions, by `id`; empty if there is no repartition.

    :raises PlanError: a state query is in between: asked again, later, it would find something else.
    """
    above = _repartitions(node)
    found: set[int] = set()
    waiting = [node]
    while waiting:
        one = waiting.pop()
        repartition = above.get(id(one))
        if repartition is None or id(one) in found:
            continue
        if isinstance(one, StateQueryNode):
            raise PlanError(
                f"{reader.name} works on whole partitions in the commit phase, and {one.name} stands between it and "
                f"the repartition {repartition.name}: the tuples of the processing phase would not come to their "
                "partitions",
                f"Repartition behind {one.name}, or ask it in the commit phase: after_commit=True.",
            )
        found.add(id(one))
        if not one.moves:
            waiting += one.inputs
    return found


def _repartitions(node: Node) -> dict[int, Node]:
    """The nodes whose partitions come from a repartition, by `id`, with one that they come from."""
    found: dict[int, Node] = {}
    for one in ordered([node]):
        above = one if one.moves else next((found[id(up)] for up in _tuples_of(one) if id(up) in found), None)
        if above is not None:
            found[id(one)] = above
    return found
