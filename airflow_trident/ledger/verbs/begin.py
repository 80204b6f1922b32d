"""The coordinator's verb: claim a transaction, or begin a new one."""

from __future__ import annotations

from dataclasses import replace

from airflow_trident.ledger.begin_result import (
    DEFAULT_MAX_PENDING,
    BeginResult,
    Begun,
    LagOf,
    MetadataOf,
    NothingNew,
)
from airflow_trident.ledger.refusals import claim_pruned
from airflow_trident.ledger.snapshot import Snapshot, Write
from airflow_trident.ledger.transact import Change, Unchanged
from airflow_trident.ledger.verbs import outcomes
from airflow_trident.ledger.verbs.opaque import before
from airflow_trident.ledger.znodes import Create
from airflow_trident.protocol import codec
from airflow_trident.protocol.codec import ClaimKey
from airflow_trident.protocol.decide import Begin, Full, decide_begin
from airflow_trident.protocol.records import NO_ATTEMPT, NOBODY, Claim, Owner, TxRecord
from airflow_trident.protocol.statuses import Status


def begin(
    snap: Snapshot,
    claim: Claim,
    metadata_of: MetadataOf,
    *,
    max_pending: int = DEFAULT_MAX_PENDING,
    attempt_by: Owner | str = "",
    lag_of: LagOf | None = None,
    plan: str = "",
) -> Change[BeginResult] | Unchanged[BeginResult]:
    """Claim a transaction: same claim, same txid; else decide_begin(), and the batch's metadata is recorded.
    That a transaction was begun is the coordinator's last outcome from then on, by the same step.

    :param attempt_by: whoever processes a new transaction at once, in the same process: its attempt 0 starts in the
        same step, which saves `start_attempt`.
    :param lag_of: None: what was known of the sources' lag stays.
    :param plan: digest of the plan that it is begun with.
    Full, too, while the last transaction is invalidated: there is no position yet to go on from.

    :raises TransitionError: the claim is that of a cleared run whose claim key was pruned (see TopologyRecord).
    """
    topology, known = snap.topology(), _known(snap, claim)
    if known is not None:
        return Unchanged(Begun(record=snap.tx(known.txid), txid=known.txid, new=False))
    if claim.cleared and claim.run_ms < topology.floor_ms:
        raise claim_pruned(topology.name, claim.key)
    decision = decide_begin(snap.view(0), max_pending=max_pending)
    if not isinstance(decision, Begin):
        return Unchanged(decision)
    txid = decision.txid
    previous = before(snap, txid)
    if previous is not None and previous.invalidated:
        pointer, head = snap.pointer().committed, snap.next_txid()
        return Unchanged(Full(oldest=pointer + 1, pending=head - 1 - pointer))
    position = {} if previous is None else previous.position
    # A copy: what a spout does to its argument must not get into what is carried on.
    metadata = metadata_of(txid, codec.require_json(position, "the position"))
    if not metadata:
        return Unchanged(NothingNew())
    attempt, owner = (0, Owner.of(attempt_by)) if attempt_by else (NO_ATTEMPT, NOBODY)
    record = TxRecord(
        txid=txid,
        status=Status.PROCESSING,
        attempt=attempt,
        metadata={
            stream: codec.require_json(value, f"the metadata of stream {stream!r}")
            for stream, value in metadata.items()
        },
        carried={stream: value for stream, value in position.items() if stream not in metadata},
        claim=replace(claim, former=()),
        op=snap.op,
        owner=owner,
        plan=plan,
        times_ms={"begun": snap.now_ms, Status.PROCESSING.value: snap.now_ms},
    )
    lag = lag_of(codec.require_json(record.position, "the position")) if lag_of else {}
    return _new_transaction(snap, record, outcomes.begun(snap, claim, txid, lag))


def _known(snap: Snapshot, claim: Claim) -> ClaimKey | None:
    """Under the key of an older version, too: a run keeps its transaction when this package is upgraded under it."""
    return next((known for key in (claim.key, *claim.former) if (known := snap.claim(key)) is not None), None)


def _new_transaction(snap: Snapshot, record: TxRecord, outcome: Write) -> Change[BeginResult]:
    paths, txid, claim = snap.paths, record.txid, record.claim
    packed = codec.pack_metadata(record)
    writes: list[Write] = [
        snap.set(paths.head, codec.encode_head(txid + 1)),
        Create(
            paths.claim(claim.key),
            codec.encode_claim(ClaimKey(key=claim.key, txid=txid, run_ms=claim.run_ms, op=snap.op)),
        ),
        Create(paths.tx(txid), codec.encode_tx(record, packed[0] if packed else None)),
        outcome,
    ]
    if packed:
        ref, chunks = packed
        writes.extend(
            Create(paths.chunk(codec.chunk_name(txid, ref, index)), chunk) for index, chunk in enumerate(chunks)
        )
    # Commits that go on meanwhile only make room, and the last transaction's metadata is fixed if no spout is opaque:
    # neither may make the coordinator list its source again.
    fixed = set() if snap.topology().definition.opaque else {paths.tx(txid - 1)}
    unchecked = frozenset({paths.commit, paths.exceptions, *fixed})
    return Change(
        writes=tuple(writes),
        witness=paths.claim(claim.key),
        result=Begun(record=record, txid=txid, new=True),
        unchecked=unchecked,
    )
