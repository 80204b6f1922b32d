"""From the logical plan to stages: what an engine runs.

A stage is a chain of processor nodes that runs in one pass over the data. It begins at a source, at a union of other
stages or behind a partition node, and ends where tuples are repartitioned, united, staged for a state, or used twice.
That fusion is the point of Trident's translation (TridentTopology.build merges processor nodes into one bolt).
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_trident.plan.nodes import Node, PartitionNode, PersistNode, SinkNode, SourceNode, UnionNode
from airflow_trident.types import Schema, ddl


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One pass.

    It begins at its `source`, or else at the stages `upstreams`: several, perhaps one twice, if there is a `union` that
    says how they come together, else one. `exchange`: how the tuples are repartitioned before this stage reads them
    (None: they are not). `nodes`: the fused processors, first to last, possibly none. `sinks`: the states that its
    output is staged for. `forks`: more than one stage or sink reads the output, so that an engine should keep it.
    `partitions`: how many it has, if it was said (parallelism hints); `at_most`: the topology's limit.
    `cpu_percent`, `memory_mb`: the sums over its nodes of what was said about the work on one partition.
    """

    index: int
    source: SourceNode | None
    upstreams: tuple[int, ...]
    union: UnionNode | None
    exchange: PartitionNode | None
    nodes: tuple[Node, ...]
    sinks: tuple[SinkNode, ...]
    forks: bool
    schema: Schema
    partitions: int | None = None
    at_most: int | None = None
    cpu_percent: float | None = None
    memory_mb: float | None = None

    def count(self, default: int) -> int:
        """How many partitions it has where an engine would make `default`."""
        wanted = self.partitions or default
        return wanted if self.at_most is None else min(wanted, self.at_most)

    @property
    def before(self) -> Schema:
        """The schema of what comes to `nodes`."""
        if self.exchange is not None:
            return self.exchange.schema
        begin = self.source or self.union
        return begin.schema if begin is not None else self.nodes[0].input.schema if self.nodes else self.schema

    @property
    def name(self) -> str:
        """Deterministic: index and what it holds."""
        begin = self.source.name if self.source else f"stage {', '.join(map(str, self.upstreams))}"
        return f"stage {self.index} ({' > '.join([begin, *(node.name for node in self.nodes)])})"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A compiled topology: `stages` of the processing phase in an order in which each comes after its upstreams, then
    the levels of the commit phase. `rewritten`: the sinks of the graph that the stages were cut from."""

    topology: str
    sources: tuple[SourceNode, ...]
    sinks: tuple[PersistNode, ...]
    rewritten: tuple[SinkNode, ...]
    stages: tuple[Stage, ...]
    digest: str
    """sha256 hex of the logical plan's text: equal plans have equal digests in every process."""
    notes: tuple[str, ...] = ()
    """What a person should know: pairs of streams and states that are not exactly once, joins of different spouts."""
    commit: tuple[Level, ...] = ()
    answers: tuple[SinkNode, ...] = ()
    """Of a query: its answer, as the user said it. It has no state in `sinks`."""

    @property
    def logical(self) -> tuple[SinkNode, ...]:
        """Where what the user said ends."""
        return self.sinks or self.answers

    @property
    def staged(self) -> tuple[SinkNode, ...]:
        """What the processing phase stages: for states, and for the commit phase to go on with."""
        return tuple(sink for stage in self.stages for sink in stage.sinks)

    @property
    def staged_fields(self) -> dict[str, str]:
        """The name of each of `staged` -> its fields as DDL: what a manifest says of itself."""
        return {sink.name: ddl(sink.schema) for sink in self.staged}


@dataclass(frozen=True, kw_only=True)
class Level:
    """One part of the commit phase: what is to be known before it, the stages, and what comes out.

    `new_values`: source name -> the state whose new values it is. `carried`: names of sources that lower levels hand
    on; each is the name of a `CarriedNode` there. `sinks`: the states that this level feeds, and what it hands on.
    """

    new_values: dict[str, str]
    carried: tuple[str, ...]
    sinks: tuple[SinkNode, ...]
    stages: tuple[Stage, ...]
