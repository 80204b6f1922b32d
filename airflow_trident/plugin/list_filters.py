"""Which transactions a page of the list shows: filters, order and paging, which read as few records as possible. Pure.

A filter by status uses the lists of exceptions, and one by time uses that txids rise with time, so neither needs every
record. A search for a text needs every record; the next request continues where the last answer ended.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_trident.protocol.records import LedgerView, TxRecord
from airflow_trident.protocol.statuses import Status

PAGE = 50
"""Transactions on a page."""
LOOKED_THROUGH = 2_000
"""How many records one answer searches for a text; the next answer continues after them."""
_RANGE = re.compile(r"(\d{1,19}) to (\d{1,19})")
_AT_WORK = frozenset({Status.PROCESSING, Status.PROCESSED, Status.COMMITTING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """`statuses`: empty means all; `text`: in the run, DAG, owner or error, or a txid, or a range (``5 to 24``);
    `from_ms`, `to_ms`: when the transaction began; `after`: the page begins after this txid; `oldest_first`: the
    order."""

    statuses: frozenset[Status] = frozenset()
    text: str = ""
    from_ms: int | None = None
    to_ms: int | None = None
    after: int | None = None
    oldest_first: bool = False

    @property
    def reads_all(self) -> bool:
        """Must a record be read to know whether it belongs to the list?"""
        return bool(self.text) and self._range is None

    @property
    def _range(self) -> tuple[int, int] | None:
        found = _RANGE.fullmatch(self.text)
        return (int(found[1]), int(found[2])) if found else None

    def may_have(self, kept: Sequence[int], view: LedgerView, begun_ms: Callable[[int], int]) -> list[int]:
        """The txids that may be on the list, in its order, from the first one of the page.

        :param kept: txids that have a record, rising.
        :param begun_ms: gives the time when a txid began; called for few txids.
        """
        first = 0 if self.from_ms is None else bisect_left(kept, self.from_ms, key=begun_ms)
        last = len(kept) if self.to_ms is None else bisect_right(kept, self.to_ms, key=begun_ms)
        if self._range is not None:
            first, last = max(first, bisect_left(kept, self._range[0])), min(last, bisect_right(kept, self._range[1]))
        wanted = [txid for txid in kept[first:last] if self._may_be(txid, view)]
        if not self.oldest_first:
            wanted.reverse()
        if self.after is None:
            return wanted
        return [txid for txid in wanted if (txid > self.after if self.oldest_first else txid < self.after)]

    def is_sure_of(self, txid: int, view: LedgerView) -> bool:
        """Is a txid of :meth:`may_have` on the list, whatever its record says?"""
        return not self.reads_all and (not self.statuses or _may_have_status(txid, view) <= self.statuses)

    def _may_be(self, txid: int, view: LedgerView) -> bool:
        return not self.statuses or bool(self.statuses & _may_have_status(txid, view))

    def has(self, record: TxRecord, shown: str) -> bool:
        """:param shown: what the user sees of the record: nobody can search in what is hidden from them."""
        if self.statuses and record.status not in self.statuses:
            return False
        return not self.reads_all or self.text.casefold() in shown.casefold() or self.text == str(record.txid)


def _may_have_status(txid: int, view: LedgerView) -> frozenset[Status]:
    lists = view.exceptions
    if txid in lists.failed:
        return frozenset({Status.FAILED})
    if txid in lists.skipped:
        return frozenset({Status.SKIPPED})
    if txid > view.pointer.committed or txid in lists.late or txid in lists.replaying:
        return _AT_WORK
    return frozenset({Status.COMMITTED, Status.CLOSED})
