"""The milestones of a transaction, for a log, a measurement, or a test that kills the process.

Only listeners of :func:`tell` and :func:`told` are called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TypeAlias


class Milestone(StrEnum):
    """What has just been done. A kill right after any of them changes nothing about the final state (P9)."""

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


Listener: TypeAlias = Callable[[Milestone, int], None]
"""Called with the milestone and the txid, in the thread that reached it."""

_listeners: list[Listener] = []


def reached(milestone: Milestone, txid: int) -> None:
    """Calls all listeners."""
    for listener in _listeners:
        listener(milestone, txid)


def tell(listener: Listener) -> None:
    """Calls the listener from now on, in this process and its forks."""
    _listeners.append(listener)


@contextmanager
def told(listener: Listener) -> Iterator[None]:
    """Calls the listener within the block."""
    tell(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
