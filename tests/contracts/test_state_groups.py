"""T12 of `contracts.state`: several transactions in one step, over every state that promises it and some that lose
answers."""

from __future__ import annotations

import json
import random
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_trident.contracts.state import Applied, Marker, State, StateFactory, StateSpec, Verdict
from airflow_trident.errors import (
    ConfigurationError,
    CorruptRecordError,
    FencedError,
    InseparableError,
    LedgerBehindStateError,
    StateBehindLedgerError,
    UserCodeError,
)
from airflow_trident.operations.aggregators import Count, Max, Min, Sum
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.states.core.marker import admit, group_from_json
from airflow_trident.states.delta.runs import Footer
from airflow_trident.states.files.sink import FileSink
from airflow_trident.states.memory import MemoryState
from airflow_trident.states.redis.plain import NonTransactionalRedisState
from airflow_trident.states.redis.record import encode_record
from airflow_trident.states.sql.sqlite import SqliteState
from airflow_trident.types import parse_declared
from tests.contracts.test_states import at_once
from tests.fixtures.redis import settings_of_a_new_database
from tests.fixtures.state import (
    FACTORIES,
    Product,
    appended,
    apply,
    apply_group,
    batch,
    combined,
    content,
    counts,
    keep_longest,
    product,
    table_sink,
    ticket,
)

ALREADY, APPLIED = Applied.ALREADY, Applied.APPLIED
OTHER = {"lines": {"to": 77}}
Rows = list[tuple[Any, ...]]


@pytest.fixture(params=FACTORIES)
def factory(request: pytest.FixtureRequest, tmp_path: Path) -> StateFactory:
    return FACTORIES[request.param](tmp_path)


SPECS: dict[str, Callable[[StateFactory], StateSpec]] = {"added by the store": counts, "merged by us": product}


@pytest.fixture(params=SPECS)
def spec(request: pytest.FixtureRequest, factory: StateFactory) -> StateSpec:
    return SPECS[request.param](factory)


@pytest.fixture
def state(spec: StateSpec) -> Iterator[State]:
    with spec.factory.make_state(spec) as opened:
        yield opened


def tickets(*txids: int, fence: int = 100, **more: Any) -> list[CommitTicket]:
    return [ticket(txid, fence=fence, **more) for txid in txids]


def batches(spec: StateSpec, *txids: int) -> list[pa.Table]:
    return [batch(spec, ("every", 2), (f"w{txid % 3}", 3), (None, txid)) for txid in txids]


def one_by_one(spec: StateSpec, *txids: int) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """What these transactions make of an empty state."""
    plain = replace(spec, factory=MemoryState("one by one"))
    try:
        with plain.factory.make_state(plain) as state:
            for txid, rows in zip(txids, batches(spec, *txids), strict=True):
                state.apply(ticket(txid), rows)
            return content(state)
    finally:
        MemoryState("one by one").forget()


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


# ---- all or nothing --------------------------------------------------------------------------------------------


class RefusesSeven(Product):
    def combine(self, left: int, right: int) -> int:
        if right == 7:
            raise ZeroDivisionError("no")
        return left * right


def test_t12_when_one_batch_fails_nothing_of_the_group_is_applied(factory: StateFactory) -> None:
    spec = combined(factory, "word string", "n long", RefusesSeven())
    with factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, ("a", 2)))
        before = state.marker(), content(state)
        given = [batch(spec, ("a", 3)), batch(spec, ("a", 7)), batch(spec, ("a", 5))]
        with pytest.raises(UserCodeError, match="raised ZeroDivisionError"):
            state.apply_group(tickets(2, 3, 4), given)
        assert (state.marker(), content(state)) == before


@pytest.mark.parametrize("kind", ["long", "decimal(18,0)"])
def test_t12_a_sum_that_overflows_fails_the_group(factory: StateFactory, kind: str) -> None:
    spec = combined(factory, "word string", f"total {kind}", Sum())
    most = 2**63 - 1 if kind == "long" else Decimal(10**18 - 1)
    with factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, ("a", most)))
        before = state.marker(), content(state)
        with pytest.raises(UserCodeError, match=r"does not fit its field"):
            state.apply_group(tickets(2, 3), [batch(spec, ("b", 1)), batch(spec, ("a", 1))])
        assert (state.marker(), content(state)) == before


@pytest.mark.parametrize("kind", ["long", "decimal(18,0)"])
def test_t12_batches_that_fit_only_with_what_is_stored_are_applied_or_refused(factory: StateFactory, kind: str) -> None:
    spec = combined(factory, "word string", f"total {kind}", Sum())
    most = 2**63 - 1 if kind == "long" else Decimal(10**18 - 1)
    with factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, ("a", -5)))
        before = state.marker(), content(state)
        try:
            apply_group(state, tickets(2, 3), [batch(spec, ("a", most)), batch(spec, ("a", 3))])
        except UserCodeError:
            assert (state.marker(), content(state)) == before
            for txid, value in ((2, most), (3, 3)):
                apply(state, ticket(txid, fence=101), batch(spec, ("a", value)))
        assert content(state) == {("a",): (most - 2,)}


