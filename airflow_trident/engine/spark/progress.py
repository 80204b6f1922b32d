"""Progress of a Spark job for readers of a task's log: people kill silent tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any

FIRST_S, EVERY_S = 10.0, 20.0
"""A job reports its progress after the first time, and then at this interval."""
COUNT_EVERY_S = 5.0
"""How often a worker notes the rows read of a split."""


@contextmanager
def watched(subject: str, tasks: Callable[[], str], progress: Callable[[str], object]) -> Iterator[None]:
    """Inside, `progress` gets a line now and then: the time so far, and the result of `tasks`."""
    began, done = time.monotonic(), Event()

    def tell() -> None:
        wait_s = FIRST_S
        while not done.wait(wait_s):
            summary = ""
            with suppress(Exception):  # only a line for people, and Spark may be ending
                summary = tasks()
            progress(f"{subject}: at work for {time.monotonic() - began:.0f} s{f', {summary}' if summary else ''}")
            wait_s = EVERY_S

    thread = Thread(target=tell, name="trident-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()


def tasks_of(context: Any, tag: str) -> str:
    """The active stages of the jobs with this tag: ``stage 7: 3 of 200 tasks done``; empty if there are none.

    :param context: the SparkContext.
    """
    tracker = context._jsc.sc().statusTracker()
    lines = []
    for job in tracker.getJobIdsForTag(tag):
        info = tracker.getJobInfo(job)
        stages = list(info.get().stageIds()) if info.isDefined() else []
        for number in stages:
            stage = tracker.getStageInfo(number)
            if stage.isDefined() and stage.get().numActiveTasks():
                done, all_of_them = stage.get().numCompletedTasks(), stage.get().numTasks()
                lines.append(f"stage {number}: {done} of {all_of_them} tasks done")
    return ", ".join(lines)
