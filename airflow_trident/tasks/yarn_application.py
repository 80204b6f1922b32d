"""A driver in YARN's cluster mode, watched by the resource manager's REST interface, without Hadoop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_trident.errors import SparkJobError
from airflow_trident.io.deadlines import CLUSTERS

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
        app = _asked(self.resource_manager, "GET", f"apps/{self.driver_id}", "app")
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
        _asked(self.resource_manager, "PUT", f"apps/{self.driver_id}/state", "", {"state": "KILLED"})


def find_application(resource_manager: str, tag: str) -> str:
    """The waiting or running application with this tag; "" if there is none.

    :raises SparkJobError: the resource manager does not answer.
    """
    states = ",".join([*_WAITING, _RUNNING])
    found = _asked(resource_manager, "GET", f"apps?applicationTags={tag}&states={states}", "apps")
    return next((str(app["id"]) for app in found.get("app") or ()), "")


def _object_of(answer: Any) -> dict[str, Any]:
    """
    :raises ValueError: it is no JSON object.
    """
    if not isinstance(answer, dict):
        raise ValueError(f"{answer!r:.80} is no JSON object")
    return answer


def _asked(
    resource_manager: str, method: str, what: str, member: str, said: dict[str, str] | None = None
) -> dict[str, Any]:
    """A member of the resource manager's answer; empty if it does not know what it was asked for.

    :raises SparkJobError: it does not answer, or refuses to: that says nothing about an application.
    """
    import httpx

    try:
        reply = httpx.request(
            method,
            f"{resource_manager}/ws/v1/cluster/{what}",
            json=said,
            timeout=CLUSTERS.answer_s,
            follow_redirects=True,
        )
        answer = _object_of(reply.json())
        if method == "GET" and reply.status_code in _UNKNOWN:
            return {}
        if not reply.is_error:
            return _object_of(answer.get(member) or {})
        said_so = _object_of(answer.get("RemoteException") or {})
        reason = f"status {reply.status_code}: {said_so.get('message') or 'no reason'}"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error)
    except (ValueError, RecursionError):
        reason = f"its answer, with status {reply.status_code}, is none of a resource manager's"
    raise SparkJobError(
        f"YARN's resource manager gives no answer at {resource_manager} ({reason})",
        "Write its address into the extra yarn_resourcemanager_webapp_address of the connection, or, with Kerberos, "
        "leave that out: then the task lasts as long as spark-submit.",
    )
