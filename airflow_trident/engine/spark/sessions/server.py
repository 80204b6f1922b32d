"""A Spark Connect server on this machine, from the installed pyspark, so that tasks need no JVM of their own.

It listens on this machine only: anyone who reaches a Connect server can run code on it.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from airflow_trident.engine.spark import python_daemon
from airflow_trident.engine.spark.sessions.connect import require_server
from airflow_trident.engine.spark.sessions.java import require_java, spark_home, submit_command, submit_environment
from airflow_trident.engine.spark.sessions.local import local_conf
from airflow_trident.errors import ConfigurationError, SparkJobError
from airflow_trident.io.servers import BackgroundServer

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
