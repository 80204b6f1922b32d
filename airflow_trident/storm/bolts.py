"""Bolts, after Storm's IBasicBolt, IBatchBolt and ICommitter: the parts of a transactional topology.

All must be picklable and open nothing before `prepare`. Each attempt of each partition gets a copy of the object that
the builder was given.

Wiring of the components of a transactional topology: the streams of a component as rows of one schema.

Stateful bolts as in Storm (IStatefulBolt, BaseStatefulBolt): tuples in, a collector, a key-value state.
`stream.stateful()` runs them like a `StatefulFunction`.

Bolts as operations that engines can run: which method of a bolt is called when.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from airflow_trident.contracts.state import CommitterWork
from airflow_trident.errors import FieldError, PlanError
from airflow_trident.operations.interfaces import (
    Aggregator,
    Collector,
    MultiReducer,
    Operation,
    OperationContext,
    TransactionAttempt,
)
from airflow_trident.operations.state_functions import KeyValues, MakesStateful, StatefulFunction
from airflow_trident.types import FieldSpec, Schema, names_of, parse_declared, require_distinct, split_spec

TAG = "to_stream"
"""The field that names a tuple's output stream or its input, where there are several."""


@dataclass(frozen=True, slots=True)
class Output:
    """A declared stream: the name of its first field (the TransactionAttempt), and the other fields."""

    attempt: str
    schema: Schema


@dataclass(frozen=True, slots=True)
class BoltInput:
    """A stream that a component receives. `fields`: all names, that of the TransactionAttempt first."""

    component: str
    stream: str
    fields: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.stream!r} of component {self.component!r}"


@dataclass(frozen=True, slots=True)
class _Lane:
    """Where the values of a stream stand in a row: their first position, and what comes before and after them."""

    width: int
    begin: int
    before: tuple[int | None, ...]
    after: tuple[None, ...]


@dataclass(frozen=True)
class Outputs:
    """A component's streams as rows of one schema. Several: a tag, then the fields of all, null for the others."""

    component: str
    streams: Mapping[str, Output]
    _lanes: dict[str, _Lane] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        lanes, begin = {}, 1
        all_width = sum(len(output.schema) for output in self.streams.values())
        for place, (name, output) in enumerate(self.streams.items()):
            width = len(output.schema)
            nulls = all_width + 1 - begin - width
            lanes[name] = _Lane(width, begin, (place, *(None,) * (begin - 1)), (None,) * nulls)
            begin += width
        object.__setattr__(self, "_lanes", lanes)

    @property
    def tagged(self) -> bool:
        return len(self.streams) > 1

    @property
    def schema(self) -> Schema:
        """Schema of the rows."""
        if not self.tagged:
            return next((output.schema for output in self.streams.values()), ())
        return tagged([output.schema for output in self.streams.values()])

    @property
    def plain_width(self) -> int | None:
        """How many values an emit has, with the attempt, if the default stream is the only one."""
        return self._lanes["default"].width + 1 if [*self._lanes] == ["default"] else None

    def row(self, stream: str, values: Any, attempt: TransactionAttempt) -> tuple[Any, ...]:
        """:raises ValueError: the stream is not declared, or the values do not match its fields."""
        lane = self._lanes.get(stream)
        if lane is None:
            streams = ", ".join(map(repr, self.streams)) or "nothing"
            raise ValueError(f"emitted to stream {stream!r}: declare_output_fields() declares {streams}")
        row = tuple(values)
        # identity first: this is called for each tuple, and comparing attempts costs as much as all the rest
        if not row or (row[0] is not attempt and row[0] != attempt):
            raise ValueError(f"the first value must be the TransactionAttempt of the batch, {attempt}: got {row[:1]}")
        if len(row) != lane.width + 1:
            output = self.streams[stream]
            names = ", ".join((output.attempt, *names_of(output.schema)))
            raise ValueError(f"emitted {len(row)} values to stream {stream!r}, which has ({names})")
        return (*lane.before, *row[1:], *lane.after) if len(self._lanes) > 1 else row[1:]

    def fields_of(self, stream: str) -> tuple[str, ...]:
        """The names of one stream's fields in `schema`."""
        lane = self._lanes[stream]
        return names_of(self.schema)[lane.begin : lane.begin + lane.width] if self.tagged else names_of(self.schema)


