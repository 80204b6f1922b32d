"""Play histories.

python -m tests.simulation 4711                  one seed, with everything that happened in it
python -m tests.simulation 0 20000 --kind tasks  many, and which of them break a promise
python -m tests.simulation mutants               the table of docs/concepts/verification.md
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.history import play
from tests.simulation.kinds import KINDS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("first", help="seed, or the word mutants")
    parser.add_argument("last", type=int, nargs="?", help="play all seeds up to this one, this one not included")
    parser.add_argument("--kind", choices=KINDS, default="transactional", help="what may happen")
    parser.add_argument("--only", default="", help="mutants whose name has this in it")
    asked = parser.parse_args()
    if asked.first == "mutants":
        return mutants(asked.last or 300, asked.only)
    return seeds(int(asked.first), asked.last, asked.kind)


def mutants(limit: int, only: str) -> int:
    """The table: by which seed is each defect found, and which promise does it break first?"""
    from tests.simulation.group_mutants import MUTANTS
    from tests.simulation.mutants import first_found

    missed = 0
    print("| defect | kind | found at seed | what is seen first |\n|---|---|---|---|")
    for name, one in MUTANTS.items():
        if only not in name:
            continue
        found = first_found(one, limit)
        missed += found is None
        text = f"{found.seed} | {found.broken[:110]}" if found else f"not within {limit} |"
        print(f"| {name} | {one.kind} | {text} |", flush=True)
    return missed


def seeds(first: int, last: int | None, kind: str) -> int:
    if last is None:
        verdict = play(first, kind)
        print(*verdict.trace, sep="\n")
        print(verdict.broken or f"all promises held: {verdict.transactions} transactions, {verdict.steps} steps")
        return bool(verdict.broken)
    begun, steps = time.perf_counter(), 0
    broken = []
    for seed in range(first, last):
        verdict = play(seed, kind)
        steps += verdict.steps
        if verdict.broken:
            broken.append(verdict)
            print(f"seed {seed}: {verdict.broken}", flush=True)
    spent_s = time.perf_counter() - begun
    count = last - first
    print(f"{count} histories, {steps} steps, {len(broken)} broken, {count / spent_s:.0f} histories/s")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
