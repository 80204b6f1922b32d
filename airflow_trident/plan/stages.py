"""From the logical plan to stages: what an engine runs.

A stage is a chain of processor nodes that runs in one pass over the data. It begins at a source or behind a partition
node and ends where tuples are repartitioned, staged for a state, or used twice. That fusion is the point of Trident's
translation (TridentTopology.build merges processor nodes into one bolt).
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_trident.plan.nodes import Node, PartitionNode, PersistNode, SourceNode
from airflow_trident.types import Schema


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One pass.

    Exactly one of `source` and `upstream` is set. `exchange`: how the tuples of the upstream stage are repartitioned
    before this stage reads them (None: they are not; the upstream stage forks). `nodes`: the fused processors, first to
    last, possibly none. `sinks`: the states that its output is staged for. `forks`: more than one stage or sink reads
    the output, so that an engine should keep it.
    """

    index: int
    source: SourceNode | None
    upstream: int | None
    exchange: PartitionNode | None
    nodes: tuple[Node, ...]
    sinks: tuple[PersistNode, ...]
    forks: bool
    schema: Schema

    @property
    def name(self) -> str:
        """Deterministic: index and what it holds."""
        begin = self.source.name if self.source else f"stage {self.upstream}"
        return f"stage {self.index} ({' > '.join([begin, *(node.name for node in self.nodes)])})"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A compiled topology: `stages` in an order in which each comes after its upstream."""

    topology: str
    sources: tuple[SourceNode, ...]
    sinks: tuple[PersistNode, ...]
    stages: tuple[Stage, ...]
    digest: str
    """sha256 hex of the logical plan's text: equal plans have equal digests in every process."""
    notes: tuple[str, ...] = ()
    """What a person should know: the pairs of streams and states that are not exactly once."""