def tagged(schemas: Sequence[Schema]) -> Schema:
    """A tag, then the fields of all schemas under distinct names."""
    parts = [f"s{place}_{column.name} {column.type}" for place, schema in enumerate(schemas) for column in schema]
    return parse_declared([f"{TAG} int", *parts])


Id = TypeVar("Id")
DEFAULT_STREAM = "default"


@dataclass(frozen=True, slots=True)
class TopologyContext:
    """Where a component runs (Storm: TopologyContext).

    :param task_index: which of the component's tasks this is, from 0 (Storm: getThisTaskIndex).
    """

    component_id: str
    task_index: int = 0
    num_tasks: int = 1

    @classmethod
    def of(cls, component_id: str, context: OperationContext) -> TopologyContext:
        return cls(component_id, context.partition_index, context.num_partitions)


class BoltTuple(Sequence[Any]):
    """A tuple as a bolt receives it (Storm: Tuple). Its first value is the TransactionAttempt.

    Read it by ``tuple[1]``, ``tuple["word"]`` or Storm's getters, which are all one getter for every type.
    """

    __slots__ = ("_input", "_values")

    def __init__(self, bolt_input: BoltInput, values: tuple[Any, ...]) -> None:
        self._input = bolt_input
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, place: Any) -> Any:
        return self.get_value_by_field(place) if isinstance(place, str) else self._values[place]

    def __repr__(self) -> str:
        return f"BoltTuple({self.get_source_component()}, {self.get_source_stream_id()}, {list(self._values)})"

    def get_values(self) -> list[Any]:
        return list(self._values)

    def get_fields(self) -> tuple[str, ...]:
        return self._input.fields

    def get_source_component(self) -> str:
        """The id of the component that emitted it."""
        return self._input.component

    def get_source_stream_id(self) -> str:
        return self._input.stream

    def get_value(self, place: int) -> Any:
        return self._values[place]

    def get_value_by_field(self, name: str) -> Any:
        """:raises ValueError: there is no such field. Outside of the bolt it becomes a UserCodeError, which names bolt,
        row and transaction."""
        try:
            return self._values[self._input.fields.index(name)]
        except ValueError:
            fields = ", ".join(self._input.fields)
            raise ValueError(f"{name} does not exist in stream {self._input}, which has ({fields})") from None

    get_string = get_integer = get_long = get_double = get_boolean = get_binary = get_value
    get_string_by_field = get_integer_by_field = get_long_by_field = get_value_by_field
    get_double_by_field = get_boolean_by_field = get_binary_by_field = get_value_by_field


class OutputFieldsDeclarer:
    """Collects what a component emits (Storm: OutputFieldsDeclarer).

    ``declare("id, count long")`` or ``declare_stream("users", "txid, tweet_id string, user string")``: the first field
    is the TransactionAttempt and has no type; every other field has one.

    :param component: its id, for errors.
    """

    def __init__(self, component: str) -> None:
        self.streams: dict[str, Output] = {}
        self._component = component

    def declare(self, fields: FieldSpec) -> None:
        self.declare_stream(DEFAULT_STREAM, fields)

    def declare_stream(self, stream: str, fields: FieldSpec) -> None:
        """
        :raises PlanError: the stream is declared already, or has no field beside the first.
        :raises FieldError: a type is missing, or a name is doubled.
        """
        subject = f"stream {stream!r} of component {self._component!r}"
        if stream in self.streams:
            raise PlanError(f"{subject} is declared twice", "Declare each stream once.")
        first, *rest = split_spec(fields) or ("",)
        if not rest:
            raise PlanError(
                f"{subject} is declared with ({first})",
                'The first field is the TransactionAttempt; name one more with its type, as in "id, count long".',
            )
        if " " in first:
            raise FieldError(
                f"the first field of {subject} is {first!r}", "It is the TransactionAttempt: leave out a type."
            )
        schema = parse_declared(rest)
        require_distinct((first, *names_of(schema)))
        self.streams[stream] = Output(first, schema)


