"""`python -m benchmarks.states`: does a commit cost O(batch) or O(state)?

Each state gets batches of the same size before and after it grows. The table shows milliseconds of a commit, and by
which factor the commit of the large state takes longer.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from airflow_trident import DeltaState, RedisState, SqliteState
from airflow_trident.contracts.state import State, StateFactory, StateSpec
from tests.fixtures.postgres import postgres_state, sql_state
from tests.fixtures.redis import settings_of_a_new_database
from tests.fixtures.state import batch, counts, product, ticket

STORES: dict[str, Callable[[Path], StateFactory]] = {
    "sqlite": lambda folder: SqliteState(str(folder / "states.db")),
    "postgres": postgres_state,
    "sqlalchemy": sql_state,
    "redis": lambda _folder: RedisState(**settings_of_a_new_database()),
    "delta": lambda folder: DeltaState(str(folder / "states")),
}
KINDS: dict[str, Callable[[StateFactory], StateSpec]] = {"added by the store": counts, "merged by us": product}
_LOADED_AT_ONCE = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """`small_ms`, `large_ms`: median time of one commit, to a small and to a large state."""

    small_ms: float
    large_ms: float

    @property
    def ratio(self) -> float:
        return self.large_ms / self.small_ms


class Bench:
    """One open state and the next txid."""

    def __init__(self, state: State, spec: StateSpec) -> None:
        self._state = state
        self._spec = spec
        self._txid = 0
        self._keys = 0
        self._chosen = random.Random(7)

    def grow(self, keys: int) -> None:
        """Add keys until the state has this many."""
        while self._keys < keys:
            end = min(keys, self._keys + _LOADED_AT_ONCE)
            self._apply([f"key {number}" for number in range(self._keys, end)])
            self._keys = end

    def commit_ms(self, rows: int, commits: int) -> float:
        """The median of some commits. The first commit after loading does not count, because of caches."""
        times = [self._apply(self._sample(rows)) for _ in range(commits + 1)]
        return statistics.median(times[1:])

    def _sample(self, rows: int) -> list[str]:
        return [f"key {number}" for number in self._chosen.sample(range(self._keys), rows)]

    def _apply(self, words: list[str]) -> float:
        self._txid += 1
        table = batch(self._spec, *((word, 1) for word in words))
        began = time.perf_counter()
        self._state.apply(ticket(self._txid), table)
        return (time.perf_counter() - began) * 1000


def measure(store: str, kind: str, *, keys: int, factor: int, rows: int, commits: int) -> Growth:
    with tempfile.TemporaryDirectory(prefix="trident-states-") as folder:
        spec = KINDS[kind](STORES[store](Path(folder)))
        with spec.factory.make_state(spec) as state:
            bench = Bench(state, spec)
            bench.grow(keys)
            small_ms = bench.commit_ms(rows, commits)
            bench.grow(keys * factor)
            return Growth(small_ms=small_ms, large_ms=bench.commit_ms(rows, commits))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.states", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--store", action="append", choices=STORES, help="leave out all others")
    parser.add_argument("--keys", type=int, default=10_000, help="of the small state (default: 10,000)")
    parser.add_argument("--factor", type=int, default=100, help="how much larger the large one is (default: 100)")
    parser.add_argument("--rows", type=int, default=500, help="of one batch (default: 500)")
    parser.add_argument("--commits", type=int, default=15, help="measured of each size (default: 15)")
    given = parser.parse_args()
    print(f"ms per commit of {given.rows} rows, median of {given.commits}\n")
    print(f"| state | merged by | {given.keys:,} keys | {given.keys * given.factor:,} keys | ratio |")
    print("|---|---|---|---|---|")
    for store in given.store or STORES:
        for kind in KINDS:
            growth = measure(store, kind, keys=given.keys, factor=given.factor, rows=given.rows, commits=given.commits)
            print(
                f"| {store} | {kind} | {growth.small_ms:.1f} | {growth.large_ms:.1f} | {growth.ratio:.2f} |", flush=True
            )


if __name__ == "__main__":
    main()
