"""What becomes of an aggregation's result that is too large for the driver, or may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_trident import Count, FileSpout, FixedBatchSpout, Sum, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.engine.spark import results, run
from airflow_trident.engine.spark.engine import SparkEngine
from tests.fixtures.engine import JobOf, staged
from tests.fixtures.plan import PaperState

pytestmark = pytest.mark.spark


@pytest.fixture
def job(tmp_path: Path, job_of: JobOf) -> Any:
    """Of 12,000 groups, and one of one group, from four files."""
    words = [f"word {number}" for number in range(12_000)]
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(4):
        pq.write_table(pa.table({"word": words[number::4] * 2, "n": range(6_000)}), folder / f"{number}.parquet")

    def build(topology: Topology) -> None:
        spout = FileSpout(str(folder), format="parquet", fields="word string, n long")
        stream = topology.new_stream("words", spout)
        stream.group_by("word").persistent_aggregate(PaperState(), "n", Sum(), "total", name="many")
        stream.persistent_aggregate(PaperState(), Count(), "n", name="one")

    return job_of(build)


@pytest.mark.parametrize(
    ("home_bytes", "files"), [(32 << 20, 1), (0, 2)], ids=["all comes home", "what is large stays there"]
)
def test_a_result_of_a_large_input_is_staged_by_what_each_part_of_it_has(
    spark_engine: SparkEngine, job: Any, monkeypatch: pytest.MonkeyPatch, home_bytes: int, files: int
) -> None:
    with LocalEngine() as local:
        expected = staged(job, local.run(job))
    jobs = list[str]()
    collected = run.to_arrow
    monkeypatch.setattr(run, "to_arrow", lambda frame: [jobs.append(frame.columns), collected(frame)][1])
    monkeypatch.setattr(results, "SMALL_INPUT_BYTES", 0)
    monkeypatch.setattr(results, "HOME_BYTES", home_bytes)
    manifest = spark_engine.run(job)
    assert staged(job, manifest) == expected
    many = [file for file in manifest.files if file.state == "many"]
    assert sum(file.rows for file in many) == 12_000
    assert (len(many) == 1) is (files == 1)
    assert [columns[0] for columns in jobs] == ["path", "path"], (
        "one job for each state, and no rows of it come as they are"
    )


@pytest.fixture
def takes(spark_engine: SparkEngine, job: Any) -> Iterator[Callable[[str, str], None]]:
    """Sets what Spark's driver takes, and what the session says about that."""
    with spark_engine._attached(job) as attached:
        context = attached.session.sparkContext._jsc.sc().conf()
        session = attached.session._jsparkSession.sessionState().conf()
    name = "spark.driver.maxResultSize"

    def set_both(really: str, says: str) -> None:
        context.set(name, really)
        session.setConfString(name, says)

    yield set_both
    context.remove(name)
    session.unsetConf(name)


@pytest.mark.parametrize("says", ["48k", "1g"], ids=["as the session says", "with more than the session says"])
@pytest.mark.parametrize("small_input_bytes", [64 << 20, 0], ids=["a small input", "a large input"])
def test_a_driver_that_takes_little_gets_little(
    spark_engine: SparkEngine,
    job: Any,
    takes: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
    says: str,
    small_input_bytes: int,
) -> None:
    expected = staged(job, spark_engine.run(job))
    monkeypatch.setattr(results, "SMALL_INPUT_BYTES", small_input_bytes)
    takes("48k", says)
    manifest = spark_engine.run(job)
    assert staged(job, manifest) == expected
    assert len([file for file in manifest.files if file.state == "many"]) == 2, "the workers wrote it"


def test_what_a_transform_makes_out_of_few_rows_does_not_have_to_fit_the_driver(
    spark_engine: SparkEngine, job_of: JobOf, takes: Callable[[str, str], None]
) -> None:
    """T10: its input says nothing of its size."""

    def wordy(frame: Any) -> Any:
        many = frame.selectExpr("explode(sequence(1, 6000)) AS place", "word")
        return many.selectExpr("concat(word, '-', place) AS word", "1L AS n")

    def build(topology: Topology) -> None:
        made = topology.new_stream("words", FixedBatchSpout("word string", ["a", "b"])).transform(
            wordy, "word string, n long"
        )
        made.group_by("word").persistent_aggregate(PaperState(), "n", Sum(), "total", name="many")

    takes("48k", "48k")
    job = job_of(build)
    manifest = spark_engine.run(job)
    expected = sorted(repr((f"{word}-{place}", 1)) for word in "ab" for place in range(1, 6001))
    assert staged(job, manifest) == {"many": expected}
    assert len(manifest.files) > 1, "the workers wrote it"


def test_a_batch_of_unknown_size_is_not_collected_without_any_limit(
    spark_engine: SparkEngine, job_of: JobOf, takes: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(topology: Topology) -> None:
        words = topology.new_stream("words", FixedBatchSpout("word string", ["a", "b"]))
        words.group_by("word").persistent_aggregate(PaperState(), Count(), "n", name="many")

    jobs, collected, job = list[list[str]](), run.to_arrow, job_of(build)
    monkeypatch.setattr(run, "to_arrow", lambda frame: [jobs.append(frame.columns), collected(frame)][1])
    for limit in ("1g", "0"):
        takes(limit, limit)
        assert sum(file.rows for file in spark_engine.run(job).files) == 2
    assert jobs[0] == ["word", "n"]
    assert jobs[1][0] == "path"


@pytest.mark.parametrize(
    ("setting", "home_bytes"),
    [("1g", 32 << 20), ("48m", 24 << 20), ("1MB", 1 << 19), (" 512k ", 1 << 18), ("1000", 500), ("0", 32 << 20)],
)
def test_half_of_what_the_driver_takes_may_come_home(setting: str, home_bytes: int) -> None:
    assert min(results.HOME_BYTES, (results.size_of(setting) or 1 << 40) // 2) == home_bytes


def test_a_result_that_the_driver_refuses_is_written_by_the_workers(
    spark_engine: SparkEngine, job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = staged(job, spark_engine.run(job))
    collected = run.to_arrow

    def refused(frame: Any) -> Any:
        if "total" in frame.columns:
            raise RuntimeError("results are bigger than spark.driver.maxResultSize")
        return collected(frame)

    monkeypatch.setattr(run, "to_arrow", refused)
    assert staged(job, spark_engine.run(job)) == expected
