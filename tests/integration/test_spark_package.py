"""Executors need not have this package: it is sent to them, to those of another version, too."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import tomllib
import venv
import zipfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from airflow_trident import FileSpout, Topology
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.errors import WorkerError, translate
from airflow_trident.engine.spark.sessions.connect import ConnectSessions, EmbeddedConnectServer
from airflow_trident.engine.spark.shipping import package_zip
from airflow_trident.engine.spark.workers import OLDEST_PYARROW, WorkerPass
from airflow_trident.errors import ConfigurationError, ExecutorPackageError
from airflow_trident.staging.manifest import Slot
from airflow_trident.version import VERSION
from tests.fixtures.engine import Words, keep, make_job, run
from tests.fixtures.spark import SMALL, soon

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python of this version with pyarrow and numpy, and nothing else: that of an executor's image."""
    return python_with(tmp_path_factory.mktemp("bare"), "pyarrow", "numpy")


def python_with(folder: Path, *names: str) -> Path:
    venv.create(folder, symlinks=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    for name in names:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        source = Path(spec.origin).parent
        (packages / name).symlink_to(source)
        if (libraries := source.parent / f"{name}.libs").exists():
            (packages / libraries.name).symlink_to(libraries)
    return folder / "bin" / "python"


def executors(python: Path, program: str, folder: Path) -> str:
    """What a driver prints whose executors run that Python."""
    environment = {**os.environ, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment |= {"PYTHONPATH": "", "FOLDER": str(folder)}  # executors of this machine would inherit it
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


COMMON = """
    import os, sys
    from pathlib import Path
    from airflow_trident import FileSpout, Function
    from airflow_trident.engine.spark.engine import SparkEngine
    from airflow_trident.engine.spark.sessions.local import LocalSessions
    from airflow_trident.engine.spark.sessions.session import GivenSession
    from tests.fixtures.engine import Words, keep, make_job, run
    from tests.fixtures.spark import soon

    MASTER = "local-cluster[1,1,512]"
    CONF = {"spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "2"}
    CONF["spark.executor.extraJavaOptions"] = soon()

    class Found(Function):
        output_types = "string"

        def execute(self, line):
            import importlib.util, airflow_trident
            have = [name for name in ("airflow", "kazoo", "pandas", "msgspec") if importlib.util.find_spec(name)]
            yield f"{sys.executable} {Path(airflow_trident.__file__).parents[1].name} {have}"

    def topology(t):
        lines = t.new_stream("lines", FileSpout(os.environ["FOLDER"] + "/in"))
        keep(lines.each("line", Words(), "word").each("word", Found(), "found").project("found"))

    def job():
        (Path(os.environ["FOLDER"]) / "in").mkdir(exist_ok=True)
        (Path(os.environ["FOLDER"]) / "in" / "a.txt").write_text("the cat\\nthe dog\\n")
        return make_job(topology, Path(os.environ["FOLDER"]))
"""


@pytest.mark.rare
def test_executors_with_pyarrow_alone_run_a_batch(bare_python: Path, tmp_path: Path) -> None:
    said = executors(
        bare_python,
        COMMON
        + """
    with SparkEngine(LocalSessions(MASTER, conf=CONF)) as engine:
        (rows,) = run(engine, job()).values()
    print(len(rows), set(rows))
    """,
        tmp_path,
    )
    assert said.startswith("4 "), said
    assert str(bare_python) in said
    assert "airflow_trident-" in said
    assert ".zip []" in said


def test_a_session_of_somebody_else_is_sent_the_package_when_its_executors_lack_it(
    bare_python: Path, tmp_path: Path
) -> None:
    said = executors(
        bare_python,
        COMMON
        + """
    from dataclasses import replace
    from airflow_trident.engine.spark.sessions.local import local_conf
    from pyspark.sql import SparkSession
    builder = SparkSession.builder.master(MASTER)
    for name, value in {**local_conf(MASTER, one_shot=True, ui=False), **CONF}.items():
        builder = builder.config(name, value)
    engine = SparkEngine(GivenSession(builder.getOrCreate()))
    told = []
    for number in range(2):
        (rows,) = run(engine, replace(job(), progress=told.append)).values()
        print(len(rows), set(rows))
    print(sum("sending it to them" in line for line in told))
    """,
        tmp_path,
    )
    *runs, sent = said.splitlines()
    assert [line.partition(" ")[0] for line in runs] == ["4", "4"]
    assert sent == "1"


FAILING = """
    from airflow_trident.errors import TridentError
    with SparkEngine(LocalSessions(MASTER, conf=CONF)) as engine:
        try:
            run(engine, job())
        except TridentError as error:
            print(f"{type(error).__name__}: {error}")
"""


@pytest.mark.rare
def test_executors_without_pyarrow_are_one_clear_error(tmp_path: Path) -> None:
    printed = executors(python_with(tmp_path / "python", "numpy"), COMMON + FAILING, tmp_path)
    assert printed == (
        "ConfigurationError: Spark job of topology 'topology', transaction 1, attempt 0: the Python workers of Spark "
        "cannot import pyarrow. Install it where the executors run.\n"
    )


@pytest.mark.rare
def test_executors_with_an_older_pyarrow_are_one_clear_error_before_anything_is_read(tmp_path: Path) -> None:
    python = python_with(tmp_path / "python", "numpy", "pyarrow")
    (packages,) = (tmp_path / "python" / "lib").glob("python*/site-packages")
    real = (packages / "pyarrow").resolve()
    (packages / "pyarrow").unlink()
    (packages / "pyarrow").mkdir()
    for one in real.iterdir():
        (packages / "pyarrow" / one.name).symlink_to(one)
    (packages / "pyarrow" / "__init__.py").unlink()
    text = (real / "__init__.py").read_text()
    (packages / "pyarrow" / "__init__.py").write_text(f"{text}\n__version__ = '17.0.0'\n")
    printed = executors(python, COMMON + FAILING, tmp_path)
    assert printed == (
        "ConfigurationError: the Python workers of Spark have pyarrow 17.0.0, and airflow-trident needs 18 or newer. "
        "Install a newer pyarrow where the executors run.\n"
    )


def test_the_oldest_pyarrow_is_that_of_the_packages_requirements() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"pyarrow>={OLDEST_PYARROW}" in project["dependencies"]


def test_the_zip_holds_the_package_and_nothing_compiled() -> None:
    names = zipfile.ZipFile(package_zip()).namelist()
    assert {name.partition("/")[0] for name in names} == {"airflow_trident"}
    assert "airflow_trident/engine/spark/workers.py" in names
    assert not [name for name in names if name.endswith(".pyc")]


def test_what_runs_on_executors_imports_no_library_before_it_is_needed() -> None:
    program = f"import sys; sys.path.insert(0, {package_zip()!r}); import airflow_trident.engine.spark.workers"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Bare(EmbeddedConnectServer):
    """A Connect server whose Python workers run another Python."""

    python = ""

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), "PYSPARK_PYTHON": self.python, "PYTHONPATH": ""}


