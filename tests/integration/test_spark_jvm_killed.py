"""The JVM of a session in the task's own process is killed while a job runs in it, as a kernel short of memory does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from py4j.protocol import ERROR, Py4JError, get_return_value

from airflow_trident.engine.spark.errors import translate

pytestmark = pytest.mark.spark

PROGRAM = """
import json, os, signal, sys, threading
from pathlib import Path
from pyspark import SparkContext
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.sessions.local import LocalSessions
from tests.fixtures.engine import TOPOLOGIES, make_job
from tests.fixtures.spark import wait_for
from tests.fixtures.spark import Background, endless

def engine():
    return SparkEngine(LocalSessions("local[1]", conf={"spark.driver.memory": "512m"}))

def kill():
    process = SparkContext._gateway.proc
    os.kill(process.pid, signal.SIGKILL)
    process.wait()

folder = Path(sys.argv[1])
words = make_job(TOPOLOGIES["word_count"], folder)
with engine() as drain:
    running = Background(drain, make_job(endless(folder), folder))
    wait_for((folder / "begun").exists)
    kill()
    error = running.end()
    (folder / "enough").touch()
    rows = [drain.run(words).rows_read]
    kill()
with engine() as another:
    rows.append(another.run(words).rows_read)
print(json.dumps({"error": type(error).__name__, "text": str(error), "outcome": error.outcome, "rows": rows}))
"""


def test_a_killed_jvm_is_an_error_with_a_cure_and_the_next_job_of_the_process_starts_another(tmp_path: Path) -> None:
    """Also when it is killed between two jobs; and closing does not fail where nobody is left to be told."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    )
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["error"], told["outcome"]) == ("SparkJobError", "retry")
    assert "the JVM of Spark ended while it was at work" in told["text"]
    assert told["text"].endswith("A retry starts another one.")
    assert told["rows"] == [6, 6]


def test_an_answer_that_broke_off_is_told_from_one_of_the_jvm() -> None:
    """Where within an answer a kill falls is chance; what is seen then is made by Py4J itself."""
    with pytest.raises(Py4JError) as broken:
        get_return_value(ERROR, None, "o98", "getResult")
    assert "the JVM of Spark ended" in translate(broken.value, "it").message
    with pytest.raises(Py4JError) as answered:
        get_return_value(f"{ERROR}sjava.lang.Error: no", None, "o98", "getResult")
    assert translate(answered.value, "it").message == "it failed: java.lang.Error: no"
