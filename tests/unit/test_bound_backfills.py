"""Backfills and drains of Airflow over a topology that is bound to days: the operators themselves, over the production
ledger on an in-memory tree."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.exceptions import AirflowException
from airflow.sdk.exceptions import AirflowSkipException

from airflow_trident import Partitions, SqliteState, Sum, Topology, TridentBackfillOperator, TridentDrainOperator
from airflow_trident.errors import ConfigurationError
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.operators.mending import _worker
from airflow_trident.protocol.diagnosis import PageAction
from airflow_trident.tasks.mending_order import MendingOrder
from tests.fixtures.days import DayFiles, deliver, delivered, sums_of

FIRST, SECOND, THIRD = "2026-11-22", "2026-11-23", "2026-11-24"


class Site:
    """A bound topology and its days."""

    def __init__(self, folder: Path, begin: str = "2026-01-01") -> None:
        self.folder = folder
        self.topology = Topology("shop", partitions=Partitions("day", begin=begin, timezone="Europe/Berlin"))
        orders = self.topology.new_stream("orders", DayFiles(str(folder / "in")))
        state = SqliteState(str(folder / "shop.db"))
        orders.group_by("day, shop").persistent_aggregate(state, "cents", Sum(), "cents", name="sums")
        self.tree = MemoryTree()

    def deliver(self, key: str, *rows: tuple[str, int], name: str = "a") -> Path:
        return deliver(self.folder / "in", key, list(rows), name)

    def ledger(self, incarnation: str = "") -> ZNodeLedger:
        return ZNodeLedger(MemoryZNodes(self.tree), "shop", incarnation=incarnation)

    def sums(self) -> dict[tuple, tuple]:
        (spec,) = self.topology.states.values()
        with spec.factory.make_state(spec) as state:
            return dict(state.items())

    def expected(self, *keys: str) -> dict[tuple, tuple]:
        return {key: value for day in keys for key, value in sums_of(day, delivered(self.folder / "in", day)).items()}

    def backfill(self, run: str = "run", clears: int = 0, **arguments: Any) -> Any:
        return self.execute(TridentBackfillOperator, run, clears, **arguments)

    def execute(self, kind: Any, run: str = "run", clears: int = 0, **arguments: Any) -> Any:
        task = kind(
            task_id="task",
            topology=self.topology,
            engine="local",
            staging_dir=str(self.folder / "staging"),
            **arguments,
        )
        return self.start(task, run, clears)

    def start(self, task: Any, run: str = "run", clears: int = 0) -> Any:
        task.open_ledger = self.ledger
        ti = SimpleNamespace(
            dag_id="shop",
            run_id=run,
            task_id="task",
            map_index=-1,
            try_number=1,
            max_tries=0,
            xcom_push=lambda **_: None,
            xcom_pull=lambda **_: None,
        )
        dag_run = SimpleNamespace(
            dag_id="shop",
            run_id=run,
            run_type="manual",
            conf=None,
            clear_number=clears,
            run_after=datetime(2026, 11, 25, tzinfo=UTC),
        )
        return task.execute({"ti": ti, "dag_run": dag_run})


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize(
    "named",
    [
        {"partitions": [SECOND, FIRST]},
        {"partitions": f"{FIRST},{SECOND}"},
        {"first": FIRST, "last": SECOND},
        {"partitions": "missing", "first": FIRST, "last": SECOND},
    ],
    ids=str,
)
def test_a_backfill_does_the_partitions_that_it_names(site: Site, named: dict[str, Any]) -> None:
    for key in (FIRST, SECOND, THIRD):
        site.deliver(key, ("a", 1), ("b", 2))
    assert site.backfill(**named) == [1, 2]
    assert site.sums() == site.expected(FIRST, SECOND)
    with pytest.raises(AirflowSkipException):
        site.backfill("second", **named)


def test_a_failed_partition_fails_the_task_after_the_others_and_is_what_a_backfill_does_by_itself(site: Site) -> None:
    site.deliver(FIRST, ("a", 1))
    site.deliver(SECOND, ("a", 1)).write_text("damaged")
    site.deliver(THIRD, ("a", 1))
    with pytest.raises(AirflowException, match=f"1 of 3 partitions are not done: {SECOND}: "):
        site.backfill(partitions="missing", first=FIRST, last=THIRD)
    assert site.sums() == site.expected(FIRST, THIRD)
    site.deliver(SECOND, ("a", 7))
    assert site.backfill("second") == [4]
    assert site.sums() == site.expected(FIRST, SECOND, THIRD)


def test_a_retry_does_nothing_twice_and_a_clear_does_it_again(site: Site) -> None:
    site.deliver(FIRST, ("a", 1))
    named: dict[str, Any] = {"partitions": FIRST, "redo": "asked"}
    assert site.backfill(**named) == [1]
    with pytest.raises(AirflowSkipException):
        site.backfill(**named)
    assert site.backfill(clears=1, **named) == [2]


def test_what_has_changed_is_done_and_what_is_gone_needs_a_word(site: Site) -> None:
    for key in (FIRST, SECOND):
        site.deliver(key, ("a", 1))
    site.backfill(partitions=[FIRST, SECOND])
    site.deliver(SECOND, ("a", 2), name="late")
    changed: dict[str, Any] = {"partitions": "changed", "first": FIRST, "last": THIRD}
    assert site.backfill("second", **changed) == [3]
    (site.folder / "in" / FIRST / f"{FIRST}-a.json").unlink()
    with pytest.raises(AirflowException, match="are gone"):
        site.backfill("third", **changed)
    assert site.backfill("fourth", gone="take", empty="take", reason="closed", **changed) == [4]
    assert site.sums() == site.expected(SECOND)
    record = site.ledger().view(4).tx
    assert record is not None
    assert record.accepted == ("closed",)


def test_a_drain_does_the_missing_partitions(tmp_path: Path) -> None:
    calendar = Partitions("day", begin="2026-01-01", timezone="Europe/Berlin")
    today = calendar.of(datetime.now(UTC))
    days = [calendar.before(today)]
    days.insert(0, calendar.before(days[0]))
    site = Site(tmp_path, begin=days[0].key)
    for day in (*days, today):
        site.deliver(day.key, ("a", 1))
    assert site.execute(TridentDrainOperator) == [1, 2]
    assert site.sums() == site.expected(*(day.key for day in days))
    with pytest.raises(AirflowSkipException):
        site.execute(TridentDrainOperator, "second")


def test_the_page_asks_for_the_partitions_that_a_person_marked(site: Site) -> None:
    for key in (FIRST, SECOND):
        site.deliver(key, ("a", 1))
    site.backfill(partitions=[FIRST, SECOND])
    about: dict[str, Any] = {"action": PageAction.BACKFILL, "topology": "shop", "dag_id": "shop", "incarnation": "-"}
    order = MendingOrder(**about, reason="wrong", by="ann", partition=FIRST, to=SECOND)
    task = _worker(site.topology, [], order)
    task.engine, task.staging_dir = "local", str(site.folder / "staging")  # type: ignore[assignment]
    assert site.start(task, "page") == [3, 4]
    record = site.ledger().view(3).tx
    assert record is not None
    assert record.accepted == ("wrong (backfill by ann on the page)",)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"partitions": "2026-1-1"}, "is no key of a day"),
        ({"partitions": [FIRST, "missing"]}, "Give keys, or only 'missing'"),
        ({"partitions": [FIRST], "first": FIRST, "last": SECOND}, "keys, and a range"),
        ({"first": FIRST}, "has two ends"),
        ({"partitions": FIRST, "txid": 4}, "txid and partitions exclude each other"),
        ({"partitions": FIRST, "gone": "drop"}, "gone is 'drop'"),
        ({"partitions": FIRST, "redo": "always"}, "redo is 'always'"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused_when_the_dag_is_built(
    site: Site, arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        TridentBackfillOperator(task_id="task", topology=site.topology, engine="local", **arguments)


def test_an_unbound_topology_has_no_partitions(tmp_path: Path) -> None:
    topology = Topology("words")
    shops = topology.new_stream("orders", DayFiles(str(tmp_path))).group_by("shop")
    shops.persistent_aggregate(SqliteState(str(tmp_path / "shop.db")), "cents", Sum(), "cents", name="sums")
    with pytest.raises(ConfigurationError, match="is not bound to partitions"):
        TridentBackfillOperator(task_id="task", topology=topology, engine="local", partitions="missing")
