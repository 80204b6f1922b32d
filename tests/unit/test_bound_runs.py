"""Runs of a DAG whose topology is bound to days: which transaction each gets, and what its tasks do with it. The
operators themselves, over the production ledger on an in-memory tree; of a run only what the Execution API tells."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, CronPartitionTimetable
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_trident import Partitions, SqliteState, Sum, Topology, trident_transaction
from airflow_trident.errors import EmptyPartitionError, UnknownTopologyError
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.protocol.outcomes import OutcomeKind
from airflow_trident.protocol.records import NOBODY, Owner, Status, TxRecord
from airflow_trident.tasks import asking_airflow, liveness
from tests.fixtures import single
from tests.fixtures.days import DAYS, DayFiles, deliver, delivered, sums_of

SUNDAY, MONDAY, TUESDAY = "2026-11-22", "2026-11-23", "2026-11-24"
CRON = CronPartitionTimetable("0 0 * * *", timezone="Europe/Berlin", run_offset=-1, key_format="%Y-%m-%d")
TASKS = ("coordinate", "emit", "turn", "commit")


class Site:
    """A DAG, its days, and what its runs keep as XComs."""

    def __init__(self, folder: Path, partitions: Partitions = DAYS, **arguments: Any) -> None:
        self.folder = folder
        self.topology = Topology("shop", partitions=partitions)
        orders = self.topology.new_stream("orders", DayFiles(str(folder / "in")))
        self.state = SqliteState(str(folder / "shop.db"))
        orders.group_by("day, shop").persistent_aggregate(self.state, "cents", Sum(), "cents", name="sums")
        with DAG("shop", schedule=CRON) as self.dag:
            trident_transaction(
                self.topology, engine="local", staging_dir=str(folder / "staging"), turn_wait_s=0, **arguments
            )
        self.xcoms: dict[tuple[str, str], Any] = {}
        self.tree = MemoryTree()

    def deliver(self, key: str, *rows: tuple[str, int], name: str = "a") -> Path:
        return deliver(self.folder / "in", key, list(rows), name)

    def ledger(self, incarnation: str = "") -> ZNodeLedger:
        return ZNodeLedger(MemoryZNodes(self.tree), "shop", incarnation=incarnation)

    def records(self) -> dict[int, TxRecord]:
        return {record.txid: record for record in self.ledger().transactions()}

    def sums(self) -> dict[tuple, tuple]:
        (spec,) = self.topology.states.values()
        with spec.factory.make_state(spec) as state:
            return dict(state.items())

    def expected(self, *keys: str) -> dict[tuple, tuple]:
        return {key: value for day in keys for key, value in sums_of(day, delivered(self.folder / "in", day)).items()}

    def task(self, verb: str, run: Run, **arguments: Any) -> Any:
        """Execute a task of a run."""
        task: Any = self.dag.get_task(f"shop.{verb}")
        task.open_ledger = self.ledger
        for name, value in arguments.items():
            setattr(task, name, value)
        if verb != "coordinate":
            txids = self.xcoms[run.run_id, "shop.coordinate"]
            task.txid = txids[0] if verb == "turn" and isinstance(txids, list) else txids
        returned = task.execute(self.context(verb, run))
        self.xcoms[run.run_id, task.task_id] = returned
        return returned

    def play(self, run: Run) -> Any:
        """All tasks of a run. Returns its transaction, or the list of them."""
        for verb in TASKS:
            self.task(verb, run)
        return self.xcoms[run.run_id, "shop.coordinate"]

    def context(self, verb: str, run: Run) -> Any:
        ti = SimpleNamespace(
            dag_id="shop",
            run_id=run.run_id,
            task_id=f"shop.{verb}",
            map_index=-1,
            try_number=1,
            max_tries=0,
            get_first_reschedule_date=lambda _context: None,
            xcom_push=lambda **_: None,
            xcom_pull=lambda **_: None,
        )
        return {"ti": ti, "dag_run": run}


class Run(SimpleNamespace):
    """A run as a task sees it."""

    def __init__(self, key: str | None, kind: str = "scheduled", name: str = "", **more: Any) -> None:
        run_id = f"{kind}__{name or key}"
        about = {"conf": None, "clear_number": 0, "run_after": datetime(2026, 11, 25, tzinfo=UTC)} | more
        super().__init__(dag_id="shop", run_id=run_id, run_type=kind, partition_key=key, **about)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Airflow says of every task that it runs."""
    monkeypatch.setattr(asking_airflow, "ask", lambda record, asker=None: {})
    monkeypatch.setattr(liveness, "state_in", lambda worker, answers: "running")
    made = Site(tmp_path)
    made.deliver(MONDAY, ("a", 1), ("b", 2))
    return made


