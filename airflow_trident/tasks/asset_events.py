"""Exactly one event of a topology's asset for each committed transaction, no matter which task committed it.

A task cannot write an event itself: Airflow writes a task's events when it records the task's success. So the ledger
keeps a list of announced events (:mod:`airflow_trident.protocol.announcements`). As its last step a task announces its
events there; a later task asks Airflow which of them exist.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import Asset

from airflow_trident.errors import ConfigurationError, UnknownTopologyError
from airflow_trident.protocol.announcements import AnnouncedEvents, Announcement
from airflow_trident.protocol.records import Owner, Status, TxRecord
from airflow_trident.protocol.txids import NO_TXIDS, Txids
from airflow_trident.tasks.airflow_versions import PARTITIONS_ASSETS, add_partition_event, asset_events_since
from airflow_trident.tasks.asking_airflow import state_of_task
from airflow_trident.tasks.task_states import MAY_HAVE_SUCCEEDED

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, Context

    from airflow_trident.ledger.ledger import Ledger
    from airflow_trident.topology.topology import Topology

_log = logging.getLogger(__name__)

POSITION_CHARACTERS = 4_000
"""A longer position is left out of the event. The ledger has it as long as it keeps the transaction."""
_NOT_THERE = (
    "asset %s: Airflow has no events of transactions %s, and %s, which was to bring them, is %s. They count as "
    "brought, since Airflow deletes old ones (`airflow db clean`). If a person marked that task as success, or "
    "deleted it, before it had ended, nobody has had them: create them by Airflow's REST API "
    "(POST /api/v2/assets/events)."
)
CLOCKS_DIFFER = timedelta(hours=1)
"""The largest difference allowed between the clocks of a worker and of Airflow's API server."""


def asset_of(topology: Topology) -> Asset | None:
    """The asset that gets an event for each commit of the topology, checked while the DAG is built.

    :raises ConfigurationError: the name of the asset is invalid, or this Airflow has no partitions of assets.
    """
    name = topology.asset
    if not isinstance(name, str):
        raise ConfigurationError(
            f"the asset of topology {topology.name!r} is {name!r}", 'Give its name: Topology("orders", asset="orders").'
        )
    if not name:
        return None
    if not PARTITIONS_ASSETS:
        raise ConfigurationError(
            f"topology {topology.name!r} has an asset, and this Airflow has no partitions of assets",
            "Install Airflow 3.3, or give outlets=[Asset(...)] instead.",
        )
    try:
        return Asset(name)
    except ValueError as error:
        raise ConfigurationError(
            f"the asset {name!r} of topology {topology.name!r}: {error}", "Give it another name."
        ) from error


def partition_key(topology: str, txid: int) -> str:
    """``orders/0000000000000000042``: keys sort as txids do."""
    return f"{topology}/{txid:019d}"


def _keys_of(topology: Topology, ledger: Ledger, txids: Txids, records: Mapping[int, TxRecord]) -> dict[int, str]:
    """The partition key of the event of each transaction. In a bound topology that is its partition. Of a pruned one
    the index has it, unless the partition has had two others since: then the event is no longer needed."""
    if topology.partitions is None:
        return {txid: partition_key(topology.name, txid) for txid in txids}
    keys: dict[int, str] = {}
    if any(txid not in records for txid in txids):
        entries = ledger.partitions().items()
        keys = {txid: key for key, entry in entries for txid in (entry.before, entry.tx) if txid in txids}
    for txid, record in records.items():
        if record.partition is not None:
            keys[txid] = record.partition.key
    return {txid: keys[txid] for txid in txids if txid in keys}


def begin(topology: Topology, ledger: Ledger) -> None:
    """Called before a task commits that neither drains nor replays: those do this themselves."""
    from airflow_trident.runtime.outcomes import ask_for_events, register

    try:
        ask_for_events(ledger, topology)
    except UnknownTopologyError:
        register(ledger, topology)


