"""Transactional topologies as Storm's documents write them (Storm: TransactionalTopologyBuilder).

Components and groupings become nodes of the same plan as streams. A basic bolt becomes a flat map, a batch bolt an
aggregator of whole partitions (a multi-reducer, if it has several inputs), a committer a state. Bolts behind a
committer read what it emitted, in the commit phase.

Checks, when a topology is built, that every bolt has input and leads to a committer or a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any, TypeAlias

from airflow_trident.contracts.spout import Spout
from airflow_trident.contracts.state import StateFactory
from airflow_trident.errors import ConfigurationError, FieldError, PlanError
from airflow_trident.names import at_least_one, require_flags, require_name
from airflow_trident.storm.bolts import (
    DEFAULT_STREAM,
    BaseBatchBolt,
    BaseStatefulBolt,
    BasicBolt,
    Bolt,
    Component,
    ICommitter,
    Output,
    OutputFieldsDeclarer,
    Outputs,
    declared_of,
)
from airflow_trident.storm.compiling import Compiling, Made
from airflow_trident.storm.components.bolt import ChildBolt
from airflow_trident.storm.config import read_config, read_names
from airflow_trident.storm.declarer import AnyBolt, BoltDeclarer, GroupingKind, Subscription
from airflow_trident.storm.spouts import (
    AnyTransactionalSpout,
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    TransactionalSpout,
    adapted,
)
from airflow_trident.topology.stream import Stream
from airflow_trident.topology.topology import Topology
from airflow_trident.types import names_of

Declared: TypeAlias = Mapping[str, Mapping[str, Output]]
"""Component -> stream -> its declared output."""


def require_wired(
    topology: str, declared: Declared, bolts: Mapping[str, BoltDeclarer], ends: Iterable[tuple[str, str, str]]
) -> list[BoltDeclarer]:
    """The bolts, each after its inputs.

    :param ends: component, stream and reader, for readers that are no bolts.
    :raises PlanError: a component or stream is unknown, a bolt has no input or is in a cycle, or its tuples lead to no
        committer and no state.
    :raises FieldError: a grouping names a field that the stream does not have.
    """
    ends = list(ends)
    for bolt in bolts.values():
        if not bolt.inputs:
            raise PlanError(
                f"bolt {bolt.id!r} of topology {topology!r} has no input",
                'Say what it reads, as in set_bolt(...).shuffle_grouping("spout").',
            )
        for subscription in bolt.inputs:
            _require_stream(f"bolt {bolt.id!r}", subscription.component, subscription.stream, declared)
            _require_fields(bolt, subscription, declared[subscription.component][subscription.stream])
    for component, stream, who in ends:
        _require_stream(who, component, stream, declared)
    order = _ordered(topology, bolts)
    _require_useful(topology, order, {component for component, _, _ in ends})
    return order


def with_cure(committer: str) -> str:
    """The cure in errors: how a committer can be exactly once."""
    return (
        "Take the attempt in prepare(), keep its txid beside what you write in one step, and write nothing for a txid "
        f"that is not higher. Or let a state do it: end_stream({committer!r}, lambda stream: "
        "stream.group_by(...).persistent_aggregate(...)). Or say that it need not be: exactly_once=False."
    )


def _require_stream(who: str, component: str, stream: str, declared: Declared) -> None:
    if component not in declared:
        raise PlanError(f"{who} reads component {component!r}, which does not exist", _near(component, declared))
    if stream not in declared[component]:
        raise PlanError(
            f"{who} reads stream {stream!r} of component {component!r}, which does not declare it",
            f"{_near(stream, declared[component])} Streams are declared in declare_output_fields().",
        )


def _near(name: str, names: Mapping[str, object]) -> str:
    near = get_close_matches(name, names, n=1)
    if near:
        return f"Did you mean {near[0]!r}?"
    return f"There {'are' if names else 'is'} {', '.join(map(repr, names)) or 'none'}."


def _require_fields(bolt: BoltDeclarer, subscription: Subscription, output: Output) -> None:
    names = (output.attempt, *names_of(output.schema))
    for name in subscription.fields:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            raise FieldError(
                f"fields_grouping of bolt {bolt.id!r}: no field {name!r} in stream {subscription.stream!r} of "
                f"component {subscription.component!r}, which has ({', '.join(names)})",
                f"Did you mean {near[0]!r}?" if near else "Use one of these.",
            )
    if subscription.kind is GroupingKind.CUSTOM and bolt.committer:
        raise PlanError(
            f"committer {bolt.id!r} has a custom grouping",
            "A committer takes all other groupings: use fields_grouping.",
        )


def _ordered(topology: str, bolts: Mapping[str, BoltDeclarer]) -> list[BoltDeclarer]:
    order: dict[str, BoltDeclarer] = {}
    path: list[str] = []

    def visit(id: str) -> None:
        if id in order or id not in bolts:
            return
        if id in path:
            circle = " > ".join([*path[path.index(id) :], id])
            raise PlanError(
                f"the bolts of topology {topology!r} go round in a circle: {circle}",
                "A batch passes each bolt once: take one of these inputs away.",
            )
        path.append(id)
        for subscription in bolts[id].inputs:
            visit(subscription.component)
        path.pop()
        order[id] = bolts[id]

    for id in bolts:
        visit(id)
    return list(order.values())


def _require_useful(topology: str, order: list[BoltDeclarer], ends: set[str]) -> None:
    useful = {*ends, *(bolt.id for bolt in order if bolt.committer)}
    for bolt in reversed(order):
        if bolt.id in useful:
            useful.update(subscription.component for subscription in bolt.inputs)
    if not useful:
        raise PlanError(
            f"topology {topology!r} has no committer: nothing would ever be committed",
            "Add one with set_committer_bolt(), or end a stream in a state with end_stream().",
        )
    for bolt in order:
        if bolt.id not in useful:
            raise PlanError(
                f"what bolt {bolt.id!r} of topology {topology!r} emits comes to no committer and no state, so it would "
                "never be run",
                "Make it a committer with set_committer_bolt(), or let one read it, or take it away.",
            )


End: TypeAlias = "Callable[[Stream], Any]"
TX_FIELD = "txid"
"""The first field of the tuples of a spout that declares none itself."""
_SPOUTS = (TransactionalSpout, PartitionedTransactionalSpout, OpaquePartitionedTransactionalSpout)


@dataclass(frozen=True)
class _End:
    """A stream that is continued with Trident's verbs."""

    component: str
    stream: str
    verbs: End


