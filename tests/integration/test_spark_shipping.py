"""Users' code reaches Spark's Python workers wherever it was written."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from airflow_trident import Count, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.sessions.java import spark_home
from airflow_trident.engine.spark.shipping import modules_by_value, ship, unimportable_modules
from airflow_trident.errors import ConfigurationError
from tests.fixtures.engine import JobOf, lines, run
from tests.fixtures.plan import PaperState

pytestmark = pytest.mark.spark

HELPER = """
from dataclasses import dataclass

@dataclass
class Settings:
    suffix: str = "!"

def polish(word, settings):
    return word.upper() + settings.suffix
"""
DAG_FILE = """
from airflow_trident import CombinerAggregator, Function
import helper_beside_the_dag
from helper_beside_the_dag import Settings

SETTINGS = Settings()

class Polish(Function):
    output_types = "string"

    def execute(self, line):
        for word in line.split():
            yield helper_beside_the_dag.polish(word, SETTINGS)

class Glue(CombinerAggregator):
    output_types = "string"

    def init(self, *values):
        return helper_beside_the_dag.polish(values[0], SETTINGS)

    def combine(self, left, right):
        return max(left, right)

    def zero(self):
        return ""
"""


@pytest.fixture
def dag_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A DAG file as Airflow loads it: under a made-up name, with its folder on the path of this process only."""
    (tmp_path / "helper_beside_the_dag.py").write_text(HELPER)
    path = tmp_path / "words_dag.py"
    path.write_text(DAG_FILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "unusual_prefix_0123456789abcdef_words_dag"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("helper_beside_the_dag")


def polished(module: ModuleType) -> Callable[[Topology], None]:
    def build(topology: Topology) -> None:
        words = lines(topology).each("line", module.Polish(), "word")
        words.group_by("word").persistent_aggregate(PaperState(), "word", module.Glue(), "glued")

    return build


def test_code_of_a_dag_file_and_of_modules_beside_it_runs_on_workers(
    spark_engine: SparkEngine, dag_module: ModuleType, job_of: JobOf
) -> None:
    job = job_of(polished(dag_module))
    assert run(spark_engine, job) == run(LocalEngine(), job)


def test_code_of_a_dag_file_runs_behind_spark_connect(
    connect_engine: SparkEngine, dag_module: ModuleType, job_of: JobOf
) -> None:
    job = job_of(polished(dag_module))
    assert run(connect_engine, job) == run(LocalEngine(), job)


def test_modules_outside_every_installation_travel_by_value_and_others_do_not(dag_module: ModuleType) -> None:
    names = {module.__name__ for module in unimportable_modules()}
    assert {dag_module.__name__, "helper_beside_the_dag", __name__} <= names
    installed = {"pytest", "pyarrow", "json", "airflow_trident", "airflow_trident.operations.interfaces", "builtins"}
    assert not names & installed


def test_the_registry_of_cloudpickle_is_left_as_it_was(dag_module: ModuleType) -> None:
    from pyspark.cloudpickle import cloudpickle

    before = set(cloudpickle.list_registry_pickle_by_value())  # Spark Connect's client keeps some
    cloudpickle.register_pickle_by_value(dag_module)  # a user's own choice
    try:
        with modules_by_value():
            assert "helper_beside_the_dag" in cloudpickle.list_registry_pickle_by_value()
        assert set(cloudpickle.list_registry_pickle_by_value()) == before | {dag_module.__name__}
    finally:
        cloudpickle.unregister_pickle_by_value(dag_module)


def test_what_cannot_be_pickled_is_named_before_anything_runs(spark_engine: SparkEngine, job_of: JobOf) -> None:
    lock = threading.Lock()

    def guarded(line: str) -> Iterator[str]:
        with lock:
            yield line

    def build(topology: Topology) -> None:
        words = lines(topology).each("line", guarded, "again string")
        words.group_by("again").persistent_aggregate(PaperState(), Count(), "n")

    with pytest.raises(ConfigurationError, match=r"stream 'lines' of topology 'build' cannot be sent.*lock.*prepare"):
        spark_engine.run(job_of(build))


def test_a_shipped_object_can_be_loaded_where_its_module_is_unknown(dag_module: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "shipped").write_bytes(ship(dag_module.Polish(), "a function"))
    program = "import pickle, sys; print(list(pickle.load(open(sys.argv[1], 'rb')).execute('a b')))"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "shipped")], capture_output=True, text=True, check=True, cwd="/"
    )
    assert done.stdout.strip() == "['A!', 'B!']"


def test_a_spark_that_is_imported_from_zips_is_not_sent(tmp_path: Path) -> None:
    """As stock distributions of Spark and drivers in YARN do."""
    for zipped in (spark_home() / "python" / "lib").glob("*.zip"):
        (tmp_path / zipped.name).symlink_to(zipped)
    program = """
import glob, sys
sys.path[:0] = glob.glob(sys.argv[1] + "/*.zip")
import pyspark.cloudpickle
from airflow_trident.engine.spark.shipping import unimportable_modules
assert ".zip/" in pyspark.cloudpickle.__file__
print(unimportable_modules())
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
