"""A real Airflow in one folder: API server, scheduler, DAG processor and triggerer as child processes.

It uses only 127.0.0.1, only free ports, and nothing outside of the folder. The system tests use it, too.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from tools.local_airflow.folder import Folder
from tools.local_airflow.processes import Processes, ServiceError
from tools.local_airflow.rest import AirflowApi, wait_until

HEALTHY_S = 180.0
"""The time that a slow machine may take until every component is healthy."""
_COMPONENTS = ("metadatabase", "scheduler", "dag_processor", "triggerer")
_FOREIGN = ("AIRFLOW", "SPARK_", "PYSPARK_", "PYTHONDONTWRITEBYTECODE", "PYTHONSTARTUP")


def free_port() -> int:
    """A port of 127.0.0.1 that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def base_environment(folder: Folder) -> dict[str, str]:
    """The caller's environment without foreign settings; Python and Java put temporary files into the folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    kept["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    kept["TMPDIR"] = str(folder.work)
    kept["NO_PROXY"] = ",".join(filter(None, [kept.get("NO_PROXY"), "127.0.0.1", "localhost"]))
    kept["SPARK_LOCAL_IP"] = "127.0.0.1"
    kept["SPARK_LOCAL_DIRS"] = str(folder.work)
    # Without the second option every killed JVM leaves a file in the machine's temporary directory.
    kept["JDK_JAVA_OPTIONS"] = f'"-Djava.io.tmpdir={folder.work}" -XX:-UsePerfData'
    return kept


def airflow_environment(folder: Folder, *, port: int, zookeeper: str) -> dict[str, str]:
    """Settings of an Airflow on this machine, with tasks as processes of the scheduler and SQLite as its database."""
    url = f"http://127.0.0.1:{port}"
    options = {
        "CORE__DAGS_FOLDER": str(folder.dags),
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": "4",
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "API__BASE_URL": url,
        "API__HOST": "127.0.0.1",
        "API__PORT": str(port),
        "API__SECRET_KEY": secrets.token_hex(32),
        "API_AUTH__JWT_SECRET": secrets.token_hex(32),
        # By default the scheduler sleeps a second between two looks: most of the time that a short task takes.
        "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
        "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
        "WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
        "WORKERS__EXECUTION_API_RETRIES": "10",
        "DAG_PROCESSOR__REFRESH_INTERVAL": "10",
        "TRIDENT__STAGING_DIR": str(folder.staging),
    }
    return {
        **base_environment(folder),
        **{f"AIRFLOW__{name}": value for name, value in options.items()},
        "AIRFLOW_HOME": str(folder.airflow),
        "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": json.dumps({"conn_type": "zookeeper", "host": zookeeper}),
    }


@dataclass(slots=True)
class LocalAirflow:
    """Airflow in a folder. `extra` is added to the environment of all its processes; `for_tasks` to the environment of
    the scheduler, and so of all tasks.

    The database is made if it is missing or belongs to another version of Airflow. Stop it with `processes.stop()`.
    """

    folder: Folder
    zookeeper: str
    extra: Mapping[str, str] = field(default_factory=dict)
    for_tasks: Mapping[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(init=False)
    processes: Processes = field(init=False)
    api: AirflowApi = field(init=False)

    def __post_init__(self) -> None:
        port = free_port()
        environment = airflow_environment(self.folder, port=port, zookeeper=self.zookeeper)
        self.environment = {**environment, **self.extra}
        self.processes = processes_of(self.folder)
        self.api = AirflowApi(f"http://127.0.0.1:{port}")

    def migrate(self) -> bool:
        """Make or migrate the metadata database; False if there was nothing to do."""
        stamp = self.folder.airflow / "migrated"
        current = version("apache-airflow")
        if stamp.exists() and stamp.read_text() == current:
            return False
        self.processes.run("migrate", [*_airflow(), "db", "migrate"], self.environment)
        stamp.write_text(current)
        return True

    def start(self) -> None:
        """Start all components; they are up when `wait_healthy` returns."""
        port = self.environment["AIRFLOW__API__PORT"]
        self._start("api-server", "api-server", "--host", "127.0.0.1", "--port", port, "--workers", "1")
        self._start("dag-processor", "dag-processor")
        self.start_scheduler()
        self.start_triggerer()

    def start_scheduler(self) -> None:
        environment = {**self.environment, **self.for_tasks}
        self.processes.start("scheduler", self.command("scheduler", "--skip-serve-logs"), environment)

    def start_triggerer(self) -> None:
        self._start("triggerer", "triggerer", "--skip-serve-logs")

    def wait_healthy(self, *, timeout_s: float = HEALTHY_S) -> None:
        """Return when every component is healthy. A task that is queued before the API server listens would fail.

        :raises ServiceError: a component has ended, or not all are up in time.
        """
        health: dict[str, str] = {}

        def up() -> bool:
            self.processes.require_alive()
            health.clear()
            health.update(self.api.health())
            return all(health.get(one) == "healthy" for one in _COMPONENTS)

        if not wait_until(up, timeout_s=timeout_s):
            missing = ", ".join(one for one in _COMPONENTS if health.get(one) != "healthy")
            raise ServiceError(
                f"Airflow is not up after {timeout_s:.0f} s: {missing} not healthy", f"See {self.folder.logs}."
            )

    def wait_for_dag(self, dag_id: str, *, timeout_s: float = HEALTHY_S) -> None:
        """:raises ServiceError: the DAG processor has not read the DAG in time; the text has the import errors."""

        def read() -> bool:
            self.processes.require_alive()
            return self.api.has_dag(dag_id)

        if not wait_until(read, timeout_s=timeout_s):
            errors = "\n".join(self.api.import_errors()) or "no import error"
            raise ServiceError(
                f"Airflow has no DAG {dag_id!r} after {timeout_s:.0f} s: {errors}",
                f"See {self.processes.log('dag-processor')}.",
            )

    def command(self, *arguments: str) -> list[str]:
        """The command line for ``airflow ...``; run it with `environment`."""
        return [*_airflow(), *arguments]

    def _start(self, name: str, *arguments: str) -> None:
        self.processes.start(name, self.command(*arguments), self.environment)


def processes_of(folder: Folder) -> Processes:
    """The child processes of a folder, also those of an earlier program."""
    return Processes(work=folder.work, logs=folder.logs, records=folder.root / "processes.json")


def _airflow() -> list[str]:
    return [sys.executable, "-m", "airflow"]
