"""States in a file and processes that die by SIGKILL in the middle: run again, they end as one that was not killed."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_trident.contracts.state import Applied, StateSpec
from airflow_trident.states.sql.sqlite import SqliteState
from tests.fixtures.program import Waiting, run_code
from tests.fixtures.state import Product, batch, content, counts, product, ticket

SPECS = {"added by the store": counts, "merged by us": product}
OPAQUE = {f"opaque, {kind}": kind for kind in SPECS}
ROWS = [(f"w{number}", 1 + number % 3) for number in range(2000)]

WORKER = """
import os, signal, sys
from tests.integration.test_states_crash import ROWS, spec_of
from tests.fixtures.state import batch, ticket

path, kind, where, txid, attempt = sys.argv[1:]
spec = spec_of(kind, path)
state = spec.factory.make_state(spec)
statements = []


def trace(statement):
    # Called before each statement runs.
    word = statement.split()[0]
    statements.append(word)
    if where == word and (word != "INSERT" or statements.count("INSERT") == 1000):
        os.kill(os.getpid(), signal.SIGKILL)


state.dialect.file.connection.set_trace_callback(trace)
print("ready", flush=True)
sys.stdin.read()
answer = state.apply(ticket(int(txid), attempt=int(attempt)), batch(spec, *ROWS))
if where == "after":
    os.kill(os.getpid(), signal.SIGKILL)
print(answer.value, flush=True)
"""


def start(path: Path, kind: str, where: str, txid: int, attempt: int = 0) -> Waiting:
    """A process that has opened the state and waits for its turn; it dies at `where`."""
    return Waiting(WORKER, path, kind, where, txid, attempt)


def spec_of(kind: str, path: Path | str) -> StateSpec:
    return replace(SPECS[OPAQUE.get(kind, kind)](SqliteState(str(path))), opaque=kind in OPAQUE)


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("where", ["BEGIN", "INSERT", "UPDATE", "COMMIT", "after"])
def test_a_committer_killed_at_any_statement_and_run_again_ends_as_one_that_was_not(
    tmp_path: Path, kind: str, where: str
) -> None:
    whole, killed = tmp_path / "whole.db", tmp_path / "killed.db"
    for path in (whole, killed):
        spec = spec_of(kind, path)
        with spec.factory.make_state(spec) as state:
            state.apply(ticket(1), batch(spec, *ROWS[:500], ("only here", 7)))
            before = state.marker(), content(state)

    assert start(killed, kind, where, 2).ended()[0] == -signal.SIGKILL
    spec = spec_of(kind, killed)
    with spec.factory.make_state(spec) as state:
        if where != "after":
            assert (state.marker(), content(state)) == before, "all or nothing"
        answer = state.apply(ticket(2), batch(spec, *ROWS))
        assert answer is (Applied.ALREADY if where == "after" else Applied.APPLIED)
        after_kill = state.marker(), content(state)

    assert start(whole, kind, "nowhere", 2).ended() == (0, "applied")
    spec = spec_of(kind, whole)
    with spec.factory.make_state(spec) as state:
        assert (state.marker(), content(state)) == after_kill


@pytest.mark.parametrize("kind", OPAQUE)
@pytest.mark.parametrize("where", ["BEGIN", "DELETE", "INSERT", "UPDATE", "COMMIT", "after"])
def test_a_committer_killed_while_it_replaces_a_batch_leaves_the_old_batch_or_the_new_one(
    tmp_path: Path, kind: str, where: str
) -> None:
    path = tmp_path / "states.db"
    spec = spec_of(kind, path)
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, *ROWS[:500], ("only in 1", 7)))
        state.apply(ticket(2), batch(spec, *ROWS[:300], ("only in the old batch", 7)))
        before = state.marker(), content(state)

    assert start(path, kind, where, 2, attempt=1).ended()[0] == -signal.SIGKILL
    with spec.factory.make_state(spec) as state:
        if where != "after":
            assert (state.marker(), content(state)) == before, "all or nothing"
        answer = state.apply(ticket(2, attempt=1), batch(spec, *ROWS))
        assert answer is (Applied.ALREADY if where == "after" else Applied.APPLIED)
        found = content(state)

    undisturbed = replace(spec, name="undisturbed")
    with undisturbed.factory.make_state(undisturbed) as state:
        state.apply(ticket(1), batch(spec, *ROWS[:500], ("only in 1", 7)))
        state.apply(ticket(2), batch(spec, *ROWS))
        assert content(state) == found


@pytest.mark.parametrize("kind", SPECS)
def test_of_many_processes_at_once_exactly_one_applies_a_txid(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "states.db"
    spec = spec_of(kind, path)
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("w0", 5)))
    workers = [start(path, kind, "nowhere", 2) for _ in range(3)]
    for worker in workers:
        worker.go_on()
    ends = [worker.ended() for worker in workers]
    assert [code for code, _ in ends] == [0] * len(workers)
    assert sorted(said for _, said in ends) == ["already applied", "already applied", "applied"]
    with spec.factory.make_state(spec) as state:
        assert state.marker() is not None
        expected = {(word,): (n,) for word, n in ROWS}
        expected[("w0",)] = (5 + 1,) if kind == "added by the store" else (5 * 1,)
        assert content(state) == expected


def test_a_state_that_does_not_exist_yet_is_made_by_many_processes_at_once(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from airflow_trident.states.sql.sqlite import SqliteState\n"
        "from tests.fixtures.state import batch, counts, ticket\n"
        "spec = counts(SqliteState(sys.argv[1]))\n"
        "print('ready', flush=True); sys.stdin.read()\n"
        "with spec.factory.make_state(spec) as state:\n"
        "    print(state.apply(ticket(1), batch(spec, ('a', 1))).value)\n"
    )
    path = tmp_path / "new" / "folder" / "states.db"
    workers = [Waiting(script, path) for _ in range(4)]
    for worker in workers:
        worker.go_on()
    ends = [worker.ended() for worker in workers]
    assert [code for code, _ in ends] == [0] * len(workers)
    assert sorted(said for _, said in ends) == ["already applied"] * 3 + ["applied"]


class Dying(Product):
    """Kills the process in the middle of the user's own code."""

    def combine(self, left: int, right: int) -> int:
        import os

        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def test_a_committer_killed_inside_the_users_combiner_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "states.db"
    spec = product(SqliteState(str(path)))
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 2), ("b", 3)))
        before = state.marker(), content(state)
    script = (
        "import sys\n"
        "from airflow_trident.states.sql.sqlite import SqliteState\n"
        "from tests.integration.test_states_crash import Dying\n"
        "from tests.fixtures.state import batch, combined, ticket\n"
        "spec = combined(SqliteState(sys.argv[1]), 'word string', 'n long', Dying())\n"
        "spec.factory.make_state(spec).apply(ticket(2), batch(spec, ('new', 1), ('b', 5)))\n"
    )
    assert run_code(script, path).returncode == -signal.SIGKILL
    with spec.factory.make_state(spec) as state:
        assert (state.marker(), content(state)) == before
        assert state.apply(ticket(2), batch(spec, ("new", 1), ("b", 5))) is Applied.APPLIED
        assert content(state) == {("a",): (2,), ("b",): (15,), ("new",): (1,)}
