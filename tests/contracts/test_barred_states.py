"""T11 of `contracts.state`, over every store, sink and keeper of stateful functions: `bar`, with which a commit is
taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_trident.contracts.state import Applied, State, StateSpec
from airflow_trident.errors import FencedError, HeldError, LedgerBehindStateError
from airflow_trident.operations.interfaces import OperationContext
from airflow_trident.operations.state_functions import KeyValues, Stateful, StatefulFunction
from airflow_trident.states.keyvalue.stateful import KeyValueStates
from airflow_trident.types import parse_declared
from tests.fixtures.state import FACTORIES, SINKS, apply, batch, content, counts, product, ticket


class Kept(StatefulFunction[str, int]):
    """Keeps the last number of each word. Broken, none of its hooks works."""

    broken = False

    def prepare(self, context: OperationContext) -> None:
        self.require_whole()

    def init_state(self, state: KeyValues[str, int]) -> None:
        self.require_whole()
        self.state = state

    def require_whole(self) -> None:
        if type(self).broken:
            raise ValueError("broken")

    def execute(self, word: str, n: int) -> None:  # type: ignore[override]
        self.state.put(word, n)


def stateful(folder: Path) -> StateSpec:
    fields = parse_declared("word string, n long")
    return StateSpec(
        topology="words",
        name="kept",
        keys=fields[:1],
        values=(),
        staged=fields,
        factory=KeyValueStates("sqlite", {"path": str(folder / "kept.db")}),
        stateful=Stateful(function=Kept(), partitions=2),
    )


def sink(name: str) -> Callable[[Path], StateSpec]:
    def make(folder: Path) -> StateSpec:
        fields = parse_declared("word string, n long")
        return StateSpec(
            topology="words", name="rows", keys=(), values=fields, staged=fields, factory=SINKS[name](folder)
        )

    return make


SPECS: dict[str, Callable[[Path], StateSpec]] = {
    **{name: lambda folder, made=made: counts(made(folder)) for name, made in FACTORIES.items()},
    **{f"{name}, merged by us": lambda folder, made=made: product(made(folder)) for name, made in FACTORIES.items()},
    **{f"sink of {name}": sink(name) for name in SINKS},
    "stateful functions": stateful,
}


@pytest.fixture(params=SPECS)
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> StateSpec:
    return SPECS[request.param](tmp_path)


@pytest.fixture
def state(spec: StateSpec) -> Iterator[State]:
    with spec.factory.make_state(spec) as opened:
        yield opened


def seen(state: State, spec: StateSpec) -> object:
    if spec.factory.capabilities.appends:
        with spec.factory.make_state(spec) as again:
            return again.marker()
    return content(state)


def fences(state: State) -> tuple[int, int]:
    marker = state.marker()
    assert marker is not None
    return marker.high, marker.fence


def test_t11_a_bar_refuses_every_older_ticket_and_changes_nothing_else(state: State, spec: StateSpec) -> None:
    apply(state, ticket(1), batch(spec, ("a", 2)))
    before = None if spec.factory.capabilities.appends else content(state)
    state.bar(ticket(2, fence=25))
    assert fences(state) == (1, 25)
    for older in (ticket(2, fence=20), ticket(3, fence=24)):
        with pytest.raises(FencedError):
            state.apply(older, batch(spec, ("a", 5)))
    with spec.factory.make_state(spec) as another:
        assert fences(another) == (1, 25)
        assert before is None or content(another) == before
    assert apply(state, ticket(2, attempt=1, fence=30), batch(spec, ("b", 5))) is Applied.APPLIED
    assert fences(state) == (2, 30)


def test_t11_a_state_that_never_had_a_batch_can_be_barred(state: State, spec: StateSpec) -> None:
    state.bar(ticket(3, fence=25))
    assert fences(state) == (0, 25)
    with pytest.raises(FencedError):
        state.apply(ticket(3, fence=20), batch(spec, ("a", 5)))
    assert apply(state, ticket(3, fence=30), batch(spec, ("b", 5))) is Applied.APPLIED
    marker = state.marker()
    assert marker is not None
    assert (marker.high, marker.holes) == (3, ((1, 2),))


def test_t11_what_a_state_holds_is_not_barred(state: State, spec: StateSpec) -> None:
    for txid in (1, 2):
        apply(state, ticket(txid), batch(spec, ("a", 2)))
    before = state.marker()
    for held in (ticket(2, fence=25), ticket(2, attempt=1, fence=25), ticket(1, fence=25, late=True)):
        with pytest.raises(HeldError, match=rf"holds transaction {held.txid} .*backfill words --txid {held.txid}"):
            state.bar(held)
    assert state.marker() == before
    assert state.apply(ticket(2, fence=21), batch(spec, ("a", 2))) is Applied.ALREADY


def test_t11_a_bar_with_an_old_fence_or_of_another_life_is_refused(state: State, spec: StateSpec) -> None:
    apply(state, ticket(1, fence=30), batch(spec, ("a", 2)))
    before = state.marker()
    with pytest.raises(FencedError):
        state.bar(ticket(2, fence=29))
    with pytest.raises(LedgerBehindStateError):
        state.bar(ticket(2, fence=31, incarnation="i2"))
    assert state.marker() == before


def test_t11_barred_again_by_the_same_ticket_is_a_success(state: State) -> None:
    for _ in range(2):
        state.bar(ticket(1, fence=25))
    assert fences(state) == (0, 25)


def test_t11_a_stateful_function_whose_hooks_fail_does_not_keep_its_state_from_being_barred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = stateful(tmp_path)
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 2), ("b", 3)))
        monkeypatch.setattr(Kept, "broken", True)
        state.bar(ticket(2, fence=25))
        assert fences(state) == (1, 25)
        assert content(state) == {("a",): (2,), ("b",): (3,)}
