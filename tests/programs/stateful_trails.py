"""A stateful function that shows every loss, repetition and change of order, and its topology.

``python -m tests.programs.stateful_trails HOSTS ROOT FOLDER`` runs it to its end with a ledger in ZooKeeper, and
``... FOLDER`` alone kills children of its own (see `kill_everywhere`).
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import traceback
from pathlib import Path
from typing import Any

from airflow_trident import FixedBatchSpout, KeyValueStates, OperationContext, StatefulFunction, Topology
from airflow_trident.contracts.state import State, StateSpec
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.states.keyvalue.stateful import OpenStateful
from tests.fixtures.state import ticket
from tests.programs import watched

WORDS = ["one", "two", "three", "one", "two", "one", "four", "one", "five"]
ROWS = [(word,) for word in WORDS]
BATCH = 3
TRANSACTIONS = 3
KILL = "TRIDENT_TEST_KILL"
"""``<what>@<namespace>@<number>``: die before that call of a watched state. The file `died` makes it happen once."""


class Trails(StatefulFunction[str, Any]):
    """word -> the transactions with it, one for each time that it came; forgets a word that came four times."""

    def prepare(self, context: OperationContext) -> None:
        self.txid = context.txid

    def init_state(self, state: Any) -> None:
        self.state = state

    def execute(self, word: str) -> None:
        trail = self.state.get(word, []) + [self.txid]
        if len(trail) == 4:
            self.state.delete(word)
        else:
            self.state.put(word, trail)
        self.state.put("tuples", self.state.get("tuples", 0) + 1)

    def pre_prepare(self, txid: int) -> None:
        self.state.put("last", txid)


def topology(folder: Path, provider: str = "sqlite", partitions: int = 2) -> Topology:
    made = Topology("trails")
    stream = made.new_stream("words", FixedBatchSpout("word string", ROWS, BATCH))
    states = KeyValueStates(provider, {"path": str(folder / "trails.db")})
    stream.stateful("word", Trails(), provider=states, keys="word", partitions=partitions)
    return made


def spec(folder: Path, provider: str = "sqlite", partitions: int = 2) -> StateSpec:
    return topology(folder, provider, partitions).states["Trails"]


def contents(state: State) -> list[str]:
    """The content of the state as sorted texts; equal keys of several partitions stay apart."""
    return sorted(map(repr, state.items()))


def apply_rest(one: StateSpec, run: int, state: State) -> None:
    """Commit the missing transactions as a ledger would: the last one again, then those above, with fences of this
    run."""
    marker = state.marker()
    for txid in range(max(1, marker.high if marker else 1), TRANSACTIONS + 1):
        rows = ROWS[(txid - 1) * BATCH : txid * BATCH]
        state.apply(ticket(txid, fence=100 * run + txid, topology="trails"), rows_to_table(one.staged, rows))


# ---- kills between any two statements of SQLite ----------------------------------------------------------------


class Unsynced(sqlite3.Connection):
    """Does not wait for the disk: a killed process loses nothing that the operating system has."""

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:  # type: ignore[override]
        return super().execute(statement.replace("synchronous = FULL", "synchronous = OFF"), *parameters)


def kill_everywhere(folder: Path) -> dict[str, Any]:
    """For every statement: one child is killed before it, every second time another one somewhere in its recovery, and
    the last one runs to its end. Returns all contents that differ, and how many children were killed."""
    rows_to_table(spec(folder).staged, ROWS)  # imports, once, what every child would import
    undisturbed = _child(folder / "undisturbed", 1, None)
    statements, killed, recoveries = undisturbed["statements"], 0, 0
    different = []
    for number in range(1, statements + 1):
        place = folder / str(number)
        killed += _child(place, 1, number) is None
        recoveries += number % 2 == 0 and _child(place, 2, 1 + number * 7 % 40) is None
        final = _child(place, 3, None)
        if final["contents"] != undisturbed["contents"]:
            different.append((number, final["contents"]))
    return {
        "statements": statements,
        "killed": killed,
        "recoveries": recoveries,
        "different": different,
        "contents": undisturbed["contents"],
    }


def _child(folder: Path, run: int, kill_before: int | None) -> Any:
    """The report of a forked child; None if it was killed."""
    folder.mkdir(exist_ok=True, parents=True)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _run_and_report(folder, run, kill_before)
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return None
    assert os.WEXITSTATUS(status) == 0
    return json.loads((folder / "report").read_text())


def _run_and_report(folder: Path, run: int, kill_before: int | None) -> None:
    one = spec(folder)
    seen = 0

    def count(_: str) -> None:
        nonlocal seen
        seen += 1
        if seen == kill_before:
            os.kill(os.getpid(), signal.SIGKILL)

    original = sqlite3.connect

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = original(*arguments, factory=Unsynced, **options)
        connection.set_trace_callback(count)
        return connection

    sqlite3.connect = connect  # type: ignore[assignment]
    with one.factory.make_state(one) as state:
        assert isinstance(state, OpenStateful)
        apply_rest(one, run, state)
        statements = seen
        kill_before = None
        report = {"statements": statements, "contents": contents(state)}
    (folder / "report").write_text(json.dumps(report))


# ---- the whole topology with a real ledger ---------------------------------------------------------------------


def run_topology(hosts: str, root: str, folder: str) -> None:
    from airflow_trident.engine.local import LocalEngine
    from airflow_trident.ledger.open import open_ledger
    from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
    from airflow_trident.runtime.local import LocalRunner

    made = topology(Path(folder), watched.WATCHED)
    if os.environ.get(KILL):
        what, namespace, number = os.environ[KILL].split("@")
        left = int(number)

        def die(called: str, where: str) -> None:
            nonlocal left
            left -= (called, where) == (what, namespace)
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        watched.watchers.append(die)
    with open_ledger(ZooKeeperSettings(hosts=hosts), made.name, root=root) as ledger, LocalEngine() as engine:
        LocalRunner(ledger=ledger, topology=made, engine=engine, staging_root=f"{folder}/staging").run()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(json.dumps(kill_everywhere(Path(sys.argv[1]))))
    else:
        run_topology(*sys.argv[1:])
