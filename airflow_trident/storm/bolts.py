"""Bolts, after Storm's IBasicBolt, IBatchBolt and ICommitter: the parts of a transactional topology.

All must be picklable and open nothing before `prepare`. Each attempt of each partition gets a copy of the object that
the builder was given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from airflow_trident.errors import FieldError, PlanError
from airflow_trident.operations.api import OperationContext, TransactionAttempt
from airflow_trident.storm.bolt_wiring import BoltInput, Output, Outputs
from airflow_trident.types import FieldSpec, names_of, parse_declared, require_distinct, split_spec

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

    def __init__(self, given: BoltInput, values: tuple[Any, ...]) -> None:
        self._input = given
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
        where = f"stream {stream!r} of component {self._component!r}"
        if stream in self.streams:
            raise PlanError(f"{where} is declared twice", "Declare each stream once.")
        first, *rest = split_spec(fields) or ("",)
        if not rest:
            raise PlanError(
                f"{where} is declared with ({first})",
                'The first field is the TransactionAttempt; name one more with its type, as in "id, count long".',
            )
        if " " in first:
            raise FieldError(
                f"the first field of {where} is {first!r}", "It is the TransactionAttempt: leave out a type."
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

    def emit(self, *what: Any) -> None:
        """:raises ValueError: the stream is not declared, or the values do not match its fields."""
        values = what[0] if len(what) == 1 else None
        if type(values) is list and len(values) == self._plain and values[0] is self._attempt:
            self._give(*values[1:])  # the usual case, three times as fast
            return
        if len(what) not in (1, 2) or isinstance(what[-1], str):
            raise ValueError("emit takes (values) or (stream, values)")
        self._give(*self._row(what[0] if len(what) == 2 else DEFAULT_STREAM, what[-1], self._attempt))


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
