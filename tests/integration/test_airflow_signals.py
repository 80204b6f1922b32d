"""What tells Airflow how to go on, and when to be alarmed: in a real Airflow."""

from __future__ import annotations

import pytest

from tests.fixtures.airflow import AirflowHome

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper]

RETRIES = """
from datetime import timedelta
from airflow.sdk import DAG, task
from airflow_trident import TridentRetryPolicy
from airflow_trident.errors import ConfigurationError, FailedException, LedgerUnavailableError

RAISED = {
    "down": LedgerUnavailableError("no answer"),
    "wrong": ConfigurationError("wrong"),
    "vain": FailedException("in vain", retry=False),
    "other": ValueError("somebody else's"),
}

with DAG("retries", schedule=None) as retries:
    for name in RAISED:
        @task(task_id=name, retries=1, retry_delay=timedelta(0), retry_policy=TridentRetryPolicy(timedelta(0)))
        def raises(name):
            raise RAISED[name]
        raises(name)
"""
DEADLINE = """
from datetime import timedelta
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, AsyncCallback, DeadlineAlert
from airflow_trident.tasks.deadline import OldestUncommittedDeadline

async def told(**_): ...

for name in ("words", "nowhere"):
    alert = DeadlineAlert(
        reference=OldestUncommittedDeadline(name), interval=timedelta(hours=1), callback=AsyncCallback(told)
    )
    with DAG(f"late_{name}", schedule=None, deadline=alert):
        EmptyOperator(task_id="work")
"""


def test_a_task_of_ones_own_retries_what_the_table_of_errors_retries(airflow_home: AirflowHome) -> None:
    airflow_home.write_dag("retries", RETRIES)
    airflow_home.options["PYTHONPATH"] = f"{airflow_home.dags}:{airflow_home.environment['PYTHONPATH']}"
    tries = airflow_home.python(
        """
from retries import retries
tell({ti.task_id: ti.try_number for ti in retries.test().get_task_instances()})
"""
    )
    assert tries == {"down": 2, "wrong": 1, "vain": 1, "other": 2}


def test_a_deadline_counts_from_the_oldest_transaction_that_is_not_committed(airflow_home: AirflowHome) -> None:
    airflow_home.write_dag("late", DEADLINE)
    airflow_home.airflow("dags", "reserialize")
    found = airflow_home.python(
        """
import time
from datetime import timedelta, timezone, datetime
from airflow.models.deadline import Deadline
from airflow.models.dagbag import DBDagBag
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from airflow_trident.hooks.zookeeper import ZooKeeperHook
from tests.fixtures.ledger import DEFINITION, begun, commit

def deadlines(run_id):
    with create_session() as session:
        for dag_id in ("late_words", "late_nowhere"):
            dag = DBDagBag().get_latest_version_of_dag(dag_id, session=session)
            dag.create_dagrun(run_id=run_id, run_after=datetime.now(timezone.utc), run_type=DagRunType.MANUAL,
                triggered_by=DagRunTriggeredByType.TEST, state="queued", session=session)
    with create_session() as session:
        return {one.dagrun.dag_id: (one.deadline_time - timedelta(hours=1)).timestamp() for one in
            session.query(Deadline) if one.dagrun.run_id == run_id}

with ZooKeeperHook().get_ledger("words") as ledger:
    ledger.register(DEFINITION)
    for number in (1, 2, 3):
        begun(ledger, number)
    commit(ledger, 1)
    begun_s = ledger.view(2).tx.times_ms["begun"] / 1000
    before = time.time()
    waiting = deadlines("one")
    commit(ledger, 2), commit(ledger, 3)
    rests = deadlines("two")
    from airflow_trident.tasks.deadline import sessions as pool
    sessions = len(pool()._idle)
tell({"sessions": sessions, "exact": waiting["late_words"] == begun_s, "unknown": waiting["late_nowhere"] >= before,
    "rests": rests["late_words"] >= before})
"""
    )
    assert found == {"sessions": 1, "exact": True, "unknown": True, "rests": True}
