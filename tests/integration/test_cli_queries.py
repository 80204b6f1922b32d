"""``airflow trident query`` and ``state get`` as a person runs them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from airflow_trident import Count, FixedBatchSpout, SqliteState, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.functions import MapGet
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.runtime.local import LocalRunner
from tests.fixtures.airflow import AirflowHome, airflow_home
from tests.fixtures.cli import Site

__all__ = ["airflow_home"]

pytestmark = [pytest.mark.zookeeper, pytest.mark.airflow]

DAG_FILE = """
from airflow.sdk import DAG

from airflow_trident import TridentQueryOperator
from tests.integration.test_cli_queries import build

topology = build({folder!r})

with DAG("asking", schedule=None, params={{"word": "b"}}) as dag:
    TridentQueryOperator(task_id="ask", topology=topology, query="count_of", query_args=["{{{{ params.word }}}}", "3"])
"""


def build(folder: str) -> Topology:
    topology = Topology("asked")
    words = topology.new_stream("words", FixedBatchSpout("word string", ["a", "b", "a"]))
    counts = words.group_by("word").persistent_aggregate(SqliteState(f"{folder}/words.db"), Count(), "n")
    asked = topology.new_drpc_stream("count_of", "word string, times long").state_query(counts, "word", MapGet(), "n")
    asked.each(["n", "times"], lambda n, times: [(n or 0) * times], "product long").project("word, product")
    return topology


def test_queries_and_keys_on_the_command_line_and_in_a_task(airflow_home: AirflowHome, tmp_path: Path) -> None:
    with MemoryLedger("asked") as ledger, LocalEngine() as engine:
        topology = build(str(tmp_path))
        LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=str(tmp_path / "staging")).run()
    airflow_home.write_dag("asking", DAG_FILE.format(folder=str(tmp_path)))
    place = f"--dag-file {airflow_home.dags}/asking.py"
    answer, table, got, absent, no_state, no_query, no_number, plan, no_plan = Site(
        airflow_home, sys.modules[__name__]
    ).tridents(
        f"query asked count_of a 10 -o json {place}",
        f"query asked count_of b 1 {place}",
        f"state get asked n a -o json {place}",
        f"state get asked n x {place}",
        f"state get asked m x {place}",
        f"query asked sum_of a {place}",
        f"query asked count_of a ten {place}",
        f"plan {airflow_home.dags}/asking.py --query count_of",
        f"plan {airflow_home.dags}/asking.py --query sum_of",
    )
    assert answer.json() == [{"word": "a", "product": 20}]
    assert (table.code, table.out.split()[0]) == (0, "word")
    assert "product" in table.out
    assert got.json() == [{"word": "a", "n": 2}]
    assert (absent.code, absent.out.strip()) == (1, "no such key")
    assert no_state.code == 2
    assert "has no state 'm'. It has n." in no_state.error
    assert "has no query 'sum_of'. It has 'count_of'." in no_query.error
    assert "'ten' is no long" in no_number.error
    assert plan.out.startswith("topology asked\n\nstream count_of: arguments of query count_of")
    assert "=> handed on as ~result (word string, product long)" in plan.out
    assert "has no query 'sum_of'. It has 'count_of'." in no_plan.error
    airflow_home.options["PYTHONPATH"] = f"{airflow_home.dags}:{airflow_home.environment['PYTHONPATH']}"
    told = airflow_home.python(
        """
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from asking import dag

run = dag.test()
with create_session() as session:
    values = [one.value for one in session.query(XComModel).filter_by(dag_id="asking", key="return_value")]
tell([str(run.state), values])
"""
    )
    assert told == ["success", [[{"word": "b", "product": 3}]]]
