"""The kinds of nodes of the logical plan.

Names of nodes are deterministic (`each-2`, `group_by-3`: verb and place in the topology), because Airflow parses the
DAG file again and again, and every parse must give the same plan. Kinds follow Trident's SpoutNode, ProcessorNode and
PartitionNode. A new kind is one class here, which answers everything that the plan asks (see `Node`). Each engine has
one table of the kinds that it runs, and refuses all others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_trident.operations.builtin import FirstNAggregator
from airflow_trident.operations.calls.function_names import function_name
from airflow_trident.plan.aggregation import Aggregation as Aggregation  # noqa: PLC0414 - the engines take it from here
from airflow_trident.plan.aggregation import said
from airflow_trident.plan.graph import BeginNode, ProcessorNode, SinkNode
from airflow_trident.plan.graph import Node as Node  # noqa: PLC0414 - the engines take it from here
from airflow_trident.plan.groupings import Grouping as Grouping  # noqa: PLC0414 - the engines take it from here
from airflow_trident.types import Schema, ddl, names_of

if TYPE_CHECKING:
    from airflow_trident.contracts.spout import Spout
    from airflow_trident.contracts.state import StateSpec
    from airflow_trident.operations.expr.tree import Expression
    from airflow_trident.operations.grouping import CustomGrouping
    from airflow_trident.operations.multireduce import GroupedMultiReducer, MultiReducer


@dataclass(frozen=True, kw_only=True, eq=False)
class SourceNode(BeginNode):
    """A stream's spout; `name` is the stream's name. Rewrites set two fields: `schema`, the used fields of the spout,
    in its order; and `filters`, boolean expressions: the spout may leave out rows for which not all of them are
    true."""

    narrows = True
    spout: Spout
    filters: tuple[Expression, ...] = ()

    @property
    def what(self) -> str:
        return self.spout.describe()

    def describe(self) -> str:
        told = "".join(f", told of {one}" for one in self.filters)
        return f"stream {self.name}: {self.what}, {self.spout.kind}{told} -> ({ddl(self.schema)})"

    def narrowed(self, used: frozenset[str]) -> Node:
        return self._only(used)


# ---- processors: no row leaves its partition -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class EachNode(ProcessorNode):
    """Appends `outputs` to every tuple, zero to many times. Exactly one of `function`, `expression` is set.

    `function(*values of reads)` yields a value (one output) or a tuple (several). An `expression` gives one value, or,
    if it is an `explode`, one tuple per element.
    """

    reads: tuple[str, ...]
    outputs: Schema
    function: Any = None
    expression: Expression | None = None

    @property
    def what(self) -> str:
        return str(self.expression) if self.expression is not None else _call(self.function, self.reads)

    def needs(self, before: Schema, used: frozenset[str], place: int = 0) -> frozenset[str]:
        return (used - set(names_of(self.outputs))) | set(self.reads)

    def narrowed(self, used: frozenset[str]) -> Node:
        return self.with_schema((*self.input.schema, *self.outputs))


@dataclass(frozen=True, kw_only=True, eq=False)
class _PassingNode(ProcessorNode):
    """Gives tuples unchanged."""

    reads: tuple[str, ...]

    def needs(self, before: Schema, used: frozenset[str], place: int = 0) -> frozenset[str]:
        return used | set(self.reads)

    def narrowed(self, used: frozenset[str]) -> Node:
        return self.with_schema(self.input.schema)


@dataclass(frozen=True, kw_only=True, eq=False)
class FilterNode(_PassingNode):
    """Keeps tuples for which `function(*values of reads)`, or the boolean `expression`, is true; null drops."""

    function: Any = None
    expression: Expression | None = None

    @property
    def what(self) -> str:
        return str(self.expression) if self.expression is not None else _call(self.function, self.reads)


@dataclass(frozen=True, kw_only=True, eq=False)
class PeekNode(_PassingNode):
    """Calls `function(*values of reads)` for its effect and passes every tuple on (Trident: peek)."""

    function: Any

    @property
    def what(self) -> str:
        return _call(self.function, self.reads)


@dataclass(frozen=True, kw_only=True, eq=False)
class MapNode(ProcessorNode):
    """Replaces every tuple by `function(*all values)`: one (`flat` false) or any number (`flat`) of new ones."""

    function: Any
    flat: bool

    @property
    def what(self) -> str:
        return _call(self.function, ("*",))


@dataclass(frozen=True, kw_only=True, eq=False)
class ProjectNode(ProcessorNode):
    """Keeps the fields of its schema, in that order. `implied`: not written by the user; another verb or a rewrite
    needs it."""

    narrows = True
    implied: bool = False

    @property
    def what(self) -> str:
        return ""

    def needs(self, before: Schema, used: frozenset[str], place: int = 0) -> frozenset[str]:
        return used

    def narrowed(self, used: frozenset[str]) -> Node:
        chosen = self._only(used)
        return chosen.input if chosen.schema == chosen.input.schema else chosen


# ---- partition nodes -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class PartitionNode(Node):
    """Moves tuples between partitions; `keys` for Grouping.FIELDS, `custom` for Grouping.CUSTOM."""

    narrows = True
    grouping: Grouping
    keys: tuple[str, ...] = ()
    custom: CustomGrouping | None = None

    @property
    def what(self) -> str:
        return self.grouping.what(self.keys, self.custom)

    @property
    def moves(self) -> bool:
        return self.grouping is not Grouping.COLOCATED

    def needs(self, before: Schema, used: frozenset[str], place: int = 0) -> frozenset[str]:
        return used | set(self.keys) if self.custom is None else frozenset(names_of(before))

    def narrowed(self, used: frozenset[str]) -> Node:
        """Adds a projection before it, because moving unneeded fields costs."""
        kept = tuple(one for one in self.input.schema if one.name in self.needs(self.input.schema, used))
        if kept == self.input.schema:
            return self.with_schema(kept)
        before = ProjectNode(name=f"{self.name}.project", schema=kept, inputs=(self.input,), implied=True)
        return replace(self, schema=kept, inputs=(before,))


# ---- several inputs --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class MergeNode(Node):
    """All tuples of all inputs; fields correspond by position (Trident: TridentTopology.merge). Becomes a union."""

    @property
    def what(self) -> str:
        return f"of {_names(self.inputs)}"


@dataclass(frozen=True, kw_only=True, eq=False)
class UnionNode(BeginNode):
    """The tuples of several inputs under one schema; only rewrites make it.

    `takes[i]`: for each field of the schema the field of input i, or None for null. `tag`: the field, if any, that gets
    the number of the input.
    """

    narrows = True
    takes: tuple[tuple[str | None, ...], ...]
    tag: str = ""

    @property
    def what(self) -> str:
        return f"of {_names(self.inputs)}"

    def needs(self, before: Schema, used: frozenset[str], place: int = 0) -> frozenset[str]:
        takes = zip(self.schema, self.takes[place], strict=True)
        return frozenset(name for field, name in takes if name is not None and field.name in used)

    def narrowed(self, used: frozenset[str]) -> Node:
        places = [place for place, field in enumerate(self.schema) if field.name in used]
        if len(places) == len(self.schema):
            return self
        takes = tuple(tuple(names[place] for place in places) for names in self.takes)
        return replace(self, schema=tuple(self.schema[place] for place in places), takes=takes)


@dataclass(frozen=True, kw_only=True, eq=False)
class MultiReduceNode(Node):
    """A multi-reducer over several inputs, which gives tuples of its `schema` (Trident: multiReduce, join). A rewrite
    makes a union and a `MultiReduceStepNode` from it.

    `reads[i]`: the fields that it gets of input i. `groups[i]`: the fields of input i that say to which group a tuple
    belongs; all empty: it runs once per partition, otherwise once per group.
    """

    reducer: MultiReducer[Any] | GroupedMultiReducer[Any]
    reads: tuple[tuple[str, ...], ...]
    groups: tuple[tuple[str, ...], ...]

    @property
    def what(self) -> str:
        by = "; ".join(", ".join(keys) for keys in self.groups)
        where = f"by ({by})" if any(self.groups) else "by partition"
        return f"{said(self.reducer)} of {_names(self.inputs)} {where}"


@dataclass(frozen=True, kw_only=True, eq=False)
class MultiReduceStepNode(ProcessorNode):
    """A multi-reducer over a tagged union of its streams; only rewrites make it. Names are those of the union."""

    @property
    def whole_partitions(self) -> bool:
        return True

    reducer: MultiReducer[Any] | GroupedMultiReducer[Any]
    tag: str
    reads: tuple[tuple[str, ...], ...]
    groups: tuple[str, ...]

    @property
    def what(self) -> str:
        by = ", ".join(self.groups)
        return f"{said(self.reducer)} {f'by ({by})' if by else 'by partition'}"

    @property
    def runs_without_tuples(self) -> bool:
        return not self.groups


# ---- aggregation -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class _Aggregating(Node):
    groups: tuple[str, ...]
    aggregations: tuple[Aggregation, ...]

    @property
    def what(self) -> str:
        by = f"by ({', '.join(self.groups)})" if self.groups else "of the batch"
        return f"{', '.join(map(str, self.aggregations))} {by}"

    @property
    def reads(self) -> tuple[str, ...]:
        """The fields of its input that it reads."""
        names = (name for one in self.aggregations for name in one.reads)
        return tuple(dict.fromkeys((*self.groups, *names)))

    @property
    def is_builtin(self) -> bool:
        """Can SQL or Arrow do it?"""
        return all(one.merge_kind is not None for one in self.aggregations)

    def needs(self, before: Schema, used: frozenset[str], place: int = 0) -> frozenset[str]:
        return frozenset(self.reads)


@dataclass(frozen=True, kw_only=True, eq=False)
class AggregateNode(_Aggregating):
    """Aggregates the batch by `groups` (none: the whole batch). A rewrite makes partial, partition and final nodes from
    it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PartialAggregateNode(_Aggregating, ProcessorNode):
    """Combines the tuples of one partition by `groups`; only a rewrite makes it, before a partition node."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FinalAggregateNode(_Aggregating, ProcessorNode):
    """Combines partial values that a partition node brought together; only rewrites make it.

    If one of the aggregations is not a combiner, it gets raw tuples instead. Without groups there is a result even for
    an empty batch (`zero`): Trident's global aggregate.
    """

    @property
    def merges(self) -> bool:
        """Does it get partial values, not raw tuples?"""
        return all(one.combiner is not None for one in self.aggregations)

    @property
    def in_sql(self) -> bool:
        """Can Spark's SQL do it with its input?"""
        return self.is_builtin if self.merges else all(one.in_sql(self.input.schema) for one in self.aggregations)

    @property
    def reads(self) -> tuple[str, ...]:
        if not self.merges:
            return super().reads
        return tuple(dict.fromkeys((*self.groups, *(one.output[0].name for one in self.aggregations))))

    @property
    def runs_without_tuples(self) -> bool:
        return not self.groups


