"""Stateful bolts as in Storm (IStatefulBolt, BaseStatefulBolt): tuples in, a collector, a key-value state.
`stream.stateful()` runs them like a `StatefulFunction`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from airflow_trident.errors import PlanError
from airflow_trident.operations.api import OperationContext
from airflow_trident.operations.stateful import KeyValues, MakesStateful, StatefulFunction
from airflow_trident.storm.bolt_wiring import BoltInput
from airflow_trident.storm.bolts import DEFAULT_STREAM, BoltTuple, TopologyContext
from airflow_trident.types import FieldSpec, Schema, parse_declared

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
