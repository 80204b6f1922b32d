"""Actions of a person on the page. Each is checked against Airflow's permissions, written to Airflow's audit log, and
done by the same functions that the commands call.

An action that needs only the ledger is done at once, in one step, which is refused if what the person saw has changed
since. An action that needs the topology's code becomes a run of the mending DAG. Imported by the API server only.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from fastapi import HTTPException

from airflow_trident.errors import ConfigurationError, TransitionError, cleaned
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.plugin import airflow_runs, page_partitions
from airflow_trident.plugin.page_data import (
    dags_of_backfill,
    dags_of_topology,
    latest_committed,
    open_ledgers,
    open_transactions,
)
from airflow_trident.protocol.decide import SeenTopology, SeenTransaction
from airflow_trident.protocol.diagnosis import PageAction
from airflow_trident.protocol.records import NO_ATTEMPT, Command, LedgerView, Status
from airflow_trident.runtime.partition_status import KeyChoice
from airflow_trident.tasks import telemetry
from airflow_trident.tasks.mending_order import MENDING_DAG, MendingOrder

LONGEST_REASON = 500


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The body of a request. `incarnation`, `epoch`: of the topology as it was shown; `status`, `attempt`: of the
    transaction as it was shown (no attempt: -1). `txid`; or `first` and `last`; or neither: all unfinished ones.

    A redo of a bound topology has `partition`, `to`, `choice`, `gone` and `empty`, as `MendingOrder` has them.
    `revision`: of the only partition, as it was shown."""

    action: PageAction
    reason: str
    incarnation: str
    epoch: int | None = None
    txid: int | None = None
    first: int | None = None
    last: int | None = None
    status: Status | None = None
    attempt: int = NO_ATTEMPT
    partition: str = ""
    to: str = ""
    choice: KeyChoice | Literal[""] = ""
    gone: Literal["", "take"] = ""
    empty: Literal["", "take"] = ""
    revision: int | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """`text`: what was done; `run_id`: the run of the mending DAG that does it, if there is one."""

    text: str
    dag_id: str = ""
    run_id: str = ""


def act(topology: str, request: Asked, user: Any) -> Done:
    """Do the action, once.

    :raises HTTPException: the user may not do that (403).
    :raises ConfigurationError: the request is invalid.
    :raises TransitionError: what the person saw has changed, or a run already does the action; nothing was changed.
    :raises FencedError: since then the topology was deleted and created again.
    """
    reason = require_meant(request)
    with open_ledgers() as ledgers:
        ledger = ledgers.ledger(topology, incarnation=request.incarnation)
        ledger.listener = telemetry.listen
        view = ledger.view(request.txid or 0)
        owning = dags_of_topology(ledger, view) | ({view.tx.claim.dag_id} if view.tx else set())
        if request.partition:
            first, last, now = request.partition, request.to, datetime.now(UTC)
            owning |= page_partitions.dags_of_redo(ledger, view, first, last, request.revision, now)
        elif request.action is PageAction.BACKFILL and request.txid is None:
            owning |= dags_of_backfill(ledger, view, request.first, request.last)
        if not may_edit(user, owning):
            raise HTTPException(403, f"You may not change topology {topology}: {_needed(owning)}.")
        dag_id = _dag_of(view, ledger, owning)
        if request.txid is not None and request.action.needs_code:
            _require_seen(view, request)
        _audit(topology, request, user, dag_id)
        if not request.action.needs_code:
            if request.action is PageAction.CLEAR_RUNS:
                return Done(_clear_runs(ledger, view, user))
            return Done(_at_once(ledger, request, f"{reason} ({request.action} by {user.get_name()} on the page)"))
    order = MendingOrder(
        action=request.action,
        topology=topology,
        dag_id=dag_id,
        incarnation=view.topology.incarnation,
        reason=reason,
        by=user.get_name(),
        txid=request.txid,
        first=request.first,
        last=request.last,
        seen_status=str(request.status or ""),
        seen_attempt=request.attempt,
        partition=request.partition,
        to=request.to,
        choice=request.choice,
        gone=request.gone,
        empty=request.empty,
    )
    run_id = airflow_runs.start(order)
    return Done(f"run {run_id} of DAG {MENDING_DAG} does it", MENDING_DAG, run_id)


def require_meant(request: Asked) -> str:
    """Check that the request has all that the action needs, and return its reason.

    :raises ConfigurationError: something is missing or contradicts.
    """
    reason = cleaned(" ".join(request.reason.split()))
    if not reason:
        raise ConfigurationError(f"{request.action} wants a reason", "Say why: it is kept, with your name.")
    if len(reason) > LONGEST_REASON:
        raise ConfigurationError(f"a reason has at most {LONGEST_REASON} characters", "Say it shorter.")
    if not request.incarnation:
        raise ConfigurationError("which life of the topology is meant was not said", "Load the page again.")
    ends = (request.first is None) + (request.last is None)
    if request.txid is not None and (request.txid < 1 or ends != 2):
        raise ConfigurationError("one transaction and a range exclude each other", "Give a txid from 1, or a range.")
    if ends == 1 or (ends == 0 and request.action is not PageAction.BACKFILL):
        raise ConfigurationError("a range has two ends, and only a backfill has one", "Give first and last.")
    if request.first is not None and request.last is not None and not 1 <= request.first <= request.last:
        raise ConfigurationError(f"{request.first} to {request.last} is no range of txids", "Give the lower one first.")
    if (request.action.about_one or request.txid is not None) and (request.txid is None or request.status is None):
        raise ConfigurationError(f"{request.action} is about one transaction as it was seen", "Give txid and status.")
    if request.txid is not None and not (request.action.about_one or request.action is PageAction.BACKFILL):
        raise ConfigurationError(f"{request.action} is about a topology", "Give no txid.")
    if request.action in (PageAction.PAUSE, PageAction.RESUME) and request.epoch is None:
        raise ConfigurationError(f"{request.action} is about a topology as it was seen", "Give its epoch.")
    _require_meant_partitions(request)
    return reason


