"""Waiting for other transactions: what is waited for, as pure decisions, and the wait inside a worker.

The same decisions are used by the trigger, which waits without a worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from airflow_trident.ledger.base import Ledger
from airflow_trident.protocol.decide import (
    AlreadyCommitted,
    Blocked,
    Closed,
    Commit,
    EmitAgain,
    Unknown,
    Wait,
    decide_commit,
)
from airflow_trident.protocol.records import NO_ATTEMPT, LedgerView, TxRecord
from airflow_trident.protocol.statuses import Status


class Until(StrEnum):
    """What a wait on a transaction is for."""

    TURN = "turn"
    """Every lower transaction is COMMITTED or SKIPPED."""
    READY = "ready"
    """Its turn has come and its own staged batch is there."""
    PASSED = "passed"
    """It is COMMITTED or SKIPPED itself: one transaction less is pending."""


@dataclass(frozen=True, slots=True)
class Over:
    """The wait has come to its end. `committed`: the transaction is committed already."""

    committed: bool = False


@dataclass(frozen=True, slots=True)
class Abandoned:
    """Transaction `by` is staged, or lost its batch, and nobody is left who would commit it: the next commit sweep must
    take it along."""

    by: int
    why: str


Verdict: TypeAlias = Over | Wait | Blocked | Unknown


def decide_wait(view: LedgerView, txid: int, until: Until) -> Verdict:
    """Is the wait over, is it in vain (:class:`Blocked` by a FAILED transaction), or what must change first?"""
    if until is Until.PASSED and view.tx is not None and view.tx.status.lets_others_pass:
        return Over(committed=view.tx.status is Status.COMMITTED)
    decision = decide_commit(view, txid)
    if isinstance(decision, AlreadyCommitted):
        return Over(committed=True)
    if isinstance(decision, Closed):
        return Over()  # its committer says so
    if isinstance(decision, Blocked | Unknown):
        return decision
    if until is Until.PASSED:
        return Wait(on=txid, why=f"transaction {txid} is not committed yet")
    # EmitAgain: the committer emits it again by itself.
    if isinstance(decision, Commit | EmitAgain) or (until is Until.TURN and decision.on == txid):
        return Over()
    return decision


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
    skip = "" if culprit.touched else f"; `airflow trident skip {topology} {number}` lets the others pass"
    return f"{story} See {show}; if nobody works on it, `airflow trident backfill {topology} --txid {number}`{skip}."


Look: TypeAlias = Callable[[TxRecord], Abandoned | None]
"""Called with the record of the transaction that everybody waits for, each time it stood still for a while. It may
change the ledger: mark a transaction whose tasks are gone as FAILED."""


def wait_in_worker(
    ledger: Ledger,
    txid: int,
    until: Until,
    *,
    wait_s: float,
    look_every_s: float,
    look: Look,
    say: Callable[[str], None],
) -> Verdict | Abandoned:
    """Block on the ledger's watch until the wait is over or in vain, at most `wait_s` seconds.

    :param say: gets the :func:`waiting_story`, again whenever it changes.
    """
    deadline = time.monotonic() + wait_s
    said = ""
    while True:
        view = ledger.view(txid)
        verdict = decide_wait(view, txid, until)
        if not isinstance(verdict, Wait):
            return verdict
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
        abandoned = look(culprit) if culprit is not None else None
        if abandoned is not None:
            return abandoned
