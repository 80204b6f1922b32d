"""What the page, the doctor and ``ledger list --check`` say of a transaction whose tasks Airflow never starts: with the
database of a real Airflow, on a real ledger."""

from __future__ import annotations

import pytest

from tests.fixtures.airflow import AirflowHome
from tests.integration.test_airflow_tasks import PROGRAM, write_words

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper]

KILLED = """
import os
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.utils.session import create_session
from airflow_trident import TridentCommitterOperator
from airflow_trident.cli.commands.doctor import ledger_checks
from airflow_trident.plugin import page_data
from airflow_trident.protocol.diagnosis import blocks, diagnose
from airflow_trident.tasks.task_instances import evidence_of

def fails(self, context):
    raise AirflowFailException("told to fail")

def now(run="running", paused=False, stale=False, commit=None):
    with create_session() as session:
        session.query(DagRun).one()._state = run
        session.get(DagModel, "words").is_paused = paused
        session.get(DagModel, "words").is_stale = stale
        session.query(TaskInstance).filter_by(task_id="words.commit").one().state = commit

def waits(state, turn="success", pool="default_pool"):
    now(commit=state)
    with create_session() as session:
        session.query(TaskInstance).filter_by(task_id="words.turn").one().state = turn
        session.query(TaskInstance).filter_by(task_id="words.commit").one().pool = pool
    return said()

def said():
    '''By the page of all topologies, the page of this one, the doctor, and `ledger list --check`.'''
    sight = page_data.Sight(frozenset({"words"}), unowned=True)
    (top,) = page_data.topologies(sight)
    (row,) = page_data.transactions("words", sight)["transactions"]
    with ZooKeeperHook().get_ledgers() as ledgers:
        one = ledgers.ledger("words")
        still = "; ".join(each.text for each in blocks(diagnose(evidence_of(one, ledgers.beside(["words"])))))
    found = [one.text for one in ledger_checks(ZooKeeperHook()) if "no task works" in one.text]
    page, rows = top["diagnosis"], row["diagnosis"]
    assert (page["state"], page["text"]) == (rows["state"], rows["text"]) or rows["state"] == "running"
    return [page["detail"], [rows["detail"], rows["cure"]], found, still]

TridentCommitterOperator.execute = fails
play(dag)
"""


def test_a_transaction_whose_tasks_airflow_never_starts_stands_still_and_everybody_says_why(
    airflow_home: AirflowHome,
) -> None:
    write_words(airflow_home)
    result = airflow_home.python(
        PROGRAM
        + KILLED
        + """
moments = {"started": {}, "queued": {"run": "queued"}, "run ended": {"run": "success"}, "stale": {"stale": True},
    "under way": {"paused": True, "commit": "running"}, "paused": {"paused": True}}
found = {}
for name, moment in moments.items():
    now(**moment)
    found[name] = said()
with create_session() as session:
    session.add(Pool(pool="small", slots=1, include_deferred=True))
now()
for limit in ("600", "0"):
    os.environ["AIRFLOW__TRIDENT__STUCK_AFTER_S"] = limit
    for state, turn in (("scheduled", "success"), ("queued", "success"), (None, "deferred"), (None, "scheduled"),
                        ("running", "success"), ("up_for_retry", "success"), ("deferred", "success")):
        found[f"{limit} {state} {turn}"] = waits(state, turn, pool="small")
os.environ["AIRFLOW__TRIDENT__STUCK_AFTER_S"] = "600"
now(paused=True)
tell(found)
"""
    )
    stuck = {
        "scheduled success": "scheduled for 0 minutes: pool 'small', where deferred tasks hold slots or a limit",
        "queued success": "queued for 0 minutes: no worker of its executor takes it",
        "None deferred": "task 'words.turn' is deferred, and no triggerer runs",
        "None scheduled": "task 'words.turn' has to end first, for 0 minutes: it is scheduled",
    }
    for name in [*stuck, "running success", "up_for_retry success", "deferred success"]:
        assert result[f"600 {name}"] == ["", ["", ""], [], ""], name
        lowest, (shown, cure), doctor, still = result[f"0 {name}"]
        assert (stuck[name] in lowest) if name in stuck else lowest == "", (name, lowest)
        assert shown == lowest
        assert ("a slot, a worker" in cure) == (name in stuck)
        assert len(doctor) == (name in stuck)
        assert still.endswith(lowest)
    for name in ("started", "queued", "under way"):
        assert result[name] == ["", ["", ""], [], ""], name
    expected = {
        "run ended": ("its run has ended", "Clear that task"),
        "stale": ("its DAG is in no DAG file any more", "Bring that DAG back"),
        "paused": ("its DAG is paused", "Unpause that DAG"),
    }
    for name, (why, cure) in expected.items():
        lowest, shown, (doctor,), still = result[name]
        assert lowest.startswith("task 'words.commit' of run")
        assert lowest.endswith(f"of DAG 'words' is not started: {why}")
        backfill = "`airflow trident backfill words --txid 1`"
        assert shown == [lowest, f"{cure}, or type {backfill}"]
        assert still == f"no task works on transaction 1, which is PROCESSED: {lowest}"
        assert doctor == f"topology words: {still}. {cure}, or type {backfill}"
    listed = airflow_home.command("trident", "ledger", "list", "--check", environment=airflow_home.environment)
    assert (listed.returncode, "no task works on transaction 1" in listed.stdout) == (1, True)
