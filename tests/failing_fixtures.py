"""Topologies in which users' code, data or a spout is at fault, each in one row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from airflow_trident import CombinerAggregator, FixedBatchSpout, Function, OperationContext, Sum, Topology
from airflow_trident.errors import DamagedInputError
from airflow_trident.operations.expressions import col
from airflow_trident.protocol.spouts import Emitter, Split
from airflow_trident.types import Json
from tests.engine_fixtures import keep, lines, sales
from tests.plan_fixtures import PaperState

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


def a_filter_raises(topology: Topology) -> None:
    keep(sales(topology).filter("n, id", lambda n, id: 7 // (id - 4) > n / 5 if id == 4 else True))


def a_map_raises(topology: Topology) -> None:
    keep(lines(topology).map(lambda line: str(1 / (len(line) - 7)), "x string"))


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


FAILING: dict[str, Callable[[Topology], None]] = {
    build.__name__: build
    for build in (
        a_function_raises,
        a_function_raises_behind_a_shuffle,
        a_filter_raises,
        a_map_raises,
        prepare_raises,
        a_value_of_another_type,
        a_whole_number_too_large,
        too_many_values,
        a_text_instead_of_outputs,
        an_expression_overflows,
        a_cast_does_not_fit,
        a_sum_overflows,
        a_combiner_raises,
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
