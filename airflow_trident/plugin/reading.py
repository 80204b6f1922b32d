"""What the page shows, read from the ledger: plain JSON, no secrets, and nothing of DAGs that the user may not see.

One ZooKeeper session per request, however many topologies there are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from airflow_trident.errors import TridentError
from airflow_trident.hooks.zookeeper import ZooKeeperHook
from airflow_trident.ledger.base import Ledger
from airflow_trident.ledger.open import Ledgers
from airflow_trident.ledger.workers import Worker
from airflow_trident.protocol.outcomes import CoordinatorOutcome
from airflow_trident.protocol.records import NO_ATTEMPT, LedgerView, TxRecord
from airflow_trident.tasks.task_instances import abandoned

SHOWN = 200
"""So many of the latest transactions, besides all that are not committed."""
ASKED = 20
"""So many of the latest tell which DAGs a topology belongs to, where the others are not looked at."""
DEADLINE_S = 5.0
"""Of each call to ZooKeeper: a page that asks again soon must not hold a thread of the API server for long."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a user may see. `dags`: ids of the DAGs; `unowned`: also what belongs to none, such as the transactions of a
    program, because the user may see connections."""

    dags: frozenset[str]
    unowned: bool

    def may_see(self, dag_ids: Iterable[str]) -> bool:
        """Something that belongs to these DAGs together."""
        named = {dag_id for dag_id in dag_ids if dag_id}
        return not self.dags.isdisjoint(named) if named else self.unowned


def names(sight: Sight, dag_id: str = "", run_id: str = "") -> dict[str, Any]:
    """`names`: of all topologies, sorted; `of_dag`: of those with transactions of this DAG, those of the run first."""
    with _ledgers() as ledgers:
        every = ledgers.names()
        if not dag_id or dag_id not in sight.dags:
            return {"names": every, "of_dag": []}
        runs = {name: _runs_of(ledgers.ledger(name), dag_id) for name in every}
        found = [name for name in every if runs[name]]
        return {"names": every, "of_dag": sorted(found, key=lambda name: (run_id not in runs[name], name))}


def topologies(sight: Sight) -> list[dict[str, Any]]:
    """One summary per topology, sorted by name.

    :raises TridentError: the ledger cannot be read; says why.
    """
    with _ledgers() as ledgers:
        return [_summary_of(ledgers.ledger(name), sight) for name in ledgers.names()]


def transactions(topology: str, sight: Sight, txid: int | None = None) -> dict[str, Any]:
    """The summary and the transactions of a topology, latest first.

    :param txid: with the `details` of this one; None there if there is no record of it.
    """
    with _ledgers() as ledgers:
        ledger = ledgers.ledger(topology)
        view = ledger.view(0)
        records, workers, outcome = _records(ledger, view), ledger.workers(), ledger.coordinator()
        chosen = None if txid is None else ledger.view(txid).tx
    visible = sight.may_see(_dags_of(records, outcome))
    gone = abandoned(records, workers)
    rows = [row(record, sight, visible, gone.get(record.txid, "")) for record in records]
    return {
        **summary(view, outcome, sight, visible),
        "transactions": sorted(rows, key=lambda one: -int(one["txid"])),
        "workers": [_worker(worker, sight, visible) for worker in workers],
        "details": None if chosen is None else details(chosen, sight, visible),
    }


def transaction(topology: str, txid: int, sight: Sight) -> dict[str, Any] | None:
    """One transaction with its batches' metadata; None if there is no record of it (never begun, or pruned)."""
    with _ledgers() as ledgers:
        ledger = ledgers.ledger(topology)
        view = ledger.view(txid)
        if view.tx is None:
            return None
        near = [*_latest(ledger, view), view.tx]
        return details(view.tx, sight, sight.may_see(_dags_of(near, ledger.coordinator())))


# ---- as JSON ---------------------------------------------------------------------------------------------------


def summary(view: LedgerView, outcome: CoordinatorOutcome | None, sight: Sight, visible: bool) -> dict[str, Any]:
    """`committed`: everything up to it is committed or skipped; `begun`: the highest txid; `coordinator`: how it ended
    last, None if nothing was said; `notes`: for people.

    :param visible: may the user see what the topology reads and writes?
    """
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
        "coordinator": _coordinator(view, outcome, sight, visible),
        "visible": visible,
        "streams": {name: str(spout) for name, spout in definition.spouts.items() if visible},
        "states": {name: state.text for name, state in definition.states.items() if visible},
        "notes": [
            f"State {name} is {note}." for name, state in definition.states.items() for note in state.notes if visible
        ],
    }


