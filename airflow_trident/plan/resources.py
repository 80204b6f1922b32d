"""Settings of nodes that do not change their meaning: parallelism and resources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_OF_BEFORE = (".partial", ".union")
_SUFFIXES = (".final", ".partition")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """The settings of one node; None: not set. `cpu_percent` of a core and `memory_mb` for the work on one
    partition."""

    parallelism: int | None = None
    cpu_percent: float | None = None
    memory_mb: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """The settings of a topology: by node name, and the limit of every node's parallelism. `default`: for nodes without
    their own."""

    nodes: Mapping[str, NodeSettings] = field(default_factory=dict)
    max_parallelism: int | None = None
    default: NodeSettings = NodeSettings()

    def of(self, name: str) -> NodeSettings:
        """The settings of a node of the rewritten plan; those of an aggregation belong to its last step."""
        if name in self.nodes:
            return self.nodes[name]
        if name.endswith(_OF_BEFORE):
            return NodeSettings()
        for suffix in _SUFFIXES:
            name = name.removesuffix(suffix)
        return self.nodes.get(name, NodeSettings())
