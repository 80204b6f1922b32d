"""A drain as one submitted Spark application. Its driver is a child of the task's process, or runs in the cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_trident import settings
from airflow_trident.engine.spark import driver_orders
from airflow_trident.engine.spark.errors import cure_of, root_cause
from airflow_trident.engine.spark.order_takers import leave, take_back
from airflow_trident.engine.spark.submit import DriverTags
from airflow_trident.errors import SparkJobError, TridentError
from airflow_trident.hooks.zookeeper import ZooKeeperHook
from airflow_trident.io.places import absolute_root
from airflow_trident.names import EngineKind
from airflow_trident.runtime.drains import app as drain_app
from airflow_trident.runtime.drains.order import (
    DrainFiles,
    DrainOrder,
    collect,
    connections_of,
    no_answer,
    place,
    removing,
)
from airflow_trident.tasks.drivers import ClusterKind, Driver, DriverCluster, DriverProcess, wait_for_end
from airflow_trident.tasks.engines import from_airflow
from airflow_trident.tasks.spark_submit import HookSubmit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_trident.ledger.workers import Worker
    from airflow_trident.protocol.records import Claim
    from airflow_trident.runtime.drains.drain import DrainResult
    from airflow_trident.runtime.drains.keys import AskedPartitions
    from airflow_trident.runtime.drains.limits import DrainLimits
    from airflow_trident.runtime.phases import Attempts
    from airflow_trident.topology.topology import Topology

APPLICATION = os.path.abspath(drain_app.__file__)
"""The application's main file. The driver's machine needs airflow_trident installed."""


def is_submitted(engine: EngineKind | str, conn_id: str | None) -> bool:
    """Does this connection run a drain as its own application?"""
    if EngineKind(engine) is not EngineKind.SPARK or not conn_id:
        return False
    return from_airflow(conn_id).conn_type == "spark"


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What is known of a submitted drain, or one about to be submitted, so that a later try can take it up.

    `masters`: addresses of the `cluster` that can be asked about the driver `driver_id`; empty if spark-submit lasts as
    long as the drain. `tag`: lets a cluster find the driver. `host` and `pid`: of the driver, as it wrote them when it
    took the order.
    """

    order: str
    result: str
    driver_id: str = ""
    masters: tuple[str, ...] = ()
    cluster: str = ClusterKind.STANDALONE
    tag: str = ""
    host: str = ""
    pid: int = 0

    @property
    def files(self) -> DrainFiles:
        return DrainFiles(order=self.order, result=self.result)

    @property
    def place(self) -> DriverCluster | None:
        return DriverCluster(kind=ClusterKind(self.cluster), addresses=self.masters) if self.masters else None

    @property
    def driver(self) -> Driver | None:
        """The driver, if the cluster can be asked about it."""
        return self.place.driver(self.driver_id) if self.place is not None and self.driver_id else None

    @property
    def driver_name(self) -> str:
        """For people."""
        return self.driver_id or f"process {self.pid} on {self.host}"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "masters": list(self.masters)}

    @classmethod
    def from_json(cls, content: Any) -> Submission:
        return cls(**{**content, "masters": tuple(content["masters"])})


