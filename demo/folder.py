"""The demonstration's folder: the folder of its Airflow, with the input, the counts and records of what went wrong."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tools.local_airflow.folder import Folder

VARIABLE = "TRIDENT_DEMO_HOME"
"""Environment variable that names the folder; the example DAGs read it, too."""
DEFAULT_NAME = ".trident-demo"


@dataclass(frozen=True)
class DemoFolder(Folder):
    """The places in the folder. `root` is absolute."""

    another: ClassVar[str] = f"name another folder in the environment variable {VARIABLE}"

    @property
    def input(self) -> Path:
        return self.root / "input"

    @property
    def damage(self) -> Path:
        """File with the damaged part of the input, and the bytes to repair it with."""
        return self.root / "damage.json"

    @property
    def state(self) -> Path:
        return self.root / "counts.db"

    @property
    def kills(self) -> Path:
        """Folder with one file for each process that was killed on purpose."""
        return self.root / "kills"

    def failure(self, txid: int) -> Path:
        """File with the reason why a transaction failed, for the final report: the ledger forgets it after the
        replay."""
        return self.kills / f"failed-{txid}"

    @property
    def made(self) -> tuple[Path, ...]:
        return (*super().made, self.kills)


def folder_from_environment(default: str = DEFAULT_NAME) -> DemoFolder:
    return DemoFolder(Path(os.environ.get(VARIABLE) or default).expanduser().absolute())
