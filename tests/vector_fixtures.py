"""Vectorised functions, and a topology of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_trident import Count, Max, OperationContext, Topology, VectorFilter, VectorFunction
from airflow_trident.operations.expressions import col, explode
from airflow_trident.types import INTERVAL
from tests.engine_fixtures import Words, keep, lines, sales
from tests.plan_fixtures import PaperState

if TYPE_CHECKING:
    import pyarrow as pa


class Length(VectorFunction):
    """Knows whether it was prepared; Arrow counts in int32."""

    output_types = "long"
    prepared = False

    def prepare(self, context: OperationContext) -> None:
        self.prepared = True

    def execute(self, *columns: pa.Array) -> pa.Array:
        import pyarrow.compute as pc

        assert self.prepared
        return pc.utf8_length(columns[0])


class Halves(VectorFunction):
    """Two fields: half the number, by NumPy, and its letters as an array."""

    output_types = "double, array<string>"

    def execute(self, *columns: pa.Array) -> tuple[Any, pa.Array]:
        import pyarrow.compute as pc

        number, text = columns
        return number.fill_null(0).to_numpy() / 2, pc.split_pattern(text.cast("large_string"), "e")


class Many(VectorFilter):
    """Null, where the number is null."""

    def is_keep(self, *columns: pa.Array) -> pa.Array:
        import pyarrow.compute as pc

        return pc.greater(columns[0], 2)


class Clock(VectorFunction):
    """A time of day in seconds, and an interval."""

    output_types = f"time, {INTERVAL}"

    def execute(self, *columns: pa.Array) -> tuple[pa.Array, pa.Array]:
        import pyarrow as pa

        number = columns[0].fill_null(0)
        return number.cast(pa.int32()).cast(pa.time32("s")), number.cast(pa.int64()).cast(pa.duration("s"))


class Upper(VectorFunction):
    def execute(self, *columns: pa.Array) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        return pa.chunked_array([pc.utf8_upper(columns[1])]).dictionary_encode()


def vectors(topology: Topology) -> None:
    words = lines(topology).each("line", Words(), "word").each("word", Length(), "size")
    words.filter(col("size") > 1).group_by("size").persistent_aggregate(PaperState(), Count(), "sizes")
    stream = sales(topology)
    halves = stream.each("n, fruit", Halves(), "half, parts").filter("n", Many())
    keep(halves.project("id, half, parts"), "halves")
    keep(stream.each("n, fruit", Halves(), "half, parts").each(explode(col("parts")), "part").project("part"), "parts")
    keep(stream.project("id, city").map(Upper(), "city string"), "upper")
    clocks = stream.each("n", Clock(), "clock, took").shuffle()
    keep(clocks.group_by("clock").aggregate("took", Max(), "longest"), "clocks")
    keep(stream.filter(col("id") > 99).map(Upper(), "city string"), "none")
