"""Who still works on a transaction, from its record and from the states of Airflow's tasks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.protocol.decide import Blocked, Unknown, Wait
from airflow_trident.protocol.diagnosis import Stalled, waiting
from airflow_trident.protocol.records import NOBODY, Claim, Owner, StagedRef, Status, TxRecord
from airflow_trident.protocol.topologies import Definition
from airflow_trident.tasks.asking_airflow import answers_about, ask, ask_airflow
from airflow_trident.tasks.liveness import (
    answered,
    began_by,
    instance_name,
    judge,
    left_to_committer,
    owned_by,
    questions,
)
from airflow_trident.tasks.task_states import DAG_GONE, DAG_PAUSED, NOT_BEGUN, RUN_ENDED, never_started
from airflow_trident.tasks.waits import Over, TaskOfRun, Until, decide_wait, wait_in_worker
from tests.fixtures import single

TASKS = {"emit": "g.emit", "commit": "g.commit"}


def task(task_id: str, *, dag_id: str = "dag", run_id: str = "run", index: int = -1, try_number: int = 1) -> Owner:
    return Owner(
        dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=index, try_number=try_number, host="host", pid=7
    )


EMITTER = task("g.emit")
REPLAY = task("backfill", dag_id="again", run_id="r2")
PERSON = Owner(user="me", host="host", pid=12)


def record(
    status: Status, *, attempt: int = 0, owner: Owner = EMITTER, index: int = -1, claimed: bool = True
) -> TxRecord:
    ids = {"dag_id": "dag", "run_id": "run", "task_ids": TASKS} if claimed else {}
    claim = Claim(key="k", map_index=index, **ids)  # type: ignore[arg-type]
    return TxRecord(txid=4, status=status, attempt=attempt, metadata={}, claim=claim, op="", owner=owner)


def gone(one: TxRecord, run: dict[str, Any], replay: dict[str, Any] | None = None) -> bool:
    answers = {("dag", "run"): run} | ({("again", "r2"): replay} if replay is not None else {})
    return isinstance(judge(one, answers), Stalled)


@pytest.mark.parametrize("state", ["failed", "upstream_failed", "skipped", "removed"])
def test_a_transaction_whose_emitter_has_ended_without_success_is_abandoned(state: str) -> None:
    assert gone(record(Status.PROCESSING), {"g.emit": state, "g.commit": "upstream_failed"})
    assert gone(record(Status.PROCESSING, attempt=-1, owner=NOBODY), {"g.emit": state, "g.commit": None})


@pytest.mark.parametrize("state", [None, "scheduled", "queued", "running", "up_for_retry", "deferred", "restarting"])
def test_a_transaction_whose_emitter_may_go_on_is_not(state: str | None) -> None:
    assert not gone(record(Status.PROCESSING), {"g.emit": state, "g.commit": None})


def test_a_deleted_run_works_on_nothing() -> None:
    assert gone(record(Status.PROCESSING), {})
    assert gone(record(Status.PROCESSED), {})


@pytest.mark.parametrize(
    ("why", "cure"),
    [
        (DAG_PAUSED, "Unpause that DAG"),
        (DAG_GONE, "Bring that DAG back"),
        (RUN_ENDED, "Clear that task"),
        ("failed", "Clear that task"),
        ("deleted", ""),
    ],
)
def test_a_task_that_airflow_never_starts_works_on_nothing_and_its_cure_is_named(why: str, cure: str) -> None:
    states = {("dag", "run"): {"g.emit": "success", "g.commit": why}}
    assert judge(record(Status.PROCESSED), states) == Stalled(
        f"task 'g.commit' of run 'run' of DAG 'dag' is {why}", cure
    )


def test_where_two_tasks_may_go_on_the_paused_dag_is_named_since_to_unpause_it_is_enough() -> None:
    states = {("dag", "run"): {"g.commit": DAG_PAUSED}, ("again", "r2"): {"backfill": "failed"}}
    found = judge(record(Status.COMMITTING, owner=REPLAY), states)
    assert found is not None
    assert found.cure == "Unpause that DAG"


@pytest.mark.parametrize(
    "state", [None, "up_for_retry", "up_for_reschedule", "scheduled", "queued", "running", "failed"]
)
def test_airflow_starts_tasks_of_active_runs_of_dags_that_are_there_and_not_paused(state: str | None) -> None:
    starts = {"run_ended": False, "dag_gone": False, "dag_paused": False}
    not_begun, scheduled = state in NOT_BEGUN, state == "scheduled"
    assert never_started(state, **starts) == state
    assert never_started(state, **starts | {"run_ended": True}) == (RUN_ENDED if not_begun or scheduled else state)
    assert never_started(state, **starts | {"dag_paused": True}) == (DAG_PAUSED if not_begun or scheduled else state)
    assert never_started(state, **starts | {"dag_gone": True}) == (DAG_GONE if not_begun else state)
    all_of_it = never_started(state, run_ended=True, dag_gone=True, dag_paused=True)
    assert all_of_it == (DAG_GONE if not_begun else RUN_ENDED if scheduled else state)


@pytest.mark.parametrize(("run", "expected"), [("success", RUN_ENDED), ("failed", RUN_ENDED), ("queued", None)])
def test_a_task_that_was_cleared_without_its_run_is_never_started(
    run: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiting task sees that, too, and need not wait for ever."""

    def count(*, dag_id: str, run_ids: list[str], states: list[str]) -> int:
        return int((dag_id, run_ids) == ("dag", ["run"]) and run in states)

    monkeypatch.setattr(
        RuntimeTaskInstance, "get_task_states", lambda **_: {"run": {"g.emit": "success", "g.commit": None}}
    )
    monkeypatch.setattr(RuntimeTaskInstance, "get_dr_count", count)
    assert answers_about(record(Status.PROCESSED), None) == {
        ("dag", "run"): {"g.emit": "success", "g.commit": expected}
    }


