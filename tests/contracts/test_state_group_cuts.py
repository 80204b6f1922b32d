"""T12 of `contracts.state`: groups that fail in the middle, any cut into groups, two at once, and what is stored."""

from __future__ import annotations

import json
import random
import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_trident.contracts.state import Applied, Marker, StateFactory, StateSpec, Verdict
from airflow_trident.errors import (
    CorruptRecordError,
    FencedError,
    LedgerBehindStateError,
    UserCodeError,
)
from airflow_trident.operations.aggregators import Count, Max, Min, Sum
from airflow_trident.states.core.marker import admit, group_from_json
from airflow_trident.states.delta.runs import Footer
from airflow_trident.states.memory import MemoryState
from airflow_trident.states.redis.state import encode_record
from airflow_trident.states.sql.sqlite import SqliteState
from airflow_trident.types import parse_declared
from tests.contracts.test_states import at_once
from tests.fixtures.open_state import batches, longest, one_by_one, tickets
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
    table_sink,
    ticket,
)

Rows = list[tuple[Any, ...]]


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


@settings(max_examples=40)
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
        assert state.apply_group(tickets(2, 3, 4), given) == (Applied.APPLIED,) * 3
        assert state.apply_group(tickets(2, 3, 4, fence=101), given) == (Applied.ALREADY,) * 3
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
    assert set(footer) == {"v", "marker", "bounds", "files"}
    assert set(footer["marker"]) == {"incarnation", "high", "fence", "holes", "position", "attempt"}
    assert json.loads(Footer(marker=grouped, bounds=(0,)).to_bytes()) == {**footer, "group": [[1, "a"], [2, "b"]]}
