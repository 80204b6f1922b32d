"""The one folder in which everything of the demonstration lies, so that deleting it leaves nothing behind."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from airflow_trident.errors import ConfigurationError

VARIABLE = "TRIDENT_DEMO_HOME"
"""Environment variable that names the folder; the example DAGs read it, too."""
DEFAULT_NAME = ".trident-demo"


@dataclass(frozen=True, slots=True)
class Folder:
    """The places in the demonstration's folder; `root` is absolute."""

    root: Path

    @property
    def airflow(self) -> Path:
        """AIRFLOW_HOME: configuration, metadata database, task logs."""
        return self.root / "airflow"

    @property
    def dags(self) -> Path:
        return self.root / "dags"

    @property
    def input(self) -> Path:
        return self.root / "input"

    @property
    def damage(self) -> Path:
        """What was damaged in the input, and how it is repaired."""
        return self.root / "damage.json"

    @property
    def state(self) -> Path:
        return self.root / "counts.db"

    @property
    def staging(self) -> Path:
        return self.root / "staging"

    @property
    def zookeeper(self) -> Path:
        return self.root / "zookeeper"

    @property
    def kills(self) -> Path:
        """One file per process that was killed on purpose."""
        return self.root / "kills"

    def failure(self, txid: int) -> Path:
        """Why a transaction failed, for the report at the end: the ledger forgets it when the replay has succeeded."""
        return self.kills / f"failed-{txid}"

    @property
    def logs(self) -> Path:
        """What the services printed, one file per service."""
        return self.root / "logs"

    @property
    def work(self) -> Path:
        """Working and temporary directory of every child process. Nobody else works there: see `processes.py`."""
        return self.root / "tmp"

    def make(self) -> None:
        """:raises ConfigurationError: the folder cannot be written."""
        try:
            for path in (self.airflow, self.dags, self.zookeeper, self.kills, self.logs, self.work):
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"the folder {self.root} cannot be made: {error}",
                f"Run it where you may write, or name another folder in the environment variable {VARIABLE}.",
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other demonstration out of the folder while this one runs; ends with the process, however it ends.

        :raises ConfigurationError: another one is at work here.
        """
        with (self.root / "lock").open("a") as file:
            os.set_inheritable(file.fileno(), False)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigurationError(
                    f"another demonstration is running in {self.root}",
                    f"Wait for it or stop it, or name another folder in the environment variable {VARIABLE}.",
                ) from error
            yield


def folder_from_environment(default: str = DEFAULT_NAME) -> Folder:
    return Folder(Path(os.environ.get(VARIABLE) or default).expanduser().absolute())
