"""How much is kept when somebody else than a DAG's own committer commits: what the DAG keeps must not be removed."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_trident import Count, FixedBatchSpout, SqliteState, Topology, TridentBackfillOperator, trident_transaction
from airflow_trident.operators.drain import TridentDrainOperator
from airflow_trident.operators.mending import _worker
from airflow_trident.operators.transaction import TridentCommitterOperator
from airflow_trident.protocol.diagnosis import PageAction
from airflow_trident.tasks.mending_order import MendingOrder
from airflow_trident.tasks.topology_search import engine_of, retention_of
from tests.unit.test_provider_runs import Site, context_of, site

__all__ = ["site"]


@pytest.fixture(autouse=True)
def configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TRIDENT__RETENTION", "1")


def words(name: str = "words") -> Topology:
    topology = Topology(name)
    stream = topology.new_stream("lines", FixedBatchSpout("word string", ["a", "b"]))
    stream.group_by("word").persistent_aggregate(SqliteState(f"{name}.db"), Count(), "count")
    return topology


@pytest.mark.parametrize(
    ("of_dag", "given", "kept"),
    [
        ({"retention": 1000}, {}, [1, 2, 3, 4]),
        ({"retention": 1000}, {"retention": 2}, [3, 4]),
        ({}, {"retention": 3}, [2, 3, 4]),
        ({}, {}, [4]),
    ],
)
def test_a_backfill_keeps_as_much_as_the_dag_that_it_is_in_unless_told_otherwise(
    site: Site, of_dag: dict[str, Any], given: dict[str, Any], kept: list[int]
) -> None:
    arguments = {"engine": "local", "staging_dir": str(site.folder / "staging")}
    dag = DAG("words", schedule=None)
    with dag:
        trident_transaction(site.topology, group_id="t", **arguments, **of_dag)  # type: ignore[arg-type]
    for number in range(4):
        operator = site.operator(max_pending=9)
        assert operator.execute(context_of(f"run {number}")) == number + 1
    backfill = TridentBackfillOperator(task_id="mend", topology=site.topology, dag=dag, group=1, **arguments, **given)  # type: ignore[arg-type]
    backfill.open_ledger = site.ledger  # type: ignore[assignment, method-assign]
    backfill.first, backfill.last = 1, 4
    assert backfill.execute(context_of("by hand")) == [1, 2, 3, 4]
    assert [record.txid for record in site.ledger().transactions()] == kept


def order() -> MendingOrder:
    return MendingOrder(
        action=PageAction.BACKFILL, topology="words", dag_id="plays", incarnation="x", reason="why", by="uwe"
    )


def test_a_replay_of_the_page_keeps_as_much_as_the_dag_of_the_topology() -> None:
    with DAG("plays", schedule=None) as dag:
        trident_transaction(words(), engine="local", retention=1000)
    made = _worker(words(), dag.tasks, order())
    assert (made.retention, made.engine) == (1000, "local")


def test_what_counts_is_the_most_that_a_task_of_the_topology_was_given_mapped_or_not() -> None:
    with DAG("plays", schedule=None) as dag:
        TridentCommitterOperator.partial(task_id="mapped", topology=words(), retention=70).expand(txid=[1, 2])
        TridentDrainOperator(task_id="drain", topology=words(), retention=60)
        TridentBackfillOperator(task_id="mend", topology=words())
        TridentDrainOperator(task_id="other", topology=words("other"), retention=90)
    assert retention_of("words", dag.tasks) == 70
    assert retention_of("other", dag.tasks) == 90
    assert retention_of("words", [dag.get_task("mend")]) == 1


@pytest.mark.parametrize("mapped", [False, True])
def test_a_task_that_was_given_nothing_keeps_as_much_as_is_configured(
    monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    monkeypatch.setenv("AIRFLOW__TRIDENT__RETENTION", "50")
    with DAG("plays", schedule=None) as dag:
        if mapped:
            TridentCommitterOperator.partial(task_id="commit", topology=words()).expand(txid=[1, 2])
        else:
            TridentCommitterOperator(task_id="commit", topology=words(), txid=1)
        TridentBackfillOperator(task_id="mend", topology=words(), retention=3)
        TridentBackfillOperator(task_id="other", topology=words())
    assert retention_of("words", dag.tasks) == 50
    assert retention_of("words", [dag.get_task("mend"), dag.get_task("other")]) == 3


def test_commands_take_the_engine_of_the_tasks_and_spark_where_these_differ_or_are_not_there() -> None:
    with DAG("plays", schedule=None) as dag:
        trident_transaction(words(), engine="local")
        TridentDrainOperator.partial(task_id="mapped", topology=words("other"), engine="local").expand(group=[1, 2])
        TridentDrainOperator(task_id="here", topology=words("both"), engine="local")
        TridentDrainOperator(task_id="there", topology=words("both"), engine="spark")
    engines = {name: str(engine_of(name, dag.tasks)) for name in ("words", "other", "both", "none")}
    assert engines == {"words": "local", "other": "local", "both": "spark", "none": "spark"}
