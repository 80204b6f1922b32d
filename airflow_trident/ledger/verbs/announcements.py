"""The list of asset events. It stands beside `head` and `commit`, never in them, and no decision about a transaction
reads it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TypeVar

from airflow_trident.ledger.snapshot import Snapshot, Write
from airflow_trident.ledger.transact import Change, Unchanged
from airflow_trident.protocol.announcements import (
    MOST_AT_ONCE,
    AnnouncedEvents,
    Announcement,
    committed_txids,
    first_of,
)
from airflow_trident.protocol.durable_format import Format, plain_fields
from airflow_trident.protocol.records import Owner
from airflow_trident.protocol.txids import NO_TXIDS, Txids

T = TypeVar("T")
_FORMAT = Format(
    noun="the list of asset events",
    version=1,
    cure="Delete it: then events begin anew with what is committed from then on.",
)


def begin_events(snap: Snapshot) -> Change[None] | Unchanged[None]:
    """From now on each commit needs an event; earlier commits need none."""
    if events_at(snap) is not None:
        return Unchanged(None)
    return _written(snap, AnnouncedEvents(settled=committed_txids(snap.view(0))), None)


def announce(
    snap: Snapshot, *, by: Owner, delivered: Txids, given_up: Collection[Announcement], limit: int = MOST_AT_ONCE
) -> Change[Txids] | Unchanged[Txids]:
    """Takes on the events that are due, lowest txid first. Returns which; nobody else takes these on.

    :param delivered: transactions whose events Airflow has or had.
    :param given_up: announcements of ended tasks: those of their events that are not in `delivered` are due again.
    """
    before = events_at(snap) or AnnouncedEvents()
    after = before.after(delivered, given_up)
    assigned = first_of(after.due(snap.view(0)), limit)
    if assigned:
        announcement = Announcement(txids=assigned, by=by, since_ms=snap.now_ms)
        after = replace(after, announced=(*after.announced, announcement))
    return Unchanged(NO_TXIDS) if after == before else _written(snap, after, assigned)


def settle(snap: Snapshot, *, txids: Txids, by: Owner) -> Change[None] | Unchanged[None]:
    """These transactions need no event after all; `by` no longer brings theirs."""
    before = events_at(snap)
    if before is None:
        return Unchanged(None)
    announced = (
        replace(announcement, txids=announcement.txids - txids) if announcement.by == by else announcement
        for announcement in before.announced
    )
    kept = tuple(announcement for announcement in announced if announcement.txids)
    return _written(snap, AnnouncedEvents(settled=before.settled | txids, announced=kept), None)


def settled(snap: Snapshot, txids: Txids) -> tuple[Write, ...]:
    """What another verb writes with its own: these need no event, and soon nothing else will tell that."""
    before = events_at(snap)
    if before is None:
        return ()
    return (snap.set(snap.paths.events, encode_events(replace(before, settled=before.settled | txids), op=snap.op)),)


def events_at(snap: Snapshot) -> AnnouncedEvents | None:
    """None: nobody has asked for events. :raises CorruptRecordError: the list is damaged."""
    data = snap.data(snap.paths.events)
    return None if data is None else decode_events(data, snap.paths.events)


def decode_events(data: bytes, path: str) -> AnnouncedEvents:
    """:raises CorruptRecordError: the list is damaged."""
    return _FORMAT.build(AnnouncedEvents, _FORMAT.load(data, path), path)


def encode_events(events: AnnouncedEvents, *, op: str) -> bytes:
    """:param op: the operation that writes the record; it is noted in the record."""
    return _FORMAT.dump({"op": op, **plain_fields(events)}, "the list of asset events")


def _written(snap: Snapshot, events: AnnouncedEvents, outcome: T) -> Change[T]:
    write: Write = snap.put(snap.paths.events, encode_events(events, op=snap.op))
    # The pointer and the exceptions are checked: if they were read at two moments, a skipped transaction would look
    # committed.
    unchecked = frozenset({snap.paths.head, snap.paths.topology})
    return Change(writes=(write,), witness=snap.paths.events, result=outcome, unchecked=unchecked)
