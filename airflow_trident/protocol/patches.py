"""A long text as what it has of an earlier one and what is new in it, so that writing it costs what is new. Pure.

A patch is a JSON list: a text stands for itself, and ``[from, length]`` for a part of the earlier text. Whoever applies
one holds the result against a digest; so what finds the parts need not find all of them.
"""

from __future__ import annotations

from airflow_trident.protocol.durable_format import is_whole, json_bytes

BLOCK = 64
"""Parts are found by blocks of so many bytes of the earlier text."""
PART_BYTES = 16
"""What a part takes in the patch, about."""


def patch_of(earlier: bytes, text: bytes, *, most: int) -> bytes | None:
    """The patch that makes `text`, which is ASCII, of `earlier`; None: it would take more than about `most` bytes."""
    blocks = {earlier[at : at + BLOCK]: at for at in reversed(range(0, len(earlier) - BLOCK + 1, BLOCK))}
    parts: list[object] = []
    at = begin = spent = 0
    while at + BLOCK <= len(text):
        found = blocks.get(text[at : at + BLOCK])
        if found is None:
            at += 1
            if spent + at - begin > most:
                return None
            continue
        # A block begins anywhere in what is alike.
        before = _alike_before(earlier[max(0, found - BLOCK) : found], text[max(begin, at - BLOCK) : at])
        length = BLOCK + _alike(earlier[found + BLOCK :], text[at + BLOCK :])
        parts += [text[begin : at - before].decode("ascii"), [found - before, before + length]]
        spent += at - before - begin + PART_BYTES
        at = begin = at + length
    parts.append(text[begin:].decode("ascii"))
    patch = json_bytes([part for part in parts if part], "a patch")
    return None if len(patch) > most else patch


def patched(earlier: bytes, patch: object) -> bytes:
    """
    :param patch: parsed.
    :raises ValueError: it is none.
    """
    if not isinstance(patch, list):
        raise ValueError("it is no list")
    return b"".join(_part(earlier, part) for part in patch)


def _part(earlier: bytes, part: object) -> bytes:
    if isinstance(part, str):
        return part.encode("ascii", "replace")
    if isinstance(part, list) and len(part) == 2 and all(is_whole(one) and one >= 0 for one in part):
        at, length = part
        return earlier[at : at + length]
    raise ValueError(f"it has the part {part!r}")


def _alike(one: bytes, other: bytes) -> int:
    """So many bytes do both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _alike_before(one: bytes, other: bytes) -> int:
    """So many bytes do both end with."""
    return _alike(one[::-1], other[::-1])
