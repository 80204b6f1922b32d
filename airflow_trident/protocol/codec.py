"""Ledger records as bytes and back: versioned JSON, never pickle. Pure.

Every record is ``{"v": 1, ...}`` with the fields written here. :mod:`airflow_trident.protocol.durable_format` says what
is tolerated or refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from airflow_trident.errors import ConfigurationError
from airflow_trident.protocol.durable_format import (
    PARTITIONS,
    RECORDS,
    SHARED_METADATA,
    is_whole,
    json_bytes,
    plain_fields,
    require,
    short,
    unknown_fields,
)
from airflow_trident.protocol.metadata import BlobReader, BlobRef, positions_in
from airflow_trident.protocol.records import (
    NO_ATTEMPT,
    NOBODY,
    CommitPointer,
    Exceptions,
    Status,
    TopologyRecord,
    TxRecord,
)
from airflow_trident.protocol.txids import Txids
from airflow_trident.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimKey:
    """`run/<2hex>/<sha1>`: the txid of a claim. It outlives the transaction's record. `run_ms`: as in the claim."""

    key: str
    txid: int
    run_ms: int
    op: str


_BLOB_FIELDS = ("sha256", "bytes", "chunks")
"""Fields that every BlobRef has; the others are written only if they are set."""


# ---- writing ---------------------------------------------------------------------------------------------------


def encode_topology(record: TopologyRecord, *, op: str) -> bytes:
    return RECORDS.dump({"op": op, **topology_body(record)}, f"topology {record.name}")


def topology_body(record: TopologyRecord) -> dict[str, Any]:
    """The record's fields as JSON, with those of a newer version."""
    body = plain_fields(replace(record, extra={}))
    del body["extra"]
    if body["definition"]["partitions"]:
        body["features"] = [PARTITIONS]
    else:
        for name in ("partitions", "begin", "complete_after_s"):
            del body["definition"][name]
    for spout in body["definition"]["spouts"].values():
        if not spout["adapts"]:
            del spout["adapts"]
    for state in body["definition"]["states"].values():
        if not state["place"]:
            del state["place"]
        if not state["inputs"]:
            del state["inputs"]
        if not state["transforms"]:
            del state["transforms"]
    for name in ("lost", "former", "taken_over"):
        if not body[name]:
            del body[name]
    if body["told"] is None:
        del body["told"]
    return {**record.extra, **body}


def encode_head(next_txid: int) -> bytes:
    return RECORDS.dump({"next": next_txid}, "head")


def encode_pointer(pointer: CommitPointer) -> bytes:
    return RECORDS.dump({"committed": pointer.committed, "fence": pointer.fence}, "commit pointer")


def encode_exceptions(exceptions: Exceptions) -> bytes:
    body = exceptions_body(exceptions)
    for name in ("replaying", "closed"):
        if not body[name]:
            del body[name]
    return RECORDS.dump(body, "exceptions")


def exceptions_body(exceptions: Exceptions) -> dict[str, Any]:
    """The lists as JSON: txids, and [first, last] for a range."""
    body = {list_field.name: getattr(exceptions, list_field.name) for list_field in fields(Exceptions)}
    for name in ("skipped", "closed"):
        body[name] = [first if first == last else [first, last] for first, last in body[name].ranges]
    return body


def encode_claim(claim: ClaimKey) -> bytes:
    return RECORDS.dump(plain_fields(claim), f"claim {claim.key}")


def encode_tx(record: TxRecord, blob: BlobRef | None = None) -> bytes:
    """:param blob: where metadata and carried are kept, if not in the record itself."""
    body = tx_body(record)
    if blob is not None:
        del body["metadata"], body["carried"]
        body["blob"] = {name: value for name, value in plain_fields(blob).items() if value or name in _BLOB_FIELDS}
        if blob.base is not None:
            body["features"] = [SHARED_METADATA]
    return RECORDS.dump(body, f"transaction {record.txid}")