def test_a_mapped_claim_is_judged_by_the_tasks_of_its_own_index() -> None:
    states = {"g.emit[0]": "success", "g.emit[1]": "failed", "g.commit[0]": "running", "g.commit[1]": "upstream_failed"}
    assert gone(record(Status.PROCESSING, index=1, owner=task("g.emit", index=1, try_number=2)), states)
    assert not gone(record(Status.COMMITTING, index=0, owner=task("g.commit", index=0)), states)


def test_before_the_tasks_are_mapped_their_common_state_counts() -> None:
    assert not gone(record(Status.PROCESSING, index=2, attempt=-1, owner=NOBODY), {"g.emit": None, "g.commit": None})


def test_a_replay_in_another_run_is_somebody_at_work() -> None:
    failed = {"g.emit": "failed", "g.commit": "upstream_failed"}
    assert not gone(record(Status.PROCESSING, owner=REPLAY), failed, {"backfill": "running"})
    assert gone(record(Status.PROCESSING, owner=REPLAY), failed, {"backfill": "failed"})
    assert not gone(record(Status.COMMITTING, owner=REPLAY), failed, {"backfill": "running"})


def test_a_replay_by_a_command_is_left_alone_while_it_processes() -> None:
    failed = {"g.emit": "failed", "g.commit": "upstream_failed"}
    assert not gone(record(Status.PROCESSING, owner=PERSON), failed)
    assert gone(record(Status.COMMITTING, owner=PERSON), failed)


def test_what_is_staged_and_not_claimed_by_any_run_may_be_taken_along() -> None:
    assert gone(record(Status.PROCESSED, claimed=False, owner=PERSON), {})
    assert not gone(record(Status.PROCESSING, claimed=False, owner=PERSON), {})


def test_an_emitter_that_a_person_marked_as_done_leaves_the_work_to_the_committer() -> None:
    unprocessed = record(Status.PROCESSING, attempt=-1, owner=NOBODY)
    states = {("dag", "run"): {"g.emit": "success", "g.commit": "running"}}
    assert left_to_committer(unprocessed, states)
    assert judge(unprocessed, states) is None
    assert not left_to_committer(record(Status.PROCESSED), states)
    assert not left_to_committer(unprocessed, {("dag", "run"): {"g.emit": "running"}})


def test_a_committer_knows_what_an_earlier_try_of_it_began() -> None:
    mine = began_by(task("g.commit", index=0, try_number=2))
    assert mine(record(Status.PROCESSING, owner=task("g.commit", index=0)))
    for owner in (EMITTER, PERSON, NOBODY, task("g.commit", index=1), task("g.commit")):
        assert not mine(record(Status.PROCESSING, owner=owner))
    assert not began_by(PERSON)(record(Status.PROCESSING, owner=PERSON))


def test_each_run_is_asked_about_once() -> None:
    assert questions(record(Status.PROCESSING)) == [
        {"dag_id": "dag", "run_ids": ["run"], "task_ids": ["g.commit", "g.emit"]}
    ]
    first, second = questions(record(Status.PROCESSING, owner=REPLAY))
    assert second == {"dag_id": "again", "run_ids": ["r2"], "task_ids": ["backfill"]}
    there = {"g.emit_0": "running", "g.emit_1": "failed", "g.commit": None}
    assert answered(first, {"run": there}) == {
        ("dag", "run"): {"g.emit[0]": "running", "g.emit[1]": "failed", "g.commit": None}
    }
    assert answered(first, {"run": {"g.emit": "failed"}}) == {
        ("dag", "run"): {"g.emit": "failed", "g.commit": "deleted"}
    }
    assert answered(first, {}) == {("dag", "run"): {"g.emit": "deleted", "g.commit": "deleted"}}
    assert questions(record(Status.PROCESSING, claimed=False, owner=PERSON)) == []