class TransactionalTopologyBuilder:
    """A spout, bolts, and committers.

    Building one opens no connection, so it can stand in a DAG file.

    :param id: of the topology; the ledger keeps its transactions under it (Storm: transactional id).
    :param spout_id: of the spout.
    :param spout: a TransactionalSpout, PartitionedTransactionalSpout or OpaquePartitionedTransactionalSpout; or any
        spout of this package, whose tuples then get a first field ``txid``, the TransactionAttempt.
    :param parallelism: how many tasks emit; the default is the engine's.
    :param conf: Storm's configuration and your own names; bolts get it in `prepare`; see `read_config`.
    :param exactly_once: refuse what cannot be exactly once; as for :class:`Topology`.
    :raises ConfigurationError: `conf` has an unknown name of Storm's.
    """

    def __init__(
        self,
        id: str,
        spout_id: str,
        spout: Spout | AnyTransactionalSpout,
        parallelism: int | None = None,
        *,
        conf: Mapping[str, Any] | None = None,
        exactly_once: bool = True,
    ) -> None:
        self.id = require_name("topology", id)
        self.config = read_config(conf or {})
        self._spout_id = require_name("component", spout_id)
        self._parallelism = None if parallelism is None else _tasks(spout_id, parallelism)
        require_flags(f"topology {id!r}", exactly_once=exactly_once)
        self._exactly_once = exactly_once
        self._spout, self._spout_outputs = self._source(spout)
        self._bolts: dict[str, BoltDeclarer] = {}
        self._outputs: dict[str, Mapping[str, Output]] = {spout_id: self._spout_outputs.streams}
        self._ends: list[_End] = []

    def set_bolt(self, id: str, bolt: AnyBolt, parallelism: int = 1) -> BoltDeclarer:
        """Add a bolt; call the groupings of the result to add inputs. A batch bolt that is an :class:`ICommitter` is a
        committer. A ShellBolt or NodeBolt needs a subclass with `declare_output_fields`. A BaseStatefulBolt keeps its
        state in the provider that `conf` names, and runs in the commit phase. These three get and emit tuples without
        the TransactionAttempt.

        :param parallelism: the number of its tasks; one by default, as in Storm: a batch bolt then sees the whole
            batch.
        :raises PlanError: the id is taken, or `bolt` is no bolt.
        """
        return self._add(id, bolt, parallelism, committer=isinstance(bolt, ICommitter | BaseStatefulBolt))

    def set_committer_bolt(self, id: str, bolt: BaseBatchBolt[Any], parallelism: int = 1) -> BoltDeclarer:
        """Add a batch bolt that runs in the commit phase, one transaction after the other.

        :raises PlanError: as `set_bolt`, or the bolt cannot be exactly once.
        """
        return self._add(id, bolt, parallelism, committer=True)

    def end_stream(self, component: str, verbs: End, stream: str = DEFAULT_STREAM) -> None:
        """Continue a stream with Trident's verbs up to a state, which is exactly once without code of yours:
        ``end_stream("split", lambda words: words.group_by("word").persistent_aggregate(state, Count(), "n"))``.

        The stream has no field for the TransactionAttempt.
        """
        self._ends.append(_End(component, stream, verbs))

    def build(self) -> Topology:
        """The topology, for operators, engines and plans. Each call gives the same.

        :raises PlanError: an input does not exist, or nothing would ever be committed.
        """
        if self._spout.spark_read is not None:
            raise PlanError(
                f"spout {self._spout_id!r} is a {self._spout.describe()}, which only Spark reads",
                "Use Topology.new_stream, or another spout.",
            )
        read = [(stream_end.component, stream_end.stream, "end_stream") for stream_end in self._ends]
        order = require_wired(self.id, self._outputs, self._bolts, read)
        topology = Topology(self.id, exactly_once=self._exactly_once)
        if self.config.max_task_parallelism is not None:
            topology.set_max_task_parallelism(self.config.max_task_parallelism)
        source = topology.add_source(self._spout_id, self._spout)
        if self._parallelism is not None:
            topology.set_node(self._spout_id, parallelism=self._parallelism)
        streams = {(subscription.component, subscription.stream) for bolt in order for subscription in bolt.inputs}
        streams |= {(end.component, end.stream) for end in self._ends}
        compiling = Compiling(topology, self._states(), self._outputs, streams)
        compiling.made[self._spout_id] = dict.fromkeys(self._spout_outputs.streams, source)
        for bolt in order:
            compiling.add(bolt)
        for end in self._ends:
            self._apply(end, topology, compiling.made)
        return topology

    to_topology = build

    # ---- the parts ---------------------------------------------------------------------------------------------

    def _states(self) -> Callable[[], StateFactory]:
        """Makes the store of stateful bolts."""
        provider, config = self.config.state_provider or "memory", dict(self.config.state_provider_config)
        # Imported by name: states are a layer above topologies.
        return lambda: import_module("airflow_trident.states.keyvalue.stateful").KeyValueStates(provider, config)

    def _conf_of(self, id: str, component: Component | BaseStatefulBolt[Any, Any] | ChildBolt) -> Mapping[str, Any]:
        """:raises ConfigurationError: the component sets a name of Storm's, all of which are of the topology."""
        component_conf = {} if isinstance(component, ChildBolt) else dict(component.get_component_configuration())
        if names := ", ".join(sorted(read_names(component_conf))):
            raise ConfigurationError(
                f"component {id!r} sets {names} in get_component_configuration()",
                "Set it in conf= of the builder: it is one value for the topology.",
            )
        return {**self.config.for_components, **component_conf}

    def _source(self, spout: Spout | AnyTransactionalSpout) -> tuple[Spout, Outputs]:
        if isinstance(spout, _SPOUTS):
            made = adapted(self._spout_id, spout, self._conf_of(self._spout_id, spout), self._parallelism or 1)
            declarer = OutputFieldsDeclarer(self._spout_id)
            spout.declare_output_fields(declarer)
            return made, Outputs(self._spout_id, declarer.streams)
        if not isinstance(spout, Spout):
            raise PlanError(
                f"spout {self._spout_id!r} of topology {self.id!r} is {spout!r}",
                "Give an object of a spout class: a Spout, TransactionalSpout, PartitionedTransactionalSpout or "
                "OpaquePartitionedTransactionalSpout.",
            )
        return spout, Outputs(self._spout_id, {DEFAULT_STREAM: Output(TX_FIELD, spout.schema)})

    def _add(self, id: str, bolt: AnyBolt, parallelism: int, *, committer: bool) -> BoltDeclarer:
        require_name("component", id)
        if id in self._bolts or id == self._spout_id:
            raise PlanError(f"topology {self.id!r} has two components named {id!r}", "Give each its own id.")
        if not _is_bolt(bolt):
            description = f"the class {bolt.__name__}" if isinstance(bolt, type) else repr(bolt)
            raise PlanError(
                f"bolt {id!r} of topology {self.id!r} is {description}",
                "Give an object of a subclass of BasicBolt, BaseBatchBolt, BaseTransactionalBolt, BaseStatefulBolt, "
                "ShellBolt or NodeBolt.",
            )
        self._outputs[id] = _outputs_of(id, bolt)
        if committer and not isinstance(bolt, BaseStatefulBolt):
            _require_committer(id, bolt, exactly_once=self._exactly_once)
        self._bolts[id] = BoltDeclarer(id, bolt, _tasks(id, parallelism), committer, self._conf_of(id, bolt))
        return self._bolts[id]

    def _apply(self, end: _End, topology: Topology, made: Mapping[str, Made]) -> None:
        before = set(topology.states)
        end.verbs(Stream(topology, made[end.component][end.stream]))
        if not topology.states.keys() - before:
            raise PlanError(
                f"end_stream of component {end.component!r} ends in no state",
                "Let it end with persistent_aggregate(), partition_persist() or another verb of a state.",
            )


