"""Drivers in clusters: standalone ones by their masters' REST interface (``spark.master.rest.enabled=true``). No Spark
is needed to ask: a triggerer can."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from airflow_trident.errors import SparkJobError
from airflow_trident.tasks.yarn_application import YarnApplication, find_application

_ACTIVE = frozenset({"SUBMITTED", "RUNNING", "RELAUNCHING", "UNKNOWN"})
"""UNKNOWN: the master recovers from a failure. Spark's DriverState."""
_TIMEOUT_S = 10.0
_MISSED = 10
"""So many times in a row a master may not answer: it may be starting again."""


class Driver(Protocol):
    """A driver somewhere else, which may be looked at and ended."""

    @property
    def driver_id(self) -> str:
        """For people, too."""

    def state(self) -> str:
        """One of those that are active, or how it ended; empty if nobody knows."""

    def active(self) -> bool: ...

    def kill(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class SparkDriver:
    """:param masters: ``http://host:6066`` of each.
    :param driver_id: as spark-submit told it.
    """

    masters: tuple[str, ...]
    driver_id: str

    def state(self) -> str:
        """Spark's word for it; empty if no master knows the driver.

        :raises SparkJobError: no master answers.
        """
        return str(self._ask(f"status/{self.driver_id}").get("driverState") or "")

    def active(self) -> bool:
        """:raises SparkJobError: no master answers."""
        return self.state() in _ACTIVE

    def kill(self) -> None:
        """:raises SparkJobError: no master answers."""
        self._ask(f"kill/{self.driver_id}", "POST")

    def _ask(self, what: str, method: str = "GET") -> dict[str, Any]:
        """From the first master that answers; a refusal is an answer, too."""
        import httpx

        reason = ""
        for master in self.masters:
            try:
                reply = httpx.request(method, f"{master}/v1/submissions/{what}", timeout=_TIMEOUT_S)
                answer: dict[str, Any] = reply.json()
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                reason = str(error)
            except ValueError:
                reason = "what answers is no Spark master"
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


@dataclass(frozen=True, kw_only=True)
class DriverCluster:
    """Where drivers run by themselves, and who may be asked about them.

    :param addresses: REST addresses of a standalone cluster's masters, or of YARN's resource manager.
    """

    kind: ClusterKind
    addresses: tuple[str, ...]

    def driver(self, driver_id: str) -> Driver:
        if self.kind is ClusterKind.YARN:
            return YarnApplication(resource_manager=self.addresses[0], driver_id=driver_id)
        return SparkDriver(masters=self.addresses, driver_id=driver_id)

    def find(self, tag: str) -> str:
        """The id of the driver with this tag that waits or runs; "" if there is none, or the cluster lists none.

        :raises SparkJobError: it does not answer.
        """
        return find_application(self.addresses[0], tag) if self.kind is ClusterKind.YARN else ""


def wait_for_end(driver: Driver, poll_s: float = 1.0, look: Callable[[], None] = lambda: None) -> str:
    """Its last state, empty if the cluster has forgotten it.

    :param look: called between two looks.
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
