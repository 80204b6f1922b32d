"""Random topologies on the local engine and row by row: all give what plain Python says, and no rewrite changes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given, settings

from airflow_trident import Topology
from airflow_trident.engine.engine import Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import UserCodeError
from airflow_trident.plan.graph import PlanSettings, same
from airflow_trident.plan.rewrites.fusion import fuse
from airflow_trident.plan.rewrites.pushdown import REWRITES, Rewrite, rewrite
from tests.fixtures.engine import TOPOLOGIES, computed, make_job, rows_as_text, run
from tests.fixtures.verb import VERBS
from tests.generated.commit_phases import run_committed
from tests.generated.joins import JOINS, JoinCase, join_up
from tests.generated.topologies import PROGRAMS, SOURCES, Row, build
from tests.generated.types import CASES, PAIRS, SUMS, add_up, comparable, fits, look_at, overflows, sums_of, work_out
from tests.oracle.rows import OracleEngine

Sources = tuple[list[Row], ...]
Program = list[tuple[int, ...]]


def rewritten(job: Job, rewrites: tuple[Rewrite, ...]) -> Job:
    """The job with these rewrites only; no hints, which do not change what comes out of these topologies."""
    sinks = rewrite(job.plan.sinks, rewrites)
    hints = {stage.exchange.name: stage for stage in job.plan.stages if stage.exchange is not None}
    stages = tuple(
        replace(stage, partitions=hints[stage.exchange.name].partitions)
        if stage.exchange is not None and stage.exchange.name in hints
        else stage
        for stage in fuse(sinks, PlanSettings())
    )
    return replace(job, plan=replace(job.plan, stages=stages))


@settings(max_examples=80)
@given(SOURCES, PROGRAMS)
def test_a_random_topology_gives_what_plain_python_says(sources: Sources, program: Program) -> None:
    expected: dict[str, list[Row]] = {}

    def topology(topology: Topology) -> None:
        expected.update(build(topology, sources, program))

    with TemporaryDirectory() as folder:
        job = make_job(topology, Path(folder))
        meant = {state: rows_as_text(rows) for state, rows in expected.items()}
        assert run(LocalEngine(3), job) == meant
        for engine in (OracleEngine(3), LocalEngine(1)):
            assert computed(engine, job) == meant
        for count in range(1, len(REWRITES)):
            assert computed(LocalEngine(2), rewritten(job, REWRITES[:count])) == meant
        for one in REWRITES:
            assert same(one.apply(job.plan.rewritten), job.plan.rewritten), one.name


@settings(max_examples=60)
@given(SOURCES, PROGRAMS)
def test_a_random_topology_behind_states_ends_as_plain_python_says(sources: Sources, program: Program) -> None:
    assume(any(sources))  # else there is no transaction
    found, expected = run_committed(LocalEngine(3), sources, program)
    assert found == expected


@settings(max_examples=80)
@given(CASES)
def test_values_of_every_type_group_and_compare_as_plain_python_says(case: tuple[str, list[Row], str]) -> None:
    expected: dict[str, list[Row]] = {}

    def topology(topology: Topology) -> None:
        expected.update(look_at(topology, *case))

    with TemporaryDirectory() as folder:
        job = make_job(topology, Path(folder))
        meant = {state: rows_as_text(rows) for state, rows in expected.items()}
        assert comparable(computed(OracleEngine(2), job)) == comparable(meant)
        assert comparable(run(LocalEngine(3), job)) == comparable(meant)


@settings(max_examples=80)
@given(JOINS)
def test_joins_by_every_type_give_what_plain_python_says(case: JoinCase) -> None:
    expected: dict[str, list[Row]] = {}

    def topology(topology: Topology) -> None:
        expected.update(join_up(topology, case))

    with TemporaryDirectory() as folder:
        job = make_job(topology, Path(folder))
        meant = {state: rows_as_text(rows) for state, rows in expected.items()}
        assert computed(OracleEngine(2), job) == meant
        assert run(LocalEngine(3), job) == meant


@settings(max_examples=80)
@given(SUMS)
def test_a_sum_of_any_type_is_exact_or_an_error(case: tuple[str, list[Row], str]) -> None:
    type_text, rows, _ = case
    with TemporaryDirectory() as folder:
        job = make_job(lambda topology: add_up(topology, *case), Path(folder))
        try:
            found = run(LocalEngine(3), job)
        except UserCodeError:
            assert not fits(type_text, rows)
        else:
            assert not overflows(type_text, rows)
            assert found == {state: rows_as_text(sums) for state, sums in sums_of(type_text, rows).items()}


@settings(max_examples=150)
@given(PAIRS)
def test_arithmetic_on_extremes_ends_as_row_by_row(case: tuple[str, Row, str, bool]) -> None:
    with TemporaryDirectory() as folder:
        job = make_job(lambda topology: work_out(topology, *case), Path(folder))
        assert _outcome(LocalEngine(), job) == _outcome(OracleEngine(), job)


def _outcome(engine: LocalEngine | OracleEngine, job: Job) -> dict[str, list[str]] | str:
    try:
        return computed(engine, job)
    except UserCodeError as error:
        return str(error)


@pytest.mark.parametrize("count", range(1, len(REWRITES)), ids=lambda count: REWRITES[count].name)
@pytest.mark.parametrize("name", [*TOPOLOGIES, *VERBS])
def test_a_rewrite_changes_neither_what_comes_out_nor_the_fields(name: str, count: int, tmp_path: Path) -> None:
    job = make_job((TOPOLOGIES | VERBS)[name], tmp_path)
    assert computed(LocalEngine(), rewritten(job, REWRITES[:count])) == computed(OracleEngine(), job)
    assert [sink.input.schema for sink in job.plan.rewritten] == [sink.input.schema for sink in job.plan.sinks]
