"""The checkpoint protocol's table, record and decisions, without a store."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_trident.errors import CorruptRecordError, FencedError, NewerRecordError, TransitionError
from airflow_trident.protocol.checkpoint import (
    TABLE,
    Action,
    CheckpointRecord,
    CheckpointState,
    Marks,
    Mode,
    Step,
    Transition,
    admit_commit,
    admit_direct,
    admit_prepare,
    admit_rollback,
    begin,
    decide,
    decode_checkpoint,
    encode_checkpoint,
)

PREPARING, COMMITTING, COMMITTED = CheckpointState


def record(state: CheckpointState, txid: int = 7, previous: int = 4) -> CheckpointRecord:
    return CheckpointRecord(txid=txid, state=state, previous=previous)


# ---- the table -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "mode", "expected"),
    [
        (PREPARING, Mode.NORMAL, Transition(Action.PREPARE, record(COMMITTING))),
        (COMMITTING, Mode.NORMAL, Transition(Action.COMMIT, record(COMMITTED))),
        (COMMITTED, Mode.NORMAL, None),
        (PREPARING, Mode.RECOVERING, Transition(Action.ROLLBACK, record(COMMITTED, 4, 4))),
        (COMMITTING, Mode.RECOVERING, Transition(Action.COMMIT, record(COMMITTED))),
        (COMMITTED, Mode.RECOVERING, Transition(Action.INITSTATE, record(COMMITTED), recovered=True)),
    ],
)
def test_every_row_of_the_table(state: CheckpointState, mode: Mode, expected: Transition | None) -> None:
    assert decide(record(state), mode) == expected


def test_the_table_has_a_row_for_every_state_and_mode() -> None:
    assert set(TABLE) == {(state, mode) for state in CheckpointState for mode in Mode}


@pytest.mark.parametrize("state", CheckpointState)
def test_recovery_ends_after_two_steps_at_most_and_keeps_what_was_decided(state: CheckpointState) -> None:
    now = record(state)
    for _ in range(2):
        step = decide(now, Mode.RECOVERING)
        assert step is not None
        now = step.then
        if step.recovered:
            break
    assert step.recovered
    assert now.state is COMMITTED
    assert now.txid == (4 if state is PREPARING else 7)


def test_a_checkpoint_goes_from_begin_to_committed_and_remembers_what_was_before() -> None:
    now = begin(record(COMMITTED, 4, 3), 9)
    assert now == record(PREPARING, 9, 4)
    actions = []
    while (step := decide(now, Mode.NORMAL)) is not None:
        actions.append(step.action)
        assert len(actions) <= 2
        now = step.then
    assert actions == [Action.PREPARE, Action.COMMIT]
    assert now == record(COMMITTED, 9, 4)


@pytest.mark.parametrize(
    ("state", "txid"), [(PREPARING, 8), (COMMITTING, 8), (COMMITTED, 7), (COMMITTED, 6), (PREPARING, 7)]
)
def test_a_checkpoint_cannot_begin_before_the_former_ended_or_for_a_txid_that_is_not_higher(
    state: CheckpointState, txid: int
) -> None:
    with pytest.raises(TransitionError, match=f"transaction {txid} cannot begin where 7 is {state}"):
        begin(record(state), txid)


def test_rolling_back_over_skipped_transactions_gives_the_last_committed_one_not_the_number_before() -> None:
    started = begin(CheckpointRecord(txid=2, state=COMMITTED, previous=1), 6)
    step = decide(started, Mode.RECOVERING)
    assert step is not None
    assert step.then.txid == 2


# ---- the record ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", CheckpointState)
def test_a_record_survives_json(state: CheckpointState) -> None:
    text = json.dumps(encode_checkpoint(record(state)))
    assert decode_checkpoint(json.loads(text), "here") == record(state)


def test_a_record_of_version_1_can_be_read_for_ever() -> None:
    old = '{"v": 1, "txid": 7, "state": "COMMITTING", "previous": 4}'
    assert decode_checkpoint(json.loads(old), "here") == record(COMMITTING)


GOOD: dict[str, Any] = {"v": 1, "txid": 7, "state": "PREPARING", "previous": 4}


@pytest.mark.parametrize(
    "damaged",
    [
        None,
        [],
        "PREPARING",
        {},
        {**GOOD, "v": 0},
        {**GOOD, "v": True},
        {**GOOD, "v": "1"},
        {name: value for name, value in GOOD.items() if name != "previous"},
        {**GOOD, "txid": "7"},
        {**GOOD, "txid": 7.0},
        {**GOOD, "txid": True},
        {**GOOD, "state": "PREPARED"},
        {**GOOD, "state": ["PREPARING"]},
        {**GOOD, "previous": 7},
        {**GOOD, "previous": -1},
    ],
)
def test_a_damaged_record_is_an_error_that_names_it(damaged: Any) -> None:
    with pytest.raises(CorruptRecordError, match="of here"):
        decode_checkpoint(damaged, "here")


def test_a_field_of_a_newer_version_is_tolerated() -> None:
    assert decode_checkpoint({**GOOD, "more": 1}, "here") == decode_checkpoint(GOOD, "here")


def test_a_record_of_a_newer_version_is_not_guessed_at() -> None:
    with pytest.raises(NewerRecordError, match="of here has version 2"):
        decode_checkpoint({**GOOD, "v": 2, "more": 1}, "here")


# ---- the steps of a namespace ----------------------------------------------------------------------------------

QUIET = Marks(prepared=None, committed=4, fence=10)
WAITING = Marks(prepared=7, committed=4, fence=10)


def test_preparing_a_higher_txid_is_kept_with_the_fence() -> None:
    assert admit_prepare(QUIET, 7, 11, "n") == (Marks(prepared=7, committed=4, fence=11), Step.DONE)


def test_preparing_the_same_txid_again_under_the_same_fence_is_allowed() -> None:
    assert admit_prepare(WAITING, 7, 10, "n") == (WAITING, Step.DONE)


def test_preparing_what_is_committed_is_a_success_of_its_own_name() -> None:
    assert admit_prepare(QUIET, 4, 12, "n") == (replace(QUIET, fence=12), Step.ALREADY)


@pytest.mark.parametrize(
    ("marks", "txid", "fence"),
    [
        (WAITING, 8, 10),  # the next one before the former is committed
        (WAITING, 6, 10),  # a lower one over a prepared one
        (WAITING, 4, 10),  # the committed one over a prepared one
        (WAITING, 7, 11),  # a newer committer over what another prepared
        (QUIET, 3, 10),  # below the committed one
        (QUIET, 0, 10),
        (Marks(), 0, 1),
    ],
)
def test_a_prepare_out_of_order_is_refused(marks: Marks, txid: int, fence: int) -> None:
    with pytest.raises(TransitionError, match=f"transaction {txid} cannot be prepared in namespace 'n'"):
        admit_prepare(marks, txid, fence, "n")


def test_committing_what_is_prepared_moves_the_txid_also_under_a_higher_fence() -> None:
    done = (Marks(prepared=None, committed=7, fence=12), Step.DONE)
    assert admit_commit(WAITING, 7, 12, "n") == done


def test_committing_what_is_committed_is_a_success_of_its_own_name() -> None:
    assert admit_commit(QUIET, 4, 12, "n") == (replace(QUIET, fence=12), Step.ALREADY)


@pytest.mark.parametrize(("marks", "txid"), [(QUIET, 7), (QUIET, 3), (WAITING, 8), (WAITING, 6), (WAITING, 4)])
def test_committing_what_is_not_prepared_is_refused(marks: Marks, txid: int) -> None:
    with pytest.raises(TransitionError, match=f"transaction {txid} cannot be committed in namespace 'n'"):
        admit_commit(marks, txid, 10, "n")


def test_rolling_back_keeps_what_is_committed_and_can_be_repeated() -> None:
    once = admit_rollback(WAITING, 11, "n")
    assert once == replace(QUIET, fence=11)
    assert admit_rollback(once, 11, "n") == once


def test_writes_without_a_txid_wait_for_nothing_prepared() -> None:
    assert admit_direct(QUIET, 11, "n") == replace(QUIET, fence=11)
    with pytest.raises(TransitionError, match="without a txid"):
        admit_direct(WAITING, 11, "n")


@pytest.mark.parametrize("marks", [QUIET, WAITING])
@pytest.mark.parametrize("txid", [3, 4, 7, 8])
def test_a_lower_fence_is_refused_whatever_it_wants(marks: Marks, txid: int) -> None:
    with pytest.raises(FencedError):
        admit_prepare(marks, txid, 9, "n")
    with pytest.raises(FencedError):
        admit_commit(marks, txid, 9, "n")
    with pytest.raises(FencedError):
        admit_direct(marks, 9, "n")
    with pytest.raises(FencedError):
        admit_rollback(marks, 9, "n")
