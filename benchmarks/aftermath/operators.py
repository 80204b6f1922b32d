"""The operators under a real Airflow: its scheduler retries, and its API clears. Tasks and drivers are killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from benchmarks.aftermath.accidents import TIMEOUT_S, Accident, Left, arrive, values_of
from benchmarks.aftermath.dags import CLIENT, CLUSTER
from tests.fixtures.airflow import PROJECT
from tests.fixtures.standalone import HERE, standalone_cluster
from tools.local_airflow.folder import Folder
from tools.local_airflow.rest import FINISHED_RUN, ApiUnavailableError, wait_until
from tools.local_airflow.services import LocalAirflow

OPERATORS = {
    "`SparkSubmitOperator`": "stock",
    "`SparkSubmitOperator`, cluster, `durable`": "resumable",
    "ours, `TridentSparkSubmitOperator`": "ours",
}
"""What the table says -> the beginning of the ids of its DAGs."""


@dataclass(frozen=True)
class Deployment:
    """Airflow with a scheduler, ZooKeeper and a standalone cluster. `root`: has a folder for each DAG."""

    airflow: LocalAirflow
    root: Path

    def left_by(self, operator: str, accident: Accident) -> Left:
        """Play an accident with this operator."""
        name = f"{OPERATORS[operator]}_{accident.name}".lower()
        folder = self.root / name
        folder.mkdir()
        arrive(str(folder), 1)
        if accident is Accident.UNSEEN:
            (folder / "die-at-end").touch()
        elif accident is not Accident.CLEAR:
            (folder / "accident").write_text(accident)
        api = self.airflow.api
        self.airflow.wait_for_dag(name)
        api.trigger(name, "1")
        if accident.waits:
            self._until((folder / "paused").exists, f"the pause of {name}")
            os.kill(int((folder / "task-1-1").read_text()), signal.SIGKILL)
        self._until(lambda: api.runs(name)["1"] in FINISHED_RUN, f"run 1 of {name}")
        (folder / "go on").touch()
        if accident is Accident.LATE:
            arrive(str(folder), 2)
            api.trigger(name, "2")
            self._until(lambda: api.runs(name)["2"] in FINISHED_RUN, f"run 2 of {name}")
        if accident in (Accident.LATE, Accident.CLEAR):
            api.clear(name, "1", ["submit"])
            self._until((folder / "task-1-2").exists, f"the second try of {name}")
            self._until(lambda: api.runs(name)["1"] in FINISHED_RUN, f"run 1 of {name}, cleared")
        self._until(lambda: not _at_work(folder), f"the drivers of {name}")
        ended = ", ".join(f"run {run}: {state}" for run, state in api.runs(name).items())
        return Left.of(values_of(str(folder)), accident, ended)

    def _until(self, over: Callable[[], bool], what: str) -> None:
        def looked() -> bool:
            self.airflow.processes.require_alive()
            try:
                return over()
            except ApiUnavailableError:  # of a machine that has much other work; the next look may be answered
                return False

        if not wait_until(looked, timeout_s=TIMEOUT_S, poll_s=0.5):
            raise AssertionError(f"never over: {what}")


@contextmanager
def deployment(root: Path) -> Iterator[Deployment]:
    folder = Folder(root)
    folder.make()
    data = root / "data"
    data.mkdir()
    text = f'# an Airflow DAG\nfrom benchmarks.aftermath.dags import dags\n\nglobals().update(dags("{data}"))\n'
    (folder.dags / "aftermath.py").write_text(text)
    (root / "cluster").mkdir()
    with ExitStack() as stack:
        cluster = stack.enter_context(standalone_cluster(root / "cluster"))
        server = EmbeddedZooKeeper(folder.zookeeper)
        stack.callback(server.stop)
        extras = {"deploy-mode": "cluster", "rest-port": cluster.rest}
        options = {
            **HERE,
            f"AIRFLOW_CONN_{CLIENT.upper()}": json.dumps({"conn_type": "spark", "host": "local[1]"}),
            f"AIRFLOW_CONN_{CLUSTER.upper()}": json.dumps(
                {"conn_type": "spark", "host": cluster.master, "extra": extras}
            ),
            "PYTHONPATH": str(PROJECT),
            "PYSPARK_PYTHON": sys.executable,
        }
        airflow = LocalAirflow(folder, server.start().hosts, options)
        stack.callback(airflow.processes.stop)
        airflow.migrate()
        airflow.start()
        airflow.wait_healthy()
        yield Deployment(airflow, data)


def _at_work(folder: Path) -> list[int]:
    """Processes of submissions and drivers, which have the folder among their arguments."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(folder) in process.cmdline():
                found.append(process.pid)
    return found