# ---- any cut, any store ----------------------------------------------------------------------------------------


def extremes(factory: StateFactory) -> StateSpec:
    return combined(factory, "word string", "n int, d decimal(20,2), low long, high string", Sum(), Sum(), Min(), Max())


def reals(factory: StateFactory) -> StateSpec:
    return combined(factory, "word string, x double", "s double, n long, top double", Sum(), Count(), Max())


def total(factory: StateFactory) -> StateSpec:
    return combined(factory, "", "n long", Sum())


def longest(factory: StateFactory) -> StateSpec:
    return replace(combined(factory, "word string", "line string"), updater=keep_longest)


def _quarter(chance: random.Random) -> Any:
    return chance.choice([0.25, -0.5, float("nan"), 1.75])


WORDS = ["a", "b", "é", None]
CUTS: dict[str, tuple[Callable[[StateFactory], StateSpec], Callable[[random.Random], tuple[Any, ...]]]] = {
    "added": (counts, lambda c: (c.choice(WORDS), c.randrange(-9, 99))),
    "multiplied": (product, lambda c: (c.choice(WORDS), c.choice([-1, 1, 2]))),
    "extremes": (
        extremes,
        lambda c: (
            c.choice(WORDS),
            c.choice([0, 5, -7]),
            c.choice([Decimal("0.25"), Decimal(-3)]),
            c.choice([None, 2**62, -1]),
            c.choice([None, "x", "Y", "ä"]),
        ),
    ),
    "reals": (reals, lambda c: (c.choice(WORDS), c.choice([0.0, -0.0, 1.5, None]), _quarter(c), 1, _quarter(c))),
    "in order": (appended, lambda c: (c.choice(WORDS), c.choice("xyz"), 1)),
    "without keys": (total, lambda c: (c.randrange(9),)),
    "updated": (longest, lambda c: (c.choice("abc"), c.choice([None, "l", "ll", "lll"]))),
}


def rows_of(kind: str, chance: random.Random) -> Rows:
    """A batch of a state, each key once, as a final aggregation gives it; of others, any."""
    spec, row = CUTS[kind][0](MemoryState()), CUTS[kind][1]
    rows = [row(chance) for _ in range(chance.randrange(6))]
    if spec.combiners and spec.factory:
        rows = list({repr(one[: len(spec.keys)]).replace("-0.0", "0.0"): one for one in rows}.values())
    return rows


def same_in_any_cut(factory: StateFactory, kind: str, chance: random.Random, many: int) -> None:
    """Applied in random groups, which are now and then cut off before COMMITTED and come again in another cut."""
    spec = CUTS[kind][0](factory)
    given = [batch(spec, *rows_of(kind, chance)) for _ in range(many)]
    plain = replace(spec, factory=MemoryState(f"plain {uuid.uuid4()}"))
    committed, fence = 0, 0
    with factory.make_state(spec) as state, plain.factory.make_state(plain) as alone:
        for txid in range(1, many + 1):
            alone.apply(ticket(txid), given[txid - 1])
        while committed < many:
            fence += 1
            upto = min(many, committed + chance.randrange(1, 6))
            txids = range(committed + 1, upto + 1)
            if len(txids) == 1 and chance.random() < 0.5:
                apply(state, ticket(upto, fence=fence), given[upto - 1])
            else:
                apply_group(state, tickets(*txids, fence=fence), given[committed:upto])
            if chance.random() < 0.6:
                committed = upto
        assert _comparable(content(state)) == _comparable(content(alone))
        found, known = state.marker(), alone.marker()
        assert found is not None
        assert known is not None
        assert replace(found, fence=0, group={}) == replace(known, fence=0)
    assert isinstance(plain.factory, MemoryState)
    plain.factory.forget()


def _comparable(found: dict[Any, Any]) -> dict[str, str]:
    return {repr(key): repr(value) for key, value in found.items()}


@pytest.mark.parametrize("kind", CUTS)
def test_t12_any_cut_of_batches_into_groups_ends_in_the_same_rows(factory: StateFactory, kind: str) -> None:
    same_in_any_cut(factory, kind, random.Random(f"{kind} 1"), 12)


@given(st.randoms(use_true_random=False), st.sampled_from(list(CUTS)), st.integers(1, 20))
def test_t12_any_cut_at_random(chance: random.Random, kind: str, many: int) -> None:
    factory = MemoryState(f"cuts {uuid.uuid4()}")
    try:
        same_in_any_cut(factory, kind, chance, many)
    finally:
        factory.forget()


# ---- T7: two at once -------------------------------------------------------------------------------------------