@dataclass(kw_only=True)
class SubmittedDrain:
    """:param conn_id: connection of type ``spark``.
    :param conf: settings; they replace those for the topology's loads.
    :param workers: gives the live workers of the topology, from its ledger.
    :param partitions: see :class:`Drain`.
    """

    topology: Topology
    conn_id: str
    conf: Mapping[str, str] = field(repr=False)
    app_name: str
    zookeeper_conn_id: str | None
    staging_root: str
    say: Callable[[str], None]
    workers: Callable[[], Sequence[Worker]] = tuple
    partitions: AskedPartitions | None = None

    def __post_init__(self) -> None:
        self._submit = HookSubmit(
            self.conn_id, {**self.topology.spark_conf(), **self.conf}, self.app_name, one_shot=False
        )
        self._submission: Submission | None = None
        self.ended = False
        """Is it known that the application has ended?"""
        self._cancelled = False

    @property
    def _what(self) -> str:
        return f"the drain of topology {self.topology.name!r}"

    def looked_up(self, submission: Submission) -> Submission | None:
        """The submission of an earlier try, updated. None: nothing runs or will run, and there is no result.

        The earlier try may have been killed before it knew the driver. The driver writes its identity when it takes the
        order. If no driver has taken the order yet, the order is taken back here, so that none can.

        :raises SparkJobError: no master answers.
        :raises TridentError: the staging folder or the ledger does not answer.
        """
        current = submission
        if not current.driver_id and current.place is not None and current.tag:
            current = replace(current, driver_id=current.place.find(current.tag))  # it may still wait there
        if not current.driver_id:
            holder = take_back(current.order)
            if holder is None:
                return None
            current = replace(current, driver_id=holder.driver_id, host=holder.host, pid=holder.pid)
        driver = self._driver(current)
        if (driver is not None and driver.active()) or driver_orders.collect(current.result) is not None:
            return current
        # It holds logins, and a driver that ended before it read the order has not removed it.
        holder = take_back(current.order)
        over = holder is not None and holder.driver_id in ("", current.driver_id)
        leave(current.order, current.result, over=over)
        return None

    def _driver(self, submission: Submission) -> Driver | None:
        """The driver to wait for; None: there is none."""
        if submission.driver is not None or not submission.pid:
            return submission.driver
        return DriverProcess(host=submission.host, pid=submission.pid, order=submission.order, workers=self.workers)

    def start(
        self,
        attempts: Attempts,
        claim: Claim,
        limits: DrainLimits,
        retention: int,
        note: Callable[[Submission], None] = lambda _: None,
    ) -> Submission:
        """Submit the drain. If the cluster does not tell the driver's id, wait for its end.

        :param note: stores the submission for later tries: once before submitting, and again when the driver is known.
        :raises TridentError: the drain could not be submitted, or failed.
        """
        self.ended = False
        cluster = self._submit.cluster()
        if cluster is not None:  # raises if the cluster does not answer: the driver's end would not be seen
            cluster.driver("none").state()
        files = place(
            DrainOrder(
                topology=self.topology,
                zookeeper=ZooKeeperHook(self.zookeeper_conn_id or None).zookeeper_settings(),
                root=settings.text(settings.ROOT),
                staging_root=absolute_root(self.staging_root),
                attempts=attempts,
                claim=claim,
                limits=limits,
                retention=retention,
                connections=connections_of(self.topology),
                chunk_bytes=settings.chunk_bytes(self.staging_root),
                sources_root=settings.sources_root(self.staging_root),
                partitions=self.partitions,
            )
        )
        tags = DriverTags(topology=self.topology.name, order=files.name)
        self._submission = Submission(order=files.order, result=files.result, tag=tags.yarn_tag)
        if cluster is not None:
            self._submission = replace(self._submission, masters=cluster.addresses, cluster=cluster.kind)
        try:
            note(self._submission)
        except BaseException:  # nobody would find the order again, which holds logins
            with removing(files):
                raise
        try:
            driver = self._submit.start(APPLICATION, [files.order, files.result], tags)
        except Exception as error:
            try:
                running = self._left_behind(self._submission)
            except TridentError as unknown:
                raise unknown from error
            if running is not None:
                return running
            self.ended = True
            text = str(error)
            reason = root_cause(text) or type(error).__name__
            with removing(files):
                raise SparkJobError(f"{self._what} failed: {reason}", cure_of(text)) from error
        if driver is not None:
            self._submission = replace(self._submission, driver_id=driver.driver_id)
            note(self._submission)
            self.say(f"{self._what} runs in the cluster as {driver.driver_id}")
        return self._submission

    def _left_behind(self, submission: Submission) -> Submission | None:
        """The submission that survives a failed spark-submit: its driver still runs, or has written a result. None:
        there is none.

        :raises TridentError: nobody knows: the next try looks again.
        """
        return None if self._cancelled else self.looked_up(submission)

    def finish(self, submission: Submission) -> DrainResult:
        """Wait here for the end of the drain, and return its result.

        :raises TridentError: the drain failed.
        """
        drain_result, state = self._end_of(submission)
        if drain_result is None:
            raise no_answer(submission.files, self._what, state)
        return drain_result

    def finish_of_another(self, submission: Submission) -> DrainResult | None:
        """:meth:`finish` of a drain that another try submitted. None: it ended without a result. When a person clears a
        deferred task, Airflow lets the trigger of the former try kill its driver, and the next try may have it by then.

        :raises TridentError: the drain failed, or this try itself is killed.
        """
        drain_result, state = self._end_of(submission)
        if drain_result is None and self._cancelled:
            raise no_answer(submission.files, self._what, state)
        return drain_result

    def _end_of(self, submission: Submission) -> tuple[DrainResult | None, str]:
        """The result, if there is one, and the last state of the driver."""
        self._submission = submission
        driver = self._driver(submission)
        state = wait_for_end(driver) if driver is not None else ""
        self.ended = True
        with removing(submission.files):
            return collect(submission.files), state

    def cancel(self) -> None:
        """End the application, from another thread; best effort."""
        self._cancelled = True
        self._submit.cancel()
        driver = self._driver(self._submission) if self._submission is not None else None
        if driver is not None:
            driver.kill()
