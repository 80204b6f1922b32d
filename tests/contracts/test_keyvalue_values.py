"""What every key-value state promises about keys and values (K12 of `states.keyvalue`), and any order of steps against
the meaning, over every provider and crippled ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fixtures.keyvalue import PROVIDERS, State, commit, content, prepare, rollback

# ---- K12: keys and values --------------------------------------------------------------------------------------


def test_k12_keys_of_different_types_are_different_keys(state: State) -> None:
    keys = [1, 1.0, True, "1", None, "null", "", 0, False, "a b", ("a", "b"), ("a", ("b",)), {"a": 1}, -1, 2**70, 1e300]
    for number, key in enumerate(keys):
        state.put(key, number)
    prepare(state, 1)
    commit(state, 1)
    assert [state.get(key) for key in keys] == list(range(len(keys)))
    found = [(key, type(key)) for key, _ in state.iterator()]
    assert sorted(map(repr, found)) == sorted(repr((key, type(key))) for key in keys)


def test_k12_lists_and_tuples_are_one_key_and_minus_zero_is_zero_and_order_in_dicts_is_none(state: State) -> None:
    state.put(["a", (1, 2)], "pair")
    state.put(-0.0, "zero")
    state.put({"x": 1, "y": [2]}, "map")
    assert state.get(("a", [1, 2])) == "pair"
    assert state.get(0.0) == "zero"
    assert state.get({"y": (2,), "x": 1}) == "map"


@pytest.mark.parametrize("bad", [object(), b"bytes", {1, 2}, float("nan"), float("inf"), {1: "a"}, [object()]])
def test_k12_what_json_cannot_hold_is_refused_when_it_is_put(bad: Any, state: State) -> None:
    with pytest.raises(ValueError, match="JSON"):
        state.put("key", bad)
    with pytest.raises(ValueError, match="JSON"):
        state.put(bad, "value")
    with pytest.raises(ValueError, match="JSON"):
        state.get(bad)
    assert content(state.iterator()) == {}


def test_k12_a_value_that_would_come_back_changed_is_refused(state: State) -> None:
    class Number(int):
        pass

    for bad in ((1, 2), {"a": (1,)}, [{1: 2}], {True: 1}, Number(3), [Number(3)]):
        with pytest.raises(ValueError, match="come back"):
            state.put("key", bad)


def test_k12_values_come_back_as_they_were_and_none_is_a_value(state: State) -> None:
    values = [None, True, 0, -0.0, 1.5, 2**70, "", "\ud800 \x00 ä", [], {}, [[1.0, 1], {"a": None}]]
    for number, value in enumerate(values):
        state.put(number, value)
    prepare(state, 1)
    commit(state, 1)
    assert [repr(state.get(number, "absent")) for number in range(len(values))] == list(map(repr, values))


def test_k12_changing_a_value_that_was_put_or_got_changes_no_state(state: State) -> None:
    value = {"n": [1]}
    state.put("a", value)
    value["n"].append(2)
    state.get("a")["n"].append(3)
    prepare(state, 1)
    commit(state, 1)
    next(state.iterator())[1]["n"].append(4)
    assert state.get("a") == {"n": [1]}


# ---- any order of steps, against the meaning -------------------------------------------------------------------

KEYS = st.sampled_from(["a", "b", "c"])
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.integers(0, 9)),
        st.tuples(st.just("delete"), KEYS, st.none()),
        st.tuples(st.sampled_from(["prepare", "commit", "rollback", "direct", "discard", "reopen"]), KEYS, st.none()),
    ),
    max_size=30,
)


@pytest.mark.parametrize("kind", PROVIDERS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=MOVES)
def test_any_order_of_steps_ends_as_three_plain_dicts_say(
    kind: str, moves: list[tuple[str, str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    provider = PROVIDERS[kind](tmp_path_factory.mktemp("model"))
    pending: dict[str, Any] = {}
    prepared: dict[str, Any] | None = None
    stored: dict[str, Any] = {}
    txid = 1
    state = provider.new_state("n")

    def onto(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in {**below, **above}.items() if value is not None}

    for move, key, value in moves:
        if move == "put":
            state.put(key, value)
            pending[key] = value
        elif move == "delete":
            state.delete(key)
            pending[key] = None
        elif move == "prepare":
            prepare(state, txid)
            prepared, pending = {**(prepared or {}), **pending}, {}
        elif move == "commit" and prepared is not None:
            commit(state, txid)
            stored, prepared, txid = onto(stored, prepared), None, txid + 1
        elif move == "direct" and prepared is None:
            commit(state)
            stored, pending = onto(stored, pending), {}
        elif move == "rollback":
            rollback(state)
            prepared, pending = None, {}
        elif move == "discard":
            state.discard()
            pending = {}
        elif move == "reopen":
            state.close()
            state = provider.new_state("n")
            pending = {}
        assert content(state.iterator()) == onto(stored, {**(prepared or {}), **pending})
        assert content(state.committed_items()) == stored
    state.close()
