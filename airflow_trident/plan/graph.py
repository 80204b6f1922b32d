"""The logical plan is an immutable graph: a node knows its inputs, a stream is a handle on a node.

This module has what every node says about itself, and walks and rebuilds the graph above some sinks. A rewrite is a
function from sinks to sinks. Nodes that it does not change stay the same objects, so shared nodes stay shared.

Settings of nodes that do not change their meaning: parallelism and resources.

How tuples are spread over partitions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Self, TypeAlias, TypeGuard, assert_never

from airflow_trident.operations.interfaces import OperationContext
from airflow_trident.operations.user_functions import function_name
from airflow_trident.types import Schema, ddl, names_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Node(ABC):
    """`name` is unique in the topology, `schema` is what it gives, `inputs` are the nodes that it reads."""

    name: str
    schema: Schema
    inputs: tuple[Node, ...] = ()

    narrows: ClassVar[bool] = False
    """May it leave out its own fields that nobody uses? At least one stays: something must count the rows."""
    cure: ClassVar[str] = ""
    """What to do if it cannot run; empty if the general advice is enough."""

    @property
    @abstractmethod
    def what(self) -> str:
        """What it does, without fields, the same in every process; empty if the name says it."""

    def describe(self) -> str:
        """One line: name, what it does, and the fields that it gives. These lines make the digest of a plan."""
        return f"{self.name} {f'{self.what} ' if self.what else ''}-> ({ddl(self.schema)})"

    def needs(self, before: Schema, used: frozenset[str], place: int = 0) -> frozenset[str]:
        """The fields of the input at `place` that it needs to give those of its own fields that somebody uses.

        :param before: the schema of that input. (A node that travels to a worker has no inputs.)
        """
        return frozenset(names_of(before))

    def narrowed(self, used: frozenset[str]) -> Node:
        """The same node for readers that use only these fields, over inputs that may give fewer fields than before."""
        return self

    @property
    def whole_partitions(self) -> bool:
        """Does it work on whole partitions, so that it matters which tuples are together?"""
        return False

    @property
    def runs_without_tuples(self) -> bool:
        """Does it give something in a partition without tuples?"""
        return False

    @property
    def moves(self) -> bool:
        """Does it move tuples to other partitions?"""
        return False

    @property
    def input(self) -> Node:
        """The input, for a node with exactly one."""
        (only,) = self.inputs
        return only

    @property
    def fields(self) -> tuple[str, ...]:
        return names_of(self.schema)

    def over(self, inputs: tuple[Node, ...]) -> Self:
        """The same node with other inputs; itself if they are its own."""
        return self if same(inputs, self.inputs) else replace(self, inputs=inputs)

    def with_schema(self, schema: Schema) -> Self:
        """The same node with other fields; itself if they are its own."""
        return self if names_of(schema) == self.fields else replace(self, schema=schema)

    def _only(self, used: frozenset[str]) -> Self:
        return self.with_schema(tuple(field for field in self.schema if field.name in used))


@dataclass(frozen=True, kw_only=True, eq=False)
class BeginNode(Node):
    """A kind of node that begins a stage; processors cannot."""

    batch_as: ClassVar[str] = ""
    """If user code makes its output from whole batches: the form of these batches; otherwise ""."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ProcessorNode(Node):
    """Has one input, and no tuple leaves its partition: many such nodes run in one pass."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnPassNode(ProcessorNode):
    """A kind that has its own part of a fused pass, so that no engine needs to know it."""

    @abstractmethod
    def run(self, keep: frozenset[str], context: OperationContext, frames: Iterator[Any]) -> Iterator[Any]:
        """
        :param keep: the fields that a later node needs.
        :param frames: the tuples of one partition, of the class `Frame` of the fused pass.
        """


def brings_pass(node: Node) -> TypeGuard[OwnPassNode]:
    """May an engine run it by its own pass? A subclass is another kind, and needs a pass of its own."""
    return isinstance(node, OwnPassNode) and "run" in vars(type(node))


@dataclass(frozen=True, kw_only=True, eq=False)
class SinkNode(Node):
    """The end of a stream: the tuples of its input are staged, or handed on, under its name."""

    @property
    def split_by(self) -> tuple[str, ...]:
        """A staged file has only one value of each of these fields."""
        return ()

    @property
    def by_reference(self) -> bool:
        """May its staged files become a table's?"""
        return False

    @property
    def aggregates(self) -> bool:
        """Does it get one row per group, instead of all tuples?"""
        return False

    @property
    @abstractmethod
    def end(self) -> str:
        """What becomes of its tuples."""


