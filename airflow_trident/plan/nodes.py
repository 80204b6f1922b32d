"""The kinds of nodes of the logical plan.

Names of nodes are deterministic (`each-2`, `group_by-3`: verb and place in the topology), because Airflow parses the
DAG file again and again, and every parse must give the same plan. Kinds follow Trident's SpoutNode, ProcessorNode and
PartitionNode. A new kind is one class here, which answers everything that the plan asks (see `Node`). Each engine has
one table of the kinds that it runs, and refuses all others.

One aggregator in a plan.

The node kind for what a user's function, or a query, makes from whole DataFrames in Spark.

Nodes that belong to states: what a state gives to streams, and what is passed from one phase to the next.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.spout import Coordinator, Emitter, Split, Spout
from airflow_trident.errors import PlanError
from airflow_trident.operations.aggregators import MaxBy, MinBy, Newest
from airflow_trident.operations.expressions import JAVA_DIGITS, decimal_parts
from airflow_trident.operations.interfaces import Aggregator, CombinerAggregator, Joiner, MergeKind, ReducerAggregator
from airflow_trident.operations.user_functions import function_name
from airflow_trident.plan.graph import BeginNode, Grouping, Node, ProcessorNode, SinkNode, ordered
from airflow_trident.types import Json, Schema, ddl, names_of, select

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_trident.contracts.state import StateSpec
    from airflow_trident.operations.expressions import Expression
    from airflow_trident.operations.interfaces import CustomGrouping, GroupedMultiReducer, MultiReducer
    from airflow_trident.operations.rules import Rule
    from airflow_trident.operations.sql import SqlQuery
    from airflow_trident.operations.state_functions import QueryFunction


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """One aggregator with the fields that it reads and the fields that it gives: one field, or more for an
    `Aggregator`."""

    aggregator: CombinerAggregator[Any] | ReducerAggregator[Any] | Aggregator[Any]
    reads: tuple[str, ...]
    output: Schema

    @property
    def combiner(self) -> CombinerAggregator[Any] | None:
        return self.aggregator if isinstance(self.aggregator, CombinerAggregator) else None

    @property
    def reducer(self) -> ReducerAggregator[Any] | None:
        return self.aggregator if isinstance(self.aggregator, ReducerAggregator) else None

    @property
    def merge_kind(self) -> MergeKind | None:
        """None: only its own code can merge it."""
        return self.combiner.merge_kind if self.combiner else None

    def in_sql(self, before: Schema) -> bool:
        """Can Spark's SQL do it on raw tuples with these fields? For MaxBy it ranks by negated values, and rounds
        negated decimals of more digits."""
        if self.merge_kind is not None:
            return True
        if type(self.aggregator) is MaxBy:
            _, by = select(before, self.reads, str(self))
            digits, _ = decimal_parts(by.type) or (0, 0)
            return digits <= JAVA_DIGITS
        return type(self.aggregator) is MinBy

    def __str__(self) -> str:
        return f"{operation_text(self.aggregator)}({', '.join(self.reads)})"


def operation_text(operation: Any) -> str:
    """An operation by name; some of this package's need more than that. `describe` of a user's class is not ours."""
    return operation.describe() if isinstance(operation, Newest | Joiner) else function_name(operation)


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
        filters = "".join(f", told of {expression}" for expression in self.filters)
        return f"stream {self.name}: {self.what}, {self.spout.kind}{filters} -> ({ddl(self.schema)})"

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
class CheckNode(_PassingNode):
    """Measures the rules that gate the batch; its tuples pass unchanged. All conditions are expressions."""

    rules: tuple[Rule, ...]

    @property
    def what(self) -> str:
        return "; ".join(map(str, self.rules))


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
        needed = self.needs(self.input.schema, used)
        kept = tuple(schema_field for schema_field in self.input.schema if schema_field.name in needed)
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
        grouping = f"by ({by})" if any(self.groups) else "by partition"
        return f"{operation_text(self.reducer)} of {_names(self.inputs)} {grouping}"


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
        return f"{operation_text(self.reducer)} {f'by ({by})' if by else 'by partition'}"

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
        names = (name for aggregation in self.aggregations for name in aggregation.reads)
        return tuple(dict.fromkeys((*self.groups, *names)))

    @property
    def is_builtin(self) -> bool:
        """Can SQL or Arrow do it?"""
        return all(aggregation.merge_kind is not None for aggregation in self.aggregations)

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
        return all(aggregation.combiner is not None for aggregation in self.aggregations)

    @property
    def in_sql(self) -> bool:
        """Can Spark's SQL do it with its input?"""
        if self.merges:
            return self.is_builtin
        return all(aggregation.in_sql(self.input.schema) for aggregation in self.aggregations)

    @property
    def reads(self) -> tuple[str, ...]:
        if not self.merges:
            return super().reads
        return tuple(dict.fromkeys((*self.groups, *(aggregation.output[0].name for aggregation in self.aggregations))))

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
        if self.groups:
            return False
        from airflow_trident.operations.builtin import FirstNAggregator

        aggregators = (aggregation.aggregator for aggregation in self.aggregations)
        return all(isinstance(aggregator, FirstNAggregator) and aggregator.partial for aggregator in aggregators)

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
    return ", ".join(node.name for node in nodes)


