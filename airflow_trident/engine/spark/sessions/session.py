"""Spark sessions: where they come from, and how to cancel their work.

A job gets its own session (cheap: sessions share the Spark application), because expressions depend on session
settings, which must not change in a session of others.
"""

from __future__ import annotations

import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from threading import Lock, Thread
from types import ModuleType
from typing import TYPE_CHECKING, Any

from airflow_trident.engine.spark.progress import tasks_of
from airflow_trident.engine.spark.shipping import package_zip
from airflow_trident.engine.spark.versions import (
    client_version,
    connect_functions,
    release_of,
    require_jvm,
    require_server,
)
from airflow_trident.staging.manifest import Slot

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

YARN_CONTAINER = "CONTAINER_ID"
"""The environment variable of a driver in YARN's cluster mode. Such a driver fails (exit code 13) if it made no
SparkContext, even without work."""
SESSION_CONF: dict[str, str] = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "UTC",
    # "timestamp" is an instant; otherwise casts of texts would drop their zones.
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # Spark skips cached batches by their minimum and maximum, which ignore NaN: filters would lose rows of NaN.
    "spark.sql.inMemoryColumnarStorage.partitionPruning": "false",
    # The type for times of day is a preview in Spark 4.2, and off.
    "spark.sql.timeType.enabled": "true",
    # If an executor is lost, Spark recomputes its data. Code that is not deterministic then gives other rows; results
    # of the first and of the second computation must not be mixed. By default Spark 4.2 has the first two on and the
    # last one off, and a cluster may have other defaults. Older releases than 4.1 do not know them: `mixes_runs`.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableQueryLevelRollbackOnMismatch": "true",
    # Python's exceptions with their text, not only "worker failed"
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
}
"""Settings that the meaning of a plan depends on."""

LISTING_CONF: dict[str, str] = {
    # Otherwise Spark lists more than 32 paths in a job with a task per path. Our paths are local files, which the
    # driver lists faster than one task runs.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": str(2**31 - 1)
}


_CANCEL_WAIT_S = 5.0


def tag_of(slot: Slot) -> str:
    """The name of an attempt's jobs in Spark; no commas, which Spark forbids."""
    return f"trident {slot.topology} {slot.incarnation} {slot.txid} {slot.attempt}".replace(",", "_")


def session_id_of(slot: Slot, attempt: int | None = None) -> str:
    """The Connect session of an attempt: every process can compute it, so a newer attempt can release an older one's.

    :param attempt: another attempt of the same transaction.
    """
    number = slot.attempt if attempt is None else attempt
    name = f"airflow-trident/{slot.topology}/{slot.incarnation}/{slot.txid}/{number}"
    return str(uuid.uuid5(uuid.NAMESPACE_URL, name))


@dataclass(frozen=True)
class Attached:
    """A session that belongs to one attempt until it is released.

    `functions`: the session's module of column functions. `partitions`: how many a shuffle makes. `local`: a classic
    session on this machine. `cache`: columns made before, by their meaning; a column belongs to no session, and making
    one costs many calls to the JVM.
    """

    session: SparkSession
    functions: ModuleType
    partitions: int
    stop_jobs: Callable[[], None]
    let_go: Callable[[], None]
    ui_url: str = ""
    local: bool = False
    cache: dict[Hashable, Any] = field(default_factory=dict)
    describe: Callable[[str], None] = lambda _what: None
    """Describe, for Spark's UI, the next jobs of this thread."""
    version: str = ""
    """Of Spark, as far as this session has it: of server or client, whichever is older."""
    about: str = ""
    """The session in words, for people: version, master and application."""
    send: Callable[[str], None] = lambda _path: None
    """Send a zip of Python modules to the executors, where it precedes installed modules."""
    tasks: Callable[[], str] = lambda: ""
    """Progress of the attempt's jobs, for people."""

    def cancel(self) -> None:
        """Cancel the attempt's jobs, best effort, waiting 5 seconds at most.

        In a separate thread: a signal handler runs inside a call on the same JVM connection that it would need.
        """
        thread = Thread(target=self._quietly, args=(self.stop_jobs,), daemon=True)
        thread.start()
        thread.join(_CANCEL_WAIT_S)

    def release(self) -> None:
        """Give the session back, best effort."""
        self._quietly(self.let_go)

    @staticmethod
    def _quietly(action: Callable[[], None]) -> None:
        with suppress(Exception):  # only saves resources: the work or the server may have ended
            action()


