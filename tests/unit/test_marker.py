"""What a store decides about a ticket: every kind of ticket against every kind of marker, and against a plain model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_trident.contracts.state import Marker, Verdict
from airflow_trident.errors import (
    FencedError,
    GoneOverError,
    LateBatchError,
    LedgerBehindStateError,
    StateBehindLedgerError,
)
from airflow_trident.protocol.records import NO_ATTEMPT
from airflow_trident.states.core.marker import admit
from airflow_trident.types import Json
from tests.fixtures.state import ticket


def decide(
    marker: Marker | None, txid: int, *, fence: int = 100, commutes: bool = True, opaque: bool = False, **more: object
) -> object:
    asked = ticket(txid, fence=fence, **more)  # type: ignore[arg-type]
    return admit(marker, asked, state="counts", commutes=commutes, opaque=opaque)


def marker(
    high: int, *holes: tuple[int, int], fence: int = 50, attempt: int = NO_ATTEMPT, to: int | None = None
) -> Marker:
    position: dict[str, Json] = {"lines": {"to": high if to is None else to}}
    return Marker(incarnation="i1", high=high, fence=fence, holes=holes, position=position, attempt=attempt)


def test_the_first_ticket_of_all_is_applied() -> None:
    assert decide(None, 1) == (marker(1, fence=100), Verdict.APPLY)


def test_a_state_that_joins_late_has_a_hole_before_it() -> None:
    assert decide(None, 4) == (marker(4, (1, 3), fence=100), Verdict.APPLY)


def test_the_next_txid_is_applied() -> None:
    assert decide(marker(3), 4) == (marker(4, fence=100), Verdict.APPLY)


def test_txids_that_are_passed_over_become_a_hole() -> None:
    assert decide(marker(3, (1, 1)), 7) == (marker(7, (1, 1), (4, 6), fence=100), Verdict.APPLY)


def test_an_applied_txid_is_not_wanted_and_its_higher_fence_is_recorded() -> None:
    assert decide(marker(3), 3) == (marker(3, fence=100), Verdict.SKIP)
    assert decide(marker(3), 2, late=True) == (marker(3, fence=100), Verdict.SKIP)


def test_an_equal_fence_is_the_same_committer_again() -> None:
    assert decide(marker(3), 3, fence=50) == (marker(3), Verdict.SKIP)


@pytest.mark.parametrize("txid", [2, 3, 4])
def test_a_lower_fence_is_refused_for_new_and_for_applied_txids(txid: int) -> None:
    with pytest.raises(FencedError, match=r"newer committer \(fence 50\).*fence 49.*Nothing was changed"):
        decide(marker(3), txid, fence=49)


@pytest.mark.parametrize("txid", [2, 4])
def test_another_incarnation_is_refused_whatever_its_fence(txid: int) -> None:
    with pytest.raises(LedgerBehindStateError, match=r"belongs to incarnation i1.*repair"):
        decide(marker(3), txid, incarnation="i2", fence=10**9)


def test_an_applied_txid_with_another_batch_proves_that_the_ledger_is_an_old_copy() -> None:
    with pytest.raises(LedgerBehindStateError, match=r"holds another transaction 3.*old copy.*Nothing was changed"):
        decide(marker(3), 3, position={"lines": {"to": 4}})


def test_a_txid_below_the_highest_applied_one_that_was_never_left_out_proves_the_same() -> None:
    with pytest.raises(LedgerBehindStateError, match="holds another transaction 2"):
        decide(marker(3), 2)


def test_a_hole_is_filled_by_a_late_ticket_only_because_a_restored_ledger_gives_its_txid_to_new_data() -> None:
    with pytest.raises(GoneOverError, match="up to 3, and not 2"):
        decide(marker(3, (2, 2)), 2)


def test_a_txid_that_was_left_out_is_taken_from_a_late_ticket_only() -> None:
    with pytest.raises(GoneOverError, match="up to 9, and not 2"):
        decide(marker(9, (2, 2)), 2)


@pytest.mark.parametrize(
    ("holes", "txid", "left"),
    [
        (((2, 2),), 2, ()),
        (((2, 5),), 2, ((3, 5),)),
        (((2, 5),), 5, ((2, 4),)),
        (((2, 5),), 3, ((2, 2), (4, 5))),
        (((1, 1), (3, 3), (5, 5)), 3, ((1, 1), (5, 5))),
    ],
)
def test_a_late_txid_fills_its_hole_and_the_position_stays(
    holes: tuple[tuple[int, int], ...], txid: int, left: tuple[tuple[int, int], ...]
) -> None:
    assert decide(marker(9, *holes), txid, late=True) == (marker(9, *left, fence=100), Verdict.APPLY)


def test_a_late_txid_is_refused_where_order_matters() -> None:
    with pytest.raises(LateBatchError, match=r"comes late \(after 9\).*depends on the order.*rebuilding"):
        decide(marker(9, (2, 2)), 2, late=True, commutes=False)


def test_where_order_matters_an_applied_txid_is_still_a_success() -> None:
    assert decide(marker(9), 2, late=True, commutes=False) == (marker(9, fence=100), Verdict.SKIP)


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 5)), max_size=60))
def test_any_sequence_of_tickets_ends_as_a_plain_set_of_applied_txids(tickets: list[tuple[int, int]]) -> None:
    known: Marker | None = None
    applied: set[int] = set()
    fence = 0
    for txid, offered in tickets:
        if known is not None and offered < fence:
            with pytest.raises(FencedError):
                decide(known, txid, fence=offered, late=True)
            continue
        result = decide(known, txid, fence=offered, late=True)
        assert isinstance(result, tuple)
        known, verdict = result
        assert verdict is (Verdict.SKIP if txid in applied else Verdict.APPLY)
        applied.add(txid)
        fence = offered
        assert known.fence == fence
        assert known.high == max(applied)
        assert known.position == {"lines": {"to": known.high}}
        assert {number for number in range(1, 15) if known.has(number)} == applied
        flat = [number for hole in known.holes for number in hole]
        assert flat == sorted(flat), "holes are in order and do not overlap"


# ---- where a spout is opaque -----------------------------------------------------------------------------------


def test_an_opaque_marker_knows_the_attempt_of_the_highest_txid() -> None:
    assert decide(None, 1, attempt=2, opaque=True) == (marker(1, fence=100, attempt=2), Verdict.APPLY)
    assert decide(marker(3, attempt=5), 4, attempt=1, opaque=True) == (marker(4, fence=100, attempt=1), Verdict.APPLY)


def test_the_highest_txid_is_replaced_by_a_newer_attempt_whatever_its_batch() -> None:
    assert decide(marker(3, (1, 1), attempt=1), 3, attempt=2, opaque=True, position={"lines": {"to": 9}}) == (
        marker(3, (1, 1), fence=100, attempt=2, to=9),
        Verdict.REPLACE,
    )


def test_the_same_attempt_again_is_there_already() -> None:
    assert decide(marker(3, attempt=1), 3, attempt=1, opaque=True) == (
        marker(3, fence=100, attempt=1),
        Verdict.SKIP,
    )


def test_an_older_attempt_comes_with_a_lower_fence_and_is_refused() -> None:
    with pytest.raises(FencedError, match=r"fence 49.*Nothing was changed"):
        decide(marker(3, attempt=1), 3, fence=49, attempt=0, opaque=True)


@pytest.mark.parametrize(("attempt", "to"), [(0, 3), (1, 4)])
def test_an_older_attempt_or_the_same_with_another_batch_proves_a_restored_ledger(attempt: int, to: int) -> None:
    with pytest.raises(LedgerBehindStateError, match="holds another transaction 3"):
        decide(marker(3, attempt=1), 3, attempt=attempt, opaque=True, position={"lines": {"to": to}})


def test_only_the_highest_txid_can_be_replaced() -> None:
    with pytest.raises(LedgerBehindStateError, match="holds another transaction 2"):
        decide(marker(3, attempt=1), 2, attempt=7, opaque=True)


def test_a_late_batch_leaves_the_attempt_of_the_highest_txid() -> None:
    assert decide(marker(9, (2, 2), attempt=1), 2, late=True, attempt=6, opaque=True) == (
        marker(9, fence=100, attempt=1),
        Verdict.APPLY,
    )


def test_what_was_applied_before_the_spout_was_opaque_cannot_be_replaced() -> None:
    assert decide(marker(3), 3, attempt=2, opaque=True) == (marker(3, fence=100), Verdict.SKIP)
    with pytest.raises(LedgerBehindStateError):
        decide(marker(3), 3, attempt=2, opaque=True, position={"lines": {"to": 4}})


def test_a_topology_that_is_opaque_no_more_goes_on() -> None:
    assert decide(marker(3, attempt=5), 3, attempt=1) == (marker(3, fence=100, attempt=5), Verdict.SKIP)
    assert decide(marker(3, attempt=5), 4) == (marker(4, fence=100), Verdict.APPLY)


# ---- a state that is behind its ledger -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "txid", "needs", "lacks"),
    [
        (None, 4, (1, 2, 3), "holds nothing and lacks 1 to 3"),
        (None, 4, (3,), "lacks 3"),
        (marker(2), 6, (1, 2, 3, 4, 5), "up to 2 and lacks 3 to 5"),
        (marker(9, (3, 3), (5, 6)), 10, (1, 2, 3, 4, 6, 7), "lacks 3, 6"),
        (marker(5, (3, 3)), 5, (1, 3, 4), "lacks 3"),  # the batch itself is there already
    ],
)
def test_p11_what_a_state_lacks_is_named_and_nothing_is_taken(
    known: Marker | None, txid: int, needs: tuple[int, ...], lacks: str
) -> None:
    for late in (False, True):
        with pytest.raises(
            StateBehindLedgerError, match=rf"'counts' of topology 'words'.*{lacks}.*rebuild words --state"
        ):
            decide(known, txid, needs=needs, late=late)


def test_a_fenced_committer_learns_that_first() -> None:
    with pytest.raises(FencedError):
        decide(marker(2), 6, fence=49, needs=(5,))


@pytest.mark.parametrize(("known", "needs"), [(None, ()), (marker(9, (2, 4), (6, 6)), (1, 5, 7, 8, 9))])
def test_a_gap_that_the_ledger_knows_of_is_a_gap(known: Marker | None, needs: tuple[int, ...]) -> None:
    result = decide(known, 10, needs=needs)
    assert isinstance(result, tuple)
    assert result[1] is Verdict.APPLY


@pytest.mark.parametrize(
    ("floor", "left"), [(0, ((2, 4), (6, 6), (8, 8))), (4, ((4, 4), (6, 6), (8, 8))), (7, ((8, 8),)), (10, ())]
)
def test_below_the_floor_no_hole_is_kept(floor: int, left: tuple[tuple[int, int], ...]) -> None:
    known = marker(9, (2, 4), (6, 6), (8, 8))
    assert decide(known, 10, floor=floor) == (marker(10, *left, fence=100), Verdict.APPLY)
    assert decide(known, 9, floor=floor) == (marker(9, *left, fence=100), Verdict.SKIP)
    assert decide(marker(9, (2, 4), (6, 6), (8, 8), attempt=1), 9, floor=floor, attempt=2, opaque=True) == (
        marker(9, *left, fence=100, attempt=2),
        Verdict.REPLACE,
    )
    assert decide(None, 10, floor=8) == (marker(10, (8, 9), fence=100), Verdict.APPLY)
