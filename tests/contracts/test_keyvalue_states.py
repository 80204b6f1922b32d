"""What every key-value state promises (K1 to K12 of `states.keyvalue`), over every provider and crippled ones."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_trident.errors import (
    ConfigurationError,
    CorruptRecordError,
    FencedError,
    NewerRecordError,
    OutcomeUnknownError,
    StoreUnavailableError,
    TransitionError,
)
from airflow_trident.protocol.checkpoint import Marks, Step
from airflow_trident.states.keyvalue import KeyValueState, StateProvider
from airflow_trident.states.keyvalue_memory import MemoryStateProvider
from airflow_trident.states.keyvalue_sqlite import SqliteKeyValueState, SqliteStateProvider

REPOSITORY = Path(__file__).parent.parent.parent
State = KeyValueState[Any, Any]

# ---- the implementations ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Forgetful(StateProvider):
    """Crippled: every step happens, and the first answer of it is lost."""

    inner: StateProvider

    @property
    def capabilities(self) -> Any:  # type: ignore[override]
        return self.inner.capabilities

    def new_state(self, namespace: str) -> State:
        return ForgetfulState(self.inner.new_state(namespace))

    def describe(self) -> str:
        return f"{self.inner.describe()} that loses its answers"


class ForgetfulState(State):
    def __init__(self, inner: State) -> None:
        self.inner = inner
        self.namespace = inner.namespace
        self._lost: set[Any] = set()

    def _losing(self, what: Any, answer: Any) -> Any:
        if what not in self._lost:
            self._lost.add(what)
            raise OutcomeUnknownError("the answer was lost", "Run it again.")
        return answer

    def get(self, key: Any, default: Any = None) -> Any:
        return self.inner.get(key, default)

    def put(self, key: Any, value: Any) -> None:
        self.inner.put(key, value)

    def delete(self, key: Any) -> Any:
        return self.inner.delete(key)

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        return self.inner.iterator()

    def committed_items(self) -> Iterator[tuple[Any, Any]]:
        return self.inner.committed_items()

    def prepare_commit(self, txid: int, *, fence: int) -> Step:
        return self._losing(("prepare", txid, fence), self.inner.prepare_commit(txid, fence=fence))

    def commit(self, txid: int | None = None, *, fence: int) -> Step:
        return self._losing(("commit", txid, fence), self.inner.commit(txid, fence=fence))

    def rollback(self, *, fence: int) -> None:
        self._losing(("rollback", fence), self.inner.rollback(fence=fence))

    def discard(self) -> None:
        self.inner.discard()

    def marks(self) -> Marks:
        return self.inner.marks()

    def close(self) -> None:
        self.inner.close()


PROVIDERS: dict[str, Callable[[Path], StateProvider]] = {
    "memory": lambda folder: MemoryStateProvider(str(folder)),
    "sqlite": lambda folder: SqliteStateProvider(str(folder / "states.db")),
    "memory that loses its answers": lambda folder: Forgetful(MemoryStateProvider(str(folder))),
    "sqlite that loses its answers": lambda folder: Forgetful(SqliteStateProvider(str(folder / "states.db"))),
}


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest, tmp_path: Path) -> StateProvider:
    return PROVIDERS[request.param](tmp_path)


@pytest.fixture
def state(provider: StateProvider) -> Iterator[State]:
    with provider.new_state("count-0") as opened:
        yield opened


def again(step: Callable[[], Any]) -> Any:
    """A caller that runs a step again when its answer is lost."""
    try:
        return step()
    except OutcomeUnknownError:
        return step()


def prepare(state: State, txid: int, fence: int = 1) -> Any:
    return again(lambda: state.prepare_commit(txid, fence=fence))


def commit(state: State, txid: int | None = None, fence: int = 1) -> Any:
    return again(lambda: state.commit(txid, fence=fence))


def rollback(state: State, fence: int = 1) -> Any:
    return again(lambda: state.rollback(fence=fence))


def committed(state: State, txid: int, fence: int = 1, **writes: Any) -> None:
    """Commit some writes; None deletes."""
    for key, value in writes.items():
        if value is None:
            state.delete(key)
        else:
            state.put(key, value)
    prepare(state, txid, fence)
    commit(state, txid, fence)


def content(pairs: Iterator[tuple[Any, Any]]) -> dict[Any, Any]:
    found = list(pairs)
    assert len(dict(found)) == len(found), "a key came twice"
    return dict(found)


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


# ---- K9: fences ------------------------------------------------------------------------------------------------

STEPS: dict[str, Callable[[State, int], Any]] = {
    "prepare": lambda state, fence: state.prepare_commit(2, fence=fence),
    "prepare what is committed": lambda state, fence: state.prepare_commit(1, fence=fence),
    "commit": lambda state, fence: state.commit(2, fence=fence),
    "commit what is committed": lambda state, fence: state.commit(1, fence=fence),
    "commit at once": lambda state, fence: state.commit(fence=fence),
    "roll back": lambda state, fence: state.rollback(fence=fence),
}


@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_k9_a_zombie_is_refused_at_every_step_and_changes_nothing(
    step: str, prepared: bool, provider: StateProvider, state: State
) -> None:
    with provider.new_state("count-0") as zombie:
        zombie.put("a", 7)
        committed(state, 1, fence=5, a=1)
        if prepared:
            state.put("a", 2)
            prepare(state, 2, fence=5)
        before = state.marks(), content(state.iterator()), content(state.committed_items())
        with pytest.raises(FencedError, match="fence 5"):
            STEPS[step](zombie, 4)
        assert (state.marks(), content(state.iterator()), content(state.committed_items())) == before


@pytest.mark.parametrize(
    "step", ["prepare what is committed", "commit what is committed", "roll back", "commit at once"]
)
def test_k9_a_higher_fence_is_recorded_also_when_nothing_else_is_to_do(step: str, state: State) -> None:
    committed(state, 1, a=1)
    again(lambda: STEPS[step](state, 8))
    assert state.marks() == Marks(prepared=None, committed=1, fence=8)
    with pytest.raises(FencedError):
        state.prepare_commit(2, fence=7)


def test_k9_two_committers_of_one_transaction_apply_it_once(provider: StateProvider) -> None:
    with provider.new_state("count-0") as old, provider.new_state("count-0") as new:
        committed(old, 1, fence=1, n=1)
        for one in (old, new):
            one.put("n", one.get("n") + 1)
        prepare(old, 2, fence=2)
        with pytest.raises(TransitionError, match="what another left"):
            new.prepare_commit(2, fence=3)
        rollback(new, fence=3)
        new.put("n", new.get("n") + 1)
        prepare(new, 2, fence=3)
        with pytest.raises(FencedError):
            old.commit(2, fence=2)
        commit(new, 2, fence=3)
        assert content(old.iterator()) == {"n": 2}


# ---- K10: cost -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1_000, 20_000])
def test_k10_the_work_of_a_step_does_not_grow_with_the_state(rows: int, tmp_path: Path) -> None:
    """Counted in instructions of SQLite's machine, so that it does not depend on the machine of the test."""
    with SqliteStateProvider(str(tmp_path / "states.db")).new_state("n") as state:
        for number in range(rows):
            state.put(number, number)
        state.prepare_commit(1, fence=1)
        state.commit(1, fence=1)
        ticks = 0

        def tick() -> int:
            nonlocal ticks
            ticks += 1
            return 0

        state._connection.set_progress_handler(tick, 1)
        for number in range(10):
            state.put(number, -1)
            state.delete(number + 500)
        state.prepare_commit(2, fence=1)
        state.commit(2, fence=1)
        state.put(1, 1)
        state.prepare_commit(3, fence=1)
        state.rollback(fence=1)
        assert 0 < ticks < 3_000


