"""Compilation: rewrites of the logical plan, then fusion into stages. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace

from airflow_trident.errors import PlanError
from airflow_trident.plan.explain import logical_text
from airflow_trident.plan.nodes import (
    AggregateNode,
    FinalAggregateNode,
    Grouping,
    Node,
    PartialAggregateNode,
    PartitionNode,
    PersistNode,
    SourceNode,
)
from airflow_trident.plan.stages import Plan, Stage


def compile_plan(topology: str, sources: tuple[SourceNode, ...], sinks: tuple[PersistNode, ...]) -> Plan:
    """The plan that engines run.

    :raises PlanError: there is no state, or a stream reaches none.
    """
    if not sinks:
        raise PlanError(
            f"topology {topology!r} has no state: nothing would ever be committed",
            "End a stream with persistent_aggregate() or partition_persist().",
        )
    reached = _ancestors(sinks)
    for source in sources:
        if id(source) not in reached:
            raise PlanError(
                f"stream {source.name!r} of topology {topology!r} reaches no state: its data would be read and lost",
                "End it with persistent_aggregate() or partition_persist(), or remove it.",
            )
    lowered = _Lowering()
    lowered_sinks = tuple(replace(sink, inputs=(lowered.of(sink.input),)) for sink in sinks)
    digest = hashlib.sha256(logical_text(topology, sources, sinks).encode()).hexdigest()
    return Plan(topology=topology, sources=sources, sinks=sinks, stages=_Fusion(lowered_sinks).stages(), digest=digest)


def _ancestors(nodes: tuple[Node, ...]) -> set[int]:
    seen: set[int] = set()
    waiting: list[Node] = list(nodes)
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            waiting.extend(node.inputs)
    return seen


class _Lowering:
    """Rewrites aggregations into what engines do.

    Combiners: partial aggregation in every partition, then bring the partial values of a group together, then the
    final combination (Trident: Stream.aggregate, GroupedStream.aggregate). Anything else needs all tuples of a group
    together.
    """

    def __init__(self) -> None:
        self._done: dict[int, tuple[Node, Node]] = {}

    def of(self, node: Node) -> Node:
        known = self._done.get(id(node))
        if known is not None:
            return known[1]
        inputs = tuple(self.of(one) for one in node.inputs)
        same = all(new is old for new, old in zip(inputs, node.inputs, strict=True))
        moved = node if same else replace(node, inputs=inputs)
        lowered = self._aggregate(moved) if isinstance(moved, AggregateNode) else moved
        self._done[id(node)] = (node, lowered)  # keeps `node` alive, so that its id stays its own
        return lowered

    @staticmethod
    def _aggregate(node: AggregateNode) -> Node:
        before = node.input
        if all(one.combiner for one in node.aggregations):
            before = PartialAggregateNode(
                name=f"{node.name}.partial",
                schema=node.schema,
                inputs=(before,),
                groups=node.groups,
                aggregations=node.aggregations,
            )
        together = PartitionNode(
            name=f"{node.name}.partition",
            schema=before.schema,
            inputs=(before,),
            grouping=Grouping.FIELDS if node.groups else Grouping.GLOBAL,
            keys=node.groups,
        )
        return FinalAggregateNode(
            name=f"{node.name}.final",
            schema=node.schema,
            inputs=(together,),
            groups=node.groups,
            aggregations=node.aggregations,
        )


class _Fusion:
    """Cuts the lowered graph into stages, from the sinks upwards."""

    def __init__(self, sinks: tuple[PersistNode, ...]) -> None:
        self._sinks = sinks
        self._readers = Counter[int]()
        seen: set[int] = set()
        waiting: list[Node] = list(sinks)
        while waiting:
            node = waiting.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            for one in node.inputs:
                self._readers[id(one)] += 1
                waiting.append(one)
        self._stages: list[Stage] = []
        self._by_end: dict[int, int] = {}

    def stages(self) -> tuple[Stage, ...]:
        for sink in self._sinks:
            self._ending_at(sink.input)
        return tuple(self._stages)

    def _ending_at(self, end: Node) -> int:
        if id(end) in self._by_end:
            return self._by_end[id(end)]
        chain: list[Node] = []
        node = end
        while not isinstance(node, SourceNode | PartitionNode) and (node is end or self._readers[id(node)] == 1):
            chain.append(node)
            node = node.input
        source = node if isinstance(node, SourceNode) and self._is_begin(node, end) else None
        exchange = node if isinstance(node, PartitionNode) else None
        upstream = None if source else self._ending_at(exchange.input if exchange else node)
        stage = Stage(
            index=len(self._stages),
            source=source,
            upstream=upstream,
            exchange=exchange,
            nodes=tuple(reversed(chain)),
            sinks=tuple(sink for sink in self._sinks if sink.input is end),
            forks=self._readers[id(end)] > 1,
            schema=end.schema,
        )
        self._stages.append(stage)
        self._by_end[id(end)] = stage.index
        return stage.index

    def _is_begin(self, source: SourceNode, end: Node) -> bool:
        """A source that several readers use is a stage of its own, so that it is read once."""
        return source is end or self._readers[id(source)] == 1
