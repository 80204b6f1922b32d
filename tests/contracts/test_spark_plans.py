"""What Spark makes of stages, told from its own physical plans: one pass per stage, one exchange per repartition."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from airflow_trident import Count, FixedBatchSpout, Stream, Sum, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.functions import FirstN, MaxBy
from airflow_trident.operations.expressions import col, explode, lit, lower, split_words
from tests.fixtures.engine import Distinct, JobOf, NotThe, Words, keep, lines, run, sales
from tests.fixtures.plan import PaperState
from tests.fixtures.verb import ByTwo, Latest, Tally, cities
from tests.generated.joins import Told

pytestmark = pytest.mark.spark

_PASS = r"\b(?:Python)?MapInArrow\b"
"""A pass of ours in a plan; Spark 3.5 has the longer name."""


def python_word_count(t: Topology) -> None:
    words = lines(t).each("line", Words(), "word").filter("word", NotThe())
    words.group_by("word").persistent_aggregate(PaperState(), Count(), "n")


def native_word_count(t: Topology) -> None:
    words = lines(t).each(explode(split_words(lower(col("line")))), "word").filter(col("word") != "the")
    words.group_by("word").persistent_aggregate(PaperState(), Count(), "n")


def mixed(stream: Stream) -> Stream:
    return stream.each("n", lambda n: [n], "m long").filter(col("m") > 1).each("m", lambda m: [m], "o long")


def merged(t: Topology) -> None:
    keep(t.merge([sales(t).project("city, id"), cities(t).project("town, rank")]))


def merged_by_city(t: Topology) -> None:
    one, other = sales(t).project("city, id"), cities(t).project("town, rank")
    both = t.merge([one.partition_by("city"), other.partition_by("town")])
    keep(both.group_by("city").partition_aggregate("id", Sum(), "total"))


def merged_behind_a_filter(t: Topology) -> None:
    one, other = sales(t).project("city, id"), cities(t).project("town, rank")
    both = t.merge([one.partition_by("city").filter("id", lambda id: id > 1), other.partition_by("town")])
    keep(both.group_by("city").partition_aggregate("id", Sum(), "total"))


def joined(t: Topology) -> None:
    keep(t.join([sales(t).project("city, id"), cities(t).project("town, rank")], ["city", "town"], "city, id, rank"))


def joined_thrice(t: Topology) -> None:
    streams = [cities(t, name).project("town, rank") for name in ("one", "two", "three")]
    keep(t.join(streams, ["town"] * 3, "town, a, b, c", "outer").parallelism_hint(2))


def reduced(t: Topology) -> None:
    keep(t.multi_reduce(["id", "rank"], [sales(t).group_by("city"), cities(t).group_by("town")], Latest(), "p, a, b"))


def reduced_whole(t: Topology) -> None:
    keep(t.multi_reduce(["id", "rank"], [sales(t).global_(), cities(t).global_()], Tally(), "a, b"))


SHAPES: dict[str, tuple[Callable[[Topology], Any], int, int]] = {
    "functions before a combiner": (python_word_count, 1, 1),
    "expressions before a combiner": (native_word_count, 1, 1),
    "functions and expressions mixed are one pass": (
        lambda t: keep(
            sales(t).each("n", lambda n: [n], "m long").filter(col("m") > 1).each("m", lambda m: [m], "o long")
        ),
        0,
        1,
    ),
    "repartitions in a row are one": (
        lambda t: keep(sales(t).shuffle().partition_by("city").global_().shuffle()),
        1,
        2,
    ),
    "what moves nothing is no exchange": (lambda t: keep(sales(t).local_or_shuffle().identity_partition()), 0, 1),
    "a broadcast": (lambda t: keep(sales(t).broadcast()), 1, 2),
    "a custom grouping chooses in the pass before it": (
        lambda t: keep(sales(t).project("id").partition(ByTwo())),
        1,
        2,
    ),
    "an aggregation by group without a combiner": (
        lambda t: keep(sales(t).group_by("city").aggregate("fruit", Distinct(), "all")),
        1,
        2,
    ),
    "an aggregation of the batch without a combiner": (
        lambda t: keep(sales(t).aggregate("fruit", Distinct(), "all")),
        1,
        2,
    ),
    "an aggregation of each partition that must run in empty ones": (
        lambda t: keep(sales(t).partition_by("city").partition_aggregate(Count(), "n")),
        1,
        2,
    ),
    "a merge moves nothing": (
        lambda t: keep(t.merge([sales(t).project("city, id"), cities(t).project("town, rank")])),
        0,
        3,
    ),
    "what moves nothing behind a merge": (
        lambda t: keep(t.merge([cities(t), cities(t, "more")]).identity_partition().local_or_shuffle()),
        0,
        3,
    ),
    "a merge of what is partitioned alike": (merged_by_city, 1, 3),
    "a merge of partitions that were changed": (merged_behind_a_filter, 3, 4),
    "a full join of three into a number of partitions": (joined_thrice, 1, 4),
    "a multi-reducer by group": (reduced, 1, 3),
    "a multi-reducer of the batch": (reduced_whole, 1, 3),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_stage_is_one_pass_and_a_repartition_one_exchange(
    spark_engine: SparkEngine, shape: str, job_of: JobOf
) -> None:
    build, exchanges, passes = SHAPES[shape]
    job = job_of(build)
    (text,) = spark_engine.physical(job).values()
    assert len(re.findall(r"\bExchange\b", text)) == exchanges, text
    assert len(re.findall(_PASS, text)) == passes, text
    moves = [stage for stage in job.plan.stages if stage.exchange is not None]
    assert len(moves) == exchanges


def test_a_combiner_aggregates_before_and_after_the_exchange(spark_engine: SparkEngine, job_of: JobOf) -> None:
    (text,) = spark_engine.physical(job_of(native_word_count)).values()
    assert re.search(r"HashAggregate.*sum.*\n.*Exchange hashpartitioning.*\n.*HashAggregate.*partial_sum", text), text


def filtered(t: Topology) -> None:
    both = t.join([sales(t).project("city, id"), cities(t).project("town, rank")], ["city", "town"], "city, id, rank")
    keep(both.each(col("rank") + 1, "next").filter(col("id") > 1))


def with_a_number(t: Topology) -> None:
    both = t.join([sales(t).project("city, id"), cities(t).project("town, rank")], ["city", "town"], "city, id, rank")
    keep(both.parallelism_hint(3))


@pytest.mark.parametrize("build", [joined, filtered, with_a_number])
def test_a_join_is_one_of_sparks_own(
    spark_engine: SparkEngine, build: Callable[[Topology], None], job_of: JobOf
) -> None:
    """It sorts, and does not send what Python has read, of which it knows no size, to all executors; Python only reads
    and writes."""
    (text,) = spark_engine.physical(job_of(build)).values()
    assert len(re.findall(r"\bSortMergeJoin\b", text)) == 1, text
    assert len(re.findall(r"\bExchange\b", text)) == 2, text
    assert len(re.findall(_PASS, text)) == 3, text
    assert ("3), REPARTITION_BY_NUM" in text) == (build is with_a_number), text


@pytest.mark.parametrize(
    ("kinds", "constant"),
    [
        *((("outer", "outer"), constant) for constant in ("first", "second", "both", "no batch")),
        *((("inner", "outer"), constant) for constant in ("second", "no batch")),
        (("inner", "inner"), "both"),
    ],
)
def test_a_join_by_a_constant_has_the_partitions_of_the_plan(
    spark_engine: SparkEngine, kinds: tuple[str, str], constant: str, job_of: JobOf
) -> None:
    """Spark makes another join of one by a constant, with one partition more, or more of them. The keys of a stream
    without a batch are constant, too. `Told` fails where its partition is none of the plan's."""
    rows = [(1, "x"), (2, "y"), (3, "x")]

    def build(t: Topology) -> None:
        streams = []
        for place, name in enumerate(("first", "second")):
            absent = constant == "no batch" and place == 0
            spout = FixedBatchSpout(f"n{place} long, k{place} string", [] if absent else rows, splits=2)
            key = lit("x") if constant in (name, "both") else col(f"k{place}")
            streams.append(t.new_stream(name, spout).each(key, f"key{place}").project(f"n{place}, key{place}"))
        joined = t.join(streams, ["key0", "key1"], "key, n0, n1", list(kinds), "compact")
        keep(joined.each("n0", Told(), "missing"), "joined")

    job = job_of(build)
    (text,) = spark_engine.physical(job).values()
    assert re.findall(r"\b(\w+Join|CartesianProduct)\b", text) == ["SortMergeJoin"], text
    assert run(spark_engine, job) == run(LocalEngine(), job_of(build, attempt=1))


