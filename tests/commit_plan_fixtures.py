"""Shapes of topologies with a commit phase, for golden plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

from airflow_trident import Count, Function, KeyValueStates, StatefulFunction, Sum, Topology, TumblingCountWindow
from airflow_trident.operations.queries import MapGet
from airflow_trident.operations.stateful import KeyValues
from airflow_trident.topology.stream import Stream
from tests.plan_fixtures import Longer, PaperSpout, PaperState, Split


def words(topology: Topology) -> Stream:
    return topology.new_stream("lines", PaperSpout()).each("line", Split(), "word").project("word")


def new_values(topology: Topology) -> None:
    stream = words(topology)
    counts = stream.group_by("word").persistent_aggregate(PaperState(), Count(), "count")
    updates = counts.new_values_stream().persistent_aggregate(PaperState(), "count", Sum(), "updates")
    sizes = stream.aggregate(Count(), "size")
    both = topology.merge([updates.new_values_stream(), sizes], "number")
    both.persistent_aggregate(PaperState(), "number", Sum(), "total")


def state_query(topology: Topology) -> None:
    stream = words(topology)
    counts = stream.group_by("word").persistent_aggregate(PaperState(), Count(), "count")
    asked = stream.state_query(counts, "word", MapGet(), "before").partition_by("word")
    asked.partition_persist(PaperState(), "word, before", keys="word", name="while_processing")
    asked = stream.state_query(counts, "word", MapGet(), "after", after_commit=True)
    asked.partition_persist(PaperState(), "word, after", keys="word", name="after_the_commit")


def grouped_state_query(topology: Topology) -> None:
    stream = words(topology)
    counts = stream.group_by("word").persistent_aggregate(PaperState(), Count(), "count")
    asked = stream.group_by("word").state_query(counts, "word", MapGet(), "before")
    asked.partition_persist(PaperState(), "word, before", keys="word", name="asked")


def window(topology: Topology) -> None:
    stream = topology.new_stream("sales", PaperSpout("product string, price double, at timestamp"))
    ends = stream.tumbling_window(
        timedelta(hours=1), PaperState(), "price", Sum(), "turnover", time="at", lag=timedelta(minutes=5), bounds=True
    )
    ends.partition_persist(PaperState(), "window_start, turnover", keys="window_start", name="hourly")
    stream.sliding_window(100, 10, PaperState(), Count(), "n").persistent_aggregate(PaperState(), Count(), "windows")
    by_product = stream.group_by("product").window(TumblingCountWindow(5), PaperState(), Count(), "five")
    by_product.partition_persist(PaperState(), "product, five", keys="product", name="by_product")


def partitioned_again(topology: Topology) -> None:
    """What is handed on is repartitioned once more, because it is merged partition by partition."""
    stream = words(topology)
    counts = stream.group_by("word").persistent_aggregate(PaperState(), Count(), "count").new_values_stream()
    plain = stream.partition_by("word").each("word", Size(), "count")
    both = topology.merge([counts.partition_by("word").filter("word", Longer()), plain])
    sums = both.group_by("word").partition_aggregate("count", Sum(), "sum")
    sums.partition_persist(PaperState(), "word, sum", keys="word", name="sums")


class Size(Function):
    def execute(self, word: str) -> Iterator[int]:
        yield len(word)


def stateful(topology: Topology) -> None:
    store = KeyValueStates("sqlite", {"path": "counts.db"})
    words(topology).stateful("word", Seen(), provider=store, keys="word", partitions=2)


class Seen(StatefulFunction[str, int]):
    def init_state(self, state: KeyValues[str, int]) -> None: ...

    def execute(self, *values: str) -> None: ...


def query(topology: Topology) -> None:
    """What is asked of a state that another topology keeps, and of nothing else."""
    counts = topology.new_static_state(
        PaperState(), "count", keys="word string", values="count long", topology="word_count"
    )
    asked = topology.new_drpc_stream("sum_of").each("args", Split(), "word").group_by("word")
    asked.state_query(counts, "word", MapGet(), "count").aggregate("count", Sum(), "sum")


COMMIT_SHAPES: dict[str, Callable[[Topology], None]] = {
    "new_values": new_values,
    "state_query": state_query,
    "grouped_state_query": grouped_state_query,
    "partitioned_again": partitioned_again,
    "stateful": stateful,
    "window": window,
}
