"""A Spark application inside the task's own process: `local[*]`, or any master that a driver here can reach."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

from airflow_trident.engine.spark_errors import root_cause
from airflow_trident.engine.spark_session import Attached, Sessions, attach_classic
from airflow_trident.errors import ConfigurationError, SparkJobError
from airflow_trident.staging.base import Slot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_JAVA = 17
ONE_SHOT_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives for one batch: the second compiler never pays there (half the start's time and CPU, measured),
but a driver of many batches is 1.2 times slower without it."""

QUIET_LOG = Path(__file__).with_name("spark_log4j2.properties")
"""Only errors, in the words of log4j2. A file of the package: a temporary one would outlive a task that is killed."""
_LOCK = RLock()


def local_conf(master: str, *, one_shot: bool, ui: bool) -> dict[str, str]:
    """Settings of an application that writes nothing outside the folder for temporary files, and removes what it wrote
    there when it ends, even if this process is killed."""
    temporary = Path(tempfile.gettempdir())
    cores = _cores(master)
    java = [
        f"-Djava.io.tmpdir={temporary}",
        f"-Dlog4j2.configurationFile={QUIET_LOG.as_uri()}",
        *([ONE_SHOT_JAVA_OPTIONS] if one_shot else []),
    ]
    conf = {
        "spark.driver.extraJavaOptions": " ".join(java),
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # never made, for no tables are; by default it would be a folder in the working directory
        "spark.sql.warehouse.dir": (temporary / "airflow-trident-warehouse").as_uri(),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.pyspark.python": sys.executable,
    }
    if cores:
        # small batches: as many partitions as cores, and no re-planning between stages (0.76 of the time, measured)
        conf |= {"spark.sql.shuffle.partitions": str(cores), "spark.sql.adaptive.enabled": "false"}
        conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return conf


class LocalSessions(Sessions):
    """Starts an application in this process with the first job, and stops it at the end if it started it.

    :param master: Spark's master URL.
    :param conf: settings that win over ours.
    :param one_shot: tune the JVM for a single batch; see ONE_SHOT_JAVA_OPTIONS.
    :param ui: serve Spark's web page.
    """

    def __init__(
        self,
        master: str = "local[*]",
        *,
        app_name: str = "airflow-trident",
        conf: Mapping[str, str] | None = None,
        one_shot: bool = True,
        ui: bool = False,
    ) -> None:
        self._master = master
        self._app_name = app_name
        self._conf = dict(conf or {})
        self._one_shot = one_shot
        self._ui = ui
        self._session: SparkSession | None = None
        self._mine = False

    def open(self, slot: Slot, *, trial: bool = False) -> Attached:
        with _LOCK:
            if self._session is None:
                self._session = self._existing() or self._start()
            return attach_classic(self._session, slot)

    def _existing(self) -> SparkSession | None:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        return SparkSession.builder.getOrCreate() if SparkContext._active_spark_context is not None else None

    def _start(self) -> SparkSession:
        require_java()
        conf = {**local_conf(self._master, one_shot=self._one_shot, ui=self._ui), **self._conf}
        with _spark_environment():
            try:
                session = self._build(conf)
            except Exception as error:
                raise start_error(error, f"Spark ({self._master})") from error
        self._mine = True
        return session

    def _build(self, conf: Mapping[str, str]) -> SparkSession:
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master(self._master).appName(self._app_name)
        for name, value in conf.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None and self._mine:
            session.stop()


@contextmanager
def _spark_environment() -> Iterator[None]:
    """The JVM and its Python workers must be of this environment, whatever `python3` on the path is."""
    import pyspark

    home = os.path.dirname(pyspark.__file__)
    wanted = {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": home}
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


# ---- Java ------------------------------------------------------------------------------------------------------


def require_java() -> str:
    """The path of the Java that Spark will use.

    :raises ConfigurationError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")
    if found is None:
        where = f"below JAVA_HOME ({home})" if home else "on the PATH, and JAVA_HOME is not set"
        raise ConfigurationError(f"Spark needs Java and there is none {where}", f"Install Java {MIN_JAVA} or later.")
    return found


def start_error(error: Exception, what: str) -> ConfigurationError | SparkJobError:
    """Why Spark did not start. Java is asked for its version only now: asking costs a JVM's start."""
    version = java_version(require_java())
    if version is not None and version < MIN_JAVA:
        return ConfigurationError(
            f"{what} needs Java {MIN_JAVA} or later and found Java {version}",
            "Install a newer one, or point JAVA_HOME to it.",
        )
    return SparkJobError(
        f"{what} did not start: {root_cause(str(error))}", "See the lines that Java printed before this one."
    )


def java_version(java: str) -> int | None:
    """The feature version (17, 21; 8 for "1.8"); None if it cannot be told."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    quoted = done.stderr.partition('"')[2].partition('"')[0].replace("1.8", "8")
    head = quoted.partition(".")[0].partition("-")[0]
    return int(head) if head.isdecimal() else None


def _cores(master: str) -> int | None:
    """The cores of a local master; None for a cluster."""
    if not master.startswith("local"):
        return None
    inside = master.partition("[")[2].partition("]")[0].partition(",")[0]
    if inside == "*":
        return os.cpu_count() or 1
    return int(inside) if inside.isdecimal() else 1
