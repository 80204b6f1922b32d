"""What a run of Airflow may take: its kind, and how many at once. The operators themselves, over the production ledger
on an in-memory tree; of the run only what the Execution API tells of it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.python import ShortCircuitOperator
from airflow.sdk import DAG
from airflow.sdk.api.datamodels._generated import DagRunType
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
    AirflowTaskTimeout,
)

from airflow_trident import (
    Count,
    FileSpout,
    FixedBatchSpout,
    SqliteState,
    Topology,
    TridentCoordinatorOperator,
    TridentDrainOperator,
    trident_transaction,
)
from airflow_trident.errors import UnknownTopologyError
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.protocol.records import Command
from tests.fixtures import single


class Site:
    """A source of five files, one per batch, and the ledger of the topology that reads them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "in").mkdir()
        for number in range(5):
            (folder / "in" / f"{number}.txt").write_text("a\n")
        self.topology = Topology("words")
        lines = self.topology.new_stream("lines", FileSpout(str(folder / "in" / "*.txt"), format="text", max_files=1))
        state = SqliteState(str(folder / "words.db"))
        lines.group_by("line").persistent_aggregate(state, Count(), "count")
        self.tree = MemoryTree()

    def ledger(self) -> ZNodeLedger:
        return ZNodeLedger(MemoryZNodes(self.tree), "words")

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
        xcom_push=lambda **_: None,
    )
    run = SimpleNamespace(run_id=run_id, run_type=kind, run_after=due, clear_number=cleared)
    return {"ti": ti, "dag_run": run}


def test_a_backfill_run_of_airflow_takes_no_new_data_and_says_what_to_do_instead(site: Site) -> None:
    assert site.operator().execute(context_of("scheduled")) == 1
    with pytest.raises(AirflowSkipException) as skipped:
        site.operator().execute(context_of("backfill__2020", DagRunType.BACKFILL))
    assert site.begun() == 1
    for said in (
        "'backfill__2020'",
        "whatever the date",
        "`airflow trident backfill words --failed`",
        "allow_backfill_runs",
    ):
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


def test_airflow_tasks_test_takes_no_batch_and_says_which_command_does(site: Site) -> None:
    with pytest.raises(AirflowFailException, match=r"`airflow dags test words` runs all tasks"):
        site.operator().execute(context_of("__airflow_temporary_run_2026-01-01T00:00:00+00:00__"))
    with pytest.raises(UnknownTopologyError):
        site.begun()


@pytest.mark.parametrize("skipped", ["emit", "turn", "commit"])
@pytest.mark.parametrize("taken", [{}, {"max_transactions": 3}, {"max_transactions": 3, "group": 2}])
def test_a_task_that_can_skip_a_part_of_a_transaction_is_refused_before_it_is_begun(
    site: Site, skipped: str, taken: dict[str, Any]
) -> None:
    """Airflow calls a run with skipped tasks a success."""
    mapped = ".transaction" if taken == {"max_transactions": 3} else ""
    with DAG("words", schedule=None) as dag:
        trident_transaction(site.topology, engine="local", **taken)
        short = ShortCircuitOperator(task_id="short", python_callable=lambda: False)
        dag.get_task("words.coordinate") >> short >> dag.get_task(f"words{mapped}.{skipped}")
    coordinate = dag.get_task("words.coordinate")
    coordinate.open_ledger = site.ledger
    with pytest.raises(AirflowFailException, match=r"task short can skip words[.a-z]*, which works on the transaction"):
        coordinate.execute(context_of("scheduled"))
    with pytest.raises(UnknownTopologyError):
        site.begun()


def test_tasks_that_skip_before_and_behind_a_transaction_are_let_be(site: Site) -> None:
    with DAG("words", schedule=None) as dag:
        groups = [trident_transaction(site.topology, engine="local", group_id=name) for name in ("first", "second")]
        shorts = [ShortCircuitOperator(task_id=f"short{place}", python_callable=lambda: False) for place in range(3)]
        shorts[0] >> groups[0] >> shorts[1] >> groups[1] >> shorts[2]
    coordinate = dag.get_task("first.coordinate")
    coordinate.open_ledger = site.ledger
    assert coordinate.execute(context_of("scheduled")) == 1


@pytest.mark.parametrize("argument", ["depends_on_past", "wait_for_downstream"])
def test_what_can_keep_a_cleared_run_in_the_queue_for_ever_is_a_warning_when_the_dag_is_built(
    site: Site, argument: str
) -> None:
    with pytest.warns(UserWarning, match="can block a topology"), DAG("words", default_args={argument: True}):
        trident_transaction(site.topology)


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


