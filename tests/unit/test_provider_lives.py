"""Tasks of a topology's former life: a txid that their coordinator gave them is another batch in the life after it, so
they are refused and change nothing there. The operators themselves, over the production ledger on in-memory trees."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_trident import (
    Count,
    FileSpout,
    SqliteState,
    Topology,
    TridentBackfillOperator,
    TridentCoordinatorOperator,
    TridentEmitterOperator,
    TridentReadySensor,
    TridentTurnSensor,
    trident_transaction,
)
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.protocol.records import Status
from tests.fixtures import single


class Site:
    """A DAG with a transaction's tasks and a backfill of the same transaction, and what its runs keep as XComs."""

    run_type = "manual"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cleared: set[str] = set()
        (folder / "in").mkdir()
        for number in range(3):
            (folder / "in" / f"{number}.txt").write_text("a\n")
        self.topology = Topology("words")
        self.define(self.topology)
        with DAG("words", schedule=None) as self.dag:
            trident_transaction(self.topology, engine="local", staging_dir=str(folder / "staging"))
            coordinator = self.dag.get_task("words.coordinate")
            ready = TridentReadySensor(task_id="ready", topology=self.topology)
            ready >> coordinator
            backfill = TridentBackfillOperator(
                task_id="backfill",
                topology=self.topology,
                engine="local",
                staging_dir=str(folder / "staging"),
                txid=coordinator.output,
            )
            self.dag.get_task("words.commit") >> backfill
        self.xcoms: dict[tuple[str, str, str], Any] = {}
        self.tree = MemoryTree()

    def define(self, topology: Topology) -> None:
        """One file a batch."""
        spout = FileSpout(str(self.folder / "in" / "*.txt"), format="text", max_files=1)
        state = SqliteState(str(self.folder / "words.db"))
        topology.new_stream("lines", spout).group_by("line").persistent_aggregate(state, Count(), "count")

    def ledger(self, incarnation: str = "") -> ZNodeLedger:
        return ZNodeLedger(MemoryZNodes(self.tree), "words", incarnation=incarnation)

    def is_ready(self, run_id: str) -> bool:
        """What the ready sensor of a run says now."""
        task: Any = self.dag.get_task("ready")
        task.open_ledger = self.ledger
        found: bool = task.poke(self.context("ready", run_id))
        return found

    def run(self, task_id: str, run_id: str, *, try_number: int = 1, max_tries: int = 0, **arguments: Any) -> Any:
        task: Any = self.dag.get_task(task_id)
        task.open_ledger = self.ledger
        for name, value in arguments.items():
            setattr(task, name, value)
        if task_id != "words.coordinate":
            task.txid = self.xcoms[run_id, "words.coordinate", "return_value"]
        found = task.execute(self.context(task_id, run_id, try_number, max_tries))
        self.xcoms[run_id, task_id, "return_value"] = found
        return found

    def context(self, task_id: str, run_id: str, try_number: int = 1, max_tries: int = 0) -> Any:
        ti = SimpleNamespace(
            dag_id="words",
            run_id=run_id,
            task_id=task_id,
            map_index=-1,
            try_number=try_number,
            max_tries=max_tries,
            get_first_reschedule_date=lambda _context: None,
            xcom_push=lambda key, value: self.xcoms.__setitem__((run_id, task_id, key), value),
            xcom_pull=lambda task_ids, key, map_indexes: self.xcoms.get((run_id, task_ids, key)),
        )
        run = SimpleNamespace(run_id=run_id, run_type=self.run_type, run_after=datetime(2026, 1, 1, tzinfo=UTC))
        run.clear_number = int(run_id in self.cleared)
        return {"ti": ti, "dag_run": run}

    def is_created_again(self) -> None:
        """As `docs/how-to/operate.md` says: the znode and the states are deleted, and the next run begins anew."""
        self.tree = MemoryTree()
        (self.folder / "words.db").unlink(missing_ok=True)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


TASKS = ["words.emit", "words.turn", "words.commit", "backfill"]


