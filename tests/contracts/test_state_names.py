"""States whose names differ are different states: each has its own data in the same place, and none is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_trident.contracts.state import Applied, State, StateFactory, StateSpec
from airflow_trident.names import require_name
from airflow_trident.states.delta.state import OpenDeltaState
from tests.fixtures.state import FACTORIES, SINKS, batch, counts, ticket
from tests.fixtures.state import apply as applied

LONG = "L" * 199
# Each store uses the names of `unit/test_composed_names.py`, which has many more.
PAIRS: dict[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "every sign": (("Az09_.-z", "a-.__-.-"), ("Az09_.-z", "a-.__-._")),
    "two cases": (("Words", "counts"), ("words", "counts")),
    "where the topology's name ends (_)": (("a", "b_c"), ("a_b", "c")),
    "where the topology's name ends (-)": (("a", "b-c"), ("a-b", "c")),
    "as long as they may be": ((LONG + "a", LONG + "a"), (LONG + "a", LONG + "b")),
    "the table of markers": (("trident", "applied"), ("trident", "jdbc_applied")),
}
NEIGHBOURS: dict[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "what was before": (("w", "price_before"), ("w", "price")),
    "what was before, in front": (("trident", "before_w_price"), ("w", "price")),
    "the current values": (("w", "price_latest"), ("w", "price")),
    "temporary files": (("w", "price.0000000000000000001.json.x"), ("w", "price")),
}


def _spec(factory: StateFactory, topology: str, name: str) -> StateSpec:
    spec = counts(factory, topology=require_name("topology", topology), name=require_name("state", name))
    return replace(spec, keys=(), values=spec.staged, combiners=()) if factory.capabilities.appends else spec


def _held(spec: StateSpec) -> list[object]:
    with spec.factory.make_state(spec) as state:
        return sorted(map(repr, state.items()))


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("make", [*FACTORIES.values(), *SINKS.values()], ids=[*FACTORIES, *SINKS])
def test_states_of_different_names_never_share_their_data(
    make: Callable[[Path], StateFactory], pair: str, tmp_path: Path
) -> None:
    factory = make(tmp_path)
    first, second = (_spec(factory, *names) for names in PAIRS[pair])
    with factory.make_state(first) as state:
        applied(state, ticket(1, topology=first.topology), batch(first, ("a", 1)))
    before = _held(first)
    assert len(before) == 1
    with factory.make_state(second) as state:
        assert state.marker() is None, "the marker of another state"
        assert applied(state, ticket(1, topology=second.topology), batch(second, ("b", 2))) is Applied.APPLIED
    shares = factory.capabilities.by_reference  # a table of everybody's, with markers of each
    assert len(_held(second)) == 1 + shares
    assert _held(second) != before
    assert _held(first) == (_held(second) if shares else before)
    with factory.make_state(first) as state:
        assert applied(state, ticket(1, topology=first.topology), batch(first, ("a", 1))) is Applied.ALREADY


@pytest.mark.parametrize("turned", [False, True], ids=["in this order", "in the other order"])
@pytest.mark.parametrize("pair", NEIGHBOURS)
@pytest.mark.parametrize("make", [*FACTORIES.values(), *SINKS.values()], ids=[*FACTORIES, *SINKS])
def test_what_a_state_keeps_beside_its_data_is_never_in_the_place_of_another_state(
    make: Callable[[Path], StateFactory], pair: str, turned: bool, tmp_path: Path
) -> None:
    factory = make(tmp_path)
    if not factory.capabilities.opaque or factory.capabilities.by_reference:
        return
    first, second = (replace(_spec(factory, *names), opaque=True) for names in NEIGHBOURS[pair][:: -1 if turned else 1])
    with factory.make_state(first) as state:
        applied(state, ticket(1, topology=first.topology), batch(first, ("a", 1)))
        _publish(state)
    before = _held(first)
    assert len(before) == 1
    with factory.make_state(second) as state:
        assert applied(state, ticket(1, topology=second.topology), batch(second)) is Applied.APPLIED
        assert _held(first) == before
        assert applied(state, ticket(2, topology=second.topology), batch(second, ("b", 2))) is Applied.APPLIED
        _publish(state)
        assert len(list(state.items())) == 1
    assert _held(first) == before
    with factory.make_state(first) as state:
        applied(state, ticket(1, attempt=1, fence=15, topology=first.topology), batch(first, ("c", 3)))
        assert [(*key, *value) for key, value in state.items()] == [("c", 3)]


def _publish(state: State) -> None:
    if isinstance(state, OpenDeltaState):
        state.publish()
