"""`python -m benchmarks.whole_commit`: processor time of a whole commit, from the gate to COMMITTED, and of its parts.

A topology counts words; behind the counts are other states, in the commit phase. Its second transaction changes every
key that the first one made, and its commit is measured. With `--tree FOLDER` another checkout of the package runs the
same in interleaved rounds. The ledger is in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from airflow_trident import Count, FixedBatchSpout, MemoryState, SqliteState, Sum, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.runtime import commit
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.local import LocalRunner

HERE = Path(__file__).resolve().parents[1]
TRANSACTIONS = 2
Behind = Callable[[Any, Any], None]


def score_of(word: str, count: int) -> Iterator[int]:
    yield len(word) * 7 + count


def nothing(new: Any, store: Any) -> None:
    """Nothing behind the counts."""


def few_groups(new: Any, store: Any) -> None:
    new.group_by("count").persistent_aggregate(store, Count(), "words", name="behind")


def as_many_groups(new: Any, store: Any) -> None:
    new.group_by("word").persistent_aggregate(store, "count", Sum(), "total", name="behind")


def function_of_a_tuple(new: Any, store: Any) -> None:
    scored = new.each("word, count", score_of, "score long")
    scored.group_by("score").persistent_aggregate(store, Count(), "words", name="behind")


SHAPES: dict[str, Behind] = {
    "nothing": nothing,
    "count of few groups": few_groups,
    "sum of as many groups": as_many_groups,
    "function of a tuple, few groups": function_of_a_tuple,
}
STORES = ("in memory", "SQLite")
PARTS = ("into states", "new values", "levels", "rest")


def play(shape: str, store_kind: str, rows: int) -> dict[str, float]:
    """Milliseconds of processor time of the second commit, and of its parts."""
    spent: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteState(str(Path(folder) / "states.db")) if store_kind == "SQLite" else MemoryState(folder)
        topology = Topology("whole_commit")
        words = [(f"w{number * 7919 % rows}",) for number in range(rows)] * TRANSACTIONS
        counts = topology.new_stream("words", FixedBatchSpout("word string", words, rows)).group_by("word")
        made = counts.persistent_aggregate(store, Count(), "count", name="counts")
        if shape != "nothing":
            SHAPES[shape](made.new_values_stream(), store)
        ledger, engine = _ledger(topology.name), LocalEngine()
        _watch(spent)
        LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=f"{folder}/staging").run()
    found = {part: spent[part] for part in PARTS[:-1]}
    return {"commit": spent["commit"], **found, "rest": spent["commit"] - sum(found.values())}


def _ledger(name: str) -> Any:
    try:
        from airflow_trident.ledger.ledger import ZNodeLedger
        from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
    except ImportError:  # an older tree
        from airflow_trident.ledger.ledger import MemoryLedger  # type: ignore[import-not-found]

        return MemoryLedger(name)
    return ZNodeLedger(MemoryZNodes(MemoryTree()), name)


def _watch(spent: Counter[str]) -> None:
    """Count the time of each part of the last commit."""
    try:
        from airflow_trident.runtime import downstream
    except ImportError:  # an older tree
        from airflow_trident.runtime import commit_phase as downstream  # type: ignore[attr-defined, no-redef]

    def timed(part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*args: Any, **named: Any) -> Any:
            if part == "commit":
                spent.clear()
            began = time.process_time()
            try:
                return call(*args, **named)
            finally:
                spent[part] += 1000 * (time.process_time() - began)

        return measured

    def watched(make: Callable[..., Any]) -> Callable[..., Any]:
        def make_state(*args: Any, **named: Any) -> Any:
            state = make(*args, **named)
            kind = type(state)
            if "measured" not in kind.apply.__name__:
                kind.apply = timed("into states", kind.apply)
            return state

        return make_state

    if hasattr(commit, "apply_batch"):
        commit.apply_batch = timed("into states", commit.apply_batch)
    else:  # an older tree
        for kind in (MemoryState, SqliteState):
            kind.make_state = watched(kind.make_state)  # type: ignore[method-assign]
    downstream.new_values = timed("new values", downstream.new_values)
    lazily = LocalEngine.tables
    LocalEngine.tables = timed("levels", lambda *args, **named: list(lazily(*args, **named)))  # type: ignore[method-assign]
    Committer.commit = timed("commit", Committer.commit)  # type: ignore[method-assign]


def asked(tree: Path, shape: str, store: str, rows: int) -> dict[str, float]:
    """Run the same in a process of its own, with the package of that tree."""
    command = [sys.executable, str(Path(__file__).resolve()), "--play", shape, store, "--rows", str(rows)]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, env=environment, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    parser.add_argument("--tree", type=Path, help="another checkout, in interleaved rounds")
    parser.add_argument("--play", nargs=2, metavar=("SHAPE", "STORE"), help="one of them, in this process")
    given = parser.parse_args()
    if given.play:
        print(json.dumps(play(*given.play, given.rows)))
        return 0
    print(f"{given.rows:,} keys changed, n = {given.runs}, milliseconds of processor time\n")
    print(f"| behind the counts | store | {'tree | ' * bool(given.tree)}commit | {' | '.join(PARTS)} |")
    print("|---" * (7 + bool(given.tree)) + "|")
    for store in given.stores:
        for shape in SHAPES:
            trees = [HERE] if given.tree is None else [given.tree.resolve(), HERE]
            rounds = [[asked(tree, shape, store, given.rows) for tree in trees] for _ in range(given.runs)]
            for place, tree in enumerate(trees):
                means = {part: statistics.median(one[place][part] for one in rounds) for part in ("commit", *PARTS)}
                named = f"{tree.name} | " if given.tree else ""
                print(
                    f"| {shape} | {store} | {named}" + " | ".join(f"{ms:,.0f}" for ms in means.values()) + " |",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
