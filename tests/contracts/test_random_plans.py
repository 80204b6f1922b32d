"""Random topologies with random data: Spark gives what the local engine gives (E1).

``RANDOM_PLANS=500 pytest tests/contracts/test_random_plans.py`` tries more of them than the usual 25.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings

from airflow_trident import Topology
from airflow_trident.engine.base import Engine
from airflow_trident.engine.local import LocalEngine
from tests.engine_fixtures import make_job, run
from tests.random_commit_phases import run_committed
from tests.random_topologies import PROGRAMS, SOURCES, Row, build

pytestmark = pytest.mark.spark


EXAMPLES = int(os.environ.get("RANDOM_PLANS", "25"))
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # to shrink takes a job per step: the program printed is short


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(SOURCES, PROGRAMS)
def test_a_random_topology_gives_on_spark_what_it_gives_on_the_local_engine(
    spark_engine: Engine, sources: tuple[list[Row], ...], program: list[tuple[int, ...]]
) -> None:
    def topology(topology: Topology) -> None:
        build(topology, sources, program)

    with TemporaryDirectory() as folder:
        job = make_job(topology, Path(folder))
        assert run(spark_engine, job) == run(LocalEngine(), job)


@settings(max_examples=max(EXAMPLES // 3, 1), suppress_health_check=list(HealthCheck), phases=PHASES)
@given(SOURCES, PROGRAMS)
def test_a_random_topology_behind_states_ends_on_spark_as_plain_python_says(
    spark_engine: Engine, sources: tuple[list[Row], ...], program: list[tuple[int, ...]]
) -> None:
    assume(any(sources))  # else there is no transaction
    found, expected = run_committed(spark_engine, sources, program)
    assert found == expected