def test_a_run_does_the_day_of_its_key_and_another_run_finds_it_done(site: Site) -> None:
    assert site.play(Run(MONDAY)) == 1
    assert site.sums() == site.expected(MONDAY)
    assert site.records()[1].claim.task_ids == {"emit": "shop.emit", "commit": "shop.commit"}
    with pytest.raises(AirflowSkipException, match=r"2026-11-23 .* is COMMITTED as transaction 1, and its sources are"):
        site.play(Run(MONDAY, name="again"))
    with pytest.raises(AirflowSkipException):
        site.play(Run(MONDAY, "asset_triggered"))
    assert site.play(Run(MONDAY)) == 1, "a retry has its transaction"
    assert len(site.records()) == 1


@pytest.mark.parametrize("kind", ["backfill", "manual"])
def test_a_run_that_a_person_asked_for_does_a_committed_day_again(site: Site, kind: str) -> None:
    site.play(Run(MONDAY))
    assert site.play(Run(MONDAY, kind)) == 2
    assert site.play(Run(MONDAY, kind, clear_number=1)) == 3
    assert site.play(Run(MONDAY, kind, clear_number=1)) == 3, "a retry after the clear"
    assert site.play(Run(MONDAY, clear_number=1)) == 4
    assert site.sums() == site.expected(MONDAY)
    with pytest.raises(AirflowSkipException):
        site.play(Run(MONDAY, kind, "no", conf={"trident": {"redo": False}}))
    assert site.play(Run(MONDAY, name="yes", conf={"trident": {"redo": True}})) == 5


def test_with_redo_changed_a_person_gets_a_day_again_only_if_its_sources_changed(site: Site) -> None:
    site = Site(site.folder, redo="changed")
    site.play(Run(MONDAY))
    with pytest.raises(AirflowSkipException):
        site.play(Run(MONDAY, "backfill"))
    site.deliver(MONDAY, ("c", 5), name="late")
    assert site.play(Run(MONDAY, "manual")) == 2
    assert site.sums() == site.expected(MONDAY)


def test_a_scheduled_run_does_a_day_again_whose_sources_changed(site: Site) -> None:
    site.play(Run(MONDAY))
    site.deliver(MONDAY, ("a", 7))
    assert site.play(Run(MONDAY, name="again")) == 2
    assert site.sums() == site.expected(MONDAY)


def test_of_several_runs_that_assets_trigger_for_one_day_the_last_one_has_all_of_it(site: Site) -> None:
    """As a rollup with ``MinimumCount`` does: it fires again and again while hours of a day come in."""
    txids = []
    for number in range(4):
        site.deliver(MONDAY, ("a", 10**number), name=f"hour-{number}")
        txids.append(site.play(Run(MONDAY, "asset_triggered", str(number))))
        assert site.sums() == site.expected(MONDAY)
    assert txids == [1, 2, 3, 4]
    with pytest.raises(AirflowSkipException):
        site.play(Run(MONDAY, "asset_triggered", "without a new hour"))


def test_a_skipped_revision_is_not_replayed_by_a_clear_of_its_run_after_a_newer_one(site: Site) -> None:
    first = Run(MONDAY)
    site.task("coordinate", first)
    site.ledger().skip(1, "bad file")
    site.deliver(MONDAY, ("a", 7))
    assert site.play(Run(MONDAY, "manual")) == 2
    first.clear_number = 1
    with suppress(AirflowFailException, AirflowSkipException):
        site.task("emit", first)
    assert site.sums() == site.expected(MONDAY)
    assert site.records()[1].status.lets_others_pass
    assert site.play(first) == 3, "a clear of the whole run does the day again"
    assert site.sums() == site.expected(MONDAY)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (None, "has no partition key"),
        ("", "has no partition key"),
        ("None", "has no partition key"),
        ("2026-11-24T00:00:00", "is no key of a day"),
        ("2026-1-2", "is no key of a day"),
        ("2025-12-31", "before the topology's first one"),
        ("2099-01-01", "in the future"),
    ],
)
def test_a_run_without_a_key_that_can_be_done_fails_for_good(site: Site, key: str | None, why: str) -> None:
    with pytest.raises(AirflowFailException, match=why) as refused:
        site.play(Run(key, "manual"))
    with suppress(UnknownTopologyError):
        assert not site.records()
    if why == "has no partition key":
        for way in ("in the UI", "partition_key by the API", "airflow dags trigger shop", "backfill create"):
            assert way in str(refused.value)


