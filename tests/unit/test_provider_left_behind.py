"""What a run without new data does about transactions that other runs have left, and when its ready sensor lets it
begin. The operators themselves, over the production ledger on in-memory trees; Airflow's answers are the test's."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException, AirflowSkipException
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_trident import (
    Count,
    SqliteState,
    Topology,
    TridentBackfillOperator,
    TridentDrainOperator,
    TridentReadySensor,
    TridentTurnSensor,
)
from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryZNodes
from airflow_trident.protocol.outcomes import OutcomeKind
from airflow_trident.protocol.records import Claim, Owner, Status
from airflow_trident.runtime import commit
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.phases import Attempts, coordinate, process
from airflow_trident.tasks.asking_airflow import ask_airflow
from tests.fixtures import single
from tests.fixtures.spout import OpaqueFolderSpout, append
from tests.unit.test_provider_lives import Site

TASKS_OF_A_RUN = ("words.coordinate", "words.emit", "words.turn", "words.commit")
CLEARED = dict.fromkeys(TASKS_OF_A_RUN)
EMITTER_FAILED = {
    "words.coordinate": "success",
    "words.emit": "failed",
    "words.turn": "upstream_failed",
    "words.commit": "upstream_failed",
}
COMMITTER_FAILED = {**dict.fromkeys(TASKS_OF_A_RUN, "success"), "words.commit": "failed"}


class OpaqueSite(Site):
    """One row a batch, chosen anew for each attempt."""

    def define(self, topology: Topology) -> None:
        append(self.folder / "rows", "part", [(number, f"name {number}") for number in range(2)])
        rows = topology.new_stream("rows", OpaqueFolderSpout(self.folder / "rows", at_once=1))
        rows.group_by("id").persistent_aggregate(SqliteState(str(self.folder / "rows.db")), Count(), "n")


class Airflow:
    """The Execution API: the states of tasks in runs, of which `queued` ones wait for room; others are active."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs: dict[str, dict[str, str | None]] = {}
        self.queued: set[str] = set()
        monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", self.states)
        monkeypatch.setattr(RuntimeTaskInstance, "get_dr_count", self.count)

    def states(self, *, dag_id: str, run_ids: list[str], task_ids: list[str]) -> dict[str, dict[str, str | None]]:
        return {
            run_id: {task_id: self.runs[run_id][task_id] for task_id in task_ids}
            for run_id in run_ids
            if run_id in self.runs
        }

    def count(self, *, dag_id: str, states: list[str], run_ids: list[str] | None = None) -> int:
        return 1 if run_ids is None else len(self.queued.intersection(run_ids)) if states == ["queued"] else 0


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    return Airflow(monkeypatch)


def killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def statuses(site: Site) -> list[tuple[Status, int]]:
    return [(tx.status, tx.attempt) for tx in site.ledger().transactions()]


# ---- what is FAILED ------------------------------------------------------------------------------------------------


@pytest.fixture
def failed(tmp_path: Path) -> Site:
    """The emitter of "first" has failed for good at the only batch."""
    site = Site(tmp_path)
    site.dag.max_active_runs = 1
    for name in ("1.txt", "2.txt"):
        (tmp_path / "in" / name).unlink()
    site.run("words.coordinate", "first")
    me = Owner(dag_id="words", run_id="first", task_id="words.emit", try_number=1)
    with site.ledger() as ledger:
        ledger.fail(1, single.attempt(ledger, 1, owner=me).attempt, "ValueError: it cannot be")
    return site


@pytest.mark.parametrize("states", [EMITTER_FAILED, None, CLEARED], ids=["failed", "deleted", "queued"])
def test_a_run_without_new_data_does_not_replay_what_is_failed(
    failed: Site, airflow: Airflow, states: dict[str, str | None] | None
) -> None:
    """A person decides about it. Its own run, if cleared, replays it, and begins when this one has ended."""
    if states is not None:
        airflow.runs["first"] = states
    if states is CLEARED:
        airflow.queued.add("first")
    before = failed.ledger().export()
    with pytest.raises(AirflowFailException, match=r"transaction 1 is FAILED.*backfill words --txid 1"):
        failed.run("words.coordinate", "second")
    assert failed.ledger().export()["transactions"] == before["transactions"]
    outcome = failed.ledger().coordinator()
    assert outcome is not None
    assert outcome.kind is OutcomeKind.BLOCKED


