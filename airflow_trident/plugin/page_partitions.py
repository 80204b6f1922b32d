"""The partitions of a bound topology as the page shows them, and what a redo of some of them is about.

An answer has one month of days or hours, or one year of weeks or months.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from airflow_trident.errors import ConfigurationError, TransitionError
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.protocol.partitions import Partition, Partitions, PartitionStep, recorded
from airflow_trident.protocol.records import LedgerView, TxRecord
from airflow_trident.runtime.partition_status import PartitionStatus, partition_statuses

_BY_YEAR = frozenset({PartitionStep.WEEK, PartitionStep.MONTH})
_PERIOD = re.compile(r"([0-9]{4})(?:-([0-9]{2}))?")


def calendar(view: LedgerView) -> Partitions | None:
    """None: the topology is not bound to partitions."""
    return recorded(view.topology.definition)


def described(partitions: Partitions | None) -> dict[str, Any] | None:
    names = ("step", "timezone", "begin")
    return None if partitions is None else {name: str(getattr(partitions, name)) for name in names}


# ---- the grid ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Period:
    """The partitions that begin in a month, or in a year. `before`, `after`: the names of the next ones."""

    name: str
    first: Partition
    last: Partition
    before: str
    after: str


def period(partitions: Partitions, name: str, now: datetime) -> Period:
    """:param name: ``2026-11``, of weeks and months ``2026``; "" for the one that is now.
    :raises ConfigurationError: it is neither.
    """
    newest = max(partitions.of(now), partitions.parse(partitions.begin), key=lambda partition: partition.start)
    oldest = partitions.parse(partitions.begin)
    name = name or _name_of(partitions, newest)
    match = _PERIOD.fullmatch(name)
    by_year = partitions.step in _BY_YEAR
    if match is None or by_year != (match[2] is None) or not 1 <= int(match[2] or 1) <= 12:
        raise ConfigurationError(f"{name!r} is no period", f"Write it as {_name_of(partitions, newest)}.")
    year, month = int(match[1]), int(match[2] or 1)
    following = (year + 1, 1) if by_year or month == 12 else (year, month + 1)
    first = partitions.of(_begin(partitions, year, month))
    last = partitions.of(_begin(partitions, *following) - timedelta(seconds=1))
    if last.start < oldest.start or first.start > newest.start:
        return period(partitions, _name_of(partitions, newest), now)
    return Period(
        name,
        max(first, oldest, key=lambda partition: partition.start),
        min(last, newest, key=lambda partition: partition.start),
        _name_of(partitions, partitions.before(first)) if first.start > oldest.start else "",
        _name_of(partitions, partitions.after(last)) if last.start < newest.start else "",
    )


def _begin(partitions: Partitions, year: int, month: int) -> datetime:
    """The first moment of a month; of weeks, of ISO's year."""
    local = date.fromisocalendar(year, 1, 1) if partitions.step is PartitionStep.WEEK else date(year, month, 1)
    return datetime(local.year, local.month, local.day, tzinfo=ZoneInfo(partitions.timezone)).astimezone(UTC)


def _name_of(partitions: Partitions, partition: Partition) -> str:
    return partition.key[:4] if partitions.step in _BY_YEAR else partition.key[:7]


def grid(
    ledger: Ledger, name: str, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> dict[str, Any] | None:
    """The partitions of a period; None: the topology is not bound.

    :raises ConfigurationError: this is no period.
    """
    partitions = calendar(ledger.view(0))
    if partitions is None:
        return None
    shown = period(partitions, name, clock())
    statuses = partition_statuses(ledger, partitions, shown.first.key, shown.last.key, clock=clock)
    return {
        **(described(partitions) or {}),
        "period": shown.name,
        "before": shown.before,
        "after": shown.after,
        "cells": list(map(_cell, statuses)),
    }


def _cell(status: PartitionStatus) -> dict[str, Any]:
    """Without errors: they are for those who may see the DAG, and rows of the list have them."""
    return {
        "key": status.key,
        "status": status.status,
        "n": status.n,
        "txid": status.txid,
        "rows": None if status.rows is None else sum(status.rows.values()),
        "committed_txid": status.committed_txid,
        "committed_ms": status.committed_ms,
        "start_ms": _ms(status.partition.start),
        "end_ms": _ms(status.partition.end),
        "complete_ms": _ms(status.complete_at),
    }


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


# ---- transactions -----------------------------------------------------------------------------------------------


def latest_of(ledger: Ledger, partitions: Partitions | None, key: str) -> int | None:
    """The partition has no transaction above this txid; None: it may, as one that a person closed has left the index.

    :raises ConfigurationError: it is none of the topology's partitions.
    """
    if partitions is None:
        return 0
    seen = ledger.partition(partitions.parse(key).key)
    last = seen.tx.partition.n if seen.tx is not None and seen.tx.partition is not None else seen.entry.n
    return seen.entry.tx if last == seen.entry.n else None


def partition_now(ledger: Ledger, record: TxRecord) -> dict[str, int] | None:
    """The last transaction of the partition that a transaction has, and the one that the states have."""
    if record.partition is None:
        return None
    seen = ledger.partition(record.partition.key)
    return {"n": seen.entry.n, "txid": seen.entry.tx, "committed_txid": seen.committed_txid}


# ---- redo -------------------------------------------------------------------------------------------------------


def dags_of_redo(
    ledger: Ledger, view: LedgerView, first: str, last: str, revision: int | None, now: datetime
) -> set[str]:
    """The DAGs of the transactions that these partitions have.

    :param revision: of the only one, as it was shown.
    :raises ConfigurationError: they are none of the topology's partitions, or not over.
    :raises TransitionError: another request has changed it since then.
    """
    partitions = calendar(view)
    if partitions is None:
        raise ConfigurationError(
            f"topology {view.topology.name} is not bound to partitions", "Replay its transactions by txid."
        )
    begin, end = partitions.parse(first), partitions.parse(last or first)
    if end.start < begin.start:
        raise ConfigurationError(f"{first} to {last} is no range of partitions", "Give the earlier one first.")
    if partitions.complete_at(end) > now:
        complete = partitions.complete_at(end)
        raise ConfigurationError(
            f"the partition {end.key} is complete at {complete:%Y-%m-%dT%H:%MZ}", "Ask for it then."
        )
    seen = ledger.seen_partitions(begin.key, end.key, metadata=False)
    if revision is not None and revision != (seen[begin.key].entry.n if begin.key in seen else 0):
        raise TransitionError(
            f"the partition {begin.key} has moved: it is at revision {seen[begin.key].entry.n} now", "Look at it again."
        )
    return {tx.claim.dag_id for each in seen.values() for tx in (each.tx, each.committed) if tx is not None}