@dataclass(frozen=True, kw_only=True, eq=False)
class PartitionAggregateNode(_Aggregating, ProcessorNode):
    """Aggregates each partition by `groups`, separately. Without groups each partition gives a result, even if empty
    (Trident: partitionAggregate)."""

    @property
    def whole_partitions(self) -> bool:
        return not self.only_narrows

    @property
    def only_narrows(self) -> bool:
        """Does it only reduce the tuples that move to another aggregation, which would give the same without it?"""
        aggregators = (one.aggregator for one in self.aggregations)
        return not self.groups and all(isinstance(one, FirstNAggregator) and one.partial for one in aggregators)

    @property
    def what(self) -> str:
        by = f" by ({', '.join(self.groups)})" if self.groups else ""
        return f"{', '.join(map(str, self.aggregations))}{by} of each partition"

    @property
    def runs_without_tuples(self) -> bool:
        return not self.groups and not self.only_narrows


# ---- sinks -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class PersistNode(SinkNode):
    """What is staged for one state: the tuples of its input; `state` says how the state applies them.

    `name` is the state's name, unique in the topology, part of its definition.
    """

    state: StateSpec

    @property
    def what(self) -> str:
        return self.state.describe()

    def describe(self) -> str:
        return f"state {self.name}: {self.what}"

    @property
    def split_by(self) -> tuple[str, ...]:
        """With copy-on-write, rows that delete their key are in files of their own: the table gets none of them."""
        deleted = self.state.deleted if self.state.rewrites else None
        return (*self.state.partition_by, *([] if deleted is None else [deleted]))

    @property
    def by_reference(self) -> bool:
        return self.state.factory.capabilities.by_reference

    @property
    def aggregates(self) -> bool:
        return bool(self.state.combiners)

    @property
    def end(self) -> str:
        return f"{'applied to' if self.state.in_order else 'staged for'} state {self.name}"


def _call(function: Any, reads: tuple[str, ...]) -> str:
    return f"{function_name(function)}({', '.join(reads)})"


def _names(nodes: tuple[Node, ...]) -> str:
    return ", ".join(one.name for one in nodes)
