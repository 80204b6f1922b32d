"""Topologies that every engine must run alike, and what is needed to run one batch of them."""

from __future__ import annotations

import datetime
import math
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from airflow_trident import (
    CombinerAggregator,
    Count,
    Filter,
    FixedBatchSpout,
    Function,
    Max,
    Min,
    OperationContext,
    ReducerAggregator,
    Sum,
    Topology,
)
from airflow_trident.arrow import table_to_rows
from airflow_trident.engine.base import Engine, Job
from airflow_trident.operations.expressions import (
    coalesce,
    col,
    concat,
    explode,
    length,
    lit,
    lower,
    size,
    split,
    split_words,
    when,
)
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.base import Manifest, Slot
from airflow_trident.types import INTERVAL
from tests.plan_fixtures import PaperState

if TYPE_CHECKING:
    pass

LINES = ["the cat sat", "the dog", "", "Größe the 猫 😀", "  the\tcat \n ran  ", "dog dog dog"]
SALES: list[tuple[Any, ...]] = [
    ("berlin", "apple", 3, 1.5),
    ("berlin", "pear", None, 2.25),
    ("paris", "apple", 7, None),
    (None, "fig", 1, 0.5),
    ("paris", None, 4, 8.0),
    ("berlin", "apple", 2, -1.0),
    (None, None, None, None),
]


class Words(Function):
    """Knows whether it was prepared, as one that opens a connection would."""

    prepared = False

    def prepare(self, context: OperationContext) -> None:
        assert context.txid == 1
        assert 0 <= context.partition_index < context.num_partitions
        self.prepared = True

    def execute(self, line: str) -> Iterator[str]:
        assert self.prepared
        yield from line.split()


class NotThe(Filter):
    def is_keep(self, word: str) -> bool:
        return word != "the"


class Longest(CombinerAggregator[str]):
    def init(self, *values: Any) -> str:
        return str(values[0])

    def combine(self, left: str, right: str) -> str:
        return max(left, right, key=lambda word: (len(word), word))

    def zero(self) -> str:
        return ""


class Distinct(ReducerAggregator[str]):
    """Does not depend on the order, which is not defined."""

    def init(self) -> str:
        return ""

    def reduce(self, current: str, *values: Any) -> str:
        return " ".join(sorted({*current.split(), str(values[0])}))


def pairs(word: str) -> Iterator[tuple[str, int]]:
    for place, letter in enumerate(word):
        yield letter, place


def swap(city: str | None, n: int | None) -> tuple[int | None, str | None]:
    return n, city


def letters(word: str) -> Iterable[str]:
    return list(word)


def sales(topology: Topology, name: str = "sales") -> Any:
    rows = [(*row, place) for place, row in enumerate(SALES)]
    spout = FixedBatchSpout("city string, fruit string, n long, price double, id int", rows, splits=3)
    return topology.new_stream(name, spout)


def lines(topology: Topology, rows: list[str] = LINES, name: str = "lines") -> Any:
    return topology.new_stream(name, FixedBatchSpout("line string", rows))


def keep(stream: Any, name: str = "rows") -> None:
    """Stage the stream as it is."""
    stream.partition_persist(PaperState(), list(stream.fields), lambda state, rows: None, keys=[], name=name)


# ---- the topologies --------------------------------------------------------------------------------------------


def word_count(topology: Topology) -> None:
    words = lines(topology).each("line", Words(), "word")
    words.group_by("word").persistent_aggregate(PaperState(), Count(), "n")


def word_count_in_the_jvm(topology: Topology) -> None:
    words = lines(topology).each(explode(split_words(lower(col("line")))), "word")
    words.group_by("word").persistent_aggregate(PaperState(), Count(), "n")


def functions_and_filters(topology: Topology) -> None:
    words = lines(topology).each("line", Words(), "word").filter("word", NotThe())
    keep(words.each("word", pairs, "letter, place").filter(lambda line, word, letter, place: place % 2 == 0))


def map_and_flat_map(topology: Topology) -> None:
    swapped = sales(topology).project("city, n").map(swap, "number long, town string")
    keep(swapped.project("town").filter(col("town").is_not_null()).flat_map(letters, "letter string"))


