"""Metadata of transactions that are too large for their records: packed into chunks beside them. Pure.

What a transaction has to say about what was read before it may be long, and mostly what the one before it says. So it
may be written once, as a *base*, and for each transaction what makes its metadata of that.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_trident.protocol.durable_format import json_bytes, short
from airflow_trident.protocol.patches import patch_of, patched
from airflow_trident.protocol.record_format import RECORDS, require
from airflow_trident.protocol.records import TxRecord
from airflow_trident.types import Json

INLINE_BYTES = 8 * 1024
"""Larger metadata is kept in chunks beside the record, so that status changes stay small. Not less: reading chunks
costs others one more round trip."""
CHUNK_BYTES = 256 * 1024
BASE = "base-"
"""What the names of a base's chunks begin with."""
COMPRESSED_BYTES = 64 * 1024
"""Below this, compressing costs more processor time than all steps of the transaction save by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseRef:
    """Large metadata that later transactions share: as `BlobRef`, and the `txid` it was written with."""

    txid: int
    sha256: str
    bytes: int
    chunks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRef:
    """Large metadata outside of its record: `sha256` of the plain JSON, its size, and how many chunks hold it.

    With a `base` the chunks hold what makes it of that (:mod:`airflow_trident.protocol.patches`); it is the base itself
    if there are none. `patched`: bytes of all such chunks since the base was written, its own included.
    """

    sha256: str
    bytes: int
    chunks: int
    base: BaseRef | None = None
    patched: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What the metadata of a new transaction may share: `plain` JSON of a base, or, if nothing is shared yet, of the
    transaction before. `patched`: as of the BlobRef before."""

    plain: bytes
    base: BaseRef | None = None
    patched: int = 0


Positions = tuple[dict[str, Json], dict[str, Json]]
"""`metadata` and `carried` of a transaction."""
BlobReader = Callable[[BlobRef], Positions]
"""Gets large metadata: reads the chunks and gives them to :func:`unpack_metadata`, or remembers what that gave."""


def plain_metadata(record: TxRecord) -> bytes:
    """What is kept apart if it is large, as JSON."""
    body = {"metadata": record.metadata, "carried": record.carried}
    return json_bytes(body, f"metadata of transaction {record.txid}")


def pack_metadata(record: TxRecord, *, chunk_bytes: int = CHUNK_BYTES) -> tuple[BlobRef, list[bytes]] | None:
    """Metadata that is too large for the record, packed and cut; None if it fits."""
    plain = plain_metadata(record)
    if len(plain) <= INLINE_BYTES:
        return None
    chunks = _chunks(plain, chunk_bytes)
    return BlobRef(sha256=hashlib.sha256(plain).hexdigest(), bytes=len(plain), chunks=len(chunks)), chunks


def share_metadata(
    record: TxRecord, earlier: Earlier, *, chunk_bytes: int = CHUNK_BYTES
) -> tuple[BlobRef, list[bytes]] | None:
    """As :func:`pack_metadata`, of what is mostly what an earlier transaction has: the chunks of the base if the
    reference has none itself, else its own; None if it is not so, or fits into the record.

    All patches together take as much as the base: then a new base is written. So the base costs no more than they do.
    """
    plain = plain_metadata(record)
    patch = None if len(plain) <= INLINE_BYTES else patch_of(earlier.plain, plain, most=len(plain) // 2)
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
    """What :func:`pack_metadata` or :func:`share_metadata` packed.

    :param packed: the chunks put together.
    :param path: of the transaction's record, for error texts.
    :param base: the plain JSON of the reference's base, if it has one.
    :raises CorruptRecordError: the chunks are damaged, or others.
    """
    where = f"{path} metadata"
    plain = unpacked(packed, path) if ref.chunks else base
    if ref.base is not None and ref.chunks:
        try:
            plain = patched(base, RECORDS.parsed(plain, where))
        except ValueError as error:
            raise RECORDS.damaged(where, f"its patch is damaged: {error}") from error
    if hashlib.sha256(plain).hexdigest() != ref.sha256:
        raise RECORDS.damaged(where, "its chunks are not those that were written (sha256 differs)")
    return positions_in(RECORDS.mapping(RECORDS.parsed(plain, where), where), where)


def unpacked(packed: bytes, path: str) -> bytes:
    """The plain JSON of chunks that were put together."""
    try:
        return zlib.decompress(packed)
    except zlib.error as error:
        raise RECORDS.damaged(f"{path} metadata", f"its chunks cannot be decompressed ({error})") from error


def chunk_name(txid: int, ref: BlobRef | BaseRef, index: int) -> str:
    """Name of a chunk of metadata below `m/`; the digest in it keeps chunks immutable. Those of a base do not go with
    the transaction they were written with."""
    base = BASE if isinstance(ref, BaseRef) else ""
    return f"{base}{txid:019d}-{ref.sha256[:8]}-{index}"


def positions_in(body: Mapping[str, Any], path: str) -> Positions:
    found: list[dict[str, Json]] = []
    for name in ("metadata", "carried"):
        require(name in body, path, f"the field {name!r} is missing")
        require(isinstance(body[name], dict), path, f"{name!r} is {short(body[name])} and not an object")
        found.append(body[name])
    return found[0], found[1]