def bring(task: BaseOperator, topology: Topology, ledger: Ledger, context: Context, by: Owner) -> Txids:
    """Announce all missing events and add them to the task, so that Airflow writes them when the task succeeds. This is
    the task's last step. Does nothing for a topology without an asset.

    :param by: the task.
    :returns: the transactions whose events the task brings.
    """
    from airflow_trident.ledger.announcements import announce, announced_events, settle

    asset = asset_of(topology)
    if asset is None:
        return NO_TXIDS
    confirmed, given_up = _settled(announced_events(ledger), ledger, asset, by)
    assigned = announce(ledger, by=by, delivered=confirmed, given_up=given_up)
    records = (
        {record.txid: record for record in ledger.transactions(assigned.lowest or 1, assigned.highest)}
        if assigned
        else {}
    )
    keys = _keys_of(topology, ledger, assigned, records)
    closed = assigned & Txids.of(*(txid for txid, record in records.items() if record.status is Status.CLOSED))
    needless = closed | (assigned - Txids.of(*keys))
    if needless:
        settle(ledger, txids=needless, by=by)
    assigned = assigned - needless
    # Airflow writes an event for each outlet of a successful task, so the asset is an outlet only if it has events.
    task.outlets = [*(outlet for outlet in task.outlets if outlet != asset), *([asset] if assigned else [])]
    for txid in assigned:
        extra = event_extra(topology.name, ledger.paths().incarnation, txid, records.get(txid))
        add_partition_event(context, asset, keys[txid], extra)
    if assigned:
        _log.info("asset %s: %d events, of transactions %s", asset.name, len(assigned), assigned)
    return assigned


def event_extra(topology: str, incarnation: str, txid: int, record: TxRecord | None) -> dict[str, Any]:
    """The `extra` of an event. `rows`: by state; `position`: stream -> its last metadata, left out if it is long.
    `partition` and `n`: the key of a partition, and the number of its transaction."""
    extra: dict[str, Any] = {"topology": topology, "incarnation": incarnation, "txid": txid}
    if record is None:
        return {**extra, "pruned": True}
    extra["attempt"] = record.attempt
    if record.partition is not None:
        extra |= {"partition": record.partition.key, "n": record.partition.n}
    if record.staged is not None:
        extra |= {"rows_read": record.staged.rows_read, "rows": dict(record.staged.rows)}
    if len(json.dumps(record.position)) <= POSITION_CHARACTERS:
        extra["position"] = record.position
    return extra


def _settled(
    events: AnnouncedEvents | None, ledger: Ledger, asset: Asset, me: Owner
) -> tuple[Txids, list[Announcement]]:
    """The announced events that Airflow has or had, and the announcements of tasks that have ended.

    Reads a task's state before its events, because Airflow writes both in one step. A task that may have succeeded may
    have brought its events: they are not brought again if Airflow has them no more, because its old rows are deleted
    (`airflow db clean`) while the topology rests.
    """
    states = {announcement: _state_of(announcement.by, me) for announcement in (events.announced if events else ())}
    ended = [announcement for announcement, state in states.items() if state not in (None, "running")]
    if not ended:
        return NO_TXIDS, []
    oldest = datetime.fromtimestamp(min(announcement.since_ms for announcement in ended) / 1000, UTC)
    try:
        delivered = _txids_of(asset_events_since(asset, oldest - CLOCKS_DIFFER), ledger)
    except Exception as error:  # noqa: BLE001 - the next task asks again; what is committed is no failure of this one
        _log.warning("Airflow does not say which events asset %s has (%s: %s)", asset.name, type(error).__name__, error)
        return NO_TXIDS, []
    confirmed = delivered & AnnouncedEvents(announced=tuple(ended)).in_hands
    for announcement in ended:
        missing = announcement.txids - delivered
        if missing and states[announcement] in MAY_HAVE_SUCCEEDED:
            _log.warning(_NOT_THERE, asset.name, missing, announcement.by.who, states[announcement])
            confirmed |= missing
    return confirmed, ended


def _state_of(who: Owner, me: Owner) -> str | None:
    """The state of the announcing task: it brings no more events unless it is running, or its state is not known. An
    earlier try of this task has ended without success; or a person cleared it, and wants it to do its work again."""
    return "failed" if who.is_same_task(me) else state_of_task(who)


def _txids_of(extras: Iterable[Any], ledger: Ledger) -> Txids:
    """The txids of events of this incarnation of the topology. Others may have the same asset."""
    whose = (ledger.topology_name, ledger.paths().incarnation)
    events = (
        event
        for event in extras
        if isinstance(event, dict) and (event.get("topology"), event.get("incarnation")) == whose
    )
    return Txids.of(*(event["txid"] for event in events if isinstance(event.get("txid"), int)))
