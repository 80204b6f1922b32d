"""Ledger records as bytes and back: versioned JSON, never pickle. Pure.

Every record is ``{"v": 1, ...}`` and has exactly the fields written here. What an older version wrote loads for ever
(golden files in the tests); what a newer one wrote, or what cannot be understood, is refused by name (P11).
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any, NoReturn

from airflow_trident.errors import ConfigurationError, CorruptRecordError, NewerRecordError
from airflow_trident.protocol.records import (
    NO_ATTEMPT,
    Claim,
    Command,
    CommitPointer,
    Definition,
    Exceptions,
    StagedRef,
    TopologyRecord,
    TxRecord,
)
from airflow_trident.protocol.statuses import Status
from airflow_trident.types import Json

VERSION = 1
INLINE_BYTES = 64 * 1024
"""Metadata above this is compressed and kept in chunks beside the record, so that status changes stay small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimKey:
    """`run/<2hex>/<sha1>`: which txid a claim got. It outlives the transaction's record; `run_ms` is the claim's."""

    key: str
    txid: int
    run_ms: int
    op: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRef:
    """Large metadata outside of its record: `sha256` of the plain JSON, its size, and how many chunks hold it."""

    sha256: str
    bytes: int
    chunks: int


Positions = tuple[dict[str, Json], dict[str, Json]]
"""`metadata` and `carried` of a transaction."""
BlobReader = Callable[[BlobRef], Positions]
"""Gets large metadata: reads the chunks and gives them to :func:`unpack_metadata`, or remembers what that gave."""


# ---- writing ---------------------------------------------------------------------------------------------------


def encode_topology(record: TopologyRecord, *, op: str) -> bytes:
    return _dump({"op": op, **asdict(record)}, f"topology {record.name}")


def encode_head(next_txid: int) -> bytes:
    return _dump({"next": next_txid}, "head")


def encode_pointer(pointer: CommitPointer) -> bytes:
    return _dump({"committed": pointer.committed, "fence": pointer.fence}, "commit pointer")


def encode_exceptions(exceptions: Exceptions) -> bytes:
    # Without an empty "replaying", as versions without that list wrote it.
    body = {name: txids for name, txids in asdict(exceptions).items() if txids or name != "replaying"}
    return _dump(body, "exceptions")


def encode_claim(claim: ClaimKey) -> bytes:
    return _dump(asdict(claim), f"claim {claim.key}")


def encode_tx(record: TxRecord, blob: BlobRef | None = None) -> bytes:
    """:param blob: where metadata and carried are, if they are not to be in the record itself."""
    body = asdict(replace(record, metadata={}, carried={}))  # asdict() copies all, and there may be a lot of these
    body |= {"metadata": record.metadata, "carried": record.carried}
    if not record.invalidated:
        del body["invalidated"]  # as versions without opaque spouts wrote it
    if blob is not None:
        del body["metadata"], body["carried"]
        body["blob"] = asdict(blob)
    return _dump(body, f"transaction {record.txid}")


def pack_metadata(record: TxRecord, *, chunk_bytes: int = 256 * 1024) -> tuple[BlobRef, list[bytes]] | None:
    """Metadata that is too large for the record, compressed and cut; None if it fits."""
    plain = _json({"metadata": record.metadata, "carried": record.carried}, f"metadata of transaction {record.txid}")
    if len(plain) <= INLINE_BYTES:
        return None
    packed = zlib.compress(plain)
    chunks = [packed[at : at + chunk_bytes] for at in range(0, len(packed), chunk_bytes)]
    return BlobRef(sha256=hashlib.sha256(plain).hexdigest(), bytes=len(plain), chunks=len(chunks)), chunks


def require_json(value: object, what: str) -> Any:
    """`value` as it will come back from JSON.

    :raises ConfigurationError: it would come back changed, or not at all.
    """
    back = json.loads(_json(value, what))
    if back != value:
        raise ConfigurationError(
            f"{what} does not survive JSON: {_short(value)} comes back as {_short(back)}",
            "Use only dicts with text keys, lists, texts, numbers, booleans and None.",
        )
    return back


# ---- reading ---------------------------------------------------------------------------------------------------


def decode_topology(data: bytes, path: str) -> TopologyRecord:
    body = _Body(data, path)
    body.text("op")
    definition = _Body(body.mapping("definition"), f"{path} definition")
    record = TopologyRecord(
        name=body.text("name"),
        incarnation=body.text("incarnation"),
        definition=Definition(spouts=definition.texts("spouts"), states=definition.texts("states")),
        command=body.one_of("command", Command),
        epoch=body.integer("epoch", least=0),
        floor_ms=body.integer("floor_ms"),
        created_ms=body.integer("created_ms"),
    )
    definition.end()
    body.end()
    body.require(record.name == path.rsplit("/", 1)[-1], f"it speaks of topology {record.name!r}")
    body.require(bool(record.incarnation), "it has no incarnation")
    return record


