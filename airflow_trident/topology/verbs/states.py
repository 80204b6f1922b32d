"""Verbs that end a stream in a state.

Built-in updaters for `partition_persist`.

Verbs that query states (Trident: stateQuery, newStaticState).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_trident.contracts.state import StateFactory, StateSpec
from airflow_trident.contracts.updater import MapState, Updater
from airflow_trident.errors import PlanError
from airflow_trident.names import require_name
from airflow_trident.operations.aggregators import Newest, comparable, groupable, two_values
from airflow_trident.operations.equality import canonical_key, same
from airflow_trident.operations.state_functions import MakesStateful, Stateful, StatefulFunction
from airflow_trident.plan.commit.levels import in_commit_phase
from airflow_trident.plan.nodes import (
    AggregateNode,
    Aggregation,
    NewValuesNode,
    PersistNode,
)
from airflow_trident.topology.signatures import (
    bolt_outputs,
    named_aggregations,
    persistent_aggregations,
    require_callable,
    require_factory,
    require_stateful,
)
from airflow_trident.topology.stream_base import S, some, staged_fields, then
from airflow_trident.topology.verbs.aggregate import Scope, aggregate
from airflow_trident.topology.verbs.rows import keeping
from airflow_trident.types import (
    REAL_TYPES,
    Field,
    FieldSpec,
    Schema,
    is_nested,
    names_of,
    parse_declared,
    parse_names,
    require_distinct,
    select,
)

if TYPE_CHECKING:
    from airflow_trident.protocol.file_partitions import FilePartitions
    from airflow_trident.protocol.partitions import Partitions


@dataclass(frozen=True, kw_only=True)
class MapPut:
    """Stores each tuple's value fields under its key fields.

    :param state: name of the state, for the error.
    :param staged: the fields of the tuples, including `keys` and `values`.
    """

    state: str
    staged: tuple[str, ...]
    keys: tuple[str, ...]
    values: tuple[str, ...]
    takes_groups: ClassVar[bool] = True
    """May several transactions call it one after the other, in one step of the store?"""

    def __call__(self, state: MapState, tuples: Iterable[tuple[Any, ...]]) -> None:
        """:raises UserCodeError: two tuples of the batch have the same key and different values."""
        chosen = self.chosen(tuples)
        state.multi_put(list(chosen), list(chosen.values()))

    def chosen(self, tuples: Iterable[tuple[Any, ...]]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """The value of each key.

        :raises UserCodeError: as `__call__`. The store cannot know which one is newer, since engines give no order.
        """
        keys, values = ([self.staged.index(name) for name in names] for names in (self.keys, self.values))
        chosen: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for row in tuples:
            value = tuple([row[place] for place in values])
            key = canonical_key([row[place] for place in keys])
            previous = chosen.setdefault(key, value)
            if previous is not value and not same(previous, value):
                raise two_values(
                    self.state,
                    dict(zip(self.keys, key, strict=True)),
                    dict(zip(self.values, previous, strict=True)),
                    dict(zip(self.values, value, strict=True)),
                    "and different values, and nothing says which one counts",
                    'Name the fields that say which is newer, as in partition_persist(..., order_by="updated_at"), or '
                    "aggregate by the key first.",
                )
        return chosen


def partition_persist(
    stream: S,
    state: StateFactory,
    inputs: FieldSpec,
    updater: Updater | None,
    keys: FieldSpec | None,
    values: FieldSpec | None,
    order_by: FieldSpec | None,
    name: str | None,
) -> PersistNode:
    staged = staged_fields(stream, "partition_persist", inputs)
    if require_factory(state).capabilities.appends:
        if any(argument is not None for argument in (keys, values, updater, order_by)):
            raise PlanError(
                f"partition_persist into {state.describe()} got keys, values, order_by or an updater",
                "A sink appends the tuples as they are: name inputs only.",
            )
        return _persist_rows(stream, state, staged, name)
    if keys is None:
        raise PlanError("partition_persist has no keys", 'Name those of the inputs that are keys, as in keys="id".')
    key_fields = select(staged, parse_names(keys), "partition_persist keys")
    rest = tuple(field for field in staged if field not in key_fields)
    value_fields = parse_declared(values) if values is not None else rest
    if not value_fields:
        raise PlanError("partition_persist has no value fields", "Name inputs that are no keys, or values=...")
    require_distinct(names_of((*key_fields, *value_fields)))
    spec = StateSpec(
        topology=stream.topology.name,
        name=name or value_fields[0].name,
        keys=key_fields,
        values=value_fields,
        staged=staged,
        factory=require_factory(state),
        updater=updater,
        inputs=() if updater is None else (", ".join(names_of(staged)),),
    )
    if updater is not None:
        require_callable("partition_persist", updater, "update_state")
    if updater is None:
        return _put(stream, spec, () if order_by is None else some(stream, "order_by", order_by, "Leave it out."))
    if order_by is not None:
        raise PlanError(
            f"partition_persist of state {spec.name!r} got an updater and order_by",
            "An updater gets every tuple: let it choose, or leave it out.",
        )
    return persist(keeping(stream, names_of(staged)), spec)


def _put(stream: S, spec: StateSpec, order_by: tuple[str, ...]) -> PersistNode:
    """Without an updater, a tuple's values replace those of its key."""
    for field in spec.values:
        if field not in spec.staged:
            staged_type = {staged_field.name: staged_field.type for staged_field in spec.staged}.get(field.name)
            raise PlanError(
                f"state {spec.name!r} could never be given its value field {field}: "
                + (f"the input is {field.name} {staged_type}" if staged_type else f"no input is named {field.name!r}"),
                "Without an updater the value fields are inputs with their types: convert or add the field before, "
                "or give one.",
            )
    put = MapPut(state=spec.name, staged=names_of(spec.staged), keys=spec.key_names, values=spec.value_names)
    newest = _newest(stream, spec, order_by, "partition_persist") if order_by else stream
    return persist(keeping(newest, names_of(spec.staged)), replace(spec, updater=put))


