"""The committer's verbs: tickets, COMMITTED, and taking a commit back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_trident.errors import ConfigurationError, TransitionError
from airflow_trident.ledger.begin_result import DEFAULT_RETENTION
from airflow_trident.ledger.refusals import nothing_to_take_back, why_not
from airflow_trident.ledger.snapshot import Snapshot, Write
from airflow_trident.ledger.transact import Change, Unchanged
from airflow_trident.ledger.verbs import parts
from airflow_trident.ledger.verbs.pruning import prune
from airflow_trident.ledger.verbs.tickets import ticket_of
from airflow_trident.protocol import codec
from airflow_trident.protocol.decide import Commit, decide_commit
from airflow_trident.protocol.exception_lists import forgotten, over_skipped, shifted
from airflow_trident.protocol.records import CommitTicket, Owner, TxRecord
from airflow_trident.protocol.state_gaps import require_all_states
from airflow_trident.protocol.statuses import Status


def gate(snap: Snapshot, txid: int, *, owner: Owner | str) -> Change[CommitTicket]:
    """PROCESSED or COMMITTING -> COMMITTING, with the next fence.

    :raises TransitionError: not its turn, or no staged batch; says what was found.
    """
    view = snap.view(txid)
    decision = decide_commit(view, txid)
    tx, staged = view.tx, view.tx.staged if view.tx else None
    if not isinstance(decision, Commit) or tx is None or staged is None:
        raise TransitionError(f"transaction {txid} cannot commit now: {why_not(decision)}", "Ask again later.")
    ticket = ticket_of(view, tx, staged)
    record = parts.moved(snap, tx, Status.COMMITTING, fence=ticket.fence, touched=True, owner=Owner.of(owner))
    pointer = replace(view.pointer, fence=ticket.fence)
    return Change(
        writes=(snap.set_tx(record), snap.set(snap.paths.commit, codec.encode_pointer(pointer))),
        witness=snap.paths.tx(txid),
        result=ticket,
        # Neither a new transaction nor a lifecycle command makes a difference to one whose turn has come.
        unchecked=frozenset({snap.paths.head, snap.paths.topology}),
    )


def committed(
    snap: Snapshot,
    ticket: CommitTicket,
    *,
    retention: int = DEFAULT_RETENTION,
    late_rows: Mapping[str, int] | None = None,
) -> Change[TxRecord] | Unchanged[TxRecord]:
    """COMMITTING -> COMMITTED, pointer and pruning in the same step.

    :param late_rows: see :class:`TxRecord`.
    :raises FencedError: a newer ticket was given out.
    """
    if retention < 1:
        raise ConfigurationError(f"retention is {retention}", "Keep at least 1 committed transaction.")
    tx = snap.tx(ticket.txid)
    if tx is not None and tx.status is Status.COMMITTED and tx.fence == ticket.fence:
        return Unchanged(tx)
    tx = parts.of_ticket(snap, ticket)
    require_all_states(snap.topology(), ticket)
    record = parts.moved(snap, tx, Status.COMMITTED, error="", first_error="", late_rows=dict(late_rows or {}))
    pointer, exceptions = snap.pointer(), snap.exceptions()
    after = forgotten(shifted(exceptions, tx.txid, ""), ticket.floor)
    writes: list[Write] = [snap.set_tx(record)]
    if after != exceptions:
        writes.append(snap.set(snap.paths.exceptions, codec.encode_exceptions(after)))
    upto = pointer.committed
    if tx.txid > upto:
        upto = over_skipped(tx.txid, exceptions)
        writes.append(snap.set(snap.paths.commit, codec.encode_pointer(replace(pointer, committed=upto))))
    writes += prune(snap, upto, after, retention, just_committed=tx.txid)
    return Change(writes=tuple(writes), witness=snap.paths.tx(tx.txid), result=record)


def bar(snap: Snapshot, txid: int, *, owner: Owner | str) -> Change[CommitTicket]:
    """The next fence for a transaction of which a commit has begun, for who takes that back; its status stays.

    The ticket `bars`: with it :meth:`State.bar` makes every state refuse the tickets before it.

    :raises TransitionError: no commit of it has begun, or it is COMMITTED.
    """
    view, tx = snap.view(txid), parts.existing(snap, txid)
    if not tx.touched or tx.status.is_final:
        raise nothing_to_take_back(tx)
    ticket = ticket_of(view, tx, None)
    record = replace(tx, op=snap.op, fence=ticket.fence, owner=Owner.of(owner))
    pointer = replace(view.pointer, fence=ticket.fence)
    return Change(
        writes=(snap.set_tx(record), snap.set(snap.paths.commit, codec.encode_pointer(pointer))),
        witness=snap.paths.tx(txid),
        result=ticket,
        # What the ticket says of states depends on the exceptions.
        unchecked=frozenset({snap.paths.head, snap.paths.topology}),
    )


def take_back(snap: Snapshot, ticket: CommitTicket, reason: str) -> Change[TxRecord]:
    """-> FAILED, and no longer `touched`: no state holds the batch, and none will take it by an older ticket.

    :param ticket: of :func:`bar`; every state has been barred with it and holds nothing of the transaction.
    :raises FencedError: a newer ticket was given out, or another attempt begun.
    """
    tx = parts.of_ticket(snap, ticket)
    if not ticket.bars or not tx.touched:
        raise nothing_to_take_back(tx)
    known = tx if tx.status is Status.FAILED else parts.moved(snap, tx, Status.FAILED)
    record = replace(known.with_error(reason), op=snap.op, touched=False)
    writes = (snap.set_tx(record), *parts.exceptions_write(snap, tx.txid, "failed"))
    return Change(writes=writes, witness=snap.paths.tx(tx.txid), result=record)
