"""Named crash points: where a test or a demonstration lets the process be killed for real.

Off unless the environment variable ``AIRFLOW_TRIDENT_CRASH`` is set to ``<point>@<txid>:<file>``, several separated by
commas. A point is used once: whoever creates the file first dies there by SIGKILL; where the file exists the process
goes on. Nothing is caught, flushed or cleaned up, as in a real kill.
"""

from __future__ import annotations

import os
import signal
from enum import StrEnum

VARIABLE = "AIRFLOW_TRIDENT_CRASH"


class CrashPoint(StrEnum):
    """The steps after which a kill must change nothing about the final state (P9)."""

    BEGUN = "begun"
    ATTEMPT_STARTED = "attempt-started"
    STAGED = "staged"
    PUBLISHED = "published"
    PROCESSED = "processed"
    GATE_OPENED = "gate-opened"
    APPLIED = "applied"
    NEW_VALUES = "new-values"
    APPLIED_DOWNSTREAM = "applied-downstream"
    COMMITTED = "committed"


def crash_point(point: CrashPoint, txid: int) -> None:
    """Die here if the environment says so and nobody has died here yet.

    :raises ValueError: the environment variable names no such point.
    """
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    for one in wanted.split(","):
        where, _, marker = one.strip().partition(":")
        name, _, number = where.partition("@")
        if CrashPoint(name) is not point or int(number) != txid:
            continue
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            continue
        os.kill(os.getpid(), signal.SIGKILL)
