"""One folder that contains everything of a local Airflow, so that nothing is left when it is deleted."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from airflow_trident.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Folder:
    """The places in the folder. `root` is absolute."""

    root: Path
    another: ClassVar[str] = "name another folder"
    """The end of error texts: how a person can choose another folder."""

    @property
    def airflow(self) -> Path:
        """AIRFLOW_HOME: configuration, metadata database, task logs."""
        return self.root / "airflow"

    @property
    def dags(self) -> Path:
        return self.root / "dags"

    @property
    def staging(self) -> Path:
        return self.root / "staging"

    @property
    def zookeeper(self) -> Path:
        return self.root / "zookeeper"

    @property
    def logs(self) -> Path:
        """The output of the services, one file for each service."""
        return self.root / "logs"

    @property
    def work(self) -> Path:
        """Working and temporary directory of every child process. Nobody else works there: see `processes.py`."""
        return self.root / "tmp"

    @property
    def made(self) -> tuple[Path, ...]:
        """The folders that :meth:`make` makes."""
        return (self.airflow, self.dags, self.zookeeper, self.logs, self.work)

    def make(self) -> None:
        """:raises ConfigurationError: the folder cannot be written."""
        try:
            for path in self.made:
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"the folder {self.root} cannot be made: {error}",
                f"Run it where you may write, or {self.another}.",
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process out of the folder. The lock ends with this process, however that ends.

        :raises ConfigurationError: another process is at work here.
        """
        with (self.root / "lock").open("a") as file:
            os.set_inheritable(file.fileno(), False)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigurationError(
                    f"another process is at work in {self.root}", f"Wait for it or stop it, or {self.another}."
                ) from error
            yield