def test_a_mapped_task_is_told_from_one_whose_name_ends_in_a_number() -> None:
    """Airflow's answer calls both of them ``work_1``."""
    claim = Claim(key="k", dag_id="dag", run_id="run", map_index=1, task_ids={"emit": "work", "commit": "work_1"})
    killed = replace(record(Status.PROCESSING, owner=task("work", index=1)), claim=claim)
    states = {("work", 1): "failed", ("work_1", -1): "running", ("work_1", 1): "none"}
    answers: dict[str, Any] = {}
    for question in questions(killed):
        of_airflow = {
            name if index < 0 else f"{name}_{index}": state
            for (name, index), state in states.items()
            if name in question["task_ids"]
        }
        answers |= answered(question, {"run": of_airflow})[("dag", "run")]
    assert answers == {instance_name(*one): state for one, state in states.items()}
    assert len(answers) == 3


@pytest.mark.parametrize(
    "run_id", ["by hand / of Zoë", "manual__2026-11-21T08:00:00+00:00", "a/b try 1 on h/1", " ", "[3]"]
)
@pytest.mark.parametrize("task_id", ["g.emit", "verarbeiten_größer.emit"])
def test_a_task_of_any_run_is_asked_about(run_id: str, task_id: str) -> None:
    claim = Claim(key="k", dag_id="dag", run_id=run_id, task_ids={"emit": task_id, "commit": "c"})
    killed = replace(record(Status.PROCESSING, owner=task(task_id, run_id=run_id)), claim=claim)
    assert questions(killed) == [{"dag_id": "dag", "run_ids": [run_id], "task_ids": sorted({"c", task_id})}]
    gone_now = judge(killed, answered(questions(killed)[0], {run_id: {task_id: "failed", "c": None}}))
    assert gone_now is not None
    assert repr(run_id) in gone_now.why
    assert task_id in gone_now.why
    assert judge(killed, answered(questions(killed)[0], {run_id: {task_id: "running", "c": None}})) is None


def test_a_program_is_gone_when_its_session_is() -> None:
    program = Owner(program="airflow trident backfill", host="host", pid=12, worker="host-12-1")
    at_it, committing = record(Status.PROCESSING, owner=program), record(Status.COMMITTING, owner=program)
    over = {("dag", "run"): {"g.emit": "failed", "g.commit": "failed"}}
    assert judge(at_it, over, {"host-12-1", "another"}) is None
    assert judge(at_it, over, None) is None  # nobody asked
    found = judge(at_it, over, {"another"})
    assert found is not None
    assert "airflow trident backfill on host/12 is no longer connected to the ledger" in found.why
    assert judge(committing, over, {"host-12-1"}) is None
    assert judge(committing, over, {"another"}) is not None
    assert judge(record(Status.PROCESSING, owner=PERSON), over, set()) is None  # an older version's, who is on no list


def test_what_a_program_began_and_lost_its_batch_is_left_when_nobody_is_at_work_any_more() -> None:
    lost = replace(record(Status.PROCESSING, owner=NOBODY, claimed=False), invalidated=True)
    assert judge(lost, {}, {"host-12-1"}) is None
    for live in (set[str](), None):  # a task that waits does not ask who is at work, and may take it up in any case
        assert judge(lost, {}, live) == Stalled("no task of Airflow is to commit it")


def test_a_program_is_no_task() -> None:
    assert owned_by(record(Status.PROCESSING, owner=PERSON)) is None
    assert owned_by(record(Status.PROCESSING, owner=task("t", index=0))) == TaskOfRun("dag", "run", "t", 0)


# ---- what is waited for ----------------------------------------------------------------------------------------


@pytest.fixture
def ledger() -> MemoryLedger:
    """Transactions 1 to 4; 1 is committed, 2 and 3 are staged, 4 is not attempted."""
    made = MemoryLedger("words")
    made.register(Definition(spouts={}, states={}))
    for number in range(1, 5):
        single.begin(made, Claim(key=str(number)), lambda txid, _position: {"lines": txid}, max_pending=9)
    for number in range(1, 4):
        single.attempt(made, number, owner=NOBODY)
        single.processed(made, number, 0, StagedRef(manifest="", rows_read=0, rows={}, bytes=0))
    single.committed(made, single.gate(made, 1, owner=NOBODY))
    return made