def decode_head(data: bytes, path: str) -> int:
    body = _Body(data, path)
    next_txid = body.integer("next", least=1)
    body.end()
    return next_txid


def decode_pointer(data: bytes, path: str) -> CommitPointer:
    body = _Body(data, path)
    pointer = CommitPointer(committed=body.integer("committed", least=0), fence=body.integer("fence", least=0))
    body.end()
    return pointer


def decode_exceptions(data: bytes, path: str) -> Exceptions:
    body = _Body(data, path)
    lists = [one.name for one in fields(Exceptions) if one.name != "replaying" or "replaying" in body.fields]
    found = Exceptions(**{name: body.txids(name) for name in lists})
    body.end()
    several = [txid for name in lists for txid in getattr(found, name)]
    body.require(len(several) == len(set(several)), "a transaction is in it twice")
    return found


def decode_claim(data: bytes, path: str) -> ClaimKey:
    body = _Body(data, path)
    claim = ClaimKey(
        key=body.text("key"), txid=body.integer("txid", least=1), run_ms=body.integer("run_ms"), op=body.text("op")
    )
    body.end()
    return claim


def decode_tx(data: bytes, path: str, read_blob: BlobReader | None = None) -> TxRecord:
    """:param read_blob: gets large metadata; it is called only for a record that has it."""
    body = _Body(data, path)
    ref = _blob_ref(body)
    if ref is None:
        metadata, carried = body.mapping("metadata"), body.mapping("carried")
    else:
        if read_blob is None:
            raise _corrupt(path, "its metadata is kept apart, and nothing was given to read it")
        metadata, carried = read_blob(ref)
    record = TxRecord(
        txid=body.integer("txid", least=1),
        status=body.one_of("status", Status),
        attempt=body.integer("attempt", least=NO_ATTEMPT),
        metadata=metadata,
        carried=carried,
        claim=_claim(_Body(body.mapping("claim"), f"{path} claim")),
        op=body.text("op"),
        owner=body.text("owner"),
        fence=body.integer("fence", least=0),
        touched=body.truth("touched"),
        invalidated="invalidated" in body.fields and body.truth("invalidated"),
        staged=_staged(body),
        error=body.text("error"),
        times_ms=body.integers("times_ms"),
    )
    body.end()
    body.require(f"{record.txid:019d}" == path.rsplit("/", 1)[-1], f"it speaks of transaction {record.txid}")
    needs_staged = record.status in (Status.PROCESSED, Status.COMMITTING, Status.COMMITTED)
    body.require(record.staged is not None or not needs_staged, f"it is {record.status} without a staged batch")
    body.require(record.attempt != NO_ATTEMPT or not needs_staged, f"it is {record.status} without an attempt")
    body.require(not record.invalidated or record.staged is None, "it has a staged batch and none at all")
    return record


def unpack_metadata(ref: BlobRef, packed: bytes, path: str) -> Positions:
    """What :func:`pack_metadata` packed.

    :param packed: the chunks put together.
    :param path: of the transaction's record, for error texts.
    :raises CorruptRecordError: the chunks are damaged, or others.
    """
    try:
        plain = zlib.decompress(packed)
    except zlib.error as error:
        raise _corrupt(f"{path} metadata", f"its chunks cannot be decompressed ({error})") from error
    if hashlib.sha256(plain).hexdigest() != ref.sha256:
        raise _corrupt(f"{path} metadata", "its chunks are not those that were written (sha256 differs)")
    body = _Body(_load(plain, path), f"{path} metadata")
    metadata, carried = body.mapping("metadata"), body.mapping("carried")
    body.end()
    return metadata, carried


def blob_of(data: bytes, path: str) -> BlobRef | None:
    """Where the metadata of a transaction's record is, if not in the record."""
    return _blob_ref(_Body(data, path))


def op_of(data: bytes, path: str) -> str:
    """The id of the operation that wrote a topology, claim or transaction record."""
    return _Body(data, path).text("op")


def chunk_name(txid: int, ref: BlobRef, index: int) -> str:
    """Name of a chunk of metadata below `m/`; the digest in it keeps chunks immutable."""
    return f"{txid:019d}-{ref.sha256[:8]}-{index}"


# ---- parts -----------------------------------------------------------------------------------------------------


