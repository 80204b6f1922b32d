"""A Spark that is soon there: the Connect server of this machine, and the class archive."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from airflow_trident.engine.local import LocalEngine
from airflow_trident.engine.spark import python_daemon
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.sessions.archive import FOLDER_VARIABLE, archive_options, archive_path, make_archive
from airflow_trident.engine.spark.sessions.connect import ConnectSessions, EmbeddedConnectServer
from airflow_trident.engine.spark.submit import SubmitEngine, submit_conf
from airflow_trident.errors import ConfigurationError, Outcome, SparkJobError
from tests.fixtures.engine import TOPOLOGIES, JobOf, run
from tests.fixtures.spark import Background, endless, small_connect_server, wait_for
from tests.fixtures.spark_submit import SparkSubmitProcess

pytestmark = pytest.mark.spark


def test_a_server_that_dies_in_mid_job_is_a_failure_that_a_retry_on_a_new_server_mends(
    job_of: JobOf, tmp_path: Path
) -> None:
    server = small_connect_server(tmp_path / "server")
    first = server.start()
    job = job_of(endless(tmp_path))
    with SparkEngine(ConnectSessions(server.url)) as engine:
        running = Background(engine, job)
        wait_for((tmp_path / "begun").exists)
        os.kill(first.pid, signal.SIGKILL)
        error = running.end()
    assert isinstance(error, SparkJobError)
    assert error.outcome is Outcome.RETRY
    (tmp_path / "enough").touch()
    again = server.start()
    try:
        assert (again.started_here, again.hosts) == (True, first.hosts)
        assert server.spark_version().startswith("4.")
        with SparkEngine(ConnectSessions(server.url)) as engine:
            assert engine.run(replace(job, slot=replace(job.slot, attempt=1))).rows_read == 1
    finally:
        assert server.stop()
    with pytest.raises(SparkJobError, match="airflow trident connect-server start"):
        ConnectSessions(f"sc://{first.hosts}").open(job.slot)
    with pytest.raises(SparkJobError, match=r"no Spark Connect server runs .*connect-server start"):
        _ = server.url


def test_the_command_starts_one_and_says_how_to_use_it(tmp_path: Path) -> None:
    def trident(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "airflow", "trident", "connect-server", *words, "--data-dir", str(tmp_path / "it")],
            env={**os.environ, "AIRFLOW_HOME": str(tmp_path / "home")},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    assert trident("status")[0] == 1
    java = f"spark.driver.extraJavaOptions=-Djava.io.tmpdir={tmp_path} -XX:TieredStopAtLevel=1"
    code, said = trident("start", "--port", "0", "--heap-mb", "512", "--master", "local[2]", "--spark-conf", java)
    try:
        assert code == 0, said
        connection = json.loads(said.partition("AIRFLOW_CONN_SPARK_CONNECT='")[2].partition("'")[0])
        code, said = trident("status")
        assert code == 0
        assert f"answers at sc://127.0.0.1:{connection['port']} " in said
        assert_sessions_go_on_without_their_daemons(f"sc://127.0.0.1:{connection['port']}", tmp_path)
    finally:
        assert trident("stop") == (0, "Spark Connect server stopped\n")
    assert "nothing to stop" in trident("stop")[1]


def assert_sessions_go_on_without_their_daemons(url: str, folder: Path) -> None:
    """The daemons that this server forks its Python workers from end themselves when they have had none for a while."""
    from pyspark.sql.connect.session import SparkSession

    def daemons() -> list[psutil.Process]:
        ours = [one for one in psutil.process_iter() if python_daemon.__name__ in words(one)]
        return [one for one in ours if str(folder) in " ".join(words(one.parent()))]

    def words(process: psutil.Process | None) -> list[str]:
        with suppress(psutil.Error):
            return process.cmdline() if process else []
        return []

    def twice() -> list[int]:
        doubled = session.range(3).mapInPandas(lambda frames: (2 * frame for frame in frames), "id long")
        return sorted(row.id for row in doubled.collect())

    session = SparkSession.builder.remote(url).create()
    try:
        assert twice() == [0, 2, 4]
        running = daemons()
        assert running
        for one in running:
            one.kill()
        psutil.wait_procs(running)
        assert twice() == [0, 2, 4]
    finally:
        session.stop()


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    wrong = EmbeddedConnectServer(tmp_path / "server", master="nonsense://x")
    with pytest.raises(SparkJobError, match=r"Spark Connect server .* did not start: it ended with code 1"):
        wrong.start()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"port {port} on 127.0.0.1 is in use"):
            EmbeddedConnectServer(tmp_path / "server", port=port).start()


# ---- the class archive -----------------------------------------------------------------------------------------


@pytest.mark.rare
def test_the_class_archive_is_made_once_whoever_asks_and_used_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job_of: JobOf
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "archives"))
    assert archive_options() == []
    program = "from airflow_trident.engine.spark.sessions.archive import make_archive; print(make_archive()[1])"
    both = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert sorted(process.communicate(timeout=300)[0].strip() for process in both) == ["False", "True"]
    path = archive_path()
    assert path is not None
    assert sorted(entry.suffix for entry in path.parent.iterdir()) == [".jsa", ".lock"]
    assert archive_options()[0] == f"-XX:SharedArchiveFile={path}"
    log = tmp_path / "classes.log"
    java = submit_conf()["spark.driver.extraJavaOptions"] + f" -Xlog:class+load:file={log}"
    job = job_of(TOPOLOGIES["word_count"])
    process = SparkSubmitProcess("local[2]", {"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": java})
    assert run(SubmitEngine(process), job) == run(LocalEngine(), job)
    loaded = log.read_text().splitlines()
    assert sum("shared objects file (top)" in line for line in loaded) > len(loaded) / 2
    path.write_bytes(b"damaged")
    assert run(SubmitEngine(process), replace(job, slot=replace(job.slot, attempt=1))) == run(LocalEngine(), job)


def test_the_class_archive_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, "")
    assert archive_options() == []
    with pytest.raises(ConfigurationError, match=f"{FOLDER_VARIABLE} is set and empty"):
        make_archive()
