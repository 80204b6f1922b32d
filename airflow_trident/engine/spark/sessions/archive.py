"""Class archives (AppCDS): Spark's classes in one file that the JVM maps into memory, instead of some ten thousand that
it unpacks, checks and links at every start. Saves half of a cold task's time.

An archive fits one Java and one set of jars. So its name is a digest of both, and of the small job that runs once to
make it. It is used if it exists; the JVM ignores an archive that does not fit.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from airflow_trident.engine.spark.sessions import archive_app as spark_archive_app
from airflow_trident.engine.spark.sessions.java import (
    QUIET_LOG,
    one_shot_java_options,
    require_java,
    spark_home,
    submit_command,
    submit_environment,
)
from airflow_trident.errors import ConfigurationError, SparkJobError

FOLDER_VARIABLE = "AIRFLOW_TRIDENT_CLASS_ARCHIVES"
"""The folder of archives; if set but empty, none is used or made."""
_MAKE_LIMIT_S = 600


def archive_folder() -> Path | None:
    """The folder of archives, by default in the user's cache folder. None: archives are switched off."""
    configured = os.environ.get(FOLDER_VARIABLE)
    if configured is not None:
        return Path(configured).expanduser() if configured else None
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(caches) / "airflow-trident"


def archive_path() -> Path | None:
    """The archive that fits this Java and this pyspark, even if it does not exist; None: switched off, or no Java."""
    folder = archive_folder()
    if folder is None:
        return None
    try:
        java = os.path.realpath(require_java())
    except ConfigurationError:
        return None
    digest = hashlib.sha256(java.encode())
    with contextlib.suppress(OSError):
        digest.update((Path(java).parents[1] / "release").read_bytes())
    digest.update(Path(spark_archive_app.__file__).read_bytes())
    for name, size_bytes in _jars():
        digest.update(f"\n{name} {size_bytes}".encode())
    return folder / f"spark-{digest.hexdigest()[:16]}.jsa"


def archive_options() -> list[str]:
    """Java options that use the archive, if it exists. A machine without it (in a cluster) ignores them."""
    path = archive_path()
    return [f"-XX:SharedArchiveFile={path}", "-Xshare:auto"] if path is not None and path.is_file() else []


def make_archive() -> tuple[Path, bool]:
    """Make the archive if it does not exist: about half a minute. Concurrent callers wait for the first.

    :returns: its path, and whether this call made it.
    :raises ConfigurationError: archives are switched off, there is no Java, or the folder cannot be written.
    :raises SparkJobError: the job did not run, or Java wrote no archive.
    """
    require_java()
    path = archive_path()
    if path is None:
        raise ConfigurationError(
            f"class archives are switched off: {FOLDER_VARIABLE} is set and empty", "Unset it, or name a folder."
        )
    with _locked(path):
        if path.is_file():
            return path, False
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            draft = Path(scratch) / path.name
            output = _run_job(draft, Path(scratch))
            if not draft.is_file():
                raise SparkJobError(
                    f"no class archive came out of the job; it said: {output[-400:]}",
                    "Spark runs without it, too; use a Java that can make one (HotSpot 17 or later).",
                )
            os.replace(draft, path)  # atomic for every reader
    return path, True


def _run_job(draft: Path, scratch: Path) -> str:
    """:returns: its last output."""
    java = f"{one_shot_java_options()} -Djava.io.tmpdir={scratch} -Dlog4j2.configurationFile={QUIET_LOG.as_uri()}"
    conf = {
        "spark.driver.extraJavaOptions": f"{java} -XX:ArchiveClassesAtExit={draft}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(scratch),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.ui.enabled": "false",
    }
    try:
        done = subprocess.run(
            [*submit_command("local[2]", conf), spark_archive_app.__file__],
            env=submit_environment(),
            cwd=scratch,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_MAKE_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SparkJobError(
            f"the job did not end within {_MAKE_LIMIT_S} s", "Run it when the machine is idle."
        ) from error
    return done.stdout.strip()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = open(path.with_suffix(".lock"), "w")  # noqa: SIM115 - closed below
    except OSError as error:
        raise ConfigurationError(
            f"the folder of class archives {path.parent} cannot be written ({error.strerror})",
            f"Name another one in {FOLDER_VARIABLE}.",
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _jars() -> list[tuple[str, int]]:
    return sorted((path.name, path.stat().st_size) for path in (spark_home() / "jars").glob("*.jar"))
