"""Files whose content is elsewhere and is fetched by ranges."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any


class Seekable(io.RawIOBase):
    """A file for reading; a subclass gives `read`, and moves `at` by what it returned.

    :param size: of the content, in bytes.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """A place behind the end is none: reading gives nothing there."""
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        self.at = max(0, begin + offset)
        return self.at

    def until(self, size: int) -> int:
        """The end of a `read(size)` from here: below 0, that of the content."""
        return self.size if size < 0 else min(self.size, self.at + size)


class RangedFile(Seekable):
    """Fetches ranges, at least `ahead_bytes` at a time, and keeps the last one: a smaller file is one request.

    :param fetch: gives the bytes from a place to another one.
    """

    def __init__(self, size: int, fetch: Callable[[int, int], bytes], ahead_bytes: int) -> None:
        super().__init__(size)
        self._fetch, self._ahead_bytes = fetch, ahead_bytes
        self._held_from, self._held = 0, b""

    def readinto(self, buffer: Any) -> int:
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def readall(self) -> bytes:
        return self.read(-1)

    def read(self, size: int = -1) -> bytes:
        """Returns `size` bytes, or fewer only at the end; below 0: all the rest."""
        end = self.until(size)
        if end <= self.at:
            return b""
        if not self._held_from <= self.at < end <= self._held_from + len(self._held):
            begin = 0 if self.size <= self._ahead_bytes else self.at
            self._held = self._fetch(begin, min(self.size, max(end, begin + self._ahead_bytes)))
            self._held_from = begin
        begin = self.at - self._held_from
        content = self._held[begin : end - self._held_from]
        self.at += len(content)
        return content