@pytest.mark.parametrize("task_id", TASKS)
def test_a_task_of_a_former_life_is_refused_and_changes_nothing(site: Site, task_id: str) -> None:
    assert site.run("words.coordinate", "old") == 1
    site.is_created_again()
    assert site.run("words.coordinate", "new") == 1
    single.attempt(site.ledger(), 1, owner="the emitter of the new run")
    before = site.ledger().export()
    with pytest.raises(AirflowFailException, match=r"deleted and created again.*Clear the whole run, its coordinator"):
        site.run(task_id, "old")
    assert site.ledger().export() == before


@pytest.mark.parametrize("task_id", TASKS)
def test_a_task_whose_topology_is_gone_is_refused_by_name(site: Site, task_id: str) -> None:
    site.run("words.coordinate", "old")
    site.is_created_again()
    with pytest.raises(AirflowFailException, match="there is no ledger of a topology 'words'"):
        site.run(task_id, "old")


def test_a_whole_run_that_is_cleared_after_its_topology_was_created_again_has_a_batch_there(site: Site) -> None:
    site.run("words.coordinate", "old")
    site.is_created_again()
    site.run("words.coordinate", "new")
    assert site.run("words.coordinate", "old") == 2
    site.run("words.emit", "old")
    assert site.ledger().view(2).tx.status is Status.PROCESSED  # type: ignore[union-attr]


def test_tasks_of_one_life_go_on_and_a_run_of_a_version_before_too(site: Site) -> None:
    site.run("words.coordinate", "old")
    for task_id in TASKS[:3]:
        assert site.run(task_id, "old") == 1
    site.run("words.coordinate", "older")
    del site.xcoms["older", "words.coordinate", "incarnation"]
    for task_id in TASKS[:3]:
        assert site.run(task_id, "older") == 2
    assert [tx.status for tx in site.ledger().transactions()] == [Status.COMMITTED] * 2


def test_a_wait_in_the_triggerer_is_for_the_life_that_the_run_knows(site: Site) -> None:
    for run_id in ("first", "second"):
        site.run("words.coordinate", run_id)
    site.run("words.emit", "second")
    with pytest.raises(TaskDeferred) as deferred:
        site.run("words.commit", "second", deferrable=True, turn_wait_s=0.0)
    trigger: Any = deferred.value.trigger
    assert trigger.serialize()[1]["incarnation"] == site.ledger().topology().incarnation


def sensor(make: Callable[[], Any]) -> Any:
    with DAG("words", schedule=None):
        return make()


def test_a_sensor_that_begins_in_the_triggerer_takes_the_life_from_its_coordinator(site: Site) -> None:
    def given(**arguments: Any) -> Any:
        coordinator = TridentCoordinatorOperator(task_id="claim", topology=site.topology)
        made = TridentTurnSensor(
            task_id="turn", topology=site.topology, deferrable=True, **{"txid": coordinator.output, **arguments}
        )
        kwargs = made.start_trigger_args.trigger_kwargs
        texts = {name for name, value in kwargs.items() if isinstance(value, str) and "{{" in value}
        # Airflow renders of a trigger's arguments only those that its operator has as templated fields, too.
        assert texts <= {name for name in made.template_fields if hasattr(made, name)}
        return kwargs["incarnation"]

    pull = "{{ ti.xcom_pull(task_ids='claim', key='incarnation', map_indexes=-1) }}"
    assert sensor(given) == pull
    assert sensor(lambda: given(txid="{{ params.txid }}", coordinator_task_id="claim")) == pull
    assert sensor(lambda: given(txid="{{ params.txid }}")) is None


def test_a_transaction_that_a_person_names_is_one_of_the_life_that_is_there(site: Site) -> None:
    site.run("words.coordinate", "old")
    alone = TridentEmitterOperator(
        task_id="emit",
        topology=site.topology,
        engine="local",
        staging_dir=str(site.folder / "staging"),
        txid="{{ params.txid }}",
        dag=DAG("by_hand", schedule=None),
    )
    alone.open_ledger = site.ledger  # type: ignore[method-assign]
    alone.txid = "1"
    ti = SimpleNamespace(dag_id="by_hand", run_id="r", task_id="emit", map_index=-1, try_number=1, max_tries=0)
    assert alone.execute({"ti": ti}) == 1  # type: ignore[typeddict-item]
    assert site.ledger().view(1).tx.status is Status.PROCESSED  # type: ignore[union-attr]