class BatchOutputCollector:
    """Where a bolt emits: ``emit([id, count])``, or ``emit("users", [tx, tweet_id, user])`` to a named stream. The
    first value must be the TransactionAttempt of the batch (Storm: BatchOutputCollector, BasicOutputCollector).

    :param give: called with the values of each row of `outputs`.
    """

    def __init__(self, outputs: Outputs, attempt: TransactionAttempt, give: Callable[..., None]) -> None:
        self._row = outputs.row
        self._plain = outputs.plain_width
        self._attempt = attempt
        self._give = give

    def emit(self, *arguments: Any) -> None:
        """:raises ValueError: the stream is not declared, or the values do not match its fields."""
        values = arguments[0] if len(arguments) == 1 else None
        if type(values) is list and len(values) == self._plain and values[0] is self._attempt:
            self._give(*values[1:])  # the usual case, three times as fast
            return
        if len(arguments) not in (1, 2) or isinstance(arguments[-1], str):
            raise ValueError("emit takes (values) or (stream, values)")
        self._give(*self._row(arguments[0] if len(arguments) == 2 else DEFAULT_STREAM, arguments[-1], self._attempt))


class Component(ABC):
    """What bolts and spouts have in common (Storm: IComponent)."""

    @abstractmethod
    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the emitted fields; called once, when the topology is built."""

    def get_component_configuration(self) -> Mapping[str, Any]:
        """Settings of this component alone (Storm: getComponentConfiguration), which `prepare` gets with those of the
        topology; called once, when the topology is built."""
        return {}


class BasicBolt(Component):
    """Processes tuples one by one (Storm: IBasicBolt, BaseBasicBolt). It keeps no data of a batch."""

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        """Called before the first tuple of each attempt."""

    @abstractmethod
    def execute(self, tuple: BoltTuple, collector: BatchOutputCollector) -> None:
        """Process one tuple and emit the results."""

    def cleanup(self) -> None:
        """Called after the last tuple."""


class BaseBatchBolt(Component, Generic[Id]):
    """Processes a batch: `execute` for each tuple of its partition, then `finish_batch` (Storm: IBatchBolt).

    Each attempt of each batch has a new object, so `self` can keep data of the batch.
    """

    def prepare(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: BatchOutputCollector, id: Id
    ) -> None:
        """Called before the first tuple. :param id: the TransactionAttempt of the batch."""

    @abstractmethod
    def execute(self, tuple: BoltTuple) -> None:
        """Process one tuple."""

    @abstractmethod
    def finish_batch(self) -> None:
        """Called after the last tuple, also for an empty batch: emit the results."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Emits nothing by default."""


class BaseTransactionalBolt(BaseBatchBolt[TransactionAttempt]):
    """A batch bolt of a transactional topology, as Storm's."""


class ICommitter:
    """Marks a batch bolt as a committer: it runs in the commit phase, one transaction after the other.

    It writes to its own database, so it runs at least once. To be exactly once, it stores the txid of its
    TransactionAttempt together with its data, in one atomic step, and writes nothing for a txid that is not higher.
    """

    keeps_previous_value = False
    """Does it keep the value before the last transaction, for a retry? Then it may follow an opaque spout."""


Bolt: TypeAlias = BasicBolt | BaseBatchBolt[Any]


K = TypeVar("K")
V = TypeVar("V")


class FieldsDeclarer:
    """Collects what a stateful bolt emits: ``declare("word string, count long")``. All fields have types. A
    TransactionAttempt is not declared."""

    def __init__(self) -> None:
        self.schema: Schema = ()

    def declare(self, fields: FieldSpec) -> None:
        """
        :raises PlanError: it was declared before.
        :raises FieldError: a type is missing, or a name is doubled.
        """
        if self.schema:
            raise PlanError("a stateful bolt declares its output fields twice", "It has one stream: declare it once.")
        self.schema = parse_declared(fields)


class BasicOutputCollector:
    """Where a stateful bolt emits: ``emit([word, count])`` (Storm: BasicOutputCollector)."""

    def __init__(self) -> None:
        self.given: list[tuple[Any, ...]] = []

    def emit(self, values: list[Any] | tuple[Any, ...]) -> None:
        """:raises ValueError: not a list of values."""
        if not isinstance(values, list | tuple):
            raise ValueError(f"emit takes a list of values, and got {values!r:.80}")
        self.given.append(tuple(values))


