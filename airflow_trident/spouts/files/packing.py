"""Unpacks files by what they are, not by what they are called: the first bytes of a packed file say how it is packed.

Every checksum and length of a format is checked, also those of the last of several members: a part of a packed file
is damage, never a shorter file.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

from airflow_trident.errors import DamagedInputError
from airflow_trident.spouts.files.contents import MENDED

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

HEAD_BYTES = 10
"""So many first bytes say how a file is packed."""
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Packing:
    """`marks`: with what files begin. `endings`: names of such files. `hadoop_ending`: by which Hadoop, and so Spark,
    knows it; empty: by none. `opened`: None: this package does not unpack it."""

    name: str
    marks: tuple[bytes, ...]
    endings: tuple[str, ...]
    hadoop_ending: str = ""
    opened: Callable[[BinaryIO], BinaryIO] | None = None


class _Decompressor(Protocol):
    """Of one member of a file, as in Python's `bz2` and `lzma`."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Members(io.RawIOBase):
    """The content of all members of a packed file. Python's own `BZ2File` and `LZMAFile` end without an error where
    what follows a member is no other one."""

    def __init__(self, file: BinaryIO, new: Callable[[], _Decompressor], padding: int) -> None:
        """:param padding: so many zero bytes may stand between members, and any multiple of that."""
        self._file, self._new, self._padding = file, new, padding
        self._member: _Decompressor | None = None
        self._waiting = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        while True:
            if self._member is None and not self._begin():
                return 0
            assert self._member is not None
            data, self._waiting = self._waiting, b""
            if not data and self._member.needs_input:
                data = self._file.read(_BLOCK_BYTES)
                if not data:
                    raise EOFError("the file ends inside its packed content")
            content = self._member.decompress(data, len(view))
            if self._member.eof:
                self._waiting, self._member = self._member.unused_data, None
            if content:
                view[: len(content)] = content
                return len(content)

    def _begin(self) -> bool:
        """Is there another member?"""
        zeros = 0
        while True:
            self._waiting = self._waiting or self._file.read(_BLOCK_BYTES)
            plain = self._waiting.lstrip(b"\0") if self._padding else self._waiting
            zeros += len(self._waiting) - len(plain)
            if plain or not self._waiting:
                break
            self._waiting = b""
        if zeros and zeros % self._padding:
            raise EOFError("zero bytes of another number than the format allows follow its packed content")
        self._waiting = plain
        if plain:
            self._member = self._new()
        return bool(plain)


def _members(new: Callable[[], Any], padding: int = 0) -> Callable[[BinaryIO], BinaryIO]:
    return lambda file: cast("BinaryIO", io.BufferedReader(_Members(file, new, padding), _BLOCK_BYTES))


def _gzip(file: BinaryIO) -> BinaryIO:
    return cast("BinaryIO", gzip.GzipFile(fileobj=file, mode="rb"))


def _zstd(file: BinaryIO) -> BinaryIO:
    import pyarrow as pa

    return cast("BinaryIO", pa.CompressedInputStream(pa.PythonFile(_Unclosed(file), mode="r"), "zstd"))


class _Unclosed(io.RawIOBase):
    """A file that stays open when its reader is closed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)


PACKINGS = (
    Packing("gzip", (b"\x1f\x8b",), (".gz", ".gzip"), ".gz", _gzip),
    Packing("zstd", (b"\x28\xb5\x2f\xfd", *(bytes([n, 0x2A, 0x4D, 0x18]) for n in range(0x50, 0x60))),
            (".zst", ".zstd"), ".zst", _zstd),
    Packing("bzip2", tuple(b"BZh%d" % n + mark for n in range(1, 10) for mark in (b"1AY&SY", b"\x17rE8P\x90")),
            (".bz2",), ".bz2", _members(bz2.BZ2Decompressor)),
    Packing("xz", (b"\xfd7zXZ\0",), (".xz",), "", _members(lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), 4)),
    Packing("zip", (b"PK\x03\x04", b"PK\x05\x06"), (".zip",)),
    Packing("lz4", (b"\x04\x22\x4d\x18",), (".lz4",)),
    Packing("snappy", (b"\xff\x06\x00\x00sNaPpY",), (".snappy", ".sz")),
    Packing("7-Zip", (b"7z\xbc\xaf\x27\x1c",), (".7z",)),
    Packing("compress", (b"\x1f\x9d",), (".Z",)),
    Packing("lzip", (b"LZIP\x01",), (".lz",)),
    Packing("lzop", (b"\x89LZO\0\r\n\x1a\n",), (".lzo",)),
)  # fmt: skip


def packing_of(head: bytes) -> Packing | None:
    """How a file is packed that begins with these bytes; None: it is not."""
    return next((packing for packing in PACKINGS if head.startswith(packing.marks)), None)


def packing_at(file: BinaryIO) -> Packing | None:
    """:func:`packing_of` of an open file, which is at its begin afterwards."""
    file.seek(0)
    head = file.read(HEAD_BYTES)
    file.seek(0)
    return packing_of(head)


def named_packing(path: str) -> Packing | None:
    """How a file of this name says that it is packed."""
    name = path.rpartition("/")[2]
    return next(
        (packing for packing in PACKINGS if name.lower().endswith(tuple(map(str.lower, packing.endings)))), None
    )


@contextmanager
def unpacked(path: str, file: BinaryIO) -> Iterator[BinaryIO]:
    """The content of a file from its begin. Of a packed file it can only be read on. The file stays open.

    :raises DamagedInputError: it is packed in a way that is not unpacked here, or is not packed as its name says.
    """
    packing, named = packing_at(file), named_packing(path)
    if packing is not None and packing.opened is not None:
        with packing.opened(file) as content:
            yield content
        return
    if packing is not None:
        raise DamagedInputError(
            f"the file {path!r} cannot be read: it is packed by {packing.name}, which FileSpout does not unpack",
            f"Pack it by {', '.join(each.name for each in PACKINGS if each.opened)}, or not at all. {MENDED}",
        )
    if named is not None and file.read(1):
        raise DamagedInputError(
            f"the file {path!r} cannot be read: its name says {named.name}, and its content is not packed so",
            f"Something may have unpacked it on its way, or damaged it. {MENDED}",
        )
    file.seek(0)
    yield file