def _claim(body: _Body) -> Claim:
    claim = Claim(
        key=body.text("key"),
        dag_id=body.text("dag_id"),
        run_id=body.text("run_id"),
        map_index=body.integer("map_index"),
        run_ms=body.integer("run_ms"),
        cleared=body.truth("cleared"),
        task_ids=body.texts("task_ids"),
    )
    body.end()
    return claim


def _staged(parent: _Body) -> StagedRef | None:
    value = parent.take("staged")
    if value is None:
        return None
    body = _Body(value, f"{parent.path} staged")
    manifest, rows_read = body.text("manifest"), body.integer("rows_read")
    staged = StagedRef(manifest=manifest, rows_read=rows_read, rows=body.integers("rows"), bytes=body.integer("bytes"))
    body.end()
    return staged


def _blob_ref(parent: _Body) -> BlobRef | None:
    if "blob" not in parent.fields:
        return None
    body = _Body(parent.mapping("blob"), f"{parent.path} blob")
    ref = BlobRef(
        sha256=body.text("sha256"), bytes=body.integer("bytes", least=0), chunks=body.integer("chunks", least=1)
    )
    body.end()
    return ref


class _Body:
    """The fields of one record, each taken once with its type checked; :meth:`end` refuses what is left over."""

    def __init__(self, source: bytes | Any, path: str) -> None:
        self.path = path
        value = _load(source, path) if isinstance(source, bytes) else source
        if not isinstance(value, dict):
            self._refuse(f"it is not a JSON object but {_short(value)}")
        self.fields: dict[str, Any] = dict(value)
        if isinstance(source, bytes):
            self._check_version()

    def _check_version(self) -> None:
        version = self.fields.pop("v", None)
        if isinstance(version, int) and not isinstance(version, bool) and version > VERSION:
            raise NewerRecordError(
                f"the ledger record {self.path} has version {version}, and this airflow-trident reads up to {VERSION}",
                "Install the airflow-trident version that wrote it, or a newer one.",
            )
        self.require(version == VERSION and version is not True, f"its version is {version!r}")

    def require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self._refuse(otherwise)

    def take(self, name: str) -> Any:
        self.require(name in self.fields, f"the field {name!r} is missing")
        return self.fields.pop(name)

    def text(self, name: str) -> str:
        value = self.take(name)
        return value if isinstance(value, str) else self._mistyped(name, value, "a text")

    def truth(self, name: str) -> bool:
        value = self.take(name)
        return value if isinstance(value, bool) else self._mistyped(name, value, "true or false")

    def integer(self, name: str, *, least: int | None = None) -> int:
        value = self.take(name)
        if not _is_integer(value) or (least is not None and value < least):
            self._mistyped(name, value, "a whole number" if least is None else f"a whole number from {least}")
        return int(value)

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.take(name)
        return value if isinstance(value, dict) else self._mistyped(name, value, "an object")

    def texts(self, name: str) -> dict[str, str]:
        value = self.mapping(name)
        self.require(all(isinstance(item, str) for item in value.values()), f"{name!r} has values that are no texts")
        return value

    def integers(self, name: str) -> dict[str, int]:
        value = self.mapping(name)
        self.require(all(map(_is_integer, value.values())), f"{name!r} has values that are no whole numbers")
        return value

    def txids(self, name: str) -> tuple[int, ...]:
        value = self.take(name)
        if not isinstance(value, list) or not all(_is_integer(item) and item >= 1 for item in value):
            self._mistyped(name, value, "a list of txids")
        return tuple(value)

    def one_of(self, name: str, kind: type[StrEnum]) -> Any:
        value = self.text(name)
        try:
            return kind(value)
        except ValueError:
            return self._mistyped(name, value, f"one of {', '.join(kind)}")

    def end(self) -> None:
        self.require(not self.fields, f"it has the unknown fields {', '.join(sorted(self.fields))}")

    def _mistyped(self, name: str, value: Any, wanted: str) -> NoReturn:
        self._refuse(f"{name!r} is {_short(value)} and not {wanted}")

    def _refuse(self, why: str) -> NoReturn:
        raise _corrupt(self.path, why)


def _corrupt(path: str, why: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"the ledger record {path} is damaged: {why}",
        "Nothing is guessed: restore the ledger from a back-up, or mend this record by hand.",
    )


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _load(data: bytes, path: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise _corrupt(path, f"it is not JSON ({error})") from error


def _dump(body: dict[str, Any], what: str) -> bytes:
    return _json({"v": VERSION, **body}, what)


def _json(value: object, what: str) -> bytes:
    try:
        # ASCII only: text that is not valid Unicode (a lone surrogate in a file name) survives as an escape.
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"{what} cannot be written as JSON: {error}",
            "Use only dicts with text keys, lists, texts, finite numbers, booleans and None.",
        ) from error


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