def test_a_drain_without_new_data_fails_over_what_is_failed(failed: Site, airflow: Airflow) -> None:
    airflow.runs["first"] = EMITTER_FAILED
    drain = TridentDrainOperator(task_id="drain", topology=failed.topology, engine="local", dag=failed.dag)
    drain.open_ledger = failed.ledger  # type: ignore[method-assign]
    drain.staging_dir = str(failed.folder / "staged")
    with pytest.raises(AirflowFailException, match=r"transaction 1 is FAILED"):
        drain.execute(failed.context("drain", "second"))


def test_one_backfill_is_enough_and_leaves_alone_what_a_task_is_at(tmp_path: Path, airflow: Airflow) -> None:
    """1 is FAILED, 2 and 3 are PROCESSING and their tasks have ended, 4 is being processed."""
    site = Site(tmp_path)
    (tmp_path / "in" / "3.txt").write_text("d\n")
    for number in range(4):
        assert site.run("words.coordinate", f"run-{number}", max_pending=9) == number + 1
        airflow.runs[f"run-{number}"] = EMITTER_FAILED
    airflow.runs["run-3"] = {**CLEARED, "words.coordinate": "success", "words.emit": "running"}
    with site.ledger() as ledger:
        ledger.fail(1, single.attempt(ledger, 1, owner="a test").attempt, "in vain")
        single.attempt(ledger, 3, owner=Owner(dag_id="words", run_id="run-2", task_id="words.emit", try_number=1))
    replay = TridentBackfillOperator(
        task_id="replay", topology=site.topology, engine="local", dag=site.dag, staging_dir=str(tmp_path / "staged")
    )
    replay.open_ledger = site.ledger  # type: ignore[method-assign]
    assert replay.execute(site.context("replay", "by hand")) == [1, 2, 3]
    assert [status for status, _ in statuses(site)] == [Status.COMMITTED] * 3 + [Status.PROCESSING]


@pytest.mark.parametrize("emitter", [None, "scheduled", "queued", "running", "up_for_retry"])
def test_one_clear_of_the_failed_run_is_enough_whichever_task_begins_first(
    failed: Site, airflow: Airflow, emitter: str | None
) -> None:
    failed.dag.max_active_runs = 2
    airflow.runs["first"] = {**CLEARED, "words.coordinate": "success", "words.emit": emitter}
    with pytest.raises(AirflowSkipException, match="nothing new"):
        failed.run("words.coordinate", "second")
    (failed.folder / "in" / "1.txt").write_text("b\n")
    with pytest.raises(AirflowRescheduleException):  # it waits for room, and not in vain
        failed.run("words.coordinate", "second", max_pending=1, turn_wait_s=0.0)
    assert failed.run("words.coordinate", "second", max_pending=2) == 2
    assert failed.run("words.emit", "second") == 2
    for task_id in ("words.turn", "words.commit"):
        with pytest.raises(AirflowRescheduleException):
            failed.run(task_id, "second", turn_wait_s=0.0)
    for task_id in TASKS_OF_A_RUN:
        assert failed.run(task_id, "first") == 1
    for task_id in ("words.turn", "words.commit"):
        assert failed.run(task_id, "second") == 2


@pytest.mark.parametrize(
    "states",
    [EMITTER_FAILED, {**CLEARED, "words.emit": "success"}, {**CLEARED, "words.emit": "failed"}],
    ids=["failed", "marked success, and the committer is this one", "only others were cleared"],
)
def test_a_task_waits_neither_for_itself_nor_for_those_behind_it_nor_for_nobody(
    failed: Site, airflow: Airflow, states: dict[str, str | None]
) -> None:
    airflow.runs["first"] = states
    for task_id in ("words.turn", "words.commit"):
        with pytest.raises(AirflowFailException, match=r"transaction 1 is FAILED"):
            failed.run(task_id, "first", turn_wait_s=0.0)


def test_a_run_without_new_data_is_red_if_it_finds_that_nobody_processes_a_transaction(
    tmp_path: Path, airflow: Airflow
) -> None:
    """A person has marked the run as success while its emitter was at work: nothing else may ever say so."""
    site = Site(tmp_path)
    for name in ("1.txt", "2.txt"):
        (tmp_path / "in" / name).unlink()
    site.run("words.coordinate", "first")
    airflow.runs["first"] = dict.fromkeys(TASKS_OF_A_RUN, "success") | {"words.commit": "skipped"}
    assert site.is_ready("second")
    with pytest.raises(AirflowFailException, match=r"transaction 1 is FAILED"):
        site.run("words.coordinate", "second")
    assert [status for status, _ in statuses(site)] == [Status.FAILED]
    assert not site.is_ready("third")  # one red run has said so


