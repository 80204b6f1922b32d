"""From the logical plan to stages, which an engine runs.

A stage is a chain of processor nodes that runs in one pass over the data. It begins at a source, at a union or a
transform of other stages, or after a partition node. It ends where tuples are repartitioned, united, staged for a
state, or used twice. This fusion is the point of Trident's translation (TridentTopology.build merges processor nodes
into one bolt).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_trident.plan.graph import BeginNode, Node, SinkNode
from airflow_trident.plan.nodes import CheckNode, PartitionNode, PersistNode, SourceNode, TransformNode, UnionNode
from airflow_trident.types import Schema, ddl

if TYPE_CHECKING:
    from airflow_trident.contracts.spout import Spout
    from airflow_trident.operations.rules import Rule


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One pass.

    `begin`: the node whose tuples the stage begins with, made from those of the stages `upstreams` (none for a source;
    a stage may be named twice); None: the unchanged tuples of its only upstream. `exchange`: how the tuples are
    repartitioned before this stage reads them (None: they are not). `nodes`: the fused processors, first to last,
    possibly none. `sinks`: what its output is staged for. `forks`: more than one stage or sink reads the output, so an
    engine should keep it.

    `partitions`: how many it has, if set (parallelism hints); `at_most`: the topology's limit. `cpu_percent`,
    `memory_mb`: the sums of its nodes' settings for the work on one partition.
    """

    index: int
    begin: BeginNode | None
    upstreams: tuple[int, ...]
    exchange: PartitionNode | None
    nodes: tuple[Node, ...]
    sinks: tuple[SinkNode, ...]
    forks: bool
    schema: Schema
    partitions: int | None = None
    at_most: int | None = None
    cpu_percent: float | None = None
    memory_mb: float | None = None

    @property
    def source(self) -> SourceNode | None:
        return self.begin if isinstance(self.begin, SourceNode) else None

    @property
    def union(self) -> UnionNode | None:
        return self.begin if isinstance(self.begin, UnionNode) else None

    @property
    def transform(self) -> TransformNode | None:
        return self.begin if isinstance(self.begin, TransformNode) else None

    @property
    def of_batches(self) -> BeginNode | None:
        """The node that the stage begins with, if that node takes whole batches."""
        return self.begin if self.begin is not None and self.begin.batch_as else None

    def with_spouts(self, spouts: Mapping[str, Spout]) -> Stage:
        """The stage with another spout for its source, if one is given.

        :param spouts: source name -> spout.
        """
        source = self.source
        if source is None or source.name not in spouts:
            return self
        return replace(self, begin=replace(source, spout=spouts[source.name]))

    def count(self, default: int) -> int:
        """How many partitions the stage has; `default`: the engine's number, if nothing is set."""
        wanted = self.partitions or default
        return wanted if self.at_most is None else min(wanted, self.at_most)

    @property
    def before(self) -> Schema:
        """The schema of the input of `nodes`."""
        if self.exchange is not None:
            return self.exchange.schema
        if self.begin is not None:
            return self.begin.schema
        return self.nodes[0].input.schema if self.nodes else self.schema

    @property
    def name(self) -> str:
        """Deterministic: index and contents."""
        begin = self.source.name if self.source else f"stage {', '.join(map(str, self.upstreams))}"
        return f"stage {self.index} ({' > '.join([begin, *(node.name for node in self.nodes)])})"


class Coalescing(StrEnum):
    """How one pass processes several transactions."""

    NO = "one by one"
    """Not at all: each has its own pass."""
    BY_TRANSACTION = "by transaction"
    """The staged result says which rows belong to which transaction."""
    BY_KEY = "by key"
    """Rows of all transactions are merged and cannot be told apart: fewer rows, which count for all or for none.
    BY_TRANSACTION is also correct then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coalesces:
    """What may be done with several transactions of a plan together (see :mod:`airflow_trident.plan.coalescing`).

    `how`: the most that one pass over their batches may do; `why`: what prevents more, "" if nothing does.
    `commits`: may their staged batches go into the states in one step? This does not follow from `how`: batches with
    their own passes may be committed together. `why_one`: what prevents it, "" if nothing does.
    """

    how: Coalescing = Coalescing.NO
    why: str = "it has no state"
    commits: bool = False
    why_one: str = "it has no state"

    @property
    def passes(self) -> bool:
        """May one pass process several transactions?"""
        return self.how is not Coalescing.NO

    def __str__(self) -> str:
        why = f" ({self.why})" if self.why and self.why != self.why_one else ""
        committed = "in one step" if self.commits else f"one by one ({self.why_one})"
        return f"processed {self.how}{why}, committed {committed}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A compiled topology: `stages` of the processing phase, each after its upstreams, then the levels of the commit
    phase. `rewritten`: the sinks of the graph that the stages were cut from."""

    topology: str
    sources: tuple[SourceNode, ...]
    sinks: tuple[PersistNode, ...]
    rewritten: tuple[SinkNode, ...]
    stages: tuple[Stage, ...]
    digest: str
    """sha256 hex of the logical plan's text: equal plans have equal digests in every process."""
    notes: tuple[str, ...] = ()
    """What a person should know: pairs of streams and states that are not exactly once, joins of different spouts."""
    commit: tuple[CommitLevel, ...] = ()
    coalesces: Coalesces = Coalesces()
    """What may be done with several of its transactions together."""
    made_by: dict[str, str] = field(default_factory=dict)
    """The name of each of `staged` -> what makes it, see :mod:`airflow_trident.plan.compile`."""
    answers: tuple[SinkNode, ...] = ()
    """For a query: its answer, as the user wrote it. Then `sinks` has no state."""

    def with_spouts(self, spouts: Mapping[str, Spout]) -> Plan:
        """The plan with other spouts for these sources: to process other data, or less."""
        return replace(self, stages=tuple(stage.with_spouts(spouts) for stage in self.stages))

    @property
    def logical(self) -> tuple[SinkNode, ...]:
        """The ends of the graph that the user wrote."""
        return self.sinks or self.answers

    @property
    def staged(self) -> tuple[SinkNode, ...]:
        """What the processing phase stages: for states, and for the commit phase to continue with."""
        return tuple(sink for stage in self.stages for sink in stage.sinks)

    @property
    def check_nodes(self) -> tuple[CheckNode, ...]:
        """The nodes that measure rules, in the processing phase."""
        return tuple(node for stage in self.stages for node in stage.nodes if isinstance(node, CheckNode))

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that gate each of its batches."""
        return tuple(rule for node in self.check_nodes for rule in node.rules)

    @property
    def staged_fields(self) -> dict[str, str]:
        """The name of each of `staged` -> its fields as DDL, for the manifest."""
        return {sink.name: ddl(sink.schema) for sink in self.staged}


@dataclass(frozen=True, kw_only=True)
class CommitLevel:
    """One part of the commit phase: its inputs, its stages, and its outputs.

    `new_values`: source name -> the state whose new values it gives. `carried`: names of sources that lower levels hand
    on; each is the name of a `CarriedNode` there. `sinks`: the states that this level feeds, and what it hands on.
    """

    new_values: dict[str, str]
    carried: tuple[str, ...]
    sinks: tuple[SinkNode, ...]
    stages: tuple[Stage, ...]
