"""What the page shows to a user who may see one DAG of a topology, and not another."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from airflow_trident.ledger.workers import Worker
from airflow_trident.plugin.rows import Sight, details, named_worker_row, row, seen, shown, summary, worker_row
from airflow_trident.protocol.diagnosis import Evidence, Stalled, diagnose, diagnose_transaction
from airflow_trident.protocol.outcomes import CoordinatorOutcome, OutcomeKind
from airflow_trident.protocol.records import (
    Claim,
    CommitPointer,
    Exceptions,
    LedgerView,
    Owner,
    PastAttempt,
    Status,
    TopologyRecord,
    TxRecord,
)
from airflow_trident.protocol.topologies import Definition

OF_WORDS = Sight(frozenset({"words"}), unowned=False)
OWN = Owner(dag_id="words", run_id="a/run", task_id="t.commit", map_index=2, try_number=1, host="here", pid=7)
OTHER = Owner(dag_id="others", run_id="one", task_id="t.commit", try_number=1, host="here", pid=7)
COMMAND = Owner(program="airflow trident worker w1", user="uwe", host="here", pid=7)


@pytest.mark.parametrize(
    ("owner", "visible", "shown"),
    [
        (OWN, True, True),
        (OTHER, True, False),
        (OTHER, False, False),
        (COMMAND, True, True),
        (COMMAND, False, False),
    ],
)
def test_the_task_and_place_of_a_worker_are_for_those_who_may_see_its_own_dag(
    owner: Owner, visible: bool, shown: bool
) -> None:
    found = worker_row(Worker.of(owner, 3), OF_WORDS, visible)
    expected = (owner.who, "here", 7) if shown else ("", "", 0)
    assert (found["task"], found["host"], found["pid"]) == expected
    assert found["txid"] == 3
    named: dict[str, Any] = {"worker": "w1", "task": owner.who, "host": "here", "pid": 7, "error": "no such folder"}
    worker = named_worker_row(named, OF_WORDS, visible)
    assert worker == (named if shown else {"worker": "w1", "task": None, "host": None, "pid": None, "error": ""})


@pytest.mark.parametrize("visible", [True, False])
def test_the_error_of_a_named_worker_that_is_gone_is_for_those_who_may_see_the_topology(visible: bool) -> None:
    named: dict[str, Any] = {"worker": "w1", "task": None, "host": None, "pid": None, "error": "no such folder"}
    assert named_worker_row(named, OF_WORDS, visible)["error"] == ("no such folder" if visible else "")


# ---- texts that come from several records ------------------------------------------------------------------------

SIGHT = Sight(frozenset({"open"}), unowned=False)
OWNERS = {
    "open": Owner(dag_id="open", run_id="run-open", task_id="emit", try_number=1, host="host-open", pid=7),
    "hidden": Owner(dag_id="hidden", run_id="run-hidden", task_id="emit", try_number=1, host="host-hidden", pid=7),
    "program": Owner(program="a notebook", user="uwe", host="host-of-uwe", pid=7),
}


def drawn(txid: int, dag: str, owner: str) -> TxRecord:
    """A transaction of one DAG on which a task of another one works; its texts name the DAG that they are from."""
    return TxRecord(
        txid=txid,
        status=Status.PROCESSING,
        attempt=1,
        claim=Claim(key=str(txid), dag_id=dag, run_id=f"run-{dag}"),
        owner=OWNERS[owner],
        error=f"UserCodeError: row of {dag}",
        first_error=f"UserCodeError: first row of {dag}",
        metadata={"lines": {"files": [[f"file-of-{dag}", 1, 1]]}},
        attempts=(PastAttempt(attempt=0, by=str(OWNERS[owner]), error=f"row of {dag}"),),
        op="",
    )


def view_of(tx: TxRecord) -> LedgerView:
    return LedgerView(
        topology=TopologyRecord(name="shared", incarnation="i", definition=Definition(spouts={}, states={})),
        next_txid=3,
        pointer=CommitPointer(committed=0, fence=0),
        exceptions=Exceptions(),
        tx=tx,
    )


@pytest.mark.parametrize("visible", [True, False])
@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("dag", ["open", "hidden", ""])
def test_nothing_of_a_dag_that_the_user_may_not_see_is_in_any_text_of_the_page(
    dag: str, owner: str, visible: bool
) -> None:
    for lowest_dag, lowest_owner in product(("open", "hidden", ""), OWNERS):
        lowest, own = drawn(1, lowest_dag, lowest_owner), drawn(2, dag, owner)
        view = view_of(own)
        for stalled in ({}, {2: Stalled(f"task of run {own.owner.run_id}", "Clear that task")}):
            outcome = CoordinatorOutcome(kind=OutcomeKind.ERROR, dag_id=dag, run_id=f"run-{dag}", error=f"row of {dag}")
            whole = Evidence(view=view, outcome=outcome, records={1: lowest, 2: own}, stalled=stalled)
            require_hidden(whole, own, visible)


def test_a_state_that_refuses_blocks_the_topology_for_all_who_look() -> None:
    """The error says that it refuses, and some may not see the error."""
    refused = replace(drawn(1, "hidden", "hidden"), status=Status.COMMITTING, error="GoneOverError: row of hidden")
    over = replace(drawn(2, "hidden", "hidden"), touched=True)
    whole = Evidence(view=view_of(over), records={1: refused, 2: over})
    assert diagnose(whole)[0].command == "airflow trident take-back shared 1"
    require_hidden(whole, over, visible=False)


def require_hidden(whole: Evidence, own: TxRecord, visible: bool) -> None:
    """Only details and cures depend on what the user may see."""
    evidence = seen(whole, SIGHT, visible)
    diagnosis, told = diagnose_transaction(evidence, evidence.records[2]), diagnose_transaction(whole, own)
    texts = [row(own, SIGHT, visible), details(own, SIGHT, visible), shown(diagnosis), summary(evidence, visible)]
    answer = json.dumps(texts, default=str)
    for secret in ("row of hidden", "run-hidden", "host-hidden", "file-of-hidden", "hidden/"):
        assert secret not in answer
    assert visible or "uwe" not in answer
    for hidden, full in zip([diagnosis, *diagnose(evidence)], [told, *diagnose(whole)], strict=True):
        assert replace(hidden, detail="", cure="") == replace(full, detail="", cure="")
    if whole.records[1].claim.dag_id == "open" and whole.records[1].owner.dag_id == "open" and 2 not in whole.stalled:
        assert "host-open" in diagnosis.detail
        assert "row of open" in diagnosis.detail
