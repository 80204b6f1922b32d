"""Plays many histories of many kinds, on all cores. It notes which were played, with which commit, in a file that is
kept with the code, so a run goes on where the last one ended.

python -m tests.simulation.runner 100000                     of each kind, from seed 0
python -m tests.simulation.runner 100000 --kinds tasks lives
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

from tests.simulation import played
from tests.simulation.history import play
from tests.simulation.kinds import KINDS
from tests.simulation.played import Part

PART = 250
"""Histories that one process plays at a time."""

COLLECT = 2
"""Histories between two collections of their garbage: with more, its memory grows out of the processor's caches."""


def _end_with_parent() -> None:
    """A runner that is killed cannot end its processes, and they would wait for work without end."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


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
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn, initializer=_end_with_parent) as pool:
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


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.runner")
    parser.add_argument("count", type=int, help="histories of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--played", type=Path, default=played.FILE, help="what was played, and with which commit")
    asked = parser.parse_args()
    commit, parts = played.commit(), played.load(asked.played)
    wanted = [one for one in parts_of(asked.kinds, asked.count) if not played.is_played(parts, *one)]
    print(f"{len(wanted)} parts to go; what was played is in {asked.played}", flush=True)
    for part in play_all(wanted, asked.processes):
        parts.append(replace(part, commit=commit))
        played.save(parts, asked.played)
        for seed, broken in part.broken.items():
            print(f"python -m tests.simulation {seed} --kind {part.kind}    # {broken}", flush=True)
    lines = played.table(tuple(KINDS), parts)
    print("\n".join(lines))
    if asked.played == played.FILE:
        played.write_page(lines)
    return any(part.broken for part in parts)


if __name__ == "__main__":
    sys.exit(main())
