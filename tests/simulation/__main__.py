"""Play histories.

python -m tests.simulation 4711                  one seed, with everything that happened in it
python -m tests.simulation 0 20000 --kind tasks  many, and which of them break a promise
python -m tests.simulation mutants 1000 --write  the table of tests/simulation/README.md and found.json
"""

from __future__ import annotations

import argparse
import json
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
    parser.add_argument("--write", action="store_true", help="the seeds at which mutants are found, for the tests")
    asked = parser.parse_args()
    if asked.first == "mutants":
        return mutants(asked.last or 300, asked.only, write=asked.write)
    return seeds(int(asked.first), asked.last, asked.kind)


def mutants(limit: int, only: str, *, write: bool) -> int:
    """Print the table: which seed finds each defect, and which promise is broken first?"""
    from tests.simulation.day_mutants import MUTANTS
    from tests.simulation.mutants import FOUND, FOUND_FILE, first_found

    missed, seeds = 0, dict[str, int]()
    print("| defect | kind | found at seed | what is seen first |\n|---|---|---|---|")
    for name, one in MUTANTS.items():
        if only not in name:
            continue
        found = first_found(one, range(limit))
        missed += found is None
        if found:
            seeds[name] = found.seed
        text = f"{found.seed} | {found.broken[:110]}" if found else f"not within {limit} |"
        print(f"| {name} | {one.kind} | {text} |", flush=True)
    if write:
        kept = {name: (FOUND | seeds)[name] for name in MUTANTS if name in FOUND | seeds}
        FOUND_FILE.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
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
