"""A commit that somebody has begun and does not end: who waits for it takes it over by one rule, with the settings that
Airflow has by default. The operators themselves, over the production ledger on in-memory trees."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException, TaskDeferred
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_trident.engine.engine import Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryZNodes
from airflow_trident.ledger.workers import Worker
from airflow_trident.protocol.records import Claim, Owner, Status
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.phases import Attempts
from airflow_trident.runtime.waiting import TAKEOVER_S
from airflow_trident.staging.manifest import Manifest
from airflow_trident.tasks import asking_airflow, liveness
from airflow_trident.tasks.asking_airflow import ask_airflow
from airflow_trident.tasks.liveness import left_to_anybody, lowest_left_alone
from airflow_trident.tasks.waits import Abandoned, Asker, TaskOfRun, Until, wait_in_worker
from tests.fixtures import single
from tests.unit.test_provider_lives import Site

TASKS_OF_A_RUN = ("words.coordinate", "words.emit", "words.turn", "words.commit")
SOMEBODY = Owner(program="somebody", host="elsewhere", pid=7)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """1 and 2 are processed, and Airflow says of every task that it runs."""
    monkeypatch.setattr(asking_airflow, "ask", lambda record, asker: {})
    monkeypatch.setattr(liveness, "state_in", lambda worker, answers: "running")
    made = Site(tmp_path)
    for run_id in ("first", "second"):
        made.run("words.coordinate", run_id)
        made.run("words.emit", run_id)
    return made


def gate_opened(site: Site, ago_s: float) -> None:
    """Somebody has begun the commit of 1."""
    then_ms = int((time.time() - ago_s) * 1000)
    with ZNodeLedger(MemoryZNodes(site.tree), "words", clock_ms=lambda: then_ms) as ledger:
        single.gate(ledger, 1, owner=SOMEBODY)


def statuses(site: Site) -> list[Status]:
    return [tx.status for tx in site.ledger().transactions()]


@pytest.mark.parametrize("ago_s", [2 * TAKEOVER_S, -86_400.0], ids=["long ago", "by a clock that is a day ahead"])
def test_a_commit_that_stands_still_and_whose_owner_is_not_connected_is_taken_over_with_the_defaults(
    site: Site, ago_s: float
) -> None:
    gate_opened(site, ago_s)
    assert site.run("words.commit", "second") == 2
    assert statuses(site) == [Status.COMMITTED] * 2


@pytest.mark.parametrize(("ago_s", "listed"), [(0.0, False), (2 * TAKEOVER_S, True)])
def test_a_commit_that_was_begun_lately_or_whose_owner_is_connected_is_left_to_it(
    site: Site, ago_s: float, listed: bool
) -> None:
    gate_opened(site, ago_s)
    with site.ledger() as other:
        if listed:
            other.enlist(Worker(host=SOMEBODY.host, pid=SOMEBODY.pid, task="somebody", txid=1, since_ms=1))
        with pytest.raises(TaskDeferred):
            site.run("words.commit", "second", deferrable=True, turn_wait_s=0.0)
        assert statuses(site) == [Status.COMMITTING, Status.PROCESSED]


def test_who_waits_for_a_turn_is_told_that_the_next_sweep_takes_it_over(site: Site) -> None:
    gate_opened(site, ago_s=2 * TAKEOVER_S)
    with site.ledger() as ledger:
        look = ask_airflow(ledger, skip=False)
        verdict = wait_in_worker(ledger, 2, Until.TURN, wait_s=60, look_every_s=0.01, look=look, say=lambda story: None)
    assert isinstance(verdict, Abandoned)
    assert (verdict.by, "somebody" in verdict.why) == (1, True)


@pytest.mark.parametrize("takes_over", [True, False])
def test_a_drain_goes_by_the_same_rule(site: Site, takes_over: bool) -> None:
    gate_opened(site, ago_s=2 * TAKEOVER_S if takes_over else 0.0)
    said = drained(site)
    assert statuses(site) == ([Status.COMMITTED] * 2 if takes_over else [Status.COMMITTING, Status.PROCESSED])
    assert takes_over or any("waits: transaction 1 is not committed yet" in line for line in said)


def test_a_drain_waits_for_the_last_one_that_is_to_commit_whatever_was_skipped_above_it(site: Site) -> None:
    """Else it asks the ledger again and again, as fast as that answers, until somebody else commits."""
    with site.ledger() as ledger:
        single.attempt(ledger, 1, owner=SOMEBODY)
        ledger.skip(2, "a person said so")
    assert any("transaction 1 is PROCESSING, attempt 1 by somebody" in line for line in drained(site))


def drained(site: Site) -> list[str]:
    """What the last wait of a drain says."""
    said: list[str] = []
    with site.ledger() as ledger, LocalEngine() as engine:
        drain = Drain(
            ledger=ledger,
            topology=site.topology,
            engine=engine,
            staging_root=str(site.folder / "staging"),
            attempts=Attempts(owner="drain"),
            claim=Claim(key="drain"),
            limits=DrainLimits(max_time_s=0.0, wait_s=1.0),
            progress=said.append,
        )
        with drain._states:
            drain._commit(wait_s=1.0)
    return said


def test_what_a_sweep_meanwhile_committed_is_found_by_who_waits(site: Site) -> None:
    """The wait of a committer sweeps again whenever something changes: what becomes ready behind it is not left."""
    happens: list[Callable[[], object]] = [lambda: site.run("words.commit", "first")]

    def say(story: str) -> None:
        if happens:
            happens.pop()()

    task = site.dag.get_task("words.commit")
    task.log.info = lambda text, *args: say(text)  # type: ignore[attr-defined, method-assign]
    gate_opened(site, ago_s=0.0)
    assert site.run("words.commit", "second", turn_wait_s=20.0) == 2
    assert statuses(site) == [Status.COMMITTED] * 2


# ---- who waits for what a task behind it has left ------------------------------------------------------------------


def left_by_committer_of(run_id: str, site: Site) -> None:
    """This run's committer emitted 1 again, and was killed at it."""
    me = Owner(dag_id="words", run_id=run_id, task_id="words.commit", try_number=1)
    with site.ledger() as ledger:
        single.attempt(ledger, single.gate(ledger, 1, owner=me), owner=me)
    assert statuses(site) == [Status.PROCESSING, Status.PROCESSED]


