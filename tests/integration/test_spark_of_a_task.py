"""A task that starts its own Spark: what it prints, and what it leaves behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_trident.engine.spark.sessions.java import one_shot_java_options, require_java
from tests.fixtures.spark import spark_release, wait_for

pytestmark = pytest.mark.spark

PROGRAM = """
import sys
from pathlib import Path
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.sessions.local import LocalSessions
from tests.fixtures.engine import TOPOLOGIES, make_job

conf = {"spark.driver.memory": "512m"}
with SparkEngine(LocalSessions("local[1]", conf=conf)) as engine:
    print(engine.run(make_job(TOPOLOGIES["word_count"], Path(sys.argv[1]))).rows_read)
"""


def test_a_task_of_one_batch_leaves_nothing_behind_and_says_little(tmp_path: Path) -> None:
    """No spark-warehouse, metastore_db, artifacts or temporary folders; no line of log. Before 4.2 pyspark itself
    leaves a socket open at its end, of which Python tells only those who ask for warnings."""
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    here.mkdir()
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(Path(__file__).parents[2])}
    allowed = ["-W", "ignore::ResourceWarning"] if spark_release() < (4, 2) else []
    done = subprocess.run(
        [sys.executable, "-W", "error", *allowed, "-c", PROGRAM, str(tmp_path / "staging")],
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout == "6\n"
    assert list(here.iterdir()) == []
    assert list(temporary.iterdir()) == []
    assert done.stderr == ""


LOGGED = """
import logging, os, sys, warnings
from dataclasses import replace
from pathlib import Path
from airflow_trident import FixedBatchSpout
from airflow_trident.functions import Debug
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.sessions.local import LocalSessions
from airflow_trident.errors import SparkJobError
from tests.fixtures.engine import keep, make_job

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(message)s")
logging.getLogger("py4j").setLevel(logging.WARNING)

def build(topology):
    keep(topology.new_stream("one", FixedBatchSpout("x long", [(1,)], splits=1)).peek(Debug("seen")))

job = replace(make_job(build, Path(sys.argv[1])), progress=logging.info)
try:
    SparkEngine(LocalSessions("local[1]", conf={"spark.driver.memory": "plenty"})).run(job)
except SparkJobError as error:
    logging.info("refused: %s", error)
with SparkEngine(LocalSessions("local[1]", conf={"spark.driver.memory": "512m"})) as engine:
    engine.run(job)
    from pyspark import SparkContext
    jvm = SparkContext._gateway.jvm
    jvm.org.apache.logging.log4j.LogManager.getLogger("our.Own").error("a defect")
    for _ in range(200):
        jvm.System.err.println("x" * 1000)
    warnings.simplefilter("ignore")  # Python 3.12 warns of a fork beside threads
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    jvm.System.err.println("WARNING: after the fork")
    engine.run(replace(job, trial=True))
"""


def test_what_the_jvm_prints_is_in_the_log_at_its_own_level_and_its_start_is_told(tmp_path: Path) -> None:
    """Airflow shows as errors what a task and its processes print on standard error. More is printed here than a pipe
    holds, and `run` returns when the last process that may print has ended."""
    done = subprocess.run(
        [sys.executable, "-c", LOGGED, str(tmp_path / "staging")],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stderr == ""
    assert "incubator" not in done.stdout
    lines = done.stdout.splitlines()
    refused = next(line for line in lines if line.startswith("INFO refused: "))
    assert re.search(r"local\[1\]\) did not start: .*plenty", refused)
    assert lines.count("INFO starting Spark (local[1])") == 2
    assert len([line for line in lines if re.match(r"INFO Spark \d\S+, local\[1\], application \S+: ready", line)]) == 1
    assert lines.count("INFO seen: (1,)") == 2
    assert lines.count("ERROR Own: a defect") == 1
    assert lines.count("INFO " + "x" * 1000) == 200
    assert lines.count("WARNING WARNING: after the fork") == 1


def test_sessions_are_made_without_starting_anything() -> None:
    program = (
        "import sys; from airflow_trident.engine.spark.engine import SparkEngine;"
        "from airflow_trident.engine.spark.sessions.local import LocalSessions;"
        "from airflow_trident.engine.spark.sessions.connect import ConnectSessions;"
        "from airflow_trident.engine.spark.submit import SubmitEngine;"
        "SparkEngine(LocalSessions()); SparkEngine(ConnectSessions('sc://nowhere'));"
        "SubmitEngine(lambda application, arguments, tags: None);"
        "print([name for name in ('pyspark', 'pyarrow', 'grpc', 'pandas', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_task_that_is_killed_leaves_nothing_behind_either(tmp_path: Path) -> None:
    """Its JVM ends by itself and cleans up."""
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    here.mkdir()
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(Path(__file__).parents[2])}
    program = PROGRAM + "    print('ready', flush=True); import time; time.sleep(1000)\n"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "staging")],
        cwd=here,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline(), process.stdout.readline()] == ["6\n", "ready\n"]
        assert list(temporary.iterdir())
        process.kill()
    wait_for(lambda: not list(temporary.iterdir()))
    assert list(here.iterdir()) == []


# ---- options of its JVM ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theirs", ["", "-Xss2m", "-Xss2m -XX:+UseG1GC"])
@pytest.mark.parametrize("variable", ["JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"])
def test_java_starts_with_the_collector_of_the_environment(
    variable: str, theirs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses two collectors."""
    monkeypatch.setenv(variable, theirs)
    command = [require_java(), *one_shot_java_options().split(), "-XX:+PrintFlagsFinal", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    on = {line.split()[1] for line in done.stdout.splitlines() if "= true" in line and line.split()[1].endswith("GC")}
    assert ("UseG1GC" if "G1" in theirs else "UseSerialGC") in on
