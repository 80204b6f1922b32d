"""What every state promises (T1 to T8 of `contracts.state`), over every implementation and some that lose answers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_trident.contracts.state import Applied, State, StateFactory, StateSpec
from airflow_trident.errors import (
    FencedError,
    LateBatchError,
    UserCodeError,
)
from airflow_trident.operations.aggregators import Sum
from airflow_trident.states.sql.sqlite_table import SqliteDialect
from airflow_trident.states.sql.store import SqlStore
from airflow_trident.testing.suites import STATE_CHECKS
from tests.fixtures.open_state import SPECS
from tests.fixtures.state import FACTORIES, appended, apply, batch, combined, content, product, ticket


@pytest.fixture
def state(spec: StateSpec) -> Iterator[State]:
    with spec.factory.make_state(spec) as opened:
        yield opened


# ---- what a user's suite checks, too ----------------------------------------------------------------------------


@pytest.mark.parametrize("check", STATE_CHECKS)
def test_every_state_keeps_its_promises(factory: StateFactory, check: Callable[[StateFactory], None]) -> None:
    check(factory)


# ---- applying --------------------------------------------------------------------------------------------------


def test_a_users_combiner_merges_as_well(factory: StateFactory) -> None:
    spec = product(factory)
    with factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, ("a", 2), ("a", 3), ("b", 5)))
        apply(state, ticket(2), batch(spec, ("a", 7), (None, 1)))
        assert content(state) == {("a",): (42,), ("b",): (5,), (None,): (1,)}


# ---- T1: all or nothing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [2**63 - 1, -(2**63)])
def test_t1_a_sum_that_overflows_is_an_error_and_nothing_is_applied(factory: StateFactory, stored: int) -> None:
    spec = combined(factory, "word string", "total long", Sum())
    with factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, ("b", stored)))
        before = state.marker(), content(state)
        one_more = 1 if stored > 0 else -1
        with pytest.raises(UserCodeError, match=r"state 'counts' does not fit its field: total.*wider type"):
            state.apply(ticket(2), batch(spec, ("a", 1), ("b", one_more), ("c", 1)))
        assert (state.marker(), content(state)) == before
        apply(state, ticket(2), batch(spec, ("b", -one_more)))
        assert content(state) == {("b",): (stored - one_more,)}


# ---- T2 to T5: what the marker decides -------------------------------------------------------------------------


def test_t5_a_late_txid_is_refused_where_order_matters(factory: StateFactory) -> None:
    spec = appended(factory)
    with factory.make_state(spec) as state:
        apply(state, ticket(2), batch(spec, ("a", "x", 1)))
        before = state.marker(), content(state)
        with pytest.raises(LateBatchError, match="order"):
            state.apply(ticket(1, fence=30, late=True), batch(spec, ("a", "y", 1)))
        assert (state.marker(), content(state)) == before


def test_t5_below_the_floor_a_state_forgets_what_it_left_out(state: State, spec: StateSpec) -> None:
    apply(state, ticket(3), batch(spec, ("a", 2)))
    apply(state, ticket(6), batch(spec, ("a", 3)))
    before = content(state)
    for fence, floor, left in ((61, 2, ((2, 2), (4, 5))), (62, 5, ((5, 5),)), (63, 6, ())):
        assert apply(state, ticket(6, fence=fence, floor=floor), batch(spec, ("a", 3))) is Applied.ALREADY
        marker = state.marker()
        assert marker is not None
        assert (marker.high, marker.fence, marker.holes) == (6, fence, left)
    assert content(state) == before


# ---- T6: the work depends on the batch -------------------------------------------------------------------------


def steps_of_sqlite(state: SqlStore, act: Callable[[], object]) -> int:
    """Instructions of SQLite's virtual machine."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    assert isinstance(state.dialect, SqliteDialect)
    state.dialect.file.connection.set_progress_handler(count, 1)
    try:
        act()
    finally:
        state.dialect.file.connection.set_progress_handler(None, 0)
    return steps