# ---- K11: namespaces, processes --------------------------------------------------------------------------------


def test_k11_namespaces_do_not_see_each_other(provider: StateProvider) -> None:
    with provider.new_state("count-1") as one, provider.new_state("count-10") as ten:
        committed(one, 1, fence=9, a=1)
        ten.put("a", 10)
        prepare(ten, 5, fence=2)
        rollback(one, fence=9)
        assert (one.marks(), ten.marks()) == (Marks(committed=1, fence=9), Marks(prepared=5, fence=2))
        commit(ten, 5, fence=2)
        assert (content(one.iterator()), content(ten.iterator())) == ({"a": 1}, {"a": 10})


INCREMENT = """
import sys
from airflow_trident.errors import FencedError
from airflow_trident.states.keyvalue_sqlite import SqliteStateProvider

path, parity = sys.argv[1], int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
with SqliteStateProvider(path).new_state("n") as state:
    done = 0
    while done < 40:
        marks = state.marks()
        fence = marks.fence + 1 + (marks.fence + 1 + parity) % 2  # a fence that only this process uses
        try:
            state.rollback(fence=fence)  # from here on whoever is older is refused
            txid = state.marks().committed + 1
            state.put("n", state.get("n", 0) + 1)
            state.put(txid, parity)
            state.prepare_commit(txid, fence=fence)
            state.commit(txid, fence=fence)
            done += 1
        except FencedError:
            state.discard()
"""


