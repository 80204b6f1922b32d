"""The nodes that an engine can run. It refuses others before a row is read (E6); otherwise it would commit rows that a
node should have changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from airflow_trident.engine.fused.passes import RUNS
from airflow_trident.engine.partitioning import RULES
from airflow_trident.errors import UnknownNodeError
from airflow_trident.plan.commit.nodes import CarriedNode
from airflow_trident.plan.graph import BeginNode, Node, ProcessorNode, SinkNode, brings_pass
from airflow_trident.plan.groupings import Grouping
from airflow_trident.plan.nodes import PartitionNode, PersistNode, SourceNode, UnionNode
from airflow_trident.plan.stages import Plan, Stage
from airflow_trident.plan.transform_node import TransformNode


@dataclass(frozen=True, kw_only=True)
class KnownNodes:
    """Exact classes: a subclass is another kind.

    :param where: the engine, for the error.
    """

    where: str
    begins: Collection[type[BeginNode]]
    processors: Collection[type[ProcessorNode]]
    groupings: Collection[Grouping]
    sinks: Collection[type[SinkNode]]

    def require(self, stages: Iterable[Stage]) -> None:
        """:raises UnknownNodeError: a node is of another kind."""
        for stage in stages:
            for node in self._unknown(stage):
                raise UnknownNodeError(node.name, _kind(node), self.where, node.cure)

    def _unknown(self, stage: Stage) -> Iterator[Node]:
        if stage.begin is not None and type(stage.begin) not in self.begins:
            yield stage.begin
        how = stage.exchange
        if how is not None and (type(how) is not PartitionNode or how.grouping not in self.groupings):
            yield how
        yield from (node for node in stage.nodes if type(node) not in self.processors and not brings_pass(node))
        yield from (sink for sink in stage.sinks if type(sink) not in self.sinks)


def _kind(node: Node) -> str:
    return f"{type(node).__name__}, {node.grouping}" if type(node) is PartitionNode else type(node).__name__


LOCAL_NODES = KnownNodes(
    where="the local engine, which also runs the commit phase and queries,",
    begins=(SourceNode, UnionNode),
    processors=RUNS.keys(),
    groupings=RULES.keys(),
    sinks=(PersistNode, CarriedNode),
)
"""For fused passes in this process."""
SPARK_NODES = replace(LOCAL_NODES, where="the Spark engine", begins=(*LOCAL_NODES.begins, TransformNode))
"""For Spark's Python workers. Some kinds may run in the JVM instead; whole DataFrames run only there."""


def require_known(plan: Plan, known: KnownNodes) -> None:
    """
    :param known: the nodes of the engine for the processing phase; the local engine runs the commit phase.
    :raises UnknownNodeError: a node of either phase is of another kind.
    """
    known.require(plan.stages)
    for level in plan.commit:
        LOCAL_NODES.require(level.stages)
