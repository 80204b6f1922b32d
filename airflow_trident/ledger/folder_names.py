"""The names below a node, in order, as last seen. There may be very many, so a step's work must not grow with them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping


class FolderNames(Collection[str]):
    """Sorted once, when first asked for. A change then only moves the names behind it, which copies memory."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._seen: Iterable[str] = names
        self._in_order: list[str] | None = None

    @property
    def _names(self) -> list[str]:
        if self._in_order is None:
            self._in_order = sorted(self._seen)
            self._seen = ()
        return self._in_order

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._place(name) is not None

    def upto(self, name: str) -> int:
        """How many names are at or before `name`."""
        return bisect_right(self._names, name)

    def starting_with(self, prefix: str) -> Iterator[str]:
        for place in range(bisect_left(self._names, prefix), len(self._names)):
            if not self._names[place].startswith(prefix):
                return
            yield self._names[place]

    def differing(self, written: Mapping[str, bool]) -> dict[str, bool]:
        """The entries of `written` that are news here: name -> whether it exists."""
        return {name: is_there for name, is_there in written.items() if is_there != (name in self)}

    def after(self, written: Mapping[str, bool]) -> FolderNames:
        """A copy with these changes; itself if there are none."""
        news = self.differing(written)
        if not news:
            return self
        copied = FolderNames(self._names)
        copied.change(news)
        return copied

    def change(self, written: Mapping[str, bool]) -> None:
        news = self.differing(written)
        for name in sorted(name for name, is_there in news.items() if is_there):
            self._names.insert(bisect_left(self._names, name), name)
        gone = sorted(bisect_left(self._names, name) for name, is_there in news.items() if not is_there)
        while gone:  # those that follow on each other go at once: what stands behind them is moved once
            last = gone.pop()
            first = last
            while gone and gone[-1] == first - 1:
                first = gone.pop()
            del self._names[first : last + 1]

    def _place(self, name: str) -> int | None:
        place = bisect_left(self._names, name)
        return place if place < len(self._names) and self._names[place] == name else None
