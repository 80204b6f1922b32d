"""What the page shows of workers to a user who may see one DAG of a topology, and not another."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_trident.ledger.workers import Worker
from airflow_trident.plugin.rows import Sight, named_worker_row, worker_row
from airflow_trident.protocol.records import Owner

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
    row = named_worker_row(named, OF_WORDS, visible)
    assert row == (named if shown else {"worker": "w1", "task": None, "host": None, "pid": None, "error": ""})


@pytest.mark.parametrize("visible", [True, False])
def test_the_error_of_a_named_worker_that_is_gone_is_for_those_who_may_see_the_topology(visible: bool) -> None:
    named: dict[str, Any] = {"worker": "w1", "task": None, "host": None, "pid": None, "error": "no such folder"}
    assert named_worker_row(named, OF_WORDS, visible)["error"] == ("no such folder" if visible else "")
