"""The Java that Spark runs on, and its settings."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from airflow_trident.errors import ConfigurationError

MIN_JAVA = 17
ONE_SHOT_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM of one batch: without the second compiler it starts in half the time and CPU (measured). With many batches
such a driver is 1.2 times slower."""
_JAVA_VARIABLES = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
_COLLECTOR = re.compile(r"-XX:\+Use\w*GC\b")

QUIET_LOG = Path(__file__).with_name("spark_log4j2.properties")
"""log4j2 settings that log only errors. A file of the package: a temporary one would outlive a killed task."""


def spark_home() -> Path:
    """The folder of the installed pyspark, without importing it.

    :raises ConfigurationError: pyspark is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigurationError("pyspark is not installed", "Install it: pip install 'airflow-trident[spark]'.")
    return Path(spec.origin).parent


def jars_version() -> str:
    """The version of the Spark that spark-submit runs: of SPARK_HOME, or of the installed pyspark; empty if unknown.

    :raises ConfigurationError: pyspark is not installed.
    """
    home = os.environ.get("SPARK_HOME")
    jars = (Path(home) if home else spark_home()) / "jars"
    return next((jar.stem.split("-", 2)[2] for jar in jars.glob("spark-core_*.jar")), "")


def one_shot_java_options() -> str:
    """Options for a JVM of one batch that inherits this environment. Java refuses two collectors: that of the
    environment is used if it names one."""
    if any(_COLLECTOR.search(os.environ.get(name, "")) for name in _JAVA_VARIABLES):
        return _COLLECTOR.sub("", ONE_SHOT_JAVA_OPTIONS).strip()
    return ONE_SHOT_JAVA_OPTIONS


def submit_command(master: str, conf: Mapping[str, str]) -> list[str]:
    """The installed pyspark's spark-submit with settings; the application follows."""
    settings = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    return [str(spark_home() / "bin" / "spark-submit"), "--master", master, *settings]


def submit_environment() -> dict[str, str]:
    """This environment, with this Python first on the path: spark-submit takes its home and its Python from there."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, "SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": sys.executable}


def require_java() -> str:
    """The path of the Java that Spark will use.

    :raises ConfigurationError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")
    if java is None:
        location = f"below JAVA_HOME ({home})" if home else "on the PATH, and JAVA_HOME is not set"
        raise ConfigurationError(f"Spark needs Java and there is none {location}", f"Install Java {MIN_JAVA} or later.")
    return java


def java_version(java: str) -> int | None:
    """The feature version (17, 21; 8 for "1.8"); None if unknown."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    quoted = done.stderr.partition('"')[2].partition('"')[0].replace("1.8", "8")
    head = quoted.partition(".")[0].partition("-")[0]
    return int(head) if head.isdecimal() else None
