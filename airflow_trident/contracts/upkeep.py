"""What is done to a state from time to time, beside its transactions."""

from __future__ import annotations

from enum import StrEnum


class Upkeep(StrEnum):
    """In a commit of its own that changes no answer; it may be killed, or run beside a committer. An open state has a
    method of that name, ``(*, progress) -> bool``: was there anything to do?"""

    COMPACT = "compact"
    """Rows that count no more are left out, and small files become larger ones."""
    FOLD = "fold"
    """The parts that batches have left become one."""
    PUBLISH = "publish"
    """A table with one row of each key is written, which others read as it is."""
