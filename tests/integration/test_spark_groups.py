"""Groups of transactions whose files the JVM reads itself, and whom Spark's errors are about."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import SparkFiles

from airflow_trident import Count, FileSpout, MemoryState, Topology
from airflow_trident.engine.engine import Job
from airflow_trident.engine.spark import run as run_module
from airflow_trident.errors import SourceChangedError, UserCodeError
from airflow_trident.operations.expressions import col, explode, length, split_words, when
from airflow_trident.plan.stages import Coalescing
from tests.fixtures.engine import JobOf, keep, run
from tests.fixtures.group import merged_by_keys, staged_of_each, tables_of

if TYPE_CHECKING:
    from airflow_trident.engine.spark.engine import SparkEngine

pytestmark = pytest.mark.spark

FILES = {
    "a.txt": b"one two\ntwo three\n",
    "b.txt": b"\r\nreturns two\r\nlone \r inside\r\n",
    "c/a.txt": "Größe 猫 one\n".encode(),
    "c/d": b"no end",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        path = tmp_path / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "files"


def jobs_over(folder: Path, job_of: JobOf, build: Callable[[Any], None]) -> list[Job]:
    """Four transactions: two files; one; nothing; and a file that the first one has, too."""

    def topology_of(topology: Topology) -> None:
        build(topology.new_stream("lines", FileSpout(f"{folder}/**")))

    job = job_of(topology_of)
    by_name = {file[0]: file for file in job.metadata["lines"]["files"]}
    assert set(by_name) == set(FILES)
    batches = [["a.txt", "c/a.txt"], ["b.txt"], None, ["c/d", "a.txt"]]
    return [
        replace(
            job,
            slot=replace(job.slot, txid=txid),
            metadata={}
            if names is None
            else {"lines": {**job.metadata["lines"], "files": [by_name[n] for n in names]}},
        )
        for txid, names in enumerate(batches, start=1)
    ]


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Who read a source: "JVM" each time that Spark's own reader did."""
    found: list[str] = []
    real = run_module.read_linked

    def read_linked(*arguments: Any, **named: Any) -> Any:
        found.append("JVM")
        return real(*arguments, **named)

    monkeypatch.setattr(run_module, "read_linked", read_linked)
    return found


def _sizes(stream: Any) -> None:
    keep(stream.each(length(col("line")), "size"), "lines")


def _whole(stream: Any) -> None:
    keep(stream.aggregate(Count(), "n"), "count")


def _words(stream: Any) -> None:
    keep(stream.each(explode(split_words(col("line"))), "word").group_by("word").aggregate(Count(), "n"), "counts")


@pytest.mark.parametrize(
    ("build", "reads", "more"),
    [
        (_sizes, 1, 0),
        (_whole, 1, 0),
        pytest.param(_words, 2, 0, id="in a partition for each core"),
        pytest.param(_words, 1, 50, id="one transaction is larger than all others"),
    ],
)
def test_lines_that_the_jvm_reads_are_those_of_their_transactions(
    spark_engine: SparkEngine,
    job_of: JobOf,
    folder: Path,
    ways: list[str],
    build: Callable[[Any], None],
    reads: int,
    more: int,
) -> None:
    (folder / "b.txt").write_bytes(FILES["b.txt"] + b"more\n" * more)
    jobs = jobs_over(folder, job_of, build)
    manifest = spark_engine.run_group(jobs)
    assert staged_of_each(jobs, manifest) == {job.slot.txid: run(spark_engine, job) for job in jobs}
    assert [one.rows_read for one in manifest.members] == [3, 3 + more, 0, 3]
    assert ways == ["JVM"] * reads
    assert not list(Path(SparkFiles.getRootDirectory()).glob("airflow-trident-group-*"))


def test_by_key_a_file_of_two_transactions_counts_for_both(
    spark_engine: SparkEngine, job_of: JobOf, folder: Path, ways: list[str]
) -> None:
    def build(stream: Any) -> None:
        words = stream.each(explode(split_words(col("line"))), "word")
        words.group_by("word").persistent_aggregate(MemoryState(), Count(), "n")

    jobs = jobs_over(folder, job_of, build)
    assert jobs[0].plan.coalesces.how is Coalescing.BY_KEY
    manifest = spark_engine.run_group(jobs)
    assert manifest.inseparable
    alone = [tables_of([job], spark_engine.run(job))["n"][0] for job in jobs]
    assert merged_by_keys(jobs[0], tables_of(jobs, manifest)) == merged_by_keys(jobs[0], {"n": alone})
    assert ways == ["JVM"]


def test_where_links_cannot_be_made_python_reads(
    spark_engine: SparkEngine, job_of: JobOf, folder: Path, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError

    jobs = jobs_over(folder, job_of, _sizes)
    monkeypatch.setattr(os, "symlink", refuse)
    manifest = spark_engine.run_group(jobs)
    assert staged_of_each(jobs, manifest) == {job.slot.txid: run(spark_engine, job) for job in jobs}
    assert ways == []


@pytest.mark.parametrize("changed", ["before", "meanwhile"])
def test_a_file_that_changed_names_its_transaction(
    spark_engine: SparkEngine, job_of: JobOf, folder: Path, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E9; the others go on without it."""
    jobs = jobs_over(folder, job_of, _sizes)

    def change() -> None:
        (folder / "b.txt").write_bytes(FILES["b.txt"] + b"more\n")

    if changed == "before":
        change()
    else:
        real = run_module.GroupRun._collected

        def collected(*arguments: Any) -> Any:
            change()
            return real(*arguments)

        monkeypatch.setattr(run_module.GroupRun, "_collected", collected)
    with pytest.raises(SourceChangedError) as caught:
        spark_engine.run_group(jobs)
    assert caught.value.txid == 2
    monkeypatch.undo()
    rest = [jobs[0], *jobs[2:]]
    assert set(staged_of_each(rest, spark_engine.run_group(rest))) == {1, 3, 4}


def test_an_expression_that_fails_names_the_transaction_of_its_row(
    spark_engine: SparkEngine, job_of: JobOf, folder: Path
) -> None:
    def build(stream: Any) -> None:
        text = when(col("line") == "returns two", col("line")).otherwise("1")
        keep(stream.each(text, "text").each(col("text").cast("int"), "number"), "numbers")

    with pytest.raises(UserCodeError, match="transaction 2, row") as caught:
        spark_engine.run_group(jobs_over(folder, job_of, build))
    assert caught.value.txid == 2
