"""The logical plan: an immutable graph. A node knows its inputs; a stream is a handle on a node.

Nodes are named deterministically (`each-2`, `group_by-3`: verb and place in the topology), because Airflow parses the
DAG file again and again and every parse must give the same plan. Node kinds follow Trident's SpoutNode, ProcessorNode
and PartitionNode.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow_trident.operations.base import CombinerAggregator, ReducerAggregator
from airflow_trident.types import Schema, names_of

if TYPE_CHECKING:
    from airflow_trident.operations.expressions import Expression
    from airflow_trident.plan.states import StateSpec
    from airflow_trident.protocol.spouts import Spout


@dataclass(frozen=True, kw_only=True, eq=False)
class Node:
    """`name` is unique in the topology, `schema` is what comes out, `inputs` the nodes it reads."""

    name: str
    schema: Schema
    inputs: tuple[Node, ...] = ()

    @property
    def input(self) -> Node:
        """The only input of a node that has one."""
        (only,) = self.inputs
        return only

    @property
    def fields(self) -> tuple[str, ...]:
        return names_of(self.schema)


@dataclass(frozen=True, kw_only=True, eq=False)
class SourceNode(Node):
    """A stream's spout; `name` is the stream's name."""

    spout: Spout


# ---- processors: no row leaves its partition -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class EachNode(Node):
    """Appends `outputs` to every tuple, zero to many times. Exactly one of `function`, `expression` is set.

    `function(*values of reads)` yields a value (one output) or a tuple (several). An `expression` gives one value, or,
    if it is an `explode`, one tuple per element.
    """

    reads: tuple[str, ...]
    outputs: Schema
    function: Any = None
    expression: Expression | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class FilterNode(Node):
    """Keeps tuples for which `function(*values of reads)`, or the boolean `expression`, is true; null drops."""

    reads: tuple[str, ...]
    function: Any = None
    expression: Expression | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class MapNode(Node):
    """Replaces every tuple by `function(*all values)`: one (`flat` false) or any number (`flat`) of new ones."""

    function: Any
    flat: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class ProjectNode(Node):
    """Keeps the fields of its schema, in that order."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PartialAggregateNode(Node):
    """Combines the tuples of one partition by `groups`; comes from a rewrite only, before a partition node."""

    groups: tuple[str, ...]
    aggregations: tuple[Aggregation, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class FinalAggregateNode(Node):
    """Combines the partial values that were brought together by a partition node; comes from a rewrite only.

    Without groups it gives exactly one tuple, also for an empty batch (`zero`): Trident's global aggregate.
    """

    groups: tuple[str, ...]
    aggregations: tuple[Aggregation, ...]


# ---- partition nodes -------------------------------------------------------------------------------------------


class Grouping(StrEnum):
    """How tuples are spread over partitions (Trident's groupings)."""

    SHUFFLE = "shuffle"
    FIELDS = "fields"
    GLOBAL = "global"


@dataclass(frozen=True, kw_only=True, eq=False)
class PartitionNode(Node):
    """Moves tuples between partitions; `keys` for Grouping.FIELDS."""

    grouping: Grouping
    keys: tuple[str, ...] = ()


# ---- aggregation, as the user said it --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """One aggregator with the fields that it reads and the one field that it gives."""

    aggregator: CombinerAggregator[Any] | ReducerAggregator[Any]
    reads: tuple[str, ...]
    output: Schema

    @property
    def combiner(self) -> CombinerAggregator[Any] | None:
        return self.aggregator if isinstance(self.aggregator, CombinerAggregator) else None


@dataclass(frozen=True, kw_only=True, eq=False)
class AggregateNode(Node):
    """Aggregates the batch by `groups` (none: the whole batch); rewritten into partial, partition and final."""

    groups: tuple[str, ...]
    aggregations: tuple[Aggregation, ...]


# ---- sinks -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class PersistNode(Node):
    """What is staged for one state: its input's tuples; `state` is how the state applies them.

    `name` is the state's name, unique in the topology, part of its definition.
    """

    state: StateSpec
