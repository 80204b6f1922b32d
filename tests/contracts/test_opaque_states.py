"""T9 of `contracts.state`: the batch of the highest txid is replaced by that of a newer attempt, over every state that
says it can."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.contracts.state import Applied, State, StateFactory, StateSpec
from airflow_trident.errors import CorruptRecordError, FencedError, LedgerBehindStateError, UserCodeError
from airflow_trident.operations.aggregators import Min, Sum
from airflow_trident.protocol.records import NO_ATTEMPT
from airflow_trident.states.sql.store import SqlStore
from airflow_trident.types import parse_declared
from tests.fixtures.state import (
    FACTORIES,
    Product,
    appended,
    apply,
    batch,
    combined,
    content,
    counts,
    keep_longest,
    product,
)
from tests.fixtures.state import ticket as any_ticket

Rows = list[tuple[Any, ...]]
fences = iter(range(1, 1_000_000))


@pytest.fixture(params=list(FACTORIES))
def factory(request: pytest.FixtureRequest, tmp_path: Path) -> StateFactory:
    made = FACTORIES[request.param](tmp_path)
    assert made.capabilities.opaque
    return made


def summed(factory: StateFactory) -> StateSpec:
    return combined(factory, "word string", "total double, least long", Sum(), Min())


def longest(factory: StateFactory) -> StateSpec:
    spec = combined(factory, "word string", "line string")
    return replace(spec, updater=keep_longest, staged=parse_declared("word string, line string"))


def one_row(factory: StateFactory) -> StateSpec:
    return combined(factory, "", "total long", Sum())


BATCHES: dict[str, tuple[Callable[[StateFactory], StateSpec], list[Rows]]] = {
    "added by the store": (counts, [[("a", 1), ("b", 2)], [("b", 10), ("c", 4), (None, 1)], [("c", 1), ("d", 5)]]),
    "merged by us": (product, [[("a", 2), ("b", 3)], [("b", 5), ("c", 7), (None, 2)], [("c", 11), ("a", 13)]]),
    "nulls and infinity": (
        summed,
        [[("a", 0.0, 3), ("b", 1.5, None)], [("a", 2.0, 1), ("c", float("inf"), 7)], [("c", 0.5, 8), ("b", 1.0, 2)]],
    ),
    "one row": (one_row, [[(1,)], [(10,)], [(100,)]]),
    "a reducer": (appended, [[("a", "x", 1)], [("a", "y", 1), ("b", "z", 1)], [("b", "w", 1)]]),
    "an updater that removes": (
        longest,
        [[("a", "long"), ("b", "b")], [("a", None), ("b", "bbb"), ("c", "c")], [("c", None), ("b", "longer")]],
    ),
}


@pytest.fixture(params=BATCHES)
def case(request: pytest.FixtureRequest, factory: StateFactory) -> tuple[StateSpec, list[Rows]]:
    make, rows = BATCHES[request.param]
    return replace(make(factory), opaque=True), rows


def put(state: State, spec: StateSpec, txid: int, attempt: int, rows: Rows, **more: Any) -> Applied:
    """As a committer does, with the next fence; each batch has its own position."""
    position = {"lines": {"txid": txid, "rows": repr(rows)}}
    ticket = any_ticket(txid, attempt=attempt, fence=next(fences), position=position, **more)
    return apply(state, ticket, batch(spec, *rows))


def expected(spec: StateSpec, *batches: Rows) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """What a state holds to which these came, and nothing else."""
    spec = replace(spec, name=f"expected-{next(fences)}", opaque=False)
    with spec.factory.make_state(spec) as state:
        for txid, rows in enumerate(batches, start=1):
            put(state, spec, txid, 0, rows)
        return content(state)


def test_t9_a_newer_attempt_takes_the_batch_of_the_older_one_back(case: tuple[StateSpec, list[Rows]]) -> None:
    spec, (first, second, third) = case
    with spec.factory.make_state(spec) as state:
        put(state, spec, 1, 0, first)
        put(state, spec, 2, 0, second)
        assert put(state, spec, 2, 1, third) is Applied.APPLIED
        assert content(state) == expected(spec, first, third)
        marker = state.marker()
        assert marker is not None
        assert (marker.high, marker.attempt, marker.position["lines"]) == (2, 1, {"txid": 2, "rows": repr(third)})


def test_t9_the_first_txid_of_all_is_replaced_and_the_next_goes_on_from_there(
    case: tuple[StateSpec, list[Rows]],
) -> None:
    spec, (first, second, third) = case
    with spec.factory.make_state(spec) as state:
        put(state, spec, 1, 0, first)
        put(state, spec, 1, 3, second)
        assert put(state, spec, 1, 3, second) is Applied.ALREADY
        put(state, spec, 2, 0, third)
        assert content(state) == expected(spec, second, third)


def test_t9_replaced_by_an_empty_batch_and_by_a_full_one_again(case: tuple[StateSpec, list[Rows]]) -> None:
    spec, (first, second, third) = case
    with spec.factory.make_state(spec) as state:
        put(state, spec, 1, 0, first)
        put(state, spec, 2, 0, second)
        put(state, spec, 2, 1, [])
        assert content(state) == expected(spec, first)
        put(state, spec, 2, 2, second)
        put(state, spec, 2, 4, third)
        assert content(state) == expected(spec, first, third)


def test_t9_whoever_opens_the_state_next_can_take_the_batch_back(case: tuple[StateSpec, list[Rows]]) -> None:
    spec, (first, second, third) = case
    for txid, attempt, rows in ((1, 0, first), (2, 0, second), (2, 1, third), (2, 2, second)):
        with spec.factory.make_state(spec) as state:
            put(state, spec, txid, attempt, rows)
    with spec.factory.make_state(spec) as state:
        assert content(state) == expected(spec, first, second)


def test_t9_a_zombie_of_the_old_attempt_is_fenced(case: tuple[StateSpec, list[Rows]]) -> None:
    spec, (first, second, third) = case
    with spec.factory.make_state(spec) as state:
        put(state, spec, 1, 0, first)
        zombie = any_ticket(2, attempt=0, fence=next(fences))
        apply(state, zombie, batch(spec, *second))
        put(state, spec, 2, 1, third)
        before = state.marker(), content(state)
        with pytest.raises(FencedError):
            state.apply(zombie, batch(spec, *second))
        with pytest.raises(LedgerBehindStateError):
            put(state, spec, 2, 0, second)
        assert (state.marker(), content(state)) == before


def test_t9_only_the_highest_txid_can_be_replaced(case: tuple[StateSpec, list[Rows]]) -> None:
    spec, (first, second, third) = case
    with spec.factory.make_state(spec) as state:
        put(state, spec, 1, 0, first)
        put(state, spec, 2, 0, second)
        before = state.marker(), content(state)
        with pytest.raises(LedgerBehindStateError):
            put(state, spec, 1, 1, third)
        assert (state.marker(), content(state)) == before


@pytest.mark.parametrize("kind", ["added by the store", "merged by us", "nulls and infinity", "one row"])
def test_t9_a_late_batch_stays_when_the_highest_txid_is_replaced(factory: StateFactory, kind: str) -> None:
    make, (first, second, third) = BATCHES[kind]
    spec = replace(make(factory), opaque=True)
    with spec.factory.make_state(spec) as state:
        put(state, spec, 1, 0, first)
        put(state, spec, 3, 0, third)
        assert put(state, spec, 2, 4, second, late=True) is Applied.APPLIED
        put(state, spec, 3, 1, first)
        assert content(state) == expected(spec, first, second, first)
        assert put(state, spec, 2, 5, second, late=True) is Applied.ALREADY
        put(state, spec, 3, 2, [])
        assert content(state) == expected(spec, first, second)


class Breaking(Product):
    """Raises for one number only."""

    def combine(self, left: int, right: int) -> int:
        if right == 13:
            raise ZeroDivisionError("no")
        return super().combine(left, right)


def test_t9_when_the_users_combiner_raises_the_old_batch_is_still_there(factory: StateFactory) -> None:
    spec = replace(combined(factory, "word string", "n long", Breaking()), opaque=True)
    with factory.make_state(spec) as state:
        put(state, spec, 1, 0, [("a", 2), ("b", 3)])
        put(state, spec, 2, 0, [("a", 5), ("c", 7)])
        before = state.marker(), content(state)
        with pytest.raises(UserCodeError):
            state.apply(any_ticket(2, attempt=1, fence=next(fences)), batch(spec, ("c", 1), ("b", 1), ("a", 13)))
        assert (state.marker(), content(state)) == before
        put(state, spec, 2, 2, [("b", 5)])
        assert content(state) == {("a",): (2,), ("b",): (15,)}


def test_a_state_without_an_opaque_spout_keeps_no_way_back(factory: StateFactory) -> None:
    spec = counts(factory)
    with factory.make_state(spec) as state:
        put(state, spec, 1, 3, [("a", 1)])
        marker = state.marker()
        assert marker is not None
        assert marker.attempt == NO_ATTEMPT
        assert put(state, spec, 1, 4, [("a", 1)]) is Applied.ALREADY
    opaque = replace(spec, opaque=True)
    with factory.make_state(opaque) as state:
        with pytest.raises(LedgerBehindStateError):
            put(state, opaque, 1, 5, [("a", 2)])
        put(state, opaque, 2, 0, [("a", 10)])
        put(state, opaque, 2, 1, [("a", 100)])
        assert content(state) == {("a",): (101,)}


@pytest.mark.parametrize("store", ["sqlite", "sqlalchemy on sqlite", "postgres", "sqlalchemy on postgres"])
def test_t9_without_the_values_from_before_nothing_is_taken_back(store: str, tmp_path: Path) -> None:
    """Somebody restored or removed some tables of a database and not others."""
    spec = replace(counts(FACTORIES[store](tmp_path)), opaque=True)
    with spec.factory.make_state(spec) as state:
        assert isinstance(state, SqlStore)
        put(state, spec, 1, 0, [("a", 1)])
        put(state, spec, 2, 0, [("a", 10)])
        kept = state.dialect.before
        with state.dialect.transaction():
            for table in {kept, kept.replace("_keys_before_", "_before_")}:  # SQLite has two
                state.dialect.execute(f"DROP TABLE {table}")
    with pytest.raises(CorruptRecordError, match=r"its table of values before transaction 2, .*before.*, is gone"):
        spec.factory.make_state(spec)
    with spec.factory.make_state(replace(spec, opaque=False)) as state:
        put(state, spec, 3, NO_ATTEMPT, [("a", 100)])
    with spec.factory.make_state(spec) as state:  # nothing has to be taken back any more
        put(state, spec, 4, 0, [("a", 1000)])
        put(state, spec, 4, 1, [("a", 2000)])
        assert content(state) == {("a",): (2111,)}


@pytest.mark.parametrize("kind", ["added by the store", "merged by us"])
@pytest.mark.parametrize("seed", range(5))
def test_t9_any_order_of_new_late_and_replaced_batches_ends_as_the_last_batches_alone(
    factory: StateFactory, kind: str, seed: int
) -> None:
    spec = replace(BATCHES[kind][0](factory), opaque=True)
    chosen = random.Random(seed)
    last: dict[int, Rows] = {}
    attempts: dict[int, int] = {}

    def rows() -> Rows:
        words = chosen.sample("abcdefg", chosen.randint(0, 4))
        return [(word, chosen.choice([2, 3, 5])) for word in words]

    with spec.factory.make_state(spec) as state:
        for _ in range(30):
            high = max(last, default=0)
            left_out = [txid for txid in range(1, high) if txid not in last]
            act = chosen.choice(["next", "replace", "late", "again"])
            if act == "next" or not last:
                txid = high + chosen.randint(1, 2)
                last[txid] = rows()
            elif act == "late" and left_out:
                txid = chosen.choice(left_out)
                last[txid] = rows()
            elif act == "replace":
                txid = high
                attempts[txid] = attempts.get(txid, 0) + chosen.randint(1, 2)
                last[txid] = rows()
            else:
                txid = chosen.choice(list(last))
            put(state, spec, txid, attempts.get(txid, 0), last[txid], late=txid < high)
        assert content(state) == expected(spec, *last.values())
