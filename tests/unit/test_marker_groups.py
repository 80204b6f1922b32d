"""What a store decides about transactions that came, or come, together in one step; and that a wrong rule would be
seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_trident.contracts.state import Marker, Verdict, digest_of
from airflow_trident.errors import (
    FencedError,
    GoneOverError,
    HeldError,
    LateBatchError,
    LedgerBehindStateError,
    StateBehindLedgerError,
    TridentError,
)
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.states.core import marker as marker_module
from airflow_trident.states.core.marker import admit, admit_group, group_from_json, group_to_json
from tests.fixtures.state import ticket

APPLY, SKIP = Verdict.APPLY, Verdict.SKIP
OTHER = {"lines": {"to": 77}}


def group(*txids: int, fence: int = 100, **more: Any) -> list[CommitTicket]:
    return [ticket(txid, fence=fence, **more) for txid in txids]


def together(marker: Marker | None, tickets: Sequence[CommitTicket]) -> tuple[Marker, tuple[Verdict, ...]]:
    return marker_module.admit_group(marker, tickets, state="counts", commutes=True)


def alone(marker: Marker | None, txid: int, *, fence: int = 200, commutes: bool = True, **more: Any) -> Any:
    return admit(marker, ticket(txid, fence=fence, **more), state="counts", commutes=commutes)


def after(*txids: int, before: Marker | None = None, fence: int = 100) -> Marker:
    return together(before, group(*txids, fence=fence))[0]


def single(high: int, fence: int = 50) -> Marker:
    return Marker(incarnation="i1", high=high, fence=fence, position={"lines": {"to": high}})


def digests(*txids: int) -> dict[int, str]:
    return {txid: digest_of({"lines": {"to": txid}}) for txid in txids}


# ---- what the marker keeps -------------------------------------------------------------------------------------


def test_a_group_moves_the_marker_to_its_highest_and_is_remembered() -> None:
    assert together(single(2), group(3, 4, 5)) == (
        replace(single(5, fence=100), group=digests(3, 4, 5)),
        (APPLY, APPLY, APPLY),
    )


def test_a_group_of_one_leaves_the_marker_of_a_single_ticket() -> None:
    assert together(single(2), group(3)) == (single(3, fence=100), (APPLY,))
    assert together(after(1, 2), group(3)) == (single(3, fence=100), (APPLY,))


def test_what_was_skipped_between_becomes_a_hole_and_is_not_in_the_group() -> None:
    marker = after(3, 4, 7, before=single(2))
    assert (marker.high, marker.holes, marker.group) == (7, ((5, 6),), digests(3, 4, 7))


def test_the_next_single_ticket_ends_the_group() -> None:
    marker, verdict = alone(after(1, 2, 3), 4)
    assert (marker, verdict) == (single(4, fence=200), APPLY)


def test_the_digest_is_that_of_the_content() -> None:
    assert digest_of({"a": 1, "b": {"c": [1, 2]}}) == digest_of({"b": {"c": [1, 2]}, "a": 1})
    assert digest_of({"a": 1}) != digest_of({"a": 2})
    assert len(digest_of({})) == 32


def test_a_group_is_stored_as_lists_and_read_back() -> None:
    marker = after(1, 2, 5)
    assert group_from_json(group_to_json(marker.group)) == marker.group
    for damaged in ([["x", "d"]], [[1]], [1]):
        with pytest.raises((ValueError, TypeError)):
            group_from_json(damaged)  # type: ignore[arg-type]


# ---- a group comes again, as it was or otherwise ---------------------------------------------------------------


@pytest.mark.parametrize("txid", [3, 4, 5])
def test_each_ticket_of_a_group_alone_is_there_already(txid: int) -> None:
    known = after(3, 4, 5, before=single(2))
    assert alone(known, txid) == (replace(known, fence=200), SKIP)


@pytest.mark.parametrize("txid", [3, 4, 5])
def test_p11_with_another_batch_each_proves_that_the_ledger_is_an_old_copy(txid: int) -> None:
    known = after(3, 4, 5, before=single(2))
    with pytest.raises(LedgerBehindStateError, match=rf"holds another transaction {txid}.*old copy"):
        alone(known, txid, position=OTHER)


@pytest.mark.parametrize("txid", [1, 2])
def test_p11_below_the_group_the_rule_is_that_of_before(txid: int) -> None:
    with pytest.raises(LedgerBehindStateError, match=f"another transaction {txid}"):
        alone(after(3, 4, 5, before=single(2)), txid)


def test_p11_a_txid_that_was_skipped_within_a_group_is_taken_from_a_late_ticket_only() -> None:
    known = after(3, 4, 6, before=single(2))
    with pytest.raises(GoneOverError, match="up to 6, and not 5"):
        alone(known, 5)
    marker, verdict = alone(known, 5, late=True)
    assert (verdict, marker.holes, marker.group) == (APPLY, (), known.group)
    with pytest.raises(LedgerBehindStateError, match="another transaction 5"):
        alone(marker, 5, fence=300)
    with pytest.raises(LateBatchError, match="depends on the order"):
        alone(known, 5, late=True, commutes=False)


def test_a_group_again_under_a_newer_fence_is_there_already() -> None:
    known = after(3, 4, 5, before=single(2))
    assert together(known, group(3, 4, 5, fence=101)) == (replace(known, fence=101), (SKIP, SKIP, SKIP))


def test_a_part_of_a_group_again_leaves_the_rest_known() -> None:
    known = after(3, 4, 5, before=single(2))
    marker, verdicts = together(known, group(3, 4, fence=101))
    assert (marker.group, verdicts) == (known.group, (SKIP, SKIP))
    assert alone(marker, 5)[1] is SKIP


def test_mixed_a_larger_group_takes_what_is_missing_and_remembers_all_of_it() -> None:
    marker, verdicts = together(after(3, 4, before=single(2)), group(3, 4, 5, 6, fence=101))
    assert verdicts == (SKIP, SKIP, APPLY, APPLY)
    assert (marker.high, marker.group) == (6, digests(3, 4, 5, 6))
    for txid in (3, 4, 5, 6):
        assert alone(marker, txid)[1] is SKIP


def test_mixed_after_a_single_one() -> None:
    marker, verdicts = together(single(3), group(3, 4, 5))
    assert verdicts == (SKIP, APPLY, APPLY)
    assert alone(marker, 3)[1] is SKIP


def test_mixed_with_another_batch_nothing_of_the_group_is_admitted() -> None:
    tickets = [ticket(3, fence=101), ticket(4, fence=101, position=OTHER), ticket(5, fence=101)]
    with pytest.raises(LedgerBehindStateError, match="another transaction 4"):
        together(after(3, 4, before=single(2)), tickets)


# ---- beside the other rules ------------------------------------------------------------------------------------


def test_a_zombie_of_a_group_is_refused_and_so_is_one_of_its_members() -> None:
    known, _ = alone(after(3, 4, 5, before=single(2)), 3)
    with pytest.raises(FencedError):
        together(known, group(3, 4, 5))
    with pytest.raises(FencedError):
        alone(known, 5, fence=199)


def test_another_incarnation_is_refused_whatever_the_digests_say() -> None:
    with pytest.raises(LedgerBehindStateError, match="incarnation"):
        alone(after(1, 2, 3), 2, incarnation="i2")


def test_a_member_cannot_be_taken_back_and_who_is_barred_brings_no_group_in() -> None:
    known = after(3, 4, 5, before=single(2))
    with pytest.raises(HeldError, match="holds transaction 4"):
        admit(known, replace(ticket(4, fence=200), bars=True), state="counts", commutes=True)
    barred, _ = admit(single(2), replace(ticket(3, fence=200), bars=True), state="counts", commutes=True)
    with pytest.raises(FencedError):
        together(barred, group(3, 4, 5))
    assert together(barred, group(3, 4, 5, fence=201))[1] == (APPLY, APPLY, APPLY)


def test_a_ticket_may_need_those_before_it_in_its_group() -> None:
    tickets = [ticket(3, fence=100, needs=(1, 2)), ticket(4, fence=100, needs=(1, 2, 3))]
    assert together(single(2), tickets)[1] == (APPLY, APPLY)
    with pytest.raises(StateBehindLedgerError, match="up to 1 and lacks 2"):
        together(single(1), tickets)


def test_what_a_state_lacks_is_seen_before_a_digest_is_looked_at() -> None:
    with pytest.raises(StateBehindLedgerError, match="lacks 5"):
        alone(after(3, 4, 6, before=single(2)), 4, needs=(5,))


def test_below_the_floor_holes_are_forgotten_and_the_group_stays() -> None:
    known = after(3, 4, 6, before=single(2))
    marker, verdict = alone(known, 6, floor=6)
    assert (verdict, marker.holes, marker.group) == (SKIP, (), known.group)


def test_a_spout_that_became_opaque_finds_its_group_there() -> None:
    known = after(3, 4, 5, before=single(2))
    for txid in (3, 5):
        asked = ticket(txid, fence=200, attempt=9)
        assert admit(known, asked, state="counts", commutes=True, opaque=True) == (replace(known, fence=200), SKIP)
    with pytest.raises(LedgerBehindStateError):
        admit(known, ticket(4, fence=200, attempt=9, position=OTHER), state="counts", commutes=True, opaque=True)


# ---- against a plain model -------------------------------------------------------------------------------------


class Model:
    """A ledger that never lies, and a state of its own: which txids are in it, with which batch."""

    def __init__(self) -> None:
        self.marker: Marker | None = None
        self.held: dict[int, int] = {}
        self.committed = 0
        self.fence = 0

    def gate(self, last: int, batch: int) -> list[CommitTicket]:
        """All above the pointer up to `last`, as one group."""
        self.fence += 1
        txids = range(self.committed + 1, last + 1)
        return [ticket(txid, fence=self.fence, position={"to": txid, "batch": batch}) for txid in txids]

    def apply(self, tickets: Sequence[CommitTicket]) -> None:
        marker, verdicts = together(self.marker, tickets)
        for one, verdict in zip(tickets, verdicts, strict=True):
            assert verdict is (SKIP if one.txid in self.held else APPLY), f"transaction {one.txid} twice or never"
        self.marker = marker
        self.held.update({one.txid: 0 for one in tickets})
        assert {txid for txid in range(1, 40) if marker.has(txid)} == set(self.held)


steps = st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["committed", "killed"])), max_size=25)


def never_twice_and_never_blocked(taken: list[tuple[int, str]]) -> None:
    model = Model()
    for many, end in taken:
        upto = min(model.committed + many, 30)
        if upto == model.committed:
            return
        model.apply(model.gate(upto, batch=0))
        if end == "committed":
            model.committed = upto


def a_restored_ledger_is_refused(many: int, changed: int) -> None:
    model = Model()
    model.apply(model.gate(many, batch=0))
    tickets = [one if one.txid != changed else replace(one, position=OTHER) for one in model.gate(many, batch=0)]
    with pytest.raises(LedgerBehindStateError):
        together(model.marker, tickets)


@given(steps)
def test_any_cut_into_groups_with_any_kills_takes_each_once(taken: list[tuple[int, str]]) -> None:
    never_twice_and_never_blocked(taken)


@given(st.integers(1, 6), st.integers(1, 6))
def test_p11_one_changed_batch_anywhere_in_a_group_is_seen(many: int, changed: int) -> None:
    a_restored_ledger_is_refused(max(many, changed), min(many, changed))


# ---- mutants of the rule ---------------------------------------------------------------------------------------


def forgets(original: Any) -> Any:
    """No group is kept: the rule of before."""
    return lambda *args, **named: (replace(original(*args, **named)[0], group={}), original(*args, **named)[1])


def keeps_new_ones_only(marker: Marker | None, tickets: Sequence[CommitTicket], **named: Any) -> Any:
    found, verdicts = admit_group(marker, tickets, **named)
    new = {one.txid for one, verdict in zip(tickets, verdicts, strict=True) if verdict is APPLY}
    return (replace(found, group={txid: digest for txid, digest in found.group.items() if txid in new}), verdicts)


def keeps_the_last_tickets_only(marker: Marker | None, tickets: Sequence[CommitTicket], **named: Any) -> Any:
    found, verdicts = admit_group(marker, tickets, **named)
    own = {one.txid: digest_of(one.position) for one in tickets}
    return replace(found, group=own if len(tickets) > 1 else {}), verdicts


MUTANTS: dict[str, tuple[str, Any]] = {
    "no group is kept": ("admit_group", forgets(admit_group)),
    "only what is new is kept": ("admit_group", keeps_new_ones_only),
    "a part that comes again hides the rest": ("admit_group", keeps_the_last_tickets_only),
    "any batch has the same digest": ("digest_of", lambda position: "0" * 32),
    "a member is there whatever it is": ("_require_own", lambda *args: None),
}


def lives(check: Callable[[], None]) -> bool:
    try:
        check()
    except (AssertionError, TridentError, pytest.fail.Exception):
        return False
    return True


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_rule_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[Callable[[], None]] = [
        lambda: a_restored_ledger_is_refused(4, 2),
        lambda: never_twice_and_never_blocked([(2, "killed"), (4, "killed"), (1, "committed"), (3, "committed")]),
        lambda: never_twice_and_never_blocked([(5, "killed"), (2, "killed"), (5, "killed"), (1, "committed")] * 2),
        lambda: never_twice_and_never_blocked([(3, "killed"), (2, "committed"), (3, "killed"), (1, "committed")]),
    ]
    assert all(map(lives, checks)), "the rule as it is"
    where, wrong = MUTANTS[name]
    monkeypatch.setattr(marker_module, where, wrong)
    assert not all(map(lives, checks))
