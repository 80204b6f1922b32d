"""What a demonstration shows: a DAG, its input, the damage in it, and the comparison at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from airflow_trident.protocol.records import TxRecord
from demo import text
from demo.folder import DemoFolder
from demo.kills import KILLS, Kill
from demo.report import report_words
from demo.screen import Screen


class Play(ABC):
    """Everything that differs between demonstrations. It can be prepared any number of times, so a run that was killed
    anywhere can go on."""

    dag: str
    """Name of the DAG and of its topology."""
    dag_files: tuple[str, ...]
    transactions: int
    """The number of transactions that the input becomes."""
    lines = "lines"
    """Name for the rows that are read."""
    staged = "counted words"
    """Name for the rows that are staged."""
    story = ""
    """What this play shows, if a demonstration has several plays."""
    kills: tuple[Kill, ...] = KILLS
    clears: int | None = None
    """The run of this transaction is cleared while it is processed, and another run when all is committed."""

    @abstractmethod
    def prepare(self, folder: DemoFolder, stack: ExitStack) -> str:
        """Make the input with its damage if it is not there; returns a description. `stack` stops servers at the
        end."""

    def environment(self, folder: DemoFolder) -> Mapping[str, str]:
        """Environment variables for Airflow's processes; called after `prepare`."""
        return {}

    def repair(self, folder: DemoFolder) -> str | None:
        """Repair the damage; returns a description, None if there is no damage."""
        return None

    def cleared(self, folder: DemoFolder) -> Path:
        """The file that exists once a run was cleared."""
        return folder.kills / f"{self.dag}-cleared"

    @abstractmethod
    def report(self, screen: Screen, folder: DemoFolder, records: Mapping[int, TxRecord]) -> bool:
        """Print the end; True if everything is committed and equal to a plain count."""


class WordCount(Play):
    """Counts the words of Python's standard library, file by file."""

    dag = "word_count"
    dag_files = ("word_count.py", "backfill_failed.py")
    transactions = text.PARTS

    def __init__(self, lines_of_a_part: int | None = None) -> None:
        self._lines_of_a_part = lines_of_a_part

    def prepare(self, folder: DemoFolder, stack: ExitStack) -> str:
        made = not folder.input.exists()
        found = text.make_text(folder.input, folder.damage, lines_of_a_part=self._lines_of_a_part)
        what = f"{found.files} files, {found.lines:,} lines, {found.bytes / 1e6:.1f} MB: Python's standard library"
        return what + ("" if made else " (of the last run)")

    def repair(self, folder: DemoFolder) -> str | None:
        damage = text.repair(folder.input, folder.damage)
        if damage is None:
            return None
        return f"{damage.length} bytes of {damage.file} put back; its size and time are as before"

    def report(self, screen: Screen, folder: DemoFolder, records: Mapping[int, TxRecord]) -> bool:
        return report_words(screen, folder, records)
