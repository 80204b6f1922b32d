"""A driver's pod in Kubernetes, watched by the API server with the client of Airflow's provider for Kubernetes. The
provider's settings say which cluster that is: ``[kubernetes_executor] in_cluster``, ``config_file``,
``cluster_context``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_trident.errors import ConfigurationError, MissingExtraError, SparkJobError
from airflow_trident.io.deadlines import CLUSTERS
from airflow_trident.io.extras import KUBERNETES_PROVIDER, require_extra

_STATES = {
    "Pending": "SUBMITTED",
    "Running": "RUNNING",
    "Succeeded": "FINISHED",
    "Failed": "FAILED",
    "Unknown": "UNKNOWN",
}
"""Phase of a pod -> the state in a standalone cluster's words. Unknown: its node does not answer; it may run."""
_ACTIVE = ("SUBMITTED", "RUNNING", "UNKNOWN")
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
        pod = _asked(self.namespace, "read_namespaced_pod", self.driver_id)
        return "" if pod is None else _state(pod)

    def active(self) -> bool:
        """:raises SparkJobError: the API server does not answer."""
        return self.state() in _ACTIVE

    def kill(self) -> None:
        """Delete the pod. Kubernetes deletes those of its executors, which it owns.

        :raises SparkJobError: the API server does not answer.
        """
        _asked(self.namespace, "delete_namespaced_pod", self.driver_id)


def find_pods(namespace: str, labels: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The waiting and running pods with these labels: name -> all labels.

    :raises SparkJobError: the API server does not answer.
    """
    selector = ",".join(f"{name}={value}" for name, value in labels.items())
    found = _asked(namespace, "list_namespaced_pod", label_selector=selector)
    pods = [] if found is None else found.items
    return {pod.metadata.name: dict(pod.metadata.labels or {}) for pod in pods if _state(pod) in _ACTIVE}


def _state(pod: Any) -> str:
    """Beside the driver's container others may go on (a mesh's), and the pod with them: the driver's own end counts."""
    for container in pod.status.container_statuses or ():
        ended = container.state.terminated if container.state is not None else None
        if container.name == _DRIVER_CONTAINER and ended is not None:
            return "FINISHED" if ended.exit_code == 0 else "FAILED"
    return _STATES.get(pod.status.phase or "Pending", "UNKNOWN")


def _asked(namespace: str, verb: str, *names: str, **options: str) -> Any:
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