class BaseStatefulBolt(MakesStateful, Generic[K, V]):
    """A bolt with a key-value state (Storm: IStatefulBolt, BaseStatefulBolt).

    ``stream.stateful("word", WordCountBolt(), provider=KeyValueStates("redis"), keys="word")``

    Methods are called as those of :class:`StatefulFunction`. State and emitted tuples are exactly once.
    """

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        """Called first. :param conf: ``topology.name``, and the configuration of a TransactionalTopologyBuilder."""

    @abstractmethod
    def init_state(self, state: KeyValues[K, V]) -> None:
        """Called before the first tuple; keep `state` for `execute`."""

    @abstractmethod
    def execute(self, tuple: BoltTuple, collector: BasicOutputCollector) -> None:
        """Process one tuple: change the state and emit the results."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        """Emits nothing by default."""

    def get_component_configuration(self) -> Mapping[str, Any]:
        """Settings of this component alone; see :meth:`airflow_trident.storm.bolts.Component`."""
        return {}

    def pre_prepare(self, txid: int) -> None:
        """As in :class:`StatefulFunction`."""

    def pre_commit(self, txid: int) -> None:
        """As in :class:`StatefulFunction`."""

    def pre_rollback(self) -> None:
        """As in :class:`StatefulFunction`."""

    def cleanup(self) -> None:
        """Called after the last tuple, also after an error."""

    def stateful_of(
        self, *, topology: str, name: str, source: str, fields: tuple[str, ...]
    ) -> tuple[StatefulFunction[Any, Any], Schema]:
        calls = StatefulBoltCalls(self, topology=topology, component=name, source=source, fields=fields)
        return calls, calls.emits


def declared_of(bolt: BaseStatefulBolt[Any, Any]) -> Schema:
    """The declared output fields."""
    declarer = FieldsDeclarer()
    bolt.declare_output_fields(declarer)
    return declarer.schema


class StatefulBoltCalls(StatefulFunction[Any, Any]):
    """A stateful bolt as a function that engines and states can run; `__qualname__` is that of the user's class."""

    def __init__(
        self,
        bolt: BaseStatefulBolt[Any, Any],
        *,
        topology: str,
        component: str,
        source: str,
        fields: tuple[str, ...],
        conf: Mapping[str, Any] | None = None,
    ) -> None:
        self.bolt = bolt
        self._conf = {**(conf or {}), "topology.name": topology}
        self.emits = declared_of(bolt)
        self.__qualname__ = type(bolt).__qualname__
        self._component = component
        self._input = BoltInput(source, DEFAULT_STREAM, fields)

    def prepare(self, context: OperationContext) -> None:
        self.bolt.prepare(self._conf, TopologyContext.of(self._component, context))

    def init_state(self, state: KeyValues[Any, Any]) -> None:
        self.bolt.init_state(state)

    def execute(self, *values: Any) -> list[tuple[Any, ...]] | None:
        """:raises ValueError: the bolt emitted, but declares no fields."""
        collector = BasicOutputCollector()
        self.bolt.execute(BoltTuple(self._input, values), collector)
        if collector.given and not self.emits:
            raise ValueError("it emitted, and declares no output fields: say them in declare_output_fields()")
        return collector.given if self.emits else None

    def pre_prepare(self, txid: int) -> None:
        self.bolt.pre_prepare(txid)

    def pre_commit(self, txid: int) -> None:
        self.bolt.pre_commit(txid)

    def pre_rollback(self) -> None:
        self.bolt.pre_rollback()

    def cleanup(self) -> None:
        self.bolt.cleanup()


@dataclass(frozen=True, kw_only=True)
class BoltOfTopology:
    """A bolt and its place in a topology. Picklable."""

    id: str
    bolt: Bolt
    inputs: tuple[BoltInput, ...]
    outputs: Outputs
    conf: Mapping[str, Any] = field(repr=False)

    def context(self, context: OperationContext) -> TopologyContext:
        return TopologyContext.of(self.id, context)

    def tuple_of(self, attempt: TransactionAttempt, values: tuple[Any, ...], place: int = 0) -> BoltTuple:
        """A tuple of the input number `place`."""
        return BoltTuple(self.inputs[place], (attempt, *values))


class _Calls(Operation):
    """One bolt in one partition and attempt. `__qualname__` is that of the user's class, for plans and errors."""

    def __init__(self, bolt: BoltOfTopology) -> None:
        self.bolt = bolt
        self.__qualname__ = type(bolt.bolt).__qualname__

    def prepare(self, context: OperationContext) -> None:
        self.context = context
        self.attempt = TransactionAttempt(context.txid, context.attempt)


