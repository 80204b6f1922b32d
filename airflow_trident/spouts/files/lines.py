r"""Splits text into lines, fast and exactly: lines end only with ``\n`` or ``\r\n``; the last one needs no end.

Bytes that are not UTF-8 are an error, or become U+FFFD if that is wanted. All other bytes belong to their line, also
NUL and a byte order mark.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from airflow_trident.io.hadoop import is_hidden
from airflow_trident.spouts.files.packing import HEAD_BYTES, packing_of

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 4 << 20
MAX_LINE_BYTES = 1 << 30
"""Longer lines may not fit Arrow's 32-bit offsets."""


_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./+@,-]*")
_PLAIN_ENDINGS = frozenset({"", ".txt", ".text", ".log"})


class LineTooLongError(ValueError):
    """A line has more than MAX_LINE_BYTES."""


def line_start(file: BinaryIO, offset: int, size: int) -> int:
    """The start of the first line that begins at `offset` or later; `size` if there is none.

    If a file is cut at such places, every line is in exactly one part, wherever `offset` is.
    """
    if offset <= 0:
        return 0
    at = offset - 1
    file.seek(at)
    while at < size:
        block = file.read(min(BLOCK_BYTES, size - at))
        if not block:
            break
        end = block.find(b"\n")
        if end >= 0:
            return at + end + 1
        at += len(block)
    return size


@dataclass(frozen=True, slots=True)
class PlainText:
    r"""How many lines a file has, and whether it has a ``\r`` anywhere."""

    lines: int
    returns: bool


def plain_text(path: str) -> PlainText | None:
    r"""The file's lines and returns, if Spark (Hadoop's line reader) reads the same lines from it; else None.

    Spark and Hadoop differ in six ways: they expand patterns in names, pass over hidden names, unpack files by their
    endings, drop a byte order mark, do not tell whether a last ``\r`` belongs to a line, and accept bytes that are
    not UTF-8. This function reads the whole file, one or two seconds for a gigabyte. In the JVM that took a tenth of a
    word count.
    """
    if not _PLAIN_PATH.fullmatch(path) or is_hidden(path) or os.path.splitext(path)[1] not in _PLAIN_ENDINGS:
        return None
    lines, returns, last = 0, False, b""
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
            if head.startswith(b"\xef\xbb\xbf") or packing_of(head):
                return None
            file.seek(0)
            for chunk in whole_lines(file):
                if _valid(chunk) is not chunk:
                    return None
                lines += chunk.count(b"\n")
                returns = returns or b"\r" in chunk
                last = chunk[-1:]
    except (OSError, LineTooLongError):
        return None  # the reader will raise the error
    if last in (b"", b"\r"):
        return None
    return PlainText(lines + (last != b"\n"), returns)


def whole_lines(file: BinaryIO, limit_bytes: int | None = None) -> Iterator[bytes]:
    """The rest of `file`, at most `limit_bytes`, in pieces of some MB that end where a line ends.

    :raises LineTooLongError: a line has more than MAX_LINE_BYTES.
    """
    pieces: list[bytes] = []
    pending_bytes = 0
    remaining_bytes = limit_bytes
    while remaining_bytes is None or remaining_bytes > 0:
        block = file.read(BLOCK_BYTES if remaining_bytes is None else min(BLOCK_BYTES, remaining_bytes))
        if not block:
            break
        remaining_bytes = None if remaining_bytes is None else remaining_bytes - len(block)
        cut = block.rfind(b"\n") + 1
        if cut:
            yield b"".join([*pieces, block[:cut]])
            pieces, pending_bytes = [], 0
        if cut < len(block):
            pieces.append(block[cut:])
            pending_bytes += len(block) - cut
        if pending_bytes > MAX_LINE_BYTES:
            raise LineTooLongError(f"a line is longer than {MAX_LINE_BYTES} bytes")
    if pieces:
        yield b"".join(pieces)


def lines_of(chunk: bytes, *, strict: bool = False) -> pa.StringArray:
    """The lines of a chunk of whole lines, without their ends. No loop over lines: all ends are removed at once.

    :param strict: bytes that are not UTF-8 are an error; otherwise they become U+FFFD.
    :raises UnicodeDecodeError: `strict`, and there are such bytes.
    """
    import numpy as np
    import pyarrow as pa

    data = np.frombuffer(_valid(chunk, strict=strict), dtype=np.uint8)
    newline = data == 10
    ends = np.flatnonzero(newline)
    kept = ~newline
    dropped = np.arange(len(ends))
    returns = (data[:-1] == 13) & newline[1:]
    if returns.any():
        kept[:-1] &= ~returns
        dropped += np.searchsorted(np.flatnonzero(returns), ends)
    lengths = ends - dropped
    if len(data) and data[-1] != 10:
        lengths = np.append(lengths, np.count_nonzero(kept))
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    offsets[1:] = lengths
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(data[kept]))


def _valid(chunk: bytes, *, strict: bool = False) -> bytes:
    """The same lines as valid UTF-8. No line end is part of a broken character, so the lines stay the same."""
    if chunk.isascii():
        return chunk
    try:
        chunk.decode()
    except UnicodeDecodeError:
        if strict:
            raise
        return chunk.decode(errors="replace").encode()
    return chunk
