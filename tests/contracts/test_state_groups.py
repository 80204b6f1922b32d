"""T12 of `contracts.state`: several transactions in one step, over every state that promises it and some that lose
answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_trident.contracts.state import Applied, Marker, State, StateFactory, StateSpec
from airflow_trident.errors import (
    ConfigurationError,
    FencedError,
    InseparableError,
    LedgerBehindStateError,
    StateBehindLedgerError,
)
from airflow_trident.operations.aggregators import Count, Max, Min, Sum
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.states.files.sink import FileSink
from airflow_trident.states.memory import MemoryState
from airflow_trident.states.redis.state import NonTransactionalRedisState
from tests.fixtures.open_state import batches, longest, one_by_one, tickets
from tests.fixtures.redis import settings_of_a_new_database
from tests.fixtures.state import (
    Product,
    appended,
    apply,
    apply_group,
    batch,
    combined,
    content,
    counts,
    product,
    ticket,
)

ALREADY, APPLIED = Applied.ALREADY, Applied.APPLIED
OTHER = {"lines": {"to": 77}}


@pytest.fixture
def state(spec: StateSpec) -> Iterator[State]:
    with spec.factory.make_state(spec) as opened:
        yield opened


# ---- applied once ----------------------------------------------------------------------------------------------


def test_t12_a_group_is_applied_as_the_same_batches_one_by_one_would_be(state: State, spec: StateSpec) -> None:
    apply(state, ticket(1), *batches(spec, 1))
    assert apply_group(state, tickets(2, 3, 4), batches(spec, 2, 3, 4)) == (APPLIED,) * 3
    assert content(state) == one_by_one(spec, 1, 2, 3, 4)
    marker = state.marker()
    assert marker is not None
    assert set(marker.group) == {2, 3, 4}
    assert replace(marker, group={}) == Marker(incarnation="i1", high=4, fence=100, position={"lines": {"to": 4}})


def test_t12_a_group_may_be_the_first_of_all_and_leaves_out_what_was_skipped(state: State, spec: StateSpec) -> None:
    apply_group(state, tickets(2, 3, 6), batches(spec, 2, 3, 6))
    assert content(state) == one_by_one(spec, 2, 3, 6)
    marker = state.marker()
    assert marker is not None
    assert (marker.high, marker.holes) == (6, ((1, 1), (4, 5)))
    assert apply(state, ticket(5, fence=101, late=True), *batches(spec, 5)) is APPLIED
    assert content(state) == one_by_one(spec, 2, 3, 5, 6)
    assert state.apply(ticket(3, fence=102), *batches(spec, 3)) is ALREADY


def test_t12_a_group_of_one_is_a_transaction(state: State, spec: StateSpec) -> None:
    assert apply_group(state, tickets(1), batches(spec, 1)) == (APPLIED,)
    assert state.marker() == Marker(incarnation="i1", high=1, fence=100, position={"lines": {"to": 1}})
    assert apply_group(state, tickets(1), batches(spec, 1)) == (ALREADY,)
    assert content(state) == one_by_one(spec, 1)


def test_t12_empty_batches_move_the_marker(state: State, spec: StateSpec) -> None:
    apply_group(state, tickets(1, 2), [batch(spec), batch(spec)])
    marker = state.marker()
    assert marker is not None
    assert (marker.high, content(state)) == (2, {})


# ---- it comes again: killed after the step, by another committer, by a zombie ----------------------------------


@pytest.mark.parametrize("order", [(2, 3, 4), (4, 3, 2)])
def test_t12_after_the_step_each_ticket_alone_is_there_already(
    state: State, spec: StateSpec, order: Sequence[int]
) -> None:
    apply(state, ticket(1), *batches(spec, 1))
    apply_group(state, tickets(2, 3, 4), batches(spec, 2, 3, 4))
    before = content(state)
    for fence, txid in enumerate(order, start=101):
        assert state.apply(ticket(txid, fence=fence), *batches(spec, txid)) is ALREADY
        marker = state.marker()
        assert marker is not None
        assert (marker.high, marker.fence) == (4, fence)
    assert apply(state, ticket(5, fence=110), *batches(spec, 5)) is APPLIED
    assert content(state) == one_by_one(spec, 1, 2, 3, 4, 5)
    assert content(state) != before


def test_t12_who_opens_the_state_next_knows_the_group(factory: StateFactory, spec: StateSpec) -> None:
    with factory.make_state(spec) as first:
        apply_group(first, tickets(1, 2, 3), batches(spec, 1, 2, 3))
        known = first.marker()
    with factory.make_state(spec) as second:
        assert second.marker() == known
        assert second.apply(ticket(2, fence=101), *batches(spec, 2)) is ALREADY
        assert second.apply_group(tickets(1, 2, 3, fence=102), batches(spec, 1, 2, 3)) == (ALREADY,) * 3
        assert content(second) == one_by_one(spec, 1, 2, 3)


@pytest.mark.parametrize("txid", [1, 2, 3])
def test_t12_one_of_a_group_with_another_batch_is_refused_and_changes_nothing(
    state: State, spec: StateSpec, txid: int
) -> None:
    apply_group(state, tickets(1, 2, 3), batches(spec, 1, 2, 3))
    before = state.marker(), content(state)
    changed = [ticket(one, fence=101, **({"position": OTHER} if one == txid else {})) for one in (1, 2, 3)]
    with pytest.raises(LedgerBehindStateError, match=f"another transaction {txid}.*old copy"):
        state.apply(changed[txid - 1], *batches(spec, txid))
    with pytest.raises(LedgerBehindStateError, match=f"another transaction {txid}.*old copy"):
        state.apply_group(changed, batches(spec, 1, 2, 3))
    assert (state.marker(), content(state)) == before


def test_t12_once_the_next_one_is_applied_alone_the_group_is_forgotten(state: State, spec: StateSpec) -> None:
    apply_group(state, tickets(1, 2), batches(spec, 1, 2))
    apply(state, ticket(3, fence=101), *batches(spec, 3))
    with pytest.raises(LedgerBehindStateError, match="old copy"):
        state.apply(ticket(2, fence=102), *batches(spec, 2))


def test_t12_a_zombie_of_the_group_is_refused_and_changes_nothing(state: State, spec: StateSpec) -> None:
    apply(state, ticket(1, fence=101), *batches(spec, 1))
    before = state.marker(), content(state)
    with pytest.raises(FencedError, match="newer committer"):
        state.apply_group(tickets(1, 2, 3), batches(spec, 1, 2, 3))
    with pytest.raises(FencedError, match="newer committer"):
        state.apply_group(tickets(2, 3), batches(spec, 2, 3))
    assert (state.marker(), content(state)) == before


def test_t12_who_was_barred_brings_no_group_in(state: State, spec: StateSpec) -> None:
    state.bar(ticket(2, fence=101))
    with pytest.raises(FencedError):
        state.apply_group(tickets(1, 2, 3), batches(spec, 1, 2, 3))
    assert content(state) == {}
    assert apply_group(state, tickets(1, 2, 3, fence=102), batches(spec, 1, 2, 3)) == (APPLIED,) * 3


def test_t12_a_state_that_lacks_what_is_committed_takes_nothing_of_a_group(state: State, spec: StateSpec) -> None:
    apply(state, ticket(1), *batches(spec, 1))
    before = state.marker(), content(state)
    with pytest.raises(StateBehindLedgerError, match="up to 1 and lacks 2"):
        state.apply_group(tickets(3, 4, needs=(1, 2)), batches(spec, 3, 4))
    assert (state.marker(), content(state)) == before
    asked = [ticket(2, fence=100, needs=(1,)), ticket(3, fence=100, needs=(1, 2))]
    assert apply_group(state, asked, batches(spec, 2, 3)) == (APPLIED,) * 2


# ---- some of it is there ---------------------------------------------------------------------------------------


def test_t12_mixed_what_is_missing_is_applied_and_all_of_it_is_known(state: State, spec: StateSpec) -> None:
    apply_group(state, tickets(1, 2), batches(spec, 1, 2))
    said = apply_group(state, tickets(1, 2, 3, 4, fence=101), batches(spec, 1, 2, 3, 4))
    assert said in ((ALREADY, ALREADY, APPLIED, APPLIED), (APPLIED,) * 4)
    assert content(state) == one_by_one(spec, 1, 2, 3, 4)
    for fence, txid in enumerate((1, 2, 3, 4), start=102):
        assert state.apply(ticket(txid, fence=fence), *batches(spec, txid)) is ALREADY
    assert content(state) == one_by_one(spec, 1, 2, 3, 4)


def test_t12_a_smaller_group_leaves_the_rest_of_a_larger_one_known(state: State, spec: StateSpec) -> None:
    apply_group(state, tickets(1, 2, 3, 4), batches(spec, 1, 2, 3, 4))
    assert state.apply_group(tickets(1, 2, fence=101), batches(spec, 1, 2)) == (ALREADY,) * 2
    said = apply_group(state, tickets(3, 4, 5, fence=102), batches(spec, 3, 4, 5))
    assert said in ((ALREADY, ALREADY, APPLIED), (APPLIED,) * 3)
    assert content(state) == one_by_one(spec, 1, 2, 3, 4, 5)


# ---- one batch for all -----------------------------------------------------------------------------------------


def test_t12_a_batch_that_was_merged_by_key_is_applied_once_for_all(factory: StateFactory) -> None:
    spec = counts(factory)
    whole = batch(spec, ("a", 6), ("b", 5))
    with factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, ("a", 1)))
        assert apply_group(state, tickets(2, 3, 4), [whole]) == (APPLIED,) * 3
        assert state.apply_group(tickets(2, 3, 4, fence=101), [whole]) == (ALREADY,) * 3
        assert state.apply(ticket(3, fence=102), batch(spec, ("a", 2))) is ALREADY
        assert content(state) == {("a",): (7,), ("b",): (5,)}


def test_t12_a_batch_that_was_merged_by_key_is_refused_where_a_part_is_there(factory: StateFactory) -> None:
    spec = counts(factory)
    with factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, ("a", 1)))
        apply(state, ticket(2), batch(spec, ("a", 1)))
        before = state.marker(), content(state)
        with pytest.raises(InseparableError, match=r"2 to 4 were staged as one.*'counts' holds 2 already.*Nothing"):
            state.apply_group(tickets(2, 3, 4), [batch(spec, ("a", 6))])
        assert (state.marker(), content(state)) == before


def test_t12_what_is_not_exact_cannot_be_merged_by_key(factory: StateFactory) -> None:
    spec = product(factory)
    with factory.make_state(spec) as state, pytest.raises(ConfigurationError, match=r"merged by key.*one by one"):
        state.apply_group(tickets(1, 2), [batch(spec, ("a", 6))])


def test_what_is_exact_in_any_order_is_known_by_aggregator_and_type() -> None:
    factory = MemoryState()
    exact = combined(factory, "x double", "d decimal(9,2), n int, s string", Sum(), Count(), Min())
    assert exact.merges_exactly
    for kind, aggregator in (("double", Sum()), ("float", Max()), ("array<long>", Max()), ("long", Product())):
        assert not combined(factory, "word string", f"n long, v {kind}", Count(), aggregator).merges_exactly
    assert not appended(factory).merges_exactly
    assert not longest(factory).merges_exactly


# ---- what cannot be a group ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ([], "do not rise"),
        ([ticket(2, fence=9), ticket(1, fence=9)], "do not rise"),
        ([ticket(2, fence=9), ticket(2, fence=9)], "do not rise"),
        ([ticket(1, fence=9), ticket(2, fence=10)], "several commits"),
        ([ticket(1, fence=9), ticket(2, fence=9, incarnation="i2")], "several commits"),
        ([ticket(1, fence=9), ticket(2, fence=9, late=True)], "late"),
        ([ticket(1, fence=9), replace(ticket(2, fence=9), bars=True)], "only bars"),
    ],
)
def test_t12_tickets_that_are_not_one_step_are_refused(
    state: State, spec: StateSpec, asked: list[CommitTicket], why: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"{why}.*one by one"):
        state.apply_group(asked, [batch(spec)] * len(asked))
    assert (state.marker(), content(state)) == (None, {})


def test_t12_each_ticket_has_a_batch(state: State, spec: StateSpec) -> None:
    with pytest.raises(ConfigurationError, match="there are 2 batches"):
        state.apply_group(tickets(1, 2, 3), [batch(spec)] * 2)


def test_t12_a_state_that_must_take_its_highest_batch_back_takes_no_groups(factory: StateFactory) -> None:
    spec = replace(counts(factory), opaque=True)
    assert not spec.takes_groups
    with factory.make_state(spec) as state:
        with pytest.raises(ConfigurationError, match="newer attempt may bring another batch"):
            state.apply_group(tickets(1, 2), batches(spec, 1, 2))
        assert (state.marker(), content(state)) == (None, {})


def test_t12_who_takes_one_transaction_at_a_time_says_so(tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path))
    plain = NonTransactionalRedisState(**settings_of_a_new_database())
    for spec in (combined(sink, "", "word string"), counts(plain)):
        assert not spec.takes_groups
        with (
            spec.factory.make_state(spec) as state,
            pytest.raises(ConfigurationError, match="one transaction at a time"),
        ):
            state.apply_group(tickets(1, 2), [batch(spec), batch(spec)])
