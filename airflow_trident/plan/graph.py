"""The logical plan is an immutable graph: a node knows its inputs, a stream is a handle on a node.

This module has what every node says about itself, and walks and rebuilds the graph above some sinks. A rewrite is a
function from sinks to sinks. Nodes that it does not change stay the same objects, so shared nodes stay shared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeAlias, TypeGuard

from airflow_trident.operations.api import OperationContext
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
        waiting += [(one, False) for one in reversed(node.inputs)]
    return list(done.values())


def readers_of(sinks: Iterable[Node]) -> Counter[int]:
    """How often each node is an input of others, by `id`."""
    return Counter(id(one) for node in ordered(sinks) for one in node.inputs)


def rebuilt(sinks: Sinks, change: Callable[[Node, Node], Node]) -> Sinks:
    """The graph with every node changed, inputs first.

    :param change: gets a node, and the same node with its inputs changed; returns its replacement.
    """
    new: dict[int, Node] = {}
    for node in ordered(sinks):
        new[id(node)] = change(node, node.over(tuple(new[id(one)] for one in node.inputs)))
    return tuple(new[id(sink)] for sink in sinks)  # type: ignore[misc]


def same(some: tuple[Node, ...], others: tuple[Node, ...]) -> bool:
    """Are these the same objects?"""
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))
