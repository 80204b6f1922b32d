"""The emitter's verbs: an attempt begins, succeeds or fails.

Verbs that name an attempt raise StaleAttemptError and change nothing if it is not the current one (P4, L5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from airflow_trident.errors import TransitionError
from airflow_trident.ledger.answers import MetadataOf, Processed, StagedAttempt
from airflow_trident.ledger.refusals import batch_in_place, never_attempted, no_commit_under_way
from airflow_trident.ledger.snapshot import Snapshot, Write
from airflow_trident.ledger.transact import Change, Unchanged
from airflow_trident.ledger.verbs import common, topology
from airflow_trident.ledger.verbs.commits import gate
from airflow_trident.ledger.verbs.group_steps import Together, require_order
from airflow_trident.ledger.verbs.opaque import invalidated_above, of_next_attempt, rewrite
from airflow_trident.ledger.verbs.partitions import require_may_come
from airflow_trident.protocol.records import NO_ATTEMPT, CommitTicket, Owner, Status, TxRecord
from airflow_trident.types import Json


def attempt(
    snap: Snapshot,
    members: Sequence[int | CommitTicket],
    *,
    owner: Owner | str,
    metadata_of: MetadataOf | None = None,
    plan: str = "",
    replays: bool = False,
) -> Change[tuple[TxRecord, ...]] | Unchanged[tuple[TxRecord, ...]]:
    """New attempts, for as many members as fit into one step: PROCESSING with attempt + 1. The returned records prove
    that the attempts are durable (P3).

    A txid may be FAILED or SKIPPED: that is a replay. It moves the txid to a list of replayed transactions
    (`Exceptions.replaying`, `late`), where it stays until it is PROCESSED, or COMMITTED if it is late (L11).
    A ticket leads from COMMITTING back to PROCESSING: the staged batch is gone and must be emitted again.

    If the topology has opaque streams and the transaction is above the commit pointer, every attempt decides the part
    of these streams anew (P2, L10), except the first attempt of a batch that was just recorded.

    :param members: in the order of their txids.
    :param owner: who works on them; a text is the name of a program.
    :param plan: digest of the plan that the attempts run.
    :param metadata_of: asked for the opaque streams, with their position after the previous transaction. Its answer for
        other streams is ignored; a stream that it does not name has nothing in the batch.
    :param replays: each txid is a replay whatever the status was: nobody but its owner would go on with it.
    :raises TransitionError: a txid is COMMITTED already, or COMMITTING with its staged batch in place.
    :raises FencedError: a ticket is void.
    :raises PassedOverError: a txid is SKIPPED, and a commit that went over it has not ended.
    :raises SupersededError: a txid is SKIPPED, and a newer transaction has its partition.
    :raises LateBatchError: a txid of a bound topology is SKIPPED, and the commit pointer has passed it.
    :raises InvalidatedError: the previous transaction has no batch.
    :raises ConfigurationError: an attempt has to decide a batch, and there is no `metadata_of`.
    """
    txids = [member.txid if isinstance(member, CommitTicket) else member for member in members]
    require_order(txids)
    snap.prefetch_transactions(txids)
    together = Together(snap)
    start = partial(_start, owner=Owner.of(owner), metadata_of=metadata_of, plan=plan, replays=replays)
    return together.change(together.while_they_fit(partial(start, member=member) for member in members))


def _start(
    snap: Snapshot,
    *,
    member: int | CommitTicket,
    owner: Owner,
    metadata_of: MetadataOf | None,
    plan: str,
    replays: bool,
) -> Change[TxRecord]:
    if isinstance(member, CommitTicket):
        tx = common.of_ticket(snap, member)
        if tx.status is not Status.COMMITTING:
            raise no_commit_under_way(tx.txid, tx.status)
        return _new_attempt(snap, tx, owner, metadata_of, plan, replays=False)
    tx = common.existing(snap, member)
    if tx.status is Status.COMMITTING:
        raise batch_in_place(tx.txid, tx.attempt)
    require_may_come(snap, tx)
    common.require_not_passed_over(snap, tx)
    replays = replays or tx.status in (Status.FAILED, Status.SKIPPED)
    return _new_attempt(snap, tx, owner, metadata_of, plan, replays=replays)


def _new_attempt(
    snap: Snapshot, tx: TxRecord, owner: Owner, metadata_of: MetadataOf | None, plan: str, *, replays: bool
) -> Change[TxRecord]:
    chosen = of_next_attempt(snap, tx, metadata_of)
    over = chosen.with_past_attempt()
    afresh: dict[str, Any] = {"attempt": tx.attempt + 1, "staged": None, "checks": {}}
    record = common.moved(snap, over, Status.PROCESSING, owner=owner, plan=plan, **afresh)
    later = [] if chosen.position == tx.position else invalidated_above(snap, tx.txid)
    writes: list[Write] = [write for changed in (record, *later) for write in rewrite(snap, changed)]
    if replays:
        to = "late" if tx.txid <= snap.pointer().committed else "replaying"
        writes += common.exceptions_write(snap, tx.txid, to, *(follower.txid for follower in later))
    elif later:
        writes += common.exceptions_write(snap, None, "", *(follower.txid for follower in later))
    # An attempt does not depend on lifecycle commands.
    unchecked = frozenset({snap.paths.topology})
    return Change(writes=tuple(writes), witness=snap.paths.tx(tx.txid), result=record, unchecked=unchecked)


def processed(
    snap: Snapshot, done: Sequence[StagedAttempt], *, gate_by: Owner | str = ""
) -> Change[Processed] | Unchanged[Processed]:
    """PROCESSING -> PROCESSED, for as many as fit into one step. The same step writes the chunks with their staged
    batches, if the ledger is to keep these.

    :param done: in the order of their txids.
    :param gate_by: who commits them: the same step opens the :func:`gate` of what it records. If that has no more room
        for one of them, a later step opens its gate.
    :raises StaleAttemptError: one of the attempts is not the current one.
    :raises TransitionError: one was not attempted; or the turn of the first one has not come to pass the gate.
    """
    txids = [staged_attempt.txid for staged_attempt in done]
    require_order(txids)
    snap.prefetch_transactions(txids)
    together = Together(snap)
    records = together.while_they_fit(partial(_processed, done=staged_attempt) for staged_attempt in done)
    members = [record.txid for record in records] if gate_by else []
    tickets = together.then(partial(gate, members=members, owner=gate_by)) if members else ()
    return together.change(Processed(records=records, tickets=tickets))


def _processed(snap: Snapshot, *, done: StagedAttempt) -> Change[TxRecord] | Unchanged[TxRecord]:
    txid, staged = done.txid, done.staged
    tx = common.of_attempt(snap, txid, done.attempt)
    if done.attempt == NO_ATTEMPT or tx.invalidated:
        raise never_attempted(txid)
    if tx.staged == staged:
        return Unchanged(tx)
    kept = replace(staged, content=b"", checks={})
    record = common.moved(snap, tx, Status.PROCESSED, staged=kept, error="", first_error="", checks=dict(staged.checks))
    listed = txid in snap.exceptions().replaying
    off = common.exceptions_write(snap, txid, "") if listed else ()
    writes = (snap.set_tx(record), *off, *snap.staged_chunk(staged))
    # Only a newer attempt could put it on the list, and that would change its record.
    unchecked = frozenset() if listed else frozenset({snap.paths.exceptions})
    return Change(writes=writes, witness=snap.paths.tx(txid), result=record, unchecked=unchecked)


def fail(
    snap: Snapshot,
    txid: int,
    attempt: int,
    error: str,
    *,
    retry: bool = False,
    skip: str = "",
    checks: Mapping[str, Json] | None = None,
) -> Change[TxRecord] | Unchanged[TxRecord]:
    """Notes on the record that the attempt failed. Without a retry: -> FAILED.

    :param retry: another attempt will come: the status stays PROCESSING or COMMITTING.
    :param skip: why it is SKIPPED in the same step if there is no retry: whoever waits must not see it FAILED in
        between, and end for that. It stays FAILED if a state may hold it, or if it has no batch to leave out.
    :param checks: the verdicts, if it failed by these; None: the record keeps what it has.
    :raises TransitionError: there is no attempt at work that could be tried again.
    """
    if retry:
        return _noted(snap, txid, attempt, error)
    together = Together(snap)
    record = together.then(partial(_failed, txid=txid, attempt=attempt, error=error, checks=checks))
    if skip and not record.touched and not record.invalidated:
        record = together.then(partial(topology.skip, txid=txid, reason=skip))
    return together.change(record)


def _noted(snap: Snapshot, txid: int, attempt: int, error: str) -> Change[TxRecord]:
    tx = common.of_attempt(snap, txid, attempt)
    if tx.status in (Status.COMMITTED, Status.FAILED, Status.SKIPPED):
        raise TransitionError(
            f"transaction {txid} is {tx.status}: there is no attempt at work that could fail", "Nothing has to be done."
        )
    record = replace(tx.with_error(error).with_past_attempt(ended_ms=snap.now_ms, error=error), op=snap.op)
    return Change(writes=(snap.set_tx(record),), witness=snap.paths.tx(txid), result=record)


def _failed(
    snap: Snapshot, *, txid: int, attempt: int, error: str, checks: Mapping[str, Json] | None
) -> Change[TxRecord] | Unchanged[TxRecord]:
    tx = common.of_attempt(snap, txid, attempt)
    if tx.status is Status.FAILED:
        return Unchanged(tx)
    over = tx.with_error(error).with_past_attempt(ended_ms=snap.now_ms, error=error)
    kept = over.checks if checks is None else dict(checks)
    record = common.moved(snap, over, Status.FAILED, checks=kept)
    writes = (snap.set_tx(record), *common.exceptions_write(snap, txid, "failed"))
    return Change(writes=writes, witness=snap.paths.tx(txid), result=record)