def test_k11_two_processes_that_fight_for_one_namespace_never_lose_or_double_a_commit(tmp_path: Path) -> None:
    path = str(tmp_path / "states.db")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", INCREMENT, path, str(parity)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for parity in (0, 1)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.communicate("go\n")
        assert process.returncode == 0
    with SqliteStateProvider(path).new_state("n") as state:
        last = state.marks().committed
        found = content(state.committed_items())
    assert last == 80
    assert found["n"] == last == len(found) - 1
    assert {found[txid] for txid in range(1, last + 1)} == {0, 1}


@pytest.mark.parametrize("step", ["prepare", "commit", "commit at once", "roll back"])
def test_k9_k11_nobody_gets_between_the_check_of_a_fence_and_the_write(step: str, tmp_path: Path) -> None:
    """A newer committer tries before every statement of a step: it comes before the step or after it."""
    before: set[str] = set()
    for number in range(1, 9):
        path = str(tmp_path / f"{number}.db")
        with (
            SqliteStateProvider(path).new_state("n") as old,
            SqliteStateProvider(path, busy_timeout_s=0.0).new_state("n") as newer,
        ):
            committed(old, 1, fence=5, a=1)
            old.put("a", 2)
            if step == "commit":
                prepare(old, 2, fence=5)
            statements, overtook = 0, False

            def overtake(_: str, number: int = number, newer: State = newer) -> None:
                nonlocal statements, overtook
                statements += 1
                if statements == number:
                    try:
                        newer.rollback(fence=9)
                        overtook = True
                    except StoreUnavailableError:
                        overtook = False

            old._connection.set_trace_callback(overtake)
            try:
                STEPS[step](old, 5)
                before.add("done")
                assert not overtook
            except FencedError:
                before.add("fenced")
                assert overtook
            old._connection.set_trace_callback(None)
            assert old.marks().fence == (9 if overtook else 5)
    assert before == {"done", "fenced"}


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


# ---- what SQLite alone can meet --------------------------------------------------------------------------------


def test_a_file_of_a_newer_version_is_not_guessed_at(tmp_path: Path) -> None:
    provider = SqliteStateProvider(str(tmp_path / "states.db"))
    provider.new_state("n").close()
    connection = sqlite3.connect(provider.path)
    connection.execute("UPDATE trident_keyvalue_format SET version = 2")
    connection.commit()
    connection.close()
    with pytest.raises(NewerRecordError, match="version 2"):
        provider.new_state("n")


def test_a_damaged_value_is_an_error_and_not_a_missing_key(tmp_path: Path) -> None:
    provider = SqliteStateProvider(str(tmp_path / "states.db"))
    with provider.new_state("n") as state:
        committed(state, 1, a=1)
        state._connection.execute("UPDATE trident_keyvalue_committed SET value = '{'")
        with pytest.raises(CorruptRecordError, match="namespace 'n'"):
            state.get("a")


def test_a_file_that_is_no_database_or_locked_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no database, and long enough to be told apart from one\n" * 20)
    with pytest.raises(ConfigurationError, match="not an SQLite file"):
        SqliteStateProvider(str(tmp_path / "text")).new_state("n")
    with SqliteStateProvider(str(tmp_path / "states.db"), busy_timeout_s=0.0).new_state("n") as state:
        assert isinstance(state, SqliteKeyValueState)
        other = sqlite3.connect(state.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        state.put("a", 1)
        with pytest.raises(StoreUnavailableError, match="locked"):
            state.prepare_commit(1, fence=1)
        other.execute("ROLLBACK")
        other.close()
        committed(state, 1)
        assert state.get("a") == 1, "the pending write was lost"


@pytest.mark.parametrize("path", ["", ":memory:", "file:x?mode=memory", 7])
def test_a_path_that_is_no_file_is_refused(path: Any) -> None:
    with pytest.raises(ConfigurationError, match="the path of a file"):
        SqliteStateProvider(path)