class BasicBoltCalls(_Calls):
    """A basic bolt on one of its inputs: a function from one tuple to the emitted tuples."""

    def __init__(self, bolt: BoltOfTopology, place: int) -> None:
        super().__init__(bolt)
        self._place = place

    def prepare(self, context: OperationContext) -> None:
        super().prepare(context)
        self._given: list[tuple[Any, ...]] = []
        self._collector = BatchOutputCollector(self.bolt.outputs, self.attempt, self._take)
        self._basic.prepare(self.bolt.conf, self.bolt.context(context))

    def _take(self, *row: Any) -> None:
        self._given.append(row)

    def execute(self, *values: Any) -> list[tuple[Any, ...]]:
        self._given = []
        self._basic.execute(self.bolt.tuple_of(self.attempt, values, self._place), self._collector)
        return self._given

    def cleanup(self) -> None:
        self._basic.cleanup()

    @property
    def _basic(self) -> BasicBolt:
        assert isinstance(self.bolt.bolt, BasicBolt)
        return self.bolt.bolt


class _BatchCalls(_Calls):
    def _begin(self, collector: Collector) -> BaseBatchBolt[TransactionAttempt]:
        bolt = self.bolt.bolt
        assert isinstance(bolt, BaseBatchBolt)
        emitted = BatchOutputCollector(self.bolt.outputs, self.attempt, collector.emit)
        bolt.prepare(self.bolt.conf, self.bolt.context(self.context), emitted, self.attempt)
        return bolt


class BatchBoltCalls(_BatchCalls, Aggregator[BaseBatchBolt[TransactionAttempt]]):
    """A batch bolt with one input."""

    def init(self, batch: TransactionAttempt, collector: Collector) -> BaseBatchBolt[TransactionAttempt]:
        return self._begin(collector)

    def aggregate(self, state: BaseBatchBolt[TransactionAttempt], collector: Collector, *values: Any) -> None:
        state.execute(self.bolt.tuple_of(self.attempt, values))

    def complete(self, state: BaseBatchBolt[TransactionAttempt], collector: Collector) -> None:
        state.finish_batch()


class JoiningBoltCalls(_BatchCalls, MultiReducer[BaseBatchBolt[TransactionAttempt]]):
    """A batch bolt with several inputs."""

    def init(self, collector: Collector) -> BaseBatchBolt[TransactionAttempt]:
        return self._begin(collector)

    def execute(
        self, state: BaseBatchBolt[TransactionAttempt], stream_index: int, collector: Collector, *values: Any
    ) -> None:
        state.execute(self.bolt.tuple_of(self.attempt, values, stream_index))

    def complete(self, state: BaseBatchBolt[TransactionAttempt], collector: Collector) -> None:
        state.finish_batch()


@dataclass(frozen=True, slots=True)
class CommitterGrouping:
    """How an input's tuples reach a committer's tasks. `all`: each tuple to every task; `one`: all to the first task;
    `keys`: by the values at these positions; by default: evenly."""

    all: bool = False
    one: bool = False
    keys: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CommitterBolt(CommitterWork):
    """A committer as a state of a topology.

    :param tasks: how many objects run, one after the other.
    :param groupings: for each input, how its tuples reach the tasks.
    """

    bolt: BoltOfTopology
    tasks: int = 1
    groupings: tuple[CommitterGrouping, ...] = ()

    def describe(self) -> str:
        name = type(self.bolt.bolt).__qualname__.rpartition("<locals>.")[2]
        return f"{name}, a committer with a database of its own, in {self.tasks} task{'s' * (self.tasks != 1)}"

    @property
    def note(self) -> str:
        return (
            "runs at least once for each transaction: what makes its database exactly once is the txid of its "
            "TransactionAttempt, kept there in the step that changes the data"
        )

    def inputs(self, rows: list[tuple[Any, ...]]) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Input number and values of each staged tuple."""
        widths = [len(bolt_input.fields) - 1 for bolt_input in self.bolt.inputs]
        if len(widths) == 1:
            yield from ((0, row) for row in rows)
            return
        ends = [1 + sum(widths[: place + 1]) for place in range(len(widths))]
        for row in rows:
            place = row[0]
            yield place, row[ends[place] - widths[place] : ends[place]]
