"""The last step of compilation: cuts the rewritten graph into stages."""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_trident.errors import UnknownNodeError
from airflow_trident.plan.graph import (
    BeginNode,
    Grouping,
    Node,
    PlanSettings,
    ProcessorNode,
    SinkNode,
    Sinks,
    ordered,
    readers_of,
)
from airflow_trident.plan.nodes import PartitionNode, ProjectNode, SourceNode
from airflow_trident.plan.stages import Stage

MOST_FUSED = 200
"""The most nodes of one stage: each pulls from the one before it, and Python's stack is no deeper than 1,000 calls."""


def fuse(sinks: Sinks, settings: PlanSettings) -> tuple[Stage, ...]:
    """Stages, each after its upstreams, with their numbers of partitions.

    :raises UnknownNodeError: stages cannot contain a node of this kind, and no rewrite replaced it.
    """
    for node in ordered(sinks):
        if not isinstance(node, BeginNode | PartitionNode | ProcessorNode | SinkNode):
            raise UnknownNodeError(node.name, type(node).__name__, "the compiler")
    return _counted(_Fusion(sinks).stages(), settings)


def _counted(stages: tuple[Stage, ...], settings: PlanSettings) -> tuple[Stage, ...]:
    """Stages between which nothing moves have the same number of partitions: the largest hint on their nodes (Trident
    takes the maximum over the groups that identity partitions connect)."""
    group = list(range(len(stages)))
    for stage in stages:
        if stage.exchange is None or stage.exchange.grouping is Grouping.COLOCATED:
            for upstream in stage.upstreams:
                old, new = group[stage.index], group[upstream]
                group = [new if member == old else member for member in group]
    hints: dict[int, int] = {}
    for stage in stages:
        for node in (stage.begin, stage.exchange, *stage.nodes):
            hint = settings.of(node.name).parallelism if node is not None else None
            if hint is not None:
                hints[group[stage.index]] = max(hint, hints.get(group[stage.index], 0))
    return tuple(
        replace(
            stage,
            partitions=hints.get(group[stage.index]),
            at_most=settings.max_parallelism,
            cpu_percent=_total(stage, settings, "cpu_percent"),
            memory_mb=_total(stage, settings, "memory_mb"),
        )
        for stage in stages
    )


def _total(stage: Stage, settings: PlanSettings, resource: str) -> float | None:
    """The sum over the nodes of a stage, which run as one; None: no node says anything (Trident sums over a bolt)."""
    default: float | None = getattr(settings.default, resource)
    total = 0.0
    for node in (stage.source, *stage.nodes):
        if node is not None:
            setting: float | None = getattr(settings.of(node.name), resource)
            if setting is None and _is_written(node):
                setting = default
            total += setting or 0.0
    return total or None


def _is_written(node: Node) -> bool:
    """Did the user write it? For an aggregation, that is its last step."""
    return not node.name.endswith(".partial") and not (isinstance(node, ProjectNode) and node.implied)


@dataclass(frozen=True, slots=True)
class _Cut:
    """What becomes the stage that ends at a node. `above`: where its upstreams end."""

    begin: BeginNode | None
    exchange: PartitionNode | None
    nodes: tuple[Node, ...]
    above: tuple[Node, ...]


class _Fusion:
    """Works from the sinks upwards."""

    def __init__(self, sinks: Sinks) -> None:
        self._ends = [sink.input for sink in sinks]
        self._readers = readers_of(sinks)
        self._sinks: dict[int, list[SinkNode]] = {}
        for sink in sinks:
            self._sinks.setdefault(id(sink.input), []).append(sink)
        self._stages: list[Stage] = []
        self._by_end: dict[int, int] = {}

    def stages(self) -> tuple[Stage, ...]:
        cuts: dict[int, _Cut] = {}
        waiting = list(reversed(self._ends))
        while waiting:  # no recursion: a topology may be deeper than Python's stack
            end = waiting[-1]
            if id(end) in self._by_end:
                waiting.pop()
                continue
            cut = cuts.get(id(end)) or cuts.setdefault(id(end), self._cut(end))
            above = [upstream for upstream in cut.above if id(upstream) not in self._by_end]
            if above:
                waiting += reversed(above)
            else:
                self._add(waiting.pop(), cut)
        return tuple(self._stages)

    def _cut(self, end: Node) -> _Cut:
        chain: list[Node] = []
        node = end
        while isinstance(node, ProcessorNode) and self._is_inside(node, end) and len(chain) < MOST_FUSED:
            chain.append(node)
            node = node.input
        exchange = node if isinstance(node, PartitionNode) and self._is_inside(node, end) else None
        above = exchange.input if exchange is not None else node
        reads = isinstance(above, SourceNode) and exchange is not None  # a source is read in its own stage
        begin = above if isinstance(above, BeginNode) and self._is_inside(above, end) and not reads else None
        return _Cut(begin, exchange, tuple(reversed(chain)), begin.inputs if begin is not None else (above,))

    def _add(self, end: Node, cut: _Cut) -> None:
        stage = Stage(
            index=len(self._stages),
            begin=cut.begin,
            upstreams=tuple(self._by_end[id(upstream)] for upstream in cut.above),
            exchange=cut.exchange,
            nodes=cut.nodes,
            sinks=tuple(self._sinks.get(id(end), ())),
            forks=self._readers[id(end)] > 1,
            schema=end.schema,
        )
        self._stages.append(stage)
        self._by_end[id(end)] = stage.index

    def _is_inside(self, node: Node, end: Node) -> bool:
        """A node with several readers ends its own stage, so it is computed only once."""
        return node is end or self._readers[id(node)] == 1
