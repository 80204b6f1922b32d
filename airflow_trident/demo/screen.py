"""What people see: one line per event, each with the time since the start."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import TextIO


class Colour(StrEnum):
    RED = "31"
    GREEN = "32"
    YELLOW = "33"
    DIM = "2"
    BOLD = "1"


class Screen:
    """Writes lines; colours only where a terminal shows them and NO_COLOR is not set."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._began = time.monotonic()
        self._colours = self._out.isatty() and not os.environ.get("NO_COLOR")

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def event(self, what: str, text: str, colour: Colour | None = None) -> None:
        """A line with the time, a word for what it is about, and the rest."""
        minutes, seconds = divmod(int(self.elapsed_s), 60)
        clock = self.paint(f"{minutes:3d}:{seconds:02d}", Colour.DIM)
        self.line(f"{clock}  {what:<10} {self.paint(text, colour)}")

    def title(self, text: str) -> None:
        self.line("")
        self.line(self.paint(text, Colour.BOLD))

    def line(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns as wide as they need; everything but the columns whose head begins with ``<`` is set to the right."""
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

    def paint(self, text: str, colour: Colour | None) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if colour and self._colours else text