class Sessions(ABC):
    """Gives every attempt its session. Making one opens nothing."""

    @abstractmethod
    def open(self, slot: Slot, *, trial: bool = False) -> Attached:
        """The session for an attempt.

        :param trial: see `Job.trial`.
        :raises SparkJobError: Spark does not start or cannot be reached.
        :raises ConfigurationError: no retry helps with these settings.
        """

    @property
    def have_siblings(self) -> bool:
        """Can one job use DataFrames of several sessions? Those of Spark Connect cannot be united."""
        return True

    def opening(self) -> str:
        """The first slow step of :meth:`open`, for people; empty if there is none."""
        return ""

    def close(self) -> None:
        """Stop what was started."""


class GivenSession(Sessions):
    """For a session that someone else starts and stops, classic or Connect: in a notebook or a test."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    @property
    def have_siblings(self) -> bool:
        return not is_connect(self._session)

    def open(self, slot: Slot, *, trial: bool = False) -> Attached:
        attach = attach_connect if is_connect(self._session) else attach_classic
        return attach(self._session, slot)


class ApplicationSessions(Sessions):
    """Sessions of the application that spark-submit started this process for."""

    def __init__(self) -> None:
        self._sibling: Sibling | None = None
        self._lock = Lock()

    def begin(self) -> None:
        """Make the application's context now, if it is YARN's: that ends an application whose driver has made none
        within ``spark.yarn.am.waitTime`` (100 s), whatever else the driver does, and fails one that ends without one.
        """
        if YARN_CONTAINER in os.environ:
            self._own()

    def open(self, slot: Slot, *, trial: bool = False) -> Attached:
        return attach_classic(self._own(), slot)

    def _own(self) -> Sibling:
        from pyspark.sql import SparkSession

        with self._lock:
            if self._sibling is None:
                self._sibling = Sibling.of(SparkSession.builder.getOrCreate())
            return self._sibling

    def ended(self) -> bool:
        """Has the application, or its JVM, been stopped by someone else?"""
        if self._sibling is None:
            return False
        try:
            return bool(self._sibling.session.sparkContext._jsc.sc().isStopped())
        except Exception:  # noqa: BLE001 - no answer means that it has ended
            return True

    def close(self) -> None:
        if self._sibling is not None:
            self._sibling.session.stop()


def send_to_executors(session: SparkSession) -> None:
    """Give this package to the executors of a classic application if they are other processes, perhaps on other
    machines."""
    context = session.sparkContext
    if not is_local(context):
        send_once(context, package_zip())


def send_once(context: SparkContext, path: str) -> None:
    """Sends a zip of Python modules once: the context would add it to the path again on each call."""
    name = os.path.basename(path)
    if not any(sent.endswith(f"/{name}") for sent in context.listFiles):
        context.addPyFile(path)


def is_local(context: SparkContext) -> bool:
    """Are the executors threads of the driver's JVM?"""
    return str(context.master).partition("[")[0] == "local"