def test_a_run_that_waits_for_data_ends_for_a_queued_one_that_is_to_replay_what_is_failed(
    failed: Site, airflow: Airflow
) -> None:
    airflow.runs["first"] = EMITTER_FAILED
    assert not failed.is_ready("second")  # nobody has cleared it
    airflow.runs["first"] = {**CLEARED, "words.emit": "failed"}
    airflow.queued.add("first")
    assert not failed.is_ready("second")  # only its other tasks were cleared
    airflow.runs["first"] = CLEARED
    assert failed.is_ready("second")
    failed.dag.max_active_runs = 2
    assert not failed.is_ready("second")  # it begins without that
    assert statuses(failed) == [(Status.FAILED, 0)]


def test_a_whole_run_that_is_cleared_does_not_wait_for_other_data_before_it_replays_its_own(
    failed: Site, airflow: Airflow
) -> None:
    airflow.runs["first"] = CLEARED
    assert failed.is_ready("first")
    for task_id in TASKS_OF_A_RUN:
        assert failed.run(task_id, "first") == 1
    assert statuses(failed) == [(Status.COMMITTED, 1)]


@pytest.mark.parametrize("status", [Status.SKIPPED, Status.COMMITTED])
def test_a_cleared_run_whose_transaction_holds_up_nobody_waits_for_no_data_either(
    failed: Site, airflow: Airflow, status: Status
) -> None:
    if status is Status.SKIPPED:
        failed.ledger().skip(1, "a person said so")
    else:
        for task_id in TASKS_OF_A_RUN:
            failed.run(task_id, "first")
    airflow.runs["first"] = CLEARED
    assert not failed.is_ready("second")
    failed.cleared.update(("first", "third"))
    assert not failed.is_ready("third")  # it had nothing
    assert failed.is_ready("first")
    for task_id in TASKS_OF_A_RUN:
        assert failed.run(task_id, "first") == 1
    assert [one for one, _ in statuses(failed)] == [Status.COMMITTED]


@pytest.mark.parametrize("claims_are_pruned", [False, True])
def test_a_cleared_run_whose_records_are_pruned_waits_for_no_data(
    tmp_path: Path, airflow: Airflow, claims_are_pruned: bool
) -> None:
    """The claim is there long after the record; where it may be gone, too, the coordinator says so."""
    site = Site(tmp_path)
    for run_id in ("first", "second", "third"):
        for task_id in TASKS_OF_A_RUN:
            site.run(task_id, run_id, **({"retention": 1} if task_id == "words.commit" else {}))
        airflow.runs[run_id] = dict.fromkeys(TASKS_OF_A_RUN, "success")
    assert [tx.txid for tx in site.ledger().transactions()] == [3]
    if claims_are_pruned:
        ledger = ZNodeLedger(MemoryZNodes(site.tree), "words", keep_claims=1)
        for number in range(256):  # one bucket of 256 is swept every 32 commits: look at them all here
            ledger.sweep_claims(32 * (256 + number))
    assert not site.is_ready("first")
    site.cleared.update(("first", "fourth"))
    before = site.ledger().export()
    assert site.is_ready("first")
    assert site.is_ready("fourth") == claims_are_pruned
    assert site.ledger().export() == before
    if claims_are_pruned:
        with pytest.raises(AirflowFailException, match="pruned"):
            site.run("words.coordinate", "first")
    else:
        assert site.run("words.coordinate", "first") == 1


@pytest.mark.parametrize("group", [None, 1])
@pytest.mark.parametrize("cleared_try", [3, 4], ids=["at once", "in a retry, as its first try was killed on the way"])
def test_a_retry_that_airflow_makes_by_itself_does_not_undo_a_persons_skip_and_a_clear_of_the_task_does(
    failed: Site, cleared_try: int, group: int | None
) -> None:
    failed.ledger().skip(1, "a person said so")
    emit = partial(failed.run, "words.emit", "first", retries=2, group=group)
    emit(try_number=1, max_tries=2)  # it was queued, or its worker was killed
    emit(try_number=2, max_tries=2)
    assert statuses(failed) == [(Status.SKIPPED, 0)]
    failed.run("words.turn", "first")  # there may be others of its run behind it
    with pytest.raises(AirflowFailException, match=r"words: transaction 1 is SKIPPED: .*backfill words --txid 1"):
        failed.run("words.commit", "first")
    emit(try_number=cleared_try, max_tries=4)
    assert statuses(failed) == [(Status.PROCESSED, 1)]


def test_who_finds_that_a_transaction_has_failed_meanwhile_does_not_call_it_left_to_be_committed(
    failed: Site, airflow: Airflow
) -> None:
    airflow.runs["first"] = EMITTER_FAILED
    with failed.ledger() as ledger:
        (record,) = ledger.transactions()
        assert ask_airflow(ledger, skip=True)(record) is None
    assert statuses(failed) == [(Status.FAILED, 0)]