# ---- walking and rebuilding ------------------------------------------------------------------------------------

Sinks: TypeAlias = tuple[SinkNode, ...]


def ordered(sinks: Iterable[Node]) -> list[Node]:
    """Every node once, each after its inputs."""
    done: dict[int, Node] = {}
    waiting: list[tuple[Node, bool]] = [(sink, False) for sink in reversed(list(sinks))]
    while waiting:
        node, entered = waiting.pop()
        if id(node) in done:
            continue
        if entered:
            done[id(node)] = node
            continue
        waiting.append((node, True))
        waiting += [(input_node, False) for input_node in reversed(node.inputs)]
    return list(done.values())


def readers_of(sinks: Iterable[Node]) -> Counter[int]:
    """How often each node is an input of others, by `id`."""
    return Counter(id(input_node) for node in ordered(sinks) for input_node in node.inputs)


def rebuilt(sinks: Sinks, change: Callable[[Node, Node], Node]) -> Sinks:
    """The graph with every node changed, inputs first.

    :param change: gets a node, and the same node with its inputs changed; returns its replacement.
    """
    new: dict[int, Node] = {}
    for node in ordered(sinks):
        new[id(node)] = change(node, node.over(tuple(new[id(input_node)] for input_node in node.inputs)))
    return tuple(new[id(sink)] for sink in sinks)  # type: ignore[misc]


def same(some: tuple[Node, ...], others: tuple[Node, ...]) -> bool:
    """Are these the same objects?"""
    return len(some) == len(others) and all(node is other for node, other in zip(some, others, strict=True))


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


class Grouping(StrEnum):
    """Trident's groupings, and COLOCATED."""

    SHUFFLE = "shuffle"
    LOCAL_OR_SHUFFLE = "local_or_shuffle"
    """Anywhere; here tuples stay where they are. No engine sees it."""
    FIELDS = "fields"
    GLOBAL = "global"
    BATCH_GLOBAL = "batch_global"
    """One partition per batch. A batch is one job here, so it does what GLOBAL does."""
    BROADCAST = "broadcast"
    IDENTITY = "identity"
    """From partition i to partition i; here tuples stay where they are. No engine sees it."""
    COLOCATED = "colocated"
    """Partition i of every input of a union into partition i; no verb of a user says it."""
    CUSTOM = "custom"

    @property
    def gathers(self) -> bool:
        """Does everything go into one partition?"""
        return self in (Grouping.GLOBAL, Grouping.BATCH_GLOBAL)

    @property
    def repeats(self) -> bool:
        """May a tuple come out more than once, or not at all?"""
        return self in (Grouping.BROADCAST, Grouping.CUSTOM)

    @property
    def stays(self) -> bool:
        """Does every tuple stay where it is?"""
        return self in (Grouping.IDENTITY, Grouping.LOCAL_OR_SHUFFLE)

    def what(self, keys: tuple[str, ...], custom: Any) -> str:
        """The grouping in words. :param keys: for FIELDS. :param custom: the user's grouping, for CUSTOM."""
        match self:
            case Grouping.SHUFFLE:
                return "evenly"
            case Grouping.LOCAL_OR_SHUFFLE:
                return "anywhere"
            case Grouping.GLOBAL | Grouping.BATCH_GLOBAL:
                return "into one partition"
            case Grouping.FIELDS:
                return f"by ({', '.join(keys)})"
            case Grouping.BROADCAST:
                return "into every partition"
            case Grouping.IDENTITY | Grouping.COLOCATED:
                return "partition by partition"
            case Grouping.CUSTOM:
                return f"as {function_name(custom)} says"
        assert_never(self)
