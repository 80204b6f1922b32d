"""Kills a process with SIGKILL at a milestone of a transaction: for the crash tests and the demonstration.

The environment variable ``AIRFLOW_TRIDENT_CRASH`` names the points: ``<milestone>@<txid>:<file>``, several separated by
commas. With ``<milestone>@<txid>*<times>:<file>`` the process dies when it is there for that time. Each point is used
once: the first process that creates the file dies there; if the file exists, a process goes on. Nothing is caught,
flushed or cleaned up, as in a real kill. With ``<dag>/`` before the milestone only tasks of that DAG die.

Users' functions run between milestones: one that calls :func:`die` with IN_PASS is killed in the middle of a pass.

``AIRFLOW_TRIDENT_STOP`` names, in the same way, the points at which a process is stopped with SIGSTOP. It goes on when
somebody sends SIGCONT; its id is in the file.

A program that is to be killed or stopped calls :func:`install`. In tasks of Airflow a plugin does that:
:func:`write_plugin`.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

from airflow_trident.runtime.milestones import Milestone, tell

VARIABLE = "AIRFLOW_TRIDENT_CRASH"
STOPS = "AIRFLOW_TRIDENT_STOP"
IN_PASS = "in-pass"

_times = Counter[str]()


def install() -> None:
    """Kill and stop from now on, if the environment variables are set."""
    if os.environ.get(VARIABLE):
        tell(die)
    if os.environ.get(STOPS):
        tell(stop)


def die(point: Milestone | str, txid: int, process: int | None = None) -> None:
    """Die here if the environment variable says so and no process has died here yet.

    :param point: a milestone, or IN_PASS.
    :param process: the id of the process to kill instead of this one: a worker of Spark kills its driver.
    :raises ValueError: the environment variable names an unknown milestone.
    """
    if _is_first(VARIABLE, point, txid):
        os.kill(process or os.getpid(), signal.SIGKILL)


def stop(point: Milestone | str, txid: int) -> None:
    """Stop here, as :func:`die` dies."""
    if _is_first(STOPS, point, txid):
        os.kill(os.getpid(), signal.SIGSTOP)


def _is_first(variable: str, point: Milestone | str, txid: int) -> bool:
    """Does the environment variable name this point, and was no process here before?"""
    for one in os.environ.get(variable, "").split(","):
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
            file = os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            continue
        os.write(file, str(os.getpid()).encode())
        os.close(file)
        return True
    return False


def write_plugin(airflow_home: Path) -> None:
    """Write a plugin for the Airflow in that folder, which loads it in the process of each task. The plugin is a copy
    of this file, so tasks need not find this repository."""
    plugins = airflow_home / "plugins"
    plugins.mkdir(exist_ok=True)
    text = Path(__file__).read_text(encoding="utf-8")
    (plugins / "kills.py").write_text(f"{text}\n\ninstall()\n", encoding="utf-8")
