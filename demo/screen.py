"""The output for people: one line for each event, with the time since the start."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import TextIO

_CLEAR = "\r\x1b[K"


class Colour(StrEnum):
    RED = "31"
    GREEN = "32"
    YELLOW = "33"
    DIM = "2"
    BOLD = "1"


class Screen:
    """Writes lines, with colours only if the output is a terminal and NO_COLOR is not set."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._began = time.monotonic()
        self._terminal = self._out.isatty()
        self._colours = self._terminal and not os.environ.get("NO_COLOR")
        self._passing = False

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def event(self, what: str, text: str, colour: Colour | None = None) -> None:
        """A line with the time, a word for the subject, and the text."""
        self.line(f"{self.paint(self._clock(), Colour.DIM)}  {what:<10} {self.paint(text, colour)}")

    def passing(self, text: str) -> None:
        """Show what goes on at this moment, only on a terminal; the next line replaces it."""
        if self._terminal:
            line = f"{self._clock()}  {text}"[: shutil.get_terminal_size().columns - 1]
            print(f"{_CLEAR}{self.paint(line, Colour.DIM)}", end="", file=self._out, flush=True)
            self._passing = True

    def title(self, text: str) -> None:
        self.line("")
        self.line(self.paint(text, Colour.BOLD))

    def line(self, text: str) -> None:
        print(f"{_CLEAR if self._passing else ''}{text}", file=self._out, flush=True)
        self._passing = False

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns as wide as needed. They are aligned right, but left if the head begins with ``<``."""
        names = [head.lstrip("<") for head in heads]
        widths = [
            max(len(names[i]), *(len(row[i]) for row in rows)) if rows else len(names[i]) for i in range(len(names))
        ]

        def aligned(cells: Sequence[str]) -> str:
            parts = [
                cell.ljust(width) if head.startswith("<") else cell.rjust(width)
                for cell, width, head in zip(cells, widths, heads, strict=True)
            ]
            return "  " + "  ".join(parts).rstrip()

        self.line(self.paint(aligned(names), Colour.DIM))
        for row in rows:
            self.line(aligned(row))

    def _clock(self) -> str:
        minutes, seconds = divmod(int(self.elapsed_s), 60)
        return f"{minutes:3d}:{seconds:02d}"

    def paint(self, text: str, colour: Colour | None) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if colour and self._colours else text
