"""The lists of exceptional txids, and how they change. Pure."""

from __future__ import annotations

from dataclasses import replace

from airflow_trident.protocol.records import Exceptions
from airflow_trident.protocol.txids import Txids


def may_still_come(exceptions: Exceptions) -> Txids:
    """Txids that are listed and may still be committed. At or below the commit pointer no other can."""
    return exceptions.skipped | Txids.of(*exceptions.failed, *exceptions.late)


def needed_at_any_age(exceptions: Exceptions) -> Txids:
    """Txids whose records, staged batches and files of work no retention takes away: somebody may be at work on them,
    or begin to. Whatever deletes what belongs to a transaction asks this."""
    return exceptions.skipped | Txids.of(*exceptions.unfinished)


def shifted(exceptions: Exceptions, txid: int, to: str) -> Exceptions:
    """Moves `txid` to the list named `to` (a field of Exceptions) and out of all others; "": to no list."""

    def moved(name: str, txids: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted({*txids, txid} if name == to else {*txids} - {txid}))

    return Exceptions(
        failed=moved("failed", exceptions.failed),
        skipped=exceptions.skipped | Txids.of(txid) if to == "skipped" else exceptions.skipped - Txids.of(txid),
        late=moved("late", exceptions.late),
        replaying=moved("replaying", exceptions.replaying),
        closed=exceptions.closed,
    )


def over_skipped(pointer: int, exceptions: Exceptions) -> int:
    """Where the commit pointer goes when it is at `pointer`: past the skipped transactions that follow directly."""
    return exceptions.skipped.run_up_from(pointer)


def closed(exceptions: Exceptions, txid: int) -> Exceptions:
    """Moves `txid` from the skipped to the closed ones."""
    closing = Txids.of(txid)
    return replace(exceptions, skipped=exceptions.skipped - closing, closed=exceptions.closed | closing)


def forgotten(exceptions: Exceptions, floor: int) -> Exceptions:
    """Drops the closed txids that every state has forgotten: all states got a ticket with this floor."""
    return replace(exceptions, closed=exceptions.closed - Txids.span(1, floor - 1))