def test_t12_groups_and_single_ones_from_many_sides_are_applied_once(factory: StateFactory, spec: StateSpec) -> None:
    def group() -> object:
        with factory.make_state(spec) as state:
            return apply_group(state, tickets(1, 2, 3), batches(spec, 1, 2, 3))

    def single() -> object:
        with factory.make_state(spec) as state:
            return [apply(state, ticket(txid, fence=100), *batches(spec, txid)) for txid in (1, 2, 3)]

    found = at_once(group, single, group)
    assert not [one for one in found if isinstance(one, BaseException) and not isinstance(one, LedgerBehindStateError)]
    with factory.make_state(spec) as state:
        assert content(state) == one_by_one(spec, 1, 2, 3)


def test_t12_of_two_groups_the_older_one_is_first_or_refused(factory: StateFactory, spec: StateSpec) -> None:
    def act(fence: int) -> object:
        with factory.make_state(spec) as state:
            return apply_group(state, tickets(1, 2, 3, fence=fence), batches(spec, 1, 2, 3))

    older, newer = at_once(lambda: act(1), lambda: act(2))
    assert isinstance(newer, tuple)
    assert isinstance(older, tuple | FencedError)
    with factory.make_state(spec) as state:
        marker = state.marker()
        assert marker is not None
        assert (marker.high, marker.fence) == (3, 2)
        assert content(state) == one_by_one(spec, 1, 2, 3)


# ---- rows ------------------------------------------------------------------------------------------------------


def test_t12_a_table_of_rows_has_each_with_its_own_txid(tmp_path: Path) -> None:
    factory = table_sink(tmp_path)
    spec = replace(combined(factory, "", "word string"), staged=parse_declared("word string"))
    with factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, ("a",)))
        given = [batch(spec, ("b",), ("c",)), batch(spec), batch(spec, ("d",))]
        assert state.apply_group(tickets(2, 3, 4), given) == (APPLIED,) * 3
        assert state.apply_group(tickets(2, 3, 4, fence=101), given) == (ALREADY,) * 3
        found = state.dialect.execute(f"SELECT txid, word FROM {state.dialect.data} ORDER BY word")
        assert [tuple(row) for row in found] == [(1, "a"), (2, "b"), (2, "c"), (4, "d")]


# ---- what is stored --------------------------------------------------------------------------------------------


def test_t12_a_version_without_groups_refuses_them_in_sql_and_goes_on_above(tmp_path: Path) -> None:
    """It takes the column `position` as it is for a position."""
    path = tmp_path / "states.db"
    spec = counts(SqliteState(str(path)))
    with spec.factory.make_state(spec) as state:
        apply_group(state, tickets(1, 2, 3), batches(spec, 1, 2, 3))
        marker = state.marker()
    assert marker is not None
    with closing(sqlite3.connect(path)) as file:
        ((text,),) = file.execute("SELECT position FROM trident_applied")
    name, group, position = json.loads(text)
    assert (name, group_from_json(group), position) == ("group", marker.group, marker.position)
    older = replace(marker, position=json.loads(text), group={})
    for txid in (1, 2, 3):
        with pytest.raises(LedgerBehindStateError):
            admit(older, ticket(txid, fence=101), state="counts", commutes=True)
    after, verdict = admit(older, ticket(4, fence=101), state="counts", commutes=True)
    assert (verdict, after.position, after.group) == (Verdict.APPLY, {"lines": {"to": 4}}, {})


@pytest.mark.parametrize("damage", ['["other", [], {}]', '["group", [], 3]', '["group", [[1]], {}]', "3", "[1, 2]"])
def test_p11_a_damaged_group_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "states.db"
    spec = counts(SqliteState(str(path)))
    with spec.factory.make_state(spec) as state:
        apply_group(state, tickets(1, 2), batches(spec, 1, 2))
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE trident_applied SET position = ?", [damage])
    with spec.factory.make_state(spec) as state, pytest.raises(CorruptRecordError, match="row of state 'counts'"):
        state.marker()


def test_t12_without_a_group_redis_and_delta_store_what_they_stored_before() -> None:
    spec = counts(MemoryState())
    marker = Marker(incarnation="i1", high=2, fence=1)
    grouped = replace(marker, group={1: "a", 2: "b"})
    record = json.loads(encode_record(spec, "hash", marker, op="o", kept=0))
    assert json.loads(encode_record(spec, "hash", grouped, op="o", kept=0)) == {**record, "group": [[1, "a"], [2, "b"]]}
    footer = json.loads(Footer(marker=marker, bounds=(0,)).to_bytes())
    assert set(footer) == {"v", "marker", "bounds"}
    assert set(footer["marker"]) == {"incarnation", "high", "fence", "holes", "position", "attempt"}
    assert json.loads(Footer(marker=grouped, bounds=(0,)).to_bytes()) == {**footer, "group": [[1, "a"], [2, "b"]]}
