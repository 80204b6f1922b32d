"""A job as a separate Spark application, by spark-submit: any master, any deploy mode.

The job travels as a file in the attempt's staging folder, and the answer comes back as another. A parameter starts the
application: in Airflow the official Spark hook.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

from airflow_trident.contracts.state import Capabilities, State, StateFactory, StateSpec
from airflow_trident.engine.base import Engine, Job, quiet
from airflow_trident.engine.group_passes import require_group
from airflow_trident.engine.known_nodes import SPARK_NODES, require_known
from airflow_trident.engine.spark import app as spark_app
from airflow_trident.engine.spark import driver_orders
from airflow_trident.engine.spark.driver_tags import DriverTags, tags_of
from airflow_trident.engine.spark.errors import cure_of, from_json, other_release, root_cause
from airflow_trident.engine.spark.older_orders import EndDriver, end_older, file_name
from airflow_trident.engine.spark.order_takers import leave
from airflow_trident.engine.spark.sessions.archive import archive_options
from airflow_trident.engine.spark.sessions.java import ONE_SHOT_JAVA_OPTIONS
from airflow_trident.engine.spark.ship import ship
from airflow_trident.errors import ConfigurationError, SparkJobError, TridentError
from airflow_trident.plan.graph import SinkNode
from airflow_trident.plan.nodes import PersistNode
from airflow_trident.plan.stages import Plan
from airflow_trident.protocol.durable_format import Format
from airflow_trident.staging.answers import answered
from airflow_trident.staging.manifest import Manifest, Slot
from airflow_trident.staging.storage import absolute_root

APPLICATION = os.path.abspath(spark_app.__file__)
"""The application's main file; it needs airflow_trident installed where the driver runs."""

Submit = Callable[[str, list[str], DriverTags], None]
"""``submit(application, arguments, tags)``: run it to its end; raise if it failed."""

_ANSWER = Format(
    noun="the result of the Spark application",
    version=1,
    cure="Run the task again; if it stays so, see the driver's log.",
    error=SparkJobError,
)


def submit_conf(*, one_shot: bool = True) -> dict[str, str]:
    """Settings for an application with this environment's Python; the caller's settings override them.

    :param one_shot: it runs one batch; see ONE_SHOT_JAVA_OPTIONS.
    """
    return {
        "spark.driver.extraJavaOptions": " ".join([*([ONE_SHOT_JAVA_OPTIONS] if one_shot else []), *archive_options()]),
        "spark.pyspark.python": sys.executable,
        "spark.sql.catalogImplementation": "in-memory",
        "spark.ui.showConsoleProgress": "false",
        # A driver restarted by YARN would repeat the failed work under the same attempt.
        "spark.yarn.maxAppAttempts": "1",
    }


class SubmitEngine(Engine):
    """
    :param submit: starts the application and waits for it.
    :param cancel: ends it, from another thread.
    :param end: ends the driver of an older attempt.
    """

    name = "submit"
    takes_groups = True

    def __init__(
        self,
        submit: Submit,
        cancel: Callable[[], None] = lambda: None,
        end: EndDriver = lambda _order, _holder: "",
    ) -> None:
        self._submit = submit
        self._cancel = cancel
        self._end = end

    def run(self, job: Job) -> Manifest:
        return self._run([job], f"transaction {job.slot.txid}")

    def run_group(self, jobs: Sequence[Job]) -> Manifest:
        """One application for all of them."""
        require_group(self, jobs)
        return self._run(jobs, f"{len(jobs)} transactions to {jobs[-1].slot.txid}")

    def _run(self, jobs: Sequence[Job], about: str) -> Manifest:
        last = jobs[-1]
        require_known(last.plan, SPARK_NODES)
        root = absolute_root(last.staging_root)
        plan = _without_stores(last.plan)
        travelling = tuple(replace(job, plan=plan, staging_root=root, progress=quiet) for job in jobs)
        what = f"Spark application of topology {last.slot.topology!r}, {about}"
        content = ship(travelling, f"the plan of topology {last.slot.topology!r}")
        if not last.trial:
            end_older(jobs, root, self._end)
        folder, name = f"{root.rstrip('/')}/{last.slot.path}", uuid.uuid4().hex
        file = file_name(name, jobs)
        job_path = driver_orders.place(folder, file, ".trial" if last.trial else ".job", content)
        result_path, over = f"{folder}/{file}.result", False
        try:
            self._start(job_path, result_path, tags_of(jobs, name), what)
            over = True
            return _result(result_path, what)
        finally:
            leave(job_path, result_path, over=over or driver_orders.collect(result_path) is not None)

    def _start(self, job_path: str, result_path: str, tags: DriverTags, what: str) -> None:
        try:
            self._submit(APPLICATION, [job_path, result_path], tags)
        except TridentError:
            _result(result_path, what, missing_ok=True)
            raise
        except Exception as error:
            _result(result_path, what, missing_ok=True)
            text = str(error)
            if other := other_release(text, what):
                raise other from error
            raise SparkJobError(f"{what} failed: {root_cause(text) or type(error).__name__}", cure_of(text)) from error

    def cancel(self, slot: Slot | None = None) -> None:
        """Cancels the application submitted last; callers run one at a time."""
        self._cancel()


def _result(path: str, what: str, *, missing_ok: bool = False) -> Manifest:
    """The application's answer.

    :param missing_ok: only raise the error that it may hold.
    :raises TridentError: the application ended with this error.
    """
    content = driver_orders.collect(path)
    if content is None:
        if missing_ok:
            return None  # type: ignore[return-value]
        raise SparkJobError(
            f"{what} ended and left no result in {os.path.dirname(path)!r}",
            "The staging folder must be one that the driver sees too: a shared folder where it is another machine; in "
            "an object store its environment must give the credentials. See its log.",
        )
    answer = _ANSWER.mapping(_ANSWER.parsed(content, path), path)
    if "error" in answer:
        raise from_json(answer["error"])
    manifest = answered(answer, path)
    if manifest is None:
        raise _ANSWER.damaged(path, "it has neither an error nor a manifest")
    return manifest


# ---- what does not travel --------------------------------------------------------------------------------------


class _NoStore(StateFactory):
    """Replaces a state's factory: the processing phase uses no store, and a factory may hold a login."""

    capabilities = Capabilities(durable=False, atomic=False)

    def make_state(self, spec: StateSpec) -> State:
        raise ConfigurationError("the processing phase has no stores", "This is a defect; please report it.")

    def describe(self) -> str:
        return "none"


def _without_stores(plan: Plan) -> Plan:
    """The stages, with sinks that only say what is staged."""
    stages = tuple(
        replace(
            stage,
            sinks=tuple(_without_store(sink) for sink in stage.sinks),
        )
        for stage in plan.stages
    )
    sinks = tuple(sink for stage in stages for sink in stage.sinks if isinstance(sink, PersistNode))
    return replace(plan, sources=(), sinks=sinks, rewritten=(), stages=stages, commit=())


def _without_store(sink: SinkNode) -> SinkNode:
    if not isinstance(sink, PersistNode):
        return sink
    return replace(sink, state=replace(sink.state, factory=_NoStore(), updater=None))
