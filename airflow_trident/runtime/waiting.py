"""Waiting for other transactions: one loop for every waiter, in a worker or in a triggerer.

Whose a commit is, and when one that somebody else began is taken over.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from airflow_trident.errors import BlockedError
from airflow_trident.ledger.workers import is_alive
from airflow_trident.protocol import diagnosis
from airflow_trident.protocol.decide import Blocked, Wait
from airflow_trident.protocol.records import Command, CommitTicket, LedgerView, Status, TxRecord

if TYPE_CHECKING:
    from airflow_trident.ledger.ledger import Ledger

T = TypeVar("T")
E = TypeVar("E")

Look: TypeAlias = Callable[[TxRecord], E | None]
"""Called with the record of the transaction that everybody waits for, each time nothing has changed for a while. It may
change the ledger: mark a transaction whose tasks are gone as FAILED. An answer other than None ends the wait."""


def nobody_looks(record: TxRecord) -> None:
    """For a waiter that knows no more than the ledger does."""


def blocked(topology: str, by: Blocked) -> BlockedError:
    """The error of every waiter for a FAILED transaction, or for one that is SKIPPED itself."""
    why = diagnosis.blocked(topology, by)
    return BlockedError(f"topology {topology}: {why.why}", why.cure)


def paused(topology: str, command: Command) -> str:
    """The text of every task that begins nothing because of a lifecycle command."""
    return diagnosis.paused(topology, command).of(topology)


class WatchedLedger(Protocol):
    """What a wait needs from a ledger. In a worker it may block the thread, in a triggerer it must not."""

    async def view(self, txid: int) -> LedgerView: ...

    async def wait_for_change(self, txid: int, seen: LedgerView, timeout_s: float) -> bool: ...


async def wait(
    ledger: WatchedLedger,
    topology: str,
    txid: int,
    decide: Callable[[], Awaitable[tuple[T | Wait, LedgerView | None]]],
    *,
    wait_s: float,
    look_every_s: float,
    look: Callable[[TxRecord], Awaitable[E | None]],
    say: Callable[[str], None],
    looks_of_others: int = 1,
) -> T | Wait | E:
    """The loop of every waiter: blocks on the ledger's watch until `decide` gives something other than Wait, for at
    most `wait_s` seconds. It looks at least once before it gives up: otherwise a caller that waits for 0 seconds, again
    and again, would never look.

    :param decide: asked again after every change, and when nothing has changed for `look_every_s`; a committer sweeps
        in it. It returns the view that it decided on, if there is one: so a change after that is not missed.
    :param look: see :data:`Look`.
    :param say: gets the text of :func:`diagnosis.waiting`, and again whenever it changes.
    :param looks_of_others: only one of this many looks is done if another waiter is nearer to the transaction that
        everybody waits for.
    """
    deadline = time.monotonic() + wait_s
    last_story, looks = "", 0
    while True:
        verdict, view = await decide()
        if not isinstance(verdict, Wait):
            return verdict
        view = await ledger.view(txid) if view is None else view
        lowest = view.lowest_uncommitted(txid) or txid
        why = diagnosis.waiting(topology, txid, verdict.why, (await ledger.view(lowest)).tx)
        story = f"transaction {txid} of topology {topology} waits: {why}"
        if story != last_story:
            say(story)
            last_story = story
        left_s = deadline - time.monotonic()
        if left_s <= 0 and looks:
            return verdict
        seen = view if verdict.on == txid else await ledger.view(verdict.on)
        if seen.pointer != view.pointer:
            continue  # the pointer moved between the two reads
        if left_s > 0 and await ledger.wait_for_change(verdict.on, seen, min(left_s, look_every_s)):
            continue
        looks += 1
        if verdict.on != lowest and looks % looks_of_others:
            continue
        culprit = (await ledger.view(lowest)).tx
        ended = await look(culprit) if culprit is not None else None
        if ended is not None:
            return ended


class _InThisThread:
    """A ledger whose calls block."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def view(self, txid: int) -> LedgerView:
        return self._ledger.view(txid)

    async def wait_for_change(self, txid: int, seen: LedgerView, timeout_s: float) -> bool:
        return self._ledger.wait_for_change(txid, seen, timeout_s)


def wait_while_undecided(
    ledger: Ledger,
    txid: int,
    decide: Callable[[], tuple[T | Wait, LedgerView | None]],
    *,
    wait_s: float,
    look_every_s: float,
    look: Look[E],
    say: Callable[[str], None],
) -> T | Wait | E:
    """:func:`wait` in a worker, where everything blocks."""

    async def decide_here() -> tuple[T | Wait, LedgerView | None]:
        return decide()

    async def look_here(record: TxRecord) -> E | None:
        return look(record)

    waiting = wait(
        _InThisThread(ledger),
        ledger.topology_name,
        txid,
        decide_here,
        wait_s=wait_s,
        look_every_s=look_every_s,
        look=look_here,
        say=say,
    )
    try:
        waiting.send(None)
    except StopIteration as done:
        answer: T | Wait | E = done.value
        return answer
    raise AssertionError("a wait that blocks has given up its thread")


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
