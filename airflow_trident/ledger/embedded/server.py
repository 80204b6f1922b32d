"""A real ZooKeeper server for those who have none, started from the jars that pyspark ships.

One server, with its data in a given folder. Good for one machine; only an ensemble of three survives the loss of one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from airflow_trident.errors import LedgerUnavailableError
from airflow_trident.io.servers import BackgroundServer, ServerStatus
from airflow_trident.ledger.embedded.java import java_executable, zookeeper_jars
from airflow_trident.ledger.embedded.login import make_login
from airflow_trident.ledger.zookeeper.four_letters import four_letters

_CONFIG = """\
dataDir={data}
clientPort={port}
clientPortAddress={host}
tickTime=2000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr,mntr,ruok,conf
autopurge.snapRetainCount=5
autopurge.purgeInterval=1
"""
_LOG_CONFIG = """\
<Configuration status="error">
  <Appenders>
    <RollingFile name="file" fileName="{log}" filePattern="{log}.%i">
      <PatternLayout pattern="%d{{yyyy-MM-dd HH:mm:ss}} %p %c{{1}}: %m%n"/>
      <Policies><SizeBasedTriggeringPolicy size="5 MB"/></Policies>
      <DefaultRolloverStrategy max="1"/>
    </RollingFile>
  </Appenders>
  <Loggers><Root level="info"><AppenderRef ref="file"/></Root></Loggers>
</Configuration>
"""


class EmbeddedZooKeeper(BackgroundServer):
    """ZooKeeper writes a log before it answers, so killing it loses nothing.

    :param heap_mb: the heap of Java.
    """

    what = "ZooKeeper server"
    log_name = "zookeeper.log"
    output_name = "zookeeper.out"
    error: ClassVar = LedgerUnavailableError
    start_command = "airflow trident zookeeper start"

    def __init__(self, data_dir: str | Path, *, port: int = 0, heap_mb: int = 128, host: str = "127.0.0.1") -> None:
        super().__init__(data_dir, port=port, host=host)
        self.heap_mb = heap_mb

    @property
    def login_file(self) -> Path:
        """User and password of the ledger's only user; written with the server's start, mode 0600. Clients get its path
        as ``login_file``."""
        return self.data_dir / "login.json"

    def connection(self) -> dict[str, Any]:
        """The Airflow connection to the running server, with the login by reference."""
        return {"conn_type": "zookeeper", "host": self.hosts, "extra": {"login_file": str(self.login_file)}}

    def start(self) -> ServerStatus:
        status = super().start()
        with self._writing():
            make_login(self.login_file)
        return status

    def _require(self) -> None:
        self._java, self._jars = java_executable(), zookeeper_jars()

    def _prepare(self, port: int) -> None:
        (self.data_dir / "data").mkdir(exist_ok=True)
        self._write(self.data_dir / "log4j2.xml", _LOG_CONFIG.format(log=self.log))
        self._write(self.data_dir / "zoo.cfg", _CONFIG.format(data=self.data_dir / "data", port=port, host=self.host))

    def _command(self, port: int) -> list[str]:
        return [
            self._java,
            f"-Xmx{self.heap_mb}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            f"-Dlog4j2.configurationFile={self.data_dir / 'log4j2.xml'}",
            "-cp",
            os.pathsep.join(map(str, self._jars)),
            "org.apache.zookeeper.server.ZooKeeperServerMain",
            str(self.data_dir / "zoo.cfg"),
        ]

    def _serves(self, host: str, port: int) -> bool:
        # "srvr" shows a mode only once requests are served.
        return "Mode:" in four_letters(host, port, "srvr")
