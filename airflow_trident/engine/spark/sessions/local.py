"""A Spark application inside the task's own process: `local[*]`, or any master that a driver here can reach.

Standard error of a JVM that this process starts, as lines of the log with their own levels.

Airflow shows all standard error of a task's processes as errors: messages of Java, Spark's warnings and the output of
users' functions in Spark's workers.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock, Thread
from typing import TYPE_CHECKING

from airflow_trident.engine.spark.errors import root_cause
from airflow_trident.engine.spark.sessions.archive import archive_options
from airflow_trident.engine.spark.sessions.java import (
    MIN_JAVA,
    QUIET_LOG,
    java_version,
    one_shot_java_options,
    require_java,
)
from airflow_trident.engine.spark.sessions.session import Attached, Sessions, Sibling, attach_classic, send_to_executors
from airflow_trident.errors import ConfigurationError, SparkJobError
from airflow_trident.staging.manifest import Slot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_HARMLESS = re.compile(r"^WARNING: Using incubator modules: ")
"""Spark itself asks Java for such a module."""
_NO_CAUSE = re.compile(r"^Error: (Could not create the Java Virtual Machine|A fatal exception has occurred)")
"""Java's last lines when it does not start; the cause comes before them."""
_LOG4J = re.compile(r"^[\[\d][-\d/:.,TZ+\[\] ]*[\[\] ](TRACE|DEBUG|INFO|WARN|ERROR|FATAL)\]? +(.*)$")
_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_CONTINUES = re.compile(r"^(\s|$|Caused by: |Suppressed: )")
_WARNING = re.compile(r"^(WARNING\b|[\w .-]+ VM warning: )")
_ERROR = re.compile(r"^(Error\b|Exception in thread |Traceback \(|([\w$]+\.)*[\w$]*(Exception|Error)\b)")

_CHUNK_BYTES = 65_536
_LAST_LINES = 200
_END_WAIT_S = 5.0


def leveled(line: str, before: int = logging.INFO) -> tuple[int, str] | None:
    """The level of a line and its text, without log4j's time and level; None if nothing is left.

    :param before: the level of the previous line, which the lines of a stack trace share.
    """
    if _HARMLESS.match(line):
        return None
    if match := _LOG4J.match(line):
        return _LEVELS[match[1]], match[2]
    if _CONTINUES.match(line):
        return before, line
    if _WARNING.match(line):
        return logging.WARNING, line
    return (logging.ERROR if _ERROR.match(line) else logging.INFO), line


class StandardError:
    """A pipe for the standard error of a JVM, and a thread that reads it to its end, so that writers never wait.

    Raw file descriptors: at its exit the interpreter waits for the lock of a buffered file that a thread is reading.
    """

    def __init__(self) -> None:
        self._reads, self.writes = os.pipe()
        self._open = True
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        os.register_at_fork(after_in_child=self._close)  # nobody reads in the child, and a full pipe would stop the JVM
        self._thread = Thread(target=self._read, name="trident-jvm-stderr", daemon=True)
        self._thread.start()

    def given(self) -> None:
        """Called when the JVM has its end of the pipe, or will never have it."""
        os.close(self.writes)

    def last_words(self) -> str:
        """The last lines of a JVM that has ended, which may say why."""
        self._thread.join(_END_WAIT_S)
        return "\n".join(line for line in self._last if not _NO_CAUSE.match(line))

    def _close(self) -> None:
        if self._open:
            self._open = False
            os.close(self._reads)

    def _read(self) -> None:
        rest, level = b"", logging.INFO
        while chunk := os.read(self._reads, _CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) >= _CHUNK_BYTES:
                lines, rest = [*lines, rest], b""
            for line in lines:
                level = self._say(line, level)
        if rest:
            self._say(rest, level)
        self._close()

    def _say(self, line: bytes, before: int) -> int:
        leveled_line = leveled(line.decode(errors="replace").rstrip("\r"), before)
        if leveled_line is None:
            return before
        self._last.append(leveled_line[1])
        with suppress(Exception):  # reading continues whatever a handler does
            if _shown(leveled_line[0]):
                log.log(leveled_line[0], "%s", leveled_line[1])
            else:  # without a log, print where the JVM would have printed
                os.write(2, line + b"\n")
        return leveled_line[0]