def _is_bolt(candidate: object) -> bool:
    return isinstance(candidate, BasicBolt | BaseBatchBolt | BaseStatefulBolt | ChildBolt)


def _outputs_of(id: str, bolt: AnyBolt) -> Mapping[str, Output]:
    if isinstance(bolt, BaseStatefulBolt):
        schema = declared_of(bolt)
        return {DEFAULT_STREAM: Output(TX_FIELD, schema)} if schema else {}
    declarer = OutputFieldsDeclarer(id)
    bolt.declare_output_fields(declarer)
    return declarer.streams


def _tasks(id: str, parallelism: int) -> int:
    return at_least_one(f"the parallelism of component {id!r}", parallelism)


def _require_committer(id: str, bolt: Bolt | ChildBolt, *, exactly_once: bool) -> None:
    """:raises PlanError: the bolt never gets a batch, or, if exactly once, never learns which transaction commits."""
    name = type(bolt).__name__
    if isinstance(bolt, ChildBolt):
        raise PlanError(
            f"committer {id!r} is {bolt}, which never learns where a batch ends",
            "End the stream in it: end_stream(component, lambda stream: stream.partition_persist(BoltSink(bolt), "
            "list(stream.fields))).",
        )
    if not isinstance(bolt, BaseBatchBolt):
        raise PlanError(
            f"committer {id!r} is the basic bolt {name}, which never sees a batch",
            "Make it a BaseTransactionalBolt: its finish_batch() is the commit.",
        )
    if exactly_once and type(bolt).prepare is BaseBatchBolt.prepare:
        raise PlanError(
            f"committer {id!r} ({name}) has no way to be exactly once: it does not take its TransactionAttempt, and a "
            "commit may be repeated",
            with_cure(id),
        )