def project_reorders(topology: Topology) -> None:
    keep(sales(topology).project("price, city, id"))


def shuffle_and_partition_by(topology: Topology) -> None:
    keep(
        sales(topology).shuffle().each("n", lambda n: [n, n], "again long").partition_by("city").project("city, again")
    )


def built_ins_by_group(topology: Topology) -> None:
    stream = sales(topology)
    for field, what in (("n", Sum()), ("price", Sum()), ("n", Min()), ("fruit", Max()), ("price", Max())):
        name = f"{type(what).__name__}_{field}".lower()
        stream.group_by("city").persistent_aggregate(PaperState(), field, what, name)


def built_ins_after_python(topology: Topology) -> None:
    stream = sales(topology).each("n", lambda n: [n], "m int").project("city, m, fruit, price")
    for field, what in (("m", Sum()), ("price", Sum()), ("m", Min()), ("fruit", Max()), ("price", Max())):
        name = f"{type(what).__name__}_{field}".lower()
        stream.group_by("city").persistent_aggregate(PaperState(), field, what, name)


def user_combiner(topology: Topology) -> None:
    words = lines(topology).each("line", Words(), "word")
    longest = words.each(length(col("word")) % 2, "odd").group_by("odd").aggregate("word", Longest(), "longest")
    keep(longest.map(lambda odd, word: (word, odd), "word string, odd long"))


def user_reducer(topology: Topology) -> None:
    words = lines(topology).each("line", Words(), "word")
    keep(words.each(length(col("word")), "n").group_by("n").aggregate("word", Distinct(), "words"))


def global_aggregates(topology: Topology) -> None:
    words = lines(topology).each("line", Words(), "word")
    keep(words.aggregate(Count(), "n"), "count")
    keep(words.aggregate("word", Longest(), "longest"), "longest")
    keep(words.aggregate("word", Distinct(), "words"), "words")
    words.persistent_aggregate(PaperState(), "word", Min(), "first")


def aggregate_of_aggregate(topology: Topology) -> None:
    counts = lines(topology).each("line", Words(), "word").group_by("word").aggregate(Count(), "n")
    counts.group_by("n").persistent_aggregate(PaperState(), Count(), "words")


def several_streams_and_states(topology: Topology) -> None:
    words = lines(topology).each("line", Words(), "word")
    words.group_by("word").persistent_aggregate(PaperState(), Count(), "n")
    keep(words.filter("word", NotThe()).project("word"), "kept")
    sales(topology).group_by("city, fruit").persistent_aggregate(PaperState(), "n", Sum(), "sold")
    keep(topology.new_stream("absent", FixedBatchSpout("x long", [])), "absent_rows")


def expressions(topology: Topology) -> None:
    stream = sales(topology)
    stream = stream.each(coalesce(col("n"), 0) * 2 + 1, "odd").each(col("price") / col("n"), "unit")
    stream = stream.each(when(col("n") > 3, "many").when(col("n") > 1, "some").otherwise(col("fruit")), "how")
    stream = stream.each(concat(col("city"), "-", col("fruit")), "both").each(split(col("both"), "e"), "parts")
    stream = stream.filter((col("id") < 6) & (col("price").is_null() | (col("price") > -5)))
    keep(stream.each(size(col("parts")), "n_parts").each(-col("id") % 3, "rest").each(lit(7), "seven"))


def expressions_around_python(topology: Topology) -> None:
    stream = sales(topology).each(col("n") + 1, "more").filter(col("id") != 5)
    stream = stream.each("more", lambda more: [None if more is None else more * 10], "ten long")
    keep(stream.each(col("ten") - col("n"), "less").filter(col("less") > 0).project("less, fruit"))


def arrays_and_reals_as_groups(topology: Topology) -> None:
    stream = sales(topology).each("price", lambda p: [math.nan if p is None else p], "real double")
    stream = stream.each("fruit", lambda f: [[f, f]], "array array<string>")
    keep(stream.group_by("real").aggregate(Count(), "n"), "reals")
    keep(stream.group_by("array").aggregate(Count(), "n"), "arrays")
    keep(stream.group_by("city").aggregate("real", Max(), "most"), "most")
    rows = [(-0.0, "a"), (-0.0, "b"), (0.0, "a"), (1.0, "b")]
    zeros = topology.new_stream("zeros", FixedBatchSpout("x double, name string", rows))
    keep(zeros.group_by("x").aggregate(Count(), "n"), "zeros")
    keep(zeros.group_by("x").aggregate("name", Distinct(), "names"), "names")
    keep(topology.join([zeros, zeros], ["x", "x"], "x, one, other"), "pairs")


