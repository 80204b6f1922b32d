"""The logical plan is an immutable graph: a node knows its inputs, a stream is a handle on a node.

What every node says of itself, and how the graph above some sinks is walked and rebuilt. A rewrite is a function from
sinks to sinks; nodes that it does not touch stay the same objects, so that what was shared stays shared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Self, TypeAlias

from airflow_trident.types import Schema, ddl, names_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Node(ABC):
    """`name` is unique in the topology, `schema` is what comes out, `inputs` the nodes it reads."""

    name: str
    schema: Schema
    inputs: tuple[Node, ...] = ()

    narrows: ClassVar[bool] = False
    """May it leave out fields of its own that nobody uses? Then one stays at least: rows are counted by something."""
    cure: ClassVar[str] = ""
    """What to do where it cannot run, if there is something better than what is said of any kind."""

    @property
    @abstractmethod
    def what(self) -> str:
        """What it does, without fields, the same in every process; empty where the name says it."""

    def describe(self) -> str:
        """One line: name, what it does, and the fields that come out. The digest of a plan is made of these lines."""
        return f"{self.name} {f'{self.what} ' if self.what else ''}-> ({ddl(self.schema)})"

    def needs(self, before: Schema, used: frozenset[str], place: int = 0) -> frozenset[str]:
        """The fields of the input at `place` that it needs to give those of its own that somebody uses.

        :param before: the schema of that input. (A node that travels to a worker has no inputs.)
        """
        return frozenset(names_of(before))

    def narrowed(self, used: frozenset[str]) -> Node:
        """The same for readers that use only these fields, and over inputs that may give less than before."""
        return self

    @property
    def whole_partitions(self) -> bool:
        """Does it work on whole partitions, so that it matters which tuples are together?"""
        return False

    @property
    def runs_without_tuples(self) -> bool:
        """Does it give something in a partition to which no tuple comes?"""
        return False

    @property
    def moves(self) -> bool:
        """Does it bring tuples into other partitions?"""
        return False

    @property
    def input(self) -> Node:
        """The only input of a node that has one."""
        (only,) = self.inputs
        return only

    @property
    def fields(self) -> tuple[str, ...]:
        return names_of(self.schema)

    def over(self, inputs: tuple[Node, ...]) -> Self:
        """The same with other inputs; itself if they are its own."""
        return self if same(inputs, self.inputs) else replace(self, inputs=inputs)

    def with_schema(self, schema: Schema) -> Self:
        """The same with other fields; itself if they are its own."""
        return self if names_of(schema) == self.fields else replace(self, schema=schema)

    def _only(self, used: frozenset[str]) -> Self:
        return self.with_schema(tuple(field for field in self.schema if field.name in used))


@dataclass(frozen=True, kw_only=True, eq=False)
class BeginNode(Node):
    """A kind that begins a stage, as no processor can."""

    batch_as: ClassVar[str] = ""
    """In which form it gets whole batches, of which code of the user's makes what comes out; "" if it does not."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ProcessorNode(Node):
    """One input, and no tuple leaves its partition: many run in one pass."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SinkNode(Node):
    """Where a stream ends: its input's tuples are staged, or handed on, under its name."""

    @property
    def split_by(self) -> tuple[str, ...]:
        """Fields of which a staged file has one value each."""
        return ()

    @property
    def aggregates(self) -> bool:
        """Does it get one row a group, and not whatever came in?"""
        return False

    @property
    @abstractmethod
    def end(self) -> str:
        """What becomes of the tuples that come to it."""


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
    """How many inputs of nodes each node is, by `id`."""
    return Counter(id(one) for node in ordered(sinks) for one in node.inputs)


def rebuilt(sinks: Sinks, change: Callable[[Node, Node], Node]) -> Sinks:
    """The graph with every node changed, inputs first.

    :param change: gets a node as it was and the same with its inputs changed, and gives what takes its place.
    """
    new: dict[int, Node] = {}
    for node in ordered(sinks):
        new[id(node)] = change(node, node.over(tuple(new[id(one)] for one in node.inputs)))
    return tuple(new[id(sink)] for sink in sinks)  # type: ignore[misc]


def same(some: tuple[Node, ...], others: tuple[Node, ...]) -> bool:
    """The same objects?"""
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))