def _newest(stream: S, spec: StateSpec, order_by: tuple[str, ...], verb: str) -> S:
    """Keep the newest tuple of each key."""
    groupable(f"{verb} keys", spec.keys)
    for field in select(stream.schema, order_by, "order_by"):
        comparable("order_by", field)
    rest = tuple(name for name in names_of(spec.staged) if name not in spec.key_names)
    rest = tuple(dict.fromkeys((*rest, *(name for name in order_by if name not in spec.key_names))))
    reads = (*spec.key_names, *rest)
    newest = Newest(
        fields=reads,
        keys=len(spec.keys),
        order=tuple(reads.index(name) for name in order_by),
        state=spec.name,
        not_null=spec.rewrites,
    )
    outputs = select(stream.schema, rest, "order_by")
    return then(
        stream,
        AggregateNode,
        "newest",
        (*spec.keys, *outputs),
        groups=spec.key_names,
        aggregations=(Aggregation(aggregator=newest, reads=reads, output=outputs),),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMode:
    """The arguments of `persist_table` that say how a stream is written."""

    mode: str
    keys: FieldSpec | None = None
    order_by: FieldSpec | None = None
    deleted: str | None = None

    def require(self, table: StateFactory) -> None:
        """:raises PlanError: the arguments contradict each other or the table."""
        if self.mode == "upsert":
            raise PlanError(
                "persist_table got mode='upsert', which is gone",
                'Use mode="rewrite" for one row of each key; or append, and let a view choose the newest row.',
            )
        if self.mode not in ("append", "overwrite", "rewrite"):
            raise PlanError(
                f"persist_table got mode={self.mode!r}",
                'There are mode="append", mode="overwrite" and mode="rewrite".',
            )
        if self.mode == "rewrite" and not table.capabilities.rewrites:
            raise PlanError(
                f"persist_table got mode='rewrite' and {table.describe()}, whose rows cannot be replaced so",
                "Give it a DeltaTable or an IcebergTable.",
            )
        if self.mode == "overwrite" and not getattr(table, "partition_by", ()):
            raise PlanError(
                f"persist_table got mode='overwrite' and {table.describe()}, which has no partitions",
                "Name the columns whose values say what a batch replaces: DeltaTable(..., partition_by='day').",
            )
        of_keys = {"keys": self.keys, "order_by": self.order_by, "deleted": self.deleted}
        misplaced = [name for name, value in of_keys.items() if value is not None]
        if not self.by_key and misplaced:
            raise PlanError(
                f"persist_table got mode={self.mode!r} and {', '.join(misplaced)}",
                f'Say mode="rewrite", or leave {"them" if len(misplaced) > 1 else "it"} out.',
            )
        if self.by_key and self.keys is None:
            raise PlanError(
                f"persist_table got mode={self.mode!r} and no keys",
                'Name the fields whose row is replaced, as in keys="id".',
            )

    @property
    def by_key(self) -> bool:
        return self.mode == "rewrite"


def persist_table(stream: S, table: Any, how: TableMode, name: str | None) -> PersistNode:
    if not isinstance(table, StateFactory) or not table.capabilities.by_reference:
        raise PlanError(
            f"persist_table got {table.describe() if isinstance(table, StateFactory) else repr(table)}",
            'Give a table, as in persist_table(DeltaTable("/lake/sales")).',
        )
    replaced = stream.topology.replaced
    if replaced is not None and how.mode != "overwrite":
        raise PlanError(
            f"persist_table got mode={how.mode!r} in {replaced.binding}",
            f"Leave it out: a batch replaces its {replaced.noun}.",
        )
    if replaced is not None and not getattr(table, "partition_by", ()):
        raise _not_partitioned(f"persist_table got {table.describe()}, which", replaced.column)
    how.require(table)
    if how.by_key:
        return _persist_rewritten(stream, table, how, name)
    return _persist_rows(stream, table, stream.schema, name, overwrites=how.mode == "overwrite")


def _table_keys(stream: S, how: TableMode) -> Schema:
    keys = select(stream.schema, some(stream, "persist_table keys", how.keys or (), "Name one."), "persist_table keys")
    if how.deleted is not None and Field(how.deleted, "boolean") not in stream.schema:
        raise PlanError(
            f"persist_table got deleted={how.deleted!r}, and the stream has no such boolean field",
            f"Its fields are {', '.join(map(str, stream.schema))}.",
        )
    if how.deleted in names_of(keys):
        raise PlanError(f"persist_table got deleted={how.deleted!r}, which is a key, too", "Name another field.")
    return keys


def _persist_rewritten(stream: S, table: StateFactory, how: TableMode, name: str | None) -> PersistNode:
    """Copy-on-write: one tuple of each key, which replaces the rows of its key. The processing phase finds wrong
    keys."""
    keys = _table_keys(stream, how)
    for field in keys:
        if field.type in REAL_TYPES or is_nested(field.type):
            raise PlanError(
                f"persist_table got mode='rewrite' and the key {field.name} of type {field.type}",
                "Rows are found by keys that are equal to the last bit: make it a text, a decimal or a whole number.",
            )
    spec = StateSpec(
        topology=stream.topology.name,
        name=name or "rows",
        keys=keys,
        values=tuple(field for field in stream.schema if field not in keys),
        staged=stream.schema,
        factory=table,
        partition_by=parse_names(getattr(table, "partition_by", ())),
        rewrites=True,
        deleted=how.deleted,
    )
    order_by = () if how.order_by is None else some(stream, "order_by", how.order_by, "Leave it out.")
    return persist(keeping(_newest(stream, spec, order_by, "persist_table"), stream.fields), spec)


def _persist_rows(
    stream: S,
    sink: StateFactory,
    staged: Schema,
    name: str | None,
    *,
    overwrites: bool = False,
) -> PersistNode:
    spec = StateSpec(
        topology=stream.topology.name,
        name=name or "rows",
        keys=(),
        values=staged,
        staged=staged,
        factory=sink,
        partition_by=parse_names(getattr(sink, "partition_by", ())),
        overwrites=overwrites,
    )
    return persist(keeping(stream, names_of(staged)), spec)


def stateful(
    stream: S,
    inputs: FieldSpec,
    function: StatefulFunction[Any, Any] | MakesStateful,
    provider: StateFactory,
    keys: FieldSpec,
    outputs: FieldSpec,
    partitions: int,
    name: str | None,
) -> PersistNode:
    staged = staged_fields(stream, "stateful", inputs)
    name = name or type(function).__name__
    emits = parse_declared(outputs)
    if isinstance(function, MakesStateful):
        function, declared = function.stateful_of(
            topology=stream.topology.name, name=name, source=stream.node.name, fields=names_of(staged)
        )
        emits = bolt_outputs(name, declared, emits)
    require_stateful(function, emits=bool(emits))
    key_fields = select(staged, parse_names(keys), "stateful keys")
    if partitions < 1 or (partitions > 1 and not key_fields):
        raise PlanError(
            f"stateful() got {partitions} partitions and {len(key_fields)} keys",
            "With more than one partition, keys=... says which state a tuple belongs to.",
        )
    spec = StateSpec(
        topology=stream.topology.name,
        name=name,
        keys=key_fields,
        values=(),
        staged=staged,
        factory=require_factory(provider),
        stateful=Stateful(function=function, partitions=partitions),
        emits=emits,
        inputs=(", ".join(names_of(staged)),),
    )
    return persist(keeping(stream, names_of(staged)), spec)


def persistent_aggregate(
    stream: S,
    groups: tuple[str, ...],
    state: StateFactory,
    arguments: tuple[Any, ...],
    name: str | None,
    by_output: Mapping[str, Any],
) -> PersistNode:
    arguments = named_aggregations("persistent_aggregate", arguments, by_output)
    several = persistent_aggregations(stream.schema, arguments)
    first = several[0]
    outputs = tuple(field for aggregation in several for field in aggregation.output)
    require_distinct((*groups, *names_of(outputs)))
    keys = select(stream.schema, groups, "group_by")
    combiners = tuple(aggregation.combiner for aggregation in several if aggregation.combiner is not None)
    staged_names = (*groups, *first.reads)
    if combiners:
        batch = aggregate(stream, Scope.ALL, groups, arguments, {})
    else:
        batch = keeping(stream, tuple(dict.fromkeys(staged_names)))
    spec = StateSpec(
        topology=stream.topology.name,
        name=name or outputs[0].name,
        keys=keys,
        values=outputs,
        staged=batch.schema,
        factory=require_factory(state),
        combiners=combiners,
        reducer=first.reducer,
        reads=first.reads,
        inputs=tuple(", ".join(aggregation.reads) for aggregation in several),
    )
    return persist(batch, spec)


def persist(stream: S, spec: StateSpec) -> PersistNode:
    require_name("state", spec.name)
    if spec.factory.capabilities.keyvalue != (spec.stateful is not None):
        raise PlanError(
            f"state {spec.name!r} cannot be kept in {spec.factory.describe()}",
            "Stateful functions need KeyValueStates(...), and nothing else can use it.",
        )
    if spec.factory.capabilities.appends and (spec.combiners or spec.reducer is not None):
        raise PlanError(
            f"state {spec.name!r} cannot be kept in {spec.factory.describe()}, which only appends rows",
            "Use partition_persist(sink, fields), or another state.",
        )
    spec.factory.validate(spec)
    spec = replace(spec, in_order=in_commit_phase(stream.node), partition=stream.topology.replaced)
    if spec.partition is not None:
        _require_replaceable(spec, spec.partition)
    sink = PersistNode(name=spec.name, schema=stream.schema, inputs=(stream.node,), state=spec)
    stream.topology.add_sink(sink)
    return sink


def _require_replaceable(spec: StateSpec, partitions: Partitions | FilePartitions) -> None:
    """In a topology that is bound to partitions, or whose files are partitions.

    :raises PlanError: the state cannot replace the rows of a partition, or they cannot be found in it.
    """
    column, capabilities = partitions.column, spec.factory.capabilities
    subject = f"state {spec.name!r} ({spec.factory.describe()})"
    if not capabilities.partitions:
        raise PlanError(
            f"{subject} cannot replace a {partitions.noun}, as {partitions.binding} needs it",
            "Use a DeltaTable, IcebergTable, SqliteState, PostgresState, SqlState, TableSink or MemoryState.",
        )
    if spec.in_order or spec.stateful is not None or spec.committer is not None:
        raise PlanError(
            f"{subject} depends on the order of transactions, and {partitions.noun}s come in any order, again and "
            "again",
            f"Keep the results of each {partitions.step}, and ask for their sum when you need it.",
        )
    if spec.updater is not None and not isinstance(spec.updater, MapPut):
        raise PlanError(
            f"{subject} has an updater, and the keys of a {partitions.noun} that it changes are unknown",
            "Use an aggregator, or partition_persist without an updater.",
        )
    if partitions.field not in spec.staged:
        raise PlanError(
            f"{subject} does not get the partition column {partitions.field} as it is",
            f"Keep the field {column!r} in the stream: it says which rows a batch replaces.",
        )
    if capabilities.by_reference and column not in spec.partition_by:
        raise _not_partitioned(subject, column)
    if not capabilities.appends and column not in spec.key_names:
        raise PlanError(
            f"{subject} has keys without {column!r}: which part of a value came from a {partitions.noun} cannot be "
            "found",
            f"Group by it, too, as in group_by('{column}, ...'). A total over all is a query of these rows.",
        )


def _not_partitioned(subject: str, column: str) -> PlanError:
    return PlanError(f"{subject} is not partitioned by {column!r}", f"Give the table partition_by={column!r}.")


def new_values(stream: S, sink: PersistNode) -> S:
    """What each batch changed in the state."""
    from airflow_trident.plan.commit.window_updater import WindowUpdater

    spec = sink.state
    if spec.stateful is not None and not spec.emits:
        raise PlanError(
            f"state {spec.name!r} belongs to a stateful function and gives no new values",
            'Name what it emits, as in stateful(..., outputs="word string, n long").',
        )
    if spec.partition is not None:
        raise PlanError(
            f"state {spec.name!r} of {spec.partition.binding} gives no new values: a batch replaces them",
            "Take the stream itself; or follow the state in an unbound topology.",
        )
    if spec.factory.capabilities.appends:
        raise PlanError(
            f"state {spec.name!r} is kept in {spec.factory.describe()}, which appends rows and gives no new values",
            "Take the stream itself: what is appended is what comes.",
        )
    fired = spec.updater.fired if isinstance(spec.updater, WindowUpdater) else None
    schema = spec.emits or (fired if fired is not None else (*spec.keys, *spec.values))
    require_distinct(field.name for field in schema)
    name = stream.topology.next_name("new_values")
    return replace(stream, node=NewValuesNode(name=name, schema=schema, inputs=(sink,)), label="")