def test_a_run_that_lost_its_key_is_refused_though_it_has_a_transaction(site: Site) -> None:
    site.play(Run(MONDAY, name="same"))
    with pytest.raises(AirflowFailException, match="no partition key"):
        site.play(Run(None, name="same", clear_number=1))


def test_a_key_comes_from_the_conf_of_a_run_or_from_a_template_of_the_task(site: Site) -> None:
    assert site.play(Run(None, "manual", conf={"trident": {"partition": MONDAY}})) == 1
    site.deliver(TUESDAY, ("a", 1))
    site.dag.get_task("shop.coordinate").partition = TUESDAY
    assert site.play(Run("2026-11-24T05:00:00", "scheduled")) == 2
    assert site.sums() == site.expected(MONDAY, TUESDAY)
    with pytest.raises(AirflowFailException, match="Leave one of them out"):
        site.play(Run(MONDAY, "manual", "two", conf={"trident": {"partition": TUESDAY}}))


@pytest.mark.parametrize(
    "wishes",
    ["take", {"gone": True}, {"empty": "yes"}, {"redo": "no"}, {"partitions": MONDAY}, {"partition": 20261124}],
)
def test_what_a_person_says_in_the_conf_of_a_run_is_known_or_refused(site: Site, wishes: Any) -> None:
    with pytest.raises(AirflowFailException, match=r'It may have "partition"'):
        site.play(Run(MONDAY, "manual", conf={"trident": wishes}))


def test_gone_and_missing_data_are_an_error_that_the_conf_of_a_run_answers(site: Site) -> None:
    with pytest.raises(EmptyPartitionError):
        site.play(Run(TUESDAY))
    assert site.play(Run(TUESDAY, conf={"trident": {"empty": "take"}})) == 1
    site.deliver(MONDAY, ("c", 3), name="late")
    site.play(Run(MONDAY))
    site.deliver(MONDAY, name="late").unlink()
    with pytest.raises(AirflowFailException, match="SourceGoneError"):
        site.play(Run(MONDAY, "backfill"))
    assert site.play(Run(MONDAY, "backfill", "again", conf={"trident": {"gone": "take"}})) == 3
    assert site.sums() == site.expected(MONDAY)