class Basket(TypedDict):
    fruit: str | None
    tags: dict[str, int]


def _basket(fruit: str | None, n: int | None) -> Basket:
    return {"fruit": fruit, "tags": {} if n is None else {"n": n, "é": -n}}


def _tags(basket: Basket) -> list[dict[str, int]]:
    return [basket["tags"]]


def _days(n: int) -> list[dict[datetime.date, list[dict[str, int]]]]:
    return [{datetime.date(2024, 1, 1 + n): [{"n": n}]}]


class Baskets(ReducerAggregator[list[Basket]]):
    output_types = "array<struct<fruit:string,tags:map<string,long>>>"

    def init(self) -> list[Basket]:
        return []

    def reduce(self, current: list[Basket], *values: Any) -> list[Basket]:
        return sorted([*current, values[0]], key=repr)


def maps_and_structs(topology: Topology) -> None:
    stream = sales(topology).each("id", _days, "days map<date, array<struct<n: int>>>").shuffle()
    keep(stream.each("days", lambda days: [max(days).day], "day int").project("day, days"), "days")
    baskets = stream.project("fruit, n").map(_basket, "basket").shuffle()
    keep(baskets.each("basket", _tags, "tags"), "tags")
    keep(baskets.filter("basket", lambda basket: len(basket["tags"]) != 0), "full")
    keep(baskets.aggregate("basket", Baskets(), "baskets"), "one")


def _since_midnight(clock: datetime.time | None) -> datetime.timedelta:
    if clock is None:
        return datetime.timedelta(days=-1)
    return datetime.timedelta(hours=clock.hour, minutes=clock.minute, microseconds=clock.microsecond)


def _spans(clock: datetime.time | None, took: datetime.timedelta | None) -> list[dict[datetime.time, Any]]:
    return [{} if clock is None else {clock: [took, None]}]


def _without_minutes(clock: datetime.time | None) -> list[datetime.time | None]:
    return [None if clock is None else clock.replace(minute=0)]


def times_and_intervals(topology: Topology) -> None:
    hour, second = datetime.timedelta(hours=1), datetime.timedelta(seconds=1)
    rows: list[tuple[Any, ...]] = [
        ("a", datetime.time(8, 30), hour),
        ("b", datetime.time(8, 30), second),
        ("a", datetime.time(23, 59, 59, 999_999), None),
        (None, None, -second),
        ("b", datetime.time(8, 15), hour),
        ("b", datetime.time(0, 0, 0, 1), 400 * 24 * hour),
    ]
    spout = FixedBatchSpout(f"name string, clock time, took {INTERVAL}", rows, splits=2)
    stream = topology.new_stream("races", spout)
    keep(stream, "all")
    keep(stream.group_by("clock").aggregate("took", Max(), "longest"), "by_clock")
    keep(stream.group_by("took").aggregate("clock", Min(), "first"), "by_interval")
    whole = stream.each("clock", _without_minutes, "whole time").shuffle()
    keep(whole.group_by("whole").aggregate("took", Min(), "shortest"), "by_hour")
    keep(whole.group_by("name").aggregate("whole", Max(), "latest"), "latest")
    keep(
        stream.project("clock").map(_since_midnight, "since").shuffle().group_by("since").aggregate(Count(), "n"),
        "since",
    )
    keep(stream.each("clock, took", _spans, f"spans map<time,array<{INTERVAL}>>").shuffle().project("spans"), "spans")
    early = stream.filter((col("clock") < datetime.time(12)) & (col("took") >= second))
    keep(early.each(col("clock").cast("string"), "text").each(coalesce(col("took"), hour), "took_at_least"), "early")


