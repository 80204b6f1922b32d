"""Sessions of a running Spark Connect server.

The server runs a killed client's job to its end. So an attempt's session has an id that every process can compute, and
the next attempt releases it: the server then stops the old work and refuses the old client, if that still lives.

A Spark Connect server on this machine, from the installed pyspark, so that tasks need no JVM of their own.

It listens on this machine only: anyone who reaches a Connect server can run code on it.
"""

from __future__ import annotations

import re
import socket
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_trident.engine.spark import python_daemon
from airflow_trident.engine.spark.errors import root_cause
from airflow_trident.engine.spark.sessions.java import require_java, spark_home, submit_command, submit_environment
from airflow_trident.engine.spark.sessions.local import local_conf
from airflow_trident.engine.spark.sessions.session import Attached, Sessions, attach_connect, session_id_of
from airflow_trident.engine.spark.versions import channel_of, forget_session, release_session, retry_at_most
from airflow_trident.errors import ConfigurationError, SparkJobError
from airflow_trident.io.servers import BackgroundServer
from airflow_trident.staging.manifest import Slot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DEFAULT_USER = "airflow-trident"
_RETRIES = 5
"""About 17 seconds. Spark's own 15 retries take ten minutes, and a restarted server does not know old sessions."""
_RELEASED_ATTEMPTS = 3
"""How many older attempts are released: an attempt that was killed and not followed at once may still run."""


class ConnectSessions(Sessions):
    """One session per attempt on a server. A session that was released refuses further use.

    :param url: ``sc://host:port/;use_ssl=true;token=...`` as in Spark.
    :param conf: settings of the session.
    """

    def __init__(self, url: str, *, conf: Mapping[str, str] | None = None, timeout_s: float = 10.0) -> None:
        self._url = url
        self._conf = dict(conf or {})
        self._timeout_s = timeout_s

    @property
    def have_siblings(self) -> bool:
        return False

    def open(self, slot: Slot, *, trial: bool = False) -> Attached:
        require_server(self._url, self._timeout_s)
        try:
            for older in range(max(0, slot.attempt - _RELEASED_ATTEMPTS), 0 if trial else slot.attempt):
                self._release_older(slot, older)
            session = self._session(str(uuid.uuid4()) if trial else session_id_of(slot))
            try:
                return attach_connect(session, slot, lambda: stop_session(session), self._conf)
            except BaseException:  # its channel and its session on the server would stay
                with suppress(Exception):
                    stop_session(session)
                raise
        except (ConfigurationError, SparkJobError):
            raise
        except Exception as error:
            raise SparkJobError(
                f"the Spark Connect server at {self.place} gave no session: {root_cause(str(error))}",
                "Check its version (the client's or a newer one), token and log; a retry begins anew.",
            ) from error

    @property
    def place(self) -> str:
        """Host and port, without the token."""
        return "{}:{}".format(*_address(self._url))

    def _session(self, session_id: str) -> SparkSession:
        from pyspark.sql.connect.session import SparkSession

        session: Any = SparkSession(connection=channel_of(self._url, session_id), userId=_DEFAULT_USER)
        retry_at_most(session, _RETRIES)
        return session  # type: ignore[no-any-return]

    def _release_older(self, slot: Slot, attempt: int) -> None:
        """Best effort: the older attempt may never have had a session."""
        older: Any = self._session(session_id_of(slot, attempt))
        with suppress(Exception):
            release_session(older)
        stop_session(older, release=False)


def stop_session(session: Any, *, release: bool = True) -> None:
    """Release the session, close its channel and forget it. Otherwise the interpreter does so only at its exit, and a
    long-lived driver would keep every session."""
    retry_at_most(session, 1)  # a server that is gone has released it
    session.release_session_on_close = release
    session.stop()
    forget_session(session)


def require_server(url: str, timeout_s: float) -> None:
    """Checked here, because Spark's own client would try for ten minutes.

    :raises ConfigurationError: not a Connect URL.
    :raises SparkJobError: no server listens there.
    """
    host, port = _address(url)
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except OSError as error:
        raise SparkJobError(
            f"no Spark Connect server answers at {host}:{port} ({error.strerror or error})",
            "Start it (`airflow trident connect-server start` runs one on this machine), or mend host and port of the "
            "connection.",
        ) from error


def _address(url: str) -> tuple[str, int]:
    rest = url.removeprefix("sc://")
    host, _, port = re.split("[/;]", rest, maxsplit=1)[0].partition(":")
    if rest == url or not host or (port and not port.isdecimal()):
        raise ConfigurationError(f"{url.partition(';')[0]!r} is no Spark Connect URL", "Write sc://host:15002.")
    return host, int(port or 15002)


DEFAULT_HEAP_MB = 1024
_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


class EmbeddedConnectServer(BackgroundServer):
    """
    :param master: where its jobs run.
    :param heap_mb: of the driver; with a local master the driver is all of Spark.
    :param conf: Spark settings that override those for small batches.
    """

    what = "Spark Connect server"
    log_name = output_name = "spark-connect.log"
    error: ClassVar = SparkJobError
    start_command = "airflow trident connect-server start"

    def __init__(
        self,
        data_dir: str | Path,
        *,
        port: int = 0,
        master: str = "local[*]",
        heap_mb: int = DEFAULT_HEAP_MB,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(data_dir, port=port)
        self._master = master
        self._heap_mb = heap_mb
        self._conf = dict(conf or {})

    @property
    def url(self) -> str:
        """``sc://host:port`` of the running server.

        :raises SparkJobError: it does not run.
        """
        return f"sc://{self.hosts}"

    def spark_version(self) -> str:
        """The version from the server's own answer.

        :raises SparkJobError: it does not answer.
        """
        from pyspark.sql.connect.session import SparkSession

        require_server(self.url, timeout_s=5.0)
        session = SparkSession.builder.remote(self.url).create()
        try:
            return str(session.version)
        except Exception as error:
            raise SparkJobError(
                f"the Spark Connect server at {self.hosts} does not answer: {error}", f"See {self.log}."
            ) from error
        finally:
            session.stop()

    def _require(self) -> None:
        require_java()
        if not list((spark_home() / "jars").glob("spark-connect_*.jar")):
            raise ConfigurationError(
                "the installed pyspark has no Connect server: its jar comes with pyspark since 4.0",
                "Install a newer pyspark, or use a server that was started elsewhere.",
            )

    def _prepare(self, port: int) -> None:
        (self.data_dir / "tmp").mkdir(exist_ok=True)

    def _command(self, port: int) -> list[str]:
        conf = local_conf(self._master, one_shot=False, ui=False, temporary=self.data_dir / "tmp")
        conf |= {
            "spark.connect.grpc.binding.address": self.host,
            "spark.connect.grpc.binding.port": str(port),
            "spark.driver.memory": f"{self._heap_mb}m",
            "spark.local.dir": str(self.data_dir / "tmp"),
        }
        if self._workers_have_this_package():
            conf["spark.python.daemon.module"] = python_daemon.__name__
        conf |= self._conf
        return [*submit_command(self._master, conf), "--class", _CLASS, "spark-internal"]

    def _workers_have_this_package(self) -> bool:
        """Do they run here, with this Python?"""
        named = {self._environment()["PYSPARK_PYTHON"], self._conf.get("spark.pyspark.python", sys.executable)}
        return self._master.startswith("local") and named == {sys.executable}

    def _environment(self) -> dict[str, str]:
        return submit_environment()

    def _serves(self, host: str, port: int) -> bool:
        # it listens only after it has made its session
        try:
            socket.create_connection((host, port), timeout=1).close()
        except OSError:
            return False
        return True
