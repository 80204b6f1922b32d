"""What a level of the commit phase runs again, so that tuples from a lower level return to their partitions.

A stream is handed on as a whole, without its partitions. If a node works on whole partitions and combines such a stream
with others, the last repartition of the stream and everything after it run again on the handed-on tuples. Then
partition i is the same for all streams.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

from airflow_trident.errors import PlanError
from airflow_trident.plan.commit.nodes import NewValuesNode, StateQueryNode
from airflow_trident.plan.graph import Node, Sinks, ordered
from airflow_trident.plan.groupings import Grouping
from airflow_trident.plan.nodes import PartitionNode, SourceNode

Again: TypeAlias = defaultdict[int, set[int]]
"""Level -> ids of nodes of lower levels that run again in it."""


def partitioned_again(sinks: Sinks, levels: dict[int, int]) -> Again:
    """:param levels: of every node, by `id`."""
    by_partition = _by_partition(sinks)
    again: Again = defaultdict(set)
    for node in ordered(sinks):
        for one in node.inputs:
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
            found.update(id(one) for one in node.inputs if stays or not one.moves)
    return found


def _since_repartition(node: Node, reader: Node) -> set[int]:
    """The node and everything above it up to and including the repartitions, by `id`; empty if there is no repartition.

    :raises PlanError: a state query is in between: asked again, later, it would find something else.
    """
    found: set[int] = set()
    waiting: list[tuple[Node, StateQueryNode | None]] = [(node, None)]
    moved = False
    while waiting:
        one, query = waiting.pop()
        query = one if isinstance(one, StateQueryNode) else query
        if isinstance(one, SourceNode | NewValuesNode):
            continue
        found.add(id(one))
        if not one.moves:
            waiting += [(above, query) for above in one.inputs]
        elif query is None:
            moved = True
        else:
            raise PlanError(
                f"{reader.name} works on whole partitions in the commit phase, and {query.name} stands between it and "
                f"the repartition {one.name}: the tuples of the processing phase would not come to their partitions",
                f"Repartition behind {query.name}, or ask it in the commit phase: after_commit=True.",
            )
    return found if moved else set()