# ---- what has no batch ---------------------------------------------------------------------------------------------


@pytest.fixture
def without_batch(tmp_path: Path) -> Site:
    """1 was attempted again after 2, the last one, was processed."""
    site = OpaqueSite(tmp_path)
    for run_id in ("first", "second"):
        site.run("words.coordinate", run_id)
        site.run("words.emit", run_id)
    append(tmp_path / "rows", "other", [(7, "a row that 1 takes now, too")])
    site.run("words.emit", "first")
    assert [tx.invalidated for tx in site.ledger().transactions()] == [False, True]
    return site


@pytest.mark.parametrize("lowest", [1, 2])
def test_a_run_begins_though_the_last_transaction_has_no_batch_if_nobody_is_left_to_go_on(
    without_batch: Site, airflow: Airflow, lowest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lowest == 2:
        with monkeypatch.context() as dies:
            dies.setattr(commit, "start_attempts", killed)
            with pytest.raises(KeyboardInterrupt):
                without_batch.run("words.commit", "first")
    airflow.runs = {"first": COMMITTER_FAILED, "second": COMMITTER_FAILED}
    assert without_batch.is_ready("third")
    for task_id in TASKS_OF_A_RUN:
        assert without_batch.run(task_id, "third", turn_wait_s=0.0) == lowest
    assert [status for status, _ in statuses(without_batch)] == [Status.COMMITTED] * 2


def test_a_run_does_not_begin_while_tasks_of_others_are_to_go_on_with_what_has_no_batch(
    without_batch: Site, airflow: Airflow
) -> None:
    airflow.runs = {"first": {**COMMITTER_FAILED, "words.commit": "deferred"}, "second": COMMITTER_FAILED}
    assert not without_batch.is_ready("third")
    without_batch.run("words.commit", "first")
    airflow.runs["second"] = {**COMMITTER_FAILED, "words.commit": "deferred"}
    assert not without_batch.is_ready("third")


def test_what_a_program_began_and_what_has_no_batch_now_is_taken_up_by_the_next_run(
    tmp_path: Path, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No task of Airflow is to go on with it, and the program was killed when it had committed 1."""
    site = OpaqueSite(tmp_path)
    staging, notebook = str(tmp_path / "staging"), Attempts(owner=Owner(program="a notebook", host="away", pid=7))

    def at(txid: int) -> None:
        process(site.ledger(), site.topology, txid, LocalEngine(), staging, notebook)

    for txid in (1, 2):
        coordinate(site.ledger(), site.topology, [Claim(key=f"local/{txid}")], max_pending=2)
        at(txid)
    append(tmp_path / "rows", "other", [(7, "a row that 1 takes now, too")])
    at(1)
    committer = Committer(
        ledger=site.ledger(), topology=site.topology, staging_root=staging, attempts=notebook, engine=LocalEngine
    )
    with monkeypatch.context() as dies:
        dies.setattr(commit, "start_attempts", killed)
        with pytest.raises(KeyboardInterrupt):
            committer.commit(1)
    assert [status for status, _ in statuses(site)] == [Status.COMMITTED, Status.PROCESSING]
    assert site.is_ready("first")
    for task_id in TASKS_OF_A_RUN:
        assert site.run(task_id, "first", turn_wait_s=0.0) == 2
    assert [status for status, _ in statuses(site)] == [Status.COMMITTED] * 2


# ---- who waits and commits nothing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("states", [COMMITTER_FAILED, CLEARED], ids=["left", "queued"])
def test_a_turn_sensor_in_front_of_a_reader_does_not_end_before_what_is_left_is_committed(
    tmp_path: Path, airflow: Airflow, states: dict[str, str | None]
) -> None:
    """With a committer behind it, it would: that one commits what is left. A reader would read too early."""
    site = Site(tmp_path)
    site.dag.max_active_runs = 1
    with site.dag:
        gate = TridentTurnSensor(task_id="gate", topology="words", txid=2, turn_wait_s=0.0)
        gate >> TridentReadySensor(task_id="reads", topology=site.topology)
    for run_id in ("first", "second"):
        site.run("words.coordinate", run_id)
        site.run("words.emit", run_id)
    airflow.runs["first"] = states
    if states is CLEARED:
        airflow.queued.add("first")
    with pytest.raises(AirflowRescheduleException):
        site.run("gate", "second")
    assert site.run("words.turn", "second", turn_wait_s=0.0) == 2
    assert site.run("words.commit", "second") == 2
    assert site.run("gate", "second") == 2
