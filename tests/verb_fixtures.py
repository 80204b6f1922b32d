"""Topologies of the verbs that bring streams together, repartition, or aggregate in other ways than by combiner."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from airflow_trident import (
    Aggregator,
    Collector,
    Count,
    CustomGrouping,
    FixedBatchSpout,
    GroupedMultiReducer,
    JoinOutFieldsMode,
    JoinType,
    MultiReducer,
    OperationContext,
    Sum,
    Topology,
    TransactionAttempt,
)
from airflow_trident.operations.expressions import col
from tests.engine_fixtures import Distinct, keep, sales
from tests.plan_fixtures import PaperState

INNER, OUTER = JoinType.INNER, JoinType.OUTER


class Both(Aggregator[list[int]]):
    """Emits at any time: the number of the group at the beginning, every odd id, and the sum of all at the end."""

    prepared = False
    output_types = "string, long"

    def prepare(self, context: OperationContext) -> None:
        self.prepared = True

    def init(self, batch: TransactionAttempt, collector: Collector) -> list[int]:
        assert self.prepared
        collector.emit("txid", batch.txid)
        return []

    def aggregate(self, state: list[int], collector: Collector, *values: Any) -> None:
        state.append(values[0])
        if values[0] % 2:
            collector.emit("odd", values[0])

    def complete(self, state: list[int], collector: Collector) -> None:
        collector.emit("sum", sum(state))


class Silent(Both):
    """Emits nothing."""

    output_types = "long"

    def init(self, batch: TransactionAttempt, collector: Collector) -> list[int]:
        return []

    def aggregate(self, state: list[int], collector: Collector, *values: Any) -> None: ...

    def complete(self, state: list[int], collector: Collector) -> None: ...


class Tally(MultiReducer[list[int]]):
    """How many tuples of each stream."""

    output_types = "long, long"

    def init(self, collector: Collector) -> list[int]:
        return [0, 0]

    def execute(self, state: list[int], stream_index: int, collector: Collector, *values: Any) -> None:
        state[stream_index] += 1

    def complete(self, state: list[int], collector: Collector) -> None:
        collector.emit(*state)


class Latest(GroupedMultiReducer[dict[int, int]]):
    """Of each group the largest id of each stream, and every id of the second stream that is 3."""

    output_types = "string, long, long"

    def init(self, group: tuple[Any, ...], collector: Collector) -> dict[int, int]:
        return {}

    def execute(
        self, state: dict[int, int], stream_index: int, group: tuple[Any, ...], collector: Collector, *values: Any
    ) -> None:
        if stream_index == 1 and values[0] == 3:
            collector.emit("three", 3, None)
        state[stream_index] = max(state.get(stream_index, -1), values[0])

    def complete(self, state: dict[int, int], group: tuple[Any, ...], collector: Collector) -> None:
        collector.emit(group[0], state.get(0), state.get(1))


class ByTwo(CustomGrouping):
    """Even ids to the first partition, those that three divides to the last, so some to both and some to none."""

    def choose_partitions(self, num_partitions: int, *values: Any) -> Iterable[int]:
        (number,) = values
        return [0] * (number % 2 == 0) + [num_partitions - 1] * (number % 3 == 0)


def cities(topology: Topology, name: str = "cities") -> Any:
    rows = [("berlin", "de", 1), ("rome", "it", 2), (None, "?", 3), ("paris", "fr", 4), ("paris", "tx", 5)]
    return topology.new_stream(name, FixedBatchSpout("town string, land string, rank int", rows))


def merge_and_diamond(topology: Topology) -> None:
    stream = sales(topology)
    many = stream.filter(col("n") > 2).project("city, id")
    few = stream.filter(lambda city, fruit, n, price, id: (n or 0) <= 2).project("city, id")
    merged = topology.merge([many, few, cities(topology).project("town, rank")], "place, number")
    keep(merged, "merged")
    merged.group_by("place").persistent_aggregate(PaperState(), Count(), "places")
    keep(topology.merge([many, many]), "twice")
    by_place = topology.merge([many.partition_by("city"), few.partition_by("city")])
    keep(by_place.group_by("city").partition_aggregate("id", Sum(), "total"), "by_place")
    colocated = topology.merge([many.partition_by("city").filter(col("id") > 0), few.partition_by("city")])
    keep(colocated.group_by("city").partition_aggregate("id", Sum(), "total"), "colocated")
    keep(colocated.partition_by("id").group_by("id").partition_aggregate(Count(), "n"), "colocated_and_moved")


def joins(topology: Topology) -> None:
    left, right = sales(topology).project("id, city, n"), cities(topology)
    kinds: list[tuple[str, Any]] = [("inner", INNER), ("left", [INNER, OUTER]), ("full", OUTER)]
    for name, how in kinds:
        keep(topology.join([left, right], ["city", "town"], "city, id, n, land, rank", how), name)
    preserve = topology.join(
        [left, right], ["city", "town"], "id, city, n, town, land, rank", [OUTER, INNER], JoinOutFieldsMode.PRESERVE
    )
    keep(preserve, "right")
    third = sales(topology, "more").filter(col("id") > 2).project("fruit, city")
    three = topology.join([left, right, third], ["city", "town", "city"], "a, b, c, d, e, f", [INNER, OUTER, OUTER])
    keep(three, "three")
    three.group_by("a").persistent_aggregate(PaperState(), Count(), "per_city")


def multi_reducers(topology: Topology) -> None:
    left, right = sales(topology), cities(topology)
    keep(topology.multi_reduce(["id", "rank"], [left.global_(), right.batch_global()], Tally(), "a, b"), "tally")
    grouped = [left.group_by("city"), right.group_by("town")]
    keep(topology.multi_reduce(["id", "rank"], grouped, Latest(), "place, a, b"), "latest")
    each = topology.multi_reduce(
        ["id", "rank"], [left.partition_by("city"), right.partition_by("town")], Tally(), "a,b"
    )
    keep(each.aggregate(("a", Sum(), "a"), ("b", Sum(), "b")), "each")
    paired = topology.multi_reduce(["id", "rank"], [left.shuffle(), right.broadcast()], Pairs(), "pairs long")
    keep(paired.aggregate("pairs", Sum(), "pairs"), "pairs")


class Pairs(Tally):
    """How many pairs: every tuple of the first stream meets all of the second, if that was broadcast."""

    output_types = "long"

    def complete(self, state: list[int], collector: Collector) -> None:
        collector.emit(state[0] * state[1])


def aggregators(topology: Topology) -> None:
    stream = sales(topology)
    keep(stream.aggregate("id", Both(), "what, value"), "whole")
    keep(stream.group_by("city").aggregate("id", Both(), "what, value"), "by_city")
    several = stream.group_by("city").aggregate((Count(), "n_rows"), ("n", Sum(), "total"), ("price", Sum(), "money"))
    keep(several, "several")
    chained = stream.chained_agg().aggregate("id", Both(), "what, value").aggregate("id", Both(), "again, other")
    keep(chained.aggregate(Count(), "rows").chain_end(), "product")
    keep(stream.chained_agg().aggregate(Count(), "n").aggregate("id", Silent(), "none").chain_end(), "empty_product")
    mixed = stream.group_by("city").chained_agg().aggregate("fruit", Distinct(), "f").aggregate(Count(), "c")
    keep(mixed.aggregate("id", Both(), "what, value").chain_end(), "mixed")
    stream.group_by("city").persistent_aggregate(PaperState(), (Count(), "k"), ("n", Sum(), "s"), name="two")


def partition_aggregates(topology: Topology) -> None:
    stream = sales(topology)
    keep(stream.global_().min_by("n"), "least")
    keep(stream.global_().max_by("price").project("price, id"), "dearest")
    keep(stream.batch_global().max(lambda one, other: one[4] - other[4]), "last")
    keep(stream.filter(col("id") > 99).global_().min_by("id"), "none")
    keep(stream.partition_by("city").group_by("city").partition_aggregate("n", Sum(), "total"), "by_city")
    keep(stream.global_().partition_aggregate(Count(), "rows"), "rows_in_one")
    counts = stream.partition_by("city").partition_aggregate((Count(), "rows"), ("id", Both(), "what, value"))
    keep(counts.filter(col("what") == "odd").project("value"), "odd")
    keep(stream.partition_aggregate("id", Sum(), "part").aggregate("part", Sum(), "total"), "total")
    keep(stream.shuffle().partition_aggregate(Count(), "c").aggregate("c", Sum(), "total"), "counted")


def groupings(topology: Topology) -> None:
    stream = sales(topology).project("id")
    keep(stream.partition(ByTwo()).parallelism_hint(2), "by_two")
    keep(
        stream.broadcast().parallelism_hint(3).project("id").aggregate(Count(), "n").filter(col("n") > 0).project("n"),
        "broadcast",
    )
    kept = stream.local_or_shuffle().identity_partition().peek(lambda id: None).filter(col("id") > 1)
    keep(kept.batch_global().global_(), "kept")
    keep(
        stream.each("id", lambda id: [id], "again long").partition(ByThree()).parallelism_hint(4).project("again"),
        "after_python",
    )


class ByThree(ByTwo):
    def choose_partitions(self, num_partitions: int, *values: Any) -> Iterable[int]:
        return super().choose_partitions(num_partitions, values[-1])


def with_a_stream_without_data(topology: Topology) -> None:
    stream = sales(topology)
    absent = topology.new_stream("absent", FixedBatchSpout("city string, rank int", []))
    keep(topology.join([stream.project("city, id"), absent], ["city", "city"], "city, id, rank", [INNER, OUTER]), "j")
    keep(topology.merge([absent, stream.project("city, id")]), "m")
    keep(absent.global_().partition_aggregate(Count(), "n"), "counted")
    keep(topology.multi_reduce(["rank", "id"], [absent.global_(), stream.global_()], Tally(), "a, b"), "tally")


VERBS: dict[str, Callable[[Topology], None]] = {
    build.__name__: build
    for build in (
        merge_and_diamond,
        joins,
        multi_reducers,
        aggregators,
        partition_aggregates,
        groupings,
        with_a_stream_without_data,
    )
}
