"""What the page shows, read from the ledger: plain JSON, no secrets, and nothing of DAGs that the user may not see."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Any, TypeVar

from airflow_trident.hooks.zookeeper import ZooKeeperHook
from airflow_trident.ledger.base import Ledger
from airflow_trident.protocol.records import NO_ATTEMPT, LedgerView, TxRecord

T = TypeVar("T")
SHOWN = 200
"""So many of the latest transactions, besides all that are not committed."""


def topologies() -> list[dict[str, Any]]:
    """One summary per topology, sorted by name.

    :raises TridentError: the ledger cannot be read; says why.
    """
    hook = ZooKeeperHook()
    return [_read(hook, name, lambda ledger: summary(ledger.view(0))) for name in hook.topology_names()]


def transactions(topology: str, visible: Collection[str]) -> dict[str, Any]:
    """The summary and the transactions of a topology, latest first.

    :param visible: ids of the DAGs that the user may see.
    """

    def read(ledger: Ledger) -> dict[str, Any]:
        view = ledger.view(0)
        first = max(1, min(view.pointer.committed + 1, view.next_txid - SHOWN))
        records = list(ledger.transactions(first))
        known = {record.txid for record in records}
        older = [*view.exceptions.unfinished, *view.exceptions.skipped]
        records += [tx for txid in older if txid not in known and (tx := ledger.view(txid).tx) is not None]
        rows = [row(record, visible) for record in records]
        workers = [
            {**asdict(worker), "task": worker.task if worker.task.partition("/")[0] in visible else ""}
            for worker in ledger.workers()
        ]
        return {
            **summary(view),
            "transactions": sorted(rows, key=lambda one: -int(one["txid"])),
            "workers": workers,
        }

    return _read(ZooKeeperHook(), topology, read)


def transaction(topology: str, txid: int, visible: Collection[str]) -> dict[str, Any] | None:
    """One transaction with its batches' metadata; None if there is no record of it (never begun, or pruned)."""

    def read(ledger: Ledger) -> dict[str, Any] | None:
        record = ledger.view(txid).tx
        if record is None:
            return None
        shown = row(record, visible)
        return {**shown, "metadata": record.metadata if shown["visible"] else None}

    return _read(ZooKeeperHook(), topology, read)


def summary(view: LedgerView) -> dict[str, Any]:
    """`committed`: everything up to it is committed or skipped; `begun`: the highest txid; `notes`: for people."""
    definition = view.topology.definition
    return {
        "name": view.topology.name,
        "incarnation": view.topology.incarnation,
        "command": view.topology.command,
        "committed": view.pointer.committed,
        "begun": view.next_txid - 1,
        "pending": view.pending,
        "failed": list(view.exceptions.failed),
        "skipped": list(view.exceptions.skipped),
        "replaying": list(view.exceptions.replaying),
        "late": list(view.exceptions.late),
        "streams": {name: str(spout) for name, spout in definition.spouts.items()},
        "states": {name: state.text for name, state in definition.states.items()},
        "notes": [f"State {name} is {note}." for name, state in definition.states.items() for note in state.notes],
    }


def row(record: TxRecord, visible: Collection[str]) -> dict[str, Any]:
    """A transaction as the page shows it. What names its run or its data is for those who may see the DAG."""
    may_see = not record.claim.dag_id or record.claim.dag_id in visible
    staged = record.staged
    return {
        "txid": record.txid,
        "status": record.status,
        "attempt": None if record.attempt == NO_ATTEMPT else record.attempt,
        "invalidated": record.invalidated,
        "rows_read": staged.rows_read if staged else None,
        "rows": staged.rows if staged else {},
        "bytes": staged.bytes if staged else None,
        "times_ms": record.times_ms,
        "visible": may_see,
        "streams": sorted(record.metadata),
        "error": record.error if may_see else "",
        "owner": str(record.owner) if may_see else "",
        "dag_id": record.claim.dag_id if may_see else "",
        "run_id": record.claim.run_id if may_see else "",
        "map_index": record.claim.map_index,
    }


def _read(hook: ZooKeeperHook, topology: str, action: Callable[[Ledger], T]) -> T:
    with hook.get_ledger(topology) as ledger:
        return action(ledger)
