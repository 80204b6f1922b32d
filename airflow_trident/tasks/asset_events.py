"""One event of a topology's asset for each committed transaction, whoever committed it, never two.

A task cannot make an event by itself: Airflow writes the events of a task in the step in which it notes its success. So
the list of who brings what is in the ledger (:mod:`airflow_trident.protocol.announcements`): a task announces there,
as the last thing that it does, and who comes later asks Airflow what became of that.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import Asset

from airflow_trident.errors import ConfigurationError, UnknownTopologyError
from airflow_trident.ledger.announcements import announce, announced_events, begin_events, settle
from airflow_trident.protocol.announcements import AnnouncedEvents, Announcement
from airflow_trident.protocol.records import Owner, TxRecord
from airflow_trident.protocol.statuses import Status
from airflow_trident.protocol.txids import NO_TXIDS, Txids
from airflow_trident.tasks.airflow_versions import PARTITIONS_ASSETS, add_partition_event, asset_events_since
from airflow_trident.tasks.liveness import state_of_task

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, Context

    from airflow_trident.ledger.base import Ledger
    from airflow_trident.topology.topology import Topology

_log = logging.getLogger(__name__)

POSITION_CHARACTERS = 4_000
"""A longer position is left out of the event: the ledger has it as long as it keeps the transaction."""
CLOCKS_DIFFER = timedelta(hours=1)
"""So far the clocks of a worker and of Airflow's API server may be apart."""


def asset_of(topology: Topology) -> Asset | None:
    """The asset that the topology's commits are events of, checked while the DAG is built.

    :raises ConfigurationError: it is no name of an asset, or this Airflow has no partitions of assets.
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


def begin(topology: Topology, ledger: Ledger) -> None:
    """Before the task commits anything: from now on each commit needs an event."""
    if topology.asset:
        try:
            begin_events(ledger)
        except UnknownTopologyError:
            ledger.register(topology.definition())
            begin_events(ledger)


def bring(task: BaseOperator, topology: Topology, ledger: Ledger, context: Context, by: Owner) -> Txids:
    """Announce what is due, and give the task its events, which become Airflow's when it succeeds. The last thing that
    a task does; none for a topology without an asset.

    :param by: the task.
    """
    asset = asset_of(topology)
    if asset is None:
        return NO_TXIDS
    told, given_up = _settled(announced_events(ledger), ledger, asset, by)
    mine = announce(ledger, by=by, told=told, given_up=given_up)
    records = {one.txid: one for one in ledger.transactions(mine.lowest or 1, mine.highest)} if mine else {}
    closed = mine & Txids.of(*(txid for txid, one in records.items() if one.status is Status.CLOSED))
    if closed:
        settle(ledger, txids=closed, by=by)
    mine = mine - closed
    # Airflow makes an event of each outlet of a task that succeeds: also where it has none to tell of.
    task.outlets = [*(one for one in task.outlets if one != asset), *([asset] if mine else [])]
    for txid in mine:
        extra = event_extra(topology.name, ledger.paths().incarnation, txid, records.get(txid))
        add_partition_event(context, asset, partition_key(topology.name, txid), extra)
    if mine:
        _log.info("asset %s: %d events, of transactions %s", asset.name, len(mine), mine)
    return mine


def event_extra(topology: str, incarnation: str, txid: int, record: TxRecord | None) -> dict[str, Any]:
    """What an event says. `rows`: by state; `position`: stream -> its last metadata, left out where it is long."""
    extra: dict[str, Any] = {"topology": topology, "incarnation": incarnation, "txid": txid}
    if record is None:
        return {**extra, "pruned": True}
    extra["attempt"] = record.attempt
    if record.staged is not None:
        extra |= {"rows_read": record.staged.rows_read, "rows": dict(record.staged.rows)}
    if len(json.dumps(record.position)) <= POSITION_CHARACTERS:
        extra["position"] = record.position
    return extra


def _settled(
    events: AnnouncedEvents | None, ledger: Ledger, asset: Asset, me: Owner
) -> tuple[Txids, list[Announcement]]:
    """What Airflow has of what others have announced; and the announcements of tasks that have ended.

    The task's state is asked before its events: both are written in one step.
    """
    over = [one for one in (events.announced if events else ()) if _is_over(one.by, me)]
    if not over:
        return NO_TXIDS, []
    oldest = datetime.fromtimestamp(min(one.since_ms for one in over) / 1000, UTC)
    try:
        known = _txids_of(asset_events_since(asset, oldest - CLOCKS_DIFFER), ledger)
    except Exception as error:  # noqa: BLE001 - the next task asks again; what is committed is no failure of this one
        _log.warning("Airflow does not say which events asset %s has (%s: %s)", asset.name, type(error).__name__, error)
        return NO_TXIDS, []
    announced = Txids.joined(part for one in over for part in one.txids.ranges)
    return known & announced, over


def _is_over(who: Owner, me: Owner) -> bool:
    """Will nothing more come of what it announced? Of an earlier try of the task itself nothing does."""
    if who.is_same_task(me):
        return True
    state = state_of_task(who)
    return state is not None and state != "running"


def _txids_of(extras: Iterable[Any], ledger: Ledger) -> Txids:
    """Of events of this life of the topology: another life, or another topology, may have the same asset."""
    whose = (ledger.topology_name, ledger.paths().incarnation)
    mine = (one for one in extras if isinstance(one, dict) and (one.get("topology"), one.get("incarnation")) == whose)
    return Txids.of(*(one["txid"] for one in mine if isinstance(one.get("txid"), int)))
