"""What every key-value state promises (K1 to K8 of `states.keyvalue`), over every provider and crippled ones: layers,
prepare, commit and rollback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_trident.errors import TransitionError
from airflow_trident.protocol.checkpoint import Marks, Step
from airflow_trident.states.keyvalue.base import StateProvider
from tests.fixtures.keyvalue import State, again, commit, committed, content, prepare, rollback


def layers(state: State) -> dict[str, Any]:
    """One key in every combination of layers: committed c, prepared p, pending w; a deletion is d."""
    committed(state, 1, c=1, cp=1, cw=1, cpw=1, cd=1, cpd=1, cdw=1)
    for key, value in {"p": 2, "cp": 2, "cpw": 2, "pw": 2, "cpd": 2, "pd": 2}.items():
        state.put(key, value)
    state.delete("cd")
    state.delete("cdw")
    prepare(state, 2)
    for key in ("w", "cw", "cpw", "pw", "cdw"):
        state.put(key, 3)
    state.delete("cpd")
    state.delete("pd")
    return {"c": 1, "p": 2, "cp": 2, "w": 3, "cw": 3, "cpw": 3, "pw": 3, "cdw": 3}


# ---- K1, K2: layers --------------------------------------------------------------------------------------------


def test_k1_reads_see_pending_over_prepared_over_committed_and_deletions_hide(state: State) -> None:
    expected = layers(state)
    for key in ("c", "p", "w", "cp", "cw", "cpw", "pw", "cd", "cpd", "pd", "cdw", "none"):
        assert state.get(key) == expected.get(key), key
        assert state.get(key, "default") == expected.get(key, "default"), key


def test_k1_an_iterator_sees_the_same_layers_and_each_key_once(state: State) -> None:
    expected = layers(state)
    assert content(state.iterator()) == expected
    assert content(state.committed_items()) == dict.fromkeys(("c", "cp", "cw", "cpw", "cd", "cpd", "cdw"), 1)


def test_k1_after_the_commit_the_iterator_still_sees_pending_writes_over_it(state: State) -> None:
    expected = layers(state)
    commit(state, 2)
    assert content(state.iterator()) == expected
    assert content(state.committed_items()) == {"c": 1, "p": 2, "cp": 2, "cw": 1, "cpw": 2, "cpd": 2, "pd": 2, "pw": 2}


def test_k1_deleting_gives_what_was_there(state: State) -> None:
    layers(state)
    assert [state.delete(key) for key in ("c", "p", "cp", "w", "cd", "none")] == [1, 2, 2, 3, None, None]
    assert state.delete("c") is None


def test_k1_writing_while_iterating_gives_no_key_twice_and_loses_none(state: State) -> None:
    names = {f"key{number}": number for number in range(1200)}
    committed(state, 1, **{key: value for key, value in names.items() if value % 2})
    for key, value in names.items():
        if not value % 2:
            state.put(key, value)
    seen = {}
    for key, value in state.iterator():
        assert key not in seen
        seen[key] = value
        state.put(key, value)
        if value % 3 == 0:
            state.delete(key)
    assert seen == names


def test_k1_a_step_while_iterating_gives_no_key_twice(state: State) -> None:
    committed(state, 1, **{f"key{number}": 1 for number in range(1200)})
    for number in range(600, 1800):
        state.put(f"key{number}", 2)
    prepare(state, 2)
    seen = []
    for key, _ in state.iterator():
        if len(seen) == 700:
            commit(state, 2)
        seen.append(key)
    assert sorted(seen) == sorted(f"key{number}" for number in range(1800))


def test_k1_a_forgotten_iterator_stands_in_nobodys_way(state: State, provider: StateProvider) -> None:
    committed(state, 1, **{f"key{number}": 1 for number in range(1200)})
    halfway = state.iterator()
    next(halfway)
    with provider.new_state("count-0") as other:
        committed(other, 2, fence=2, more=1)
    assert state.get("more") == 1


def test_k2_pending_writes_are_seen_by_no_other_instance_and_end_with_their_own(
    provider: StateProvider, state: State
) -> None:
    committed(state, 1, a=1)
    state.put("a", 2)
    state.put("b", 2)
    with provider.new_state("count-0") as other:
        assert content(other.iterator()) == {"a": 1}
        other.put("a", 3)
    with provider.new_state("count-0") as third:
        assert content(third.iterator()) == {"a": 1}
    state.discard()
    assert content(state.iterator()) == {"a": 1}


# ---- K3 to K6: prepare and commit ------------------------------------------------------------------------------


def test_k3_what_is_prepared_is_durable_and_not_yet_committed(provider: StateProvider, state: State) -> None:
    committed(state, 1, a=1, b=1)
    state.put("a", 2)
    state.delete("b")
    assert prepare(state, 2) is Step.DONE
    with provider.new_state("count-0") as other:
        assert other.marks() == Marks(prepared=2, committed=1, fence=1)
        assert content(other.committed_items()) == {"a": 1, "b": 1}
        assert content(other.iterator()) == {"a": 2}


def test_k3_preparing_the_same_txid_again_adds_to_it(state: State) -> None:
    state.put("a", 1)
    state.put("b", 1)
    prepare(state, 1)
    state.put("b", 2)
    state.delete("a")
    state.put("c", 2)
    assert prepare(state, 1) is Step.DONE
    commit(state, 1)
    assert content(state.committed_items()) == {"b": 2, "c": 2}


def test_k3_a_transaction_without_writes_is_prepared_and_committed_too(state: State) -> None:
    committed(state, 1, a=1)
    committed(state, 5)
    assert state.marks() == Marks(prepared=None, committed=5, fence=1)
    assert content(state.iterator()) == {"a": 1}


def test_k4_what_is_committed_is_seen_by_everybody_also_by_a_newer_committer(
    provider: StateProvider, state: State
) -> None:
    state.put("a", 1)
    prepare(state, 1, fence=1)
    with provider.new_state("count-0") as other:
        assert again(lambda: other.commit(1, fence=9)) in Step
        assert content(other.committed_items()) == {"a": 1}
        assert other.marks() == Marks(prepared=None, committed=1, fence=9)
    assert state.get("a") == 1


def test_k4_writes_after_the_prepare_belong_to_the_next_transaction(state: State) -> None:
    state.put("a", 1)
    prepare(state, 1)
    state.put("a", 2)
    commit(state, 1)
    assert content(state.committed_items()) == {"a": 1}
    committed(state, 2)
    assert content(state.committed_items()) == {"a": 2}


def test_k5_preparing_and_committing_again_what_is_committed_changes_nothing(state: State) -> None:
    committed(state, 3, a=1)
    state.put("a", state.get("a") + 1)
    assert prepare(state, 3) is Step.ALREADY
    assert content(state.iterator()) == {"a": 1}
    assert commit(state, 3) is Step.ALREADY
    assert content(state.iterator()) == {"a": 1}


def test_k5_a_repeated_commit_leaves_the_writes_of_the_next_transaction(state: State) -> None:
    committed(state, 3, a=1)
    state.put("a", 2)
    assert commit(state, 3) is Step.ALREADY
    committed(state, 4)
    assert content(state.committed_items()) == {"a": 2}


@pytest.mark.parametrize(
    ("step", "fence"),
    [
        (lambda state, fence: state.prepare_commit(6, fence=fence), 1),
        (lambda state, fence: state.prepare_commit(4, fence=fence), 1),
        (lambda state, fence: state.prepare_commit(3, fence=fence), 1),
        (lambda state, fence: state.prepare_commit(2, fence=fence), 1),
        (lambda state, fence: state.prepare_commit(5, fence=fence), 2),
        (lambda state, fence: state.commit(6, fence=fence), 1),
        (lambda state, fence: state.commit(3, fence=fence), 1),
        (lambda state, fence: state.commit(fence=fence), 1),
    ],
)
def test_k6_a_step_out_of_order_is_refused_and_changes_nothing(
    step: Callable[[State, int], Any], fence: int, state: State, provider: StateProvider
) -> None:
    committed(state, 3, a=1)
    state.put("a", 2)
    prepare(state, 5)
    state.put("a", 3)
    with pytest.raises(TransitionError, match="namespace 'count-0'"):
        step(state, fence)
    with provider.new_state("count-0") as other:
        assert other.marks() == Marks(prepared=5, committed=3, fence=1)
        assert (other.get("a"), content(other.committed_items())) == (2, {"a": 1})
    commit(state, 5)
    assert state.get("a") == 3, "the pending write was lost"


# ---- K7, K8: rollback, commit without a txid -------------------------------------------------------------------


def test_k7_rolling_back_leaves_the_committed_data_however_often(provider: StateProvider, state: State) -> None:
    committed(state, 1, a=1, b=1)
    state.put("a", 2)
    state.delete("b")
    prepare(state, 2)
    state.put("c", 3)
    for fence in (1, 1, 2):
        rollback(state, fence)
        assert content(state.iterator()) == {"a": 1, "b": 1}
        assert state.marks() == Marks(prepared=None, committed=1, fence=fence)
    with provider.new_state("count-0") as other:
        assert content(other.iterator()) == {"a": 1, "b": 1}


def test_k7_what_is_written_after_a_rollback_does_not_reach_the_committed_data(
    provider: StateProvider, state: State
) -> None:
    committed(state, 1, a=[1])
    state.put("a", [2])
    prepare(state, 2)
    rollback(state)
    state.put("a", [3])
    state.get("a").append(4)
    with provider.new_state("count-0") as other:
        assert content(other.iterator()) == {"a": [1]}
    rollback(state)
    assert state.get("a") == [1]
    committed(state, 2, b=1)
    assert content(state.committed_items()) == {"a": [1], "b": 1}


def test_k7_the_same_txid_can_be_prepared_anew_after_a_rollback(state: State) -> None:
    state.put("a", 1)
    prepare(state, 1)
    rollback(state, fence=2)
    committed(state, 1, fence=2, b=2)
    assert content(state.committed_items()) == {"b": 2}


def test_k8_a_commit_without_a_txid_writes_at_once_deletions_too(state: State) -> None:
    committed(state, 4, a=1, b=1)
    state.put("a", 2)
    state.delete("b")
    assert commit(state) is Step.DONE
    assert content(state.committed_items()) == {"a": 2}
    assert state.marks() == Marks(prepared=None, committed=4, fence=1)
