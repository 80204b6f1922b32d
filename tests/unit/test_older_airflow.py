"""What an older Airflow cannot do is said: when the DAG is built, or in the task's log."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from structlog.testing import capture_logs

from airflow_trident import Count, FixedBatchSpout, SqliteState, Topology, TridentDrainOperator, trident_transaction
from airflow_trident.tasks import airflow_versions


@pytest.fixture
def topology(tmp_path: Path) -> Topology:
    topology = Topology("words")
    words = topology.new_stream("words", FixedBatchSpout("word string", [("a",)]))
    words.group_by("word").persistent_aggregate(SqliteState(str(tmp_path / "words.db")), Count(), "count")
    return topology


def said_of_group(topology: Topology, deferrable: bool | None) -> list[str]:
    with warnings.catch_warnings(record=True) as caught, DAG("words", schedule=None):
        warnings.simplefilter("default")
        trident_transaction(topology, engine="local", deferrable=deferrable)
    return [str(one.message) for one in caught if "deferrable" in str(one.message)]


def test_a_wait_that_cannot_be_deferred_is_one_warning_when_the_dag_is_built(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said_of_group(topology, True) == []
    monkeypatch.setattr(airflow_versions, "DEFERS", False)
    (said,) = said_of_group(topology, True)
    assert "deferrable=True counts for nothing in Airflow 3." in said
    assert said.endswith("Leave it out, or use Airflow 3.2 or newer.")
    assert said_of_group(topology, None) == said_of_group(topology, False) == []


class Stop(Exception):
    pass


@pytest.mark.parametrize("remembers", [True, False])
def test_a_drain_that_no_retry_could_take_up_says_so_before_it_is_submitted(
    topology: Topology, remembers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = TridentDrainOperator(task_id="drain", topology=topology, spark_conn_id="cluster")

    def submitted() -> Any:
        raise Stop

    monkeypatch.setattr(task, "_limits", submitted)
    store = {"task_state_store": SimpleNamespace(get=lambda _: None, set=lambda *_, **__: None)} if remembers else {}
    context: Any = {"ti": SimpleNamespace(try_number=1), **store}
    with capture_logs() as logged, pytest.raises(Stop):
        task._drain_submitted(context)
    said = [one["event"] for one in logged if "a retry of this task submits another drain" in one["event"]]
    assert len(said) == (0 if remembers else 1)
