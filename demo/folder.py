"""The demonstration's folder: that of its Airflow, with the input, the counts and what went wrong on purpose."""

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
    """The places in the folder; `root` is absolute."""

    another: ClassVar[str] = f"name another folder in the environment variable {VARIABLE}"

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
    def kills(self) -> Path:
        """One file per process that was killed on purpose."""
        return self.root / "kills"

    def failure(self, txid: int) -> Path:
        """Why a transaction failed, for the report at the end: the ledger forgets it when the replay has succeeded."""
        return self.kills / f"failed-{txid}"

    @property
    def made(self) -> tuple[Path, ...]:
        return (*super().made, self.kills)


def folder_from_environment(default: str = DEFAULT_NAME) -> DemoFolder:
    return DemoFolder(Path(os.environ.get(VARIABLE) or default).expanduser().absolute())
