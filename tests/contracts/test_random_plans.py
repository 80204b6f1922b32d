"""Random topologies with random data: Spark gives what comes out row by row (E1).

``RANDOM_PLANS=500 pytest tests/contracts/test_random_plans.py`` tries more of them than the usual 15.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings

from airflow_trident import Topology
from airflow_trident.engine.engine import Engine, Job
from airflow_trident.errors import UserCodeError
from tests.fixtures.engine import make_job, rows_as_text, run
from tests.generated.commit_phases import run_committed
from tests.generated.joins import JOINS, JoinCase, join_up
from tests.generated.topologies import PROGRAMS, SOURCES, Row, build
from tests.generated.types import CASES, PAIRS, SUMS, add_up, comparable, fits, look_at, overflows, sums_of, work_out
from tests.oracle.rows import OracleEngine

pytestmark = pytest.mark.spark


EXAMPLES = int(os.environ.get("RANDOM_PLANS", "10"))
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # to shrink takes a job per step: the program printed is short


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(SOURCES, PROGRAMS)
def test_a_random_topology_gives_on_spark_what_it_gives_row_by_row(
    spark_engine: Engine, sources: tuple[list[Row], ...], program: list[tuple[int, ...]]
) -> None:
    def topology(topology: Topology) -> None:
        build(topology, sources, program)

    with TemporaryDirectory() as folder:
        job = make_job(topology, Path(folder))
        assert run(spark_engine, job) == run(OracleEngine(), job)


@settings(max_examples=max(EXAMPLES // 3, 1), suppress_health_check=list(HealthCheck), phases=PHASES)
@given(SOURCES, PROGRAMS)
def test_a_random_topology_with_dataframe_functions_gives_what_plain_python_says(
    spark_engine: Engine, sources: tuple[list[Row], ...], program: list[tuple[int, ...]]
) -> None:
    expected: dict[str, list[Row]] = {}

    def topology(topology: Topology) -> None:
        expected.update(build(topology, sources, program, on_spark=True))

    with TemporaryDirectory() as folder:
        found = run(spark_engine, make_job(topology, Path(folder)))
        assert found == {state: rows_as_text(rows) for state, rows in expected.items()}


@settings(max_examples=max(EXAMPLES // 3, 1), suppress_health_check=list(HealthCheck), phases=PHASES)
@given(SOURCES, PROGRAMS)
def test_a_random_topology_behind_states_ends_on_spark_as_plain_python_says(
    spark_engine: Engine, sources: tuple[list[Row], ...], program: list[tuple[int, ...]]
) -> None:
    assume(any(sources))  # else there is no transaction
    found, expected = run_committed(spark_engine, sources, program)
    assert found == expected


# ---- every type ------------------------------------------------------------------------------------------------


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(JOINS)
def test_joins_by_every_type_give_on_spark_what_plain_python_says(spark_engine: Engine, case: JoinCase) -> None:
    expected: dict[str, list[Row]] = {}

    def topology(topology: Topology) -> None:
        expected.update(join_up(topology, case))

    with TemporaryDirectory() as folder:
        found = run(spark_engine, make_job(topology, Path(folder)))
        assert found == {state: rows_as_text(rows) for state, rows in expected.items()}


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(CASES)
def test_values_of_every_type_group_and_compare_on_spark_as_plain_python_says(
    spark_engine: Engine, case: tuple[str, list[Row], str]
) -> None:
    expected: dict[str, list[Row]] = {}

    def topology(topology: Topology) -> None:
        expected.update(look_at(topology, *case))

    with TemporaryDirectory() as folder:
        found = run(spark_engine, make_job(topology, Path(folder)))
        assert comparable(found) == comparable({state: rows_as_text(rows) for state, rows in expected.items()})


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(SUMS)
def test_a_sum_of_any_type_is_exact_on_spark_or_an_error(
    spark_engine: Engine, case: tuple[str, list[Row], str]
) -> None:
    """In which parts a sum is made is not defined, so neither is whether one fails whose parts do not fit."""
    type_text, rows, _ = case
    with TemporaryDirectory() as folder:
        job = make_job(lambda topology: add_up(topology, *case), Path(folder))
        try:
            found = run(spark_engine, job)
        except UserCodeError:
            assert not fits(type_text, rows)
        else:
            assert not overflows(type_text, rows)
            assert found == {state: rows_as_text(sums) for state, sums in sums_of(type_text, rows).items()}


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(PAIRS)
def test_arithmetic_on_extremes_ends_on_spark_as_row_by_row(
    spark_engine: Engine, case: tuple[str, Row, str, bool]
) -> None:
    with TemporaryDirectory() as folder:
        job = make_job(lambda topology: work_out(topology, *case), Path(folder))
        assert _outcome(spark_engine, job) == _outcome(OracleEngine(), job)


def _outcome(engine: Engine, job: Job) -> dict[str, list[str]] | str:
    try:
        return run(engine, job)
    except UserCodeError as error:
        return str(error)
