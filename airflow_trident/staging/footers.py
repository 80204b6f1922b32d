"""The footers of a staged batch's files, as one text in its manifest: mostly they differ in a few numbers only."""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections.abc import Sequence

MOST_BYTES = 32 << 20
"""Footers of more than this together are left out: whoever needs them reads the files' own."""
MOST_BYTES_OF_A_FILE = 16 << 10
"""A worker does not hand on a larger footer. One of 1,000 columns has 200 KB, and the driver has those of all files."""
_LENGTH = struct.Struct(">I")


def handed_on(footer: bytes) -> bytes:
    """The footer; empty if it is too large for the driver, so that the commit reads it from the file."""
    return footer if len(footer) <= MOST_BYTES_OF_A_FILE else b""


def pack_footers(footers: Sequence[bytes]) -> str:
    """:param footers: of all files, in order; an empty one is not known.
    :returns: "" if none is known, or they are too large.
    """
    if not any(footers) or sum(map(len, footers)) > MOST_BYTES:
        return ""
    packed = zlib.compress(b"".join(part for footer in footers for part in (_LENGTH.pack(len(footer)), footer)))
    return base64.b64encode(packed).decode()


def unpack_footers(packed: object, count: int) -> list[bytes] | None:
    """:param count: of the files.
    :returns: None if it is damaged.
    """
    try:
        reading = zlib.decompressobj()
        content = reading.decompress(base64.b64decode(str(packed), validate=True), MOST_BYTES + count * _LENGTH.size)
    except (binascii.Error, zlib.error, ValueError):
        return None
    footers, at = list[bytes](), 0
    while len(footers) < count and at + _LENGTH.size <= len(content):
        (size,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size + size
        footers.append(content[at - size : at])
    return footers if len(footers) == count and at == len(content) and reading.eof else None
