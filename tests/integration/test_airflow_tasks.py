"""The tasks in a real Airflow (``dag.test()``), on a real ledger."""

from __future__ import annotations

import pytest

from tests.airflow_fixtures import AirflowHome

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper]

DAG = """
from airflow.sdk import DAG
from airflow_trident import Count, FixedBatchSpout, SqliteState, Topology, trident_transaction

LINES = [(f"word{number % 3}",) for number in range(10)]
topology = Topology("words")
words = topology.new_stream("lines", FixedBatchSpout("word string", LINES, 4))
words.group_by("word").persistent_aggregate(SqliteState("FOLDER/words.db"), Count(), "count")

with DAG("words", schedule=None) as dag:
    trident_transaction(topology, engine="local", ARGUMENTS)
"""

RUN = """
from words import dag, topology
def states(run):
    names = {ti: ti.task_id if ti.map_index < 0 else f"{ti.task_id}[{ti.map_index}]" for ti in run.get_task_instances()}
    return {name: ti.state for ti, name in names.items()}
def held():
    (spec,) = topology.states.values()
    with spec.factory.make_state(spec) as state:
        return sorted([key[0], value[0]] for key, value in state.items())
"""


def write_words(home: AirflowHome, arguments: str = "") -> None:
    home.write_dag("words", DAG.replace("FOLDER", str(home.folder)).replace("ARGUMENTS", arguments))
    home.options["PYTHONPATH"] = f"{home.dags}:{home.environment['PYTHONPATH']}"


def test_runs_commit_one_transaction_each_until_nothing_is_new(airflow_home: AirflowHome) -> None:
    write_words(airflow_home)
    result = airflow_home.python(RUN + "tell({'runs': [states(dag.test()) for _ in range(4)], 'held': held()})")
    done = {"words.coordinate": "success", "words.emit": "success", "words.turn": "success", "words.commit": "success"}
    assert result["runs"][:3] == [done] * 3
    assert set(result["runs"][3].values()) == {"skipped"}
    assert result["held"] == [["word0", 4], ["word1", 3], ["word2", 3]]
