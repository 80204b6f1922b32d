"""What the verbs have in common: they find the record of a call, and move it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_trident.errors import FencedError, StaleAttemptError, TransitionError
from airflow_trident.ledger.refusals import passed_over
from airflow_trident.ledger.snapshot import Snapshot, Write
from airflow_trident.protocol import codec
from airflow_trident.protocol.exceptional_txids import shifted
from airflow_trident.protocol.records import CommitTicket, Status, TxRecord, move


def existing(snap: Snapshot, txid: int) -> TxRecord:
    tx = snap.tx(txid) if txid >= 1 else None
    if tx is not None:
        return tx
    next_txid = snap.next_txid()
    if 1 <= txid < next_txid:
        raise TransitionError(f"transaction {txid} is committed and its record was pruned", "Nothing has to be done.")
    raise TransitionError(f"transaction {txid} was never begun (the next one is {next_txid})", "Look at the txid.")


def of_attempt(snap: Snapshot, txid: int, attempt: int) -> TxRecord:
    """:raises StaleAttemptError: `attempt` is not the current one (P4)."""
    tx = snap.tx(txid) if txid >= 1 else None
    if tx is None and 1 <= txid < snap.next_txid():
        raise StaleAttemptError(
            f"attempt {attempt} of transaction {txid} comes late: it is committed and its record was pruned",
            "Nothing has to be done.",
        )
    tx = tx or existing(snap, txid)
    if tx.attempt != attempt:
        raise StaleAttemptError(
            f"attempt {attempt} of transaction {txid} is not the current one, which is {tx.attempt} ({tx.status})",
            "Stop and change nothing; the newer attempt goes on.",
        )
    return tx


def of_ticket(snap: Snapshot, ticket: CommitTicket) -> TxRecord:
    """:raises FencedError: a newer ticket was given out, or the commit was taken back."""
    tx = snap.tx(ticket.txid)
    if tx is None or ticket.incarnation != snap.paths.incarnation:
        reason = "its record is gone" if tx is None else f"the ledger is {snap.paths.incarnation}"
    elif tx.fence != ticket.fence:
        reason = f"fence {tx.fence} was given out ({tx.status})"
    elif tx.attempt != ticket.attempt:
        reason = f"attempt {tx.attempt} was started ({tx.status})"
    else:
        return tx
    raise FencedError(
        f"the ticket with fence {ticket.fence} for attempt {ticket.attempt} of transaction {ticket.txid} is void: "
        f"{reason}",
        "Stop and change nothing; the newer committer goes on.",
    )


def require_not_passed_over(snap: Snapshot, tx: TxRecord) -> None:
    """A group goes over SKIPPED transactions while the commit pointer is still below them. Until that commit has ended,
    a SKIPPED one can be neither replayed before it nor late: a state may hold a higher transaction, or get one at any
    moment.

    :raises PassedOverError: a commit of a transaction above it has begun.
    """
    if tx.status is not Status.SKIPPED or tx.txid <= snap.pointer().committed:
        return
    above = range(tx.txid + 1, snap.next_txid())
    snap.prefetch_transactions(above)
    by = next((record.txid for record in map(snap.tx, above) if record is not None and record.touched), None)
    if by is not None:
        raise passed_over(snap.topology().name, tx.txid, by)


def moved(snap: Snapshot, tx: TxRecord, status: Status, **changes: Any) -> TxRecord:
    target = move(tx.status, status, txid=tx.txid)
    times_ms = {**tx.times_ms, target.value: snap.now_ms}
    return replace(tx, status=target, op=snap.op, times_ms=times_ms, **changes)


def exceptions_write(snap: Snapshot, txid: int | None, to: str, *off: int) -> list[Write]:
    """:param txid: moved to the list `to`, see :func:`shifted`; None for none. :param off: removed from every list."""
    old = snap.exceptions()
    after = old if txid is None else shifted(old, txid, to)
    for moved_txid in off:
        after = shifted(after, moved_txid, "")
    return [] if after == old else [snap.set(snap.paths.exceptions, codec.encode_exceptions(after))]
