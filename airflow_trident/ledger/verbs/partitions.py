"""The verbs for partitions of a bound topology: what begins, joins or refreshes the transaction of a key.

A new transaction of a key begins by :func:`airflow_trident.ledger.verbs.begin.begin`, which takes its part from here.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_trident.errors import LateBatchError, SupersededError
from airflow_trident.ledger.answers import AskedPartition, Begun
from airflow_trident.ledger.snapshot import Snapshot, Write
from airflow_trident.ledger.transact import Change, Unchanged
from airflow_trident.ledger.verbs import common
from airflow_trident.ledger.verbs.announcements import settled
from airflow_trident.ledger.verbs.opaque import rewrite
from airflow_trident.ledger.znodes import Create
from airflow_trident.protocol import codec, partition_keys
from airflow_trident.protocol.codec import ClaimKey
from airflow_trident.protocol.exceptional_txids import closed
from airflow_trident.protocol.partition_keys import (
    NO_TXID,
    PartitionEntry,
    is_superseded,
    looked,
    may_begin,
    may_refresh,
    source_digest,
)
from airflow_trident.protocol.records import NOBODY, Claim, PartitionRevision, Status, TxRecord
from airflow_trident.protocol.txids import Txids
from airflow_trident.types import Json

SUPERSEDED = "closed: a newer transaction has its partition"
_REASONS_KEPT = 10


# ---- begin -----------------------------------------------------------------------------------------------------


def is_as_seen(snap: Snapshot, request: AskedPartition) -> bool:
    """May the key's next transaction begin with what was seen? False: another request changed the key since then."""
    entry = snap.entry(request.partition.key)
    return entry == request.seen and may_begin(entry, _last(snap, entry))


def revision(request: AskedPartition) -> PartitionRevision:
    """The partition in the record of the new transaction."""
    partition = request.partition
    return PartitionRevision(
        key=partition.key,
        n=request.seen.n + 1,
        start_ms=round(partition.start.timestamp() * 1000),
        end_ms=round(partition.end.timestamp() * 1000),
    )


def begun_writes(snap: Snapshot, records: Iterable[TxRecord]) -> list[Write]:
    """The index after these new transactions. A SKIPPED one that they supersede is CLOSED, if it was passed."""
    periods: dict[str, dict[str, PartitionEntry]] = {}
    over: list[TxRecord] = []
    for record in records:
        assert record.partition is not None
        key = record.partition.key
        path, entry = snap.paths.period(key), snap.entry(key)
        last = _last(snap, entry)
        keys = periods.setdefault(path, dict(snap.keys(path)))
        keys[key] = partition_keys.begun(entry, last, record.txid, source_digest(record.metadata))
        if last is not None and last.status is Status.SKIPPED and last.txid <= snap.pointer().committed:
            over.append(last)
    writes: list[Write] = [snap.put(path, partition_keys.encode_keys(keys)) for path, keys in periods.items()]
    return [*writes, *_closing(snap, over)]


def _closing(snap: Snapshot, over: list[TxRecord]) -> list[Write]:
    if not over:
        return []
    exceptions = snap.exceptions()
    for tx in over:
        exceptions = closed(exceptions, tx.txid)
    moved = (common.moved(snap, tx, Status.CLOSED, error=SUPERSEDED) for tx in over)
    return [
        *map(snap.set_tx, moved),
        snap.set(snap.paths.exceptions, codec.encode_exceptions(exceptions)),
        *settled(snap, Txids.of(*(tx.txid for tx in over))),
    ]


# ---- join and refresh ------------------------------------------------------------------------------------------


def join(
    snap: Snapshot, seen: PartitionEntry, key: str, *, claim: Claim
) -> Change[Begun | None] | Unchanged[Begun | None]:
    """The claim gets the unfinished transaction of a key, whose sources are as it has them.

    :param seen: the entry of the key from before that was looked at.
    :returns: None: the entry has changed, or the transaction is finished, and the claim has none: look again.
    """
    claimed = snap.claim(claim.key)
    if claimed is not None:
        return Unchanged(Begun(record=snap.tx(claimed.txid), txid=claimed.txid, new=False))
    tx = _last(snap, seen)
    if snap.entry(key) != seen or tx is None or tx.status.lets_others_pass:
        return Unchanged(None)
    return Change(
        writes=(_claiming(snap, claim, seen.tx), snap.put_entry(key, looked(seen, seen.src))),
        witness=snap.paths.claim(claim.key),
        result=Begun(record=tx, txid=seen.tx, new=False),
    )