def best_of_groups(t: Topology) -> None:
    keep(sales(t).group_by("city").aggregate(("fruit, n", MaxBy(), "most"), (Count(), "rows")))


def first_two(t: Topology) -> None:
    keep(sales(t).apply_assembly(FirstN(2, "n")))


def largest(t: Topology) -> None:
    keep(sales(t).global_().max_by("n"))


@pytest.mark.parametrize("build", [best_of_groups, first_two, largest])
def test_spark_chooses_in_every_partition_before_it_moves_anything(
    spark_engine: SparkEngine, build: Callable[[Topology], None], job_of: JobOf
) -> None:
    """Python only reads and writes."""
    (text,) = spark_engine.physical(job_of(build)).values()
    assert len(re.findall(_PASS, text)) == 2, text
    if build is best_of_groups:
        assert re.search(r"Aggregate.*\[min\(.*\n(?:.*Sort.*\n)?.*Exchange.*\n.*Aggregate.*\[partial_min\(", text), text
    else:
        assert len(re.findall(r"\bTakeOrderedAndProject\b", text)) == 1, text


def test_columns_that_nobody_uses_are_neither_read_nor_moved(spark_engine: SparkEngine, job_of: JobOf) -> None:
    def build(t: Topology) -> None:
        keep(
            sales(t)
            .each("fruit", lambda f: [f], "again string")
            .partition_by("city")
            .filter(col("id") > 1)
            .project("id")
        )

    (text,) = spark_engine.physical(job_of(build)).values()
    moved = next(line for line in text.splitlines() if "MapInArrow" in line and "is a" not in line)
    assert "price" not in text
    assert "again" not in text.split("Exchange")[0]
    assert moved