def tx_fields(record: TxRecord) -> dict[str, Any]:
    """All fields as JSON, without the staged content: that goes into a chunk."""
    body = plain_fields(record)
    if body["staged"]:
        del body["staged"]["content"], body["staged"]["checks"]
    return body


def tx_body(record: TxRecord) -> dict[str, Any]:
    """The record's fields as JSON, with those of a newer version."""
    # Metadata is JSON already and may be large.
    body = tx_fields(replace(record, metadata={}, carried={}, extra={}))
    del body["extra"]
    body |= {"metadata": record.metadata, "carried": record.carried}
    if not body["claim"]["coordinator"]:
        del body["claim"]["coordinator"]
    # Empty fields are not written: most transactions have none of these.
    if body["staged"] and not body["staged"]["chunk"]:
        del body["staged"]["chunk"]
    body["owner"] = {name: value for name, value in body["owner"].items() if value != getattr(NOBODY, name)}
    for name in ("invalidated", "first_error", "accepted", "attempts", "plan", "late_rows", "partition", "checks"):
        if not body[name]:
            del body[name]
    return {**record.extra, **body}


def require_json(value: object, subject: str) -> Any:
    """`value` as it will come back from JSON.

    :raises ConfigurationError: it would come back changed, or not at all.
    """
    back = json.loads(json_bytes(value, subject))
    if back != value:
        raise ConfigurationError(
            f"{subject} does not survive JSON: {short(value)} comes back as {short(back)}",
            "Use only dicts with text keys, lists, texts, numbers, booleans and None.",
        )
    return back


# ---- reading ---------------------------------------------------------------------------------------------------


def decode_topology(data: bytes, path: str) -> TopologyRecord:
    """
    :raises NewerRecordError: a newer version wrote it, or it uses a feature unknown to this one.
    :raises CorruptRecordError: it is damaged, or belongs to another place. The other decoders raise the same.
    """
    body = RECORDS.load(data, path)
    needed = ("op", "command", "epoch", "floor_ms", "created_ms")
    record: TopologyRecord = RECORDS.build(TopologyRecord, {**body, "extra": {}}, path, needed=needed)
    require(isinstance(body["op"], str), path, f"its op is {short(body['op'])}")
    require(record.name == path.rsplit("/", 1)[-1], path, f"it speaks of topology {record.name!r}")
    require(bool(record.incarnation), path, "it has no incarnation")
    require(record.epoch >= 0, path, f"its epoch is {record.epoch}")
    return replace(record, extra=_extra(TopologyRecord, body, "op"))


def decode_head(data: bytes, path: str) -> int:
    body = RECORDS.load(data, path)
    head = RECORDS.build(_Head, body, path)
    require(head.next >= 1, path, f"its next txid is {head.next}")
    return head.next


def decode_pointer(data: bytes, path: str) -> CommitPointer:
    body = RECORDS.load(data, path)
    pointer = RECORDS.build(CommitPointer, body, path)
    require(pointer.committed >= 0 and pointer.fence >= 0, path, f"it says {pointer.committed}, {pointer.fence}")
    return pointer


def decode_exceptions(data: bytes, path: str) -> Exceptions:
    body = RECORDS.load(data, path)
    ranges: dict[str, Any] = {name: {"ranges": _pairs(body[name])} for name in ("skipped", "closed") if name in body}
    exceptions = RECORDS.build(Exceptions, {**body, **ranges}, path, needed=("failed", "skipped", "late"))
    lists = [
        Txids.of(*exceptions.failed),
        exceptions.skipped,
        Txids.of(*exceptions.late),
        Txids.of(*exceptions.replaying),
        exceptions.closed,
    ]
    every = Txids.joined(part for txids in lists for part in txids.ranges)
    require((every.lowest or 1) >= 1, path, f"it has the txid {every.lowest}")
    require(len(every) == sum(map(len, lists)), path, "a transaction is in it twice")
    return replace(
        exceptions, skipped=Txids.joined(exceptions.skipped.ranges), closed=Txids.joined(exceptions.closed.ranges)
    )


