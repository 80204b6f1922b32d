"""`python -m tests.fuzz SECONDS [NAME...]`: each fuzzer for so long, in a process of its own.

It ends with 1 if a case failed or a process died; the seed that it played last is in `.fuzz-NAME`.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from multiprocessing import get_context
from pathlib import Path
from random import Random

from tests.fuzz.readers import CASES


def play(name: str, seconds: float) -> None:
    until, begin = time.monotonic() + seconds, int(time.time()) << 32
    played = failed = 0
    with Path(f".fuzz-{name}").open("w") as note:
        while time.monotonic() < until:
            seed = begin + played
            os.pwrite(note.fileno(), f"{seed}\n".encode(), 0)  # there also if the parser ends the process
            try:
                CASES[name](Random(seed))
            except Exception:  # noqa: BLE001 - whatever it is, the case failed
                failed += 1
                print(f"{name} {seed}:\n{traceback.format_exc(limit=-3)}", flush=True)
            played += 1
    print(f"{name}: {played:,} cases, {failed} failed", flush=True)
    sys.exit(failed > 0)


def main() -> int:
    seconds, names = float(sys.argv[1]), sys.argv[2:] or list(CASES)
    context = get_context("fork")
    processes = [context.Process(target=play, args=(name, seconds)) for name in names]
    for process in processes:
        process.start()
    for name, process in zip(names, processes, strict=True):
        process.join()
        if process.exitcode:
            print(f"{name}: ended with {process.exitcode}", flush=True)
    return int(any(process.exitcode for process in processes))


if __name__ == "__main__":
    sys.exit(main())
