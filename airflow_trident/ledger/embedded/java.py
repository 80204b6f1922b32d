"""Finds Java and the jars that pyspark ships, without importing pyspark."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from airflow_trident.errors import ConfigurationError

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
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java") or ""
    if not found or not os.access(found, os.X_OK):
        where = f"JAVA_HOME is {home!r}, and there is no {found}" if home else "there is no java on the PATH"
        raise ConfigurationError(f"Java was not found: {where}", f"{_INSTALL}, or correct JAVA_HOME.")
    version = java_version(found)
    if version < LEAST_JAVA:
        raise ConfigurationError(
            f"{found} is Java {version}, and at least {LEAST_JAVA} is needed", f"{_INSTALL} and set JAVA_HOME to it."
        )
    return found


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
        said = (done.stderr or done.stdout).strip().splitlines()[:1]
        raise ConfigurationError(f"{executable} does not tell its version: {said}", f"{_INSTALL}.")
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
    found = sorted(path for path in folder.glob(f"{prefix}*.jar") if path.name[len(prefix)].isdigit())
    return found[-1] if found else None