def _shown(level: int) -> bool:
    """Does any handler accept a line of that level? The commands mute their handlers."""
    if not log.isEnabledFor(level):
        return False
    logger: logging.Logger | None = log
    while logger is not None:
        if any(handler.level <= level for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


_LOCK = RLock()


def local_conf(master: str, *, one_shot: bool, ui: bool, temporary: Path | None = None) -> dict[str, str]:
    """Settings of an application that writes only into the folder for temporary files, and removes its files at its
    end, even if this process is killed.

    :param temporary: replaces the system's folder.
    """
    temporary = temporary or Path(tempfile.gettempdir())
    cores = _cores(master)
    java = [
        f"-Djava.io.tmpdir={temporary}",
        f"-Dlog4j2.configurationFile={QUIET_LOG.as_uri()}",
        *([one_shot_java_options()] if one_shot else []),
        *archive_options(),
    ]
    conf = {
        "spark.driver.extraJavaOptions": " ".join(java),
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # never made, because there are no tables; the default would be a folder in the working directory
        "spark.sql.warehouse.dir": (temporary / "airflow-trident-warehouse").as_uri(),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.pyspark.python": sys.executable,
        # a cancelled task's Python worker, and its child, get no extra 2 s: they have nothing to save
        "spark.python.task.killTimeout": "0ms",
    }
    if cores:
        # small batches: as many partitions as cores, and no re-planning between stages (0.76 of the time, measured)
        conf |= {"spark.sql.shuffle.partitions": str(cores), "spark.sql.adaptive.enabled": "false"}
        conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return conf


class LocalSessions(Sessions):
    """Starts an application in this process with the first job. If it started one, it stops it at the end.

    :param master: Spark's master URL.
    :param conf: settings that override ours.
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
        self._sibling: Sibling | None = None
        self._mine = False

    def open(self, slot: Slot, *, trial: bool = False) -> Attached:
        with _LOCK:
            _forget_killed()
            if self._session is None or not _runs(self._session):
                self._session, self._sibling, self._mine = self._existing(), None, False
            if self._session is None:
                self._session = self._start()
            if self._sibling is None:
                self._sibling = Sibling.of(self._session)
            return attach_classic(self._sibling, slot)

    def opening(self) -> str:
        with _LOCK:
            _forget_killed()
            return "" if _runs() else f"starting Spark ({self._master})"

    def _existing(self) -> SparkSession | None:
        from pyspark.sql import SparkSession

        return SparkSession.builder.getOrCreate() if _runs() else None

    def _start(self) -> SparkSession:
        require_java()
        conf = {**local_conf(self._master, one_shot=self._one_shot, ui=self._ui), **self._conf}
        with _spark_environment():
            try:
                session = self._build(conf)
            except Exception as error:
                raise start_error(error, f"Spark ({self._master})") from error
        self._mine = True
        send_to_executors(session)
        return session

    def _build(self, conf: Mapping[str, str]) -> SparkSession:
        from pyspark.sql import SparkSession

        _launch({"spark.master": self._master, "spark.app.name": self._app_name, **conf})
        builder = SparkSession.builder.master(self._master).appName(self._app_name)
        for name, value in conf.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()

    def close(self) -> None:
        session, self._session, self._sibling = self._session, None, None
        with _LOCK:
            _forget_killed()
            if session is not None and self._mine and _runs(session):
                session.stop()


def _runs(session: SparkSession | None = None) -> bool:
    """Is there an application in this process, whoever started it? :param session: it must be the one of this
    session."""
    from pyspark import SparkContext

    active = SparkContext._active_spark_context
    return active is not None and (session is None or session.sparkContext is active)


def _forget_killed() -> None:
    """Make pyspark forget a JVM that ended on its own (it may have been killed). Otherwise calls to it would be
    refused; now the next job starts another."""
    from pyspark import SparkContext

    gateway, context = SparkContext._gateway, SparkContext._active_spark_context
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None or process.poll() is None:
        return
    log.warning("the JVM of Spark has ended (exit code %s) and this process did not ask it to", process.returncode)
    if context is not None:
        context._jsc = None  # the JVM is gone
        context.stop()
    with suppress(Exception):  # its sockets are closed
        gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None


def _launch(conf: Mapping[str, str]) -> None:
    """Start a JVM whose standard error goes to the log, and the application in it; does nothing if a JVM exists.

    It ends as any JVM of pyspark: when its standard input does, with this process.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    settings = SparkConf(loadDefaults=False).setAll(list(conf.items()))
    stderr = StandardError()
    try:
        try:
            gateway = launch_gateway(settings, {"stderr": stderr.writes})  # type: ignore[no-untyped-call]
        finally:
            stderr.given()
    except Exception as error:
        if cause := root_cause(stderr.last_words()):
            raise SparkJobError(f"the JVM ended: {cause}") from error
        raise
    SparkContext(conf=settings, gateway=gateway)


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


def start_error(error: Exception, subject: str) -> ConfigurationError | SparkJobError:
    """Why Spark did not start. Asks for Java's version only now, because that costs a JVM's start."""
    version = java_version(require_java())
    if version is not None and version < MIN_JAVA:
        return ConfigurationError(
            f"{subject} needs Java {MIN_JAVA} or later and found Java {version}",
            "Install a newer one, or point JAVA_HOME to it.",
        )
    cure = "See the lines that Java printed before this one."
    if "(spark://" in subject:
        cure += " A master of another release of Spark gives no answer: its page says of which one it is."
    return SparkJobError(f"{subject} did not start: {root_cause(str(error))}", cure)


def _cores(master: str) -> int | None:
    """The cores of a local master; None for a cluster."""
    if not master.startswith("local"):
        return None
    inside = master.partition("[")[2].partition("]")[0].partition(",")[0]
    if inside == "*":
        return os.cpu_count() or 1
    return int(inside) if inside.isdecimal() else 1
