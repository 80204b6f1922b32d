"""Drivers in clusters. Standalone masters are asked by REST (``spark.master.rest.enabled=true``), which needs no Spark,
so that a triggerer can do it.

A driver in YARN's cluster mode, watched by the resource manager's REST interface, without Hadoop.

A driver's pod in Kubernetes, watched by the API server with the client of Airflow's provider for Kubernetes. The
provider's settings say which cluster that is: ``[kubernetes_executor] in_cluster``, ``config_file``,
``cluster_context``.

A driver that no cluster can be asked about: a child of spark-submit, or in a cluster without a REST interface. It is
found by its process.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from airflow_trident.engine.spark.submit import ORDER_LABEL, ORDER_TAG
from airflow_trident.errors import ConfigurationError, MissingExtraError, SparkJobError
from airflow_trident.io.connections import KUBERNETES_PROVIDER, require_extra
from airflow_trident.io.database_limits import CLUSTERS

if TYPE_CHECKING:
    import psutil

    from airflow_trident.ledger.workers import Worker

_WAITING = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED")
_RUNNING = "RUNNING"
_UNKNOWN = (400, 404)
"""Says YARN of an id that cannot be an application's, and of one that it does not know."""


@dataclass(frozen=True, kw_only=True)
class YarnApplication:
    """:param resource_manager: ``http://host:8088``.
    :param driver_id: ``application_...``.
    """

    resource_manager: str
    driver_id: str

    def state(self) -> str:
        """The state in a standalone cluster's words; empty if YARN does not know the application.

        :raises SparkJobError: the resource manager does not answer.
        """
        app = _asked_of_yarn(self.resource_manager, "GET", f"apps/{self.driver_id}", "app")
        state = str(app.get("state") or "")
        if state in _WAITING:
            return "SUBMITTED"
        if state == "FINISHED":  # it ended by itself, with or without success
            return "FINISHED" if app.get("finalStatus") == "SUCCEEDED" else "FAILED"
        return state

    def active(self) -> bool:
        """:raises SparkJobError: the resource manager does not answer."""
        return self.state() in ("SUBMITTED", _RUNNING)

    def kill(self) -> None:
        """:raises SparkJobError: the resource manager does not answer."""
        _asked_of_yarn(self.resource_manager, "PUT", f"apps/{self.driver_id}/state", "", {"state": "KILLED"})


def find_application(resource_manager: str, tag: str) -> str:
    """The waiting or running application with this tag; "" if there is none.

    :raises SparkJobError: the resource manager does not answer.
    """
    states = ",".join([*_WAITING, _RUNNING])
    apps = _asked_of_yarn(resource_manager, "GET", f"apps?applicationTags={tag}&states={states}", "apps")
    return next((str(app["id"]) for app in apps.get("app") or ()), "")


def _object_of(answer: Any) -> dict[str, Any]:
    """
    :raises ValueError: it is no JSON object.
    """
    if not isinstance(answer, dict):
        raise ValueError(f"{answer!r:.80} is no JSON object")
    return answer


def _asked_of_yarn(
    resource_manager: str, method: str, resource: str, member: str, body: dict[str, str] | None = None
) -> dict[str, Any]:
    """A member of the resource manager's answer; empty if it does not know what it was asked for.

    :raises SparkJobError: it does not answer, or refuses to: that says nothing about an application.
    """
    import httpx

    try:
        reply = httpx.request(
            method,
            f"{resource_manager}/ws/v1/cluster/{resource}",
            json=body,
            timeout=CLUSTERS.answer_s,
            follow_redirects=True,
        )
        answer = _object_of(reply.json())
        if method == "GET" and reply.status_code in _UNKNOWN:
            return {}
        if not reply.is_error:
            return _object_of(answer.get(member) or {})
        exception = _object_of(answer.get("RemoteException") or {})
        reason = f"status {reply.status_code}: {exception.get('message') or 'no reason'}"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error)
    except (ValueError, RecursionError):
        reason = f"its answer, with status {reply.status_code}, is none of a resource manager's"
    raise SparkJobError(
        f"YARN's resource manager gives no answer at {resource_manager} ({reason})",
        "Write its address into the extra yarn_resourcemanager_webapp_address of the connection, or, with Kerberos, "
        "leave that out: then the task lasts as long as spark-submit.",
    )


