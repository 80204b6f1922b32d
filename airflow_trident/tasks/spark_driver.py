"""Drivers in clusters. Standalone masters are asked by REST (``spark.master.rest.enabled=true``), which needs no Spark,
so that a triggerer can do it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from airflow_trident.engine.spark.driver_tags import ORDER_LABEL, ORDER_TAG
from airflow_trident.errors import SparkJobError
from airflow_trident.io.deadlines import CLUSTERS
from airflow_trident.tasks.kubernetes_pod import KubernetesPod, find_pods
from airflow_trident.tasks.yarn_application import YarnApplication, find_application

_ACTIVE = frozenset({"SUBMITTED", "RUNNING", "RELAUNCHING", "UNKNOWN"})
"""Of Spark's DriverState. UNKNOWN: the master is recovering from a failure."""
_NOT_ALIVE = "Current state is not alive"
"""So begins the refusal of a master that stands by, or has not read yet what it knew before a restart."""
_MISSED = 10
"""How many times in a row the masters may not answer, since one may be restarting."""


class Driver(Protocol):
    """A driver in another process, which can be watched and killed."""

    @property
    def driver_id(self) -> str:
        """Also shown to people."""

    def state(self) -> str:
        """An active state, or the last one; empty if it is not known."""

    def active(self) -> bool: ...

    def kill(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class SparkDriver:
    """:param masters: the ``http://host:6066`` of each master.
    :param driver_id: as spark-submit printed it.
    """

    masters: tuple[str, ...]
    driver_id: str

    def state(self) -> str:
        """Spark's name of the state; empty if no master knows the driver.

        :raises SparkJobError: no master answers.
        """
        return str(self._ask(f"status/{self.driver_id}").get("driverState") or "")

    def active(self) -> bool:
        """:raises SparkJobError: no master answers."""
        return self.state() in _ACTIVE

    def kill(self) -> None:
        """:raises SparkJobError: no master answers."""
        self._ask(f"kill/{self.driver_id}", "POST")

    def release(self) -> str:
        """The version of the masters' Spark; empty if they do not tell.

        :raises SparkJobError: no master answers.
        """
        return str(self._ask(f"status/{self.driver_id}").get("serverSparkVersion") or "")

    def _ask(self, what: str, method: str = "GET") -> dict[str, Any]:
        """The answer of the first master that gives one, even a refusal; but one that stands by knows no drivers."""
        import httpx

        reason = ""
        for master in self.masters:
            try:
                reply = httpx.request(method, f"{master}/v1/submissions/{what}", timeout=CLUSTERS.answer_s)
                answer: Any = reply.json()
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                reason = str(error)
            except (ValueError, RecursionError):
                reason = "what answers is no Spark master"
            else:
                if not isinstance(answer, dict):
                    reason = "what answers is no Spark master"
                elif _NOT_ALIVE in str(answer.get("message")):
                    reason = f"{master} stands by, or is starting"
                else:
                    return answer
        raise SparkJobError(
            f"no Spark master answers at {', '.join(self.masters)} ({reason})",
            "Start the master with spark.master.rest.enabled=true; the connection's extra rest-port names another port "
            "than 6066.",
        )


class ClusterKind(StrEnum):
    STANDALONE = "standalone"
    YARN = "yarn"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, kw_only=True)
class DriverCluster:
    """A cluster that runs drivers and can be asked about them.

    :param addresses: REST addresses of a standalone cluster's masters, or of YARN's resource manager; in Kubernetes
        the namespace of the pods.
    """

    kind: ClusterKind
    addresses: tuple[str, ...]

    def driver(self, driver_id: str) -> Driver:
        if self.kind is ClusterKind.YARN:
            return YarnApplication(resource_manager=self.addresses[0], driver_id=driver_id)
        if self.kind is ClusterKind.KUBERNETES:
            return KubernetesPod(namespace=self.addresses[0], driver_id=driver_id)
        return SparkDriver(masters=self.addresses, driver_id=driver_id)

    def find(self, tag: str) -> str:
        """The id of the waiting or running driver with this tag; "" if there is none, or the cluster has no tags.

        :param tag: :attr:`DriverTags.yarn_tag`, of one submission.
        :raises SparkJobError: the cluster does not answer.
        """
        if self.kind is ClusterKind.KUBERNETES:
            return next(iter(find_pods(self.addresses[0], {ORDER_LABEL: tag.removeprefix(ORDER_TAG)})), "")
        return find_application(self.addresses[0], tag) if self.kind is ClusterKind.YARN else ""


def wait_for_end(driver: Driver, poll_s: float = 1.0, look: Callable[[], None] = lambda: None) -> str:
    """Wait for the driver's end. Returns its last state; empty if the cluster has forgotten the driver.

    :param look: called between two requests.
    :raises SparkJobError: the masters have not answered for some time.
    """
    missed = 0
    while True:
        try:
            state, missed = driver.state(), 0
            if state not in _ACTIVE:
                return state
        except SparkJobError:
            missed += 1
            if missed >= _MISSED:
                raise
        look()
        time.sleep(poll_s)