@pytest.mark.parametrize("turn_wait_s", [0.1, 0.0])
def test_a_cleared_run_takes_up_what_its_own_committer_left_instead_of_waiting_for_it(
    site: Site, monkeypatch: pytest.MonkeyPatch, turn_wait_s: float
) -> None:
    left_by_committer_of("third", site)
    monkeypatch.setattr(liveness, "state_in", lambda worker, answers: None)
    assert site.run("words.coordinate", "third", max_pending=2, turn_wait_s=turn_wait_s) == 1
    for task_id in ("words.emit", "words.commit"):
        assert site.run(task_id, "third") == 1
    assert statuses(site) == [Status.COMMITTED] * 2


def test_a_turn_sensor_lets_the_committer_behind_it_go_on_with_what_it_left(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_by_committer_of("second", site)
    monkeypatch.setattr(liveness, "state_in", lambda worker, answers: None)
    assert site.run("words.turn", "second", turn_wait_s=0.1) == 2
    assert site.run("words.commit", "second") == 2
    assert statuses(site) == [Status.COMMITTED] * 2


def test_what_is_skipped_while_a_committer_processes_it_is_blocked_and_no_fault_of_the_committer(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its emitter succeeded, says a person, and never began an attempt."""

    def skipped_meanwhile(self: LocalEngine, job: Job) -> Manifest:
        with site.ledger() as other:
            other.skip(job.slot.txid, "a person said so")
        return original(self, job)

    original = LocalEngine.run
    site.run("words.commit", "second")
    site.run("words.coordinate", "third")
    monkeypatch.setattr(asking_airflow, "ask", lambda record: {})
    monkeypatch.setattr(liveness, "state_in", lambda worker, answers: "success")
    monkeypatch.setattr(LocalEngine, "run", skipped_meanwhile)
    with pytest.raises(AirflowFailException, match=r"transaction 3 is SKIPPED"):
        site.run("words.commit", "third", turn_wait_s=0.1)
    assert statuses(site) == [Status.COMMITTED, Status.COMMITTED, Status.SKIPPED]


@pytest.mark.parametrize(("run_id", "state"), [("third", "running"), ("another", None)])
def test_an_attempt_is_waited_for_while_its_task_is_at_work_or_can_begin(
    run_id: str, state: str | None, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_by_committer_of(run_id, site)
    monkeypatch.setattr(liveness, "state_in", lambda worker, answers: state)
    with pytest.raises(AirflowRescheduleException):
        site.run("words.coordinate", "third", max_pending=2, turn_wait_s=0.1)
    assert statuses(site) == [Status.PROCESSING, Status.PROCESSED]


# ---- who waits for a run that Airflow does not start before this one has ended -------------------------------------


class Runs:
    """What Airflow's Execution API says: "first" was cleared and is queued, all others are active.

    :param first: the state of the tasks of "first".
    """

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch, *, active: int, first: str | None = None) -> None:
        self.site, self.active, self.first = site, active, first
        monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", self.states)
        monkeypatch.setattr(RuntimeTaskInstance, "get_dr_count", self.count)

    def states(self, *, dag_id: str, run_ids: list[str], task_ids: list[str]) -> dict[str, dict[str, str | None]]:
        assert dag_id == "words"
        there = run_ids if self.first != "deleted" else [run_id for run_id in run_ids if run_id != "first"]
        return {run_id: dict.fromkeys(task_ids, self.first if run_id == "first" else "running") for run_id in there}

    def count(self, *, dag_id: str, states: list[str], run_ids: list[str] | None = None) -> int:
        assert dag_id == "words"
        if run_ids is None:
            assert states == ["running"]
            return self.active
        if states == ["success", "failed"]:
            return 0
        return run_ids.count("first") if states == ["queued"] else len(run_ids)


@pytest.fixture(params=["begun", "attempted", "processed", "removed", "deleted"])
def queued(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Of a DAG that may have one active run: "first" was killed at 1, and cleared when "second", which has processed 2,
    was active already. Removed, deleted: a deploy has given the tasks of "first" other names since."""
    made = Site(tmp_path)
    made.dag.max_active_runs = 1
    made.run("words.coordinate", "first")
    if request.param == "attempted":
        with made.ledger() as ledger:
            single.attempt(ledger, 1, owner=Owner(dag_id="words", run_id="first", task_id="words.emit", try_number=1))
    elif request.param == "processed":
        made.run("words.emit", "first")
    for task_id in ("words.coordinate", "words.emit"):
        made.run(task_id, "second")
    Runs(made, monkeypatch, active=1, first=request.param if request.param in ("removed", "deleted") else None)
    return made


def test_a_run_does_the_work_of_one_that_is_queued_behind_it_instead_of_waiting_for_it(queued: Site) -> None:
    assert queued.run("words.turn", "second", turn_wait_s=0.0) == 2
    assert queued.run("words.commit", "second", turn_wait_s=0.0) == 2
    assert statuses(queued) == [Status.COMMITTED] * 2
    for task_id in TASKS_OF_A_RUN:  # there is room for it now
        assert queued.run(task_id, "first") == 1
    assert statuses(queued) == [Status.COMMITTED] * 2


def test_a_run_that_finds_no_room_begins_with_what_a_queued_one_has_left(queued: Site) -> None:
    for task_id in TASKS_OF_A_RUN:
        assert queued.run(task_id, "third", max_pending=2, turn_wait_s=0.0) == 1
    assert statuses(queued) == [Status.COMMITTED] * 2


def test_a_run_without_new_data_does_not_end_before_it_has_done_what_a_queued_one_has_left(queued: Site) -> None:
    for file in (queued.folder / "in").iterdir():
        if file.name == "2.txt":
            file.unlink()
    with queued.ledger() as ledger:
        asker = Asker(TaskOfRun("words", "third", "wait_for_data"), frozenset(), max_active_runs=1)
        record = lowest_left_alone(ledger)
        assert record is not None
        found = left_to_anybody(ledger, record, asking_airflow.ask(record, asker), asker)
    assert found is not None
    assert "run 'first' of DAG 'words' is in a run that is queued until a run of its DAG has ended" in found.why
    for task_id in TASKS_OF_A_RUN:
        assert queued.run(task_id, "third", turn_wait_s=0.0) == 1


@pytest.mark.parametrize("queued", ["begun", "attempted", "processed"], indirect=True)
def test_a_queued_run_for_which_there_is_room_is_waited_for(queued: Site) -> None:
    queued.dag.max_active_runs = 2
    before = statuses(queued)
    with pytest.raises(AirflowRescheduleException):
        queued.run("words.turn", "second", turn_wait_s=0.1)
    assert statuses(queued) == before


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_run_of_a_backfill_does_the_work_of_a_queued_one_though_the_dag_may_have_more(
    queued: Site, deferrable: bool
) -> None:
    """A backfill has a limit of its own, which no task is told."""
    queued.dag.max_active_runs = 16
    queued.run_type = "backfill"
    if not deferrable:
        assert queued.run("words.turn", "second", turn_wait_s=0.0) == 2
        assert queued.run("words.commit", "second", turn_wait_s=0.0) == 2
        return
    task = queued.dag.get_task("words.commit")
    trigger = task.turn_trigger(2, Until.READY, queued.context("words.commit", "second"))  # type: ignore[attr-defined]
    assert trigger.max_active_runs == 1
