"""Spark's daemon, which forks Python workers (`pyspark.daemon`), for servers of Spark Connect: it ends itself.

A Connect server (up to Spark 4.3 at least) starts such a daemon for each session that runs Python, on each executor,
and ends it only when it ends itself (SPARK-54055): some 20 MB for each attempt. Spark starts a daemon anew when it
needs a worker for a session whose daemon has ended. To be given as ``spark.python.daemon.module``.
"""

from __future__ import annotations

import os
import signal

IDLE_S = 300.0
"""A daemon that has had no worker for so long ends; Spark ends a worker that has nothing to do after a minute."""
_OF_A_SESSION, _OF_NONE = "SPARK_JOB_ARTIFACT_UUID", "default"


def end_when_idle(idle_s: float = IDLE_S) -> None:
    """From now on this process looks twice in that time whether it has a child, and ends when it twice had none.

    A timer, not a thread: a process with threads must not fork. Forked children have no timers. A daemon that is not a
    Connect session's stays: its application has no other.
    """
    if os.environ.get(_OF_A_SESSION, _OF_NONE) == _OF_NONE or not hasattr(signal, "setitimer"):
        return
    looks_without_child = 0

    def look(*_: object) -> None:
        nonlocal looks_without_child
        looks_without_child = 0 if _has_child() else looks_without_child + 1
        if looks_without_child > 1:
            os._exit(0)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, idle_s / 2, idle_s / 2)


def _has_child() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)  # takes no end away from anybody: the daemon ignores those of its children
    except ChildProcessError:
        return False
    return True


if __name__ == "__main__":
    from pyspark.daemon import manager

    end_when_idle()
    manager()
