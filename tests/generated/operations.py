"""Functions, aggregators, reducers and groupings as users might write them, for random topologies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_trident import (
    Aggregator,
    CombinerAggregator,
    CustomGrouping,
    GroupedMultiReducer,
    MultiReducer,
    ReducerAggregator,
    VectorFilter,
    VectorFunction,
)
from airflow_trident.operations.interfaces import Collector
from airflow_trident.storm import TransactionAttempt

if TYPE_CHECKING:
    import pyarrow as pa

Row = tuple[Any, ...]


def repeat(k: str | None, n: int | None) -> Iterator[int]:
    yield from range(len(k or "") if n is None else abs(n) % 3)


def is_short(k: str | None) -> bool:
    return len(k or "") < 2


def turned(k: str | None, n: int | None, x: float | None) -> Row:
    return k, None if n is None else -n, x


def doubled(k: str | None, n: int | None, x: float | None) -> Iterator[Row]:
    yield k, n, x
    if n is not None and n % 2:
        yield "odd", n, None


class Longest(CombinerAggregator[str]):
    def init(self, *values: Any) -> str:
        return values[0] or ""

    def combine(self, left: str, right: str) -> str:
        return max(left, right, key=lambda text: (len(text), text))

    def zero(self) -> str:
        return ""


class Letters(ReducerAggregator[str]):
    def init(self) -> str:
        return ""

    def reduce(self, current: str, *values: Any) -> str:
        return "".join(sorted({*current, *(values[0] or "")}))


class Odds(Aggregator[list[Any]]):
    """Emits the odd numbers at once, and at the end the number of others if there were any."""

    output_types = "string, long"

    def init(self, batch: TransactionAttempt, collector: Collector) -> list[Any]:
        return []

    def aggregate(self, state: list[Any], collector: Collector, *values: Any) -> None:
        if values[0] is not None and values[0] % 2:
            collector.emit("odd", values[0])
        else:
            state.append(values[0])

    def complete(self, state: list[Any], collector: Collector) -> None:
        if state:
            collector.emit("others", len(state))


class Sides(MultiReducer[list[int]]):
    output_types = "string, long, double"

    def init(self, collector: Collector) -> list[int]:
        return [0, 0]

    def execute(self, state: list[int], stream_index: int, collector: Collector, *values: Any) -> None:
        state[stream_index] += 1

    def complete(self, state: list[int], collector: Collector) -> None:
        collector.emit("sides", state[0] - state[1], None)


class SidesOf(GroupedMultiReducer[list[int]]):
    output_types = "string, long, double"

    def init(self, group: Row, collector: Collector) -> list[int]:
        return [0, 0]

    def execute(self, state: list[int], stream_index: int, group: Row, collector: Collector, *values: Any) -> None:
        state[stream_index] += 1

    def complete(self, state: list[int], group: Row, collector: Collector) -> None:
        collector.emit(group[0], state[0] - 10 * state[1], None)


class Twice(CustomGrouping):
    def choose_partitions(self, num_partitions: int, *values: Any) -> list[int]:
        return [0, num_partitions - 1] if values[0] == "a" else [num_partitions - 1]


def compare(left: Row, right: Row) -> int:
    one, other = _order(left), _order(right)
    return (one > other) - (one < other)


def _order(row: Row) -> Row:
    return tuple((value is None, value != value, 0 if value is None or value != value else value) for value in row[:3])


class Doubled(VectorFunction):
    """Two fields: twice the number, and the text unchanged."""

    output_types = "long, string"

    def execute(self, *columns: pa.Array) -> tuple[pa.Array, pa.Array]:
        import pyarrow.compute as pc

        return pc.multiply(columns[0], 2), columns[1]


class AboveZero(VectorFilter):
    """Null if the number is null."""

    def is_keep(self, *columns: pa.Array) -> pa.Array:
        import pyarrow.compute as pc

        return pc.greater(columns[0], 0)


class Turned(VectorFunction):
    """Other values and another order: 0 instead of null."""

    def execute(self, *columns: pa.Array) -> tuple[pa.Array, ...]:
        k, n, x = columns
        return k, n.fill_null(0), x
