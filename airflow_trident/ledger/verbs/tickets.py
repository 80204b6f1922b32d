"""Tickets, the same for every ledger."""

from __future__ import annotations

from airflow_trident.protocol.records import NOTHING_STAGED, CommitTicket, LedgerView, StagedRef, TxRecord
from airflow_trident.protocol.state_gaps import for_states


def ticket_of(view: LedgerView, tx: TxRecord, staged: StagedRef | None) -> CommitTicket:
    """The ticket with the next fence.

    :param staged: the batch that it brings into the states; None: nothing, the ticket only bars earlier ones.
    """
    return CommitTicket(
        topology=view.topology.name,
        incarnation=view.topology.incarnation,
        txid=tx.txid,
        attempt=tx.attempt,
        fence=view.pointer.fence + 1,
        position=tx.position,
        staged=NOTHING_STAGED if staged is None else staged,
        late=tx.txid <= view.pointer.committed,
        time_ms=tx.time_ms,
        begun_ms=tx.begun_ms,
        bars=staged is None,
        **for_states(view, tx.txid, barred=staged is None),
    )
