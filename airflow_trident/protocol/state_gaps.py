"""What a state must hold: every COMMITTED transaction since the state belongs to its topology.

A gap is legitimate if the ledger lists the transaction as not committed (SKIPPED, FAILED, being replayed) or closed for
good, or if a person gave it up for this very state. The state lost anything else: it was restored from an old copy or
deleted, or it is one of several copies. Pure.
"""

from __future__ import annotations

from typing import Any

from airflow_trident.errors import FencedError, StateBehindLedgerError
from airflow_trident.protocol.exceptional_txids import may_still_come
from airflow_trident.protocol.records import CommitTicket, LedgerView, TopologyRecord
from airflow_trident.protocol.txids import Txids


def known_gaps(view: LedgerView, state: str) -> Txids:
    """The transactions that a state may lack, as far as the ledger knows."""
    lost = Txids.joined(part for loss in view.topology.lost if loss.state == state for part in loss.txids.ranges)
    return may_still_come(view.exceptions) | view.exceptions.closed | lost


def needed_by(view: LedgerView, state: str, through: int) -> Txids:
    """The txids up to `through` that the state must hold, if all of them are committed or exceptions. A state that the
    ledger does not list begins with the next commit."""
    return Txids.span(view.topology.since.get(state, through + 1), through) - known_gaps(view, state)


def floor_of(view: LedgerView, txid: int) -> int:
    """Nothing below it may still come once `txid` is about to commit: every transaction there is committed or
    closed."""
    lowest = may_still_come(view.exceptions).lowest
    above = max(txid, view.pointer.committed + 1)
    return above if lowest is None else min(lowest, above)


def for_states(view: LedgerView, txid: int, *, barred: bool) -> dict[str, Any]:
    """What a ticket for `txid` tells the states: `needed`, `floor` and `states` of :class:`CommitTicket`.

    :param barred: the ticket bars, whether its turn has come or not: transactions before it in its group need not be
        committed.
    """
    names, ticket_txids = view.topology.definition.states, Txids.of(txid)
    through = view.pointer.committed if barred else max(view.pointer.committed, txid - 1)
    needed = {name: needed_by(view, name, through) for name in names}
    return {
        "needed": {name: txids - ticket_txids for name, txids in needed.items()},
        "floor": floor_of(view, txid),
        "states": frozenset(names),
    }


def require_all_states(topology: TopologyRecord, ticket: CommitTicket) -> None:
    """:raises FencedError: a state joined after the ticket was given out, so nobody asked it to take the batch."""
    new = topology.definition.states.keys() - ticket.states
    if new:
        raise FencedError(
            f"state {min(new)!r} came to topology {topology.name!r} while transaction {ticket.txid} was committed",
            "Stop and change nothing; it is committed again, into that state too.",
        )


def state_behind(topology: str, state: str, lacking: Txids, high: int) -> StateBehindLedgerError:
    """
    :param high: the highest txid that the state holds, 0 if it holds none.
    """
    holds = f"holds transactions up to {high} and" if high else "holds nothing and"
    return StateBehindLedgerError(
        f"state {state!r} of topology {topology!r} {holds} lacks {lacking}, which the ledger calls COMMITTED: it was "
        "restored from an old copy or deleted, or this is not the copy that was written before",
        "Nothing was changed. If workers see different copies of it, let them see the same one. Then `airflow trident "
        f"rebuild {topology} --state {state}` replays into it what it lacks.",
    )
