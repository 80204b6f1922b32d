"""Text that the JVM reads itself is the text that FileSpout means, byte for byte."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions

from airflow_trident import Count, FileSpout, Topology
from airflow_trident.contracts.spout import TextFiles
from airflow_trident.engine.engine import Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.jvm_nodes import Columns
from airflow_trident.engine.spark.jvm_sources import linked, read_linked, read_text
from airflow_trident.engine.spark.run import PlanRun
from airflow_trident.errors import SourceChangedError
from airflow_trident.operations.expressions import col, length
from tests.fixtures.engine import JobOf, keep, run, staged
from tests.fixtures.plan import PaperState

pytestmark = pytest.mark.spark

PLAIN = [
    b"one\ntwo\nthree",
    b"\r\n\n \na\r\nlone \r inside\r\nb\r\r\n",
    "Größe 猫 😀\x00\u2028\x0b\x85 end\n".encode(),
    b"x" * 100_000 + b"\n" + b"y\n" * 3,
    b"\n",
]
MARK, RETURN, EMPTY = b"\xef\xbb\xbfmark\n", b"ends with\r", b""
BROKEN = b"broken \xff\xe4\xf6 \xed\xa0\x80 \xf0\x9f\x98\nfine\n"


def put(folder: Path, contents: list[bytes]) -> Path:
    folder.mkdir()
    for number, content in enumerate(contents):
        (folder / f"{number}.txt").write_bytes(content)
    return folder


def whole(folder: Path) -> Callable[[Topology], None]:
    def build(topology: Topology) -> None:
        lines = topology.new_stream("lines", FileSpout(str(folder), encoding_errors="replace"))
        keep(lines.each(length(col("line")), "size"), "lines")

    return build


def reader_of(engine: SparkEngine, job: Job) -> str:
    with engine._attached(job) as attached:
        plans = PlanRun(attached, job, native=True).physical().values()
    return "the JVM" if any("FileScan text" in plan for plan in plans) else "Python"


@pytest.mark.parametrize(
    ("contents", "reader"),
    [
        (PLAIN, "the JVM"),
        ([MARK, b"more\n"], "Python"),
        ([RETURN, b"more\n"], "Python"),
        ([EMPTY, b"more\n"], "Python"),
        ([*PLAIN, BROKEN], "Python"),
        ([(b"a" * 999 + b"\n") * 20_000 + b"\xff\n"], "Python"),
    ],
    ids=[
        "plain",
        "byte order mark",
        "carriage return at the end",
        "empty file",
        "broken UTF-8",
        "broken UTF-8 far behind",
    ],
)
def test_lines_and_their_number_are_those_of_the_spout(
    spark_engine: SparkEngine, job_of: JobOf, tmp_path: Path, contents: list[bytes], reader: str
) -> None:
    job = job_of(whole(put(tmp_path / "files", contents)))
    assert reader_of(spark_engine, job) == reader
    assert spark_engine.run(job).rows_read == LocalEngine().run(job).rows_read > 0
    assert run(spark_engine, job) == run(LocalEngine(), job)


def test_python_reads_where_python_runs_on_the_lines_or_a_name_would_mean_something_to_spark(
    spark_engine: SparkEngine, job_of: JobOf, tmp_path: Path
) -> None:
    files, odd = put(tmp_path / "files", [b"a b\n"]), put(tmp_path / "odd", [])
    (odd / "a[1]{b}.txt").write_text("line\n")
    (odd / "c.deflate").write_text("a name by which Spark would unpack it\n")

    def functions(topology: Topology) -> None:
        keep(topology.new_stream("lines", FileSpout(str(files))).each("line", str.split, "word string"))

    def names(topology: Topology) -> None:
        keep(topology.new_stream("lines", FileSpout(str(odd))))

    def twice(topology: Topology) -> None:
        lines = topology.new_stream("lines", FileSpout(str(files)))
        keep(lines, "lines")
        lines.group_by("line").persistent_aggregate(PaperState(), Count(), "count", name="counts")

    for build in (functions, names, twice):
        job = job_of(build)
        assert reader_of(spark_engine, job) == "Python"
        assert run(spark_engine, job) == run(LocalEngine(), job)


@pytest.mark.parametrize("name", ["_a.txt", "...b", ".c.log", "_metadata.txt", "d._COPYING_"])
def test_python_reads_a_file_whose_name_spark_passes_over(
    spark_engine: SparkEngine, job_of: JobOf, tmp_path: Path, name: str
) -> None:
    """A pattern that names such files means them."""
    hidden = put(tmp_path / "_files", [])
    (hidden / name).write_text("a b\nc\n")

    def names(topology: Topology) -> None:
        keep(topology.new_stream("lines", FileSpout(str(hidden / name))))

    def pattern(topology: Topology) -> None:
        keep(topology.new_stream("lines", FileSpout(str(hidden / f"{name[:1]}*"))))

    for build in (names, pattern) if name[0] in "_." else (names,):
        job = job_of(build)
        assert reader_of(spark_engine, job) == "Python"
        found = spark_engine.run(job)
        assert found.rows_read == 2
        assert staged(job, found) == run(LocalEngine(), job) == {"rows": ["('a b',)", "('c',)"]}


def test_a_plain_name_in_a_folder_that_begins_with_an_underscore_is_read_by_the_jvm(
    spark_engine: SparkEngine, job_of: JobOf, tmp_path: Path
) -> None:
    job = job_of(whole(put(tmp_path / "_files", PLAIN)))
    assert reader_of(spark_engine, job) == "the JVM"
    assert run(spark_engine, job) == run(LocalEngine(), job)


@pytest.mark.parametrize("in_group", [False, True], ids=["one transaction", "a group"])
def test_a_file_that_goes_away_is_an_error_whatever_the_session_says(
    spark_session: Any, tmp_path: Path, in_group: bool
) -> None:
    """Its lines would be missing without a word."""
    files = put(tmp_path / "files", [b"a\n", b"b\n"])
    paths = (str(files / "0.txt"), str(files / "1.txt"))
    session = spark_session.newSession()
    session.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    session.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    columns = Columns(functions, {})
    with linked({0: paths}) as folder:
        if in_group:
            lines = read_linked(session, columns, folder, "line", None, returns=False)
        else:
            given = TextFiles(paths=paths, rows=2, returns=False, require_same=lambda: None)
            lines = read_text(session, columns, given, "line")
        (files / "0.txt").unlink()
        with pytest.raises(Exception, match=r"0\.txt"):
            lines.collect()


def test_files_that_python_reads_on_the_executors_are_not_read_by_the_driver_before(
    spark_engine: SparkEngine, job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = put(tmp_path / "files", [b"a b\n"])

    def functions(topology: Topology) -> None:
        keep(topology.new_stream("lines", FileSpout(str(files))).each("line", str.split, "word string"))

    looked_at: list[str] = []
    monkeypatch.setattr("airflow_trident.spouts.files.emitter.plain_text", looked_at.append)
    job = job_of(functions)
    assert run(spark_engine, job) == run(LocalEngine(), job)
    assert looked_at == []
    run(spark_engine, job_of(whole(files)))
    assert looked_at == [str(files / "0.txt")]


def test_a_file_that_changed_since_it_was_recorded_is_named(
    spark_engine: SparkEngine, job_of: JobOf, tmp_path: Path
) -> None:
    files = put(tmp_path / "files", PLAIN)
    job = job_of(whole(files))
    os.utime(files / "0.txt", (1, 1))
    assert run(spark_engine, job) == run(LocalEngine(), job), "only its time is another one"
    (files / "0.txt").write_bytes(PLAIN[0].upper())
    with pytest.raises(SourceChangedError, match=r"0\.txt' changed"):
        spark_engine.run(job)
    (files / "0.txt").unlink()
    with pytest.raises(SourceChangedError, match=r"0\.txt', which the transaction recorded, is gone"):
        spark_engine.run(job)


def test_hundreds_of_small_files_are_a_few_tasks_whoever_reads_them(
    spark_engine: SparkEngine, job_of: JobOf, tmp_path: Path
) -> None:
    files = put(tmp_path / "files", [b"a b\n"] * 300)

    def native(topology: Topology) -> None:
        lines = topology.new_stream("lines", FileSpout(str(files)))
        lines.group_by("line").persistent_aggregate(PaperState(), Count(), "count")

    def python(topology: Topology) -> None:
        lines = topology.new_stream("lines", FileSpout(str(files))).filter("line", lambda line: line != "")
        lines.group_by("line").persistent_aggregate(PaperState(), Count(), "count")

    for build, reader in ((native, "the JVM"), (python, "Python")):
        job = job_of(build)
        assert reader_of(spark_engine, job) == reader
        before = tasks_of(spark_engine, job)
        assert run(spark_engine, job) == {"count": ["('a b', 300)"]}
        assert 0 < tasks_of(spark_engine, job) - before < 100


def tasks_of(engine: SparkEngine, job: Job) -> int:
    """How many tasks the application has had."""
    with engine._attached(job) as attached:
        tracker = attached.session.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(None)]
    stages = [tracker.getStageInfo(number) for info in jobs if info is not None for number in info.stageIds]
    return sum(stage.numTasks for stage in stages if stage is not None)
