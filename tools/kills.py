"""Kills a process with SIGKILL at a milestone of a transaction: for the crash tests and the demonstration.

The environment variable ``AIRFLOW_TRIDENT_CRASH`` names the points: ``<milestone>@<txid>:<file>``, several separated by
commas. With ``<milestone>@<txid>*<times>:<file>`` the process dies when it is there for that time. Each point is used
once: the first process that creates the file dies there; if the file exists, a process goes on. Nothing is caught,
flushed or cleaned up, as in a real kill. With ``<dag>/`` before the milestone only tasks of that DAG die.

Users' functions run between milestones: one that calls :func:`die` with IN_PASS is killed in the middle of a pass.

A program that is to be killed calls :func:`install`. In tasks of Airflow a plugin does that: :func:`write_plugin`.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

from airflow_trident.runtime.milestones import Milestone, tell

VARIABLE = "AIRFLOW_TRIDENT_CRASH"
IN_PASS = "in-pass"

_times = Counter[str]()


def install() -> None:
    """Kill from now on, if the environment variable is set."""
    if os.environ.get(VARIABLE):
        tell(die)


def die(point: Milestone | str, txid: int, process: int | None = None) -> None:
    """Die here if the environment variable says so and no process has died here yet.

    :param point: a milestone, or IN_PASS.
    :param process: the id of the process to kill instead of this one: a worker of Spark kills its driver.
    :raises ValueError: the environment variable names an unknown milestone.
    """
    for one in os.environ.get(VARIABLE, "").split(","):
        where, _, marker = one.strip().partition(":")
        dag, _, where = where.rpartition("/")
        if dag and dag != os.environ.get("AIRFLOW_CTX_DAG_ID"):
            continue
        name, _, when = where.partition("@")
        number, _, times = when.partition("*")
        if not where or (name if name == IN_PASS else Milestone(name)) != point or int(number) != txid:
            continue
        _times[one] += 1
        if _times[one] < int(times or 1):
            continue
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            continue
        os.kill(process or os.getpid(), signal.SIGKILL)


def write_plugin(airflow_home: Path) -> None:
    """Write a plugin for the Airflow in that folder, which loads it in the process of each task. The plugin is a copy
    of this file, so tasks need not find this repository."""
    plugins = airflow_home / "plugins"
    plugins.mkdir(exist_ok=True)
    text = Path(__file__).read_text(encoding="utf-8")
    (plugins / "kills.py").write_text(f"{text}\n\ninstall()\n", encoding="utf-8")
