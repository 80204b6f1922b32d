"""What every key-value state promises about committers that meet (K9 and K11 of `states.keyvalue`), over every provider
and crippled ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from airflow_trident.errors import FencedError, TransitionError
from airflow_trident.protocol.checkpoint import Marks
from airflow_trident.states.keyvalue.base import StateProvider
from airflow_trident.states.keyvalue.redis import RedisStateProvider
from airflow_trident.states.keyvalue.sqlite import SqliteStateProvider
from tests.fixtures.keyvalue import PROVIDERS, STEPS, State, again, commit, committed, content, prepare, rollback

REPOSITORY = Path(__file__).parent.parent.parent


# ---- K9: fences ------------------------------------------------------------------------------------------------


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
from airflow_trident.states.keyvalue.redis import RedisStateProvider
from airflow_trident.states.keyvalue.sqlite import SqliteStateProvider

provider, parity = eval(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
with provider.new_state("n") as state:
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


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_k11_two_processes_that_fight_for_one_namespace_never_lose_or_double_a_commit(
    tmp_path: Path, kind: str
) -> None:
    provider = PROVIDERS[kind](tmp_path)
    assert isinstance(provider, (SqliteStateProvider, RedisStateProvider))
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", INCREMENT, repr(provider), str(parity)],
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
    with provider.new_state("n") as state:
        last = state.marks().committed
        found = content(state.committed_items())
    assert last == 80
    assert found["n"] == last == len(found) - 1
    assert {found[txid] for txid in range(1, last + 1)} == {0, 1}
