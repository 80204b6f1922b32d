"""Keys that Python holds all at once have a limit, on every engine (E11)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_trident import Count, FixedBatchSpout, MemoryState, Topology
from airflow_trident.engine.engine import Engine
from airflow_trident.engine.local import LocalEngine
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.errors import ConfigurationError, Outcome
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.phases import Attempts, ProcessOutcome, coordinate, process
from tests.fixtures.engine import JobOf, keep, run
from tests.fixtures.pieces import Distinct, lines, sales
from tests.fixtures.plan import Longest, PaperState
from tests.fixtures.verb import Both, Latest, cities
from tests.oracle.rows import OracleEngine

pytestmark = pytest.mark.spark

KEYS = 40
ENGINES = ["local_engine", "spark_engine"]


LINES = [f"line {number % KEYS}" for number in range(3 * KEYS)]


def combined(topology: Topology) -> None:
    lines(topology, LINES).group_by("line").persistent_aggregate(PaperState(), "line", Longest(), "n string")


def reduced(topology: Topology) -> None:
    keep(lines(topology, LINES).group_by("line").aggregate("line", Distinct(), "n"))


def aggregated(topology: Topology) -> None:
    pairs = [(f"line {number % KEYS}", number) for number in range(3 * KEYS)]
    stream = topology.new_stream("pairs", FixedBatchSpout("line string, n long", pairs))
    keep(stream.group_by("line").aggregate("n", Both(), "a, b"))


def multi_reduced(topology: Topology) -> None:
    grouped = [sales(topology).group_by("city"), cities(topology).group_by("town")]
    keep(topology.multi_reduce(["id", "rank"], grouped, Latest(), "place, a, b"))


def counted(topology: Topology) -> None:
    lines(topology, LINES).group_by("line").persistent_aggregate(PaperState(), Count(), "n")


BY_DICTIONARY = [combined, reduced, aggregated, multi_reduced]


@pytest.mark.parametrize("made", ENGINES)
@pytest.mark.parametrize("build", BY_DICTIONARY)
def test_more_keys_than_the_limit_are_an_error_that_says_where_and_what_to_do(
    made: str, build: Callable[[Topology], None], job_of: JobOf, request: pytest.FixtureRequest
) -> None:
    engine: Engine = request.getfixturevalue(made)
    job = job_of(build)
    with pytest.raises(ConfigurationError) as refused:
        engine.run(replace(job, max_keys=1))
    error = refused.value
    assert error.outcome is Outcome.FAIL
    assert error.txid == 1
    assert not error.may_quote_rows
    assert error.message.partition(":")[0] in {node.name for stage in job.plan.stages for node in stage.nodes}
    assert "keys so far in transaction 1" in error.message
    assert "partition " in error.message
    assert "more than the 1 of [trident] max_partition_keys" in error.message
    assert "spark.sql.shuffle.partitions" in error.cure
    assert run(engine, replace(job, max_keys=KEYS)) == run(OracleEngine(), job)


@pytest.mark.parametrize("made", ENGINES)
def test_a_built_in_aggregator_has_no_limit_of_keys(made: str, job_of: JobOf, request: pytest.FixtureRequest) -> None:
    job = job_of(counted)
    assert run(request.getfixturevalue(made), replace(job, max_keys=1)) == run(OracleEngine(), job)


def test_a_join_in_python_has_the_limit_and_one_in_the_jvm_has_none(
    spark_engine: SparkEngine, local_engine: Engine, job_of: JobOf
) -> None:
    def joined(topology: Topology) -> None:
        keep(
            topology.join(
                [sales(topology), cities(topology)], ["city", "town"], "place, fruit, n, price, id, land, rank"
            )
        )

    job = replace(job_of(joined), max_keys=1)
    with pytest.raises(ConfigurationError, match="keys so far"):
        local_engine.run(job)
    assert run(spark_engine, job) == run(OracleEngine(), job)


def test_the_transaction_goes_on_where_the_limit_is_raised(tmp_path: Path) -> None:
    topology = Topology("many_keys")
    grouped = lines(topology, LINES).group_by("line")
    grouped.persistent_aggregate(MemoryState(), "line", Longest(), "n string")
    ledger = MemoryLedger("many_keys")
    ledger.register(topology.definition())
    coordinate(ledger, topology, [Claim(key="r")])
    few, enough = (Attempts(owner="test", last_try=True, max_partition_keys=most) for most in (5, KEYS))
    with pytest.raises(ConfigurationError, match="max_partition_keys"):
        process(ledger, topology, 1, LocalEngine(), str(tmp_path), few)
    assert not list(tmp_path.rglob("*.manifest*"))
    done = process(ledger, topology, 1, LocalEngine(), str(tmp_path), enough)
    assert done.outcome is ProcessOutcome.PROCESSED
