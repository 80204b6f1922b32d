"""A contender's run: a process of its own, its wall time, its own account of it, and the memory of its tree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

_SAMPLE_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Run:
    """`wall_s`: the whole process. `work_s`: what it counts itself, after its Spark is up. `peak_mb`: resident memory
    of the process and all below it, together, at its highest of ten looks a second. `facts`: what else it tells."""

    wall_s: float
    work_s: float
    peak_mb: float
    facts: dict[str, Any]


class Watch(threading.Thread):
    """The memory of process trees. Shared pages count once for each process, so it is an upper bound."""

    def __init__(self, *pids: int) -> None:
        super().__init__(daemon=True)
        self._pids = pids
        self._enough = threading.Event()
        self.peak_bytes = 0

    def run(self) -> None:
        while not self._enough.wait(_SAMPLE_S):
            self.peak_bytes = max(self.peak_bytes, sum(map(_tree_bytes, self._pids)))

    def stop(self) -> float:
        """In MB."""
        self._enough.set()
        self.join()
        return self.peak_bytes / 2**20


def _tree_bytes(pid: int) -> int:
    total = 0
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                total += process.memory_info().rss
    return total


def run_contender(name: str, task: dict[str, Any], folder: Path, *, also_watch: tuple[int, ...] = ()) -> Run:
    """
    :param task: what it is to do; see `benchmarks.contender`.
    :param folder: its own, empty; log and state are left there.
    :param also_watch: servers that belong to it: their memory counts.
    :raises RuntimeError: it failed; with the end of its log.
    """
    task_path, log_path = folder / "task.json", folder / "log"
    task_path.write_text(json.dumps(task))
    began = time.perf_counter()
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.contender", name, str(task_path)],
            stdout=log,
            stderr=log,
            env=environment(),
        )
        watch = Watch(process.pid, *also_watch)
        watch.start()
        code = process.wait()
    wall_s = time.perf_counter() - began
    peak_mb = watch.stop()
    if code:
        raise RuntimeError(f"{name} ended with code {code}: {log_path.read_text(errors='replace')[-3000:]}")
    told = json.loads((folder / "told.json").read_text())
    return Run(wall_s=wall_s, work_s=told.pop("work_s", wall_s), peak_mb=peak_mb, facts=told)


def environment() -> dict[str, str]:
    """This package must be found by whatever the contenders start."""
    root = str(Path(__file__).parents[1])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "PYTHONUNBUFFERED": "1"}