def _pairs(value: Any) -> Any:
    """Each txid as a range."""
    return [[txid, txid] if is_whole(txid) else txid for txid in value] if isinstance(value, list) else value


def decode_claim(data: bytes, path: str) -> ClaimKey:
    body = RECORDS.load(data, path)
    claim = RECORDS.build(ClaimKey, body, path)
    require(claim.txid >= 1, path, f"its txid is {claim.txid}")
    return claim


def decode_tx(data: bytes, path: str, read_blob: BlobReader | None = None) -> TxRecord:
    """:param read_blob: reads large metadata; called only for a record that has some."""
    body = RECORDS.load(data, path)
    ref = _blob_ref(body, path)
    if ref is None:
        metadata, carried = positions_in(body, path)
    elif read_blob is None:
        raise RECORDS.damaged(path, "its metadata is kept apart, and nothing was given to read it")
    else:
        metadata, carried = read_blob(ref)
    # Metadata skips the decoder: any JSON is valid there, and it may be large.
    small = {**body, "metadata": {}, "carried": {}, "extra": {}}
    needed = ("owner", "fence", "touched", "staged", "error", "times_ms")
    record = RECORDS.build(TxRecord, small, path, needed=needed)
    _require_sense(record, path)
    return replace(record, metadata=metadata, carried=carried, extra=_extra(TxRecord, body, "blob"))


def _require_sense(record: TxRecord, path: str) -> None:
    least = {"txid": 1, "attempt": NO_ATTEMPT, "fence": 0}
    for name, limit in least.items():
        value = getattr(record, name)
        require(value >= limit, path, f"{name!r} is {value} and not a whole number from {limit}")
    needs_staged = record.status in (Status.PROCESSED, Status.COMMITTING, Status.COMMITTED)
    require(f"{record.txid:019d}" == path.rsplit("/", 1)[-1], path, f"it speaks of transaction {record.txid}")
    require(record.staged is not None or not needs_staged, path, f"it is {record.status} without a staged batch")
    require(record.attempt != NO_ATTEMPT or not needs_staged, path, f"it is {record.status} without an attempt")
    require(not record.invalidated or record.staged is None, path, "it has a staged batch and none at all")


def blob_of(data: bytes, path: str) -> BlobRef | None:
    """Where a transaction's metadata is kept; None: in its record."""
    if b'"blob"' not in data:
        return None  # most records: they are not parsed for it
    return _blob_ref(RECORDS.load(data, path), path)


def op_of(data: bytes, path: str) -> str:
    """The id of the operation that wrote a topology, claim or transaction record."""
    return RECORDS.build(_Marked, RECORDS.load(data, path), path).op


def staged_chunk_name(txid: int, attempt: int) -> str:
    """Name of the chunk below `m/` with an attempt's staged batch; a group uses its last attempt's. No two share a
    name."""
    return f"{txid:019d}-staged-{attempt}"


# ---- parts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    next: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marked:
    op: str


def _blob_ref(body: Mapping[str, Any], path: str) -> BlobRef | None:
    if "blob" not in body:
        return None
    subject = f"{path} blob"
    ref = RECORDS.build(BlobRef, RECORDS.mapping(body["blob"], subject), subject)
    for blob in (ref, ref.base):
        least = 0 if blob is ref and ref.base is not None else 1
        require(
            blob is None or (blob.bytes >= 0 and blob.chunks >= least),
            subject,
            f"it has {blob and blob.bytes} bytes in {blob and blob.chunks} chunks",
        )
    return ref


def _extra(kind: type[Any], body: Mapping[str, Any], *excluded: str) -> dict[str, Json]:
    return {name: value for name, value in unknown_fields(kind, body).items() if name not in excluded}
