"""The threads of passes: a pool whose threads can be left to themselves when what they run does not end."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class PassThreads(Generic[T]):
    """Runs jobs in order, so many at a time.

    A `ThreadPoolExecutor` cannot do this: Python joins its threads when the interpreter ends, so a function that does
    not return would keep a command alive after Ctrl-C, and a task after its time-out. These are daemons: the end of
    the process ends them.
    """

    def __init__(self, limit: int) -> None:
        self._most = limit
        self._changed = threading.Condition()
        self._jobs: deque[tuple[Future[T], Callable[[], T]]] = deque()
        self._threads: dict[threading.Thread, Future[T] | None] = {}
        """What each runs; None: it waits for a job."""
        self._closed = False

    def submit(self, job: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._changed:
            self._jobs.append((future, job))
            self._hire()
            self._changed.notify()
        return future

    def forget(self, future: Future[T]) -> None:
        """Nobody wants the result any more. The thread that is at it runs nothing after it; another takes its place."""
        with self._changed:
            self._threads = {thread: runs for thread, runs in self._threads.items() if runs is not future}
            self._hire()

    def close(self, wait_s: float | None) -> None:
        """Drops the jobs that have not begun, and waits for the others, except for forgotten ones.

        :param wait_s: at most so many seconds; None: until they have ended.
        """
        deadline = None if wait_s is None else time.monotonic() + wait_s
        with self._changed:
            self._closed = True
            self._jobs.clear()
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def _hire(self) -> None:
        free = sum(runs is None for runs in self._threads.values())
        if free < len(self._jobs) and len(self._threads) < self._most:
            thread = threading.Thread(target=self._work, name="trident-pass", daemon=True)
            thread.start()
            self._threads[thread] = None

    def _work(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                if me not in self._threads:
                    return
                self._threads[me] = None
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if not self._jobs:
                    return
                future, job = self._jobs.popleft()
                self._threads[me] = future
            try:
                outcome = job()
            except BaseException as error:  # noqa: BLE001 - whoever takes the result raises it
                future.set_exception(error)
            else:
                future.set_result(outcome)
            del future, job  # what they hold may be large, and the next job may be long in coming