def refresh(
    snap: Snapshot,
    seen: PartitionEntry,
    key: str,
    metadata: dict[str, Json],
    reason: str,
    *,
    claim: Claim | None = None,
) -> Change[Begun | None] | Unchanged[Begun | None]:
    """The unfinished transaction of a key takes its sources as they are now: new metadata, attempt + 1, nothing staged,
    `reason` in the record. So nothing that was begun with the former ones is reported any more (P4). No later
    transaction follows from it: metadata of a partition say nothing of others.

    :param seen: the entry of the key from before the sources were looked at.
    :param metadata: of all streams.
    :param claim: gets the transaction, if it has none, and becomes the one of its record: its tasks continue the
        transaction. None: the caller has it already.
    :returns: None: the entry has changed, or a commit of it has begun, or it is finished: look again.
    """
    claimed = None if claim is None else snap.claim(claim.key)
    if claimed is not None:
        return Unchanged(Begun(record=snap.tx(claimed.txid), txid=claimed.txid, new=False))
    tx = _last(snap, seen)
    if snap.entry(key) != seen or tx is None or not may_refresh(seen, tx):
        return Unchanged(None)
    new = {
        stream: codec.require_json(stream_metadata, f"the metadata of stream {stream!r}")
        for stream, stream_metadata in metadata.items()
    }
    record = common.moved(
        snap,
        tx.with_past_attempt(),
        Status.PROCESSING,
        metadata=new,
        attempt=tx.attempt + 1,
        staged=None,
        checks={},
        owner=NOBODY,
        error="",
        first_error="",
        accepted=(*tx.accepted, reason)[-_REASONS_KEPT:],
        claim=claim or tx.claim,
    )
    writes = [*rewrite(snap, record), snap.put_entry(key, looked(seen, source_digest(new)))]
    if tx.status is Status.FAILED:
        writes += common.exceptions_write(snap, tx.txid, "replaying")
    if claim is not None:
        writes.append(_claiming(snap, claim, tx.txid))
    begun = Begun(record=record, txid=tx.txid, new=False)
    return Change(writes=tuple(writes), witness=snap.paths.tx(tx.txid), result=begun)


def _claiming(snap: Snapshot, claim: Claim, txid: int) -> Create:
    key = ClaimKey(key=claim.key, txid=txid, run_ms=claim.run_ms, op=snap.op)
    return Create(snap.paths.claim(claim.key), codec.encode_claim(key))


# ---- other verbs' part -----------------------------------------------------------------------------------------


def require_may_come(snap: Snapshot, tx: TxRecord) -> None:
    """May a SKIPPED transaction of a partition still be attempted? A request for its partition would join it then, so
    it must be one that can be committed.

    :raises SupersededError: a newer transaction has its partition.
    :raises LateBatchError: the commit pointer has passed it.
    """
    if tx.partition is None or tx.status is not Status.SKIPPED:
        return
    key, entry = tx.partition.key, snap.entry(tx.partition.key)
    topology, cure = snap.topology().name, f"Ask for the partition {key} again."
    if is_superseded(entry, tx):
        raise SupersededError(
            f"transaction {tx.txid} of topology {topology!r} is SKIPPED, and transaction {entry.tx} has its partition "
            f"{key} now",
            cure,
        )
    if tx.txid <= snap.pointer().committed:
        raise LateBatchError(
            f"transaction {tx.txid} of topology {topology!r} is SKIPPED, and was passed: all up to "
            f"{snap.pointer().committed} are done",
            cure,
        )


def accepted_writes(snap: Snapshot, record: TxRecord, seen: PartitionEntry | None) -> list[Write]:
    """The write of the index after a person made a transaction take its sources as they are.

    :param seen: the entry of its key from before they were looked at.
    """
    if record.partition is None or seen is None or seen.tx != record.txid:
        return []
    return [snap.put_entry(record.partition.key, looked(seen, source_digest(record.metadata)))]


def closing_writes(snap: Snapshot, tx: TxRecord) -> list[Write]:
    """The write of the index after a person closed a transaction."""
    if tx.partition is None:
        return []
    entry = snap.entry(tx.partition.key)
    after = partition_keys.closed(entry, tx.txid)
    return [] if after == entry else [snap.put_entry(tx.partition.key, after)]


def _last(snap: Snapshot, entry: PartitionEntry) -> TxRecord | None:
    return None if entry.tx == NO_TXID else snap.tx(entry.tx)