_STATES = {
    "Pending": "SUBMITTED",
    "Running": "RUNNING",
    "Succeeded": "FINISHED",
    "Failed": "FAILED",
    "Unknown": "UNKNOWN",
}
"""Phase of a pod -> the state in a standalone cluster's words. Unknown: its node does not answer; it may run."""
_ACTIVE_PODS = ("SUBMITTED", "RUNNING", "UNKNOWN")
_DRIVER_CONTAINER = "spark-kubernetes-driver"
_CURES = {
    401: "Its token may have expired: see [kubernetes_executor] config_file, or the pod's service account.",
    403: "Let the task's service account get, list and delete pods in the namespace.",
}


@dataclass(frozen=True, kw_only=True)
class KubernetesPod:
    """:param driver_id: name of the pod."""

    namespace: str
    driver_id: str

    def state(self) -> str:
        """The state in a standalone cluster's words; empty if there is no such pod.

        :raises SparkJobError: the API server does not answer.
        """
        pod = _asked_of_kubernetes(self.namespace, "read_namespaced_pod", self.driver_id)
        return "" if pod is None else _state(pod)

    def active(self) -> bool:
        """:raises SparkJobError: the API server does not answer."""
        return self.state() in _ACTIVE_PODS

    def kill(self) -> None:
        """Delete the pod. Kubernetes deletes those of its executors, which it owns.

        :raises SparkJobError: the API server does not answer.
        """
        _asked_of_kubernetes(self.namespace, "delete_namespaced_pod", self.driver_id)


def find_pods(namespace: str, labels: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The waiting and running pods with these labels: name -> all labels.

    :raises SparkJobError: the API server does not answer.
    """
    selector = ",".join(f"{name}={value}" for name, value in labels.items())
    pod_list = _asked_of_kubernetes(namespace, "list_namespaced_pod", label_selector=selector)
    pods = [] if pod_list is None else pod_list.items
    return {pod.metadata.name: dict(pod.metadata.labels or {}) for pod in pods if _state(pod) in _ACTIVE_PODS}


def _state(pod: Any) -> str:
    """Beside the driver's container others may go on (a mesh's), and the pod with them: the driver's own end counts."""
    for container in pod.status.container_statuses or ():
        ended = container.state.terminated if container.state is not None else None
        if container.name == _DRIVER_CONTAINER and ended is not None:
            return "FINISHED" if ended.exit_code == 0 else "FAILED"
    return _STATES.get(pod.status.phase or "Pending", "UNKNOWN")


def _asked_of_kubernetes(namespace: str, verb: str, *names: str, **options: str) -> Any:
    """The API server's answer; None if it does not know the pod."""
    import urllib3

    client = require_extra("airflow.providers.cncf.kubernetes.kube_client", KUBERNETES_PROVIDER)
    if not client.has_kubernetes:
        raise MissingExtraError(
            "the client of Kubernetes is not installed", f'Install it: pip install "{KUBERNETES_PROVIDER}".'
        )
    try:
        api = client.get_kube_client()
    except client.config.ConfigException as error:
        raise ConfigurationError(
            f"Airflow does not know which Kubernetes runs the drivers ({error})",
            "Set [kubernetes_executor] in_cluster = False and config_file, or leave track_driver_via_k8s_api out of the"
            " connection's extra: then the task lasts as long as spark-submit.",
        ) from error
    with api.api_client:
        try:
            return getattr(api, verb)(*names, namespace, _request_timeout=CLUSTERS.answer_s, **options)
        except client.ApiException as error:
            if error.status == 404:
                return None
            reason, cure = f"{error.status} {error.reason}", _CURES.get(int(error.status or 0), "")
        except (urllib3.exceptions.HTTPError, OSError) as error:
            reason, cure = str(error), ""
    raise SparkJobError(
        f"Kubernetes does not tell about the driver's pod in namespace {namespace!r} ({reason})",
        cure or "A retry asks again, and starts no second driver before it has an answer.",
    )


