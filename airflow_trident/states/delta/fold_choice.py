"""Which files of a Delta state a fold takes. Decided from the table's log alone, before any file is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_trident.contracts.state import StateSpec
from airflow_trident.states.delta.runs import Run

MAX_ROWS = 10_000_000
"""With a user's combiners these are some gigabytes as Python's rows."""
MAX_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class FoldLimit:
    """What one fold may read: so many rows, and so many bytes of files."""

    rows: int
    bytes: int

    def within(self, newest_first: Sequence[Run]) -> list[Run]:
        """The longest beginning that is within the limit."""
        rows = size_bytes = 0
        for number, run in enumerate(newest_first):
            rows, size_bytes = rows + run.rows, size_bytes + run.bytes
            if rows > self.rows or size_bytes > self.bytes:
                return list(newest_first[:number])
        return list(newest_first)

    def exceeded(self, choice: FoldChoice, spec: StateSpec) -> str:
        """The warning that nothing is folded."""
        runs = choice.wanted
        size_bytes = sum(run.bytes for run in runs)
        return (
            f"State {spec.name!r} was not folded by its commit: {len(runs):,} files with "
            f"{sum(run.rows for run in runs):,} rows and {size_bytes:,} bytes are due, and a commit reads at most "
            f"{self.rows:,} rows (fold_max_rows) and {self.bytes:,} bytes (fold_max_bytes) of them. On a machine with "
            f"the memory run `airflow trident state fold {spec.topology} {spec.name}`, or a TridentUpkeepOperator."
        )


@dataclass(frozen=True, slots=True)
class FoldChoice:
    """`chosen`: the files to fold, none if it is not time for that. `wanted`: what would be folded if there were no
    limit."""

    chosen: Sequence[Run] = ()
    wanted: Sequence[Run] = ()

    @property
    def is_cut(self) -> bool:
        """Does the limit leave out some?"""
        return len(self.chosen) < len(self.wanted)

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.chosen)


def choice(newest_first: Sequence[Run], at: int, limit: FoldLimit | None) -> FoldChoice:
    """At least half of `at` files, the newest ones, and older ones that are not much larger; all of them if `at` is 2.

    :param newest_first: all files with rows that may be folded.
    """
    if len(newest_first) < at:
        return FoldChoice()
    wanted, rows = list[Run](), 0
    for number, run in enumerate(newest_first):
        if at > 2 and number >= at // 2 and run.rows > 2 * rows:
            break
        wanted.append(run)
        rows += run.rows
    chosen = wanted if limit is None else limit.within(wanted)
    # Fewer files would be written again for each of the next commits.
    least = min(len(wanted), max(2, at // 2))
    return FoldChoice(chosen if len(chosen) >= least else (), wanted)
