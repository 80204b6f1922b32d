"""Metadata that is too large for its transaction's record: packed into chunks beside it. Pure.

Metadata that lists what was read before may be long, and repeats most of the previous transaction's. So it may be
written once, as a *base*; each transaction then adds only a patch against the base.

Writes a long text as a patch of an earlier one, so that only what is new costs something. Pure.

A patch is a JSON list of texts and of ``[from, length]`` pairs, each a part of the earlier text. The search need not
find every common part. Readers check the result against a digest.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_trident.protocol.durable_format import RECORDS, is_whole, json_bytes, require, short
from airflow_trident.protocol.records import TxRecord
from airflow_trident.types import Json

BLOCK = 64
"""Common parts are found by blocks of this many bytes of the earlier text."""
PART_BYTES = 16
"""About the size of a part in the patch."""


def patch_of(earlier: bytes, text: bytes, *, limit: int) -> bytes | None:
    """The patch that turns `earlier` into `text` (ASCII); None if it would take more than about `limit` bytes."""
    blocks = {earlier[at : at + BLOCK]: at for at in reversed(range(0, len(earlier) - BLOCK + 1, BLOCK))}
    parts: list[object] = []
    at = begin = spent = 0
    while at + BLOCK <= len(text):
        match = blocks.get(text[at : at + BLOCK])
        if match is None:
            at += 1
            if spent + at - begin > limit:
                return None
            continue
        # A common part may begin before its block.
        before = _alike_before(earlier[max(0, match - BLOCK) : match], text[max(begin, at - BLOCK) : at])
        length = BLOCK + _alike(earlier[match + BLOCK :], text[at + BLOCK :])
        parts += [text[begin : at - before].decode("ascii"), [match - before, before + length]]
        spent += at - before - begin + PART_BYTES
        at = begin = at + length
    parts.append(text[begin:].decode("ascii"))
    patch = json_bytes([part for part in parts if part], "a patch")
    return None if len(patch) > limit else patch


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
    if isinstance(part, list) and len(part) == 2 and all(is_whole(number) and number >= 0 for number in part):
        at, length = part
        return earlier[at : at + length]
    raise ValueError(f"it has the part {part!r}")


def _alike(left_bytes: bytes, right_bytes: bytes) -> int:
    """How many bytes both have in common at the start."""
    low, high = 0, min(len(left_bytes), len(right_bytes))
    while low < high:
        middle = (low + high + 1) // 2
        if left_bytes[low:middle] == right_bytes[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _alike_before(left_bytes: bytes, right_bytes: bytes) -> int:
    """How many bytes both have in common at the end."""
    return _alike(left_bytes[::-1], right_bytes[::-1])


INLINE_BYTES = 8 * 1024
"""Larger metadata goes into chunks beside the record, so that status changes stay small. The limit is not lower because
readers of chunks pay one more round trip."""
CHUNK_BYTES = 256 * 1024
BASE = "base-"
"""Prefix of the names of a base's chunks."""
COMPRESSED_BYTES = 64 * 1024
"""Below this, compressing costs more CPU time than it saves in all steps of the transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseRef:
    """Large metadata that later transactions share. `txid`: the transaction that wrote it; the rest as in `BlobRef`."""

    txid: int
    sha256: str
    bytes: int
    chunks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRef:
    """Large metadata outside its record: `sha256` of the plain JSON, its size in bytes, and the number of its chunks.

    With a `base` the chunks hold a patch against it (:mod:`airflow_trident.protocol.metadata`); without chunks the
    metadata equals the base. `patched`: bytes of all patches since the base was written, including this one.
    """

    sha256: str
    bytes: int
    chunks: int
    base: BaseRef | None = None
    patched: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What a new transaction's metadata may share. `plain`: JSON of the base, or of the transaction before if there is
    no base yet. `patched`: as in the BlobRef before."""

    plain: bytes
    base: BaseRef | None = None
    patched: int = 0


Positions = tuple[dict[str, Json], dict[str, Json]]
"""`metadata` and `carried` of a transaction."""
BlobReader = Callable[[BlobRef], Positions]
"""Reads large metadata: from the chunks, with :func:`unpack_metadata`, or from memory."""