# ---- what a coordinator found is in the ledger ------------------------------------------------------------------


def outcome(site: Site) -> tuple[str, str, str]:
    found = site.ledger().coordinator()
    assert found is not None
    return str(found.kind), found.run_id, found.error


def test_the_ledger_says_how_the_last_look_at_the_sources_ended(site: Site) -> None:
    site.operator().execute(context_of("one"))
    assert outcome(site) == ("begun", "one", "")
    found = site.ledger().coordinator()
    assert found is not None
    assert found.lag == {"lines": {"files": 4, "bytes": 8}}
    (site.folder / "in" / "0.txt").write_text("changed\n")
    with pytest.raises(AirflowFailException, match="SourceChangedError"):
        site.operator().execute(context_of("two"))
    kind, run, error = outcome(site)
    assert (kind, run) == ("error", "two")
    assert error.startswith("SourceChangedError: ")
    assert "0.txt" in error


def test_a_coordinator_whose_topology_has_changed_says_so(site: Site) -> None:
    site.operator().execute(context_of("one"))
    other = Topology("words")
    other.new_stream("others", FixedBatchSpout("line string", ["a"])).group_by("line").persistent_aggregate(
        SqliteState(str(site.folder / "words.db")), Count(), "count"
    )
    site.topology = other
    with pytest.raises(AirflowFailException, match="DefinitionChangedError"):
        site.operator().execute(context_of("two"))
    assert outcome(site)[0] == "error"
    assert "DefinitionChangedError" in outcome(site)[2]


def test_a_store_that_does_not_answer_stands_in_the_ledger_too(site: Site) -> None:
    site.operator().execute(context_of("one"))
    (site.folder / "words.db").unlink(missing_ok=True)
    (site.folder / "words.db").mkdir()
    with pytest.raises(BaseException) as failed:
        site.operator().execute(context_of("two"))
    kind, _, error = outcome(site)
    assert kind == "error"
    assert error.partition(":")[0] in f"{type(failed.value).__name__} {failed.value}"


def test_nothing_new_paused_waiting_and_blocked_are_told_apart(site: Site) -> None:
    site.operator(max_transactions=5).execute(context_of("all"))
    with pytest.raises(AirflowSkipException):
        site.operator(max_pending=9).execute(context_of("late"))
    assert outcome(site)[:2] == ("nothing new", "late")
    with pytest.raises(AirflowRescheduleException):
        site.operator(max_pending=5, turn_wait_s=0).execute(context_of("waits"))
    assert outcome(site)[:2] == ("waiting", "waits")
    ledger = site.ledger()
    ledger.set_command(Command.PAUSE)
    with pytest.raises(AirflowSkipException):
        site.operator(max_pending=9).execute(context_of("paused"))
    assert outcome(site)[:2] == ("paused", "paused")
    ledger.set_command(Command.RUN)
    ledger.fail(1, single.attempt(ledger, 1, owner="a test").attempt, "in vain")
    with pytest.raises(AirflowFailException):
        site.operator(max_pending=5).execute(context_of("blocked"))
    kind, run, error = outcome(site)
    assert (kind, run) == ("blocked", "blocked")
    assert "transaction 1" in error


@pytest.mark.parametrize("command", [Command.PAUSE, Command.SHUTDOWN])
def test_a_drain_that_may_begin_nothing_says_so_and_how_it_goes_on(site: Site, command: Command) -> None:
    def drain(run: str) -> Any:
        made = site.operator(TridentDrainOperator, engine="local", staging_dir=str(site.folder), max_transactions=2)
        return made.execute(context_of(run))

    assert drain("one") == [1, 2]
    site.ledger().set_command(command)
    with pytest.raises(AirflowSkipException, match=rf"words: its command is {command}.*`airflow trident resume words`"):
        drain("two")
    site.ledger().set_command(Command.RUN)
    assert drain("three") == [3, 4]
    assert drain("four") == [5]
    with pytest.raises(AirflowSkipException, match="nothing new"):
        drain("five")


def test_a_coordinator_that_ran_out_of_its_time_is_told_of(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.operator().execute(context_of("one"))

    def hangs(*_: object, **__: object) -> None:
        raise AirflowTaskTimeout("Timeout")

    monkeypatch.setattr("airflow_trident.runtime.phases.coordinate", hangs)
    with pytest.raises(AirflowTaskTimeout):
        site.operator().execute(context_of("two"))
    assert outcome(site) == ("error", "two", "AirflowTaskTimeout: Timeout")
