"""Sets of transactions as ranges. Pure. The cost depends on the number of ranges, not of txids."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

Ranges = tuple[tuple[int, int], ...]
SHOWN = 20
"""The most ranges that a text names; nobody could use more."""


@dataclass(frozen=True, slots=True)
class Txids:
    """A set of txids. `ranges`: both ends included, rising, not touching each other."""

    ranges: Ranges = ()

    @classmethod
    def of(cls, *txids: int) -> Txids:
        return cls.joined((txid, txid) for txid in txids)

    @classmethod
    def span(cls, first: int, last: int) -> Txids:
        """All from `first` to `last`; none if `last` is lower."""
        return cls(((first, last),) if first <= last else ())

    @classmethod
    def joined(cls, ranges: Iterable[tuple[int, int]]) -> Txids:
        """From ranges in any order; they may overlap."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        return cls(tuple(merged))

    def __contains__(self, txid: object) -> bool:
        if not isinstance(txid, int):
            return False
        place = bisect_right(self.ranges, txid, key=lambda pair: pair[0])
        return place > 0 and txid <= self.ranges[place - 1][1]

    def __iter__(self) -> Iterator[int]:
        return (txid for first, last in self.ranges for txid in range(first, last + 1))

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __or__(self, other: Txids) -> Txids:
        return Txids.joined((*self.ranges, *other.ranges)) if other.ranges else self

    def __sub__(self, other: Txids) -> Txids:
        if not other.ranges or not self.ranges:
            return self
        remaining: list[tuple[int, int]] = []
        goes, place = other.ranges, 0
        for first, last in self.ranges:
            while place < len(goes) and goes[place][1] < first:
                place += 1
            at, begin = place, first
            while at < len(goes) and goes[at][0] <= last:
                if begin < goes[at][0]:
                    remaining.append((begin, goes[at][0] - 1))
                begin = goes[at][1] + 1
                at += 1
            if begin <= last:
                remaining.append((begin, last))
        return Txids(tuple(remaining))

    def __and__(self, other: Txids) -> Txids:
        return self - (self - other)

    def __str__(self) -> str:
        """``3, 5 to 9``."""
        texts = [str(first) if first == last else f"{first} to {last}" for first, last in self.ranges[:SHOWN]]
        more = len(self.ranges) - SHOWN
        return ", ".join(texts) + (f" and {more} more ranges" if more > 0 else "")

    @property
    def lowest(self) -> int | None:
        return self.ranges[0][0] if self.ranges else None

    @property
    def highest(self) -> int | None:
        return self.ranges[-1][1] if self.ranges else None

    def run_up_from(self, txid: int) -> int:
        """The last of the txids that follow `txid` without a gap; `txid` itself if the next one is not in the set."""
        place = bisect_right(self.ranges, txid + 1, key=lambda pair: pair[0])
        return max(txid, self.ranges[place - 1][1]) if place else txid


NO_TXIDS = Txids()
