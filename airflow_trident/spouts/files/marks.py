"""Short texts that stand for names and contents of files, so that the list of read files stays small. Pure."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache

from airflow_trident.spouts.files.contents import is_etag

MARK_LENGTH = 4
"""Letters in the mark of a content, or of a file's size and time: three bytes."""
NAME_LENGTH, FOLDER_LENGTH = 16, 12


def entries_of(text: str) -> dict[str, str]:
    """Name -> mark, from a text in which each name is followed by its mark."""
    length = NAME_LENGTH + MARK_LENGTH
    entries = [text[at : at + length] for at in range(0, len(text), length)]
    return {entry[:NAME_LENGTH]: entry[NAME_LENGTH:] for entry in entries}


@lru_cache(maxsize=1 << 16)
def name_mark(path: str) -> str:
    return _hash(path, 12)


@lru_cache(maxsize=1 << 16)
def number_of(path: str) -> int:
    return number_of_mark(name_mark(path))


def number_of_mark(name: str) -> int:
    return int.from_bytes(base64.urlsafe_b64decode(name), "big")


@lru_cache(maxsize=1 << 10)
def folder_mark(path: str) -> str:
    return _hash("folder " + path, 9)


@lru_cache(maxsize=1 << 16)
def stamp_of(size: int, mtime_ns: int, etag: str) -> str:
    """With the ETag, because the time of an object may have only whole seconds."""
    return _hash(f"{size} {mtime_ns}{etag}", 3)


def object_mark(size: int, etag: str) -> str:
    """The mark of an object by size and ETag, independent of its time."""
    return _hash(f"object {size} {etag}", 3)


def content_mark(digest: str) -> str:
    """Three bytes of the digest. ETags begin alike, so they are hashed first."""
    return _hash(digest, 3) if is_etag(digest) else digest[:MARK_LENGTH]


def _hash(text: str, size: int) -> str:
    digest = hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=size).digest()
    return base64.urlsafe_b64encode(digest).decode()