def is_connect(session: Any) -> bool:
    """A session of Spark Connect has no SparkContext, and its own module of functions."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def is_of_session(frame: Any, session: Any) -> bool:
    """Does the DataFrame belong to this session?"""
    theirs = frame.sparkSession
    if theirs is session:
        return True
    if is_connect(session) or is_connect(theirs):
        return bool(getattr(theirs, "session_id", 1) == getattr(session, "session_id", 2))
    return bool(theirs._jsparkSession.equals(session._jsparkSession))


@dataclass(frozen=True)
class Sibling:
    """A second session next to a classic one: same application, own settings. Any number of attempts may share it, each
    in its own thread: it holds nothing of an attempt. `java_sessions`: the JVM's class of sessions."""

    session: SparkSession
    java_sessions: Any
    partitions: int
    ui_url: str
    local: bool
    cache: dict[Hashable, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, base: SparkSession) -> Sibling:
        context = base.sparkContext
        require_jvm(context.version, client_version())
        session = _configured(base.newSession(), {**SESSION_CONF, **LISTING_CONF})
        java_sessions: Any = context._jvm.org.apache.spark.sql.SparkSession  # type: ignore[union-attr]
        return cls(session, java_sessions, _partitions(session), context.uiWebUrl or "", is_local(context))

    def activated(self) -> Callable[[], None]:
        """Make it the thread's active session: Spark looks there for the setting of times of day, whatever a
        DataFrame's session.

        :returns: a function that reactivates the previous session.
        """
        before = self.java_sessions.getActiveSession()
        self.java_sessions.setActiveSession(self.session._jsparkSession)

        def deactivate() -> None:
            if before.isDefined():
                self.java_sessions.setActiveSession(before.get())
            else:
                self.java_sessions.clearActiveSession()

        return deactivate


def attach_classic(base: SparkSession | Sibling, slot: Slot) -> Attached:
    """An attempt in a sibling of a classic session.

    Jobs of the calling thread get the tag, so the job must run in that thread.
    """
    sibling = base if isinstance(base, Sibling) else Sibling.of(base)
    context = sibling.session.sparkContext
    tag = tag_of(slot)
    context.addJobTag(tag)
    deactivate = sibling.activated()
    whose = f"topology {slot.topology}, transaction {slot.txid}, attempt {slot.attempt}"
    context.setJobDescription(whose)

    def let_go() -> None:
        deactivate()
        context.removeJobTag(tag)
        context.setLocalProperty("spark.job.description", "")

    return Attached(
        session=sibling.session,
        functions=import_module("pyspark.sql.functions"),
        partitions=sibling.partitions,
        stop_jobs=lambda: context.cancelJobsWithTag(tag),
        let_go=let_go,
        ui_url=sibling.ui_url,
        local=sibling.local,
        cache=sibling.cache,
        describe=lambda subject: context.setJobDescription(f"{whose}: {subject}"),
        version=context.version,
        about=f"Spark {context.version}, {context.master}, application {context.applicationId}",
        send=lambda path: send_once(context, path),
        tasks=lambda: tasks_of(context, tag),
    )


def attach_connect(
    session: SparkSession,
    slot: Slot,
    close: Callable[[], None] = lambda: None,
    conf: Mapping[str, str] | None = None,
) -> Attached:
    """A Connect session with its own settings. Cancelling ends the attempt's jobs, which have its thread's tag.

    :raises ConfigurationError: the server is of an older release than the client.
    """
    server, client = session.version, client_version()
    note = require_server(server, client)
    _configured(session, {**SESSION_CONF, **(conf or {})})
    tag = tag_of(slot)
    session.addTag(tag)

    def stop_jobs() -> None:
        session.interruptTag(tag)

    def let_go() -> None:
        session.removeTag(tag)
        close()

    return Attached(
        session=session,
        functions=connect_functions(),
        partitions=_partitions(session),
        stop_jobs=stop_jobs,
        let_go=let_go,
        version=min(server, client, key=release_of),
        about=f"Spark {server} by Spark Connect{note}",
        send=lambda path: session.addArtifacts(path, pyfile=True),
    )


def _configured(session: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    for name, value in conf.items():
        session.conf.set(name, value)
    return session


def _partitions(session: SparkSession) -> int:
    return max(1, int(str(session.conf.get("spark.sql.shuffle.partitions"))))
