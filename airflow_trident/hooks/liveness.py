"""Does anybody still work on a transaction? The ledger cannot know: a killed worker writes nothing. Airflow does.

A transaction's claim names the DAG run and the tasks that work on it; Airflow's Execution API tells their states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from airflow_trident.errors import FencedError, TransitionError
from airflow_trident.hooks.waits import Abandoned
from airflow_trident.ledger.base import Ledger
from airflow_trident.protocol.records import Claim, TxRecord
from airflow_trident.protocol.statuses import Status

EMIT, COMMIT = "emit", "commit"
"""Keys of :attr:`Claim.task_ids`."""

_ENDED = frozenset({"failed", "upstream_failed", "skipped", "removed"})
_ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Gone:
    """No task will take the transaction further by itself; `why` says what was found and names the task."""

    why: str


def can_ask(claim: Claim) -> bool:
    """Was the transaction claimed by an Airflow run that tells its tasks?"""
    return bool(claim.dag_id and claim.run_id and claim.task_ids)


def question(claim: Claim) -> dict[str, Any]:
    """Arguments of ``RuntimeTaskInstance.get_task_states`` for the claim's tasks."""
    return {"dag_id": claim.dag_id, "run_ids": [claim.run_id], "task_ids": sorted(set(claim.task_ids.values()))}


def judge(record: TxRecord, answer: Mapping[str, Any]) -> Gone | None:
    """From the states of a claim's tasks: is the transaction abandoned?

    :param answer: ``{run_id: {task_id or task_id_mapindex: state or None}}``, as the Execution API gives it; a run
        that was deleted is absent.
    """
    claim = record.claim
    states = answer.get(claim.run_id) or {}
    if not states:
        return Gone(f"the run {claim.run_id!r} of DAG {claim.dag_id!r} that claimed it no longer exists")
    emit, commit = _state(claim, EMIT, states), _state(claim, COMMIT, states)
    # What is processed needs no emitter any more; what is not needs one, unless the committer emits it again.
    waiting_for_emitter = record.status is Status.PROCESSING and emit not in ("success", _ABSENT)
    key, state = (EMIT, emit) if waiting_for_emitter else (COMMIT, commit)
    if state not in _ENDED:
        return None
    return Gone(f"task {claim.task_ids[key]!r} of run {claim.run_id!r} of DAG {claim.dag_id!r} is {state}")


def _state(claim: Claim, key: str, states: Mapping[str, Any]) -> str | None:
    task_id = claim.task_ids.get(key)
    if task_id is None:
        return _ABSENT
    mapped = f"{task_id}_{claim.map_index}"
    state = states.get(mapped, states.get(task_id))
    return None if state is None else str(getattr(state, "value", state))


def note_gone(ledger: Ledger, record: TxRecord, gone: Gone, *, skip: bool) -> Abandoned | None:
    """Write what the killed task could not: the transaction FAILED (or SKIPPED).

    A staged batch needs no task of its own any more, so it is left as it is and :class:`Abandoned` says that the next
    commit sweep must take it along.
    """
    if record.status is not Status.PROCESSING:
        return Abandoned(record.txid, gone.why)
    with suppress(FencedError, TransitionError):  # it moved meanwhile: somebody does work on it
        ledger.fail(record.txid, record.attempt, f"nobody works on it any more: {gone.why}")
        if skip:
            ledger.skip(record.txid, f"on_failure=skip: {gone.why}")
    return None


def ask_airflow(ledger: Ledger, *, skip: bool) -> Callable[[TxRecord], Abandoned | None]:
    """The look of a task that waits in its worker: see :data:`airflow_trident.hooks.waits.Look`."""

    def look(record: TxRecord) -> Abandoned | None:
        if not can_ask(record.claim):
            return None
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        gone = judge(record, RuntimeTaskInstance.get_task_states(**question(record.claim)))
        return note_gone(ledger, record, gone, skip=skip) if gone is not None else None

    return look
