"""Which committed transactions have their asset event, and which task brings the others. Pure.

Airflow writes the events in the same step in which the task that brings them succeeds. So a task first announces here
which transactions it alone brings. The announcement counts once Airflow has the events, or had them; if the task ended
without success, they are due again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from airflow_trident.protocol.exceptional_txids import may_still_come
from airflow_trident.protocol.records import LedgerView, Owner
from airflow_trident.protocol.txids import NO_TXIDS, Txids

MOST_AT_ONCE = 500
"""The most events that one task brings: they travel in one request, and Airflow writes them one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """A task that brings the events of `txids` when it succeeds; `since_ms`: when it announced them."""

    txids: Txids
    by: Owner
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedEvents:
    """`<incarnation>/events`. `settled`: transactions that need no event any more: they have one, were committed before
    events were asked for, or were closed. `announced`: who brings the others, in order."""

    settled: Txids = NO_TXIDS
    announced: tuple[Announcement, ...] = ()

    @property
    def in_hands(self) -> Txids:
        return Txids.joined(part for announcement in self.announced for part in announcement.txids.ranges)

    def due(self, view: LedgerView) -> Txids:
        """The committed transactions that have no event and that no task brings."""
        return committed_txids(view) - self.settled - self.in_hands

    def after(self, delivered: Txids, given_up: Collection[Announcement]) -> AnnouncedEvents:
        """The list when Airflow has or had the events of `delivered`, without the announcements of ended tasks."""
        return replace(
            self,
            settled=self.settled | delivered,
            announced=tuple(announcement for announcement in self.announced if announcement not in given_up),
        )


def committed_txids(view: LedgerView) -> Txids:
    """All COMMITTED transactions. A closed one counts too once every state has forgotten it."""
    exceptions = view.exceptions
    return Txids.span(1, view.pointer.committed) - may_still_come(exceptions) - exceptions.closed


def first_of(txids: Txids, limit: int) -> Txids:
    """The lowest `limit` txids."""
    ranges: list[tuple[int, int]] = []
    for first, last in txids.ranges:
        if limit <= 0:
            break
        end = min(last, first + limit - 1)
        ranges.append((first, end))
        limit -= end - first + 1
    return Txids(tuple(ranges))
