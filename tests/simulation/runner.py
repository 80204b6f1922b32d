"""Plays many histories of many kinds, on all cores. It notes which were played, so a run can go on where it ended.

python -m tests.simulation.runner 100000                     of each kind, from seed 0
python -m tests.simulation.runner 100000 --kinds tasks lives
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.simulation.history import play
from tests.simulation.kinds import KINDS

PART = 250
"""Histories that one process plays at a time."""

COLLECT = 50
"""Histories between two collections of their garbage."""


@dataclass(frozen=True)
class Part:
    """Seeds `first` to `last` - 1 of a kind, played. `broken`: seed -> the broken promise."""

    kind: str
    first: int
    last: int
    transactions: int
    steps: int
    cpu_s: float
    broken: dict[int, str]


def play_part(kind: str, first: int, last: int) -> Part:
    """Play some histories in this process."""
    gc.disable()  # a history leaves little garbage, and collecting it takes a sixth of its time
    began, transactions, steps, broken = time.process_time(), 0, 0, {}
    for seed in range(first, last):
        if (seed - first) % COLLECT == 0:
            gc.collect()
            gc.freeze()  # the modules of Airflow are not searched again
        verdict = play(seed, kind)
        transactions += verdict.transactions
        steps += verdict.steps
        if verdict.broken:
            broken[seed] = verdict.broken
    return Part(kind, first, last, transactions, steps, time.process_time() - began, broken)


def play_all(wanted: Sequence[tuple[str, int, int]], processes: int) -> Iterator[Part]:
    """Parts as they finish, in no order."""
    # spawn: a forked child of a test process would inherit its threads and clients
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        left, running = list(reversed(wanted)), set[Future[Part]]()
        while left or running:
            while left and len(running) < 2 * processes:
                running.add(pool.submit(play_part, *left.pop()))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for one in done:
                yield one.result()


def parts_of(kinds: Sequence[str], count: int, first: int = 0, size: int = PART) -> list[tuple[str, int, int]]:
    """Parts of all kinds in turn, so that each kind has its share when somebody stops."""
    return [(kind, at, min(at + size, count)) for at in range(first, count, size) for kind in kinds]


def _played(file: Path) -> list[Part]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [Part(**json.loads(line)) for line in lines]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.runner")
    parser.add_argument("count", type=int, help="histories of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--done", type=Path, default=Path(".pytest_cache/histories.jsonl"), help="what was played")
    asked = parser.parse_args()
    asked.done.parent.mkdir(parents=True, exist_ok=True)
    parts = [part for part in _played(asked.done) if part.kind in asked.kinds and part.last <= asked.count]
    known = {(part.kind, part.first, part.last) for part in parts}
    wanted = [one for one in parts_of(asked.kinds, asked.count) if one not in known]
    print(f"{len(known)} parts are played already ({asked.done}); {len(wanted)} to go", flush=True)
    with asked.done.open("a") as file:
        for part in play_all(wanted, asked.processes):
            parts.append(part)
            print(json.dumps(asdict(part)), file=file, flush=True)
            for seed, broken in part.broken.items():
                print(f"python -m tests.simulation {seed} --kind {part.kind}    # {broken}", flush=True)
    return _say(asked.kinds, parts)


def _say(kinds: Sequence[str], parts: Sequence[Part]) -> int:
    print("| kind | seeds | transactions | steps | broken | ms of CPU each |\n|---|---|---|---|---|---|")
    for kind in kinds:
        mine = [part for part in parts if part.kind == kind]
        count, cpu_s = sum(part.last - part.first for part in mine), sum(part.cpu_s for part in mine)
        broken = sum(len(part.broken) for part in mine)
        transactions, steps = sum(part.transactions for part in mine), sum(part.steps for part in mine)
        last = max((part.last for part in mine), default=0)
        each_ms = 1000 * cpu_s / max(count, 1)
        print(f"| {kind} | 0 to {last - 1} | {transactions:,} | {steps:,} | {broken} | {each_ms:.0f} |")
    return any(part.broken for part in parts)


if __name__ == "__main__":
    sys.exit(main())
