"""States whose names differ are different states: in one place two of them are kept apart, or the second is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_trident.contracts.state import Applied, StateFactory, StateSpec
from airflow_trident.errors import ConfigurationError, DefinitionChangedError
from airflow_trident.topology.names import require_name
from tests.fixtures.state import FACTORIES, SINKS, batch, counts, ticket
from tests.fixtures.state import apply as applied

LONG = "L" * 199
PAIRS: dict[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "every sign": (("Az09_.-z", "a-.__-.-"), ("Az09_.-z", "a-.__-._")),
    "upper and lower case": (("words", "Counts"), ("words", "counts")),
    "topologies of two cases": (("Words", "counts"), ("words", "counts")),
    "a dash or an underscore": (("a-b", "c"), ("a_b", "c")),
    "a dot or an underscore": (("a", "b.c"), ("a", "b_c")),
    "where the topology's name ends (_)": (("a", "b_c"), ("a_b", "c")),
    "where the topology's name ends (-)": (("a", "b-c"), ("a-b", "c")),
    "where the topology's name ends (.)": (("a", "b.c"), ("a.b", "c")),
    "as long as they may be": ((LONG + "a", LONG + "a"), (LONG + "a", LONG + "b")),
    "long topologies": ((LONG + "a", LONG + "a"), (LONG + "b", LONG + "a")),
    "words of databases": (("select", "table"), ("select", "from")),
}


NEIGHBOURS: dict[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "what was before": (("w", "price_before"), ("w", "price")),
    "the keys of what was before": (("w", "n_keys"), ("w", "n")),
    "an index": (("w", "price_key"), ("w", "price")),
    "the index of what was before": (("w", "price_before_key"), ("w", "price")),
    "what was before, in front": (("trident", "before_w_price"), ("w", "price")),
}


def _held(factory: StateFactory, spec: StateSpec) -> list[object]:
    with factory.make_state(spec) as state:
        return sorted(map(repr, state.items()))


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("make", [*FACTORIES.values(), *SINKS.values()], ids=[*FACTORIES, *SINKS])
def test_states_of_different_names_never_share_their_data(
    make: Callable[[Path], StateFactory], pair: str, tmp_path: Path
) -> None:
    factory = make(tmp_path)
    specs = []
    for topology, name in PAIRS[pair]:
        require_name("topology", topology)
        require_name("state", name)
        spec = counts(factory, topology=topology, name=name)
        if factory.capabilities.appends:
            spec = replace(spec, keys=(), values=spec.staged, combiners=())
        specs.append(spec)
    first, second = specs
    if _refused(first):
        return
    with factory.make_state(first) as state:
        applied(state, ticket(1, topology=first.topology), batch(first, ("a", 1)))
    before = _held(factory, first)
    assert len(before) == 1
    try:
        with factory.make_state(second) as state:
            assert state.marker() is None, "the marker of another state"
            assert applied(state, ticket(1, topology=second.topology), batch(second, ("b", 2))) is Applied.APPLIED
    except (ConfigurationError, DefinitionChangedError) as error:
        refusal = str(error)
    else:
        refusal = ""
        shares = factory.capabilities.by_reference  # a table of everybody's, with markers of each
        assert len(_held(factory, second)) == 1 + shares
        assert _held(factory, second) != before
        if shares:
            before = _held(factory, second)
    assert not refusal or second.name in refusal
    assert _held(factory, first) == before
    with factory.make_state(first) as state:
        assert applied(state, ticket(1, topology=first.topology), batch(first, ("a", 1))) is Applied.ALREADY


@pytest.mark.parametrize("turned", [False, True], ids=["in this order", "in the other order"])
@pytest.mark.parametrize("pair", NEIGHBOURS)
@pytest.mark.parametrize("make", [*FACTORIES.values(), *SINKS.values()], ids=[*FACTORIES, *SINKS])
def test_what_a_state_can_take_back_is_never_in_the_place_of_another_state(
    make: Callable[[Path], StateFactory], pair: str, turned: bool, tmp_path: Path
) -> None:
    factory = make(tmp_path)
    if not factory.capabilities.opaque or factory.capabilities.by_reference:
        return
    specs = []
    for topology, name in NEIGHBOURS[pair]:
        spec = replace(counts(factory, topology=topology, name=name), opaque=True)
        if factory.capabilities.appends:
            spec = replace(spec, keys=(), values=spec.staged, combiners=())
        specs.append(spec)
    first, second = reversed(specs) if turned else specs
    if _refused(first, "Give it another name"):
        return
    with factory.make_state(first) as state:
        applied(state, ticket(1, topology=first.topology), batch(first, ("a", 1)))
    before = _held(factory, first)
    assert len(before) == 1
    refusal = ""
    try:
        opened = factory.make_state(second)
    except ConfigurationError as error:
        refusal = str(error)
    else:
        with opened as state:
            assert applied(state, ticket(1, topology=second.topology), batch(second)) is Applied.APPLIED
            assert _held(factory, first) == before
            assert applied(state, ticket(2, topology=second.topology), batch(second, ("b", 2))) is Applied.APPLIED
            assert len(list(state.items())) == 1
    assert not refusal or (second.name in refusal and "another" in refusal)
    assert _held(factory, first) == before
    with factory.make_state(first) as state:
        applied(state, ticket(1, attempt=1, fence=15, topology=first.topology), batch(first, ("c", 3)))
        assert [(*key, *value) for key, value in state.items()] == [("c", 3)]


def _refused(spec: StateSpec, cure: str = "Shorten the name") -> bool:
    """Does the store say when the DAG is built that it cannot have such a name?"""
    try:
        spec.factory.validate(spec)
    except ConfigurationError as error:
        refusal = str(error)
    else:
        return False
    assert cure in refusal
    return True
