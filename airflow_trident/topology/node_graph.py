"""The nodes of a topology: its streams add them, and the plan and the definition are made from them.

Query streams of a topology: their nodes and their results (Trident: newDRPCStream).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from airflow_trident.contracts.spout import Spout
from airflow_trident.contracts.state import StateKind, StateSpec
from airflow_trident.errors import PlanError
from airflow_trident.names import at_least_one, positive, require_flags, require_name
from airflow_trident.plan.checks import Shortfall, join_notes, overwrite_notes, require_exactly_once, shortfalls
from airflow_trident.plan.compile import compile_plan, compile_query
from airflow_trident.plan.graph import Node, NodeSettings, PlanSettings, ordered
from airflow_trident.plan.nodes import (
    CheckNode,
    GivenTuples,
    NewValuesNode,
    PersistNode,
    SourceNode,
    recorded_transforms,
)
from airflow_trident.plan.stages import Plan
from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.types import FieldSpec, Schema, parse_declared

if TYPE_CHECKING:
    from airflow_trident.protocol.file_partitions import FilePartitions
    from airflow_trident.protocol.partitions import Partitions
    from airflow_trident.protocol.topologies import Definition


class QueryStreams:
    """The query streams of one topology. The result of a query is the last node that was added downstream of it."""

    def __init__(self, topology: str) -> None:
        self._topology = topology
        self._sources: dict[str, SourceNode] = {}
        self._results: dict[str, Node] = {}
        self._nodes: dict[int, tuple[Node, str | None]] = {}
        """By `id`: the node, and its query or None. The entry keeps the node alive, so that its id stays unique."""

    def add(self, name: str, args: FieldSpec) -> SourceNode:
        """:raises PlanError: the name is taken. :raises FieldError: an argument has no type."""
        require_name("query", name)
        if name in self._sources:
            raise PlanError(f"topology {self._topology!r} has two queries named {name!r}", "Give each its own name.")
        schema = parse_declared(args)
        source = SourceNode(name=name, schema=schema, spout=GivenTuples(schema, f"arguments of query {name}"))
        self._sources[name] = source
        self._nodes[id(source)] = (source, name)
        self._results[name] = source
        return source

    def note(self, node: Node) -> None:
        """Record a node of a stream.

        :raises PlanError: the node joins a query with other streams (Storm: "Cannot join DRPC stream with streams
            originating from other spouts").
        """
        if id(node) in self._nodes:
            return
        owners = {self.owner(input_node) for input_node in node.inputs}
        if len(owners) > 1:
            names = " and ".join(sorted(repr(query) for query in owners if query is not None))
            raise PlanError(
                f"{node.name} of topology {self._topology!r} brings query {names} together with other streams",
                "A query reads states only: let it ask a state that the other stream ends in.",
            )
        owner = next(iter(owners), None)
        self._nodes[id(node)] = (node, owner)
        if owner is not None:
            self._results[owner] = node

    def owner(self, node: Node) -> str | None:
        """The query that a node belongs to."""
        return self._nodes.get(id(node), (node, None))[1]

    def require_none(self, sink: Node) -> None:
        """:raises PlanError: a query stream ends in a state."""
        name = self.owner(sink.inputs[0])
        if name is not None:
            raise PlanError(
                f"query {name!r} of topology {self._topology!r} ends in state {sink.name!r}",
                "A query changes nothing: it has no transaction that would make the change exactly once.",
            )

    @property
    def names(self) -> dict[str, Schema]:
        """Query -> its arguments."""
        return {name: source.schema for name, source in self._sources.items()}

    def compile(self, name: str) -> Plan:
        """The plan of a query.

        :raises PlanError: there is no query of that name.
        """
        if name not in self._sources:
            names = ", ".join(map(repr, self._sources)) or "none"
            raise PlanError(f"topology {self._topology!r} has no query {name!r}", f"It has {names}.")
        return compile_query(self._topology, self._sources[name], self._results[name])


def _require_bindable(name: str, partitions: Partitions, *, exactly_once: bool) -> None:
    """:raises PlanError: these are no partitions, or not for such a topology."""
    from airflow_trident.protocol.partitions import Partitions as Calendar

    if not isinstance(partitions, Calendar):
        raise PlanError(
            f"topology {name!r} is bound to {partitions!r}", 'Give partitions=Partitions("day", begin=...).'
        )
    if not exactly_once:
        raise PlanError(
            f"topology {name!r} is bound to partitions with exactly_once=False",
            "Leave exactly_once out: a partition is replaced exactly once.",
        )


class NodeGraph:
    """The part of a :class:`~airflow_trident.topology.topology.Topology` that streams use. It does not know the class
    of streams, so that streams can import it."""

    def __init__(
        self, name: str, *, exactly_once: bool = True, asset: str = "", partitions: Partitions | None = None
    ) -> None:
        self.name = require_name("topology", name)
        require_flags(f"topology {name!r}", exactly_once=exactly_once)
        self.asset = asset
        self.exactly_once = exactly_once
        self.partitions = partitions
        if partitions is not None:
            _require_bindable(self.name, partitions, exactly_once=exactly_once)
        self._sources: dict[str, SourceNode] = {}
        self._sinks: dict[str, PersistNode] = {}
        self.checks: list[CheckNode] = []
        self._first_spouts: dict[SpoutKind, tuple[str, Spout]] = {}
        self._first_states: dict[StateKind, tuple[str, StateSpec]] = {}
        """One of each kind stands for all: a topology of many streams is built in a time that grows with them."""
        self._counter = 0
        self._changed()
        self._settings = PlanSettings()
        self.queries = QueryStreams(name)

    # ---- what the streams say ----------------------------------------------------------------------------------

    def next_name(self, verb: str) -> str:
        """A node name of verb and number, which is the same in every parse of the DAG file."""
        self._counter += 1
        return f"{verb}-{self._counter}"

    def add_source(self, name: str, spout: Spout) -> SourceNode:
        """:raises PlanError: the name is taken, `spout` is no spout, or a state cannot take it exactly once."""
        require_name("stream", name)
        if name in self._sources:
            raise PlanError(f"topology {self.name!r} has two streams named {name!r}", "Give each its own name.")
        if not isinstance(spout, Spout):
            raise PlanError(
                f"stream {name!r} of topology {self.name!r} begins at {spout!r}, which is no spout",
                "Give it a FileSpout or another subclass of Spout.",
            )
        if self.exactly_once:
            require_exactly_once(self.name, {name: spout}, dict(self._first_states.values()))
        spout = spout.placed(self.name, name)
        if self.partitions is not None:
            from airflow_trident.contracts.bound_spout import bound

            spout = bound(name, spout, self.partitions)
        elif spout.needs_partitions:
            raise PlanError(
                f"stream {name!r} begins at {spout.describe()}, and topology {self.name!r} is not bound to partitions",
                f'Bind it: Topology({self.name!r}, partitions=Partitions("day", begin="2026-01-01")).',
            )
        self._require_alone(name, spout)
        node = SourceNode(name=name, schema=spout.schema, spout=spout)
        self._sources[name] = node
        self._first_spouts.setdefault(spout.kind, (name, spout))
        self._changed()
        return node

    def _require_alone(self, name: str, spout: Spout) -> None:
        """:raises PlanError: several streams, and the rows of one are replaced by the names of its files."""
        others = [other for other, node in self._sources.items() if spout.replaced or node.spout.replaced]
        if others:
            raise PlanError(
                f"topology {self.name!r} has the streams {others[0]!r} and {name!r}, and the files of one of them "
                "replace their rows",
                "Give it a topology of its own: states find the rows of a file by its name.",
            )

    def add_sink(self, sink: PersistNode) -> None:
        """:raises PlanError: the state name is taken, or the state cannot take a stream exactly once."""
        if sink.name in self._sinks:
            raise PlanError(
                f"topology {self.name!r} has two states named {sink.name!r}",
                'Name them apart, as in persistent_aggregate(..., name="counts").',
            )
        self.queries.require_none(sink)
        if self.exactly_once:
            require_exactly_once(self.name, dict(self._first_spouts.values()), {sink.name: sink.state})
        if (replaced := self.replaced) is not None and sink.state.partition != replaced:
            raise PlanError(
                f"state {sink.name!r} cannot replace a {replaced.noun}, as {replaced.binding} needs it",
                "Keep it in a state of another topology.",
            )
        self._sinks[sink.name] = sink
        self._first_states.setdefault(sink.state.factory.capabilities.kind, (sink.name, sink.state))
        self._changed()

    def add_check(self, node: CheckNode) -> None:
        """A node that must lead to a state: else its rules would never be measured."""
        self.checks.append(node)
        self._changed()

    def set_node(self, name: str, **changes: Any) -> None:
        """Parallelism or resources of a node; see :class:`NodeSettings`."""
        nodes = self._settings.nodes
        node = replace(nodes.get(name, NodeSettings()), **changes)
        self._settings = replace(self._settings, nodes={**nodes, name: node})
        self._changed()

    def _changed(self) -> None:
        """Forget the cached plan, states and definition."""
        self._plan: Plan | None = None
        self._states: dict[str, StateSpec] | None = None
        self._definition: Definition | None = None

    # ---- parallelism and resources -----------------------------------------------------------------------------

    def set_max_task_parallelism(self, partitions: int) -> Self:
        """No stage has more partitions (Storm: topology.max.task.parallelism)."""
        self._settings = replace(self._settings, max_parallelism=at_least_one("set_max_task_parallelism", partitions))
        self._changed()
        return self

    def set_resource_defaults(self, *, cpu_percent: float | None = None, memory_mb: float | None = None) -> Self:
        """Resources of nodes without their own (Trident: setResourceDefaults)."""
        for amount in (cpu_percent, memory_mb):
            positive("set_resource_defaults", 1 if amount is None else amount)
        self._settings = replace(self._settings, default=NodeSettings(cpu_percent=cpu_percent, memory_mb=memory_mb))
        self._changed()
        return self

    def spark_conf(self) -> dict[str, str]:
        """Settings of a Spark application that suit the largest stages: cores per task, and memory of the Python
        process. Applications of tasks and commands get these settings; their own `spark_conf` takes precedence. For a
        Connect server, set them yourself."""
        stages = self.compile().stages
        conf = {}
        if cpu := max((stage.cpu_percent or 0 for stage in stages), default=0):
            conf["spark.task.cpus"] = str(math.ceil(cpu / 100))
        if memory := max((stage.memory_mb or 0 for stage in stages), default=0):
            conf["spark.executor.pyspark.memory"] = f"{math.ceil(memory)}m"
        return conf

    # ---- what it means -----------------------------------------------------------------------------------------

    @property
    def replaced(self) -> Partitions | FilePartitions | None:
        """A batch replaces one of these, or several, in every state. None: it replaces nothing."""
        first = next(iter(self._sources.values()), None)
        return self.partitions or (None if first is None else first.spout.replaced)

    @property
    def spouts(self) -> dict[str, Spout]:
        """Stream name -> spout, in the order of the DAG file."""
        return {name: node.spout for name, node in self._sources.items()}

    @property
    def states(self) -> dict[str, StateSpec]:
        """State name -> specification, in the order of the DAG file."""
        if self._states is None:
            # Not decided when a state is declared: an opaque spout, or a stream of its new values, may follow later.
            streamed = {
                node.persist.name
                for node in ordered(self._sinks.values())
                if isinstance(node, NewValuesNode) and not _has_windows(node.persist.state)
            }
            opaque = self.opaque
            self._states = {
                name: replace(
                    sink.state,
                    opaque=opaque and sink.state.factory.capabilities.opaque,
                    told=name in streamed,
                    partition=self.replaced,
                )
                for name, sink in self._sinks.items()
            }
        return dict(self._states)

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

        :raises PlanError: there is no state, or a stream ends in none.
        """
        if self._plan is None:
            sources, sinks = tuple(self._sources.values()), tuple(self._sinks.values())
            plan = compile_plan(self.name, sources, sinks, self._settings, tuple(self.checks))
            short = (f"not exactly once: {shortfall}" for shortfall in self.shortfalls)
            spout_notes = (f"stream {name}: {note}" for name, spout in self.spouts.items() for note in spout.notes)
            work = ((sink.name, sink.state.committer) for sink in sinks)
            committer_notes = (
                f"committer {name} {committer.note}" for name, committer in work if committer is not None
            )
            self._plan = replace(
                plan, notes=(*short, *spout_notes, *join_notes(sinks), *overwrite_notes(sinks), *committer_notes)
            )
        return self._plan

    def definition(self) -> Definition:
        """The part of the topology that the ledger and the states depend on; see :class:`Definition`."""
        from airflow_trident.protocol.topologies import Definition, SpoutDefinition, StateDefinition

        if self._definition is not None:
            return self._definition
        bound_to = self.partitions
        fall_short = {shortfall.state: (shortfall.note,) for shortfall in reversed(self.shortfalls)}
        self._definition = Definition(
            spouts={
                name: SpoutDefinition(text=type(spout).__name__, kind=spout.kind, adapts=spout.adapts)
                for name, spout in self.spouts.items()
            },
            states={
                name: StateDefinition(
                    text=spec.describe(),
                    place=spec.factory.describe(),
                    notes=fall_short.get(name, ()),
                    inputs=spec.inputs,
                    transforms=recorded_transforms(self._sinks[name]),
                )
                for name, spec in self.states.items()
            },
            partitions=bound_to.describe() if bound_to else "",
            begin=bound_to.begin if bound_to else "",
            complete_after_s=bound_to.complete_after_s if bound_to else 0,
        )
        return self._definition

    def __repr__(self) -> str:
        return f"Topology({self.name!r}, streams={list(self._sources)}, states={list(self._sinks)})"


def _has_windows(state: StateSpec) -> bool:
    from airflow_trident.plan.commit.window_updater import WindowUpdater

    return isinstance(state.updater, WindowUpdater)
