"""Streams: handles on nodes of the plan, with Trident's verbs in Python spelling.

Every verb returns a new stream and leaves the old one as it is. Fields are named by text (``"a, b"``) or a list.
Functions, filters and updaters are objects of the classes in `airflow_trident.operations` or plain functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import FieldError, PlanError
from airflow_trident.operations.base import CombinerAggregator, ReducerAggregator
from airflow_trident.operations.expressions import Expression
from airflow_trident.operations.stateful import Stateful, StatefulFunction
from airflow_trident.plan.nodes import (
    AggregateNode,
    EachNode,
    FilterNode,
    Grouping,
    MapNode,
    Node,
    PartitionNode,
    PersistNode,
    ProjectNode,
)
from airflow_trident.plan.states import StateFactory, StateSpec, StateUpdater
from airflow_trident.topology.names import require_name
from airflow_trident.topology.signatures import aggregation, declared_outputs, require_callable, require_stateful
from airflow_trident.topology.updaters import MapPut
from airflow_trident.types import FieldSpec, Schema, names_of, parse_declared, parse_names, require_distinct, select

if TYPE_CHECKING:
    from airflow_trident.topology.topology import Topology

Aggregator = CombinerAggregator[Any] | ReducerAggregator[Any]


class Stream:
    """A stream of batches of tuples (Trident: Stream)."""

    def __init__(self, topology: Topology, node: Node, label: str = "") -> None:
        self._topology = topology
        self._node = node
        self._label = label

    @property
    def schema(self) -> Schema:
        return self._node.schema

    @property
    def fields(self) -> tuple[str, ...]:
        """Field names in order."""
        return names_of(self._node.schema)

    def name(self, label: str) -> Stream:
        """Put a label before the names of the nodes that follow; it shows in plans and error texts."""
        return Stream(self._topology, self._node, label)

    # ---- partition-local ---------------------------------------------------------------------------------------

    def each(self, inputs: FieldSpec | Expression, function: Any, outputs: FieldSpec | None = None) -> Stream:
        """Append what `function` gives to every tuple: none drops the tuple, several repeat it.

        ``each("line", Split(), "word string")`` calls ``function(line)`` for an iterable of values (tuples, if more
        than one field is declared). ``each(split(col("line"), " "), "words")`` appends a column expression, which
        stays in the JVM on Spark; ``explode(...)`` gives one tuple per element.

        :param outputs: new fields with types; names alone where types are annotated or follow from the expression.
        :raises FieldError: unknown or doubled field, or a type that is not known.
        """
        if isinstance(inputs, Expression):
            return self._each_expression(inputs, function)
        if outputs is None:
            raise PlanError(
                "each() needs the fields that the function appends",
                'As in each("line", Split(), "word string").',
            )
        reads = self._select("each", inputs)
        if isinstance(function, Expression):
            return self._each_expression(function, outputs)
        require_callable("each", function, "execute")
        new = declared_outputs(function, "execute", outputs, many=True)
        return self._append(EachNode, "each", reads=reads, outputs=new, function=function)

    def _each_expression(self, expression: Expression, outputs: FieldSpec) -> Stream:
        self._select("each", list(expression.reads))
        new = parse_declared(outputs, [expression.dtype(self.schema)])
        if len(new) != 1:
            raise FieldError(f"the expression {expression} gives one field and {len(new)} are named", "Name one.")
        return self._append(EachNode, "each", reads=expression.reads, outputs=new, expression=expression)

    def filter(self, inputs: FieldSpec | Expression | Any, filter: Any = None) -> Stream:
        """Keep the tuples for which `filter` is true.

        ``filter("word", NotEmpty())``, ``filter(NotEmpty())`` (all fields), ``filter(col("n") > 0)``; null drops.
        """
        if isinstance(inputs, Expression):
            return self._filter_expression(inputs)
        if filter is None:
            inputs, filter = list(self.fields), inputs
        if isinstance(filter, Expression):
            return self._filter_expression(filter)
        require_callable("filter", filter, "is_keep")
        reads = self._select("filter", inputs)
        return self._then(FilterNode, "filter", self.schema, reads=reads, function=filter)

    def _filter_expression(self, expression: Expression) -> Stream:
        self._select("filter", list(expression.reads))
        given = expression.dtype(self.schema)
        if given != "boolean" or expression.is_explode:
            raise FieldError(f"filter needs a boolean and {expression} is {given}", "Compare it with something.")
        return self._then(FilterNode, "filter", self.schema, reads=expression.reads, expression=expression)

    def map(self, function: Any, outputs: FieldSpec | None = None) -> Stream:
        """Replace every tuple by ``function(*values)``: one value, or a tuple of values if there are several fields.

        :param outputs: the new fields; without them names and types stay.
        """
        return self._map("map", function, outputs, flat=False)

    def flat_map(self, function: Any, outputs: FieldSpec | None = None) -> Stream:
        """Replace every tuple by each element of ``function(*values)``."""
        return self._map("flat_map", function, outputs, flat=True)

    def _map(self, verb: str, function: Any, outputs: FieldSpec | None, *, flat: bool) -> Stream:
        require_callable(verb, function, "execute")
        new = self.schema if outputs is None else declared_outputs(function, "execute", outputs, many=flat)
        return self._then(MapNode, verb, new, function=function, flat=flat)

    def project(self, keep: FieldSpec) -> Stream:
        """Keep these fields, in this order."""
        names = self._select("project", keep)
        require_distinct(names)
        return self._then(ProjectNode, "project", select(self.schema, names, "project"))

    # ---- repartitioning ----------------------------------------------------------------------------------------

    def partition_by(self, fields: FieldSpec) -> Stream:
        """Bring tuples with equal values of `fields` into one partition."""
        keys = self._select("partition_by", fields)
        return self._then(PartitionNode, "partition_by", self.schema, grouping=Grouping.FIELDS, keys=keys)

    def shuffle(self) -> Stream:
        """Spread tuples evenly over the partitions."""
        return self._then(PartitionNode, "shuffle", self.schema, grouping=Grouping.SHUFFLE)

    # ---- aggregation -------------------------------------------------------------------------------------------

    def group_by(self, fields: FieldSpec) -> GroupedStream:
        """Group by `fields`; nothing moves until an aggregation follows (Trident: GroupedStream)."""
        keys = self._select("group_by", fields)
        require_distinct(keys)
        return GroupedStream(self, keys)

    def aggregate(self, *what: Any) -> Stream:
        """Aggregate the whole batch into one tuple, also when it is empty: ``aggregate(Count(), "n")``,
        ``aggregate("price", Sum(), "total")``."""
        return self._aggregate((), what)

    def persistent_aggregate(self, state: StateFactory, *what: Any, name: str | None = None) -> TridentState:
        """Aggregate all batches into one stored row: ``persistent_aggregate(state, Count(), "n")``.

        :param name: the state's name, part of the topology's definition; default: the name of the output field.
        """
        return self._persistent_aggregate((), state, what, name)

    def partition_persist(
        self,
        state: StateFactory,
        inputs: FieldSpec,
        updater: StateUpdater | None = None,
        *,
        keys: FieldSpec,
        values: FieldSpec | None = None,
        name: str | None = None,
    ) -> TridentState:
        """Give every batch's tuples to an updater of the state, in the commit phase (Trident: partitionPersist).

        :param inputs: the fields that the updater gets.
        :param updater: ``updater(map_state, tuples)``; default: :class:`MapPut`, the last tuple of a key wins.
        :param keys: those of `inputs` that are the key of the stored map.
        :param values: the stored value fields with types; default: the rest of `inputs`.
        """
        staged = select(self.schema, self._select("partition_persist", inputs), "partition_persist")
        key_fields = select(staged, parse_names(keys), "partition_persist keys")
        rest = tuple(field for field in staged if field not in key_fields)
        value_fields = parse_declared(values) if values is not None else rest
        if not value_fields:
            raise PlanError("partition_persist has no value fields", "Name inputs that are no keys, or values=...")
        put = MapPut(names_of(staged), names_of(key_fields), names_of(value_fields))
        spec = StateSpec(
            topology=self._topology.name,
            name=name or value_fields[0].name,
            keys=key_fields,
            values=value_fields,
            staged=staged,
            factory=_require_factory(state),
            updater=updater if updater is not None else put,
        )
        return self._keeping(names_of(staged))._persist(spec)

    def stateful(
        self,
        inputs: FieldSpec,
        function: StatefulFunction[Any, Any],
        *,
        provider: StateFactory,
        keys: FieldSpec = (),
        partitions: int = 1,
        name: str | None = None,
    ) -> TridentState:
        """Run a function with a key-value state of its own over every batch, in the commit phase (Storm:
        IStatefulBolt). Exactly once, in the order of transactions; it has no output stream.

        ``stateful("word", CountWords(), provider=KeyValueStates("sqlite", {"path": "counts.db"}))``

        :param inputs: the fields that `execute` gets.
        :param keys: those of `inputs` by which tuples are spread over the partitions.
        :param partitions: how many states the function has; part of the topology's definition.
        :param name: of the state; default: the name of the function's class.
        """
        require_stateful(function)
        staged = select(self.schema, self._select("stateful", inputs), "stateful")
        key_fields = select(staged, parse_names(keys), "stateful keys")
        if partitions < 1 or (partitions > 1 and not key_fields):
            raise PlanError(
                f"stateful() got {partitions} partitions and {len(key_fields)} keys",
                "With more than one partition, keys=... says which state a tuple belongs to.",
            )
        spec = StateSpec(
            topology=self._topology.name,
            name=name or type(function).__name__,
            keys=key_fields,
            values=(),
            staged=staged,
            factory=_require_factory(provider),
            stateful=Stateful(function=function, partitions=partitions),
        )
        return self._keeping(names_of(staged))._persist(spec)

    # ---- how verbs make nodes ----------------------------------------------------------------------------------

    def _select(self, verb: str, names: FieldSpec) -> tuple[str, ...]:
        wanted = parse_names(names)
        select(self.schema, wanted, f"{verb} in topology {self._topology.name!r}")
        return wanted

    def _then(self, kind: Callable[..., Node], verb: str, schema: Schema, **arguments: Any) -> Stream:
        name = self._topology.next_name(f"{self._label}.{verb}" if self._label else verb)
        node = kind(name=name, schema=schema, inputs=(self._node,), **arguments)
        return Stream(self._topology, node, self._label)

    def _append(self, kind: Callable[..., Node], verb: str, *, outputs: Schema, **arguments: Any) -> Stream:
        require_distinct((*self.fields, *names_of(outputs)))
        return self._then(kind, verb, (*self.schema, *outputs), outputs=outputs, **arguments)

    def _keeping(self, names: tuple[str, ...]) -> Stream:
        return self if names == self.fields else self.project(list(names))

    def _aggregate(self, groups: tuple[str, ...], what: tuple[Any, ...]) -> Stream:
        one = aggregation("aggregate", self.schema, what)
        require_distinct((*groups, *names_of(one.output)))
        schema = (*select(self.schema, groups, "group_by"), *one.output)
        return self._then(AggregateNode, "aggregate", schema, groups=groups, aggregations=(one,))

    def _persistent_aggregate(
        self, groups: tuple[str, ...], state: StateFactory, what: tuple[Any, ...], name: str | None
    ) -> TridentState:
        one = aggregation("persistent_aggregate", self.schema, what)
        require_distinct((*groups, *names_of(one.output)))
        keys = select(self.schema, groups, "group_by")
        combiner = one.combiner
        staged_names = (*groups, *one.reads)
        stream = self._aggregate(groups, what) if combiner else self._keeping(tuple(dict.fromkeys(staged_names)))
        spec = StateSpec(
            topology=self._topology.name,
            name=name or one.output[0].name,
            keys=keys,
            values=one.output,
            staged=stream.schema,
            factory=_require_factory(state),
            combiners=(combiner,) if combiner else (),
            reducer=None if isinstance(one.aggregator, CombinerAggregator) else one.aggregator,
            reads=one.reads,
        )
        return stream._persist(spec)

    def _persist(self, spec: StateSpec) -> TridentState:
        require_name("state", spec.name)
        if spec.factory.capabilities.keyvalue != (spec.stateful is not None):
            raise PlanError(
                f"state {spec.name!r} cannot be kept in {spec.factory.describe()}",
                "Stateful functions need KeyValueStates(...), and nothing else can use it.",
            )
        sink = PersistNode(name=spec.name, schema=self.schema, inputs=(self._node,), state=spec)
        self._topology.add_sink(sink)
        return TridentState(spec)


class GroupedStream:
    """A stream with group fields (Trident: GroupedStream)."""

    def __init__(self, stream: Stream, keys: tuple[str, ...]) -> None:
        self._stream = stream
        self._keys = keys

    def aggregate(self, *what: Any) -> Stream:
        """One tuple per group of the batch: ``group_by("word").aggregate(Count(), "n")``."""
        return self._stream._aggregate(self._keys, what)

    def persistent_aggregate(self, state: StateFactory, *what: Any, name: str | None = None) -> TridentState:
        """Aggregate all batches into one stored row per group."""
        return self._stream._persistent_aggregate(self._keys, state, what, name)


class TridentState:
    """A handle on a state of the topology (Trident: TridentState)."""

    def __init__(self, spec: StateSpec) -> None:
        self.spec = spec

    @property
    def name(self) -> str:
        return self.spec.name


def _require_factory(state: object) -> StateFactory:
    if not isinstance(state, StateFactory):
        raise PlanError(f"{state!r} is no state", 'Give a state factory, as in SqliteState("counts.db").')
    return state
