"""What the user says: a named topology of streams and states (Trident: TridentTopology)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.spout import Spout
from airflow_trident.contracts.state import StateFactory, StateSpec
from airflow_trident.errors import PlanError
from airflow_trident.plan.commit.nodes import NewValuesNode
from airflow_trident.plan.commit.windows import WindowUpdater
from airflow_trident.plan.compile import compile_plan
from airflow_trident.plan.graph import ordered
from airflow_trident.plan.guarantees import Shortfall, require_exactly_once, shortfalls
from airflow_trident.plan.joins import join_notes
from airflow_trident.plan.nodes import PersistNode, SourceNode
from airflow_trident.plan.resources import NodeSettings, PlanSettings
from airflow_trident.plan.stages import Plan
from airflow_trident.protocol.records import Definition, SpoutDefinition, StateDefinition
from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.topology.combining import joined, merged, multi_reduced
from airflow_trident.topology.names import at_least_one, positive, require_name
from airflow_trident.topology.persisting import require_factory
from airflow_trident.topology.queries import Queries
from airflow_trident.topology.querying import StaticState
from airflow_trident.topology.stream import GroupedStream, Stream
from airflow_trident.types import FieldSpec, parse_declared

if TYPE_CHECKING:
    from airflow_trident.operations.multireduce import (
        GroupedMultiReducer,
        JoinOutFieldsMode,
        JoinType,
        MultiReducer,
    )


class Topology:
    """Streams that begin at spouts and end in states, under one name that owns a ledger.

    Making one opens nothing, so that it can stand in a DAG file. Every mistake in fields and types is raised on the
    line that makes it.

    :param name: letters, digits, ``_ . -``, beginning with a letter; unique among all topologies of one ledger root.
    :param exactly_once: refuse spouts and states that are not exactly once together. False: allow them; plan, log and
        page then say so.
    """

    def __init__(self, name: str, *, exactly_once: bool = True) -> None:
        self.name = require_name("topology", name)
        self.exactly_once = exactly_once
        self._sources: dict[str, SourceNode] = {}
        self._sinks: dict[str, PersistNode] = {}
        self._counter = 0
        self._plan: Plan | None = None
        self._settings = PlanSettings()
        self.queries = Queries(name)

    def new_stream(self, name: str, spout: Spout) -> Stream:
        """Begin a stream at a spout (Trident: newStream(txId, spout)).

        :param name: unique in the topology; the ledger keeps the spout's metadata under it.
        :raises PlanError: the name is taken, `spout` is no spout, or one that a state cannot take exactly once.
        """
        require_name("stream", name)
        if name in self._sources:
            raise PlanError(f"topology {self.name!r} has two streams named {name!r}", "Give each its own name.")
        if not isinstance(spout, Spout):
            raise PlanError(
                f"stream {name!r} of topology {self.name!r} begins at {spout!r}, which is no spout",
                "Give it a FileSpout or another subclass of Spout.",
            )
        if self.exactly_once:
            require_exactly_once(self.name, {name: spout}, self.states)
        node = SourceNode(name=name, schema=spout.schema, spout=spout)
        self._sources[name] = node
        self._plan = None
        return Stream(self, node)

    def new_drpc_stream(self, name: str, args: FieldSpec = "args string") -> Stream:
        """Begin a query stream (Trident: newDRPCStream): ``new_drpc_stream("count_of", "word string")``. What is made
        of it last is the answer; :func:`airflow_trident.query` asks.

        :param args: the query's arguments, fields with types; default: one text, as Trident's.
        """
        return Stream(self, self.queries.add(name, args))

    def new_static_state(
        self, state: StateFactory, name: str, *, keys: FieldSpec, values: FieldSpec, topology: str | None = None
    ) -> StaticState:
        """A state that streams ask and never change (Trident: newStaticState): what another topology keeps, or a
        factory of your own.

        :param name: of the state in its store.
        :param keys: its key fields with types, as the topology that keeps it has them.
        :param values: its value fields with types.
        :param topology: whose state it is; default: this one's name.
        :raises ConfigurationError: the store cannot have such fields.
        """
        spec = StateSpec(
            topology=topology or self.name,
            name=require_name("state", name),
            keys=parse_declared(keys),
            values=parse_declared(values),
            staged=(),
            factory=require_factory(state),
        )
        spec.factory.validate(spec)
        return StaticState(spec)

    # ---- several streams ---------------------------------------------------------------------------------------

    def merge(self, streams: Sequence[Stream], out_fields: FieldSpec | None = None) -> Stream:
        """All tuples of several streams (Trident: merge). Fields correspond by position, not by name.

        :param out_fields: names; default: those of the first stream.
        :raises FieldError: number or types of the fields differ.
        """
        return merged(self, streams, out_fields)

    def multi_reduce(
        self,
        input_fields: Sequence[FieldSpec],
        streams: Sequence[Stream] | Sequence[GroupedStream],
        reducer: MultiReducer[Any] | GroupedMultiReducer[Any],
        out_fields: FieldSpec,
    ) -> Stream:
        """What a reducer makes of the tuples of several streams, partition by partition or, of grouped streams, group
        by group (Trident: multiReduce).

        :param input_fields: for each stream the fields that the reducer gets.
        :param out_fields: all fields that come out, with types unless `reducer.output_types` has them.
        """
        return multi_reduced(self, input_fields, streams, reducer, out_fields)

    def join(
        self,
        streams: Sequence[Stream],
        join_fields: Sequence[FieldSpec],
        out_fields: FieldSpec,
        join_type: JoinType | str | Sequence[JoinType | str] = "inner",
        mode: JoinOutFieldsMode | str = "compact",
    ) -> Stream:
        """The tuples of several streams with equal join fields, within a batch (Trident: join). Null equals null.

        ``join([orders, users], ["user_id", "id"], "user_id, amount, name")``

        :param join_fields: those of each stream, in corresponding order.
        :param out_fields: names of what comes out: with mode "compact" the join fields once and then the other fields
            of every stream, with "preserve" all fields of every stream.
        :param join_type: for all streams, or a list with one for each: "outer", that stream may be missing, and its
            fields are null then; "inner", it must be there. A left outer join is ``["inner", "outer"]``.
        :raises FieldError: an unknown field, join fields of different types, or a wrong number of names.
        """
        return joined(self, streams, join_fields, out_fields, join_type, mode)

    # ---- what the streams say to their topology ----------------------------------------------------------------

    def next_name(self, verb: str) -> str:
        """A node name that is the same in every parse of the DAG file: verb and place."""
        self._counter += 1
        return f"{verb}-{self._counter}"

    def add_sink(self, sink: PersistNode) -> None:
        """:raises PlanError: the state name is taken, or the state cannot take a stream exactly once."""
        if sink.name in self._sinks:
            raise PlanError(
                f"topology {self.name!r} has two states named {sink.name!r}",
                'Name them apart, as in persistent_aggregate(..., name="counts").',
            )
        self.queries.require_none(sink)
        if self.exactly_once:
            require_exactly_once(self.name, self.spouts, {sink.name: sink.state})
        self._sinks[sink.name] = sink
        self._plan = None

    def set_node(self, name: str, **said: Any) -> None:
        """Parallelism or resources of a node; see :class:`NodeSettings`."""
        nodes = self._settings.nodes
        node = replace(nodes.get(name, NodeSettings()), **said)
        self._settings = replace(self._settings, nodes={**nodes, name: node})
        self._plan = None

    # ---- parallelism and resources -----------------------------------------------------------------------------

    def set_max_task_parallelism(self, partitions: int) -> Topology:
        """No stage has more partitions (Storm: topology.max.task.parallelism)."""
        self._settings = replace(self._settings, max_parallelism=at_least_one("set_max_task_parallelism", partitions))
        self._plan = None
        return self

    def set_resource_defaults(self, *, cpu_percent: float | None = None, memory_mb: float | None = None) -> Topology:
        """Resources of nodes that have none of their own (Trident: setResourceDefaults)."""
        for amount in (cpu_percent, memory_mb):
            positive("set_resource_defaults", 1 if amount is None else amount)
        self._settings = replace(self._settings, default=NodeSettings(cpu_percent=cpu_percent, memory_mb=memory_mb))
        self._plan = None
        return self

    def spark_conf(self) -> dict[str, str]:
        """Settings of a Spark application that the loads of the largest stages ask for: whole cores per task, and
        memory of the Python process beside it. Applications that tasks and commands start get them, below what their
        own `spark_conf` says. A Connect server is an application already: give them to it."""
        stages = self.compile().stages
        conf = {}
        if cpu := max((stage.cpu_percent or 0 for stage in stages), default=0):
            conf["spark.task.cpus"] = str(math.ceil(cpu / 100))
        if memory := max((stage.memory_mb or 0 for stage in stages), default=0):
            conf["spark.executor.pyspark.memory"] = f"{math.ceil(memory)}m"
        return conf

    # ---- what it means -----------------------------------------------------------------------------------------

    @property
    def spouts(self) -> dict[str, Spout]:
        """Stream name -> spout, in the order of the DAG file."""
        return {name: node.spout for name, node in self._sources.items()}

    @property
    def states(self) -> dict[str, StateSpec]:
        """State name -> specification, in the order of the DAG file."""
        # Not when a state is declared: an opaque spout, or who asks for its new values, may come after it.
        told = {node.persist.name for node in ordered(self._sinks.values()) if isinstance(node, NewValuesNode)}
        return {
            name: replace(
                sink.state,
                opaque=self.opaque and sink.state.factory.capabilities.opaque,
                told=name in told and not isinstance(sink.state.updater, WindowUpdater),
            )
            for name, sink in self._sinks.items()
        }

    @property
    def opaque(self) -> bool:
        """Is one of the spouts opaque?"""
        return any(spout.kind is SpoutKind.OPAQUE for spout in self.spouts.values())

    @property
    def shortfalls(self) -> tuple[Shortfall, ...]:
        """Streams and states that are not exactly once together; none unless ``exactly_once=False``."""
        return shortfalls(self.spouts, self.states)

    def compile(self) -> Plan:
        """The plan that engines run.

        :raises PlanError: no state, or a stream that reaches none.
        """
        if self._plan is None:
            sources, sinks = tuple(self._sources.values()), tuple(self._sinks.values())
            plan = compile_plan(self.name, sources, sinks, self._settings)
            short = (f"not exactly once: {one}" for one in self.shortfalls)
            self._plan = replace(plan, notes=(*short, *join_notes(sinks)))
        return self._plan

    def definition(self) -> Definition:
        """What the ledger and the states depend on; see :class:`Definition`."""
        fall_short = {one.state: (one.note,) for one in reversed(self.shortfalls)}
        return Definition(
            spouts={
                name: SpoutDefinition(text=type(spout).__name__, kind=spout.kind) for name, spout in self.spouts.items()
            },
            states={
                name: StateDefinition(text=spec.describe(), notes=fall_short.get(name, ()), inputs=spec.inputs)
                for name, spec in self.states.items()
            },
        )

    def __repr__(self) -> str:
        return f"Topology({self.name!r}, streams={list(self._sources)}, states={list(self._sinks)})"
