"""Compiles components and groupings to nodes of the plan.

Committer bolts as states of a topology: they write to their own databases.

The commit phase calls a state for a transaction, in order, until that is COMMITTED. So a committer runs at least once
for each batch, always with the same one (or, after an opaque spout, with that of a later attempt). Nothing here can
make its effects atomic. The bolt can, if it keeps the txid in its database, in the step that changes the data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias
from zlib import crc32

from airflow_trident.contracts.state import Applied, Capabilities, Marker, State, StateFactory, StateSpec
from airflow_trident.errors import ConfigurationError, PlanError
from airflow_trident.io.arrow import rows_to_table, table_to_rows
from airflow_trident.io.values import UnfitValueError, coercer
from airflow_trident.operations.aggregators import groupable
from airflow_trident.operations.equality import canonical_key
from airflow_trident.operations.expressions import col
from airflow_trident.operations.interfaces import OperationContext, TransactionAttempt
from airflow_trident.operations.user_code import Border, copied
from airflow_trident.operations.user_functions import function_name
from airflow_trident.plan.commit.levels import in_commit_phase
from airflow_trident.plan.graph import Grouping, Node
from airflow_trident.plan.nodes import (
    Aggregation,
    FilterNode,
    MapNode,
    MergeNode,
    MultiReduceNode,
    NewValuesNode,
    PartitionAggregateNode,
    PartitionNode,
    PersistNode,
    ProjectNode,
    UnionNode,
)
from airflow_trident.process_settings import Watch
from airflow_trident.storm.bolts import (
    DEFAULT_STREAM,
    TAG,
    BaseBatchBolt,
    BaseStatefulBolt,
    BasicBolt,
    BasicBoltCalls,
    BatchBoltCalls,
    BatchOutputCollector,
    BoltInput,
    BoltOfTopology,
    CommitterBolt,
    CommitterGrouping,
    JoiningBoltCalls,
    Output,
    Outputs,
    StatefulBoltCalls,
    tagged,
)
from airflow_trident.storm.components.bolt import ChildBolt
from airflow_trident.storm.components.bolt import bolt as child_bolt
from airflow_trident.storm.declarer import BoltDeclarer, GroupingKind, Subscription
from airflow_trident.topology.stream import Stream
from airflow_trident.topology.topology import Topology
from airflow_trident.topology.verbs import states as states_module
from airflow_trident.types import ddl, names_of, select

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_trident.protocol.records import CommitTicket


@dataclass(frozen=True)
class OwnDatabase(StateFactory):
    """The database of a committer, which only the committer knows.

    :param opaque: it also keeps the value before the last transaction.
    """

    opaque: bool = False
    capabilities: Capabilities = field(init=False, compare=False)

    def __post_init__(self) -> None:
        capabilities = Capabilities(durable=True, atomic=True, opaque=self.opaque, own=True)
        object.__setattr__(self, "capabilities", capabilities)

    def make_state(self, spec: StateSpec) -> OpenCommitter:
        assert isinstance(spec.committer, CommitterBolt), "a database of its own without a committer"
        return OpenCommitter(spec, spec.committer)

    def describe(self) -> str:
        return "a database of its own"


class OpenCommitter(State):
    """A committer as long as its process commits: it holds what was emitted last."""

    def __init__(self, spec: StateSpec, committer: CommitterBolt) -> None:
        self._spec = spec
        self._committer = committer
        self._emitted: dict[int, list[tuple[Any, ...]]] = {}

    def marker(self) -> Marker | None:
        """Always None: only the bolt's own database knows what is applied."""
        return None

    def bar(self, ticket: CommitTicket) -> None:
        """Does nothing: a committer never gets a batch that it must not take."""

    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        """Runs the bolt over the batch, with one new object for each task.

        :raises UserCodeError: the bolt raised, or emitted something undeclared.
        """
        inputs_by_task: list[list[tuple[int, tuple[Any, ...]]]] = [[] for _ in range(self._committer.tasks)]
        for number, (place, values) in enumerate(self._committer.inputs(table_to_rows(batch))):
            for task in _targets(self._committer.groupings[place], values, number, len(inputs_by_task)):
                inputs_by_task[task].append((place, values))
        emitted: list[tuple[Any, ...]] = []
        for index, tuples in enumerate(inputs_by_task):
            emitted += self._run(index, tuples, TransactionAttempt(ticket.txid, ticket.attempt))
        self._emitted = {ticket.txid: emitted}
        return Applied.APPLIED

    def _run(
        self, index: int, tuples: list[tuple[int, tuple[Any, ...]]], attempt: TransactionAttempt
    ) -> list[tuple[Any, ...]]:
        of = self._committer.bolt
        names = tuple(dict.fromkeys(name for bolt_input in of.inputs for name in bolt_input.fields[1:]))
        border = Border(of.id, function_name(of.bolt), names, attempt.txid)
        context = OperationContext(index, self._committer.tasks, attempt.txid, attempt.attempt)
        rows: list[tuple[Any, ...]] = []
        bolt = copied(of.bolt, border)
        assert isinstance(bolt, BaseBatchBolt)
        collector = BatchOutputCollector(of.outputs, attempt, lambda *row: rows.append(row))
        with border.watched(Watch()):
            with _calling(border, "prepare"):
                bolt.prepare(of.conf, of.context(context), collector, attempt)
            for place, values in tuples:
                with _calling(border, "execute", values):
                    bolt.execute(of.tuple_of(attempt, values, place))
            with _calling(border, "finish_batch"):
                bolt.finish_batch()
        fits = [coercer(column.type) for column in of.outputs.schema]
        try:
            return [tuple(fit(value) for fit, value in zip(fits, row, strict=True)) for row in rows]
        except UnfitValueError as error:
            raise border.error((), f"emitted {error}") from error

    def emitted(self, ticket: CommitTicket) -> pa.Table:
        return rows_to_table(self._spec.emits, self._emitted[ticket.txid])

    def get_many(self, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...] | None]:
        raise self._nothing()

    def items(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        raise self._nothing()

    def _nothing(self) -> ConfigurationError:
        return ConfigurationError(
            f"the committer {self._spec.name!r} keeps what it does in a database of its own",
            "Ask that database.",
        )

    def close(self) -> None:
        self._emitted = {}


@contextmanager
def _calling(border: Border, method: str, values: tuple[Any, ...] = ()) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        border.translate(values, error, method)
        raise


def _targets(how: CommitterGrouping, values: tuple[Any, ...], number: int, tasks: int) -> Sequence[int]:
    if how.all:
        return range(tasks)
    if how.keys:
        key = canonical_key([values[place] for place in how.keys])
        return (crc32(repr(key).encode()) % tasks,)
    return (0 if how.one else number % tasks,)


_GROUPINGS = {
    GroupingKind.SHUFFLE: Grouping.SHUFFLE,
    GroupingKind.LOCAL_OR_SHUFFLE: Grouping.LOCAL_OR_SHUFFLE,
    GroupingKind.FIELDS: Grouping.FIELDS,
    GroupingKind.GLOBAL: Grouping.GLOBAL,
    GroupingKind.ALL: Grouping.BROADCAST,
    GroupingKind.CUSTOM: Grouping.CUSTOM,
}

_TO_ANY_TASK = (GroupingKind.SHUFFLE, GroupingKind.LOCAL_OR_SHUFFLE)

Made: TypeAlias = Mapping[str, Node]
"""A component in the plan: stream -> the node that gives its tuples."""


class Compiling:
    """Adds bolts to a topology, each after its inputs.

    :param states: makes the store of stateful bolts.
    :param read: (component, stream) of all streams that have a reader.
    """

    def __init__(
        self,
        topology: Topology,
        states: Callable[[], StateFactory],
        declared: Mapping[str, Mapping[str, Output]],
        read: Collection[tuple[str, str]],
    ) -> None:
        self.made: dict[str, Made] = {}
        self._topology = topology
        self._states = states
        self._declared = declared
        self._read = read

    def add(self, bolt: BoltDeclarer) -> None:
        if isinstance(bolt.bolt, ChildBolt):
            self.made[bolt.id] = self._child(bolt, bolt.bolt)
            return
        if isinstance(bolt.bolt, BaseStatefulBolt):
            self.made[bolt.id] = self._stateful(bolt, bolt.bolt)
            return
        of = BoltOfTopology(
            id=bolt.id,
            bolt=bolt.bolt,
            inputs=tuple(self._input(subscription) for subscription in bolt.inputs),
            outputs=Outputs(bolt.id, self._declared[bolt.id]),
            conf=bolt.conf,
        )
        node = self._committer(bolt, of) if bolt.committer else self._processing(bolt, of)
        self.made[bolt.id] = self._streams(of.outputs, node)

    def _input(self, subscription: Subscription) -> BoltInput:
        output = self._declared[subscription.component][subscription.stream]
        return BoltInput(subscription.component, subscription.stream, (output.attempt, *names_of(output.schema)))

    # ---- bolts of the processing phase, and behind committers ---------------------------------------------------

    def _processing(self, bolt: BoltDeclarer, of: BoltOfTopology) -> Node:
        inputs = [self._moved(bolt, subscription, place) for place, subscription in enumerate(bolt.inputs)]
        schema = of.outputs.schema
        if isinstance(of.bolt, BasicBolt):
            names = [bolt.id] if len(inputs) == 1 else [f"{bolt.id}.{place}" for place in range(len(inputs))]
            nodes = [
                MapNode(name=name, schema=schema, inputs=(source,), function=BasicBoltCalls(of, place), flat=True)
                for place, (name, source) in enumerate(zip(names, inputs, strict=True))
            ]
            self._hint(bolt, *names)
            return nodes[0] if len(nodes) == 1 else MergeNode(name=bolt.id, schema=schema, inputs=tuple(nodes))
        self._hint(bolt, bolt.id)
        if len(inputs) == 1:
            reads = inputs[0].fields
            aggregation = Aggregation(aggregator=BatchBoltCalls(of), reads=reads, output=schema)
            return PartitionAggregateNode(
                name=bolt.id, schema=schema, inputs=tuple(inputs), groups=(), aggregations=(aggregation,)
            )
        return MultiReduceNode(
            name=bolt.id,
            schema=schema,
            inputs=tuple(inputs),
            reducer=JoiningBoltCalls(of),
            reads=tuple(source.fields for source in inputs),
            groups=((),) * len(inputs),
        )

    def _child(self, bolt: BoltDeclarer, child: ChildBolt) -> Made:
        """A bolt in another program: the verb `bolt`, on the merged inputs."""
        inputs = [self._moved(bolt, subscription, place) for place, subscription in enumerate(bolt.inputs)]
        first = self._merged(bolt, inputs, str(child))
        if len(inputs) > 1:
            chosen = [kind for kind, _ in map(self._kind, bolt.inputs) if kind not in _TO_ANY_TASK]
            if len(chosen) > 1 or GroupingKind.ALL in chosen:
                first = _task_by_task(first)
        declared = {name: ddl(output.schema) for name, output in self._declared[bolt.id].items()}
        streams = child_bolt(Stream(self._topology, first).name(bolt.id), first.fields, child, declared)
        return {name: stream.node for name, stream in streams.items()}

    def _merged(self, bolt: BoltDeclarer, inputs: Sequence[Node], component: str) -> Node:
        """:raises PlanError: the inputs differ in their fields, and the bolt does not hear which one a tuple is of."""
        first = inputs[0]
        if any(source.schema != first.schema for source in inputs):
            kinds = "; ".join(
                f"{bolt_input} has ({', '.join(bolt_input.fields)})" for bolt_input in map(self._input, bolt.inputs)
            )
            raise PlanError(
                f"the inputs of bolt {bolt.id!r} have several kinds of tuples, and {component} does not hear which one "
                f"it gets: {kinds}",
                "Let a BasicBolt bring them to the same fields, or give each input a bolt of its own.",
            )
        return (
            first
            if len(inputs) == 1
            else MergeNode(name=f"{bolt.id}.inputs", schema=first.schema, inputs=tuple(inputs))
        )

    def _stateful(self, bolt: BoltDeclarer, stateful: BaseStatefulBolt[Any, Any]) -> Made:
        """A stateful bolt: the verb `stateful`. The fields of its fields grouping choose the task, and so the state."""
        keys = {keys if kind is GroupingKind.FIELDS else () for kind, keys in map(self._kind, bolt.inputs)}
        if bolt.parallelism > 1 and (len(keys) > 1 or not all(keys)):
            raise PlanError(
                f"the stateful bolt {bolt.id!r} has {bolt.parallelism} tasks, and its groupings do not say which task "
                "gets a tuple",
                "Give each input the same fields_grouping, or give the bolt one task.",
            )
        before = self._merged(
            bolt,
            [self.made[subscription.component][subscription.stream] for subscription in bolt.inputs],
            "a stateful bolt",
        )
        calls = StatefulBoltCalls(
            stateful,
            topology=self._topology.name,
            component=bolt.id,
            source=bolt.inputs[0].component if len(bolt.inputs) == 1 else before.name,
            fields=before.fields,
            conf=bolt.conf,
        )
        stream, outputs = Stream(self._topology, before), ddl(calls.emits)
        keyed_by = keys.pop() if len(keys) == 1 else ()
        provider = self._states()
        sink = states_module.stateful(
            stream, before.fields, calls, provider, keyed_by, outputs, bolt.parallelism, bolt.id
        )
        is_read = (bolt.id, DEFAULT_STREAM) in self._read
        return {DEFAULT_STREAM: states_module.new_values(stream, sink).node} if is_read else {}

    def _moved(self, bolt: BoltDeclarer, subscription: Subscription, place: int) -> Node:
        """The stream of an input, repartitioned."""
        before = self.made[subscription.component][subscription.stream]
        kind, keys = self._kind(subscription)
        if kind is GroupingKind.FIELDS:
            groupable(f"fields_grouping of bolt {bolt.id!r}", select(before.schema, keys, bolt.id))
        name = f"{bolt.id}.{kind}-{place}"
        self._hint(bolt, name)
        return PartitionNode(
            name=name,
            schema=before.schema,
            inputs=(before,),
            grouping=_GROUPINGS[kind],
            keys=keys,
            custom=subscription.custom,
        )

    def _kind(self, subscription: Subscription) -> tuple[GroupingKind, tuple[str, ...]]:
        """The grouping and its keys. The TransactionAttempt is no key: all tuples of a batch have the same one."""
        attempt = self._declared[subscription.component][subscription.stream].attempt
        keys = tuple(name for name in subscription.fields if name != attempt)
        return (GroupingKind.GLOBAL if subscription.fields and not keys else subscription.kind), keys

    def _hint(self, bolt: BoltDeclarer, *names: str) -> None:
        for name in names:
            self._topology.set_node(name, parallelism=bolt.parallelism)

    # ---- committers --------------------------------------------------------------------------------------------

    def _committer(self, bolt: BoltDeclarer, of: BoltOfTopology) -> Node:
        staged = self._staged(bolt)
        committer = CommitterBolt(
            bolt=of,
            tasks=bolt.parallelism,
            groupings=tuple(self._chooses(subscription) for subscription in bolt.inputs),
        )
        emits = of.outputs.schema if any((bolt.id, stream) in self._read for stream in of.outputs.streams) else ()
        spec = StateSpec(
            topology=self._topology.name,
            name=bolt.id,
            keys=(),
            values=(),
            staged=staged.schema,
            factory=OwnDatabase(opaque=bool(getattr(bolt.bolt, "keeps_previous_value", False))),
            committer=committer,
            emits=emits,
            in_order=in_commit_phase(staged),
            inputs=tuple(
                f"{bolt_input.component}/{bolt_input.stream}: {', '.join(bolt_input.fields[1:])}"
                for bolt_input in of.inputs
            ),
        )
        sink = PersistNode(name=bolt.id, schema=staged.schema, inputs=(staged,), state=spec)
        self._topology.add_sink(sink)
        return NewValuesNode(name=f"{bolt.id}.emitted", schema=emits, inputs=(sink,)) if emits else sink

    def _staged(self, bolt: BoltDeclarer) -> Node:
        """The inputs of a committer as one node: several become a tagged union."""
        nodes = [self.made[subscription.component][subscription.stream] for subscription in bolt.inputs]
        if len(nodes) == 1:
            return nodes[0]
        takes = []
        for place, node in enumerate(nodes):
            parts = (
                node.fields if place == other else (None,) * len(other_node.schema)
                for other, other_node in enumerate(nodes)
            )
            takes.append((None, *(name for part in parts for name in part)))
        schema = tagged([node.schema for node in nodes])
        return UnionNode(name=f"{bolt.id}.inputs", schema=schema, inputs=tuple(nodes), takes=tuple(takes), tag=TAG)

    def _chooses(self, subscription: Subscription) -> CommitterGrouping:
        kind, keys = self._kind(subscription)
        fields = names_of(self._declared[subscription.component][subscription.stream].schema)
        places = tuple(fields.index(name) for name in keys)
        return CommitterGrouping(all=kind is GroupingKind.ALL, one=kind is GroupingKind.GLOBAL, keys=places)

    # ---- several output streams --------------------------------------------------------------------------------

    def _streams(self, outputs: Outputs, node: Node) -> dict[str, Node]:
        if not outputs.tagged:
            return dict.fromkeys(outputs.streams or (DEFAULT_STREAM,), node)
        if isinstance(node, PersistNode):
            return {}
        return {name: self._stream(outputs, node, name, place) for place, name in enumerate(outputs.streams)}

    def _stream(self, outputs: Outputs, node: Node, stream: str, place: int) -> Node:
        """The tuples of one stream, under their own names."""
        name = f"{outputs.component}.{stream}"
        kept = FilterNode(
            name=f"{name}.only", schema=node.schema, inputs=(node,), reads=(TAG,), expression=col(TAG) == place
        )
        fields = outputs.fields_of(stream)
        narrow = ProjectNode(
            name=f"{name}.fields", schema=select(node.schema, fields, name), inputs=(kept,), implied=True
        )
        declared = tuple(
            replace(column, name=declared_column.name)
            for column, declared_column in zip(narrow.schema, outputs.streams[stream].schema, strict=True)
        )
        return MergeNode(name=name, schema=declared, inputs=(narrow,))


def _task_by_task(merged: Node) -> Node:
    """What each input sends to task i comes to one process (Storm: a task has all its inputs)."""
    return PartitionNode(
        name=f"{merged.name}.partition", schema=merged.schema, inputs=(merged,), grouping=Grouping.COLOCATED
    )