_ACTIVE_DRIVERS = frozenset({"SUBMITTED", "RUNNING", "RELAUNCHING", "UNKNOWN"})
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
        return self.state() in _ACTIVE_DRIVERS

    def kill(self) -> None:
        """:raises SparkJobError: no master answers."""
        self._ask(f"kill/{self.driver_id}", "POST")

    def release(self) -> str:
        """The version of the masters' Spark; empty if they do not tell.

        :raises SparkJobError: no master answers.
        """
        return str(self._ask(f"status/{self.driver_id}").get("serverSparkVersion") or "")

    def _ask(self, request: str, method: str = "GET") -> dict[str, Any]:
        """The answer of the first master that gives one, even a refusal; but one that stands by knows no drivers."""
        import httpx

        reason = ""
        for master in self.masters:
            try:
                reply = httpx.request(method, f"{master}/v1/submissions/{request}", timeout=CLUSTERS.answer_s)
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
            if state not in _ACTIVE_DRIVERS:
                return state
        except SparkJobError:
            missed += 1
            if missed >= _MISSED:
                raise
        look()
        time.sleep(poll_s)


RUNNING = "RUNNING"


@dataclass(frozen=True, kw_only=True)
class DriverProcess:
    """:param order: address of the driver's order, which is in its command line.
    :param workers: gives the live workers of the topology; a driver is one of them.
    """

    host: str
    pid: int
    order: str
    workers: Callable[[], Sequence[Worker]]

    @property
    def driver_id(self) -> str:
        return f"process {self.pid} on {self.host}"

    def state(self) -> str:
        """:raises LedgerUnavailableError: the driver is on another machine, and ZooKeeper does not answer."""
        return RUNNING if self.active() else ""

    def active(self) -> bool:
        """Does the driver run? On another machine it does if it has a session with the ledger."""
        if self.host == socket.gethostname():
            return self._runs_here()
        return any((worker.host, worker.pid) == (self.host, self.pid) for worker in self.workers())

    def kill(self) -> None:
        """End the driver if it runs on this machine; best effort."""
        import psutil

        if self.host == socket.gethostname() and self._runs_here():
            with suppress(psutil.Error):
                driver = psutil.Process(self.pid)
                for process in (*self._below(driver), driver):
                    with suppress(psutil.Error):
                        process.terminate()

    def _below(self, _own: psutil.Process) -> list[psutil.Process]:
        """The processes that do not end by themselves when the driver ends."""
        return []

    def _runs_here(self) -> bool:
        """Does the process run the driver's order? The system reuses process ids, so the command line decides."""
        import psutil

        try:
            return self.order in psutil.Process(self.pid).cmdline()
        except psutil.AccessDenied:
            return True
        except psutil.Error:
            return False


class ClientDriver(DriverProcess):
    """A spark-submit in client mode: a JVM, of which the application is a child. `order`: the setting that names it."""

    def _below(self, driver: psutil.Process) -> list[psutil.Process]:
        return driver.children(recursive=True)


def find_client_driver(setting: str) -> ClientDriver | None:
    """The spark-submit on this machine with this setting; None if there is none.

    :param setting: :attr:`DriverTags.order_setting`, of one submission.
    """
    import psutil

    for process in psutil.process_iter(["cmdline"]):
        if setting in (process.info["cmdline"] or ()):
            return ClientDriver(host=socket.gethostname(), pid=process.pid, order=setting, workers=tuple)
    return None
