"""A small client of Airflow's REST API.

A burst of requests meets the lock of an SQLite database and gets 500 or 503: such a request is sent again. That is
safe, because every request here is either a read, or names what it makes or sets.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from airflow_trident.errors import RetryableError, TridentError

REQUEST_S = 60.0
RETRY_S = 0.5
FINISHED_RUN = ("success", "failed")


class ApiError(TridentError):
    """Airflow refused a request; `status` is the HTTP status."""

    def __init__(self, message: str, cure: str = "", *, status: int = 0) -> None:
        super().__init__(message, cure)
        self.status = status


class ApiUnavailableError(RetryableError):
    """Airflow's API server did not answer in time."""


@dataclass(frozen=True, slots=True)
class TaskState:
    """One task instance. `state`: Airflow's word, empty if it has none yet; `tries`: how many have begun."""

    task_id: str
    map_index: int
    state: str
    tries: int


class AirflowApi:
    """Talks to an API server without login (``[core] simple_auth_manager_all_admins``)."""

    def __init__(self, url: str, *, deadline_s: float = REQUEST_S) -> None:
        self.url = url.rstrip("/")
        self._deadline_s = deadline_s
        self._token = ""
        self._client = httpx.Client(
            base_url=self.url,
            timeout=deadline_s,
            trust_env=False,  # a proxy from the environment cannot reach this machine's loopback address
            limits=httpx.Limits(max_keepalive_connections=0),  # no connection is left to close
        )

    # ---- Airflow itself ----------------------------------------------------------------------------------------

    def health(self) -> dict[str, str]:
        """Component -> status, without components that do not run; empty if the server does not answer."""
        try:
            answer = self._once("GET", "/api/v2/monitor/health", None)
        except (httpx.HTTPError, ApiError):
            return {}
        return {name: str(part["status"]) for name, part in answer.items() if part and part.get("status")}

    def has_dag(self, dag_id: str) -> bool:
        """Has the DAG processor read the DAG?"""
        try:
            self.call("GET", f"/dags/{quote(dag_id)}")
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    def import_errors(self) -> list[str]:
        """The DAG files that could not be loaded, with their tracebacks."""
        answer = self.call("GET", "/importErrors")
        return [f"{one['filename']}: {one['stack_trace']}" for one in answer["import_errors"]]

    # ---- runs --------------------------------------------------------------------------------------------------

    def trigger(self, dag_id: str, run_id: str) -> None:
        """Make a run. It is no error if a run with that id exists already."""
        try:
            self.call("POST", f"/dags/{quote(dag_id)}/dagRuns", {"dag_run_id": run_id, "logical_date": None})
        except ApiError as error:
            if error.status != 409:
                raise

    def runs(self, dag_id: str) -> dict[str, str]:
        """Run id -> state (queued, running, success, failed), oldest first."""
        answer = self.call("GET", f"/dags/{quote(dag_id)}/dagRuns?limit=1000&order_by=id")
        return {run["dag_run_id"]: run["state"] for run in answer["dag_runs"]}

    def unfinished(self, dag_id: str) -> int:
        """How many runs are queued or running."""
        answer = self.call("GET", f"/dags/{quote(dag_id)}/dagRuns?state=queued&state=running&limit=1")
        return int(answer["total_entries"])

    def tasks(self, dag_id: str, run_id: str) -> list[TaskState]:
        answer = self.call("GET", f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id)}/taskInstances?limit=1000")
        return [
            TaskState(one["task_id"], one["map_index"], one["state"] or "", one["try_number"])
            for one in answer["task_instances"]
        ]

    def clear(
        self, dag_id: str, run_id: str, task_ids: list[str] | None = None, *, only_failed: bool = False
    ) -> list[str]:
        """Let tasks of a run run again, as Clear in the UI does; without `task_ids` all. Returns the ids of these
        tasks."""
        body: dict[str, Any] = {
            "dry_run": False,
            "dag_run_id": run_id,
            "only_failed": only_failed,
            "include_downstream": True,
        }
        if task_ids is not None:
            body["task_ids"] = task_ids
        answer = self.call("POST", f"/dags/{quote(dag_id)}/clearTaskInstances", body)
        return [one["task_id"] for one in answer["task_instances"]]

    def set_state(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Mark a task as failed or success, as the UI does."""
        path = f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id)}/taskInstances/{quote(task_id)}"
        self.call("PATCH", path, {"new_state": state})

    # ---- the wire ----------------------------------------------------------------------------------------------

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """One request below ``/api/v2``. Returns the JSON of the answer.

        :raises ApiError: the server refused the request (4xx).
        :raises ApiUnavailableError: no answer, or only server errors, until the deadline.
        """
        return self._until_answered(method, f"/api/v2{path}", body)

    def _until_answered(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        deadline = time.monotonic() + self._deadline_s
        while True:
            try:
                return self._with_token(method, path, body)
            except ApiError as error:
                if error.status < 500:
                    raise
                last: Exception = error
            except httpx.HTTPError as error:
                last = error
            if time.monotonic() >= deadline:
                raise ApiUnavailableError(
                    f"{method} {self.url}{path} had no good answer in {self._deadline_s:.0f} s: {last}",
                    "See the log of the API server.",
                ) from last
            time.sleep(RETRY_S)

    def _with_token(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        for fresh in (not self._token, True):
            if fresh:
                self._token = str(self._once("GET", "/auth/token", None)["access_token"])
            try:
                return self._once(method, path, body)
            except ApiError as error:
                # The token is of an earlier server, or has expired.
                if error.status != 401 or fresh:
                    raise
        raise AssertionError("unreachable")

    def _once(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else None
        answer = self._client.request(method, path, json=body, headers=headers)
        if answer.is_error:
            raise ApiError(
                f"{method} {self.url}{path}: {answer.status_code} {answer.text[:2000]}", status=answer.status_code
            )
        return answer.json() if answer.content else None


_REST_PER_LOOK = 6
"""Who waits spends a seventh of the time on looks that are short."""
_MOST_REST_S = 2.0


def wait_until(condition: Callable[[], bool], *, timeout_s: float, poll_s: float = 0.2) -> bool:
    """Ask until the condition is true; False if it is not true within `timeout_s` seconds.

    :param poll_s: at least so much time between two looks; more where a look takes long, so that a busy machine is not
        kept busy by whoever looks.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        if condition():
            return True
        ended = time.monotonic()
        if ended >= deadline:
            return False
        time.sleep(max(poll_s, min(_REST_PER_LOOK * (ended - began), _MOST_REST_S)))
