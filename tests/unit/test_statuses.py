"""The state machine of a transaction: every step from every status to every status."""

from __future__ import annotations

import itertools

import pytest

from airflow_trident.errors import TransitionError
from airflow_trident.protocol.records import TRANSITIONS, Status, move

# Written out a second time on purpose: row = from, column = to, in the order of the enum.
#                 PROCESSING PROCESSED COMMITTING COMMITTED FAILED SKIPPED CLOSED
TABLE = """
PROCESSING        x          x         .          .         x      x       .
PROCESSED         x          .         x          .         x      x       .
COMMITTING        x          .         x          x         x      .       .
COMMITTED         .          .         .          .         .      .       .
FAILED            x          .         .          .         .      x       .
SKIPPED           x          .         .          .         .      .       x
CLOSED            .          .         .          .         .      .       .
"""
ALLOWED = {
    (Status(row.split()[0]), target)
    for row in TABLE.split("\n")
    if row
    for target, mark in zip(Status, row.split()[1:], strict=True)
    if mark == "x"
}


@pytest.mark.parametrize(("source", "target"), list(itertools.product(Status, Status)))
def test_each_step_is_allowed_or_refused_as_the_table_says(source: Status, target: Status) -> None:
    if (source, target) in ALLOWED:
        assert move(source, target, txid=7) is target
    else:
        with pytest.raises(TransitionError, match=f"transaction 7 is {source} and cannot become {target}"):
            move(source, target, txid=7)


def test_a_refusal_says_what_would_be_allowed_and_where_to_look() -> None:
    with pytest.raises(TransitionError, match=r"allowed: PROCESSING, SKIPPED.*`ledger show`"):
        move(Status.FAILED, Status.COMMITTED, txid=3)
    with pytest.raises(TransitionError, match="nothing, it is final"):
        move(Status.COMMITTED, Status.PROCESSING, txid=3)


def test_every_status_has_its_row_and_only_committed_and_closed_are_final() -> None:
    assert set(TRANSITIONS) == set(Status)
    assert {status for status in Status if status.is_final} == {Status.COMMITTED, Status.CLOSED}
    assert {status for status in Status if not TRANSITIONS[status]} == {Status.COMMITTED, Status.CLOSED}


def test_p6_what_is_committed_skipped_or_closed_lets_others_pass() -> None:
    passing = {Status.COMMITTED, Status.SKIPPED, Status.CLOSED}
    assert {status for status in Status if status.lets_others_pass} == passing


def test_only_what_a_person_skipped_can_be_closed() -> None:
    assert [status for status in Status if Status.CLOSED in TRANSITIONS[status]] == [Status.SKIPPED]


def test_committed_is_reached_from_committing_alone_and_committing_not_from_an_unfinished_attempt() -> None:
    assert [status for status in Status if Status.COMMITTED in TRANSITIONS[status]] == [Status.COMMITTING]
    assert {status for status in Status if Status.COMMITTING in TRANSITIONS[status]} == {
        Status.PROCESSED,
        Status.COMMITTING,
    }


@pytest.mark.parametrize("status", [status for status in Status if not status.is_final])
def test_every_status_that_is_not_final_can_still_get_to_committed(status: Status) -> None:
    reached = {status}
    for _ in Status:
        reached |= {target for source in reached for target in TRANSITIONS[source]}
    assert Status.COMMITTED in reached
