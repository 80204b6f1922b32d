"""Whose a commit is, and when one that somebody else began is taken over."""

from __future__ import annotations

import time

from airflow_trident.ledger.base import Ledger
from airflow_trident.ledger.workers import is_alive
from airflow_trident.protocol.records import CommitTicket, TxRecord
from airflow_trident.protocol.statuses import Status

TAKEOVER_S = 60.0
"""A commit whose owner is not known to be alive is taken over this long after its gate was opened."""


def is_left_to_its_committer(ledger: Ledger, tx: TxRecord) -> bool:
    """The one rule for a commit that somebody else began: leave it to its owner while that is a live worker of the
    topology, and for :data:`TAKEOVER_S` in any case. Clocks that differ change that time, at most to twice as much; a
    take-over too early only costs work, because the fence decides."""
    if tx.status is not Status.COMMITTING:
        return False
    began_ms = tx.times_ms.get(Status.COMMITTING.value, 0)
    if abs(time.time() * 1000 - began_ms) < TAKEOVER_S * 1000:
        return True
    return is_alive(ledger.workers(), tx.owner)


def is_as_left(now: TxRecord | None, looked_at: TxRecord | None, ticket: CommitTicket | None) -> bool:
    """Is the record as this committer found it, or, with a ticket, as its gate made it? Then nobody else is at it."""
    if now is None or ticket is None:
        return now == looked_at
    return (now.status, now.fence, now.attempt) == (Status.COMMITTING, ticket.fence, ticket.attempt)