def row(record: TxRecord, sight: Sight, visible: bool, abandoned: str = "") -> dict[str, Any]:
    """A transaction as the page shows it. What names its run or its data is for those who may see its DAG; where it has
    none, that of the topology.

    :param abandoned: why nobody will take it further by itself.
    """
    may_see = sight.may_see([record.claim.dag_id]) if record.claim.dag_id else visible
    staged = record.staged
    return {
        "txid": record.txid,
        "status": record.status,
        "attempt": None if record.attempt == NO_ATTEMPT else record.attempt,
        "invalidated": record.invalidated,
        "abandoned": bool(abandoned),
        "why": abandoned if may_see else "",
        "rows_read": staged.rows_read if staged else None,
        "rows": staged.rows if staged and may_see else {},
        "rows_staged": sum(staged.rows.values()) if staged else None,
        "bytes": staged.bytes if staged else None,
        "times_ms": record.times_ms,
        "plan": record.plan[:16] if may_see else "",
        "late_rows": record.late_rows if may_see else {},
        "visible": may_see,
        "streams": sorted(record.metadata) if may_see else [],
        "error": record.all_errors if may_see else "",
        "owner": str(record.owner) if may_see else "",
        "dag_id": record.claim.dag_id if may_see else "",
        "run_id": record.claim.run_id if may_see else "",
        "map_index": record.claim.map_index,
    }


def details(record: TxRecord, sight: Sight, visible: bool) -> dict[str, Any]:
    """`metadata_text`: the same as text, because browsers round numbers above 2^53."""
    shown = row(record, sight, visible)
    metadata = record.metadata if shown["visible"] else None
    text = "" if metadata is None else json.dumps(metadata, indent=1, ensure_ascii=False)
    return {**shown, "metadata": metadata, "metadata_text": text}


def _coordinator(
    view: LedgerView, outcome: CoordinatorOutcome | None, sight: Sight, visible: bool
) -> dict[str, Any] | None:
    if outcome is None:
        return None
    now = outcome.now(view.next_txid)
    may_see = sight.may_see([now.dag_id]) if now.dag_id else visible
    return {
        "kind": now.kind,
        "is_bad": now.is_bad,
        "time_ms": now.time_ms,
        "lag_ms": now.lag_ms,
        "dag_id": now.dag_id if may_see else "",
        "run_id": now.run_id if may_see else "",
        "error": now.error if may_see else "",
        "lag": now.lag if may_see else {},
    }


def _worker(worker: Worker, sight: Sight, visible: bool) -> dict[str, Any]:
    may_see = visible or sight.may_see([worker.task.partition("/")[0]])
    hidden = {} if may_see else {"host": "", "pid": 0, "task": ""}
    shown = {name: value for name, value in asdict(worker).items() if name != "name"}
    return {**shown, **hidden}


# ---- reading ---------------------------------------------------------------------------------------------------


@contextmanager
def _ledgers() -> Iterator[Ledgers]:
    with ZooKeeperHook().get_ledgers(deadline_s=DEADLINE_S) as ledgers:
        yield ledgers


def _summary_of(ledger: Ledger, sight: Sight) -> dict[str, Any]:
    view, outcome = ledger.view(0), ledger.coordinator()
    return summary(view, outcome, sight, sight.may_see(_dags_of(_latest(ledger, view), outcome)))


def _latest(ledger: Ledger, view: LedgerView) -> Sequence[TxRecord]:
    return ledger.transactions(max(1, view.next_txid - ASKED))


def _runs_of(ledger: Ledger, dag_id: str) -> set[str]:
    """Of a DAG, among the latest transactions. What cannot be read is said where it is looked at."""
    try:
        view = ledger.view(0)
        outcome = ledger.coordinator()
        runs = {record.claim.run_id for record in _latest(ledger, view) if record.claim.dag_id == dag_id}
    except TridentError:
        return set()
    return runs | ({outcome.run_id} if outcome and outcome.dag_id == dag_id else set())


def _records(ledger: Ledger, view: LedgerView) -> list[TxRecord]:
    first = max(1, min(view.pointer.committed + 1, view.next_txid - SHOWN))
    records = list(ledger.transactions(first))
    known = {record.txid for record in records}
    older = [*view.exceptions.unfinished, *view.exceptions.skipped]
    return records + [tx for txid in older if txid not in known and (tx := ledger.view(txid).tx) is not None]


def _dags_of(records: Iterable[TxRecord], outcome: CoordinatorOutcome | None) -> set[str]:
    return {record.claim.dag_id for record in records} | ({outcome.dag_id} if outcome else set())
