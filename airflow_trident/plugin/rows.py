"""Rows of the page as JSON: nothing from DAGs that the user may not see, and no secrets. Pure.

A batch in words: ``3 files, 12.0 MB: 07.json to 09.json``. Pure.

The API server does not have the topology's code, so this module knows the recorded metadata by its shape. The page
shows metadata of an unknown shape as it is recorded.

Which code staged a transaction, in words: the digests of the code are in its manifest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from airflow_trident import settings
from airflow_trident.errors import GoneOverError, TridentError
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.ledger.workers import Worker
from airflow_trident.plan.nodes import changed_code
from airflow_trident.protocol.diagnosis import Diagnosis, Evidence, Stalled, diagnose, is_gone_over, troubles
from airflow_trident.protocol.outcomes import CoordinatorOutcome
from airflow_trident.protocol.partition_keys import BOUND_METADATA
from airflow_trident.protocol.records import NO_ATTEMPT, NOBODY, StagedRef, TxRecord
from airflow_trident.runtime.staged_batches import manifest_of
from airflow_trident.staging.area import StagingArea
from airflow_trident.types import Json


def batch_words(metadata: dict[str, Json]) -> dict[str, str]:
    """Stream -> its part of the batch in words, for streams whose metadata has a known shape."""
    words = {stream: _words(_of_spout(value)) for stream, value in metadata.items()}
    return {stream: text for stream, text in words.items() if text}


def _of_spout(value: Any) -> Any:
    """The spout's own metadata, without the key of a partition beside it."""
    return value["batch"] if isinstance(value, dict) and value.keys() == BOUND_METADATA else value


def _words(value: Any) -> str:
    if not isinstance(value, dict):
        return ""
    try:
        for keys, tell in _KNOWN.items():
            if keys <= value.keys():
                return tell(value)
    except (TypeError, ValueError, KeyError, IndexError):
        pass  # only the keys have a known shape: the page shows the record itself
    return ""


def _files(value: dict[str, Any]) -> str:
    files = value["files"]
    if not files:
        return "no file"
    names, size = sorted(str(file[0]) for file in files), sum(int(file[1]) for file in files)
    which = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    return f"{_count(len(files), 'file')}, {size_words(size)}: {which}"


def _topics(value: dict[str, Any]) -> str:
    descriptions = []
    for name, topic in value["topics"].items():
        parts = topic["partitions"].values()
        records = sum(end - begin for begin, end in parts)
        descriptions.append(f"{name}: {_count(records, 'offset')} in {_count(len(parts), 'partition')}")
    return "; ".join(descriptions)


def _delta(value: dict[str, Any]) -> str:
    return f"versions {value['from'][0]} to {value['to'][0]} of the table"


def _keys(value: dict[str, Any]) -> str:
    above = "" if value["from"] is None else f" above {value['from']}"
    return f"{_count(int(value['rows']), 'row')}, keys{above} up to {value['to']}"


def _parts(value: dict[str, Any]) -> str:
    names = sorted(value["parts"])
    return f"{_count(len(names), 'partition')}: {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"


