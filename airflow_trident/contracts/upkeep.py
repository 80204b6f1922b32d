"""What is done to a state from time to time, beside its transactions."""

from __future__ import annotations

from enum import StrEnum


class Upkeep(StrEnum):
    """Each runs in its own commit, which changes no answer; it may be killed, or run beside a committer. An open state
    has a method of that name, ``(*, progress) -> bool``: was there anything to do?"""

    FOLD = "fold"
    """Joins the parts that batches have left into one."""
    PUBLISH = "publish"
    """Writes a table with one row for each key, which others can read as it is."""
