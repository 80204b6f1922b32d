"""The telemetry of a node: how many tuples it processed, and how long that took (qtopology: Telemetry)."""

from __future__ import annotations

import time
from typing import Any

TELEMETRY = "$telemetry"
"""The stream of figures that every node of qtopology has."""


class Telemetry:
    """The figures of one partition of an attempt.

    :param name: of the node.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0
        self._spent_s = 0.0

    def add(self, spent_s: float) -> None:
        """:param spent_s: time between sending the tuple and its acknowledgement."""
        self._count += 1
        self._spent_s += spent_s

    def message(self) -> dict[str, Any]:
        """In qtopology's format; times in milliseconds. `last` and `total` are equal: a process has one partition."""
        figures = {"avg": self._spent_s / self._count * 1000 if self._count else 0.0, "cnt": self._count}
        return {"last": figures, "name": self._name, "total": figures, "ts": time.time_ns() // 1_000_000}
