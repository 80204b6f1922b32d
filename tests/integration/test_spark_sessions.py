"""Sessions: started, cancelled, fenced, refused; and nothing left behind."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from airflow_trident.cli.commands.doctor import Level, spark_checks
from airflow_trident.engine.engine import Engine, Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.engine.spark.engine import SparkEngine, tried
from airflow_trident.engine.spark.older_orders import OlderOrder
from airflow_trident.engine.spark.order_takers import Taker, take
from airflow_trident.engine.spark.sessions.connect import ConnectSessions
from airflow_trident.engine.spark.sessions.java import java_version, require_java
from airflow_trident.engine.spark.sessions.local import start_error
from airflow_trident.engine.spark.sessions.session import GivenSession, session_id_of
from airflow_trident.engine.spark.submit import DriverTags, SubmitEngine
from airflow_trident.engine.spark.versions import TIMES_SINCE, field_with_times
from airflow_trident.errors import ConfigurationError, Outcome, SparkJobError
from airflow_trident.staging.manifest import Slot
from tests.fixtures.engine import TOPOLOGIES, JobOf, run
from tests.fixtures.spark import Background, endless, free_port, spark_release, wait_for
from tests.fixtures.spark_submit import SparkSubmitProcess

pytestmark = pytest.mark.spark

SLOT = Slot(topology="t", incarnation="i", txid=7, attempt=2)


@pytest.fixture(params=["spark_engine", "connect_engine", "submit_engine"])
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(request.param)
    return found


def test_cancelling_from_another_thread_ends_the_job_with_an_error_that_may_be_retried(
    engine: Engine, job_of: JobOf, tmp_path: Path
) -> None:
    """E4."""
    running = Background(engine, job_of(endless(tmp_path)))
    try:
        wait_for((tmp_path / "begun").exists)
        engine.cancel()
        error = running.end()
    finally:  # else a failure here would leave a job that never ends, and the process would wait for it
        (tmp_path / "enough").touch()
    assert isinstance(error, SparkJobError)
    assert error.outcome is Outcome.RETRY
    assert error.cure


def test_a_cancelled_engine_runs_the_next_job(spark_engine: SparkEngine, job_of: JobOf) -> None:
    spark_engine.cancel()
    job = job_of(TOPOLOGIES["word_count"])
    assert run(spark_engine, job) == run(LocalEngine(), job)


def test_a_newer_attempt_on_connect_ends_the_older_ones_work(
    connect_server: str, job_of: JobOf, tmp_path: Path
) -> None:
    """The older client lives on and is refused: it cannot even report."""
    older = job_of(endless(tmp_path))
    newer = Job(
        plan=older.plan,
        slot=Slot(topology=older.slot.topology, incarnation=older.slot.incarnation, txid=1, attempt=1),
        metadata=older.metadata,
        staging_root=older.staging_root,
    )
    with SparkEngine(ConnectSessions(connect_server)) as zombie, SparkEngine(ConnectSessions(connect_server)) as engine:
        running = Background(zombie, older)
        wait_for((tmp_path / "begun").exists)
        engine._sessions.open(newer.slot).release()
        try:
            error = running.end()
        finally:
            (tmp_path / "enough").touch()
        assert isinstance(error, SparkJobError)
        with pytest.raises(SparkJobError, match="SESSION_CLOSED"):
            zombie.run(older)
        assert engine.run(replace(newer, slot=replace(newer.slot, attempt=2))).rows_read == 1


def test_cancelling_in_a_connect_session_that_others_use_ends_the_attempts_own_work_only(
    connect_server: str, job_of: JobOf, tmp_path: Path
) -> None:
    from pyspark.sql.connect.session import SparkSession

    shared = SparkSession.builder.remote(connect_server).create()
    mine, other = tmp_path / "mine", tmp_path / "other"
    jobs = {folder: job_of(endless(folder), number) for number, folder in enumerate((mine, other))}
    engines = {folder: SparkEngine(GivenSession(shared)) for folder in jobs}
    running = {}
    for folder, job in jobs.items():
        folder.mkdir()
        running[folder] = Background(engines[folder], job)
    for folder in jobs:
        wait_for((folder / "begun").exists)
    engines[mine].cancel()
    assert isinstance(running[mine].end(), SparkJobError)
    for folder in jobs:
        (folder / "enough").touch()
    assert running[other].result().rows_read == 1
    shared.stop()


def test_a_trial_run_leaves_the_attempts_own_session_alone(
    connect_engine: SparkEngine, job_of: JobOf, tmp_path: Path
) -> None:
    """A dry replay beside the attempt, even under its number, and again."""
    job = job_of(endless(tmp_path), attempt=1)
    running = Background(connect_engine, job)
    wait_for((tmp_path / "begun").exists)
    quick = replace(job_of(TOPOLOGIES["word_count"]), slot=job.slot, trial=True)
    for _ in range(2):
        assert connect_engine.run(quick).rows_read == 6
    (tmp_path / "enough").touch()
    assert running.result().rows_read == 1


def test_every_process_knows_the_session_of_an_attempt() -> None:
    assert session_id_of(SLOT) == session_id_of(Slot(topology="t", incarnation="i", txid=7, attempt=2))
    assert session_id_of(SLOT, attempt=1) == session_id_of(Slot(topology="t", incarnation="i", txid=7, attempt=1))
    others = {session_id_of(SLOT, attempt=number) for number in range(5)}
    others.add(session_id_of(Slot(topology="t", incarnation="j", txid=7, attempt=2)))
    assert len(others) == 6


def test_a_connect_server_that_is_older_than_its_client_is_refused_before_anything_runs(
    connect_server: str, monkeypatch: pytest.MonkeyPatch, job_of: JobOf
) -> None:
    told: list[str] = []
    jobs = [replace(job_of(TOPOLOGIES["word_count"]), progress=told.append)]
    jobs += [replace(jobs[0], slot=replace(jobs[0].slot, attempt=number)) for number in (1, 2)]
    with SparkEngine(ConnectSessions(connect_server)) as engine:
        monkeypatch.setattr("pyspark.version.__version__", "99.1.0")
        with pytest.raises(ConfigurationError, match=r"server has Spark .*, and the client here is pyspark 99\.1\.0"):
            engine.run(jobs[0])
        monkeypatch.setattr("pyspark.version.__version__", "3.5.9")
        run(engine, jobs[1])
        assert any("from a client of 3.5.9: ready" in line for line in told)
        with pytest.raises(ConfigurationError, match=r"Spark 3\.5\.9 has no times of day"):
            engine.run(replace(jobs[2], plan=job_of(TOPOLOGIES["times_and_intervals"]).plan))


def test_pyspark_with_the_jars_of_another_spark_is_refused(
    spark_engine: SparkEngine, monkeypatch: pytest.MonkeyPatch, job_of: JobOf
) -> None:
    attached = spark_engine._sessions.open(SLOT)
    monkeypatch.setattr("pyspark.version.__version__", "99.1.0")
    try:
        with (
            SparkEngine(GivenSession(attached.session)) as engine,
            pytest.raises(ConfigurationError, match=r"pyspark 99\.1\.0 is at work with the jars of Spark"),
        ):
            engine.run(job_of(TOPOLOGIES["word_count"]))
    finally:
        attached.release()


def test_doctor_asks_a_connect_server_and_its_workers(connect_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(host: str, port: int, kind: str = "spark_connect") -> list[tuple[Level, str, str]]:
        connection = {"conn_type": kind, "host": host, "port": port}
        monkeypatch.setenv("AIRFLOW_CONN_DOCTORS", json.dumps(connection))
        return [(one.level, one.subject, one.text) for one in spark_checks("doctors")]

    host, _, port = connect_server.removeprefix("sc://").partition(":")
    (server, workers) = asked(host, int(port))
    assert server[:2] == (Level.OK, "spark")
    assert re.search(r"doctors: Spark \d+\.\d+\.\d+ by Spark Connect", server[2])
    assert workers[:2] == (Level.OK, "executors")
    assert re.search(r"Python 3\.\d+\.\d+, pyarrow \d+", workers[2])
    (lost,) = asked("127.0.0.1", free_port())
    assert lost[0] is Level.FAIL
    assert "no Spark Connect server answers" in lost[2]
    assert not tried(ConnectSessions(connect_server), "/nowhere/at/all").sees
    monkeypatch.setattr("pyspark.version.__version__", "99.1.0")
    (refused,) = asked(host, int(port))
    assert refused[0] is Level.FAIL
    assert "the client here is pyspark 99.1.0" in refused[2]
    assert list(spark_checks(None)) == []


# The provider's hook does not close what it reads of spark-submit.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_doctor_submits_an_application_by_a_connection_of_type_spark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def asked(host: str) -> list[tuple[Level, str, str]]:
        monkeypatch.setenv("AIRFLOW_CONN_DOCTORS", json.dumps({"conn_type": "spark", "host": host}))
        return [(one.level, one.subject, one.text) for one in spark_checks("doctors", str(tmp_path))]

    session, workers = asked("local[1]")
    assert session[:2] == (Level.OK, "spark")
    assert re.search(r"doctors: Spark \d+\.\d+\.\d+, local\[1\]", session[2])
    assert workers[:2] == (Level.OK, "executors")
    assert re.search(r"Python 3\.\d+\.\d+, pyarrow \d+", workers[2])
    port = free_port()
    (lost,) = asked(f"spark://127.0.0.1:{port}")
    assert lost[0] is Level.FAIL
    assert f"no Spark master takes connections at spark://127.0.0.1:{port}" in lost[2]
    (wrong,) = asked("nonsense")
    assert wrong[0] is Level.FAIL
    assert "the application failed" in wrong[2]
    assert list(tmp_path.iterdir()) == []


def test_who_asked_a_standalone_master_in_vain_is_told_to_look_at_its_release() -> None:
    error = start_error(RuntimeError("All masters are unresponsive! Giving up."), "Spark (spark://master:7077)")
    assert "A master of another release of Spark gives no answer" in error.cure
    assert "another release" not in start_error(RuntimeError("no"), "Spark (local[1])").cure


def test_a_connect_server_that_is_not_there_is_named_at_once() -> None:
    port = free_port()
    with pytest.raises(SparkJobError, match=rf"no Spark Connect server answers at 127.0.0.1:{port} .*Start it"):
        ConnectSessions(f"sc://127.0.0.1:{port}/;token=secret").open(SLOT)


@pytest.mark.parametrize("url", ["127.0.0.1:15002", "sc://", "sc://host:port", "http://host:1"])
def test_what_is_no_connect_url_is_refused_without_showing_a_token(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"no Spark Connect URL.*sc://host:15002") as caught:
        ConnectSessions(f"{url};token=secret").open(SLOT)
    assert "secret" not in str(caught.value)


def test_missing_java_is_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ConfigurationError, match=r"needs Java .* PATH, and JAVA_HOME is not set. Install Java 17"):
        require_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="none below JAVA_HOME"):
        SparkSubmitProcess()("app.py", [], DriverTags(topology="fruit"))


@pytest.mark.parametrize(
    ("printed", "version"),
    [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "1.8.0_401"', 8), ('openjdk version "25-ea"', 25)],
)
def test_the_version_of_java_is_read_from_what_it_prints(tmp_path: Path, printed: str, version: int) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\necho '{printed}' >&2\n")
    java.chmod(0o755)
    assert java_version(str(java)) == version


def test_an_application_that_cannot_start_is_an_error_with_its_last_words(job_of: JobOf) -> None:
    process = SparkSubmitProcess("nonsense://x", {"spark.ui.enabled": "false"})
    with pytest.raises(SparkJobError, match=r"spark-submit ended with code 1: .*[Mm]aster"):
        SubmitEngine(process).run(job_of(TOPOLOGIES["word_count"]))


def test_an_application_that_leaves_no_result_is_told_from_one_that_failed(job_of: JobOf) -> None:
    job = job_of(TOPOLOGIES["word_count"])
    with pytest.raises(SparkJobError, match=r"left no result in .*shared folder"):
        SubmitEngine(lambda application, arguments, tags: None).run(job)
    assert list(Path(job.staging_root, job.slot.path).iterdir()) == []


def test_a_newer_attempt_takes_back_what_no_driver_of_an_older_one_has_and_is_told_who_has_the_rest(
    job_of: JobOf,
) -> None:
    job = job_of(TOPOLOGIES["word_count"])
    driver, ended, told = Taker.this_process("driver-7"), list[tuple[str, Taker | None]](), list[str]()

    def killed(application: str, arguments: list[str], tags: DriverTags) -> None:
        names.append(tags.order)
        if len(names) == 2:
            take(arguments[0], driver)
        raise KeyboardInterrupt

    def end(order: OlderOrder, holder: Taker | None) -> str:
        ended.append((order.name, holder))
        return "" if holder is None else holder.driver_id

    names: list[str] = []
    for _ in range(2):  # the task is killed, so that nothing of its own is removed
        with patch("airflow_trident.engine.spark.submit.leave"), pytest.raises(KeyboardInterrupt):
            SubmitEngine(killed).run(job)
    trial = replace(job, slot=replace(job.slot, attempt=5), trial=True)
    with pytest.raises(SparkJobError):
        SubmitEngine(lambda *_: None, end=end).run(trial)
    assert ended == []  # it is beside the attempts
    other = replace(job, slot=replace(job.slot, txid=job.slot.txid + 1, attempt=5))
    newer = replace(job, slot=replace(job.slot, attempt=2), progress=told.append)
    for one in (other, newer):
        with pytest.raises(SparkJobError, match="left no result"):
            SubmitEngine(lambda *_: None, end=end).run(one)
    assert sorted(ended) == sorted([(names[0], None), (names[1], driver)])
    assert told == ["ended driver-7, the driver of an older attempt: what it does counts no more"]
    assert [path for path in Path(job.staging_root).rglob("*") if path.is_file()] == []


def test_the_file_of_a_job_is_for_its_user_only_and_holds_no_store(job_of: JobOf) -> None:
    seen: list[bytes] = []
    job = job_of(TOPOLOGIES["word_count"])

    def look(application: str, arguments: list[str], tags: DriverTags) -> None:
        assert tags.conf({})["spark.trident.topology"] == job.slot.topology
        assert os.stat(arguments[0]).st_mode & 0o777 == 0o600
        seen.append(Path(arguments[0]).read_bytes())

    with pytest.raises(SparkJobError):
        SubmitEngine(look).run(job)
    assert b"PaperState" not in seen[0]
    assert b"FixedEmitter" in seen[0] or b"FixedBatchSpout" in seen[0]


@pytest.mark.parametrize("name", ["expressions", "times_and_intervals"])
def test_a_session_that_was_given_keeps_its_own_settings(spark_engine: SparkEngine, job_of: JobOf, name: str) -> None:
    if spark_release() < TIMES_SINCE and field_with_times(job_of(TOPOLOGIES[name]).plan):
        pytest.skip("this Spark has no times of day")
    attached = spark_engine._sessions.open(SLOT)
    attached.session.conf.set("spark.sql.timeType.enabled", "false")
    attached.session.conf.set("spark.sql.ansi.enabled", "false")
    attached.session.conf.set("spark.sql.caseSensitive", "false")
    sessions = attached.session._jvm.org.apache.spark.sql.SparkSession
    before = sessions.active()
    job = job_of(TOPOLOGIES[name])
    engine = SparkEngine(GivenSession(attached.session))
    assert run(engine, job) == run(LocalEngine(), job)
    engine.close()
    assert attached.session.conf.get("spark.sql.ansi.enabled") == "false"
    assert attached.session.conf.get("spark.sql.timeType.enabled") == "false"
    assert sessions.active().equals(before)
    assert attached.session.range(3).count() == 3
    attached.session.conf.set("spark.sql.timeType.enabled", "true")
    attached.session.conf.set("spark.sql.ansi.enabled", "true")
    attached.session.conf.set("spark.sql.caseSensitive", "true")
    attached.release()