def plain_metadata(record: TxRecord) -> bytes:
    """The JSON that is kept apart if it is large."""
    body = {"metadata": record.metadata, "carried": record.carried}
    return json_bytes(body, f"metadata of transaction {record.txid}")


def pack_metadata(record: TxRecord, *, chunk_bytes: int = CHUNK_BYTES) -> tuple[BlobRef, list[bytes]] | None:
    """Packs metadata that is too large for the record, in chunks; None if it fits."""
    plain = plain_metadata(record)
    if len(plain) <= INLINE_BYTES:
        return None
    chunks = _chunks(plain, chunk_bytes)
    return BlobRef(sha256=hashlib.sha256(plain).hexdigest(), bytes=len(plain), chunks=len(chunks)), chunks


def share_metadata(
    record: TxRecord, earlier: Earlier, *, chunk_bytes: int = CHUNK_BYTES
) -> tuple[BlobRef, list[bytes]] | None:
    """As :func:`pack_metadata`, for metadata that is mostly an earlier transaction's. Without chunks in the reference,
    the chunks returned are the base's. None: the metadata fits into the record, or is too different.

    Once all patches together are as large as the base, a new base is written. So bases cost no more than patches.
    """
    plain = plain_metadata(record)
    patch = None if len(plain) <= INLINE_BYTES else patch_of(earlier.plain, plain, limit=len(plain) // 2)
    if patch is None:
        return None
    sha256, base, chunks = hashlib.sha256(plain).hexdigest(), earlier.base, _chunks(patch, chunk_bytes)
    spent = earlier.patched + sum(map(len, chunks))
    if base is not None and spent <= base.bytes:
        return BlobRef(sha256=sha256, bytes=len(plain), chunks=len(chunks), base=base, patched=spent), chunks
    chunks = _chunks(plain, chunk_bytes)
    base = BaseRef(txid=record.txid, sha256=sha256, bytes=len(plain), chunks=len(chunks))
    return BlobRef(sha256=sha256, bytes=len(plain), chunks=0, base=base), chunks


def _chunks(plain: bytes, chunk_bytes: int) -> list[bytes]:
    packed = zlib.compress(plain, level=-1 if len(plain) > COMPRESSED_BYTES else 0)
    return [packed[at : at + chunk_bytes] for at in range(0, len(packed), chunk_bytes)]


def unpack_metadata(ref: BlobRef, packed: bytes, path: str, base: bytes = b"") -> Positions:
    """Unpacks what :func:`pack_metadata` or :func:`share_metadata` packed.

    :param packed: the joined chunks.
    :param path: of the transaction's record, for error texts.
    :param base: the plain JSON of the reference's base, if it has one.
    :raises CorruptRecordError: the chunks are damaged, or not those that were written.
    """
    subject = f"{path} metadata"
    plain = unpacked(packed, path) if ref.chunks else base
    if ref.base is not None and ref.chunks:
        try:
            plain = patched(base, RECORDS.parsed(plain, subject))
        except ValueError as error:
            raise RECORDS.damaged(subject, f"its patch is damaged: {error}") from error
    if hashlib.sha256(plain).hexdigest() != ref.sha256:
        raise RECORDS.damaged(subject, "its chunks are not those that were written (sha256 differs)")
    return positions_in(RECORDS.mapping(RECORDS.parsed(plain, subject), subject), subject)


def unpacked(packed: bytes, path: str) -> bytes:
    """The plain JSON of joined chunks."""
    try:
        return zlib.decompress(packed)
    except zlib.error as error:
        raise RECORDS.damaged(f"{path} metadata", f"its chunks cannot be decompressed ({error})") from error


def chunk_name(txid: int, ref: BlobRef | BaseRef, index: int) -> str:
    """Name of a chunk of metadata below `m/`; the digest in it keeps chunks immutable. A base's chunks outlive the
    transaction that wrote them."""
    base = BASE if isinstance(ref, BaseRef) else ""
    return f"{base}{txid:019d}-{ref.sha256[:8]}-{index}"


def positions_in(body: Mapping[str, Any], path: str) -> Positions:
    positions: list[dict[str, Json]] = []
    for name in ("metadata", "carried"):
        require(name in body, path, f"the field {name!r} is missing")
        require(isinstance(body[name], dict), path, f"{name!r} is {short(body[name])} and not an object")
        positions.append(body[name])
    return positions[0], positions[1]
