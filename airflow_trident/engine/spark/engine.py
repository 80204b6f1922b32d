"""The Spark engine: a plan as DataFrames, on classic and Connect sessions alike.

A stage has at most three parts: expressions in the JVM, one fused pass over Arrow in Python, and expressions in the JVM
again.

What a Spark says of itself and of its Python workers, for people.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any

from airflow_trident.engine.engine import SPARK_NODES, Engine, Job, require_group, require_known
from airflow_trident.engine.spark.dataframes import failed_in_transform, own_session, transforms_of
from airflow_trident.engine.spark.errors import is_expression_error, is_read_error, translate
from airflow_trident.engine.spark.progress import watched
from airflow_trident.engine.spark.run import GroupRun, PlanRun, name_of_run
from airflow_trident.engine.spark.sessions.session import Attached, Sessions
from airflow_trident.engine.spark.shipping import package_zip
from airflow_trident.engine.spark.versions import (
    error_loggers,
    mixes_runs,
    require_executors,
    require_version,
    to_arrow,
)
from airflow_trident.engine.state_queries import require_reachable
from airflow_trident.errors import ExecutorPackageError, SparkJobError, TridentError
from airflow_trident.io.connections import require_extra
from airflow_trident.plan.stages import Coalesces, Coalescing, Plan
from airflow_trident.staging.manifest import Manifest, Slot

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa


class SparkEngine(Engine):
    """Runs jobs on sessions from `sessions`; several threads may each run one.

    :param sessions: :class:`LocalSessions`, :class:`ConnectSessions` or :class:`GivenSession`.
    """

    name = "spark"
    takes_groups = True

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._running: list[tuple[Slot, Attached]] = []
        self._lock = Lock()
        self._told = self._opening = ""
        self._sends = False

    @property
    def sessions(self) -> Sessions:
        """Where its sessions come from."""
        return self._sessions

    def coalesces(self, plan: Plan) -> Coalesces:
        coalescing = super().coalesces(plan)
        if not coalescing.passes or not transforms_of(plan) or self._sessions.have_siblings:
            return coalescing
        why = "on Spark Connect, the function of a transform has a session for each transaction"
        return replace(coalescing, how=Coalescing.NO, why=why)

    def run(self, job: Job) -> Manifest:
        return self._run(
            job, lambda attached, native: PlanRun(attached, job, native=native).manifest(), name_of_run(job)
        )

    def run_group(self, jobs: Sequence[Job]) -> Manifest:
        """One Spark job per state, and at most one Python pass per source or kept stream."""
        require_group(self, jobs)
        if len(jobs) == 1:
            return self.run(jobs[0])
        subject = f"Spark job of topology {jobs[0].slot.topology!r}, {len(jobs)} transactions to {jobs[-1].slot.txid}"
        return self._run(jobs[-1], lambda attached, native: GroupRun(attached, jobs, native=native).manifest(), subject)

    def _run(self, job: Job, manifest: Callable[[Attached, bool], Manifest], subject: str) -> Manifest:
        """
        :param job: its slot is that of the run.
        :param manifest: its second argument: do expressions run in the JVM?
        """
        require_known(job.plan, SPARK_NODES)
        require_reachable(job.plan)
        with self._attached(job) as attached:
            require_version(job.plan, attached.version)
            try:
                return _manifest(attached, job, manifest, subject)
            except ExecutorPackageError as error:
                if self._sends:
                    raise
                self._sends = True
                job.progress(f"{error.message}: sending it to them, and running again")
            attached.send(package_zip())
            return _manifest(attached, job, manifest, subject)

    def physical(self, job: Job) -> dict[str, str]:
        """State -> Spark's physical plan for what a job stages for it, for people; nothing runs."""
        require_known(job.plan, SPARK_NODES)
        with self._attached(job) as attached, own_session(attached, job) as separate:
            return PlanRun(separate, job, native=True).physical()

    @contextmanager
    def _attached(self, job: Job) -> Iterator[Attached]:
        began = time.monotonic()
        attached = self._opened(job)
        if attached.about != self._told:  # only once per application: a drain runs thousands of attempts
            self._told = attached.about
            job.progress(f"{attached.about}: ready after {time.monotonic() - began:.1f} s")
            if not attached.local and (note := mixes_runs(attached.session.version)):
                job.progress(note)
        with self._lock:
            self._running.append((job.slot, attached))
        try:
            with _quiet_errors():
                if self._sends:
                    attached.send(package_zip())
                yield attached
        except BaseException as error:
            if not isinstance(error, Exception):  # interrupted: the JVM would continue
                attached.cancel()
            raise
        finally:
            with self._lock:
                self._running.remove((job.slot, attached))
            attached.release()

    def _opened(self, job: Job) -> Attached:
        try:
            return self._open(job)
        except Exception as error:  # noqa: BLE001 - as in a job
            typed = translate(error, name_of_run(job))
            raise typed from _cause(typed, error)

    def _open(self, job: Job) -> Attached:
        require_extra("pyspark", "airflow-trident[spark]")
        opening = self._sessions.opening()
        with self._lock:  # of several threads only one says it
            announced, self._opening = self._opening == opening, opening
        if not opening or announced:
            return self._sessions.open(job.slot, trial=job.trial)
        job.progress(opening)
        try:
            with watched(opening, lambda: "", job.progress):
                return self._sessions.open(job.slot, trial=job.trial)
        finally:
            self._opening = ""

    def cancel(self, slot: Slot | None = None) -> None:
        for running, attached in list(self._running):
            if slot is None or slot == running:
                attached.cancel()

    @property
    def ui_url(self) -> str:
        return next((attached.ui_url for _, attached in list(self._running)), "")

    def close(self) -> None:
        self._sessions.close()


