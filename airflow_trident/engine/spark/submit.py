"""A job as a separate Spark application, by spark-submit: any master, any deploy mode.

The job travels as a file in the attempt's staging folder, and the answer comes back as another. A parameter starts the
application: in Airflow the official Spark hook.

The name and tags of a driver in the cluster, so that a person, or a retry, finds it there.

They are set three times: as Spark settings, shown on its web page; as YARN tags, to query its resource manager; and as
labels of the driver's pod.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_trident.contracts.state import Capabilities, State, StateFactory, StateSpec
from airflow_trident.engine.engine import SPARK_NODES, Engine, Job, quiet, require_group, require_known
from airflow_trident.engine.spark import app as spark_app
from airflow_trident.engine.spark import driver_orders
from airflow_trident.engine.spark.errors import cure_of, from_json, other_release, root_cause
from airflow_trident.engine.spark.older_orders import EndDriver, end_older, file_name
from airflow_trident.engine.spark.order_takers import leave
from airflow_trident.engine.spark.sessions.archive import archive_options
from airflow_trident.engine.spark.sessions.java import ONE_SHOT_JAVA_OPTIONS
from airflow_trident.engine.spark.shipping import ship
from airflow_trident.errors import ConfigurationError, SparkJobError, TridentError
from airflow_trident.io.places import absolute_root
from airflow_trident.plan.graph import SinkNode
from airflow_trident.plan.nodes import PersistNode
from airflow_trident.plan.stages import Plan
from airflow_trident.protocol.durable_format import Format
from airflow_trident.staging.answers import answered
from airflow_trident.staging.manifest import Manifest, Slot

YARN_TAGS = "spark.yarn.tags"
_SETTINGS = "spark.trident."
_LABELS = "spark.kubernetes.driver.label."
ORDER_TAG = "trident-order-"
"""Begins the tag of one submission."""
ORDER_LABEL = "trident-order"
POD_NAME = "spark.kubernetes.driver.pod.name"
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z")
_REFUSED = re.compile(r"[^A-Za-z0-9._-]")
_LABEL_LENGTH = 63
_DIGEST_LENGTH = 16
_HAS_DIGEST = re.compile(r"(\A|-)[0-9a-f]{16}\Z")
_YARN_LENGTH = 100
"""YARN refuses longer tags, and tags that are not ASCII."""


@dataclass(frozen=True, kw_only=True)
class DriverTags:
    """`txid`: "7", "7-9", or "" for a drain. `attempt`: of the last one. `order`: the name of this submission alone, or
    ""."""

    topology: str
    txid: str = ""
    attempt: str = ""
    order: str = ""

    @property
    def about(self) -> str:
        """The current work, appended to the application's name."""
        return f" {self.txid}, attempt {self.attempt}" if self.txid else ""

    @property
    def yarn_tag(self) -> str:
        """The tag of this submission alone. YARN converts tags to lower case."""
        return f"{ORDER_TAG}{self.order}".lower()

    @property
    def order_setting(self) -> str:
        """The setting of this submission alone, as it is in the command line of spark-submit."""
        return f"{_SETTINGS}order={self.order}"

    def conf(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Settings of the application.

        :param settings: its other settings; a person's own tags for YARN stay.
        """
        named = {name: value for name, value in self._named().items() if value}
        labels = {f"{_LABELS}trident-{name}": label(value) for name, value in named.items()}
        tags = [f"trident-{name}-{value}".lower() for name, value in named.items()]
        yarn_tags = [tag for tag in tags if tag.isascii() and "," not in tag and len(tag) <= _YARN_LENGTH]
        yarn = {YARN_TAGS: ",".join(filter(None, [settings.get(YARN_TAGS, ""), *yarn_tags]))} if yarn_tags else {}
        return {**{f"{_SETTINGS}{name}": value for name, value in named.items()}, **labels, **yarn}

    def pod(self, settings: Mapping[str, str]) -> dict[str, str]:
        """The name of the driver's pod, unless a person has named it: one submission makes one pod."""
        return {POD_NAME: f"trident-{self.order}-driver"} if self.order and POD_NAME not in settings else {}

    def _named(self) -> dict[str, str]:
        return {"topology": self.topology, "txid": self.txid, "attempt": self.attempt, "order": self.order}


def label(value: str) -> str:
    """A label of Kubernetes for any text. One that is too long, or has other characters, is shortened and gets a digest
    of the whole, so that no two texts have one label."""
    if _LABEL.match(value) and not _HAS_DIGEST.search(value):
        return value
    digest = hashlib.sha256(value.encode()).hexdigest()[:_DIGEST_LENGTH]
    kept = _REFUSED.sub("-", value)[: _LABEL_LENGTH - _DIGEST_LENGTH - 1].lstrip("._-")
    return f"{kept}-{digest}" if kept else digest


NO_TAGS = DriverTags(topology="")


def tags_of(jobs: Sequence[Job], order: str) -> DriverTags:
    """The tags of one application that runs all of these jobs.

    :param order: the name of this submission alone.
    """
    first, last = jobs[0].slot, jobs[-1].slot
    txid = str(last.txid) if first.txid == last.txid else f"{first.txid}-{last.txid}"
    return DriverTags(topology=last.topology, txid=txid, attempt=str(last.attempt), order=order)


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
        subject = f"Spark application of topology {last.slot.topology!r}, {about}"
        content = ship(travelling, f"the plan of topology {last.slot.topology!r}")
        if not last.trial:
            end_older(jobs, root, self._end)
        folder, name = f"{root.rstrip('/')}/{last.slot.path}", uuid.uuid4().hex
        file = file_name(name, jobs)
        job_path = driver_orders.place(folder, file, ".trial" if last.trial else ".job", content)
        result_path, over = f"{folder}/{file}.result", False
        try:
            self._start(job_path, result_path, tags_of(jobs, name), subject)
            over = True
            return _result(result_path, subject)
        finally:
            leave(job_path, result_path, over=over or driver_orders.collect(result_path) is not None)

    def _start(self, job_path: str, result_path: str, tags: DriverTags, subject: str) -> None:
        try:
            self._submit(APPLICATION, [job_path, result_path], tags)
        except TridentError:
            _result(result_path, subject, missing_ok=True)
            raise
        except Exception as error:
            _result(result_path, subject, missing_ok=True)
            text = str(error)
            if other := other_release(text, subject):
                raise other from error
            raise SparkJobError(
                f"{subject} failed: {root_cause(text) or type(error).__name__}", cure_of(text)
            ) from error

    def cancel(self, slot: Slot | None = None) -> None:
        """Cancels the application submitted last; callers run one at a time."""
        self._cancel()


def _result(path: str, subject: str, *, missing_ok: bool = False) -> Manifest:
    """The application's answer.

    :param missing_ok: only raise the error that it may hold.
    :raises TridentError: the application ended with this error.
    """
    content = driver_orders.collect(path)
    if content is None:
        if missing_ok:
            return None  # type: ignore[return-value]
        raise SparkJobError(
            f"{subject} ended and left no result in {os.path.dirname(path)!r}",
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
