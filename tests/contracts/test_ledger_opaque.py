"""What every ledger promises about opaque streams (L10, P2): a new attempt may have another batch, and then the later
transactions lose theirs, in the same step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_trident.errors import ConfigurationError, FencedError, InvalidatedError, StaleAttemptError, TransitionError
from airflow_trident.ledger.answers import Begun, MetadataOf, NextBatches
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.protocol.decide import EmitAgain, Full, decide_commit
from airflow_trident.protocol.records import Exceptions, Status, TxRecord
from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.protocol.topologies import Definition, SpoutDefinition
from airflow_trident.types import Json
from tests.fixtures import single
from tests.fixtures.ledger import OTHER_STAGED, STAGED, Place, claim

OPAQUE = SpoutDefinition(text="Numbers", kind=SpoutKind.OPAQUE)
DEFINITION = Definition(spouts={"lines": OPAQUE, "users": SpoutDefinition(text="Table"), "words": OPAQUE}, states={})
LARGE = 20_000
"""So many names make the metadata too large for the record itself."""


@pytest.fixture
def ledger(place: Place) -> Ledger:
    opened = place.open("words")
    opened.register(DEFINITION)
    return opened


def take(lines: int, *, users: bool = True, names: int = 0) -> MetadataOf:
    """The next so many numbers of stream "lines", and a batch of "users", from which an attempt must not take any."""

    def metadata_of(txid: int, position: dict[str, Json]) -> dict[str, Json]:
        before = position.get("lines") or {"until": 0}
        assert isinstance(before, dict)
        start = before["until"]
        assert isinstance(start, int)
        found: dict[str, Json] = {"users": {"txid": txid, "seen": position.get("users")}} if users else {}
        if lines:
            found["lines"] = {"from": start, "until": start + lines}
            if names:
                found["lines"]["names"] = [f"{txid}-{index}" for index in range(names)]
        return found

    return metadata_of


def begin(ledger: Ledger, count: int, lines: int = 1, **more: object) -> None:
    first = ledger.view(0).next_txid
    for number in range(first, first + count):
        result = single.begin(ledger, claim(number), take(lines, **more), max_pending=100)  # type: ignore[arg-type]
        assert isinstance(result, Begun), result


def attempt(ledger: Ledger, txid: int, lines: int = 1, **more: object) -> TxRecord:
    return single.attempt(ledger, txid, owner="e", metadata_of=take(lines, **more))  # type: ignore[arg-type]


def processed(ledger: Ledger, txid: int, lines: int = 1) -> TxRecord:
    return single.processed(ledger, txid, attempt(ledger, txid, lines).attempt, STAGED)


def commit(ledger: Ledger, txid: int, retention: int = 50) -> None:
    single.committed(ledger, single.gate(ledger, txid, owner="c"), retention=retention)


def tx(ledger: Ledger, txid: int) -> TxRecord:
    found = ledger.view(txid).tx
    assert found is not None
    return found


def lines_of(record: TxRecord) -> object:
    batch = record.metadata.get("lines")
    assert batch is None or isinstance(batch, dict)
    return None if batch is None else (batch["from"], batch["until"])


def without_batch(ledger: Ledger) -> list[int]:
    return [record.txid for record in ledger.transactions() if record.invalidated]


# ---- the batch of an attempt -----------------------------------------------------------------------------------


def test_the_first_attempt_has_the_batch_that_was_recorded_and_needs_nobody_to_choose(ledger: Ledger) -> None:
    begin(ledger, 1)
    recorded = tx(ledger, 1).metadata
    assert single.attempt(ledger, 1, owner="e").metadata == recorded


def test_p2_a_new_attempt_chooses_the_batch_of_opaque_streams_and_keeps_that_of_the_others(ledger: Ledger) -> None:
    begin(ledger, 2)
    users = [tx(ledger, txid).metadata["users"] for txid in (1, 2)]
    attempt(ledger, 1)
    again = attempt(ledger, 1, lines=3)
    assert (again.attempt, lines_of(again)) == (1, (0, 3))
    assert lines_of(attempt(ledger, 2, lines=5)) == (3, 8)
    assert [tx(ledger, txid).metadata["users"] for txid in (1, 2)] == users


def test_p2_the_position_is_that_after_the_transaction_before_also_if_it_has_nothing_of_a_stream(
    ledger: Ledger,
) -> None:
    begin(ledger, 1, lines=4)
    begin(ledger, 2, lines=0)
    attempt(ledger, 3)
    again = attempt(ledger, 3, lines=2)
    assert lines_of(again) == (4, 6)
    assert set(again.carried) == set()
    assert tx(ledger, 2).carried == {"lines": {"from": 0, "until": 4}}


def test_a_source_without_data_gives_an_empty_batch_that_commits(ledger: Ledger) -> None:
    begin(ledger, 2)
    processed(ledger, 1)
    commit(ledger, 1)
    attempt(ledger, 2)
    empty = attempt(ledger, 2, lines=0)
    assert (lines_of(empty), empty.position["lines"]) == (None, {"from": 0, "until": 1})
    single.processed(ledger, 2, empty.attempt, STAGED)
    commit(ledger, 2)
    assert ledger.view(0).pointer.committed == 2


def test_an_attempt_that_has_to_choose_and_cannot_is_refused_and_changes_nothing(ledger: Ledger) -> None:
    begin(ledger, 1)
    attempt(ledger, 1)
    before = ledger.export()
    with pytest.raises(ConfigurationError, match=r"transaction 1 has an opaque spout.*metadata_of"):
        single.attempt(ledger, 1, owner="e")
    assert ledger.export() == before


# ---- L10: what comes later -------------------------------------------------------------------------------------


def test_l10_another_batch_takes_that_of_every_later_uncommitted_transaction_whatever_it_is(ledger: Ledger) -> None:
    begin(ledger, 6)
    for txid in (1, 2, 3, 4, 5):
        processed(ledger, txid)
    ledger.fail(4, 0, "used up")
    ledger.skip(5, "let it pass")
    commit(ledger, 1)
    attempt(ledger, 2, lines=2)
    view = ledger.view(0)
    assert view.exceptions == Exceptions()
    assert without_batch(ledger) == [3, 4, 5, 6]
    for txid, number in ((3, 1), (4, 1), (5, 1), (6, 0)):
        record = tx(ledger, txid)
        assert (record.status, record.attempt, record.staged) == (Status.PROCESSING, number, None)
        assert set(record.metadata) == {"users"}
        assert set(record.carried) == set()
    assert lines_of(tx(ledger, 1)) == (0, 1)


def test_l10_what_one_step_takes_away_and_decides_again_may_be_the_same(ledger: Ledger, place: Place) -> None:
    """Its metadata are large: the chunk that keeps them has the same name as before."""
    until = {1: 1, 2: 2}
    names = [f"{index}" for index in range(LARGE)]

    def chosen(txid: int, position: dict[str, Json]) -> dict[str, Json]:
        return {"lines": {"until": until[txid]}, "users": {"names": [*names]}}

    def first(txid: int, position: dict[str, Json], most: int) -> list[dict[str, Json]]:
        return [chosen(txid + number, position) for number in range(most)]

    begun = ledger.begin(NextBatches([claim(1), claim(2)], first, max_pending=9))
    assert isinstance(begun, tuple)
    before = ledger.attempt([1, 2], owner="e")
    for until[1] in (5, 6):
        again = ledger.attempt([1, 2], owner="e", metadata_of=chosen)
        assert [one.metadata["lines"] for one in again] == [{"until": until[1]}, {"until": 2}]
        assert again[1].metadata == before[1].metadata
    assert tx(place.open("words"), 2).metadata == before[1].metadata


def test_l10_the_same_batch_again_leaves_the_later_ones_alone(ledger: Ledger) -> None:
    begin(ledger, 3)
    for txid in (1, 2, 3):
        processed(ledger, txid)
    attempt(ledger, 1)
    assert without_batch(ledger) == []
    assert [tx(ledger, txid).staged for txid in (2, 3)] == [STAGED, STAGED]


def test_p4_a_late_word_of_an_attempt_whose_batch_was_taken_changes_nothing(ledger: Ledger) -> None:
    begin(ledger, 2)
    attempt(ledger, 1)
    old = attempt(ledger, 2)
    attempt(ledger, 1, lines=2)
    before = ledger.export()
    for late in (
        lambda: single.processed(ledger, 2, old.attempt, STAGED),
        lambda: ledger.fail(2, old.attempt, "x"),
        lambda: ledger.fail(2, old.attempt, "x", retry=True),
    ):
        with pytest.raises(StaleAttemptError):
            late()
    assert ledger.export() == before


def test_l10_a_transaction_without_a_batch_cannot_be_attempted_before_the_one_below_has_one(ledger: Ledger) -> None:
    begin(ledger, 3)
    attempt(ledger, 1)
    attempt(ledger, 1, lines=2)
    before = ledger.export()
    with pytest.raises(InvalidatedError, match=r"transaction 3 .* behind transaction 2, which has no batch"):
        attempt(ledger, 3)
    with pytest.raises(InvalidatedError, match=r"transaction 2 cannot be skipped"):
        ledger.skip(2, "x")
    assert ledger.export() == before
    assert lines_of(attempt(ledger, 2)) == (2, 3)
    assert lines_of(attempt(ledger, 3)) == (3, 4)
    assert without_batch(ledger) == []


def test_l10_a_failed_one_without_a_batch_cannot_be_skipped_either_and_is_replayed(ledger: Ledger) -> None:
    begin(ledger, 2)
    attempt(ledger, 1)
    attempt(ledger, 1, lines=2)
    ledger.fail(2, tx(ledger, 2).attempt, "nobody works on it")
    with pytest.raises(InvalidatedError):
        ledger.skip(2, "x")
    assert lines_of(attempt(ledger, 2)) == (2, 3)
    assert ledger.view(0).exceptions.failed == ()


def test_l10_nothing_begins_behind_a_transaction_without_a_batch(ledger: Ledger) -> None:
    begin(ledger, 2)
    attempt(ledger, 1)
    attempt(ledger, 1, lines=2)
    assert single.begin(ledger, claim(9), take(1), max_pending=100) == Full(oldest=1, pending=2)
    attempt(ledger, 2)
    begin(ledger, 1)
    assert lines_of(tx(ledger, 3)) == (3, 4)


def test_a_transaction_without_a_batch_whose_turn_has_come_is_to_be_emitted_again(ledger: Ledger) -> None:
    begin(ledger, 2)
    processed(ledger, 1)
    processed(ledger, 2)
    processed(ledger, 1, lines=2)
    commit(ledger, 1)
    assert decide_commit(ledger.view(2), 2) == EmitAgain(2)
    with pytest.raises(TransitionError, match="transaction 2 cannot commit now: it has no batch"):
        single.gate(ledger, 2, owner="c")
    processed(ledger, 2)
    commit(ledger, 2)
    assert [lines_of(record) for record in ledger.transactions()] == [(0, 2), (2, 3)]


def test_l10_an_emission_again_by_the_right_of_a_ticket_takes_later_batches_too_and_voids_the_ticket(
    ledger: Ledger,
) -> None:
    begin(ledger, 2)
    processed(ledger, 1)
    processed(ledger, 2)
    ticket = single.gate(ledger, 1, owner="c")
    again = single.attempt(ledger, ticket, owner="c", metadata_of=take(7))
    assert (again.attempt, lines_of(again), again.touched) == (1, (0, 7), True)
    assert without_batch(ledger) == [2]
    with pytest.raises(FencedError):
        single.committed(ledger, ticket)
    single.processed(ledger, 1, 1, OTHER_STAGED)
    new = single.gate(ledger, 1, owner="c")
    assert (new.attempt, new.position["lines"], new.staged) == (1, {"from": 0, "until": 7}, OTHER_STAGED)


# ---- frozen below the pointer ----------------------------------------------------------------------------------


def test_p2_a_batch_that_was_passed_is_frozen(ledger: Ledger) -> None:
    begin(ledger, 3)
    attempt(ledger, 1)
    ledger.skip(1, "x")
    processed(ledger, 2)
    commit(ledger, 2)
    assert ledger.view(0).pointer.committed == 2
    for _ in range(2):
        late = single.attempt(ledger, 1, owner="e")
        assert lines_of(late) == (0, 1)
    assert without_batch(ledger) == []
    single.processed(ledger, 1, late.attempt, STAGED)
    ticket = single.gate(ledger, 1, owner="c")
    assert ticket.late
    assert lines_of(single.attempt(ledger, ticket, owner="c")) == (0, 1)
    assert ledger.view(0).exceptions.late == (1,)


def test_p2_a_skipped_one_above_the_pointer_is_not_frozen_yet(ledger: Ledger) -> None:
    begin(ledger, 3)
    attempt(ledger, 2)
    ledger.skip(2, "x")
    assert lines_of(attempt(ledger, 2, lines=4)) == (1, 5)
    assert without_batch(ledger) == [3]


@pytest.mark.parametrize("retention", [1, 5])
def test_p10_the_transaction_behind_which_the_next_attempt_goes_on_is_kept(ledger: Ledger, retention: int) -> None:
    for number in range(1, 5):
        begin(ledger, 1)
        processed(ledger, number)
        commit(ledger, number, retention=retention)
    begin(ledger, 1)
    attempt(ledger, 5)
    assert lines_of(attempt(ledger, 5, lines=2)) == (4, 6)


# ---- sizes, competition ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 2, 10])
def test_a_whole_window_and_skipped_and_failed_ones_lose_their_batches_in_one_step(ledger: Ledger, window: int) -> None:
    begin(ledger, window)
    for txid in range(2, window + 1):
        processed(ledger, txid)
        if txid % 3 == 0:
            ledger.skip(txid, "x" * 4_000)
        elif txid % 3 == 1:
            ledger.fail(txid, 0, "x" * 4_000)
    attempt(ledger, 1)
    attempt(ledger, 1, lines=2)
    assert without_batch(ledger) == list(range(2, window + 1))
    for txid in range(1, window + 1):
        processed(ledger, txid)
        commit(ledger, txid)
    assert lines_of(tx(ledger, window)) == (window - 1, window)


def test_large_metadata_comes_and_goes_with_the_batch(place: Place, ledger: Ledger) -> None:
    begin(ledger, 3, names=LARGE)
    attempt(ledger, 1, names=LARGE)
    attempt(ledger, 1, lines=2, names=LARGE)
    again = attempt(ledger, 2, lines=3, names=LARGE)
    attempt(ledger, 2, lines=3)
    small = attempt(ledger, 3)
    other = place.open("words")
    assert lines_of(tx(other, 1)) == (0, 2)
    assert len(tx(other, 1).metadata["lines"]["names"]) == LARGE  # type: ignore[index,call-overload,arg-type]
    assert (lines_of(again), lines_of(tx(other, 2)), lines_of(small)) == ((2, 5), (2, 5), (5, 6))
    for txid in (1, 2, 3):
        processed(ledger, txid)
        commit(ledger, txid)
    assert [record.status for record in other.transactions()] == [Status.COMMITTED] * 3


def test_an_attempt_during_which_others_begin_and_attempt_decides_again_on_what_is_there(place: Place) -> None:
    ledger, other = place.open("words"), place.open("words")
    for one in (ledger, other):
        one.register(DEFINITION)
    begin(ledger, 3)
    attempt(ledger, 2)
    moves: list[Callable[[], object]] = [
        lambda: attempt(other, 1),
        lambda: attempt(other, 1, lines=5),
        lambda: attempt(other, 2, lines=2),
        lambda: attempt(other, 3, lines=2),
    ]

    def metadata_of(txid: int, position: dict[str, Json]) -> dict[str, Json] | None:
        while moves and place.name != "oracle":  # one lock: nobody gets in between
            moves.pop(0)()
        return take(1)(txid, position)

    if place.name == "oracle":
        for move in moves:
            move()
    record = single.attempt(ledger, 2, owner="e", metadata_of=metadata_of)
    assert lines_of(record) == (5, 6)
    assert without_batch(ledger) == [3]


def test_a_begin_during_which_the_last_batch_changes_goes_on_behind_the_new_one(place: Place) -> None:
    ledger, other = place.open("words"), place.open("words")
    for one in (ledger, other):
        one.register(DEFINITION)
    begin(ledger, 1)
    attempt(ledger, 1)
    moves: list[Callable[[], object]] = [lambda: attempt(other, 1, lines=5)]

    def metadata_of(txid: int, position: dict[str, Json]) -> dict[str, Json] | None:
        while moves and place.name != "oracle":
            moves.pop(0)()
        return take(1)(txid, position)

    if place.name == "oracle":
        moves.pop(0)()
    result = single.begin(ledger, claim(2), metadata_of, max_pending=5)
    assert isinstance(result, Begun)
    assert result.record is not None
    assert lines_of(result.record) == (5, 6)
