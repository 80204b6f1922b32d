"""What is left of a child in a Spark worker when somebody ends the worker, the driver or the attempt: nothing. It
sleeps and looks at no pipe, so that no end of file would end it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from airflow_trident import Topology
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.storm import ShellBolt
from airflow_trident.storm.components.bolt import ChildBolt
from tests.fixtures.child import COMPONENTS, needs_node
from tests.fixtures.engine import JobOf, run
from tests.fixtures.pieces import keep, lines
from tests.fixtures.spark import Background, wait_for

pytestmark = pytest.mark.spark

LINES = ["snow white", "now here", "the end"]
WORDS = sorted(f"('{word}',)" for line in LINES for word in line.split())
LIMIT_S = 60
"""Only bounds a test that would hang."""


def splits(bolt: ChildBolt) -> Callable[[Topology], None]:
    return lambda topology: keep(lines(topology, LINES).flat_map(bolt, "word string"))


def hanging(told: Path) -> ShellBolt:
    return ShellBolt([sys.executable, "-I", "-S", os.path.join(COMPONENTS, "shell.py"), "HangsOnce", str(told)])


def begun(told: Path) -> psutil.Process:
    """The child, as soon as it hangs."""
    wait_for(told.exists)
    return psutil.Process(int(told.read_text()))


def gone(*processes: psutil.Process) -> bool:
    return psutil.wait_procs(processes, LIMIT_S)[1] == []


def test_a_child_ends_with_a_python_worker_that_is_killed_and_the_next_attempt_is_whole(
    tmp_path: Path, job_of: JobOf, spark_engine: SparkEngine
) -> None:
    build = splits(hanging(tmp_path / "pid"))
    running = Background(spark_engine, job_of(build))
    child = begun(tmp_path / "pid")
    worker = child.parent()
    assert worker is not None
    assert "pyspark" in " ".join(worker.cmdline())
    worker.kill()
    assert gone(child, worker)
    assert getattr(running.end(), "outcome", None) == "retry"
    assert run(spark_engine, job_of(build, attempt=1)) == {"rows": WORDS}


def test_a_child_ends_with_an_attempt_that_is_cancelled(
    tmp_path: Path, job_of: JobOf, spark_engine: SparkEngine
) -> None:
    build = splits(hanging(tmp_path / "pid"))
    job = job_of(build)
    running = Background(spark_engine, job)
    child = begun(tmp_path / "pid")
    spark_engine.cancel(job.slot)
    assert running.end() is not None
    assert gone(child)
    assert run(spark_engine, job_of(build, attempt=1)) == {"rows": WORDS}


DRIVER = """
import sys
from pathlib import Path
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.sessions.local import LocalSessions
from tests.fixtures.engine import make_job
from tests.integration.test_child_spark_kills import hanging, splits

folder = Path(sys.argv[1])
with SparkEngine(LocalSessions("local[1]", conf={"spark.driver.memory": "512m"})) as engine:
    engine.run(make_job(splits(hanging(folder / "pid")), folder / "staging"))
"""


def test_a_child_ends_with_a_driver_that_is_killed(tmp_path: Path) -> None:
    """The JVM ends with the driver, the Python workers with the JVM, and the child with its worker."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], env=environment) as driver:
        try:
            child = begun(tmp_path / "pid")
            worker = child.parent()
            assert worker is not None
        finally:
            driver.kill()
    assert gone(child, worker)


RETRY = """
import sys
from pathlib import Path
from pyspark import SparkContext
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.sessions.local import LocalSessions
from tests.fixtures.engine import make_job, run
from tests.integration.test_child_kills import program, shell
from tests.integration.test_child_spark_kills import WORDS, splits

folder = Path(sys.argv[1])
with SparkEngine(LocalSessions("local[2,2]", conf={"spark.driver.memory": "512m"})) as engine:
    for bolt in (shell, program):
        for step in sys.argv[2:]:
            mark = folder / f"{bolt.__name__} {step}"
            staging = folder / f"staging {mark.name}"
            rows = run(engine, make_job(splits(bolt(step, mark)), staging))
            print([mark.name, mark.exists(), rows == {"rows": WORDS}])
    context = SparkContext.getOrCreate()
    context._jsc.sc().listenerBus().waitUntilEmpty()
    stages = map(context.statusTracker().getStageInfo, range(100))
    print(sum(stage.numFailedTasks for stage in stages if stage))
"""


@needs_node
def test_spark_itself_tries_a_partition_again_whose_child_was_killed_and_its_rows_come_once(tmp_path: Path) -> None:
    """local[2,2]: a task may fail once. No new attempt is begun: Spark counts its failed tasks."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", RETRY, str(tmp_path), "row", "emit"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *told, failed = done.stdout.splitlines()
    assert told == [f"['{bolt} {step}', True, True]" for bolt in ("shell", "program") for step in ("row", "emit")]
    assert int(failed) >= len(told)
