"""Operations of every kind that find out whether they share anything with another partition or attempt (E5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_trident import (
    Aggregator,
    Collector,
    CombinerAggregator,
    CustomGrouping,
    Filter,
    Function,
    GroupedMultiReducer,
    MultiReducer,
    OperationContext,
    ReducerAggregator,
    Topology,
    TransactionAttempt,
    VectorFilter,
    VectorFunction,
)
from tests.engine_fixtures import keep, sales

if TYPE_CHECKING:
    import pyarrow as pa


class Alone:
    """Keeps in `self` what `prepare` opened, as most operations do that have one."""

    context: OperationContext | None = None

    def prepare(self, context: OperationContext) -> None:
        assert not vars(self), f"it was prepared before: {vars(self)}"
        self.context = context

    def cleanup(self) -> None:
        self.used()
        self.context = None

    def used(self) -> OperationContext:
        assert self.context is not None, "not prepared, or cleaned up already"
        return self.context


class Txid(Alone, Function):
    output_types = "long"

    def execute(self, *values: Any) -> Iterator[int]:
        yield self.used().txid


class Known(Alone, Filter):
    def is_keep(self, *values: Any) -> bool:
        return self.used().txid == 1


class TxidOfAll(Alone, VectorFunction):
    output_types = "long"

    def execute(self, *columns: pa.Array) -> Any:
        import numpy as np

        return np.full(len(columns[0]), self.used().txid)


class KnownOfAll(Alone, VectorFilter):
    def is_keep(self, *columns: pa.Array) -> Any:
        import numpy as np

        return np.full(len(columns[0]), self.used().txid == 1)


class Most(Alone, CombinerAggregator[int]):
    def init(self, *values: Any) -> int:
        return self.used().txid + (values[0] or 0)

    def combine(self, left: int, right: int) -> int:
        self.used()
        return max(left, right)

    def zero(self) -> int:
        return 0


class Total(Alone, ReducerAggregator[int]):
    def init(self) -> int:
        return self.used().txid

    def reduce(self, current: int, *values: Any) -> int:
        self.used()
        return current + (values[0] or 0)


class Number(Alone, Aggregator[list[Any]]):
    output_types = "long"

    def init(self, batch: TransactionAttempt, collector: Collector) -> list[Any]:
        assert batch.txid == self.used().txid
        return []

    def aggregate(self, state: list[Any], collector: Collector, *values: Any) -> None:
        self.used()
        state.append(values)

    def complete(self, state: list[Any], collector: Collector) -> None:
        self.used()
        collector.emit(len(state))


class Pairs(Alone, MultiReducer[list[int]]):
    output_types = "long"

    def init(self, collector: Collector) -> list[int]:
        return [self.used().txid]

    def execute(self, state: list[int], stream_index: int, collector: Collector, *values: Any) -> None:
        state[0] += stream_index

    def complete(self, state: list[int], collector: Collector) -> None:
        self.used()
        collector.emit(state[0])


class PairsOf(Alone, GroupedMultiReducer[list[int]]):
    output_types = "string, long"

    def init(self, group: Any, collector: Collector) -> list[int]:
        return [self.used().txid]

    def execute(self, state: list[int], stream_index: int, group: Any, collector: Collector, *values: Any) -> None:
        state[0] += stream_index

    def complete(self, state: list[int], group: Any, collector: Collector) -> None:
        self.used()
        collector.emit(group[0], state[0])


class First(Alone, CustomGrouping):
    def choose_partitions(self, num_partitions: int, *values: Any) -> list[int]:
        return [self.used().txid % num_partitions]


def operations_with_a_life(topology: Topology) -> None:
    """The function and the filter are used twice in one pass: two uses, two copies."""
    txid, known = Txid(), Known()
    stream = sales(topology).each("id", txid, "one").each("id", txid, "two").filter("id", known).filter("n", known)
    stream = stream.each("id", TxidOfAll(), "three").filter("id", KnownOfAll())
    keep(stream, "rows")
    keep(stream.project("id, n").map(TxidOfAll(), "txid long"), "mapped")
    keep(stream.project("id").flat_map(txid, "txid long"), "flat")
    keep(stream.partition(First()).project("id"), "moved")
    groups = stream.group_by("city")
    keep(groups.aggregate("n", Most(), "most"), "most")
    keep(stream.aggregate("n", Most(), "most"), "most_of_all")
    keep(groups.aggregate("n", Total(), "total"), "total")
    keep(groups.aggregate("n", Number(), "number"), "number")
    other = stream.project("city")
    both = [stream.global_(), other.global_()]
    keep(topology.multi_reduce(["city", "city"], both, Pairs(), "one"), "pairs")
    grouped = [groups, other.group_by("city")]
    keep(topology.multi_reduce(["city", "city"], grouped, PairsOf(), "place, n"), "pairs_of")
