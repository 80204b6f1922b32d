"""The contract of engines: every topology gives on every engine what it gives row by row (E1 to E5)."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.engine.engine import Engine, Job
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.versions import TIMES_SINCE, field_with_times
from airflow_trident.errors import (
    AttemptTimeoutError,
    ConfigurationError,
    DamagedInputError,
    FailedException,
    Outcome,
    TridentError,
    UserCodeError,
)
from airflow_trident.ledger.ledger import CHUNK_BYTES
from airflow_trident.runtime.timeouts import run_in_time
from airflow_trident.staging.area import StagingArea
from tests.contracts.conftest import EVERY_PRODUCT
from tests.fixtures.choice import CHOICES
from tests.fixtures.engine import TOPOLOGIES, JobOf, keep, lines, run, slow, staged, without_data
from tests.fixtures.failing import FAILING, DamagedSpout
from tests.fixtures.gates import GATED, gated_before_a_limit, gated_behind_a_query, gated_reading
from tests.fixtures.life import Txid, operations_with_a_life
from tests.fixtures.spark import spark_release
from tests.fixtures.vector import vectors
from tests.fixtures.verb import VERBS
from tests.oracle.rows import OracleEngine

pytestmark = pytest.mark.spark

ENGINES = {"local": "local_engine", "spark": "spark_engine", "connect": "connect_engine"}
"""Name -> fixture. That of spark-submit starts a JVM for every job, so it runs a few topologies only, further down."""

FAILING_BY_CONNECT = ("a_function_raises", "an_expression_overflows")
"""The errors come by the same way from all functions; these two ways are enough for a second kind of session."""

WORDED_ALIKE = (
    *("an_exception_without_a_text", "a_value_that_cannot_be_shown", "a_filter_raises", "a_whole_number_too_large"),
    *("too_many_values", "a_text_instead_of_outputs", "an_aggregator_emits_too_much"),
    *("an_aggregator_emits_another_type", "a_grouping_names_no_partition"),
)
"""Errors that the code of users' functions words, and that come from Spark's workers by the same way as the others."""


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(ENGINES[request.param])
    return found


ALL = TOPOLOGIES | VERBS | CHOICES | GATED | {"vectors": vectors, "operations_with_a_life": operations_with_a_life}
ON_CONNECT = (
    *("word_count", "word_count_in_the_jvm", "merge_and_diamond", "joins", "with_a_stream_without_data"),
    *("maps_and_structs", "times_and_intervals"),
)
"""A session of Connect gets the same plan, and does not look into users' functions: one topology for each call of
Spark that plans are made of (Arrow functions, aggregation, union, persisted forks, joins, no rows), and those
with types of their own. `make contracts` runs all."""
PRODUCTS = [
    (made, name) for made in ENGINES for name in ALL if made != "connect" or name in ON_CONNECT or EVERY_PRODUCT
]


@pytest.mark.parametrize(("engine", "name"), PRODUCTS, indirect=["engine"])
def test_a_batch_gives_the_same_rows_as_row_by_row(engine: Engine, name: str, job_of: JobOf) -> None:
    job = job_of(ALL[name])
    if isinstance(engine, SparkEngine) and spark_release() < TIMES_SINCE and field_with_times(job.plan):
        with pytest.raises(ConfigurationError, match="has no times of day"):
            engine.run(job)
        return
    given = run(engine, job)
    assert any(given.values())
    assert given == run(OracleEngine(partitions=3), job)


def test_the_largest_of_long_decimals_is_found_without_a_second_run(spark_engine: Engine, job_of: JobOf) -> None:
    told: list[str] = []
    spark_engine.run(replace(job_of(CHOICES["best_by_long_decimals"]), progress=told.append))
    assert told
    assert not [line for line in told if "again" in line]


def test_what_spark_need_not_compute_is_measured_all_the_same(spark_engine: Engine, job_of: JobOf) -> None:
    """A limit ends a pass before it has seen its rows."""
    limited, queried = (spark_engine.run(job_of(build)) for build in (gated_before_a_limit, gated_behind_a_query))
    whole = OracleEngine().run(job_of(gated_reading)).checks
    assert limited.checks == {name: number for name, number in whole.items() if name in limited.checks}
    assert len(limited.checks) == len(whole) - 1
    assert queried.checks["q row_count"] == {"rows": 4, "value": 4}


def test_partitions_meet_where_spark_unites_small_ones(spark_session: Any, spark_engine: Engine, job_of: JobOf) -> None:
    job = job_of(VERBS["aggregations_beside_what_is_partitioned_alike"])
    adaptive = "spark.sql.adaptive.enabled"
    before = spark_session.conf.get(adaptive)
    spark_session.conf.set(adaptive, "true")
    try:
        assert run(spark_engine, job) == run(OracleEngine(partitions=3), job)
    finally:
        spark_session.conf.set(adaptive, before)


@pytest.mark.parametrize("engine", ["local", "spark"], indirect=True)
@pytest.mark.parametrize("name", ["global_aggregates", "several_streams_and_states", "user_reducer"])
def test_an_empty_batch_stages_nothing_but_the_rows_of_global_aggregates(
    engine: Engine, name: str, job_of: JobOf
) -> None:
    job = without_data(job_of(TOPOLOGIES[name]))
    given = run(engine, job)
    assert given == run(OracleEngine(), job)
    assert {state for state, rows in given.items() if rows} <= {"count", "longest", "words", "first"}


def test_the_rows_that_came_out_of_the_spouts_are_counted(engine: Engine, job_of: JobOf) -> None:
    assert engine.run(job_of(TOPOLOGIES["several_streams_and_states"])).rows_read == 13
    assert engine.run(job_of(TOPOLOGIES["functions_and_filters"])).rows_read == 6


def test_what_was_staged_can_be_published_and_read_again_from_the_manifest_alone(engine: Engine, job_of: JobOf) -> None:
    job = job_of(TOPOLOGIES["several_streams_and_states"])
    manifest = engine.run(job)
    area = StagingArea(job.staging_root)
    assert staged(job, area.load(area.publish(manifest))) == run(OracleEngine(), job)


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (made, name)
        for made in ("local_engine", "spark_engine")
        for name in FAILING
        if EVERY_PRODUCT or made == "local_engine" or name not in WORDED_ALIKE
    ],
)
def test_an_error_of_users_code_names_node_fields_row_and_transaction(
    made: str, name: str, job_of: JobOf, request: pytest.FixtureRequest
) -> None:
    """E3, and the same words as row by row."""
    job = job_of(FAILING[name])
    error, meant = _error(request.getfixturevalue(made), job), _error(OracleEngine(), job)
    assert isinstance(error, UserCodeError)
    assert isinstance(meant, UserCodeError)
    assert (error.node, error.fields, error.row) == (meant.node, meant.fields, meant.row)
    assert "transaction 1" in error.message
    if name not in ("a_sum_overflows", "a_combiner_raises"):  # where the rows met is not defined
        assert str(error) == str(meant)


@pytest.mark.parametrize("name", FAILING_BY_CONNECT)
def test_an_error_of_users_code_comes_through_spark_connect(connect_engine: Engine, name: str, job_of: JobOf) -> None:
    job = job_of(FAILING[name])
    assert str(_error(connect_engine, job)) == str(_error(OracleEngine(), job))


@pytest.mark.parametrize("name", ["spark_engine", "connect_engine"])
def test_an_error_of_users_code_is_not_buried_in_sparks_frames(
    name: str, job_of: JobOf, request: pytest.FixtureRequest
) -> None:
    error = _error(request.getfixturevalue(name), job_of(FAILING["a_function_raises"]))
    shown = "".join(traceback.format_exception(error))
    assert "py4j" not in shown.lower()
    assert "java" not in shown.lower()
    assert "in refuse_ran" in shown


def test_a_spouts_own_error_keeps_its_type(engine: Engine, job_of: JobOf) -> None:
    error = _error(engine, job_of(lambda topology: keep(topology.new_stream("bad", DamagedSpout()))))
    assert isinstance(error, DamagedInputError)
    assert str(error) == "line 3 of x.csv has 2 fields. Mend the file."


@pytest.mark.parametrize("retry", [True, False])
def test_a_function_that_fails_the_attempt_is_taken_at_its_word(engine: Engine, retry: bool, job_of: JobOf) -> None:
    def refuse(line: str) -> Iterator[str]:
        raise FailedException("rates are missing", "Wait for them.", retry=retry)
        yield line

    error = _error(engine, job_of(lambda topology: keep(lines(topology).each("line", refuse, "x string"))))
    assert type(error) is FailedException
    assert str(error) == "rates are missing. Wait for them."
    assert error.outcome is (Outcome.RETRY if retry else Outcome.FAIL)


@pytest.mark.parametrize("engine", ["local", "spark"], indirect=True)
def test_every_attempt_has_operations_of_its_own(engine: Engine, job_of: JobOf) -> None:
    """E5; that partitions and nodes have them is in the topology itself, which runs among all others."""
    job = job_of(operations_with_a_life)
    again = replace(job, slot=replace(job.slot, txid=2, attempt=1))
    assert run(engine, job)["rows"] != (second := run(engine, again))["rows"]
    assert second == run(OracleEngine(), again)
    functions = [node.function for stage in job.plan.stages for node in stage.nodes if hasattr(node, "function")]
    assert any(isinstance(one, Txid) for one in functions)
    assert not any(vars(one) for one in functions if isinstance(one, Txid))


def test_what_cannot_be_copied_is_named_with_the_cure(engine: Engine, job_of: JobOf) -> None:
    function = Txid()
    function.lock = threading.Lock()  # type: ignore[attr-defined]
    error = _error(engine, job_of(lambda topology: keep(lines(topology).each("line", function, "txid"))))
    assert isinstance(error, ConfigurationError)
    assert "Open connections, locks and files in prepare()" in str(error)


def test_an_attempt_that_takes_too_long_is_cancelled(
    engine: Engine, job_of: JobOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The local engine notices it between two calls of a user's function."""
    job = job_of(slow)
    with pytest.raises(AttemptTimeoutError, match=r"attempt \d of transaction 1 took longer than 1 s") as caught:
        run_in_time(engine, job, 1.0)
    assert caught.value.outcome is Outcome.RETRY
    again = job_of(TOPOLOGIES["word_count"])
    assert run_in_time(engine, again, 600.0).files


