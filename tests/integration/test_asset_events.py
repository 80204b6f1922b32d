"""One event of a topology's asset for each committed transaction: in a real Airflow (``dag.test()``), on a real
ledger."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.airflow import AirflowHome
from tests.integration.test_airflow_tasks import PROGRAM, write_words

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper]

LATER = """
from airflow.sdk import DAG, Asset, PartitionedAssetTimetable
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow_trident import TridentDrainOperator
from words import topology

with DAG("later", schedule=PartitionedAssetTimetable(assets=Asset("counts"))):
    EmptyOperator(task_id="later")

with DAG("drained", schedule=None) as drained:
    TridentDrainOperator(task_id="drain", topology=topology, engine="local", group=1, max_transactions=1)
"""
SEEN = """
from later import drained
from airflow.models.asset import AssetEvent, AssetPartitionDagRun
from airflow.utils.session import create_session
from airflow_trident.ledger.announcements import announced_events

def events():
    with create_session() as session:
        return [[one.source_task_id, one.partition_key, one.extra] for one in
            session.query(AssetEvent).order_by(AssetEvent.id)]

def keys():
    return [key for _, key, _ in events()]

def due():
    with ledger() as one:
        return list(announced_events(one).due(one.view(0)))
"""
KEYS = [f"words/{txid:019}" for txid in (1, 2, 3)]


def write(home: AirflowHome) -> None:
    write_words(home)
    path = home.dags / "words.py"
    path.write_text(path.read_text().replace('Topology("words")', 'Topology("words", asset="counts")'))
    home.write_dag("later", LATER)


def told(home: AirflowHome, body: str) -> Any:
    return home.python(PROGRAM + SEEN + body)


def test_each_transaction_is_one_event_with_its_rows_and_position_and_asks_for_one_run_of_who_waits_for_it(
    airflow_home: AirflowHome,
) -> None:
    write(airflow_home)
    airflow_home.options["AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION"] = "False"
    airflow_home.airflow("dags", "reserialize")
    result = told(
        airflow_home,
        """
for _ in range(4):
    play(dag)
with create_session() as session:
    asked = sorted(session.scalars(__import__("sqlalchemy").select(AssetPartitionDagRun.partition_key).where(
        AssetPartitionDagRun.target_dag_id == "later")))
tell({"events": events(), "asked": asked, "due": due()})
""",
    )
    assert [event[:2] for event in result["events"]] == [["words.commit", key] for key in KEYS]
    extra = result["events"][1][2]
    assert extra.pop("incarnation")
    assert extra.pop("position") == {"lines": {"from": 4, "to": 8}}
    assert extra == {"topology": "words", "txid": 2, "attempt": 0, "rows_read": 4, "rows": {"count": 3}}
    assert result["asked"] == KEYS
    assert result["due"] == []


def test_what_a_sweep_committed_has_its_event_by_the_sweeping_task_and_none_by_its_own(
    airflow_home: AirflowHome,
) -> None:
    write(airflow_home)
    result = told(
        airflow_home,
        """
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow_trident import TridentTurnSensor

def fails(self, context):
    raise AirflowFailException("told to fail")

works, TridentTurnSensor.execute = TridentTurnSensor.execute, fails
first = dag.test()
TridentTurnSensor.execute = works
play(dag)
swept = events()
# A third transaction, whose own committer finds it committed: the drain's sweep was faster.
from airflow_trident import TridentCommitterOperator
commits = TridentCommitterOperator.execute

def late(self, context):
    play(drained)
    return commits(self, context)

TridentCommitterOperator.execute = late
last = play(dag)
tell({"swept": swept, "after": events(), "last": last["commit"]})
""",
    )
    assert [event[:2] for event in result["swept"]] == [["words.commit", key] for key in KEYS[:2]]
    assert [event[2]["txid"] for event in result["swept"]] == [1, 2]
    assert result["last"] == "success"
    assert [event[:2] for event in result["after"][2:]] == [["drain", KEYS[2]]]


def test_what_a_command_committed_is_on_the_list_until_a_drain_brings_it_though_nothing_else_is_new(
    airflow_home: AirflowHome,
) -> None:
    write(airflow_home)
    told(
        airflow_home,
        """
play(dag)
Path("fail-2").touch()
play(dag)
Path("fail-2").unlink()
tell(records())
""",
    )
    airflow_home.airflow("trident", "backfill", "words", "--failed", "--engine", "local")
    listed = airflow_home.airflow("trident", "ledger", "list", "words")
    assert "without an event of its asset so far: 2;" in listed
    result = told(
        airflow_home,
        """
before = due()
play(drained)
brought = events()
again = play(drained)
tell({"before": before, "brought": brought, "again": again, "keys": keys(), "due": due()})
""",
    )
    assert result["before"] == [2]
    assert [event[:2] for event in result["brought"]] == [
        ["words.commit", KEYS[0]],
        ["drain", KEYS[1]],
        ["drain", KEYS[2]],
    ]
    assert result["again"] == {"drain": "skipped"}
    assert (result["keys"], result["due"]) == (KEYS, [])


def test_an_event_that_airflow_has_deleted_since_is_not_brought_again(airflow_home: AirflowHome) -> None:
    """`airflow db clean` deletes events, tasks and runs, while the topology rests until its next run."""
    write(airflow_home)
    result = told(
        airflow_home,
        """
from airflow.models.dagrun import DagRun
from airflow_trident.tasks.task_instances import without_event

def clean(*tables):
    with create_session() as session:
        for table in tables:
            for row in session.query(table):
                session.delete(row)
    with ledger() as one:
        return list(without_event(one, one.view(0)))

play(dag)
first, listed = keys(), [clean(AssetEvent)]
play(dag)
second = keys()
listed.append(clean(AssetEvent, DagRun))
play(dag)
tell({"keys": [first, second, keys()], "listed": listed, "due": due()})
""",
    )
    assert result["keys"] == [[key] for key in KEYS]
    assert (result["listed"], result["due"]) == ([[], []], [])
    for txid, state in ((1, "success"), (2, "deleted")):
        assert f"asset counts: Airflow has no events of transactions {txid}, and words/" in airflow_home.output
        assert f"words.commit try 1, which was to bring them, is {state}. They count as brought" in airflow_home.output


@pytest.mark.parametrize(("state", "brought"), [("failed", True), ("success", False)])
def test_a_task_that_is_killed_leaves_events_on_the_list_that_the_next_one_brings_unless_it_is_marked_as_success(
    state: str, brought: bool, airflow_home: AirflowHome
) -> None:
    write(airflow_home)
    told(
        airflow_home,
        """
import os
from airflow_trident.tasks import asset_events
works = asset_events.bring

def bring(*arguments):
    works(*arguments)
    tell("killed")
    os._exit(0)

asset_events.bring = bring
play(dag)
""",
    )
    result = told(
        airflow_home,
        f"STATE = {state!r}"
        + """
from airflow.models.taskinstance import TaskInstance
from airflow_trident.tasks.task_instances import without_event

def listed():
    with ledger() as one:
        return list(without_event(one, one.view(0)))

with create_session() as session:  # as the scheduler does when its heartbeat fails, or a person
    for ti in session.query(TaskInstance).filter_by(state="running"):
        ti.state = STATE
found, before = keys(), listed()
play(dag)
tell({"found": found, "keys": keys(), "listed": [before, listed()]})
""",
    )
    assert result["found"] == []
    assert sorted(result["keys"]) == (KEYS[:2] if brought else KEYS[1:2])
    assert result["listed"] == [[1] if brought else [], []]
