"""Waiting for other transactions in a worker: one loop for everybody who does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from airflow_trident.ledger.base import Ledger
from airflow_trident.protocol.decide import Wait
from airflow_trident.protocol.records import NO_ATTEMPT, LedgerView, TxRecord

T = TypeVar("T")
E = TypeVar("E")

Look: TypeAlias = Callable[[TxRecord], E | None]
"""Called with the record of the transaction that everybody waits for, each time it stood still for a while. It may
change the ledger: mark a transaction whose tasks are gone as FAILED. What it answers ends the wait."""


def nobody_looks(record: TxRecord) -> None:
    """For who knows no more than the ledger does."""


def lowest_uncommitted(view: LedgerView, txid: int) -> int | None:
    """The lowest transaction below `txid` that must still commit: the one that all the others wait for."""
    skipped = view.exceptions.skipped
    return next((lower for lower in range(view.pointer.committed + 1, txid) if lower not in skipped), None)


def waiting_story(topology: str, txid: int, why: str, culprit: TxRecord | None) -> str:
    """What a waiting task says: what it waits for, who is at that, and how to go on without waiting.

    :param culprit: the record of :func:`lowest_uncommitted`, or that of the transaction itself.
    """
    story = f"transaction {txid} of topology {topology} waits: {why}."
    if culprit is None:
        return story
    number = culprit.txid
    attempt = f", attempt {culprit.attempt}" if culprit.attempt != NO_ATTEMPT else ", not attempted yet"
    by = f" by {culprit.owner}" if culprit.owner else ""
    failed = f", last error: {culprit.error.splitlines()[0][:200]}" if culprit.error else ""
    story += f" Transaction {number} is {culprit.status}{attempt}{by}{failed}."
    show = f"`airflow trident ledger show {topology} {number}`"
    if number == txid:
        return f"{story} See {show}."
    others = ""
    if not culprit.touched:
        others = f"; `airflow trident skip {topology} {number}` lets the others pass"
    elif culprit.error:
        others = f"; `airflow trident take-back {topology} {number}` if its commit can never succeed"
    return f"{story} See {show}; if nobody works on it, `airflow trident backfill {topology} --txid {number}`{others}."


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
    """Block on the ledger's watch until there is something else to say than Wait, at most `wait_s` seconds.

    :param decide: asked again whenever something has changed, or nothing has for `look_every_s`; a committer sweeps in
        it. It gives the view that it decided on, if there is one: what changes after that is not missed.
    :param say: gets the :func:`waiting_story`, again whenever it changes.
    """
    deadline = time.monotonic() + wait_s
    said = ""
    while True:
        verdict, view = decide()
        if not isinstance(verdict, Wait):
            return verdict
        view = ledger.view(txid) if view is None else view
        culprit = ledger.view(lowest_uncommitted(view, txid) or txid).tx
        story = waiting_story(ledger.topology_name, txid, verdict.why, culprit)
        if story != said:
            say(story)
            said = story
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return verdict
        seen = view if verdict.on == txid else ledger.view(verdict.on)
        if ledger.wait_for_change(verdict.on, seen, min(left_s, look_every_s)):
            continue
        culprit = ledger.view(lowest_uncommitted(view, txid) or txid).tx
        ended = look(culprit) if culprit is not None else None
        if ended is not None:
            return ended
