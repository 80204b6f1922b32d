"""Groups of transactions with transforms and queries: each gets what it gets alone (E7 to E10)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_trident import Count, FixedBatchSpout, MemoryState, Sum, Topology, TransformContext
from airflow_trident.engine.engine import Engine, Job
from airflow_trident.errors import ConfigurationError, UserCodeError
from airflow_trident.operations.expressions import col
from airflow_trident.plan.stages import Coalescing
from tests.contracts.test_transforms import WRONG, transformed
from tests.fixtures.engine import JobOf, keep, run, staged
from tests.fixtures.group import Where, group_of, merged_by_keys, staged_of_each, tables_of
from tests.fixtures.transform import TRANSFORMS, orders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark


def told(frame: DataFrame, context: TransformContext) -> DataFrame:
    """What a function is told of its transaction, and how many rows it gets."""
    from pyspark.sql import functions

    about = [functions.lit(one).alias(name) for name, one in {"t": context.txid, "a": context.attempt}.items()]
    frame.createOrReplaceTempView("mine")
    whole = frame.sparkSession.sql("SELECT count(*) AS n, max(t) AS seen FROM mine")
    return whole.select("n", "seen", *about, functions.lit(context.time).alias("at"))


def in_every_way(topology: Topology) -> None:
    """A function that knows its partition before a transform, one transform after the other, one stream for two of
    them, a result for two states, and what is aggregated behind it."""
    placed = orders(topology).each("cust", Where(), "t int, att int, p int, ps int, c int")
    first = placed.transform(told, "n long, seen int, t int, a int, at timestamp")
    keep(first.sql("SELECT n + 0 AS n, seen, t, a, at, :transaction_time AS now FROM {o}", f"{TOLD}, now timestamp"))
    days = placed.filter(col("cents") > 2).sql("SELECT day, p, ps, t, att FROM {o} WHERE cust > 0", DAYS)
    keep(days, "days")
    keep(days.group_by("day, p").aggregate("ps", Sum(), "sum").each(col("sum") + 1, "more"), "sums")
    keep(days.aggregate(Count(), "n"), "count")
    other = topology.new_stream("other", FixedBatchSpout("x int", [(1,), (2,)]))
    keep(topology.merge([other.transform(lambda frame: frame.limit(1), "x int"), other]).project("x"), "merged")


TOLD = "n long, seen int, t int, a int, at timestamp"
DAYS = "day string, p int, ps int, t int, att int"
SOME = ("aggregated", "of_two_streams", "session_of_its_own", "udf")


def jobs_of(job_of: JobOf, build: Callable[[Topology], None]) -> list[Job]:
    return [replace(job, time_ms=1_000 * job.slot.txid) for job in group_of(job_of, build)]


@pytest.mark.parametrize("build", [in_every_way, *(TRANSFORMS[name] for name in SOME)])
def test_each_transaction_gets_what_it_gets_alone(
    spark_engine: Engine, build: Callable[[Topology], None], job_of: JobOf
) -> None:
    """E7, E8: views and contexts, too."""
    jobs = jobs_of(job_of, build)
    assert jobs[0].plan.coalesces.how is Coalescing.BY_TRANSACTION
    manifest = spark_engine.run_group(jobs)
    given = staged_of_each(jobs, manifest)
    assert any(given[1].values())
    alone = {job.slot.txid: spark_engine.run(job) for job in jobs}
    assert given == {job.slot.txid: staged(job, alone[job.slot.txid]) for job in jobs}
    assert [one.rows_read for one in manifest.members] == [one.rows_read for one in alone.values()]


def test_by_key_the_results_of_all_are_merged(spark_engine: Engine, job_of: JobOf) -> None:
    def counted(topology: Topology) -> None:
        days = orders(topology).sql("SELECT day, sum(cents) AS cents FROM {o} GROUP BY day", "day string, cents long")
        days.group_by("day").persistent_aggregate(MemoryState(), "cents", Sum(), "cents", name="days")
        days.persistent_aggregate(MemoryState(), Count(), "n", name="n")

    jobs = jobs_of(job_of, counted)
    manifest = spark_engine.run_group(jobs)
    assert manifest.inseparable
    rows: dict[str, list[Any]] = {}
    for job in jobs:
        for name, tables in tables_of([job], spark_engine.run(job)).items():
            rows.setdefault(name, []).extend(tables)
    assert merged_by_keys(jobs[0], tables_of(jobs, manifest)) == merged_by_keys(jobs[0], rows)


def test_all_cores_work_for_a_group(spark_engine: Engine, job_of: JobOf) -> None:
    """Spark unites frames of one partition each in one partition, which one task reads."""
    from pyspark import SparkContext

    jobs = jobs_of(job_of, TRANSFORMS["aggregated"])
    more = [replace(jobs[0], slot=replace(jobs[0].slot, txid=txid)) for txid in range(10, 14)]
    spark_engine.run_group(jobs)
    tracker = SparkContext.getOrCreate().statusTracker()
    before = set(tracker.getJobIdsForGroup())
    spark_engine.run_group([*jobs, *more])
    ran = [found for job in set(tracker.getJobIdsForGroup()) - before if (found := tracker.getJobInfo(job)) is not None]
    stages = [tracker.getStageInfo(stage) for one in ran for stage in one.stageIds]
    assert max(one.numTasks for one in stages if one is not None) > 1


def raises_in_the_second(frame: DataFrame, context: TransformContext) -> Any:
    if context.txid == 2:
        raise ValueError("the second")
    return frame


def test_a_function_that_raises_names_its_transaction(spark_engine: Engine, job_of: JobOf) -> None:
    """E9; without it the others go."""
    jobs = jobs_of(job_of, transformed(raises_in_the_second))
    with pytest.raises(UserCodeError, match="the second") as caught:
        spark_engine.run_group(jobs)
    assert caught.value.txid == 2
    rest = [jobs[0], jobs[2]]
    assert staged_of_each(rest, spark_engine.run_group(rest)) == {job.slot.txid: run(spark_engine, job) for job in rest}


@pytest.mark.parametrize("name", ["settings", "counts", "fails_while_it_runs"])
def test_what_a_function_must_not_do_is_refused_in_groups_too(spark_engine: Engine, name: str, job_of: JobOf) -> None:
    function, text = WRONG[name]
    with pytest.raises(UserCodeError) as caught:
        spark_engine.run_group(jobs_of(job_of, transformed(function)))
    assert text in str(caught.value)
    assert caught.value.txid == (1 if name != "fails_while_it_runs" else None)


def test_on_connect_they_go_one_by_one(connect_engine: Engine, job_of: JobOf) -> None:
    """E10."""
    jobs = jobs_of(job_of, TRANSFORMS["aggregated"])
    assert "Spark Connect" in connect_engine.coalesces(jobs[0].plan).why
    with pytest.raises(ConfigurationError, match="Spark Connect"):
        connect_engine.run_group(jobs)


@pytest.mark.parametrize("rowwise", [True, False])
@pytest.mark.parametrize("is_told", [True, False])
def test_what_works_row_by_row_gets_the_rows_of_all_at_once_by_key(
    spark_engine: Engine, job_of: JobOf, rowwise: bool, is_told: bool
) -> None:
    """Unless it is told of its transaction, or the user does not say so."""
    calls = []

    def halved(frame: DataFrame) -> DataFrame:
        calls.append(frame.columns)
        return frame.where("cents > 1").selectExpr("day", "cust % 2 AS odd")

    def told_halved(frame: DataFrame, context: TransformContext) -> DataFrame:
        return halved(frame).selectExpr("day", f"odd + {context.txid} * 0 AS odd")

    def build(topology: Topology) -> None:
        stream = orders(topology)
        stream.group_by("cust").persistent_aggregate(MemoryState(), Count(), "m", name="beside")
        made = stream.transform(told_halved if is_told else halved, "day string, odd int", rowwise=rowwise)
        made.group_by("day, odd").persistent_aggregate(MemoryState(), Count(), "n", name="days")

    jobs = jobs_of(job_of, build)
    given = tables_of(jobs, spark_engine.run_group(jobs))
    assert len(calls) == (1 if rowwise and not is_told else len(jobs))
    assert {tuple(columns) for columns in calls} == {("cust", "cents", "day")}
    alone = [tables_of([job], spark_engine.run(job)) for job in jobs]
    rows = {name: [table for one in alone for table in one[name]] for name in given}
    assert merged_by_keys(jobs[0], given) == merged_by_keys(jobs[0], rows)