def calls_of_python(act: Callable[[], object]) -> int:
    """Calls of functions, Python's own included."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("store", ["sqlite", "memory"])
def test_t6_the_work_of_a_batch_does_not_grow_with_the_state(tmp_path: Path, store: str, kind: str) -> None:
    spec = SPECS[kind](FACTORIES[store](tmp_path))
    rows = batch(spec, *((f"w{number * 37}", 1) for number in range(50)))
    with spec.factory.make_state(spec) as state:
        work = []
        for txid, keys in ((1, 2_000), (3, 100_000)):
            apply(state, ticket(txid), batch(spec, *((f"w{number}", 1) for number in range(keys))))

            def act(txid: int = txid) -> object:
                return state.apply(ticket(txid + 1), rows)

            calls_of_python(lambda: None)
            is_sqlite = isinstance(state, SqlStore)
            work.append(steps_of_sqlite(state, act) if is_sqlite else calls_of_python(act))
        assert len(content(state)) == 100_000
    assert work[0] > 0
    assert abs(work[1] - work[0]) <= 0.02 * work[0], work


# ---- T8: queries -----------------------------------------------------------------------------------------------


def test_get_many_gives_committed_values_in_the_order_of_the_keys(state: State, spec: StateSpec) -> None:
    assert state.get_many([("a",)]) == [None]
    apply(state, ticket(1), batch(spec, *((f"word {number}", number) for number in range(1, 1500)), (None, 7)))
    asked = [(f"word {number}",) for number in range(1499, 0, -1)]
    assert state.get_many([*asked, ("absent",), (None,), asked[0]]) == [
        *((number,) for number in range(1499, 0, -1)),
        None,
        (7,),
        (1499,),
    ]
    assert state.get_many([]) == []


def test_get_many_of_a_state_without_keys_gives_its_one_row(factory: StateFactory) -> None:
    spec = combined(factory, "", "n long", Sum())
    with factory.make_state(spec) as state:
        assert state.get_many([()]) == [None]
        apply(state, ticket(1), batch(spec, (5,)))
        assert state.get_many([()]) == [(5,)]


# ---- T7: two at once -------------------------------------------------------------------------------------------


def at_once(*acts: Callable[[], object]) -> list[object]:
    """Run in threads that start behind a barrier; what each returned or raised."""
    barrier = threading.Barrier(len(acts))

    def run(act: Callable[[], object]) -> object:
        barrier.wait()
        try:
            return act()
        except Exception as error:  # noqa: BLE001
            return error

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(run, acts))


def test_t7_one_txid_from_many_sides_is_applied_once(factory: StateFactory, spec: StateSpec) -> None:
    rows = batch(spec, *((f"w{number}", 2) for number in range(500)))
    for txid in (1, 2, 3):

        def act(txid: int = txid) -> Applied:
            with factory.make_state(spec) as state:
                return apply(state, ticket(txid), rows)

        assert set(at_once(act, act, act, act)) <= {Applied.APPLIED, Applied.ALREADY}
    with factory.make_state(spec) as state:
        expected = 6 if spec.combiners[0].merge_kind else 8
        assert set(content(state).values()) == {(expected,)}
        assert len(content(state)) == 500


def test_t7_of_two_committers_the_older_one_is_first_or_refused(factory: StateFactory, spec: StateSpec) -> None:
    for txid in range(1, 11):

        def act(fence: int, txid: int = txid) -> Applied:
            with factory.make_state(spec) as state:
                return apply(state, ticket(txid, fence=10 * txid + fence), batch(spec, ("a", 2)))

        older, newer = at_once(lambda act=act: act(1), lambda act=act: act(2))
        assert newer in (Applied.APPLIED, Applied.ALREADY)
        assert older in (Applied.APPLIED, Applied.ALREADY) or isinstance(older, FencedError)
        with factory.make_state(spec) as state:
            marker = state.marker()
            assert marker is not None
            assert (marker.high, marker.fence) == (txid, 10 * txid + 2)
            assert content(state) == {("a",): (2 * txid if spec.combiners[0].merge_kind else 2**txid,)}
