"""A real ZooKeeper server for those who have none, started from the jars that pyspark ships.

One server, with its data in a given folder. Good for one machine; only an ensemble of three survives the loss of one.

A login in a file that only its user may read: users of the embedded server need no password of their own.

Finds Java and the jars that pyspark ships, without importing pyspark.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import secrets
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any, ClassVar

from airflow_trident.errors import ConfigurationError, LedgerUnavailableError
from airflow_trident.io.servers import BackgroundServer, ServerStatus
from airflow_trident.ledger.zookeeper.diagnose import four_letters
from airflow_trident.ledger.zookeeper.settings import DigestAuth

_USER = "trident"


def make_login(path: Path) -> None:
    """Writes a new user and password. An existing file stays, because the ledger was made for its user.

    :raises OSError: it cannot be written.
    """
    if path.exists():
        return
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    content = json.dumps({"user": _USER, "password": secrets.token_urlsafe(24)})
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
    try:
        os.link(draft, path)
    except FileExistsError:
        pass  # somebody else was faster, and may have given it out
    finally:
        draft.unlink()


def read_login(path: str, subject: str) -> DigestAuth:
    """
    :param path: may begin with ``~``.
    :param subject: what the login is for, in errors: "connection 'zookeeper_default'".
    :raises ConfigurationError: it cannot be read, is no login, or others may read it.
    """
    login_file = os.path.abspath(os.path.expanduser(path))
    cure = "It is made by `airflow trident zookeeper start` for its user. Or give login and password."
    try:
        with open(login_file, encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = json.load(file)
    except OSError as error:
        raise ConfigurationError(
            f"{subject}: the login file {login_file} cannot be read ({error.strerror})", cure
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{subject}: the login file {login_file} is no JSON ({error})", cure) from error
    if mode & 0o077:
        raise ConfigurationError(
            f"{subject}: others may read the login file {login_file} (mode {mode:o})", f"`chmod 600 {login_file}`."
        )
    user, password = (content.get("user"), content.get("password")) if isinstance(content, dict) else (None, None)
    if not (isinstance(user, str) and user and isinstance(password, str) and password):
        raise ConfigurationError(f"{subject}: the login file {login_file} has no user and password", cure)
    return DigestAuth(user=user, password=password)


LEAST_JAVA = 17
_INSTALL = (
    "Install a Java 17 or 21 runtime (Debian: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17)"
)
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
# Without one of these ZooKeeper hangs silently; with the log4j ones its log tells why.
_JARS = (
    "zookeeper-",
    "zookeeper-jute-",
    "slf4j-api-",
    "metrics-core-",
    "snappy-java-",
    "log4j-slf4j2-impl-",
    "log4j-api-",
    "log4j-core-",
)


def java_executable() -> str:
    """``$JAVA_HOME/bin/java``, else ``java`` on the path.

    :raises ConfigurationError: there is none, or it is older than Java 17.
    """
    home = os.environ.get("JAVA_HOME", "")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java") or ""
    if not java or not os.access(java, os.X_OK):
        reason = f"JAVA_HOME is {home!r}, and there is no {java}" if home else "there is no java on the PATH"
        raise ConfigurationError(f"Java was not found: {reason}", f"{_INSTALL}, or correct JAVA_HOME.")
    version = java_version(java)
    if version < LEAST_JAVA:
        raise ConfigurationError(
            f"{java} is Java {version}, and at least {LEAST_JAVA} is needed", f"{_INSTALL} and set JAVA_HOME to it."
        )
    return java


def java_version(executable: str) -> int:
    """The feature version: 8, 11, 17, ...

    :raises ConfigurationError: it does not run, or does not tell its version.
    """
    try:
        done = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"{executable} does not run: {error}", f"{_INSTALL}.") from error
    match = _VERSION.search(done.stderr + done.stdout)
    if not match:
        output = (done.stderr or done.stdout).strip().splitlines()[:1]
        raise ConfigurationError(f"{executable} does not tell its version: {output}", f"{_INSTALL}.")
    return int(match[2] or 8) if match[1] == "1" else int(match[1])  # Java 8 calls itself 1.8


def zookeeper_jars() -> list[Path]:
    """The few jars of pyspark that a ZooKeeper server needs.

    :raises ConfigurationError: pyspark is not installed with its jars.
    """
    spec = importlib.util.find_spec("pyspark")
    roots = list(spec.submodule_search_locations or []) if spec else []
    for root in roots:
        jars = [_newest(Path(root) / "jars", prefix) for prefix in _JARS]
        if all(jars):
            return [jar for jar in jars if jar is not None]
    raise ConfigurationError(
        "the jars of a ZooKeeper server were not found: pyspark is not installed, or without its jars",
        "Install it (pip install 'airflow-trident[spark]'), or use a ZooKeeper of your own.",
    )


def _newest(folder: Path, prefix: str) -> Path | None:
    """The newest jar of exactly this name: its version begins with a digit (``zookeeper-`` is not
    ``zookeeper-jute-``)."""
    jars = sorted(path for path in folder.glob(f"{prefix}*.jar") if path.name[len(prefix)].isdigit())
    return jars[-1] if jars else None


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