_LONG = 300
"""The most characters of a text in the topology's definition."""
_DIGITS = 16
_PACKAGE = "airflow_trident."
"""The hex digits of a digest of code."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TransformNode(BeginNode):
    """Its output is what `function` makes from the DataFrames of its inputs. Nobody knows what the function reads, so
    all fields of all inputs are needed, and no filter passes it.

    :param names: of the inputs after the first, which are keyword arguments of the function.
    :param rowwise: the user says that every row comes from one row of the input, whatever other rows are there.
    :param version: the user's name for what the code does; part of the topology's definition.
    """

    batch_as = "one DataFrame"
    cure = (
        "Run the topology on Spark: engine='spark', which starts one in the task's process if no connection is named."
    )
    function: Any
    names: tuple[str, ...] = ()
    rowwise: bool = False
    version: str | None = None

    @property
    def _query(self) -> SqlQuery | None:
        from airflow_trident.operations.sql import SqlQuery

        return self.function if isinstance(self.function, SqlQuery) else None

    @property
    def function_text(self) -> str:
        """A description without its inputs."""
        if self._query is not None:
            return self._query.shown
        return f"{function_name(self.function)}" + (f", version {self.version}" if self.version is not None else "")

    @property
    def what(self) -> str:
        first, *others = self.inputs or (None,)
        inputs = [first.name] if isinstance(first, Node) else []
        inputs += [f"{name}={other.name}" for name, other in zip(self.names, others, strict=False) if other is not None]
        return f"{self.function_text} of DataFrames {', '.join(inputs)}{', row by row' if self.rowwise else ''}"

    @property
    def recorded(self) -> str | None:
        """Its text in the topology's definition: a query's text, or a function's version. None: no text, so a changed
        function makes no new topology."""
        if self._query is None and self.version is None:
            return None
        if len(self.function_text) <= _LONG:
            return self.function_text
        return f"{self.function_text[:_LONG]}... sha256 {hashlib.sha256(self.function_text.encode()).hexdigest()}"


def code_of(sinks: Iterable[Node]) -> dict[str, str]:
    """Node -> a digest of the source text, in this process, of the users' code that it runs while a batch is processed:
    it tells people that other code made a batch. Not part of the definition: a changed function makes no new topology.
    Code without source is left out, and so is that of this package."""
    node_digests = {}
    for node in ordered(sinks):
        written = [getattr(code, "user_function", code) for code in _users_code(node)]
        kinds: list[Any] = [code if hasattr(code, "__code__") else type(code) for code in written]
        user_kinds = [kind for kind in kinds if not str(getattr(kind, "__module__", "")).startswith(_PACKAGE)]
        digests = [_source_digest(kind) for kind in user_kinds]
        if digests and all(digests):
            node_digests[node.name] = digests[0] if len(digests) == 1 else _digest("".join(digests))
    return node_digests


def _users_code(node: Node) -> Iterator[object]:
    function = getattr(node, "function", None)
    if function is not None:
        yield function
    if isinstance(node, MultiReduceNode | MultiReduceStepNode):
        yield node.reducer
    for aggregation in getattr(node, "aggregations", ()):
        yield aggregation.aggregator
    if isinstance(node, PersistNode):
        yield from node.state.combiners


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


@lru_cache(maxsize=256)
def _source_digest(kind: Any) -> str:
    """The digest; "" if there is no source, or the file was changed since, and there is something else at the
    function's lines. Cached, because finding the source parses the file, and a drain asks for each transaction."""
    with suppress(OSError, TypeError, SyntaxError, TokenError):
        return _digest(inspect.getsource(kind))
    return ""