def _require_meant_partitions(request: Asked) -> None:
    if request.partition and request.action is not PageAction.BACKFILL:
        raise ConfigurationError(f"{request.action} is about no partition", "Give its transaction.")
    if request.partition and (request.txid is not None or request.first is not None):
        raise ConfigurationError("partitions and transactions exclude each other", "Give partition and to, or txids.")
    if not request.partition and (request.to or request.choice or request.gone or request.empty):
        raise ConfigurationError("the first partition is missing", "Give partition.")


def may_edit(user: Any, dag_ids: set[str]) -> bool:
    """May the user change task instances of all these DAGs? Without a DAG: may the user edit connections?"""
    from airflow.models.dag import DagModel

    manager, named = get_auth_manager(), dag_ids - {""}
    if not named:
        return bool(manager.is_authorized_connection(method="PUT", user=user))
    return all(
        manager.is_authorized_dag(
            method="PUT",
            access_entity=DagAccessEntity.TASK_INSTANCE,
            details=DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id)),
            user=user,
        )
        for dag_id in named
    )


def _needed(dag_ids: set[str]) -> str:
    named = sorted(dag_ids - {""})
    if not named:
        return "it belongs to no DAG, so that is for those who may edit connections"
    return (
        "that is for those who may edit task instances of its DAG"
        if len(named) == 1
        else ("that is for those who may edit task instances of all its DAGs")
    )


def _at_once(ledger: Ledger, request: Asked, signed: str) -> str:
    name = ledger.topology_name
    if request.action in (PageAction.PAUSE, PageAction.RESUME):
        command = Command.PAUSE if request.action is PageAction.PAUSE else Command.RUN
        assert request.epoch is not None
        ledger.set_command(command, seen=SeenTopology(request.epoch))
        if command is Command.RUN:
            return f"topology {name} begins new transactions again"
        return f"topology {name} begins no new transactions; those that were begun are finished"
    assert request.txid is not None
    seen = _seen(request)
    if request.action is PageAction.SKIP:
        ledger.skip(request.txid, signed, seen=seen)
        return f"transaction {request.txid} is SKIPPED: later ones may pass"
    ledger.close_transaction(request.txid, signed, seen=seen)
    return f"transaction {request.txid} is CLOSED: it will never be replayed"


def _clear_runs(ledger: Ledger, view: LedgerView, user: Any) -> str:
    """Clear the failed runs of the DAGs that the user may change: those of the transactions that are looked through
    may be more than the topology's latest ones.

    :raises HTTPException: the user may change none of them.
    """
    red_runs = airflow_runs.red_runs([*latest_committed(ledger, view), *open_transactions(ledger, view)])
    if not red_runs:
        raise TransitionError(
            f"topology {ledger.topology_name} has no failed run whose transactions are all committed",
            "Nothing has to be done.",
        )
    dags = {dag_id for dag_id, _ in red_runs}
    editable = {dag_id for dag_id in dags if may_edit(user, {dag_id})}
    clearable = {run: tasks for run, tasks in red_runs.items() if run[0] in editable}
    if not clearable:
        raise HTTPException(
            403, f"You may not clear the failed runs of topology {ledger.topology_name}: {_needed(dags)}."
        )
    airflow_runs.clear(clearable)
    names = ", ".join(run_id for _, run_id in clearable)
    remaining = len(red_runs) - len(clearable)
    others = (
        f"; {remaining} of DAGs that you may not change {'stays as it is' if remaining == 1 else 'stay as they are'}"
        if remaining
        else ""
    )
    return f"{len(clearable)} {'run is' if len(clearable) == 1 else 'runs are'} cleared: {names}{others}"


def _seen(request: Asked) -> SeenTransaction:
    assert request.status is not None
    return SeenTransaction(request.status, request.attempt)


def _require_seen(view: LedgerView, request: Asked) -> None:
    """The run checks this again before it begins; but the person hears at once if it has changed already."""
    if view.tx is None:
        raise TransitionError(
            f"topology {view.topology.name} has no record of transaction {request.txid}", "Look at the list again."
        )
    _seen(request).require(view.tx)


def _dag_of(view: LedgerView, ledger: Ledger, owning: set[str]) -> str:
    """The DAG that has the topology's code: that of the transaction, else of the last coordinator, else any."""
    outcome = ledger.coordinator()
    wanted = [view.tx.claim.dag_id if view.tx else "", outcome.dag_id if outcome else "", *sorted(owning)]
    return next((dag_id for dag_id in wanted if dag_id), "")


def _audit(topology: str, request: Asked, user: Any, dag_id: str) -> None:
    """Write to Airflow's audit log before the action, as Airflow does for its own actions."""
    from airflow.models import Log
    from airflow.utils.session import create_session

    request_fields = {name: value for name, value in asdict(request).items() if value is not None}
    entry = Log(
        event=f"trident_{request.action.replace('-', '_')}",
        owner=user.get_name(),
        owner_display_name=user.get_name(),
        extra=json.dumps({"topology": topology, **request_fields}),
        dag_id=dag_id or None,
    )
    with create_session() as session:
        session.add(entry)