@pytest.mark.parametrize(
    ("txid", "until", "verdict"),
    [
        (1, Until.TURN, Over(committed=True)),
        (2, Until.TURN, Over()),
        (2, Until.READY, Over()),
        (2, Until.PASSED, Wait(on=2, why="transaction 2 is not committed yet")),
        (3, Until.TURN, Wait(on=2, why="transaction 2 is not committed yet")),
        (9, Until.TURN, Unknown(9, 5)),
    ],
)
def test_each_wait_is_for_what_it_says(ledger: MemoryLedger, txid: int, until: Until, verdict: object) -> None:
    assert decide_wait(ledger.view(txid), txid, until) == verdict


def test_a_turn_comes_before_the_own_batch_is_staged_but_a_commit_is_not_ready(ledger: MemoryLedger) -> None:
    for txid in (2, 3):
        single.committed(ledger, single.gate(ledger, txid, owner=NOBODY))
    assert decide_wait(ledger.view(4), 4, Until.TURN) == Over()
    assert isinstance(decide_wait(ledger.view(4), 4, Until.READY), Wait)


def test_the_turn_of_a_skipped_one_comes_as_that_of_others(ledger: MemoryLedger) -> None:
    """Its committer has others to commit, perhaps, and says what became of it."""
    ledger.skip(3, "let them pass")
    waits = decide_wait(ledger.view(3), 3, Until.TURN)
    assert isinstance(waits, Wait)
    assert waits.on == 2
    single.committed(ledger, single.gate(ledger, 2, owner=NOBODY))
    assert decide_wait(ledger.view(3), 3, Until.TURN) == Over()


def test_a_failed_one_below_makes_every_wait_vain_and_a_skipped_one_none(ledger: MemoryLedger) -> None:
    ledger.fail(2, 0, "it cannot be")
    assert decide_wait(ledger.view(3), 3, Until.TURN) == Blocked(2)
    assert ledger.view(4).lowest_uncommitted(4) == 2
    ledger.skip(2, "let them pass")
    assert decide_wait(ledger.view(3), 3, Until.TURN) == Over()
    assert decide_wait(ledger.view(2), 2, Until.PASSED) == Over(committed=False)
    assert ledger.view(4).lowest_uncommitted(4) == 3


# ---- what a waiting task says ----------------------------------------------------------------------------------


def test_a_waiting_task_says_what_it_waits_for_who_is_at_it_and_how_to_go_on() -> None:
    culprit = replace(record(Status.PROCESSING, attempt=2), error="UserCodeError: told to fail\nmore")
    assert str(waiting("wc", 6, "transaction 5 is not committed yet", culprit)) == (
        "transaction 5 is not committed yet: transaction 4 is PROCESSING, "
        "attempt 2 by dag/run/g.emit try 1 on host/7, last error: UserCodeError: told to fail. See `airflow trident "
        "ledger show wc 4`; if nobody works on it, `airflow trident backfill wc --txid 4`; `airflow trident skip wc 4` "
        "lets the others pass."
    )


def test_a_transaction_that_a_state_may_hold_is_not_offered_to_be_skipped() -> None:
    assert "skip" not in str(waiting("wc", 6, "why", replace(record(Status.COMMITTING), touched=True)))
    assert not waiting("wc", 4, "it is not attempted", record(Status.PROCESSING, attempt=-1)).command


def test_a_worker_that_waits_says_so_once_and_again_when_it_waits_for_something_else() -> None:
    said: list[str] = []
    with MemoryLedger("wc") as ledger:
        ledger.register(Definition(spouts={}, states={}))
        for number in (1, 2):
            single.begin(ledger, Claim(key=str(number)), lambda txid, _: {"lines": txid})

        def look(one: TxRecord) -> None:
            if one.attempt == 0:
                ledger.fail(1, 0, "gone")
            else:
                single.attempt(ledger, 1, owner="me")

        verdict = wait_in_worker(ledger, 2, Until.TURN, wait_s=60.0, look_every_s=0.01, look=look, say=said.append)
    assert verdict == Blocked(1)
    assert [story.partition(" See")[0] for story in said] == [
        "transaction 2 of topology wc waits: transaction 1 is not committed yet: transaction 1 is PROCESSING, not "
        "attempted yet.",
        "transaction 2 of topology wc waits: transaction 1 is not committed yet: transaction 1 is PROCESSING, attempt "
        "0 by me.",
    ]


def test_a_worker_goes_on_waiting_when_airflow_does_not_answer() -> None:
    """There is no Execution API in this process: asking fails by itself."""
    with MemoryLedger("wc") as ledger:
        ledger.register(Definition(spouts={}, states={}))
        claim = Claim(key="1", dag_id="d", run_id="r", task_ids={"emit": "e", "commit": "c"})
        single.begin(ledger, claim, lambda txid, _: {"lines": txid})
        single.attempt(ledger, 1, owner="somebody")
        one = ledger.view(1).tx
        assert one is not None
        assert ask(one) is None
        assert ask_airflow(ledger, skip=False)(one) is None
        assert ledger.view(1).tx == one
