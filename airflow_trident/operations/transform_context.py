"""What a DataFrame function may know of the transaction that it works for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformContext:
    """Given to a transform that has a parameter `context`.

    `time_ms`: of the transaction, milliseconds since 1970: when its run was due, or it was begun; the same in every
    attempt, as `current_timestamp()` is not.
    """

    topology: str
    txid: int
    attempt: int
    time_ms: int

    @property
    def time(self) -> datetime:
        """`time_ms` in UTC, for a literal column."""
        return datetime.fromtimestamp(self.time_ms / 1000, UTC)
