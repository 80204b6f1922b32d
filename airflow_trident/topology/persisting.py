"""Verbs that end a stream in a state."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import StateFactory, StateSpec, Updater
from airflow_trident.errors import PlanError
from airflow_trident.operations.comparing import comparable, groupable
from airflow_trident.operations.newest import Newest
from airflow_trident.operations.stateful import Stateful, StatefulFunction
from airflow_trident.plan.commit.phase import in_commit_phase
from airflow_trident.plan.nodes import AggregateNode, Aggregation, PersistNode
from airflow_trident.topology.aggregating import Aggregating
from airflow_trident.topology.names import require_name
from airflow_trident.topology.signatures import persistent_aggregations, require_stateful
from airflow_trident.topology.state import TridentState
from airflow_trident.topology.updaters import MapPut
from airflow_trident.types import FieldSpec, Schema, names_of, parse_declared, parse_names, require_distinct, select

if TYPE_CHECKING:
    from airflow_trident.topology.stream import Stream


class Persisting(Aggregating):
    """Trident's persistentAggregate and partitionPersist."""

    def persistent_aggregate(self, state: StateFactory, *what: Any, name: str | None = None) -> TridentState:
        """Aggregate all batches into one stored row: ``persistent_aggregate(state, Count(), "n")``.

        :param name: the state's name, part of the topology's definition; default: the name of the output field.
        """
        return self._persistent_aggregate((), state, what, name)

    def partition_persist(
        self,
        state: StateFactory,
        inputs: FieldSpec,
        updater: Updater | None = None,
        *,
        keys: FieldSpec | None = None,
        values: FieldSpec | None = None,
        order_by: FieldSpec | None = None,
        name: str | None = None,
    ) -> TridentState:
        """Give every batch's tuples to an updater of the state, in the commit phase (Trident: partitionPersist).

        ``partition_persist(state, "id, city, changed_at", keys="id", order_by="changed_at")`` keeps the newest city of
        each id.

        :param inputs: the fields that the updater gets.
        :param updater: a function ``updater(map_state, tuples)``, or a :class:`StateUpdater`; default: :class:`MapPut`,
            a tuple's values replace those that its key had. Two tuples of one batch with the same key and different
            values are then an error (UserCodeError), unless `order_by` says which one is newer.
        :param keys: those of `inputs` that are the key of the stored map. Sinks (FileSink, TableSink) append the tuples
            as they are: they take neither keys, nor values, nor an updater.
        :param values: the stored value fields with types; default: the rest of `inputs`. Without an updater they are
            some of the inputs.
        :param order_by: without an updater: the fields of the stream that say which of several tuples of a key in one
            batch is the newest, the most important first; null is the lowest value. Between batches the later
            transaction is the newer one.
        :raises PlanError: what is named does not go together, or could never be stored.
        """
        staged = select(self.schema, self._select("partition_persist", inputs), "partition_persist")
        if require_factory(state).capabilities.appends:
            if any(one is not None for one in (keys, values, updater, order_by)):
                raise PlanError(
                    f"partition_persist into {state.describe()} got keys, values, order_by or an updater",
                    "A sink appends the tuples as they are: name inputs only.",
                )
            return self._persist_rows(state, staged, name)
        if keys is None:
            raise PlanError("partition_persist has no keys", 'Name those of the inputs that are keys, as in keys="id".')
        key_fields = select(staged, parse_names(keys), "partition_persist keys")
        rest = tuple(field for field in staged if field not in key_fields)
        value_fields = parse_declared(values) if values is not None else rest
        if not value_fields:
            raise PlanError("partition_persist has no value fields", "Name inputs that are no keys, or values=...")
        require_distinct(names_of((*key_fields, *value_fields)))
        spec = StateSpec(
            topology=self._topology.name,
            name=name or value_fields[0].name,
            keys=key_fields,
            values=value_fields,
            staged=staged,
            factory=require_factory(state),
            updater=updater,
            inputs=() if updater is None else (", ".join(names_of(staged)),),
        )
        if updater is None:
            return self._put(spec, () if order_by is None else self._some("order_by", order_by, "Leave it out."))
        if order_by is not None:
            raise PlanError(
                f"partition_persist of state {spec.name!r} got an updater and order_by",
                "An updater gets every tuple: let it choose, or leave it out.",
            )
        return self._keeping(names_of(staged))._persist(spec)

    def _put(self, spec: StateSpec, order_by: tuple[str, ...]) -> TridentState:
        """Upserts: without an updater a tuple's values replace those of its key."""
        for field in spec.values:
            if field not in spec.staged:
                given = {one.name: one.type for one in spec.staged}.get(field.name)
                raise PlanError(
                    f"state {spec.name!r} could never be given its value field {field}: "
                    + (f"the input is {field.name} {given}" if given else f"no input is named {field.name!r}"),
                    "Without an updater the value fields are inputs with their types: convert or add the field before, "
                    "or give one.",
                )
        put = MapPut(
            state=spec.name,
            staged=names_of(spec.staged),
            keys=spec.key_names,
            values=spec.value_names,
        )
        newest = self._newest(spec, order_by) if order_by else self
        return newest._keeping(names_of(spec.staged))._persist(replace(spec, updater=put))

    def _newest(self, spec: StateSpec, order_by: tuple[str, ...]) -> Stream:
        """One tuple of each key."""
        groupable("partition_persist keys", spec.keys)
        for field in select(self.schema, order_by, "order_by"):
            comparable("order_by", field)
        rest = tuple(name for name in names_of(spec.staged) if name not in spec.key_names)
        rest = tuple(dict.fromkeys((*rest, *(name for name in order_by if name not in spec.key_names))))
        reads = (*spec.key_names, *rest)
        newest = Newest(
            fields=reads,
            keys=len(spec.keys),
            order=tuple(reads.index(name) for name in order_by),
            state=spec.name,
        )
        outputs = select(self.schema, rest, "order_by")
        return self._then(
            AggregateNode,
            "newest",
            (*spec.keys, *outputs),
            groups=spec.key_names,
            aggregations=(Aggregation(aggregator=newest, reads=reads, output=outputs),),
        )

    def _persist_rows(self, sink: StateFactory, staged: Schema, name: str | None) -> TridentState:
        spec = StateSpec(
            topology=self._topology.name,
            name=name or "rows",
            keys=(),
            values=staged,
            staged=staged,
            factory=sink,
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
            factory=require_factory(provider),
            stateful=Stateful(function=function, partitions=partitions),
            inputs=(", ".join(names_of(staged)),),
        )
        return self._keeping(names_of(staged))._persist(spec)

    def _persistent_aggregate(
        self, groups: tuple[str, ...], state: StateFactory, what: tuple[Any, ...], name: str | None
    ) -> TridentState:
        several = persistent_aggregations(self.schema, what)
        first = several[0]
        outputs = tuple(field for one in several for field in one.output)
        require_distinct((*groups, *names_of(outputs)))
        keys = select(self.schema, groups, "group_by")
        combiners = tuple(one.combiner for one in several if one.combiner is not None)
        staged_names = (*groups, *first.reads)
        stream = self._aggregate(groups, what) if combiners else self._keeping(tuple(dict.fromkeys(staged_names)))
        spec = StateSpec(
            topology=self._topology.name,
            name=name or outputs[0].name,
            keys=keys,
            values=outputs,
            staged=stream.schema,
            factory=require_factory(state),
            combiners=combiners,
            reducer=first.reducer,
            reads=first.reads,
            inputs=tuple(", ".join(one.reads) for one in several),
        )
        return stream._persist(spec)

    def _persist(self, spec: StateSpec) -> TridentState:
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
        spec = replace(spec, in_order=in_commit_phase(self._node))
        sink = PersistNode(name=spec.name, schema=self.schema, inputs=(self._node,), state=spec)
        self._topology.add_sink(sink)
        return TridentState(self, sink)


def require_factory(state: object) -> StateFactory:
    if not isinstance(state, StateFactory):
        raise PlanError(f"{state!r} is no state", 'Give a state factory, as in SqliteState("counts.db").')
    return state