_KNOWN = {
    frozenset({"files"}): _files,
    frozenset({"topics"}): _topics,
    frozenset({"table", "from", "to"}): _delta,
    frozenset({"from", "to", "rows"}): _keys,
    frozenset({"parts", "kept", "behind"}): _parts,
}


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size_words(count: float) -> str:
    """``1536`` -> ``1.5 KB``."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TB"


@dataclass(frozen=True, slots=True)
class Sight:
    """What a user may see. `dags`: ids of DAGs; `unowned`: also data that belongs to no DAG, such as a program's
    transactions; true for users who may see connections."""

    dags: frozenset[str]
    unowned: bool

    def may_see(self, dag_ids: Iterable[str]) -> bool:
        """May the user see something that belongs to all these DAGs together?"""
        named = {dag_id for dag_id in dag_ids if dag_id}
        return not self.dags.isdisjoint(named) if named else self.unowned


def seen(evidence: Evidence, sight: Sight, visible: bool) -> Evidence:
    """The evidence without owners, errors and tasks that the user may not see. State, cause and command of a diagnosis
    do not depend on them.

    :param visible: may the user see what the topology reads and writes?
    """
    return replace(
        evidence,
        outcome=_seen_outcome(evidence.outcome, sight, visible),
        records={txid: _seen_record(record, sight, visible) for txid, record in evidence.records.items()},
        stalled={
            txid: why if _may_see_work(evidence.records.get(txid), sight, visible) else Stalled("")
            for txid, why in evidence.stalled.items()
        },
    )


def shown(diagnosis: Diagnosis) -> dict[str, Any]:
    """`text`: the diagnosis as commands print it."""
    return {**asdict(diagnosis), "text": str(diagnosis)}


def summary(evidence: Evidence, visible: bool) -> dict[str, Any]:
    """`committed`: all up to this txid are committed or skipped; `begun`: the highest txid; `coordinator`: its last
    outcome, None if there is none; `diagnosis`: the state; `troubles`: what a person has to act on; `notes`: for
    people.

    :param evidence: as :func:`seen`.
    :param visible: may the user see what the topology reads and writes?
    """
    view, definition, diagnoses = evidence.view, evidence.view.topology.definition, diagnose(evidence)
    return {
        "name": view.topology.name,
        "incarnation": view.topology.incarnation,
        "command": view.topology.command,
        "epoch": view.topology.epoch,
        "committed": view.pointer.committed,
        "begun": view.next_txid - 1,
        "pending": view.pending,
        "failed": list(view.exceptions.failed),
        "skipped": {"count": len(view.exceptions.skipped), "txids": str(view.exceptions.skipped)},
        "replaying": list(view.exceptions.replaying),
        "late": list(view.exceptions.late),
        "diagnosis": shown(diagnoses[0]),
        "troubles": [shown(trouble) for trouble in troubles(diagnoses)],
        "coordinator": None if evidence.outcome is None else _coordinator(evidence.outcome),
        "visible": visible,
        "streams": {name: str(spout) for name, spout in definition.spouts.items() if visible},
        "states": {name: state.text for name, state in definition.states.items() if visible},
        "notes": [
            f"State {name} is {note}." for name, state in definition.states.items() for note in state.notes if visible
        ],
    }


def row(record: TxRecord, sight: Sight, visible: bool) -> dict[str, Any]:
    """A transaction as the page shows it. Only users who may see its DAG get the run and the data; for a transaction
    without a DAG, users who may see the topology. The task that works on it may be of another DAG (a replay): that task
    is shown only to users who may see both DAGs."""
    may_see = _may_see_record(record, sight, visible)
    may_see_owner = _may_see_work(record, sight, visible)
    staged = record.staged
    return {
        "txid": record.txid,
        "status": record.status,
        "attempt": None if record.attempt == NO_ATTEMPT else record.attempt,
        "invalidated": record.invalidated,
        "rows_read": staged.rows_read if staged else None,
        "rows": staged.rows if staged and may_see else {},
        "rows_staged": sum(staged.rows.values()) if staged else None,
        "bytes": _bytes(staged) if staged else None,
        "times_ms": record.times_ms,
        "plan": record.plan[:16] if may_see else "",
        "late_rows": record.late_rows if may_see else {},
        "visible": may_see,
        "streams": sorted(record.metadata) if may_see else [],
        "partition": None if record.partition is None else {"key": record.partition.key, "n": record.partition.n},
        "batch": batch_words(record.metadata) if may_see else {},
        "error": record.all_errors if may_see else "",
        "owner": str(record.owner) if may_see_owner else "",
        "dag_id": record.claim.dag_id if may_see else "",
        "run_id": record.claim.run_id if may_see else "",
        "map_index": record.claim.map_index,
    }


def searched(shown: Mapping[str, Any]) -> str:
    """The texts of a row that a search looks through."""
    return "\n".join(str(shown[name]) for name in ("dag_id", "run_id", "owner", "error", "batch", "partition"))


def details(record: TxRecord, sight: Sight, visible: bool) -> dict[str, Any]:
    """`metadata_text`: a text, because browsers round numbers above 2^53. `attempts`: the failed ones, oldest first."""
    shown = row(record, sight, visible)
    metadata = record.metadata if shown["visible"] else None
    text = "" if metadata is None else json.dumps(metadata, indent=1, ensure_ascii=False)
    attempts = [asdict(past) for past in record.attempts] if shown["visible"] else []
    for attempt in attempts:
        attempt["by"] = attempt["by"] if _may_see_task(attempt["by"], sight, visible) else ""
    return {**shown, "metadata": metadata, "metadata_text": text, "attempts": attempts}


def _bytes(staged: StagedRef) -> int | None:
    """None for a member of a group: the bytes of its files cannot be separated, and the last member has them."""
    return staged.bytes if staged.bytes or not sum(staged.rows.values()) else None


# ---- parts -----------------------------------------------------------------------------------------------------


def _coordinator(outcome: CoordinatorOutcome) -> dict[str, Any]:
    names = ("kind", "is_bad", "time_ms", "lag_ms", "dag_id", "run_id", "error", "lag")
    return {name: getattr(outcome, name) for name in names}


def _seen_outcome(outcome: CoordinatorOutcome | None, sight: Sight, visible: bool) -> CoordinatorOutcome | None:
    if outcome is None or (sight.may_see([outcome.dag_id]) if outcome.dag_id else visible):
        return outcome
    return replace(outcome, dag_id="", run_id="", error="", lag={})


def _seen_record(record: TxRecord, sight: Sight, visible: bool) -> TxRecord:
    if not _may_see_record(record, sight, visible):
        return replace(record, owner=NOBODY, error=GoneOverError.__name__ if is_gone_over(record) else "")
    return record if _may_see_work(record, sight, visible) else replace(record, owner=NOBODY)


_UNSHOWN = ("name", "process_ids")
_TASK = re.compile(r"([^/]+)/.+/[^/]+ try \d+(?: on .*)?", re.DOTALL)


def _may_see_record(record: TxRecord, sight: Sight, visible: bool) -> bool:
    return sight.may_see([record.claim.dag_id]) if record.claim.dag_id else visible


def _may_see_work(record: TxRecord | None, sight: Sight, visible: bool) -> bool:
    """May the user see the owner of a transaction, and the states of its tasks?"""
    if record is None or not _may_see_record(record, sight, visible):
        return False
    return _may_see_task(record.owner.who, sight, visible)


def _may_see_task(task: str, sight: Sight, visible: bool) -> bool:
    """:param task: the text of an owner, with or without its place. What is no task of a DAG is for those who may see
    the topology."""
    match = _TASK.fullmatch(task)
    return sight.may_see([match.group(1)]) if match else visible


def worker_row(worker: Worker, sight: Sight, visible: bool) -> dict[str, Any]:
    may_see = _may_see_task(worker.task, sight, visible)
    hidden = {} if may_see else {"host": "", "pid": 0, "task": ""}
    shown = {name: value for name, value in asdict(worker).items() if name not in _UNSHOWN}
    return {**shown, **hidden}


def named_worker_row(worker: dict[str, Any], sight: Sight, visible: bool) -> dict[str, Any]:
    """:param worker: see :meth:`airflow_trident.contracts.wing.WingRecords.rows`."""
    may_see = _may_see_task(worker["task"] or "", sight, visible)
    return worker if may_see else {**worker, "host": None, "pid": None, "task": None, "error": ""}


def code_words(ledger: Ledger, record: TxRecord) -> str:
    """Each transform with the digest of the code that staged this transaction, and whether the code changed since the
    transaction before. Empty if there is none, or if the page's server cannot see the staged batch. Nothing is read
    from an object store: a page must not wait for one."""
    before = ledger.view(record.txid - 1).tx if record.txid > 1 else None
    now, then = _code(ledger, record), _code(ledger, before)
    changed = changed_code(then, now)
    return "; ".join(
        f"{name} {digest}{': it changed with this transaction' if name in changed else ''}"
        for name, digest in sorted(now.items())
    )


def _code(ledger: Ledger, record: TxRecord | None) -> dict[str, str]:
    staged = None if record is None else record.staged
    if staged is None:
        return {}
    try:
        area = StagingArea(settings.staging_root())
        return manifest_of(area, ledger, staged).code if staged.chunk or area.place.is_local else {}
    except (TridentError, OSError):
        return {}
