"""The run of a contender: a process of its own, its wall time, the time that it counts itself, the memory of its
tree."""

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
    """`wall_s`: of the whole process. `work_s`: counted by the contender itself, after its Spark is up. `peak_mb`: the
    highest resident memory of the process and all below it together, of ten looks a second. `cpu_s`: processor time of
    the same tree (of shared servers only memory counts). `facts`: other results."""

    wall_s: float
    work_s: float
    cpu_s: float
    peak_mb: float
    facts: dict[str, Any]

    @property
    def process_s(self) -> float:
        """For a contender with several processes for each batch: the time of the one that processes a batch, on
        average."""
        return float(self.facts["process_s"])


class Watch(threading.Thread):
    """Watches a process tree. Shared pages of memory count once for each process, so the memory is an upper bound.

    :param others: processes whose memory counts, too.
    """

    def __init__(self, pid: int, *others: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._others = others
        self._enough = threading.Event()
        self._cpu_s: dict[int, float] = {}
        self.peak_bytes = 0

    def run(self) -> None:
        while not self._enough.wait(_SAMPLE_S):
            now_bytes = self._look(self._pid, self._cpu_s) + sum(self._look(pid, {}) for pid in self._others)
            self.peak_bytes = max(self.peak_bytes, now_bytes)

    def stop(self) -> tuple[float, float]:
        """Peak memory in MB, and processor time in seconds, of each process as last seen."""
        self._enough.set()
        self.join()
        return self.peak_bytes / 2**20, sum(self._cpu_s.values())

    @staticmethod
    def _look(pid: int, cpu_s: dict[int, float]) -> int:
        total_bytes = 0
        with suppress(psutil.Error):
            root = psutil.Process(pid)
            for process in (root, *root.children(recursive=True)):
                with suppress(psutil.Error):
                    total_bytes += process.memory_info().rss
                    spent = process.cpu_times()
                    cpu_s[process.pid] = spent.user + spent.system
        return total_bytes


def run_contender(name: str, task: dict[str, Any], folder: Path, *, also_watch: tuple[int, ...] = ()) -> Run:
    """
    :param task: the work; see `benchmarks.contender`.
    :param folder: an empty folder for this run; log and state stay there.
    :param also_watch: servers of the contender, whose memory counts.
    :raises RuntimeError: the contender failed; the text has the end of its log.
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
    peak_mb, cpu_s = watch.stop()
    if code:
        raise RuntimeError(f"{name} ended with code {code}: {log_path.read_text(errors='replace')[-3000:]}")
    told = json.loads((folder / "told.json").read_text())
    return Run(wall_s=wall_s, work_s=told.pop("work_s", wall_s), cpu_s=cpu_s, peak_mb=peak_mb, facts=told)


def environment() -> dict[str, str]:
    """The environment for contenders: all that they start must find this package."""
    root = str(Path(__file__).parents[1])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "PYTHONUNBUFFERED": "1"}