def the_newest_of_each_key(topology: Topology) -> None:
    """Ties are of equal tuples, also in parts that no key or order says."""
    day = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    nan = math.nan
    rows = [
        (1, "a", day, 1.0, ["x", None], 0.0),
        (1, "b", day + datetime.timedelta(1), nan, ["x"], -0.0),
        (1, "c", day + datetime.timedelta(1), 7.0, [], nan),
        (1, "b", day + datetime.timedelta(1), nan, ["x"], 0.0),
        (2, "a", None, None, None, nan),
        (None, "a", day, 0.5, ["y"], nan),
        (None, "b", None, nan, ["y"], 1.0),
        (2, "a", None, None, None, nan),
    ] * 3
    fields = "id long, city string, at timestamp, x double, tags array<string>, real double"
    changes = topology.new_stream("changes", FixedBatchSpout(fields, rows, splits=5))

    def upsert(stream: Any, inputs: str, keys: str, order_by: str, name: str) -> None:
        stream.partition_persist(PaperState(), inputs, keys=keys, order_by=order_by, name=name)

    upsert(changes, "id, city, tags", "id", "at, x", "by_time")
    upsert(changes, "city, id, x, at", "city, id", "x, at", "by_number")
    upsert(changes, "city, id", "", "city, id", "without_keys")
    upsert(changes, "real, city, at, id, x", "real", "id, at, x, city", "by_reals")
    upsert(topology.merge([changes, changes.shuffle()]), "id, city, x", "id", "at, x", "merged")


def a_filter_that_keeps_nan_behind_what_is_read_twice(topology: Topology) -> None:
    rows = [("a", math.nan), ("b", 0.0), ("c", math.nan), ("d", 2.0), ("e", None)]
    stream = topology.new_stream("reals", FixedBatchSpout("name string, x double", rows, splits=5))
    keep(stream, "all")
    keep(stream.filter(col("x") >= 0.5), "large")
    keep(stream.filter(col("x") > 100.0), "nan")


TOPOLOGIES: dict[str, Callable[[Topology], None]] = {
    build.__name__: build
    for build in (
        word_count,
        word_count_in_the_jvm,
        functions_and_filters,
        map_and_flat_map,
        project_reorders,
        shuffle_and_partition_by,
        built_ins_by_group,
        built_ins_after_python,
        user_combiner,
        user_reducer,
        global_aggregates,
        aggregate_of_aggregate,
        several_streams_and_states,
        expressions,
        expressions_around_python,
        arrays_and_reals_as_groups,
        maps_and_structs,
        times_and_intervals,
        the_newest_of_each_key,
        a_filter_that_keeps_nan_behind_what_is_read_twice,
    )
}


# ---- running one batch -----------------------------------------------------------------------------------------


class JobOf(Protocol):
    def __call__(self, build: Callable[[Topology], None], attempt: int = 0) -> Job: ...


def make_job(build: Callable[[Topology], None], root: Path, *, attempt: int = 0) -> Job:
    """The first transaction of a topology; a stream without data is absent from the metadata."""
    topology = Topology(_name(build))
    build(topology)
    given = {name: spout.coordinator().initialize_transaction(1, None) for name, spout in topology.spouts.items()}
    return Job(
        plan=topology.compile(),
        slot=Slot(topology=_name(build), incarnation=uuid.uuid4().hex[:8], txid=1, attempt=attempt),
        metadata={name: metadata for name, metadata in given.items() if metadata is not None},
        staging_root=str(root),
    )


def without_data(job: Job) -> Job:
    return replace(job, metadata={})


def staged(job: Job, manifest: Manifest) -> dict[str, list[str]]:
    """State -> its staged rows as sorted texts; reals are rounded, for sums depend on the order a little."""
    area = StagingArea(job.staging_root)
    found = {}
    for sink in job.plan.sinks:
        found[sink.name] = rows_as_text(table_to_rows(area.read(manifest, sink.name, sink.schema)))
    return found


def rows_as_text(rows: Iterable[tuple[Any, ...]]) -> list[str]:
    """Sorted, because order means nothing."""
    return sorted(repr(tuple(map(_rounded, row))) for row in rows)


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_rounded, value))
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC)  # UTC has several objects
    return round(value, 9) if isinstance(value, float) else value


def run(engine: Engine, job: Job) -> dict[str, list[str]]:
    return staged(job, engine.run(job))


def _name(build: Callable[[Topology], None]) -> str:
    return build.__name__.strip("<>")
