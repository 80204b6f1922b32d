"""Groups of transactions give on every engine what each of their transactions gives alone (E7 to E10)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_trident import Count, Topology
from airflow_trident.engine.engine import Engine
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import AttemptCancelledError, ConfigurationError, SparkJobError, UserCodeError
from airflow_trident.functions import col
from airflow_trident.plan.stages import Coalescing
from tests.contracts.conftest import EVERY_PRODUCT
from tests.contracts.test_engine import ALL as ONE_BY_ONE
from tests.fixtures.choice import CHOICES
from tests.fixtures.engine import TOPOLOGIES, JobOf, keep, lines, run, slow
from tests.fixtures.gates import gated_before_a_limit, gated_behind_a_query
from tests.fixtures.group import (
    MORE,
    by_key,
    group_of,
    merged_by_keys,
    staged_of_each,
    tables_of,
    where_a_stream_parts,
    where_few_tuples_come,
)

if TYPE_CHECKING:
    import pyarrow as pa

pytestmark = pytest.mark.spark

ENGINES = {"local": "local_engine", "spark": "spark_engine"}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(ENGINES[request.param])
    return found


def _coalesces(build: Callable[[Topology], None]) -> bool:
    topology = Topology("any")
    build(topology)
    return topology.compile().coalesces.passes


ALL = {**ONE_BY_ONE, **CHOICES, **MORE}
SOME = (
    *MORE,
    "gated_reading",
    "gated_before_groups_in_the_jvm",
    "gated_behind_a_repartition",
    "gated_twice_before_a_fork",
    "best_of_groups_beside_others",
    "word_count",
    "word_count_in_the_jvm",
    "functions_and_filters",
    "project_reorders",
    "built_ins_by_group",
    "several_streams_and_states",
    "expressions_around_python",
)
IN_GROUPS = [name for name, build in ALL.items() if (EVERY_PRODUCT or name in SOME) and _coalesces(build)]


def test_the_representatives_go_in_groups() -> None:
    assert set(SOME) <= set(IN_GROUPS)


@pytest.mark.parametrize("name", IN_GROUPS)
def test_a_group_gives_each_transaction_what_it_gives_alone(engine: Engine, name: str, job_of: JobOf) -> None:
    """E7, E8."""
    jobs = group_of(job_of, ALL[name])
    alone = LocalEngine()
    manifest = engine.run_group(jobs)
    given = staged_of_each(jobs, manifest)
    assert any(given[1].values())
    assert given == {job.slot.txid: run(alone, job) for job in jobs}
    assert [one.rows_read for one in manifest.members] == [alone.run(job).rows_read for job in jobs]


@pytest.mark.parametrize("build", [gated_before_a_limit, gated_behind_a_query])
def test_what_spark_need_not_compute_is_measured_for_each_of_a_group(
    spark_engine: Engine, job_of: JobOf, build: Callable[[Topology], None]
) -> None:
    jobs = group_of(job_of, build)
    members = spark_engine.run_group(jobs).members
    assert [member.checks for member in members] == [spark_engine.run(job).checks for job in jobs]
    assert members[0].checks != members[1].checks


def test_by_key_a_group_gives_what_its_rows_are_once_they_are_merged(engine: Engine, job_of: JobOf) -> None:
    """E7, E8: whether or not the engine merges them itself."""
    jobs = group_of(job_of, by_key)
    assert jobs[0].plan.coalesces.how is Coalescing.BY_KEY
    manifest = engine.run_group(jobs)
    rows: dict[str, list[pa.Table]] = {}
    alone = [engine.run(job) for job in jobs]
    for job, one in zip(jobs, alone, strict=True):
        for name, tables in tables_of([job], one).items():
            rows.setdefault(name, []).extend(tables)
    assert merged_by_keys(jobs[0], tables_of(jobs, manifest)) == merged_by_keys(jobs[0], rows)
    assert manifest.inseparable == (engine.name != "local")
    assert [one.rows_read for one in manifest.members] == [one.rows_read for one in alone]


@pytest.mark.parametrize("build", [where_a_stream_parts, where_few_tuples_come])
def test_users_functions_see_transaction_attempt_and_partitions_as_alone(
    engine: Engine, job_of: JobOf, build: Callable[[Topology], None]
) -> None:
    jobs = group_of(job_of, build)
    assert staged_of_each(jobs, engine.run_group(jobs)) == {job.slot.txid: run(engine, job) for job in jobs}


def test_one_bad_row_names_its_transaction(engine: Engine, job_of: JobOf) -> None:
    """E9; without it the others go."""

    def build(topology: Topology) -> None:
        def refuse(line: str) -> Iterator[int]:
            yield 1 // len(line)

        keep(lines(topology, [*["a line"] * 9, "", "a line"]).each("line", refuse, "x long"))

    good = {"lines": {"from": 0, "to": 9}}
    jobs = [replace(job, metadata=good) for job in group_of(job_of, build)]
    jobs[1] = replace(jobs[1], metadata={"lines": {"from": 8, "to": 11}})
    with pytest.raises(UserCodeError, match="transaction 2, row") as caught:
        engine.run_group(jobs)
    assert caught.value.txid == 2
    rest = [jobs[0], jobs[2]]
    assert [len(one["rows"]) for one in staged_of_each(rest, engine.run_group(rest)).values()] == [9, 9]


def test_p9_what_a_pass_that_failed_has_written_counts_for_nothing(engine: Engine, job_of: JobOf) -> None:
    """As after a kill, all are attempted again, under the same last transaction or another one."""
    refuses = [True]

    def build(topology: Topology) -> None:
        stream = lines(topology)
        keep(stream, "first")
        keep(lines(topology, name="more").each("line", lambda line: [len(line) // (not refuses[0])], "x int"), "second")

    jobs = group_of(job_of, build)
    with pytest.raises(UserCodeError):
        engine.run_group(jobs)
    left = list((Path(jobs[-1].staging_root) / jobs[-1].slot.path).glob("first-*"))
    assert left or engine.name == "local"  # which writes when it has everything
    refuses[0] = False
    again = [replace(job, slot=replace(job.slot, attempt=job.slot.attempt + 1)) for job in jobs]
    manifest = engine.run_group(again)
    assert not {path.name for path in left} & {Path(file.path).name for file in manifest.files}
    assert staged_of_each(again, manifest) == {job.slot.txid: run(engine, job) for job in again}


def test_a_group_is_cancelled_by_the_slot_of_its_last(engine: Engine, job_of: JobOf) -> None:
    """In the middle of the pass of another member."""
    jobs = group_of(job_of, slow)
    ended = threading.Event()

    def cancel() -> None:
        while not ended.wait(0.5):  # a job may begin in between
            engine.cancel(jobs[-1].slot)

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        with pytest.raises(AttemptCancelledError if engine.name == "local" else SparkJobError):
            engine.run_group(jobs)
    finally:
        ended.set()
        thread.join()


def test_a_group_of_one_is_that_transaction_alone(engine: Engine, job_of: JobOf) -> None:
    job = job_of(TOPOLOGIES["word_count"])
    manifest = engine.run_group([job])
    assert not manifest.group
    assert manifest.rows == engine.run(job).rows


def test_what_cannot_be_a_group_is_refused(engine: Engine, job_of: JobOf) -> None:
    """E10, and the caller's mistakes."""
    jobs = group_of(job_of, TOPOLOGIES["word_count"])
    for wrong, why in (
        (jobs[::-1], "txids do not rise"),
        ([], "txids do not rise"),
        ([jobs[0], replace(jobs[1], trial=True)], "trial"),
        ([jobs[0], group_of(job_of, TOPOLOGIES["project_reorders"])[1]], "one plan"),
        (group_of(job_of, TOPOLOGIES["user_reducer"]), "runs behind a repartition"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            engine.run_group(wrong)


@pytest.mark.parametrize("name", ["connect_engine", pytest.param("submit_engine", marks=pytest.mark.rare)])
def test_connect_and_spark_submit_process_groups_too(
    request: pytest.FixtureRequest, name: str, job_of: JobOf, spark_engine: Engine
) -> None:
    """E7, where rows that several states are made of are noted, and where jobs travel as files."""
    engine: Engine = request.getfixturevalue(name)
    jobs = group_of(job_of, where_a_stream_parts)
    manifest = engine.run_group(jobs)
    slot = Path(jobs[-1].staging_root) / jobs[-1].slot.path
    assert {path.name for path in slot.iterdir()} == {Path(file.path).name for file in manifest.files}
    assert staged_of_each(jobs, manifest) == {job.slot.txid: run(spark_engine, job) for job in jobs}
    assert [one.rows_read for one in manifest.members] == [40, 0, 40]


def test_on_connect_what_is_merged_or_aggregated_is_kept_for_several_states(
    connect_engine: Engine, spark_engine: Engine, job_of: JobOf
) -> None:
    """E7, where rows that are noted know their transaction, but not their partition."""

    def build(topology: Topology) -> None:
        more = [lines(topology, name=name) for name in ("some", "more")]
        merged = topology.merge(more)
        keep(merged, "one")
        keep(merged.filter(col("line") != ""), "other")
        counts = merged.group_by("line").aggregate(Count(), "n")
        keep(counts.project("n, line"), "counts")
        keep(counts.filter(col("n") > 1), "twice")

    jobs = group_of(job_of, build)
    given = staged_of_each(jobs, connect_engine.run_group(jobs))
    assert given == {job.slot.txid: run(spark_engine, job) for job in jobs}