def test_a_day_that_is_not_over_is_waited_for_without_a_worker_until_it_is_complete(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(site.folder, Partitions("day", begin="2026-01-01", timezone="Europe/Berlin", complete_after="90m"))
    today = DAYS.of(datetime.now(UTC))
    with pytest.raises(AirflowRescheduleException) as waits:
        site.play(Run(today.key))
    assert waits.value.reschedule_date == today.end + timedelta(minutes=90)
    assert not site.records()
    outcome = site.ledger().coordinator()
    assert outcome is not None
    assert outcome.kind is OutcomeKind.WAITING


def test_two_runs_of_a_day_share_a_transaction_and_the_overtaken_emitter_is_green(site: Site) -> None:
    first, second = Run(MONDAY), Run(MONDAY, "backfill")
    assert site.task("coordinate", first) == site.task("coordinate", second) == 1
    site.task("emit", first)
    site.task("emit", second)  # of another run, and processed after it asked: left as it is
    assert [record.attempt for record in site.records().values()] == [0]
    for run in (first, second):
        site.task("turn", run)
        site.task("commit", run)
    assert site.sums() == site.expected(MONDAY)


def test_a_person_s_run_is_served_by_an_attempt_that_begins_after_it(site: Site) -> None:
    first, second = Run(MONDAY), Run(MONDAY, "manual")
    site.task("coordinate", first)
    site.task("emit", first)
    assert site.task("coordinate", second) == 1
    record = site.records()[1]
    assert (record.status, record.staged) == (Status.PROCESSING, None)
    assert (record.claim.run_id, record.owner) == (second.run_id, NOBODY)
    with pytest.raises(TaskDeferred):
        site.task("commit", first, deferrable=True)
    site.task("emit", second)
    site.task("emit", first)  # its retry: the day is processed by the other run
    assert site.records()[1].attempt == 2
    for run in (first, second):
        site.task("turn", run)
        site.task("commit", run)


def test_a_scheduled_run_that_joins_a_processed_day_processes_nothing(site: Site) -> None:
    first, second = Run(MONDAY, "manual"), Run(MONDAY)
    site.task("coordinate", first)
    site.task("emit", first)
    assert site.task("coordinate", second) == 1
    site.task("emit", second)
    assert (site.records()[1].attempt, site.records()[1].claim.run_id) == (0, first.run_id)


def test_while_a_commit_of_the_day_is_under_way_a_run_waits_without_a_worker(site: Site) -> None:
    first, second = Run(MONDAY), Run(MONDAY, "manual")
    site.task("coordinate", first)
    site.task("emit", first)
    single.gate(site.ledger(), 1, owner=Owner(program="somebody", host="elsewhere", pid=7))
    with pytest.raises(TaskDeferred):
        site.task("coordinate", second, deferrable=True)
    with pytest.raises(AirflowRescheduleException):
        site.task("coordinate", second, deferrable=False)


def test_a_cleared_run_whose_commit_was_killed_ends_it_and_does_the_day_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(MONDAY)
    site.task("coordinate", run)
    site.task("emit", run)
    killed = Owner(dag_id="shop", run_id=run.run_id, task_id="shop.commit", host="elsewhere", pid=7)
    single.gate(site.ledger(), 1, owner=killed)
    site.deliver(MONDAY, ("z", 9))
    monkeypatch.setattr(liveness, "state_in", lambda worker, answers: None)  # all tasks of the run are cleared
    assert site.play(Run(MONDAY, clear_number=1)) == 2
    assert [record.status for record in site.records().values()] == [Status.COMMITTED] * 2
    assert site.sums() == site.expected(MONDAY)


def test_a_day_that_keeps_failing_lets_the_others_pass_and_is_done_when_it_is_asked_again(site: Site) -> None:
    damaged = site.deliver(MONDAY, ("a", 1))
    damaged.write_text("[[1]]")
    with pytest.raises(Exception, match="1"):
        site.play(Run(MONDAY))
    assert site.records()[1].status is Status.SKIPPED
    site.deliver(TUESDAY, ("t", 4))
    assert site.play(Run(TUESDAY)) == 2
    site.deliver(MONDAY, ("a", 1))
    site.xcoms["scheduled__old", "shop.coordinate"] = 1
    with pytest.raises(
        AirflowFailException, match=r"was passed .* Ask for its partition again"
    ):  # only its emitter is cleared
        site.task("emit", Run(MONDAY, name="old"))
    assert site.play(Run(MONDAY, clear_number=1)) == 3
    assert site.sums() == site.expected(MONDAY, TUESDAY)
    with pytest.raises(AirflowFailException, match=r"closed for good.*Ask for its partition again"):
        site.task("emit", Run(MONDAY, name="old"))


def test_a_scheduled_run_that_looks_back_does_what_changed_once_and_fills_no_gap(site: Site) -> None:
    back = Partitions("day", begin="2026-01-01", timezone="Europe/Berlin", lookback=4)
    site = Site(site.folder, back, group=5)
    earlier = {key: f"2026-11-{day}" for key, day in zip(("gap", "failed", "same"), (20, 21, 22), strict=True)}
    site.play(Run(MONDAY))
    site.deliver(earlier["same"], ("s", 1))
    site.play(Run(earlier["same"]))
    site.deliver(earlier["failed"], ("f", 1)).write_text("[[1]]")
    with pytest.raises(Exception, match="transaction 3"):
        site.play(Run(earlier["failed"]))
    site.deliver(earlier["gap"], ("g", 1))
    site.deliver(TUESDAY, ("t", 1))
    site.deliver(MONDAY, ("m", 9), name="late")
    assert site.task("coordinate", Run(TUESDAY)) == [4, 5]
    assert site.play(Run(TUESDAY)) == [4, 5], "a retry has the same"
    assert [site.records()[txid].partition.key for txid in (4, 5)] == [TUESDAY, MONDAY]  # type: ignore[union-attr]
    assert site.sums() == site.expected(MONDAY, TUESDAY, earlier["same"])
    with pytest.raises(AirflowSkipException, match="are as they were"):
        site.play(Run(TUESDAY, name="the next night"))
    assert site.play(Run(TUESDAY, "manual")) == [6], "a person asked for this day alone"


def test_an_earlier_day_that_cannot_be_done_again_is_left_as_it_is(site: Site) -> None:
    site = Site(site.folder, Partitions("day", begin=MONDAY, timezone="Europe/Berlin", lookback=3), group=4)
    site.deliver(TUESDAY, ("t", 1))
    site.play(Run(MONDAY))
    before = site.expected(MONDAY)
    (site.folder / "in" / MONDAY / f"{MONDAY}-a.json").unlink()
    assert site.play(Run(TUESDAY)) == [2]
    assert site.sums() == before | site.expected(TUESDAY)
