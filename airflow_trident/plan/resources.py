"""What is said about nodes beside what they mean: parallelism and resources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_OF_BEFORE = (".partial", ".union")
_SUFFIXES = (".final", ".partition")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Of one node; None: not said. `cpu_percent` of a core, `memory_mb` of one partition's work."""

    parallelism: int | None = None
    cpu_percent: float | None = None
    memory_mb: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """Of a topology: by node name, and the limit of every node's parallelism. `default`: for nodes without any."""

    nodes: Mapping[str, NodeSettings] = field(default_factory=dict)
    max_parallelism: int | None = None
    default: NodeSettings = NodeSettings()

    def of(self, name: str) -> NodeSettings:
        """The settings of a node of the rewritten plan; those of an aggregation belong to its last step."""
        if name.endswith(_OF_BEFORE):
            return NodeSettings()
        for suffix in _SUFFIXES:
            name = name.removesuffix(suffix)
        return self.nodes.get(name, NodeSettings())
