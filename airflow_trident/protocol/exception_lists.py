"""The lists of txids that are not on the straight path, and how they change. Pure."""

from __future__ import annotations

from dataclasses import replace

from airflow_trident.protocol.records import Exceptions
from airflow_trident.protocol.txids import Txids


def may_still_come(exceptions: Exceptions) -> Txids:
    """What is not committed and may be, some day: at or below the commit pointer, only that."""
    return exceptions.skipped | Txids.of(*exceptions.failed, *exceptions.late)


def shifted(exceptions: Exceptions, txid: int, to: str) -> Exceptions:
    """`txid` in the list named `to` (a field of Exceptions) and in no other; "" for none at all."""

    def one(name: str, txids: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted({*txids, txid} if name == to else {*txids} - {txid}))

    return Exceptions(
        failed=one("failed", exceptions.failed),
        skipped=exceptions.skipped | Txids.of(txid) if to == "skipped" else exceptions.skipped - Txids.of(txid),
        late=one("late", exceptions.late),
        replaying=one("replaying", exceptions.replaying),
        closed=exceptions.closed,
    )


def over_skipped(upto: int, exceptions: Exceptions) -> int:
    """How far the commit pointer moves when it stands at `upto`: over the skipped transactions that follow directly."""
    return exceptions.skipped.run_up_from(upto)


def closed(exceptions: Exceptions, txid: int) -> Exceptions:
    """With `txid` among the closed ones, and not among the skipped ones any more."""
    one = Txids.of(txid)
    return replace(exceptions, skipped=exceptions.skipped - one, closed=exceptions.closed | one)


def forgotten(exceptions: Exceptions, floor: int) -> Exceptions:
    """Without the closed ones that every state has forgotten by now: a ticket with this floor went to all of them."""
    return replace(exceptions, closed=exceptions.closed - Txids.span(1, floor - 1))
