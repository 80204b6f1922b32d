"""A run that takes several transactions with one task of each kind for all: in a real Airflow, on a real ledger."""

from __future__ import annotations

import pytest

from tests.fixtures.airflow import AirflowHome
from tests.integration.test_airflow_tasks import PROGRAM, VERBS, write_words

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper]

TOGETHER = "max_transactions=3, group='auto', turn_wait_s=0"
TRIED = """
with ledger() as one:
    tried = [[str(tx.status), tx.attempt] for tx in one.transactions()]
"""


def test_one_task_processes_and_one_commits_what_a_run_takes(airflow_home: AirflowHome) -> None:
    write_words(airflow_home, TOGETHER)
    result = airflow_home.python(
        PROGRAM
        + """
runs = [play(dag), play(dag)]
with ledger() as one:
    claims = [[tx.claim.key, tx.claim.map_index, tx.claim.task_ids, tx.attempt, str(tx.status)]
              for tx in one.transactions()]
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
with create_session() as session:
    xcoms = [[one.task_id, one.value] for one in session.query(XComModel).filter_by(key="return_value")]
    links = [[one.task_id, one.value] for one in session.query(XComModel).filter_by(key="_link_TransactionLink")]
tell({"runs": runs, "held": held() == HELD, "claims": claims, "xcoms": xcoms, "links": links})
"""
    )
    assert result["runs"] == [dict.fromkeys(VERBS, "success"), dict.fromkeys(VERBS, "skipped")]
    to_all = "/plugin/transactions/trident/?topology=words&find=1+to+3"
    for task in ("coordinate", "emit", "commit"):
        assert [f"words.{task}", to_all] in result["links"]
    assert result["held"]
    assert len({key for key, *_ in result["claims"]}) == 3
    tasks = {"emit": "words.emit", "commit": "words.commit"}
    assert [claim[1:] for claim in result["claims"]] == [[-1, tasks, 0, "COMMITTED"]] * 3
    returned = {task.removeprefix("words."): value for task, value in result["xcoms"]}
    assert returned == {"coordinate": [1, 2, 3], "emit": [1, 2, 3], "turn": 1, "commit": [1, 2, 3]}
    for line in (
        "transactions 1 to 3 (3 of them) of topology words are begun (lines)",
        "transactions 1 to 3 of topology words (3 in all): 10 rows read in ",
        "transactions 1 to 3 (3 of them) are committed in one step",
        "3 transactions of topology words, 1 to 3, are committed after ",
    ):
        assert line in airflow_home.output


def failing_once(home: AirflowHome) -> str:
    """The program up to where transaction 2 has failed in a run, and would not again."""
    return f"""{PROGRAM}
file = Path("{home.folder}/fail-2")
file.touch()
run = play(dag)
{TRIED}
file.unlink()
"""


def test_what_is_processed_beside_one_that_fails_is_committed_as_far_as_its_turn_has_come(
    airflow_home: AirflowHome,
) -> None:
    write_words(airflow_home, TOGETHER)
    result = airflow_home.python(
        failing_once(airflow_home)
        + """
mended = play(again)
tell({"run": run, "tried": tried, "mended": mended, "held": held() == HELD})
"""
    )
    assert result["run"] == {"coordinate": "success", "emit": "failed", "turn": "success", "commit": "failed"}
    # The second try of the task left alone what the first one had processed: one more attempt, beside no. 2.
    assert result["tried"] == [["COMMITTED", 1], ["FAILED", 2], ["PROCESSED", 1]]
    assert "told to fail" in airflow_home.output
    assert "topology words: transaction 2 is FAILED, and nothing above it may commit before it" in airflow_home.output
    assert result["mended"] == {"backfill": "success"}
    assert result["held"]


def test_with_skip_the_others_of_the_run_are_committed_and_it_succeeds(airflow_home: AirflowHome) -> None:
    write_words(airflow_home, f"{TOGETHER}, on_failure='skip', turn_sensor=False")
    result = airflow_home.python(
        failing_once(airflow_home)
        + """
late = play(again, conf={"txid": 2})
tell({"run": run, "tried": tried, "late": late, "held": held() == HELD})
"""
    )
    assert result["run"] == {"coordinate": "success", "emit": "success", "commit": "success"}
    assert [status for status, _ in result["tried"]] == ["COMMITTED", "SKIPPED", "COMMITTED"]
    assert "transaction 2 of topology words is SKIPPED: left out" in airflow_home.output
    assert result["late"] == {"backfill": "success"}
    assert result["held"]
