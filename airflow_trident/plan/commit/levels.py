"""Which part of a topology runs in which phase, and in what order: pure.

Everything downstream of a state's new values belongs to the commit phase. (In Trident, too; but there a bolt that also
reads a stream of the processing phase waits for ever, STORM-481.) Here the graph is cut into *levels*: level 0 is the
processing phase, and level k+1 is what needs an applied state of level k. A stream that crosses from a lower level to a
higher one is handed over whole.

What a level of the commit phase runs again, so that tuples from a lower level return to their partitions.

A stream is handed on as a whole, without its partitions. If a node works on whole partitions and combines such a stream
with others, the last repartition of the stream and everything after it run again on the handed-on tuples. Then
partition i is the same for all streams. A branch without a repartition has no partitions that mean anything: it is
handed on as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from typing import TypeAlias

from airflow_trident.errors import PlanError
from airflow_trident.plan.graph import Grouping, Node, PlanSettings, SinkNode, Sinks, ordered
from airflow_trident.plan.nodes import (
    CarriedNode,
    GivenTuples,
    NewValuesNode,
    PartitionNode,
    PersistNode,
    SourceNode,
    StateQueryNode,
)
from airflow_trident.plan.rewrites.fusion import fuse
from airflow_trident.plan.stages import CommitLevel, Stage

Again: TypeAlias = defaultdict[int, set[int]]
"""Level -> ids of nodes of lower levels that run again in it."""


def partitioned_again(sinks: Sinks, levels: dict[int, int]) -> Again:
    """:param levels: of every node, by `id`."""
    by_partition = _by_partition(sinks)
    again: Again = defaultdict(set)
    for node in ordered(sinks):
        for upstream in _tuples_of(node):
            if levels[id(upstream)] < levels[id(node)] and id(node) in by_partition:
                again[levels[id(node)]] |= _since_repartition(upstream, node)
    return again


def _by_partition(sinks: Sinks) -> set[int]:
    """Nodes, by `id`, for which the partition of a tuple matters: those that work on whole partitions, and all before
    them up to a repartition."""
    node_ids: set[int] = set()
    for node in reversed(ordered(sinks)):
        stays = isinstance(node, PartitionNode) and node.grouping is Grouping.COLOCATED
        if stays or node.whole_partitions:
            node_ids.add(id(node))
        if id(node) in node_ids:
            node_ids.update(id(upstream) for upstream in _tuples_of(node) if stays or not upstream.moves)
    return node_ids


def _tuples_of(node: Node) -> tuple[Node, ...]:
    """The inputs whose tuples it goes on with: new values are read from the state, whatever led to that."""
    return () if isinstance(node, NewValuesNode) else node.inputs


def _since_repartition(node: Node, reader: Node) -> set[int]:
    """The node and what is above it, up to and including the repartitions, by `id`; empty if there is no repartition.

    :raises PlanError: a state query is in between: asked again, later, it would find something else.
    """
    above = _repartitions(node)
    node_ids: set[int] = set()
    waiting = [node]
    while waiting:
        upstream = waiting.pop()
        repartition = above.get(id(upstream))
        if repartition is None or id(upstream) in node_ids:
            continue
        if isinstance(upstream, StateQueryNode):
            raise PlanError(
                f"{reader.name} works on whole partitions in the commit phase, and {upstream.name} stands between it "
                f"and the repartition {repartition.name}: the tuples of the processing phase would not come to their "
                "partitions",
                f"Repartition behind {upstream.name}, or ask it in the commit phase: after_commit=True.",
            )
        node_ids.add(id(upstream))
        if not upstream.moves:
            waiting += upstream.inputs
    return node_ids


def _repartitions(node: Node) -> dict[int, Node]:
    """The nodes whose partitions come from a repartition, by `id`, with one that they come from."""
    repartitions: dict[int, Node] = {}
    for upstream in ordered([node]):
        from_above = (repartitions[id(up)] for up in _tuples_of(upstream) if id(up) in repartitions)
        above = upstream if upstream.moves else next(from_above, None)
        if above is not None:
            repartitions[id(upstream)] = above
    return repartitions


def split_phases(sinks: Sinks, settings: PlanSettings) -> tuple[CommitLevel, ...]:
    """Cuts a rewritten graph into its levels; the first is the processing phase."""
    levels = _levels(sinks)
    again = partitioned_again(sinks, levels)
    carried = _carried(sinks, levels, again)
    count = 1 + max((levels[id(sink)] for sink in sinks), default=0)
    return tuple(_Cut(level, levels, again[level]).level(sinks, carried, settings) for level in range(count))


def in_commit_phase(node: Node) -> bool:
    """Is this node, of the graph that the user built, downstream of a state?"""
    return any(
        isinstance(upstream, NewValuesNode) or (isinstance(upstream, StateQueryNode) and upstream.after_commit)
        for upstream in ordered([node])
    )


def leading_to(levels: tuple[CommitLevel, ...], states: Collection[str]) -> tuple[CommitLevel, ...]:
    """The part of the commit phase that leads to these states. The rest does not run: a committer that does not run
    emits nothing, and a state that has gone on has forgotten its new values."""
    wanted, kept = set(states), []
    for level in reversed(levels):
        sinks = tuple(sink for sink in level.sinks if sink.name in wanted)
        stages = _stages_to(level.stages, wanted)
        sources = {stage.source.name for stage in stages if stage.source is not None}
        carried = tuple(name for name in level.carried if name in sources)
        news = {source: state for source, state in level.new_values.items() if source in sources}
        wanted.update(carried)
        if sinks:
            kept.append(replace(level, new_values=news, carried=carried, sinks=sinks, stages=stages))
    return tuple(reversed(kept))


def _stages_to(stages: tuple[Stage, ...], wanted: Collection[str]) -> tuple[Stage, ...]:
    """The stages that lead to these sinks, numbered anew."""
    needed: set[int] = set()
    for stage in reversed(stages):
        if stage.index in needed or any(sink.name in wanted for sink in stage.sinks):
            needed |= {stage.index, *stage.upstreams}
    kept = [stage for stage in stages if stage.index in needed]
    places = {stage.index: place for place, stage in enumerate(kept)}
    return tuple(
        replace(
            stage,
            index=places[stage.index],
            upstreams=tuple(places[upstream] for upstream in stage.upstreams),
            sinks=tuple(sink for sink in stage.sinks if sink.name in wanted),
        )
        for stage in kept
    )


def _levels(sinks: Sinks) -> dict[int, int]:
    """The level of every node, by `id`."""
    levels: dict[int, int] = {}
    of_state: dict[tuple[str, str], int] = {}
    # A query depends on its state only by name. So a state may come after its query, and then more rounds are needed.
    while True:
        before = dict(of_state)
        for node in ordered(sinks):
            level = max((levels[id(input_node)] for input_node in node.inputs), default=0)
            if isinstance(node, NewValuesNode):
                level += 1
            elif isinstance(node, StateQueryNode) and (level > 0 or node.after_commit):
                level = max(level, of_state.get((node.state.topology, node.state.name), -1) + 1)
            elif isinstance(node, PersistNode):
                of_state[node.state.topology, node.name] = level
            levels[id(node)] = level
        if of_state == before:
            return levels


def _carried(sinks: Sinks, levels: dict[int, int], again: Again) -> dict[int, Node]:
    """The nodes whose output a higher level reads, by `id`."""
    carried: dict[int, Node] = {}
    for node in ordered(sinks):
        here = {levels[id(node)], *(level for level, nodes in again.items() if id(node) in nodes)}
        for input_node in node.inputs:
            lower = any(levels[id(input_node)] < level and id(input_node) not in again[level] for level in here)
            if lower and not isinstance(input_node, PersistNode):
                carried[id(input_node)] = input_node
    return carried


class _Cut:
    """The graph of one level: everything from lower levels is a source."""

    def __init__(self, number: int, levels: dict[int, int], again: set[int]) -> None:
        self._number = number
        self._levels = levels
        self._again = again
        self._new: dict[int, Node] = {}
        self._new_values: dict[str, str] = {}

    def level(self, sinks: Sinks, carried: dict[int, Node], settings: PlanSettings) -> CommitLevel:
        handed = [node for node in carried.values() if self._levels[id(node)] == self._number]
        wanted = [sink for sink in sinks if self._levels[id(sink)] == self._number]
        for node in ordered([*wanted, *handed]):
            self._new[id(node)] = self._made(node)
        made = [
            *(self._new[id(sink)] for sink in wanted),
            *(CarriedNode(name=f"~{node.name}", schema=node.schema, inputs=(self._new[id(node)],)) for node in handed),
        ]
        part = tuple(sink_node for sink_node in made if isinstance(sink_node, SinkNode))
        staged_sources = (
            source
            for source in ordered(part)
            if isinstance(source, SourceNode) and isinstance(source.spout, GivenTuples)
        )
        return CommitLevel(
            new_values=self._new_values,
            carried=tuple(source.name for source in staged_sources if source.name not in self._new_values),
            sinks=part,
            stages=fuse(part, settings),
        )

    def _made(self, node: Node) -> Node:
        if self._levels[id(node)] < self._number and id(node) not in self._again:
            return _given(f"~{node.name}", node, f"{node.name}, handed on")
        if isinstance(node, NewValuesNode):
            self._new_values[node.name] = node.persist.name
            return _given(node.name, node, f"new values of state {node.persist.name}")
        return node.over(tuple(self._new[id(input_node)] for input_node in node.inputs))


def _given(name: str, node: Node, description: str) -> SourceNode:
    return SourceNode(name=name, schema=node.schema, spout=GivenTuples(node.schema, description))
