"""The logical plan: an immutable graph. A node knows its inputs; a stream is a handle on a node.

Nodes are named deterministically (`each-2`, `group_by-3`: verb and place in the topology), because Airflow parses the
DAG file again and again and every parse must give the same plan. Node kinds follow Trident's SpoutNode, ProcessorNode
and PartitionNode.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow_trident.operations.api import Aggregator, CombinerAggregator, ReducerAggregator
from airflow_trident.types import Schema, names_of

if TYPE_CHECKING:
    from airflow_trident.contracts.spout import Spout
    from airflow_trident.contracts.state import StateSpec
    from airflow_trident.operations.expr.tree import Expression
    from airflow_trident.operations.grouping import CustomGrouping
    from airflow_trident.operations.multireduce import GroupedMultiReducer, MultiReducer


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
    """A stream's spout; `name` is the stream's name. What rewrites tell: `schema`, the fields of the spout that are
    used, in its order; `filters`, boolean expressions of which rows may be left out that do not fulfil all."""

    spout: Spout
    filters: tuple[Expression, ...] = ()


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
class PeekNode(Node):
    """Calls `function(*values of reads)` for its effect and passes every tuple on (Trident: peek)."""

    reads: tuple[str, ...]
    function: Any


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

    Where one of the aggregations is no combiner they are raw tuples. Without groups there is a result also for an empty
    batch (`zero`): Trident's global aggregate.
    """

    groups: tuple[str, ...]
    aggregations: tuple[Aggregation, ...]

    @property
    def merges(self) -> bool:
        """Partial values, or raw tuples?"""
        return all(one.combiner is not None for one in self.aggregations)


# ---- partition nodes -------------------------------------------------------------------------------------------


class Grouping(StrEnum):
    """How tuples are spread over partitions (Trident's groupings)."""

    SHUFFLE = "shuffle"
    LOCAL_OR_SHUFFLE = "local_or_shuffle"
    """Anywhere; here: where they are."""
    FIELDS = "fields"
    GLOBAL = "global"
    BATCH_GLOBAL = "batch_global"
    """One partition per batch. A batch is one job here, so it does what GLOBAL does."""
    BROADCAST = "broadcast"
    IDENTITY = "identity"
    """From partition i to partition i."""
    CUSTOM = "custom"

    @property
    def gathers(self) -> bool:
        """Everything into one partition?"""
        return self in (Grouping.GLOBAL, Grouping.BATCH_GLOBAL)

    @property
    def repeats(self) -> bool:
        """May a tuple come out more than once, or not at all?"""
        return self in (Grouping.BROADCAST, Grouping.CUSTOM)


@dataclass(frozen=True, kw_only=True, eq=False)
class PartitionNode(Node):
    """Moves tuples between partitions; `keys` for Grouping.FIELDS, `custom` for Grouping.CUSTOM."""

    grouping: Grouping
    keys: tuple[str, ...] = ()
    custom: CustomGrouping | None = None


# ---- several inputs --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class MergeNode(Node):
    """All tuples of all inputs; fields correspond by position (Trident: TridentTopology.merge)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MultiReduceNode(Node):
    """A multi-reducer over several inputs, which comes out as its `schema` (Trident: multiReduce, join).

    `reads[i]`: what it gets of input i. `groups[i]`: the fields of input i that say which group a tuple belongs to;
    all empty: it runs once per partition, else once per group.
    """

    reducer: MultiReducer[Any] | GroupedMultiReducer[Any]
    reads: tuple[tuple[str, ...], ...]
    groups: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class UnionNode(Node):
    """The tuples of several inputs under one schema; comes from a rewrite only.

    `takes[i]`: for each field of the schema the field of input i, or None for null. `tag`: the field, if any, that gets
    the number of the input.
    """

    takes: tuple[tuple[str | None, ...], ...]
    tag: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class MultiReduceStepNode(Node):
    """A multi-reducer over a tagged union of its streams; comes from a rewrite only. Names are those of the union."""

    reducer: MultiReducer[Any] | GroupedMultiReducer[Any]
    tag: str
    reads: tuple[tuple[str, ...], ...]
    groups: tuple[str, ...]


# ---- aggregation, as the user said it --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """One aggregator with the fields that it reads and those that it gives: one, or more of an `Aggregator`."""

    aggregator: CombinerAggregator[Any] | ReducerAggregator[Any] | Aggregator[Any]
    reads: tuple[str, ...]
    output: Schema

    @property
    def combiner(self) -> CombinerAggregator[Any] | None:
        return self.aggregator if isinstance(self.aggregator, CombinerAggregator) else None

    @property
    def reducer(self) -> ReducerAggregator[Any] | None:
        return self.aggregator if isinstance(self.aggregator, ReducerAggregator) else None


@dataclass(frozen=True, kw_only=True, eq=False)
class AggregateNode(Node):
    """Aggregates the batch by `groups` (none: the whole batch); rewritten into partial, partition and final."""

    groups: tuple[str, ...]
    aggregations: tuple[Aggregation, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class PartitionAggregateNode(Node):
    """Aggregates each partition by `groups` for itself. Without groups every partition gives a result, also an empty
    one (Trident: partitionAggregate)."""

    groups: tuple[str, ...]
    aggregations: tuple[Aggregation, ...]


# ---- sinks -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class SinkNode(Node):
    """Where a stream ends: its input's tuples are staged, or handed on, under its name."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PersistNode(SinkNode):
    """What is staged for one state: its input's tuples; `state` is how the state applies them.

    `name` is the state's name, unique in the topology, part of its definition.
    """

    state: StateSpec
