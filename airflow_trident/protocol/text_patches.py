"""Writes a long text as a patch of an earlier one, so that only what is new costs something. Pure.

A patch is a JSON list of texts and of ``[from, length]`` pairs, each a part of the earlier text. The search need not
find every common part. Readers check the result against a digest.
"""

from __future__ import annotations

from airflow_trident.protocol.durable_format import is_whole, json_bytes

BLOCK = 64
"""Common parts are found by blocks of this many bytes of the earlier text."""
PART_BYTES = 16
"""About the size of a part in the patch."""


def patch_of(earlier: bytes, text: bytes, *, most: int) -> bytes | None:
    """The patch that turns `earlier` into `text` (ASCII); None if it would take more than about `most` bytes."""
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
        # A common part may begin before its block.
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
    :param patch: parsed JSON.
    :raises ValueError: it is no patch.
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
    """How many bytes both have in common at the start."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _alike_before(one: bytes, other: bytes) -> int:
    """How many bytes both have in common at the end."""
    return _alike(one[::-1], other[::-1])
