"""What a run of Airflow may take: its kind, and how many at once. The operators themselves, over the production ledger
on an in-memory tree; of the run only what the Execution API tells of it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.api.datamodels._generated import DagRunType
from airflow.sdk.exceptions import AirflowRescheduleException, AirflowSkipException

from airflow_trident import (
    Count,
    FileSpout,
    SqliteState,
    Topology,
    TridentCoordinatorOperator,
    TridentDrainOperator,
    trident_transaction,
)
from airflow_trident.ledger.fake import FakeTree, FakeZNodes
from airflow_trident.ledger.znode_ledger import ZNodeLedger


class Site:
    """A source of five files, one per batch, and the ledger of the topology that reads them."""

    def __init__(self, folder: Path) -> None:
        (folder / "in").mkdir()
        for number in range(5):
            (folder / "in" / f"{number}.txt").write_text("a\n")
        self.topology = Topology("words")
        lines = self.topology.new_stream("lines", FileSpout(str(folder / "in" / "*.txt"), format="text", max_files=1))
        state = SqliteState(str(folder / "words.db"))
        lines.group_by("line").persistent_aggregate(state, Count(), "count")
        self.tree = FakeTree()

    def ledger(self) -> ZNodeLedger:
        return ZNodeLedger(FakeZNodes(self.tree), "words")

    def operator(self, kind: type = TridentCoordinatorOperator, dag: DAG | None = None, **arguments: Any) -> Any:
        made = kind(task_id="coordinate", topology=self.topology, dag=dag or DAG("words", schedule=None), **arguments)
        made.open_ledger = self.ledger
        return made

    def begun(self) -> int:
        return self.ledger().view(0).next_txid - 1


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def context_of(run_id: str, kind: DagRunType = DagRunType.SCHEDULED, cleared: int = 0) -> Any:
    due = datetime(2026, 1, 1, tzinfo=UTC)
    ti = SimpleNamespace(
        dag_id="words",
        run_id=run_id,
        task_id="coordinate",
        map_index=-1,
        try_number=1,
        max_tries=0,
        get_first_reschedule_date=lambda _context: None,
    )
    run = SimpleNamespace(run_id=run_id, run_type=kind, run_after=due, clear_number=cleared)
    return {"ti": ti, "dag_run": run}


def test_a_backfill_run_of_airflow_takes_no_new_data_and_says_what_to_do_instead(site: Site) -> None:
    assert site.operator().execute(context_of("scheduled")) == 1
    with pytest.raises(AirflowSkipException) as skipped:
        site.operator().execute(context_of("backfill__2020", DagRunType.BACKFILL))
    assert site.begun() == 1
    for said in ("'backfill__2020'", "whatever the date", "`airflow trident backfill words`", "allow_backfill_runs"):
        assert said in str(skipped.value)


def test_a_backfill_run_takes_new_data_where_that_is_asked_for_and_keeps_what_it_has(site: Site) -> None:
    run = context_of("backfill__2020", DagRunType.BACKFILL)
    assert site.operator(allow_backfill_runs=True).execute(run) == 1
    assert site.operator().execute(context_of("backfill__2020", DagRunType.BACKFILL, cleared=1)) == 1
    assert site.begun() == 1


def test_a_backfill_run_is_refused_before_there_is_a_ledger_too(site: Site) -> None:
    with pytest.raises(AirflowSkipException, match="part of an Airflow backfill"):
        site.operator().execute(context_of("backfill__2020", DagRunType.BACKFILL))


def test_a_drain_takes_nothing_in_a_backfill_run(site: Site) -> None:
    with pytest.raises(AirflowSkipException, match="part of an Airflow backfill"):
        site.operator(TridentDrainOperator, engine="local").execute(context_of("backfill__2020", DagRunType.BACKFILL))


def test_a_group_hands_on_whether_backfill_runs_may_take_new_data(site: Site) -> None:
    with DAG("words", schedule=None) as dag:
        trident_transaction(site.topology, allow_backfill_runs=True)
    assert dag.get_task("words.coordinate").allow_backfill_runs


@pytest.mark.parametrize(("runs_of_dag", "taken"), [({"max_active_runs": 3}, [1, 2, 3]), ({}, [1, 2, None])])
def test_as_many_transactions_are_pending_as_the_dag_lets_runs_be_active(
    site: Site, runs_of_dag: dict[str, int], taken: list[int | None]
) -> None:
    def claimed(run: str) -> int | None:
        try:
            txid: int = site.operator(dag=DAG("words", schedule=None, **runs_of_dag), turn_wait_s=0).execute(
                context_of(run)
            )
        except AirflowRescheduleException:
            return None
        return txid

    assert [claimed(f"run {number}") for number in range(3)] == taken


def test_commits_of_older_runs_go_before_new_batches_unless_the_dag_says_otherwise(site: Site) -> None:
    def rules(**arguments: Any) -> set[str]:
        with DAG("words", schedule=None, default_args=arguments.pop("default_args", {})) as dag:
            trident_transaction(site.topology, **arguments)
        return {str(task.weight_rule.__class__.__name__) + str(task.weight_rule) for task in dag.tasks}

    (upstream,) = rules()
    assert "upstream" in upstream.lower()
    (own,) = rules(default_args={"weight_rule": "absolute"})
    assert "absolute" in own.lower()
    (given,) = rules(weight_rule="downstream")
    assert "downstream" in given.lower()
