"""The coordinator's verbs: claim transactions, or begin new ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile

from airflow_trident.errors import ConfigurationError
from airflow_trident.ledger.answers import (
    AskedPartition,
    BeginResult,
    Begun,
    NextBatches,
    NothingNew,
    PartitionMoved,
)
from airflow_trident.ledger.refusals import claim_pruned
from airflow_trident.ledger.snapshot import Snapshot, Write
from airflow_trident.ledger.transact import Change, Unchanged
from airflow_trident.ledger.verbs import topology as topology_module
from airflow_trident.ledger.verbs.group_steps import GROUP_BYTES, size
from airflow_trident.ledger.verbs.opaque import before
from airflow_trident.ledger.verbs.partitions import begun_writes, is_as_seen, revision
from airflow_trident.ledger.znodes import Create
from airflow_trident.protocol import codec
from airflow_trident.protocol.codec import ClaimKey
from airflow_trident.protocol.decide import Begin, Full, decide_begin
from airflow_trident.protocol.metadata import Earlier
from airflow_trident.protocol.records import NO_ATTEMPT, NOBODY, Claim, LedgerView, Owner, Status, TxRecord
from airflow_trident.types import Json

GROWS_BY_BYTES = 1024
"""How many bytes later steps add to a record. A group leaves room for them, so that it fits into one step at each
phase."""


def begin(snap: Snapshot, batches: NextBatches, *, step_bytes: int = 0) -> Change[BeginResult] | Unchanged[BeginResult]:
    """Claims transactions, in one step: for as many claims as there are batches, room among the pending transactions,
    and room in a step. The same claim gets the same txid. For new claims decide_begin() decides, and the metadata of
    each batch is recorded. The same step makes "begun" the coordinator's last outcome.

    A claim may ask for a partition: then the same step gives it to the new transaction in the index of keys.

    Returns the transactions of those claims, or why there are none. The answer is Full also while the last transaction
    is invalidated: there is no position yet to continue from.

    :param step_bytes: size of the other records that the same step writes.
    :raises TransitionError: a claim is that of a cleared run whose claim key was pruned (see TopologyRecord).
    :raises ConfigurationError: two of the claims are the same, or ask for the same partition.
    """
    begun_before = [_begun(snap, claim) for claim in batches.claims]
    new = [claim for claim, begun in zip(batches.claims, begun_before, strict=True) if begun is None]
    if not new:
        return Unchanged(_in_order(begun_before))
    require_different(new)
    topology = snap.topology()
    for claim in new:
        if claim.cleared and claim.run_ms < topology.floor_ms:
            raise claim_pruned(topology.name, claim.key)
    view = snap.view(0)
    decision = decide_begin(view, max_pending=batches.max_pending)
    if not isinstance(decision, Begin):
        return Unchanged(_in_order(begun_before) or decision)
    txid = decision.txid
    previous = before(snap, txid)
    if previous is not None and previous.invalidated:
        return Unchanged(_in_order(begun_before) or Full(oldest=view.pointer.committed + 1, pending=view.pending))
    position = {} if previous is None else previous.position
    room = limit = _room(view, batches.max_pending, len(new))
    records: list[TxRecord] = []
    taken: list[TxRecord] = []
    creations: list[Write] = []
    requests = require_different_partitions(batches, new)
    as_seen = list(takewhile(partial(is_as_seen, snap), requests))
    if requests and not as_seen:
        return Unchanged(_in_order(begun_before) or PartitionMoved(requests[0].partition.key))
    new = new[: len(as_seen)] if requests else new
    while limit:
        each = _batches(batches, new, txid, position, limit)
        records = []
        for claim, metadata in zip(new, each, strict=False):
            after = records[-1].position if records else position
            records.append(_new_record(snap, batches, claim, txid + len(records), metadata, after))
        taken, creations = _that_fit(snap, previous, records, step_bytes)
        if len(taken) == len(records):
            break
        limit = len(taken)  # asked again: only the last batch of a group must say where to continue
    if not taken:
        return Unchanged(_in_order(begun_before) or (() if records else NothingNew()))  # (): the step is full already
    last = taken[-1]
    lag = batches.lag_of(codec.require_json(last.position, "the position")) if batches.lag_of else {}
    writes = [*creations, topology_module.begun(snap, last.claim, lag)]
    writes += begun_writes(snap, taken) if batches.partitions else ()
    return _new_transactions(snap, begun_before, taken, writes, enough_room=room == len(new))


def _batches(
    batches: NextBatches, claims: Sequence[Claim], txid: int, position: dict[str, Json], limit: int
) -> Sequence[dict[str, Json]]:
    """The metadata of the new transactions, at most so many."""
    if batches.partitions:
        return [batches.partitions[claim.key].metadata for claim in claims][:limit]
    # A copy: if a spout changes its argument, the position carried on must not change.
    return batches.batches_of(txid, codec.require_json(position, "the position"), limit)[:limit]


def _room(view: LedgerView, max_pending: int, wanted: int) -> int:
    """How many may begin, one after the other."""
    views = (replace(view, next_txid=view.next_txid + number) for number in range(wanted))
    decisions = (decide_begin(later_view, max_pending=max_pending) for later_view in views)
    return sum(1 for _ in takewhile(lambda decision: isinstance(decision, Begin), decisions))


def _begun(snap: Snapshot, claim: Claim) -> Begun | None:
    claim_key = snap.claim(claim.key)
    return None if claim_key is None else Begun(record=snap.tx(claim_key.txid), txid=claim_key.txid, new=False)


def _in_order(begun_before: Sequence[Begun | None], records: Sequence[TxRecord] = ()) -> tuple[Begun, ...]:
    """The transactions of the claims, up to the first claim that has none.

    :param records: new ones, for the claims that had none.
    """
    new = (Begun(record=record, txid=record.txid, new=True) for record in records)
    in_order = (begun if begun is not None else next(new, None) for begun in begun_before)
    return tuple(
        begun_now for begun_now in takewhile(lambda begun: begun is not None, in_order) if begun_now is not None
    )


def require_different(claims: Sequence[Claim]) -> None:
    """:raises ConfigurationError: two claims are the same."""
    if len({claim.key for claim in claims}) < len(claims):
        keys = [claim.key for claim in claims]
        raise ConfigurationError(f"a group of transactions is claimed by {keys}", "Give each of them another key.")


def require_different_partitions(batches: NextBatches, claims: Sequence[Claim]) -> list[AskedPartition]:
    """The partitions that the claims ask for.

    :raises ConfigurationError: two ask for the same partition.
    """
    requests = [batches.partitions[claim.key] for claim in claims] if batches.partitions else []
    keys = [request.partition.key for request in requests]
    if len(set(keys)) < len(keys):
        raise ConfigurationError(f"a group of transactions asks for the partitions {keys}", "Ask for each once.")
    return requests


def _new_record(
    snap: Snapshot,
    batches: NextBatches,
    claim: Claim,
    txid: int,
    metadata: dict[str, Json],
    position: dict[str, Json],
) -> TxRecord:
    attempt, owner = (0, Owner.of(batches.attempt_by)) if batches.attempt_by else (NO_ATTEMPT, NOBODY)
    request = batches.partitions.get(claim.key)
    return TxRecord(
        txid=txid,
        status=Status.PROCESSING,
        attempt=attempt,
        metadata={
            stream: codec.require_json(value, f"the metadata of stream {stream!r}")
            for stream, value in metadata.items()
        },
        carried={} if request else {name: value for name, value in position.items() if name not in metadata},
        partition=revision(request) if request else None,
        accepted=(request.reason,) if request and request.reason else (),
        claim=claim,
        op=snap.op,
        owner=owner,
        plan=batches.plan,
        times_ms={"begun": snap.now_ms, Status.PROCESSING.value: snap.now_ms},
    )


def _that_fit(
    snap: Snapshot, previous: TxRecord | None, records: Sequence[TxRecord], step_bytes: int
) -> tuple[list[TxRecord], list[Write]]:
    """As many records as one step takes, and what creates them. A step without anything else takes the first one in any
    case.

    :param previous: the transaction before them, whose metadata theirs may share.
    """
    taken: list[TxRecord] = []
    writes: list[Write] = []
    earlier = None if previous is None else snap.shareable(previous)
    for record in records:
        creation, earlier = _creation(snap, record, earlier)
        is_first, step_bytes = not (taken or step_bytes), step_bytes + sum(map(size, creation)) + GROWS_BY_BYTES
        if step_bytes > GROUP_BYTES and not is_first:
            break
        taken.append(record)
        writes += creation
    return taken, writes


def _creation(snap: Snapshot, record: TxRecord, earlier: Earlier | None) -> tuple[list[Write], Earlier | None]:
    """The writes of one transaction: its claim key, its record, the chunks of its metadata; and what the next one may
    share."""
    paths, txid, claim = snap.paths, record.txid, record.claim
    ref, chunks = snap.keep_apart(record, earlier)
    key = ClaimKey(key=claim.key, txid=txid, run_ms=claim.run_ms, op=snap.op)
    writes: list[Write] = [
        Create(paths.claim(claim.key), codec.encode_claim(key)),
        Create(paths.tx(txid), codec.encode_tx(record, ref)),
        *chunks,
    ]
    return writes, earlier if ref is None else snap.shared_by(record, ref)


def _new_transactions(
    snap: Snapshot,
    begun_before: Sequence[Begun | None],
    records: Sequence[TxRecord],
    writes: Sequence[Write],
    *,
    enough_room: bool,
) -> Change[BeginResult]:
    """The change that writes the head and creates the records.

    :param enough_room: False: more were wanted, and commits that go on meanwhile would make room for them.
    """
    paths, first = snap.paths, records[0]
    # Commits that go on meanwhile only make room, and the last transaction's metadata is fixed if no spout is opaque.
    # Neither may force the coordinator to list its source again. But what the answer tells must be so now, and nobody
    # may have taken up the last transaction of a partition.
    relied_on = {begun_now.txid for begun_now in begun_before if begun_now is not None}
    relied_on |= {snap.entry(record.partition.key).tx for record in records if record.partition is not None}
    fixed = set() if snap.topology().definition.opaque else {paths.tx(txid) for txid in {first.txid - 1} - relied_on}
    room = {paths.commit, paths.exceptions} if enough_room else set()
    return Change(
        writes=(snap.set(paths.head, codec.encode_head(records[-1].txid + 1)), *writes),
        witness=paths.claim(first.claim.key),
        result=_in_order(begun_before, records),
        unchecked=frozenset(room | fixed),
    )
