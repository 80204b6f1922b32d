"""Bolts as operations that engines can run: which method of a bolt is called when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_trident.contracts.state import CommitterWork
from airflow_trident.operations.api import Aggregator, Collector, Operation, OperationContext, TransactionAttempt
from airflow_trident.operations.multireduce import MultiReducer
from airflow_trident.storm.bolt_wiring import BoltInput, Outputs
from airflow_trident.storm.bolts import (
    BaseBatchBolt,
    BasicBolt,
    BatchOutputCollector,
    Bolt,
    BoltTuple,
    TopologyContext,
)


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
        widths = [len(one.fields) - 1 for one in self.bolt.inputs]
        if len(widths) == 1:
            yield from ((0, row) for row in rows)
            return
        ends = [1 + sum(widths[: place + 1]) for place in range(len(widths))]
        for row in rows:
            place = row[0]
            yield place, row[ends[place] - widths[place] : ends[place]]
