"""How many transactions a drain processes together. Pure, but for what it remembers.

A group pays for what a pass costs beside its rows; when that is paid, more only makes a failure dearer and the first
commit later. So it grows while passes are short, and is bounded by what there is to read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from airflow_trident.protocol.records import TxRecord
from airflow_trident.runtime.drains.limits import MOST_IN_GROUP, DrainLimits

FIRST = 8
"""The first group; also the most of which nobody knows how much there is to read."""
GROUP_BYTES = 32 << 20
"""So much is read by one pass, if it is of more than one transaction."""
LONG_S = 5.0
"""A pass that takes longer is halved the next time."""
GROWS = 4
"""So many times as many the next time, at most."""


class GroupSize:
    """How many transactions the next group may have, which each pass corrects.

    :param together: may several be processed in one pass at all?
    """

    def __init__(self, limits: DrainLimits, *, together: bool) -> None:
        self._fixed = limits.group if isinstance(limits.group, int) else None
        self._most = MOST_IN_GROUP
        if limits.max_pending is not None and self._fixed is None:
            self._most = max(1, min(MOST_IN_GROUP, limits.max_pending // 2))  # one is processed while one commits
        if not together:
            self._fixed = 1
        self.together = self._fixed != 1
        self._now = self._fixed or min(FIRST, self._most)
        self._by_bytes = MOST_IN_GROUP
        self._passes = 0

    @property
    def now(self) -> int:
        return self._now if self._fixed is not None else max(1, min(self._now, self._by_bytes))

    def passed(self, members: int, took_s: float) -> None:
        """A pass of so many went well. The first one of a process takes longer than all others."""
        self._passes += 1
        if self._fixed is None and (self._passes > 1 or took_s < LONG_S):
            self._now = min(self._most, grown(self._now, members, took_s))

    def failed(self) -> None:
        if self._fixed is None:
            self._now = max(1, self._now // 2)

    def cut(self, records: Sequence[TxRecord], size_of: Callable[[TxRecord], int | None]) -> list[list[TxRecord]]:
        """Passes of at most `now` transactions, and of at most GROUP_BYTES where there are more than one.

        :param size_of: how much there is to read of one; None: nobody knows.
        """
        if self._fixed is not None:
            return [list(records[at : at + self._fixed]) for at in range(0, len(records), self._fixed)]
        sizes = [size_of(record) for record in records]
        known = [size for size in sizes if size is not None]
        self._by_bytes = FIRST if len(known) < len(sizes) else _room(known)
        passes: list[list[TxRecord]] = []
        total = 0
        for record, size in zip(records, sizes, strict=True):
            share = size if size is not None else GROUP_BYTES // FIRST
            if not passes or len(passes[-1]) >= self._now or total + share > GROUP_BYTES:
                passes.append([])
                total = 0
            passes[-1].append(record)
            total += share
        return passes


def grown(now: int, members: int, took_s: float) -> int:
    """The next size after a pass of `members` transactions: as many as would take LONG_S, within bounds; a pass that
    was not full says nothing about more, unless it was too long."""
    if took_s > LONG_S:
        return max(1, now // 2)
    if members < now:
        return now
    return max(now, min(now * GROWS, int(now * LONG_S / max(took_s, 0.001))))


def _room(sizes: Sequence[int]) -> int:
    """How many transactions of these sizes one pass takes."""
    total = sum(sizes)
    return MOST_IN_GROUP if total == 0 else max(1, GROUP_BYTES * len(sizes) // total)
