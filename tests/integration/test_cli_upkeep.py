"""``airflow trident state fold | publish`` as a person runs them, and the same as tasks."""

from __future__ import annotations

import sys
from pathlib import Path

import deltalake
import pytest

from airflow_trident import Count, DeltaState, FileSink, FixedBatchSpout, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ConfigurationError
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.operators.query import TridentUpkeepOperator
from airflow_trident.runtime.local import LocalRunner
from tests.fixtures.airflow import AirflowHome, airflow_home
from tests.fixtures.cli import Site

__all__ = ["airflow_home"]

pytestmark = [pytest.mark.zookeeper, pytest.mark.airflow]

DAG_FILE = """
from airflow.sdk import DAG

from airflow_trident.operators.query import TridentUpkeepOperator
from tests.integration.test_cli_upkeep import build

topology = build({folder!r})

with DAG("kept", schedule=None) as dag:
    for state, action in (("n", "fold"), ("n", "publish")):
        TridentUpkeepOperator(task_id=action, topology=topology, state=state, action=action)
"""


def build(folder: str) -> Topology:
    topology = Topology("kept")
    words = topology.new_stream("words", FixedBatchSpout("word string, n long", [("a", 1), ("b", 2), ("a", 3)], 1))
    words.partition_persist(FileSink(f"{folder}/out"), "word", name="copied")
    words.group_by("word").persistent_aggregate(DeltaState(folder, fold_at=None), Count(), "n", name="n")
    return topology


def run(folder: Path) -> Topology:
    topology = build(str(folder))
    with MemoryLedger("kept") as ledger, LocalEngine() as engine:
        LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=str(folder / "staging")).run()
    return topology


def is_kept_up(folder: Path) -> None:
    assert deltalake.DeltaTable(f"{folder}/kept_n").to_pyarrow_table().num_rows == 2
    published = deltalake.DeltaTable(f"{folder}/kept_n_latest").to_pyarrow_table().to_pylist()
    assert {row["word"]: row["n"] for row in published} == {"a": 2, "b": 1}


def test_states_are_kept_up_from_the_command_line(airflow_home: AirflowHome, tmp_path: Path) -> None:
    run(tmp_path)
    airflow_home.write_dag("kept", DAG_FILE.format(folder=str(tmp_path)))
    site = Site(airflow_home, sys.modules[__name__])
    folded, folded_again, published, published_again, *wrong = site.tridents(
        "state fold kept n",
        "state fold kept n",
        "state publish kept n --dag kept",
        "state publish kept n --dag kept",
        "state fold kept copied",
        "state fold kept newest",
        "state fold keept n",
    )
    assert folded.out.splitlines() == ["state n: making one file of 3 with 3 rows", "state n: folded"]
    assert (folded_again.code, folded_again.out) == (0, "state n: nothing to fold\n")
    assert published.out.splitlines() == ["state n: reading all files (1) with 2 rows", "state n: published"]
    assert (published_again.code, published_again.out) == (0, "state n: nothing to publish\n")
    is_kept_up(tmp_path)
    assert [one.code for one in wrong] == [1, 2, 1]
    assert "no `fold` of state 'copied'" in wrong[0].error
    assert "`fold` is for a DeltaState." in wrong[0].error
    assert "has no state 'newest'. It has copied, n." in wrong[1].error
    assert "no topology 'keept'" in wrong[2].error


def test_states_are_kept_up_by_tasks_and_a_wrong_one_is_refused_when_it_is_made(
    airflow_home: AirflowHome, tmp_path: Path
) -> None:
    topology = run(tmp_path)
    airflow_home.write_dag("kept", DAG_FILE.format(folder=str(tmp_path)))
    airflow_home.options["PYTHONPATH"] = f"{airflow_home.dags}:{airflow_home.environment['PYTHONPATH']}"
    told = airflow_home.python(
        """
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from kept import dag

run = dag.test()
with create_session() as session:
    values = {one.task_id: one.value for one in session.query(XComModel).filter_by(dag_id="kept", key="return_value")}
tell([str(run.state), values])
"""
    )
    assert told == ["success", {"fold": True, "publish": True}]
    is_kept_up(tmp_path)
    for state, action, text in (
        ("copied", "fold", "no `fold` of state 'copied'"),
        ("copies", "fold", "has no state 'copies'"),
        ("n", "squeeze", "'squeeze' is no upkeep"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            TridentUpkeepOperator(task_id="wrong", topology=topology, state=state, action=action)
