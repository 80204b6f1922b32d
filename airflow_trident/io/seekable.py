"""Files whose content is elsewhere and is fetched by ranges."""

from __future__ import annotations

import io


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