def changed_code(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The nodes whose code is different, as far as both digests are known."""
    return sorted(name for name in before.keys() & now.keys() if before[name] != now[name])


def recorded_transforms(sink: Node) -> tuple[str, ...]:
    """What the definition of a state says about the transforms that its rows come from."""
    texts = (upstream.recorded for upstream in ordered([sink]) if isinstance(upstream, TransformNode))
    return tuple(sorted({text for text in texts if text is not None}))


def require_partitions_known(sinks: Iterable[Node]) -> None:
    """Spark decides anew each time how many partitions come out of a transform, and which rows are together.

    :raises PlanError: a node that works on whole partitions follows a transform without a repartition in between.
    """
    for node in ordered(sinks):
        identity = isinstance(node, PartitionNode) and node.grouping is Grouping.IDENTITY
        if not (node.whole_partitions or identity):
            continue
        transform = _straight_above(node)
        if transform is not None:
            raise PlanError(
                f"{node.name} works on whole partitions, and what comes out of {transform.name} has none that mean "
                "anything: Spark cuts it as it likes",
                f"Put shuffle(), partition_by() or global_() behind {transform.name}, or aggregate by group.",
            )


def _straight_above(node: Node) -> TransformNode | None:
    waiting = list(node.inputs)
    while waiting:
        upstream = waiting.pop()
        if isinstance(upstream, TransformNode):
            return upstream
        stays = isinstance(upstream, PartitionNode) and upstream.grouping.stays
        if not upstream.moves or stays:
            waiting += upstream.inputs
    return None


@dataclass(frozen=True, kw_only=True, eq=False)
class NewValuesNode(Node):
    """What the batch changed in a state, read from it after the batch was applied (Trident: newValuesStream). Its input
    is the state's PersistNode. Everything downstream belongs to the commit phase, where this node is a source."""

    @property
    def what(self) -> str:
        return f"of state {self.persist.name}"

    @property
    def persist(self) -> PersistNode:
        persist = self.input
        assert isinstance(persist, PersistNode)
        return persist


@dataclass(frozen=True, kw_only=True, eq=False)
class StateQueryNode(ProcessorNode):
    """Appends to every tuple what `function` finds in a state (Trident: stateQuery).

    `after_commit`: the state belongs to this topology, and the query runs in the commit phase, after the batch is
    applied to the state.
    """

    reads: tuple[str, ...]
    outputs: Schema
    function: QueryFunction
    state: StateSpec
    after_commit: bool = False

    @property
    def what(self) -> str:
        when = ", after the commit" if self.after_commit else ""
        return f"{function_name(self.function)}({', '.join(self.reads)}) of state {self.state.name}{when}"


@dataclass(frozen=True, kw_only=True, eq=False)
class CarriedNode(SinkNode):
    """A stream that is handed on: from the processing phase to the commit phase as a staged batch, from one part of the
    commit phase to a later one, or to the caller of a query. `name` begins with ``~``; no state's name does."""

    @property
    def what(self) -> str:
        return ""

    @property
    def end(self) -> str:
        return f"handed on as {self.name}"


# ---- the beginning of a part of the commit phase ---------------------------------------------------------------


@dataclass(frozen=True)
class GivenTuples(Spout):
    """The source of tuples that are already in this process. `table` is None in a plan, and set when the plan is
    run."""

    fields: Schema
    description: str
    table: pa.Table | None = None

    @property
    def schema(self) -> Schema:
        return self.fields

    def coordinator(self) -> Coordinator:
        raise NotImplementedError("given tuples are no source of transactions")

    def emitter(self) -> GivenEmitter:
        assert self.table is not None, "no tuples were given"
        return GivenEmitter(self.table)

    def describe(self) -> str:
        return self.description


@dataclass(frozen=True)
class GivenEmitter(Emitter):
    table: Any

    def splits(self, metadata: Json) -> list[Split]:
        return [Split(0, None)]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        yield from self.table.to_batches()
