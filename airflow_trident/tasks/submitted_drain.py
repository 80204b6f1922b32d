"""A drain that is submitted as a whole: one Spark application, whose driver is in the task's process tree or in the
cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow_trident import settings
from airflow_trident.engine.spark import orders
from airflow_trident.engine.spark.errors import cure_of, root_cause
from airflow_trident.errors import SparkJobError
from airflow_trident.hooks.zookeeper import ZooKeeperHook
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
from airflow_trident.staging.storage import absolute_root
from airflow_trident.tasks.engines import EngineKind
from airflow_trident.tasks.hook_submit import HookSubmit
from airflow_trident.tasks.spark_driver import SparkDriver, wait_for_end

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_trident.protocol.records import Claim
    from airflow_trident.runtime.drains.drain import DrainLimits, DrainResult
    from airflow_trident.runtime.phases import Attempts
    from airflow_trident.topology.topology import Topology

APPLICATION = os.path.abspath(drain_app.__file__)
"""The application's main file; it needs airflow_trident installed where the driver runs."""


def is_submitted(engine: EngineKind | str, conn_id: str | None) -> bool:
    """Does this connection run a drain as an application of its own?"""
    from airflow.providers.common.compat.sdk import BaseHook

    if EngineKind(engine) is not EngineKind.SPARK or not conn_id:
        return False
    return BaseHook.get_connection(conn_id).conn_type == "spark"


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What is known of a drain that was submitted, for whoever takes it up. `driver_id` is empty where the submission
    itself lasts as long as the drain."""

    order: str
    result: str
    driver_id: str = ""
    masters: tuple[str, ...] = ()

    @property
    def files(self) -> DrainFiles:
        return DrainFiles(order=self.order, result=self.result)

    @property
    def driver(self) -> SparkDriver | None:
        return SparkDriver(masters=self.masters, driver_id=self.driver_id) if self.driver_id else None

    def has_something(self) -> bool:
        """Does its driver still run, or has it left a result? Not so if it was killed with the task.

        :raises SparkJobError: no master answers.
        """
        return (self.driver is not None and self.driver.active()) or orders.collect(self.result) is not None

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "masters": list(self.masters)}

    @classmethod
    def from_json(cls, content: Any) -> Submission:
        return cls(**{**content, "masters": tuple(content["masters"])})


@dataclass(kw_only=True)
class SubmittedDrain:
    """:param conn_id: connection of type ``spark``.
    :param conf: settings that win over those for the topology's loads.
    """

    topology: Topology
    conn_id: str
    conf: Mapping[str, str]
    app_name: str
    zookeeper_conn_id: str | None
    staging_root: str
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self._submit = HookSubmit(
            self.conn_id, {**self.topology.spark_conf(), **self.conf}, self.app_name, one_shot=False
        )
        self._submission: Submission | None = None
        self.ended = False
        """Is it known that the application runs no more?"""

    @property
    def _what(self) -> str:
        return f"the drain of topology {self.topology.name!r}"

    def start(self, attempts: Attempts, claim: Claim, limits: DrainLimits, retention: int) -> Submission:
        """Submit it; where the cluster does not tell its driver's id, wait for its end.

        :raises TridentError: it could not be submitted, or what it ended with.
        """
        masters = self._submit.masters()
        if masters:  # else nobody would see its end
            SparkDriver(masters=masters, driver_id="none").state()
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
            )
        )
        self._submission = Submission(order=files.order, result=files.result)
        try:
            driver = self._submit.start(APPLICATION, [files.order, files.result])
        except Exception as error:
            if os.path.exists(files.result):  # the driver's own word counts, in whatever way its application ended
                return self._submission
            text = str(error)
            said = root_cause(text) or type(error).__name__
            with removing(files):
                raise SparkJobError(f"{self._what} failed: {said}", cure_of(text)) from error
        if driver is not None:
            self._submission = Submission(
                order=files.order, result=files.result, driver_id=driver.driver_id, masters=driver.masters
            )
            self.say(f"{self._what} runs in the cluster as {driver.driver_id}")
        return self._submission

    def finish(self, submission: Submission) -> DrainResult:
        """Wait for its end here, and take the result.

        :raises TridentError: what it ended with.
        """
        self._submission = submission
        state = wait_for_end(submission.driver) if submission.driver is not None else ""
        self.ended = True
        with removing(submission.files):
            result = collect(submission.files)
        if result is None:
            raise no_answer(submission.files, self._what, state)
        return result

    def cancel(self) -> None:
        """End the application, from another thread; best effort."""
        self._submit.cancel()
        driver = self._submission.driver if self._submission is not None else None
        if driver is not None:
            driver.kill()
