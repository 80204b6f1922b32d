"""Reading and writing the list of asset events of a topology: see :mod:`airflow_trident.protocol.announcements`."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from airflow_trident.ledger.ledger import Ledger
from airflow_trident.ledger.transact import Prefetch
from airflow_trident.ledger.verbs import announcements as verbs
from airflow_trident.protocol.announcements import AnnouncedEvents, Announcement
from airflow_trident.protocol.records import Owner
from airflow_trident.protocol.txids import Txids


def announced_events(ledger: Ledger) -> AnnouncedEvents | None:
    """None: nobody has asked for events. :raises CorruptRecordError: the list is damaged."""
    paths = ledger.paths()
    return verbs.events_at(ledger.transactor.fresh(paths, [paths.events]))


def begin_events(ledger: Ledger) -> None:
    """From now on each commit needs an event. Does nothing if that is so already."""
    ledger.run(verbs.begin_events, _ahead(ledger))


def announce(ledger: Ledger, *, by: Owner, delivered: Txids, given_up: Collection[Announcement]) -> Txids:
    """See :func:`airflow_trident.ledger.verbs.announcements.announce`."""
    return ledger.run(partial(verbs.announce, by=by, delivered=delivered, given_up=given_up), _ahead(ledger))


def settle(ledger: Ledger, *, txids: Txids, by: Owner) -> None:
    """See :func:`airflow_trident.ledger.verbs.announcements.settle`."""
    ledger.run(partial(verbs.settle, txids=txids, by=by), _ahead(ledger))


def _ahead(ledger: Ledger) -> Prefetch:
    paths = ledger.paths()
    return Prefetch([*paths.about(0), paths.events])