def test_a_failed_job_leaves_the_engine_usable(engine: Engine, job_of: JobOf) -> None:
    _error(engine, job_of(FAILING["a_function_raises"]))
    job = job_of(TOPOLOGIES["word_count"])
    assert run(engine, job) == run(OracleEngine(), job)


def test_spark_submit_gives_the_same_rows_and_leaves_only_staged_files(submit_engine: Engine, job_of: JobOf) -> None:
    job = job_of(TOPOLOGIES["several_streams_and_states"])
    manifest = submit_engine.run(job)
    left = {path.name for path in Path(job.staging_root, job.slot.path).iterdir()}
    assert left == {Path(file.path).name for file in manifest.files}
    assert staged(job, manifest) == run(OracleEngine(), job)
    assert manifest.rows_read == 13

    small = replace(job, slot=replace(job.slot, attempt=1), chunk_bytes=CHUNK_BYTES)
    manifest = submit_engine.run(small)  # it travels in the answer
    assert list(Path(job.staging_root, small.slot.path).iterdir()) == []
    assert staged(small, manifest) == run(OracleEngine(), job)
    assert StagingArea(job.staging_root).publish(manifest, chunk_bytes=CHUNK_BYTES).content


def test_spark_submit_brings_the_typed_error_back(submit_engine: Engine, job_of: JobOf) -> None:
    job = job_of(FAILING["a_function_raises"])
    assert str(_error(submit_engine, job)) == str(_error(OracleEngine(), job))


def _error(engine: Engine, job: Job) -> TridentError:
    with pytest.raises(TridentError) as caught:
        engine.run(job)
    return caught.value