def test_a_connect_server_without_it_is_sent_the_package_with_each_session(bare_python: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("the cat\nthe dog\n")

    def words(topology: Topology) -> None:
        keep(topology.new_stream("lines", FileSpout(str(tmp_path / "in"))).each("line", Words(), "word"))

    server = Bare(
        tmp_path / "server", master="local[1]", heap_mb=512, conf={**SMALL, "spark.driver.extraJavaOptions": soon()}
    )
    server.python = str(bare_python)
    server.start()
    told: list[str] = []
    try:
        with SparkEngine(ConnectSessions(server.url)) as engine:
            for attempt in range(2):
                job = make_job(words, tmp_path / "staging", attempt=attempt)
                (rows,) = run(engine, replace(job, progress=told.append)).values()
                assert len(rows) == 4
    finally:
        server.stop()
    assert sum("sending it to them" in line for line in told) == 1


def test_workers_of_another_version_are_told_before_anything_is_unpickled() -> None:
    with pytest.raises(WorkerError) as caught:
        list(WorkerPass(b"no pickle", version="0.0.9")(iter(())))
    error = translate(caught.value, "the job")
    assert isinstance(error, ExecutorPackageError)
    assert f"have airflow-trident {VERSION}, and this job is of 0.0.9" in error.message


def test_executors_with_another_python_are_one_error_that_says_which_setting_names_theirs(
    spark_engine: SparkEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The driver tells each worker its Python, and the worker compares that with its own before it unpickles. Here
    the driver claims another one: to the worker that is the same."""
    (tmp_path / "a.txt").write_text("the cat\n")

    def words(topology: Topology) -> None:
        keep(topology.new_stream("lines", FileSpout(str(tmp_path / "a.txt"))).each("line", Words(), "word"))

    attached = spark_engine._sessions.open(Slot(topology="other", incarnation="i", txid=1, attempt=0))
    monkeypatch.setattr(attached.session.sparkContext, "pythonVer", "3.7")
    attached.release()
    with pytest.raises(ConfigurationError) as caught:
        spark_engine.run(make_job(words, tmp_path / "staging"))
    assert "the Python workers of Spark run another Python version than this process" in caught.value.message
    assert "Set spark.pyspark.python" in caught.value.cure


def test_another_library_that_a_worker_lacks_is_named() -> None:
    error = translate(RuntimeError("ModuleNotFoundError: No module named 'confluent_kafka.admin'"), "the job")
    assert isinstance(error, ConfigurationError)
    assert not isinstance(error, ExecutorPackageError)
    assert "cannot import confluent_kafka.admin" in error.message


def test_a_zip_is_put_on_the_path_of_an_application_once(spark_engine: SparkEngine) -> None:
    attached = [spark_engine._sessions.open(Slot(topology="sent", incarnation="i", txid=1, attempt=n)) for n in (0, 1)]
    context = attached[0].session.sparkContext
    try:
        for one in attached:
            one.send(package_zip())
        assert [name for name in context._python_includes or () if name.startswith("airflow_trident-")] == [
            Path(package_zip()).name
        ]
    finally:
        for one in attached:
            one.release()
