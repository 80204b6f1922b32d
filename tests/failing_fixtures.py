"""Topologies in which users' code, data or a spout is at fault, each in one row."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from airflow_trident import (
    Collector,
    CombinerAggregator,
    CustomGrouping,
    FixedBatchSpout,
    Function,
    OperationContext,
    Sum,
    Topology,
)
from airflow_trident.errors import DamagedInputError
from airflow_trident.operations.expressions import col
from airflow_trident.protocol.spouts import Emitter, Split
from airflow_trident.types import Json
from tests.engine_fixtures import keep, lines, sales
from tests.plan_fixtures import PaperState
from tests.verb_fixtures import Both, Latest, cities

if TYPE_CHECKING:
    import pyarrow as pa


class CannotPrepare(Function):
    def prepare(self, context: OperationContext) -> None:
        raise ConnectionError("no database")

    def execute(self, line: str) -> Iterator[str]:
        yield line


class Touchy(CombinerAggregator[int]):
    def init(self, *values: Any) -> int:
        return 100 // (len(values[0]) - 3)

    def combine(self, left: int, right: int) -> int:
        return left + right

    def zero(self) -> int:
        return 0


def refuse_ran(line: str) -> Iterator[str]:
    for word in line.split():
        if word == "ran":
            raise KeyError(word)
        yield word


def a_function_raises(topology: Topology) -> None:
    keep(lines(topology).each("line", refuse_ran, "word string"))


def a_function_raises_behind_a_shuffle(topology: Topology) -> None:
    keep(lines(topology).shuffle().each("line", refuse_ran, "word string").partition_by("word"))


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError

    __repr__ = __str__


def leave(line: str) -> Iterator[str]:
    yield line
    if line == "the dog":
        sys.exit(3)


def raise_speechless(line: str) -> Iterator[str]:
    yield line
    if line == "the dog":
        raise Speechless


def a_function_exits(topology: Topology) -> None:
    keep(lines(topology).each("line", leave, "again string"))


def an_exception_without_a_text(topology: Topology) -> None:
    keep(lines(topology).each("line", raise_speechless, "again string"))


def a_value_that_cannot_be_shown(topology: Topology) -> None:
    keep(lines(topology).each("line", lambda line: [Speechless() if line == "the dog" else line], "again string"))


def a_filter_raises(topology: Topology) -> None:
    keep(sales(topology).filter("n, id", lambda n, id: 7 // (id - 4) > n / 5 if id == 4 else True))


def a_map_raises(topology: Topology) -> None:
    keep(lines(topology).map(lambda line: str(1 / (len(line) - 7)), "x string"))


def two_newest_tuples_of_a_key(topology: Topology) -> None:
    rows = [(1, "old", 1), (1, "here", 2), (2, "there", 2), (1, "there", 2)]
    changes = topology.new_stream("changes", FixedBatchSpout("id long, city string, at long", rows, splits=3))
    changes.partition_persist(PaperState(), "id, city", keys="id", order_by="at", name="cities")


def prepare_raises(topology: Topology) -> None:
    keep(lines(topology).each("line", CannotPrepare(), "again"))


def a_value_of_another_type(topology: Topology) -> None:
    keep(sales(topology).each("id", lambda id: ["seven" if id == 3 else id], "same long"))


def a_whole_number_too_large(topology: Topology) -> None:
    keep(sales(topology).each("id", lambda id: [2**63 if id == 3 else id], "same long"))


def too_many_values(topology: Topology) -> None:
    keep(sales(topology).each("id", lambda id: [(id, 1, 2) if id == 3 else (id, 1)], "a long, b long"))


def a_text_instead_of_outputs(topology: Topology) -> None:
    keep(sales(topology).project("city").filter(col("city") == "paris").each("city", lambda city: city, "x string"))


def an_expression_overflows(topology: Topology) -> None:
    keep(sales(topology).filter(col("id") == 2).each(col("n") * 2**62, "huge"))


def a_cast_does_not_fit(topology: Topology) -> None:
    keep(lines(topology, ["12", " 7 ", "x1"]).each(col("line").cast("int"), "number"))


def a_sum_overflows(topology: Topology) -> None:
    big = sales(topology).each("n", lambda n: [2**62], "big long")
    big.group_by("city").persistent_aggregate(PaperState(), "big", Sum(), "total")


def a_combiner_raises(topology: Topology) -> None:
    words = lines(topology, ["four", "seven", "six"]).group_by("line")
    words.persistent_aggregate(PaperState(), "line", Touchy(), "n long")


class Picky(Both):
    """Raises on one tuple, or gives at the end what it did not declare."""

    def __init__(self, last: tuple[Any, ...] = ("sum", 1)) -> None:
        self.last = last

    def aggregate(self, state: list[int], collector: Collector, *values: Any) -> None:
        if values[0] == 3 and self.last == ("sum", 1):
            raise LookupError("three")

    def complete(self, state: list[int], collector: Collector) -> None:
        collector.emit(*self.last)


class PickyOf(Latest):
    def execute(self, state: Any, stream_index: int, group: Any, collector: Collector, *values: Any) -> None:
        if stream_index == 1 and group == ("rome",):
            raise LookupError(values[0])


class Beyond(CustomGrouping):
    def choose_partitions(self, num_partitions: int, *values: Any) -> list[int]:
        return [num_partitions] if values[0] == 3 else [0]


def an_aggregator_raises(topology: Topology) -> None:
    keep(sales(topology).group_by("city").aggregate("id", Picky(), "what, value"))


def an_aggregator_emits_too_much(topology: Topology) -> None:
    keep(sales(topology).aggregate("id", Picky(("a", 1, 2)), "what, value"))


def an_aggregator_emits_another_type(topology: Topology) -> None:
    keep(sales(topology).aggregate("id", Picky((1, "a")), "what, value"))


def a_multi_reducer_raises(topology: Topology) -> None:
    grouped = [sales(topology).group_by("city"), cities(topology).group_by("town")]
    keep(topology.multi_reduce(["id", "rank"], grouped, PickyOf(), "a, b, c"))


def a_grouping_names_no_partition(topology: Topology) -> None:
    keep(sales(topology).project("id").partition(Beyond()).parallelism_hint(2))


def a_consumer_raises(topology: Topology) -> None:
    keep(sales(topology).peek("id", lambda id: 1 // (id - 3)))


FAILING: dict[str, Callable[[Topology], None]] = {
    build.__name__: build
    for build in (
        a_function_raises,
        a_function_exits,
        an_exception_without_a_text,
        a_value_that_cannot_be_shown,
        a_function_raises_behind_a_shuffle,
        a_filter_raises,
        a_map_raises,
        two_newest_tuples_of_a_key,
        prepare_raises,
        a_value_of_another_type,
        a_whole_number_too_large,
        too_many_values,
        a_text_instead_of_outputs,
        an_expression_overflows,
        a_cast_does_not_fit,
        a_sum_overflows,
        a_combiner_raises,
        an_aggregator_raises,
        an_aggregator_emits_too_much,
        an_aggregator_emits_another_type,
        a_multi_reducer_raises,
        a_grouping_names_no_partition,
        a_consumer_raises,
    )
}


class DamagedSpout(FixedBatchSpout):
    """Finds a line that it cannot read."""

    def __init__(self) -> None:
        super().__init__("x long", [(1,)])

    def emitter(self) -> Any:
        return DamagedEmitter()


class DamagedEmitter(Emitter):
    def splits(self, metadata: Json) -> list[Split]:
        return [Split(0, None)]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        raise DamagedInputError("line 3 of x.csv has 2 fields", "Mend the file.")
