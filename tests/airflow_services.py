"""A whole Airflow: API server, scheduler, DAG processor and triggerer, as real processes on ports of their own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.airflow_fixtures import AirflowHome

SERVICES = ("api-server", "scheduler", "dag-processor", "triggerer")
START_DEADLINE_S = 120.0
_POLL_S = 0.2


class Deployment:
    """`url`: of the API server. Use :func:`deployed`."""

    def __init__(self, home: AirflowHome) -> None:
        self.home = home
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._token = ""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        home.options |= {
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of a test that nobody else knows, long enough for HS512: 64 bytes",
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.1",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(_free_port()),
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(_free_port()),
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": str(_free_port()),
        }

    # ---- processes ---------------------------------------------------------------------------------------------

    def start(self, *services: str) -> None:
        """Start services, all of them by default; each in a process group of its own, its output in the home."""
        for service in services or SERVICES:
            log = self.home.folder / f"{service}.log"
            with log.open("ab") as out:
                self._processes[service] = subprocess.Popen(
                    [str(Path(sys.executable).parent / "airflow"), service],
                    env=self.home.environment,
                    cwd=self.home.folder,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            if service == "api-server":
                self.until(self._healthy, "the API server answers")

    def kill(self, service: str) -> None:
        """SIGKILL the service and all that it started."""
        process = self._processes.pop(service)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for process in self._processes.values():
            os.killpg(process.pid, signal.SIGTERM)
        for service in list(self._processes):
            try:
                self._processes[service].wait(timeout=10)
            except subprocess.TimeoutExpired:
                pass
            self._end_group(self._processes.pop(service))

    @staticmethod
    def _end_group(process: subprocess.Popen[bytes]) -> None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()

    def log(self, service: str) -> str:
        return (self.home.folder / f"{service}.log").read_text(encoding="utf-8", errors="replace")

    # ---- REST --------------------------------------------------------------------------------------------------

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """A call of the public REST API; its JSON answer."""
        if not self._token:
            self._token = self._send("GET", f"{self.url}/auth/token", None)["access_token"]
        return self._send(method, f"{self.url}/api/v2{path}", body)

    def _send(self, method: str, url: str, body: Any) -> Any:
        request = urllib.request.Request(url, method=method, data=None if body is None else json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            content = answer.read()
        return json.loads(content) if content else None

    def _healthy(self) -> bool:
        try:
            self._send("GET", f"{self.url}/api/v2/monitor/health", None)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return True

    def trigger(self, dag_id: str, run_id: str) -> None:
        """Start a run as soon as the DAG is known."""
        self.until(lambda: self._knows(dag_id), f"DAG {dag_id} is known")
        self.call("POST", f"/dags/{dag_id}/dagRuns", {"dag_run_id": run_id, "logical_date": None})

    def _knows(self, dag_id: str) -> bool:
        return any(dag["dag_id"] == dag_id for dag in self.call("GET", "/dags")["dags"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        return str(self.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}")["state"])

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        found = self.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        names = [(ti["task_id"], ti["map_index"], ti["state"]) for ti in found]
        return {name if index < 0 else f"{name}[{index}]": state for name, index, state in names}

    def task_log(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1, map_index: int = -1) -> str:
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}"
        return json.dumps(self.call("GET", f"{path}?map_index={map_index}&full_content=true"))

    def until(self, holds: Callable[[], bool], what: str, deadline_s: float = START_DEADLINE_S) -> None:
        """Ask again and again until it holds. Fails when a service has died or the deadline has passed."""
        end = time.monotonic() + deadline_s
        while not holds():
            for service, process in self._processes.items():
                assert process.poll() is None, f"{service} died\n{self.log(service)}"
            assert time.monotonic() < end, f"not within {deadline_s:g} s: {what}"
            time.sleep(_POLL_S)


@contextmanager
def deployed(home: AirflowHome) -> Iterator[Deployment]:
    """A database and all services; everything is ended afterwards."""
    deployment = Deployment(home)
    home.airflow("db", "migrate")
    try:
        deployment.start()
        yield deployment
    finally:
        deployment.stop()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