def _manifest(attached: Attached, job: Job, manifest: Callable[[Attached, bool], Manifest], subject: str) -> Manifest:
    try:
        with own_session(attached, job) as separate:
            return manifest(separate, True)
    except Exception as error:  # noqa: BLE001 - any error becomes a typed one
        if is_expression_error(error):  # Python evaluates the same expressions, slower, and finds the row
            job.progress("an expression failed: running again in Python to find the row")
        elif is_read_error(error):  # Python's reader defines what a batch is, and finds the fault in a file
            job.progress("Spark could not read a file: reading again in Python")
        else:
            typed = _typed(error, job, subject)
            raise typed from _cause(typed, error)
    try:
        with own_session(attached, job) as separate:
            return manifest(separate, False)
    except Exception as error:  # noqa: BLE001 - any error becomes a typed one
        typed = _typed(error, job, subject)
        raise typed from _cause(typed, error)


class _Quiet:
    """Loggers are of the whole process: the first of several runs at a time silences them, the last restores them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._runs = 0
        self._before: list[tuple[Any, bool]] = []

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Spark's client logs a page of JSON for an error in an expression, and also raises the error."""
        with self._lock:
            if self._runs == 0:
                self._before = [(logger, logger.disabled) for logger in error_loggers()]
                for logger, _ in self._before:
                    logger.disabled = True
            self._runs += 1
        try:
            yield
        finally:
            with self._lock:
                self._runs -= 1
                if self._runs == 0:
                    for logger, disabled in self._before:
                        logger.disabled = disabled


_quiet_errors = _Quiet()


def _typed(error: Exception, job: Job, subject: str) -> TridentError:
    typed = translate(error, subject)
    transform_error = failed_in_transform(error, job.plan, subject) if isinstance(typed, SparkJobError) else None
    return transform_error or typed


def _cause(typed: TridentError, error: Exception) -> BaseException | None:
    """Spark's exception. None if a worker reported the fault: the long stack traces of Java and Python would bury it.
    An error of the user's function on the driver keeps its own cause."""
    if isinstance(error, TridentError):
        return error.__cause__
    return error if isinstance(typed, SparkJobError) else None


_SLOT = Slot(topology="doctor", incarnation="doctor", txid=0, attempt=0)


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """`about`: the session, `workers`: Python and pyarrow of a worker, both in words. `pyarrow`: its major version.
    `sees`: does the worker see the file that it was asked for? `mixes`: see `versions.mixes_runs`."""

    about: str
    workers: str
    pyarrow: int
    sees: bool = True
    mixes: str = ""


def tried(sessions: Sessions, path: str = "/") -> TrialResult:
    """Opens a session and runs one task in it, which needs nothing of this package.

    :param path: a file that the worker may see.
    :raises SparkJobError: it cannot be reached.
    :raises ConfigurationError: it is of a release that is refused, its executors are of another one, or its workers
        have no pyarrow or another Python.
    """

    def versions(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # inside, so it travels by value
        import os
        import platform

        import pyarrow
        import pyspark

        for _ in batches:
            facts = [platform.python_version(), pyarrow.__version__, str(os.path.exists(path)), pyspark.__version__]
            yield pyarrow.RecordBatch.from_pydict({"found": facts})

    attached = sessions.open(_SLOT, trial=True)
    try:
        single_row: Any = attached.session.range(0, 1, 1, 1)
        python, arrow, sees, spark = to_arrow(single_row.mapInArrow(versions, "found string")).column(0).to_pylist()
        require_executors(spark, attached.session.version)
    except Exception as error:
        raise translate(error, "a task on Spark's executors") from error
    finally:
        attached.release()
    return TrialResult(
        about=attached.about,
        workers=f"Python {python}, pyarrow {arrow}",
        pyarrow=int(arrow.partition(".")[0]),
        sees=sees == str(True),
        mixes="" if attached.local else mixes_runs(attached.session.version),
    )
