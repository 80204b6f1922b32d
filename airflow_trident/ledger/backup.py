"""A whole ledger as JSON, for people, for tools and for import. The same from every implementation.

Imports what `export` wrote: into a name without a ledger, or with one that never began a transaction.

A ledger may be larger than one `multi`, so the topology's own record is written last. Until then a note stands in its
place that no reader takes for a record: nobody works on half a ledger. An import that was cut off is begun anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import starmap
from typing import Any

from airflow_trident.errors import ConfigurationError, CorruptRecordError, TransitionError
from airflow_trident.ledger.layout import BUCKETS, LedgerPaths, nodes_of, shared_records
from airflow_trident.ledger.znodes import Check, Create, Delete, Op, Set, ZNodes
from airflow_trident.protocol import codec, durable_format
from airflow_trident.protocol.codec import ClaimKey
from airflow_trident.protocol.durable_format import Format
from airflow_trident.protocol.partition_keys import PartitionEntry, decode_keys, encode_keys, keys_body
from airflow_trident.protocol.records import CommitPointer, Exceptions, LedgerView, TopologyRecord, TxRecord
from airflow_trident.types import Json

VERSION = durable_format.VERSION
"""The export has the bodies of the records."""
READ_AT_ONCE = 500
"""How many records one round trip reads."""


def export_json(
    view: LedgerView,
    records: Sequence[TxRecord],
    claims: Mapping[str, tuple[int, int]],
    partitions: Mapping[str, PartitionEntry],
) -> dict[str, Json]:
    """
    :param claims: claim key -> (txid, when the run was due), for all claims that are kept.
    :param partitions: partition key -> entry of the index.
    """
    body = {
        "version": VERSION,
        "topology": codec.topology_body(view.topology),
        "next_txid": view.next_txid,
        "pointer": asdict(view.pointer),
        "exceptions": codec.exceptions_body(view.exceptions),
        "transactions": [codec.tx_body(record) for record in records],
        "claims": {key: txid for key, (txid, _) in sorted(claims.items())},
        "claim_run_ms": {key: run_ms for key, (_, run_ms) in sorted(claims.items())},
    }
    if view.topology.definition.partitions:
        body["partitions"] = keys_body(partitions)
    plain: dict[str, Json] = json.loads(json.dumps(body))  # tuples and enums as JSON has them
    return plain


def claims_of(znodes: ZNodes, paths: LedgerPaths) -> dict[str, tuple[int, int]]:
    """Claim key -> (txid, when the run was due), for all claims that are kept."""
    buckets = [paths.bucket(name) for name in BUCKETS]
    folders = znodes.read([], buckets).folders
    keys = [f"{bucket}/{name}" for bucket in buckets for name in sorted(folders[bucket] or ())]
    claims: dict[str, tuple[int, int]] = {}
    for at in range(0, len(keys), READ_AT_ONCE):
        for path, node in znodes.read(keys[at : at + READ_AT_ONCE]).nodes.items():
            if node is not None:
                claim = codec.decode_claim(node.data, path)
                claims[claim.key] = (claim.txid, claim.run_ms)
    return claims


_EXPORT = Format(
    noun="the export", version=VERSION, key="version", cure="Nothing was written: export the ledger again."
)
UNFINISHED = b'{"v":1,"op":"","unfinished":"import"}'
"""Stands in the place of the topology's record until the import is over."""
_STEP_OPS, _STEP_BYTES = 400, 400 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A whole ledger."""

    topology: TopologyRecord
    next_txid: int
    pointer: CommitPointer
    exceptions: Exceptions
    transactions: tuple[TxRecord, ...]
    claims: tuple[ClaimKey, ...]
    partitions: Mapping[str, PartitionEntry]


def contents_of(exported: Json, name: str, *, op: str) -> Contents:
    """Checks what `export` wrote.

    :raises ConfigurationError: it is the export of another topology.
    :raises CorruptRecordError: it is damaged, or contradicts itself.
    :raises NewerRecordError: a newer version of this package wrote it.
    """
    if not isinstance(exported, dict) or not isinstance(exported.get("transactions"), list):
        raise _EXPORT.damaged("", "it is not what `ledger export` writes")
    body = _EXPORT.open(exported, "")
    topology_body = body.get("topology")
    other = topology_body.get("name") if isinstance(topology_body, dict) else None
    if other != name:
        raise ConfigurationError(f"the export is that of topology {other!r}, not of {name!r}", "Name that one.")
    run_ms: Any = body.get("claim_run_ms")
    claims: Any = body.get("claims")
    try:
        contents = Contents(
            topology=codec.decode_topology(_record(body["topology"], op=op), f"of the export/{name}"),
            next_txid=codec.decode_head(_record({"next": body["next_txid"]}), "head of the export"),
            pointer=codec.decode_pointer(_record(body["pointer"]), "pointer of the export"),
            exceptions=codec.decode_exceptions(_record(body["exceptions"]), "exceptions of the export"),
            transactions=tuple(_transaction(transaction) for transaction in body["transactions"]),
            claims=tuple(
                ClaimKey(key=key, txid=int(txid), run_ms=int(run_ms[key]), op=op) for key, txid in claims.items()
            ),
            partitions=decode_keys(_record({"keys": body.get("partitions", {})}), "partitions of the export"),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _EXPORT.damaged("", f"{type(error).__name__}: {error}") from error
    _require_whole(contents)
    return contents


def _record(body: Any, **more: Any) -> bytes:
    return json.dumps({"v": VERSION, **body, **more}).encode()


def _transaction(body: Any) -> TxRecord:
    return codec.decode_tx(_record(body), f"of the export/{int(body['txid']):019d}")


def _require_whole(contents: Contents) -> None:
    last, txids = contents.next_txid - 1, {tx.txid for tx in contents.transactions}
    special = {*contents.exceptions.unfinished, *contents.exceptions.skipped}
    needed = special | set(range(contents.pointer.committed + 1, last + 1)) | ({last} if last else set())
    if needed - txids or max(txids, default=0) > last or contents.pointer.committed > last:
        missing = ", ".join(map(str, sorted(needed - txids)[:5])) or "none"
        raise _EXPORT.damaged("", f"its transactions do not fit together (missing: {missing}; the last one is {last})")


def require_finished(data: bytes, path: str) -> None:
    """:raises CorruptRecordError: an import is under way, or was cut off."""
    if data == UNFINISHED:
        raise CorruptRecordError(
            f"{path} is no ledger yet: an import is under way, or was cut off",
            "Run `airflow trident ledger import` again.",
        )


def prepare_import(znodes: ZNodes, path: str, contents: Contents) -> int:
    """Writes all but the topology's own record. Returns the version that this record must replace.

    :raises TransitionError: the topology has a ledger with transactions.
    """
    znodes.ensure(path.rpartition("/")[0])
    _occupy(znodes, path, contents.topology.name)
    for batch in _steps(_remains(znodes, path)):
        znodes.multi(batch)
    for batch in _steps(_creates(path, contents)):
        znodes.multi(batch)
    node = znodes.read([path]).nodes[path]
    if node is None or node.data != UNFINISHED:
        raise TransitionError(f"somebody else wrote to the ledger of {contents.topology.name!r}", "Look at it first.")
    return node.version


def _occupy(znodes: ZNodes, path: str, name: str) -> None:
    node = znodes.read([path]).nodes[path]
    if node is None:
        return znodes.multi([Create(path, UNFINISHED)])
    checks: list[Op] = []
    if node.data != UNFINISHED:
        record = codec.decode_topology(node.data, path)
        head_path = LedgerPaths(path, record.incarnation).head
        head = znodes.read([head_path]).nodes[head_path]
        next_txid = 1 if head is None else codec.decode_head(head.data, head_path)
        if next_txid > 1:
            raise TransitionError(
                f"topology {name!r} has a ledger that begins at transaction {next_txid}: importing would lose it",
                f"If its states are ahead of it, use `airflow trident repair {name}`; or import below another "
                "[trident] root.",
            )
        checks = [] if head is None else [Check(head_path, head.version)]
    return znodes.multi([*checks, Set(path, UNFINISHED, node.version)])


def _remains(znodes: ZNodes, path: str) -> Iterator[Op]:
    """Deletes everything below the topology, children first."""
    for incarnation in sorted(znodes.read([], [path]).folders[path] or ()):
        paths = LedgerPaths(path, incarnation)
        folders = list(reversed(paths.folders(bound=True)))
        listed = znodes.read([], folders).folders
        kept = {folder for folder in folders if listed[folder] is not None}
        for folder in folders:
            below = (f"{folder}/{name}" for name in sorted(listed[folder] or ()))
            yield from (Delete(znode_path) for znode_path in below if znode_path not in kept)
        yield from (Delete(folder) for folder in folders if folder in kept)


def _creates(path: str, contents: Contents) -> Iterator[Op]:
    paths = LedgerPaths(path, contents.topology.incarnation)
    yield from map(Create, paths.folders(bound=bool(contents.topology.definition.partitions)))
    shared = shared_records(paths, contents.next_txid, contents.pointer, contents.exceptions)
    yield from starmap(Create, shared.items())
    for tx in contents.transactions:
        yield from nodes_of(paths, tx)
    for claim in contents.claims:
        yield Create(paths.claim(claim.key), codec.encode_claim(claim))
    periods: dict[str, dict[str, PartitionEntry]] = {}
    for key, entry in contents.partitions.items():
        periods.setdefault(paths.period(key), {})[key] = entry
    for period, keys in periods.items():
        yield Create(period, encode_keys(keys))


def _steps(ops: Iterable[Op]) -> Iterator[list[Op]]:
    batch: list[Op] = []
    size = 0
    for op in ops:
        bytes_ = len(op.data) if isinstance(op, Create) else 0
        if batch and (len(batch) == _STEP_OPS or size + bytes_ > _STEP_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(op)
        size += bytes_
    if batch:
        yield batch
