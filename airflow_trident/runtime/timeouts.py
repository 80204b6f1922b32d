"""The time-out of an attempt: its job is cancelled; if that does not end it, its thread is interrupted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from airflow_trident.engine.engine import Engine, Job
from airflow_trident.errors import AttemptTimeoutError
from airflow_trident.io.places import place_at
from airflow_trident.runtime.tables_to_rewrite import with_tables
from airflow_trident.staging.manifest import Manifest

AGAIN_S = 1.0
"""The time between two cancel calls: a job may have begun in between."""
GRACE_S = 10.0
"""How long a cancelled job may take to end; after that the thread that waits for it is interrupted, and again each time
when it has gone on for that long."""


class _InterruptedError(BaseException):
    """No `Exception`: a function that tries again whatever happens must not take it for an error of its own."""


def run_in_time(engine: Engine, jobs: Job | Sequence[Job], limit_s: float | None) -> Manifest:
    """Calls ``engine.run(job)``, or ``engine.run_group(jobs)`` for several, with the tables that they change as these
    are then (:func:`with_tables`), and cancels it after `limit_s` seconds.

    Some work does not end when it is cancelled: a function of the local engine that does not return, a source that
    hangs. A signal interrupts such work, but only in a main thread; who calls this in another thread must stop waiting
    for it by himself after the limit and :data:`GRACE_S`. A time-out of Airflow itself comes first.

    :raises AttemptTimeoutError: it took longer.
    :raises ConfigurationError: nothing can be staged; this is checked before any work.
    """
    group = (jobs,) if isinstance(jobs, Job) else tuple(jobs)
    job = group[-1]

    def run() -> Manifest:
        place = place_at(job.staging_root)
        if not job.chunk_bytes and not place.is_local:  # with chunks: may not be needed; checked before publishing
            place.check()
        return engine.run(with_tables(job)) if len(group) == 1 else engine.run_group(list(map(with_tables, group)))

    if limit_s is None:
        return run()
    expired, ended = threading.Event(), threading.Event()

    def cancel() -> None:
        expired.set()
        engine.cancel(job.slot)

    canceller(cancel, ended, after_s=limit_s).start()
    try:
        with _interrupted_after(limit_s + GRACE_S):
            return run()
    except (Exception, _InterruptedError) as error:
        if not expired.is_set():
            raise
        raise timed_out(group, limit_s) from error
    finally:
        ended.set()


def canceller(cancel: Callable[[], None], ended: threading.Event, *, after_s: float = 0.0) -> threading.Thread:
    """A thread that is not started: cancels after that time, and again and again until `ended` is set."""

    def run() -> None:
        wait_s = after_s
        while not ended.wait(wait_s):
            wait_s = AGAIN_S
            with suppress(Exception):  # only saves work: a job that goes on cannot commit
                cancel()

    return threading.Thread(target=run, name="trident-cancel", daemon=True)


def timed_out(group: Sequence[Job], limit_s: float) -> AttemptTimeoutError:
    """What is raised for jobs that were cancelled because they took longer."""
    return AttemptTimeoutError(
        f"{_named(group)} took longer than {limit_s:g} s and was cancelled",
        "Make the batches smaller, or attempt_timeout longer; the Spark UI shows what took the time.",
    )


def _named(group: Sequence[Job]) -> str:
    first, last = group[0].slot, group[-1].slot
    if len(group) > 1:
        return f"the pass over the transactions {first.txid} to {last.txid}"
    return f"attempt {last.attempt} of transaction {last.txid}"


@contextmanager
def _interrupted_after(limit_s: float) -> Iterator[None]:
    """Raises _InterruptedError in this thread, if this is the main thread and nobody else uses its alarm."""
    if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_REAL)[0] > 0:
        yield
        return

    def interrupt(_signal: int, _frame: object) -> None:
        raise _InterruptedError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, limit_s, GRACE_S)
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _InterruptedError:  # also if it came just before the timer was stopped
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise
    finally:
        signal.signal(signal.SIGALRM, before)
