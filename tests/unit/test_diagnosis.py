"""One diagnosis: the page, the commands, a waiting task and an error give the same cause and cure of one ledger."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from airflow_trident.plugin.rows import Sight, seen, shown, summary
from airflow_trident.protocol.decide import Blocked, Wait, decide_commit
from airflow_trident.protocol.diagnosis import (
    Evidence,
    Health,
    PageAction,
    Stalled,
    blocks,
    diagnose,
    diagnose_transaction,
    troubles,
    waiting,
)
from airflow_trident.protocol.outcomes import CoordinatorOutcome, OutcomeKind
from airflow_trident.protocol.records import (
    NO_ATTEMPT,
    Claim,
    Command,
    CommitPointer,
    Exceptions,
    LedgerView,
    Owner,
    Status,
    TopologyRecord,
    TxRecord,
)
from airflow_trident.protocol.topologies import Definition
from airflow_trident.protocol.txids import Txids
from airflow_trident.runtime.waiting import blocked

EVERYTHING = Sight(frozenset({"words"}), unowned=True)
PENDING = (Status.PROCESSING, Status.PROCESSED, Status.COMMITTING, Status.FAILED, Status.SKIPPED)


@st.composite
def ledgers(draw: st.DrawFn) -> Evidence:
    """A topology with up to five transactions above the commit pointer, in any statuses."""
    committed = draw(st.integers(0, 2))
    statuses = draw(st.lists(st.sampled_from(PENDING), max_size=5))
    records, stalled = {}, {}
    for txid, status in enumerate(statuses, committed + 1):
        error = draw(st.sampled_from(["", "UserCodeError: this line is bad", "GoneOverError: it was gone over"]))
        records[txid] = TxRecord(
            txid=txid,
            status=status,
            attempt=draw(st.sampled_from([NO_ATTEMPT, 0, 1])) if status is Status.PROCESSING else 0,
            claim=Claim(key=str(txid), dag_id="words", run_id=f"run-{txid}"),
            owner=Owner(dag_id="words", run_id=f"run-{txid}", task_id="t.commit", try_number=1, host="here", pid=7),
            error="UserCodeError: this line is bad" if status is Status.FAILED else error,
            touched=status is Status.COMMITTING,
            metadata={},
            op="",
        )
        if status in PENDING[:3] and draw(st.booleans()):
            stalled[txid] = Stalled(f"task of run-{txid} is failed", draw(st.sampled_from(["", "Clear that task"])))
    view = LedgerView(
        topology=TopologyRecord(
            name="words",
            incarnation="i",
            definition=Definition(spouts={}, states={}),
            command=draw(st.sampled_from(Command)),
        ),
        next_txid=committed + len(statuses) + 1,
        pointer=CommitPointer(committed=committed, fence=0),
        exceptions=Exceptions(
            failed=tuple(txid for txid, record in records.items() if record.status is Status.FAILED),
            skipped=Txids.of(*(txid for txid, record in records.items() if record.status is Status.SKIPPED)),
        ),
        tx=None,
    )
    kind = draw(st.none() | st.sampled_from(OutcomeKind))
    outcome = None if kind is None else CoordinatorOutcome(kind=kind, error="SourceUnavailableError: no folder")
    workers = draw(st.none() | st.just(Stalled("no worker runs it: w1 is not there", "Start it")))
    return Evidence(view=view, outcome=outcome, records=records, stalled=stalled, workers=workers)


@given(ledgers())
def test_the_page_the_error_and_the_waiting_task_give_one_diagnosis(evidence: Evidence) -> None:
    diagnoses = diagnose(evidence)
    page = summary(seen(evidence, EVERYTHING, visible=True), visible=True)
    assert page["diagnosis"] == shown(diagnoses[0])
    assert [one["text"] for one in page["troubles"]] == [str(one) for one in troubles(diagnoses)]
    for txid, record in evidence.records.items():
        view, diagnosis = replace(evidence.view, tx=record), diagnose_transaction(evidence, record)
        decision = decide_commit(view, txid)
        if isinstance(decision, Blocked):
            error = str(blocked("words", decision))
            assert error == f"topology words: {diagnosis.why}. {diagnosis.cure}"
            if decision.by == evidence.view.blocked_by(evidence.view.next_txid) and not decision.skipped:
                assert diagnosis.text == diagnoses[0].text
        elif isinstance(decision, Wait) and not evidence.stalled:
            assert decision.why in diagnosis.why
            if decision.on != txid:
                lowest = evidence.records[evidence.view.lowest_uncommitted(txid) or txid]
                assert str(waiting("words", txid, decision.why, lowest)) == str(diagnosis)


@given(ledgers())
def test_a_topology_is_blocked_if_and_only_if_a_person_has_to_act_and_the_cure_is_named(evidence: Evidence) -> None:
    view, diagnoses = evidence.view, diagnose(evidence)
    is_failed = view.blocked_by(view.next_txid) is not None
    is_bad = evidence.outcome is not None and evidence.outcome.is_bad
    is_stalled = evidence.lowest in evidence.stalled or evidence.workers is not None
    runs = view.topology.command is Command.RUN
    refuses = any("went over it" in one.why for one in diagnoses)
    assert bool(blocks(diagnoses)) == (is_failed or is_bad or refuses or (is_stalled and runs))
    assert set(blocks(diagnoses)) <= set(troubles(diagnoses))
    for diagnosis in diagnoses:
        assert diagnosis.culprit is None or diagnosis.state is Health.IDLE or not diagnosis.cure or diagnosis.command
        assert diagnosis.command in diagnosis.cure
    assert (PageAction.RESUME in diagnoses[0].actions) == (not runs)
