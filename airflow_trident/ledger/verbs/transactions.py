"""The ledger's verbs as pure functions: from what is there to what has to be written.

Statuses move through :func:`airflow_trident.protocol.statuses.move` alone, and what may happen is decided by
:mod:`airflow_trident.protocol.decide`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_trident.errors import (
    ConfigurationError,
    FencedError,
    StaleAttemptError,
    TransitionError,
)
from airflow_trident.ledger.base import BeginResult, Begun, LagOf, MetadataOf, NothingNew
from airflow_trident.ledger.refusals import (
    batch_in_place,
    claim_pruned,
    may_be_held,
    never_attempted,
    no_commit_under_way,
    nothing_to_take_back,
    why_not,
)
from airflow_trident.ledger.transact import Done, Snapshot, Step, Write
from airflow_trident.ledger.verbs import outcomes
from airflow_trident.ledger.verbs.opaque import before, invalidated_above, of_next_attempt, rewrite
from airflow_trident.ledger.verbs.pruning import prune
from airflow_trident.ledger.verbs.tickets import ticket_of
from airflow_trident.ledger.znodes import Create
from airflow_trident.protocol import codec
from airflow_trident.protocol.codec import ClaimKey
from airflow_trident.protocol.decide import (
    Begin,
    Commit,
    Full,
    decide_begin,
    decide_commit,
)
from airflow_trident.protocol.exceptions import forgotten, over_skipped, shifted
from airflow_trident.protocol.opaque import cannot_skip
from airflow_trident.protocol.records import (
    NO_ATTEMPT,
    NOBODY,
    Claim,
    CommitTicket,
    Owner,
    StagedRef,
    TxRecord,
)
from airflow_trident.protocol.statuses import Status, move
from airflow_trident.protocol.whole import require_all_states

# ---- coordinator -----------------------------------------------------------------------------------------------


def begin(
    snap: Snapshot,
    claim: Claim,
    metadata_of: MetadataOf,
    max_pending: int,
    attempt_by: Owner,
    lag_of: LagOf | None,
    digest: str,
) -> Step[BeginResult] | Done[BeginResult]:
    topology, known = snap.topology(), _known(snap, claim)
    if known is not None:
        return Done(Begun(record=snap.tx(known.txid), txid=known.txid, new=False))
    if claim.cleared and claim.run_ms < topology.floor_ms:
        raise claim_pruned(topology.name, claim.key)
    decision = decide_begin(snap.view(0), max_pending=max_pending)
    if not isinstance(decision, Begin):
        return Done(decision)
    txid = decision.txid
    previous = before(snap, txid)
    if previous is not None and previous.invalidated:
        pointer, head = snap.pointer().committed, snap.next_txid()
        return Done(Full(oldest=pointer + 1, pending=head - 1 - pointer))
    position = {} if previous is None else previous.position
    # A copy: what a spout does to its argument must not get into what is carried on.
    metadata = metadata_of(txid, codec.require_json(position, "the position"))
    if not metadata:
        return Done(NothingNew())
    attempt, owner = (0, attempt_by) if attempt_by else (NO_ATTEMPT, NOBODY)
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
        plan=digest,
        times_ms={"begun": snap.now_ms, Status.PROCESSING.value: snap.now_ms},
    )
    lag = lag_of(codec.require_json(record.position, "the position")) if lag_of else {}
    return _new_transaction(snap, record, outcomes.begun(snap, claim, txid, lag))


def _known(snap: Snapshot, claim: Claim) -> ClaimKey | None:
    """Under the key of an older version, too: a run keeps its transaction when this package is upgraded under it."""
    return next((known for key in (claim.key, *claim.former) if (known := snap.claim(key)) is not None), None)


def _new_transaction(snap: Snapshot, record: TxRecord, outcome: Write) -> Step[BeginResult]:
    life, txid, claim = snap.life, record.txid, record.claim
    packed = codec.pack_metadata(record)
    writes: list[Write] = [
        snap.set(life.head, codec.encode_head(txid + 1)),
        Create(
            life.claim(claim.key),
            codec.encode_claim(ClaimKey(key=claim.key, txid=txid, run_ms=claim.run_ms, op=snap.op)),
        ),
        Create(life.tx(txid), codec.encode_tx(record, packed[0] if packed else None)),
        outcome,
    ]
    if packed:
        ref, chunks = packed
        writes.extend(
            Create(life.chunk(codec.chunk_name(txid, ref, index)), chunk) for index, chunk in enumerate(chunks)
        )
    # Commits that go on meanwhile only make room, and the last transaction's metadata is fixed if no spout is opaque:
    # neither may make the coordinator list its source again.
    fixed = set() if snap.topology().definition.opaque else {life.tx(txid - 1)}
    unchecked = frozenset({life.commit, life.exceptions, *fixed})
    return Step(
        writes=tuple(writes),
        witness=life.claim(claim.key),
        result=Begun(record=record, txid=txid, new=True),
        unchecked=unchecked,
    )


# ---- emitter ---------------------------------------------------------------------------------------------------


def start_attempt(
    snap: Snapshot, txid: int, owner: Owner, metadata_of: MetadataOf | None, digest: str, replays: bool
) -> Step[TxRecord]:
    tx = _existing(snap, txid)
    if tx.status is Status.COMMITTING:
        raise batch_in_place(txid, tx.attempt)
    replays = replays or tx.status in (Status.FAILED, Status.SKIPPED)
    return _new_attempt(snap, tx, owner, metadata_of, digest, replays=replays)


def restart_attempt(
    snap: Snapshot, ticket: CommitTicket, owner: Owner, metadata_of: MetadataOf | None, digest: str
) -> Step[TxRecord]:
    tx = _of_ticket(snap, ticket)
    if tx.status is not Status.COMMITTING:
        raise no_commit_under_way(tx.txid, tx.status)
    return _new_attempt(snap, tx, owner, metadata_of, digest, replays=False)


def _new_attempt(
    snap: Snapshot, tx: TxRecord, owner: Owner, metadata_of: MetadataOf | None, digest: str, *, replays: bool
) -> Step[TxRecord]:
    chosen = of_next_attempt(snap, tx, metadata_of)
    record = _moved(snap, chosen, Status.PROCESSING, attempt=tx.attempt + 1, staged=None, owner=owner, plan=digest)
    later = [] if chosen.position == tx.position else invalidated_above(snap, tx.txid)
    writes: list[Write] = [write for one in (record, *later) for write in rewrite(snap, one)]
    if replays:
        to = "late" if tx.txid <= snap.pointer().committed else "replaying"
        writes += _exceptions_write(snap, tx.txid, to, *(one.txid for one in later))
    elif later:
        writes += _exceptions_write(snap, None, "", *(one.txid for one in later))
    # A lifecycle command makes no difference to an attempt.
    unchecked = frozenset({snap.life.topology})
    return Step(writes=tuple(writes), witness=snap.life.tx(tx.txid), result=record, unchecked=unchecked)


def processed(snap: Snapshot, txid: int, attempt: int, staged: StagedRef) -> Step[TxRecord] | Done[TxRecord]:
    tx = _of_attempt(snap, txid, attempt)
    if attempt == NO_ATTEMPT or tx.invalidated:
        raise never_attempted(txid)
    if tx.staged == staged:
        return Done(tx)
    record = _moved(snap, tx, Status.PROCESSED, staged=staged, error="", first_error="")
    listed = txid in snap.exceptions().replaying
    writes = (snap.set_tx(record), *(_exceptions_write(snap, txid, "") if listed else ()))
    # Only a newer attempt could put it on the list, and that changes its record.
    unchecked = frozenset() if listed else frozenset({snap.life.exceptions})
    return Step(writes=writes, witness=snap.life.tx(txid), result=record, unchecked=unchecked)


# ---- committer -------------------------------------------------------------------------------------------------


def gate(snap: Snapshot, txid: int, owner: Owner) -> Step[CommitTicket]:
    view = snap.view(txid)
    decision = decide_commit(view, txid)
    tx, staged = view.tx, view.tx.staged if view.tx else None
    if not isinstance(decision, Commit) or tx is None or staged is None:
        raise TransitionError(f"transaction {txid} cannot commit now: {why_not(decision)}", "Ask again later.")
    ticket = ticket_of(view, tx, staged)
    record = _moved(snap, tx, Status.COMMITTING, fence=ticket.fence, touched=True, owner=owner)
    pointer = replace(view.pointer, fence=ticket.fence)
    return Step(
        writes=(snap.set_tx(record), snap.set(snap.life.commit, codec.encode_pointer(pointer))),
        witness=snap.life.tx(txid),
        result=ticket,
        # Neither a new transaction nor a lifecycle command makes a difference to one whose turn has come.
        unchecked=frozenset({snap.life.head, snap.life.topology}),
    )


def committed(
    snap: Snapshot, ticket: CommitTicket, retention: int, late_rows: dict[str, int]
) -> Step[TxRecord] | Done[TxRecord]:
    if retention < 1:
        raise ConfigurationError(f"retention is {retention}", "Keep at least 1 committed transaction.")
    tx = snap.tx(ticket.txid)
    if tx is not None and tx.status is Status.COMMITTED and tx.fence == ticket.fence:
        return Done(tx)
    tx = _of_ticket(snap, ticket)
    require_all_states(snap.topology(), ticket)
    record = _moved(snap, tx, Status.COMMITTED, error="", first_error="", late_rows=late_rows)
    pointer, exceptions = snap.pointer(), snap.exceptions()
    after = forgotten(shifted(exceptions, tx.txid, ""), ticket.floor)
    writes: list[Write] = [snap.set_tx(record)]
    if after != exceptions:
        writes.append(snap.set(snap.life.exceptions, codec.encode_exceptions(after)))
    upto = pointer.committed
    if tx.txid > upto:
        upto = over_skipped(tx.txid, exceptions)
        writes.append(snap.set(snap.life.commit, codec.encode_pointer(replace(pointer, committed=upto))))
    writes += prune(snap, upto, after, retention, just_committed=tx.txid)
    return Step(writes=tuple(writes), witness=snap.life.tx(tx.txid), result=record)


# ---- ends ------------------------------------------------------------------------------------------------------


def attempt_failed(snap: Snapshot, txid: int, attempt: int, error: str) -> Step[TxRecord]:
    tx = _of_attempt(snap, txid, attempt)
    if tx.status in (Status.COMMITTED, Status.FAILED, Status.SKIPPED):
        raise TransitionError(
            f"transaction {txid} is {tx.status}: there is no attempt at work that could fail", "Nothing has to be done."
        )
    record = replace(tx.with_error(error), op=snap.op)
    return Step(writes=(snap.set_tx(record),), witness=snap.life.tx(txid), result=record)


def fail(snap: Snapshot, txid: int, attempt: int, error: str) -> Step[TxRecord] | Done[TxRecord]:
    tx = _of_attempt(snap, txid, attempt)
    if tx.status is Status.FAILED:
        return Done(tx)
    record = _moved(snap, tx.with_error(error), Status.FAILED)
    writes = (snap.set_tx(record), *_exceptions_write(snap, txid, "failed"))
    return Step(writes=writes, witness=snap.life.tx(txid), result=record)


def bar(snap: Snapshot, txid: int, owner: Owner) -> Step[CommitTicket]:
    view, tx = snap.view(txid), _existing(snap, txid)
    if not tx.touched or tx.status.is_final:
        raise nothing_to_take_back(tx)
    ticket = ticket_of(view, tx, None)
    record = replace(tx, op=snap.op, fence=ticket.fence, owner=owner)
    pointer = replace(view.pointer, fence=ticket.fence)
    return Step(
        writes=(snap.set_tx(record), snap.set(snap.life.commit, codec.encode_pointer(pointer))),
        witness=snap.life.tx(txid),
        result=ticket,
        # What the ticket says of states depends on the exceptions.
        unchecked=frozenset({snap.life.head, snap.life.topology}),
    )


def take_back(snap: Snapshot, ticket: CommitTicket, reason: str) -> Step[TxRecord]:
    tx = _of_ticket(snap, ticket)
    if not ticket.bars or not tx.touched:
        raise nothing_to_take_back(tx)
    known = tx if tx.status is Status.FAILED else _moved(snap, tx, Status.FAILED)
    record = replace(known.with_error(reason), op=snap.op, touched=False)
    writes = (snap.set_tx(record), *_exceptions_write(snap, tx.txid, "failed"))
    return Step(writes=writes, witness=snap.life.tx(tx.txid), result=record)


def skip(snap: Snapshot, txid: int, reason: str) -> Step[TxRecord] | Done[TxRecord]:
    tx = _existing(snap, txid)
    if tx.status is Status.SKIPPED:
        return Done(tx)
    if tx.invalidated:
        raise cannot_skip(txid)
    if tx.touched and not tx.status.is_final:
        raise may_be_held(snap.topology().name, txid)
    record = _moved(snap, tx.with_error(reason), Status.SKIPPED)
    pointer, exceptions = snap.pointer(), snap.exceptions()
    writes: list[Write] = [snap.set_tx(record), *_exceptions_write(snap, txid, "skipped")]
    upto = over_skipped(pointer.committed, shifted(exceptions, txid, "skipped"))
    if upto != pointer.committed:
        writes.append(snap.set(snap.life.commit, codec.encode_pointer(replace(pointer, committed=upto))))
    return Step(writes=tuple(writes), witness=snap.life.tx(txid), result=record)


# ---- parts -----------------------------------------------------------------------------------------------------


def _exceptions_write(snap: Snapshot, txid: int | None, to: str, *off: int) -> list[Write]:
    """:param txid: goes to the list `to`, see :func:`shifted`; None for none. :param off: go from every list."""
    old = snap.exceptions()
    after = old if txid is None else shifted(old, txid, to)
    for one in off:
        after = shifted(after, one, "")
    return [] if after == old else [snap.set(snap.life.exceptions, codec.encode_exceptions(after))]


def _moved(snap: Snapshot, tx: TxRecord, status: Status, **changes: Any) -> TxRecord:
    target = move(tx.status, status, txid=tx.txid)
    times_ms = {**tx.times_ms, target.value: snap.now_ms}
    return replace(tx, status=target, op=snap.op, times_ms=times_ms, **changes)


def _existing(snap: Snapshot, txid: int) -> TxRecord:
    tx = snap.tx(txid) if txid >= 1 else None
    if tx is not None:
        return tx
    next_txid = snap.next_txid()
    if 1 <= txid < next_txid:
        raise TransitionError(f"transaction {txid} is committed and its record was pruned", "Nothing has to be done.")
    raise TransitionError(f"transaction {txid} was never begun (the next one is {next_txid})", "Look at the txid.")


def _of_attempt(snap: Snapshot, txid: int, attempt: int) -> TxRecord:
    """:raises StaleAttemptError: `attempt` is not the current one (P4)."""
    tx = snap.tx(txid) if txid >= 1 else None
    if tx is None and 1 <= txid < snap.next_txid():
        raise StaleAttemptError(
            f"attempt {attempt} of transaction {txid} comes late: it is committed and its record was pruned",
            "Nothing has to be done.",
        )
    tx = tx or _existing(snap, txid)
    if tx.attempt != attempt:
        raise StaleAttemptError(
            f"attempt {attempt} of transaction {txid} is not the current one, which is {tx.attempt} ({tx.status})",
            "Stop and change nothing; the newer attempt goes on.",
        )
    return tx


def _of_ticket(snap: Snapshot, ticket: CommitTicket) -> TxRecord:
    """:raises FencedError: a newer ticket was given out, or the commit was taken back."""
    tx = snap.tx(ticket.txid)
    if tx is None or ticket.incarnation != snap.life.incarnation:
        found = "its record is gone" if tx is None else f"the ledger is {snap.life.incarnation}"
    elif tx.fence != ticket.fence:
        found = f"fence {tx.fence} was given out ({tx.status})"
    elif tx.attempt != ticket.attempt:
        found = f"attempt {tx.attempt} was started ({tx.status})"
    else:
        return tx
    raise FencedError(
        f"the ticket with fence {ticket.fence} for attempt {ticket.attempt} of transaction {ticket.txid} is void: "
        f"{found}",
        "Stop and change nothing; the newer committer goes on.",
    )
