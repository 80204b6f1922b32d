"""One real Airflow for all system tests; each test has its own DAG, topology and state."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_trident.errors import UnknownTopologyError
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import Status, TxRecord
from airflow_trident.states.sql.table_names import TABLES
from tests.fixtures.airflow import SERVERS, give_database
from tests.fixtures.spark import soon
from tests.system import batches
from tools.local_airflow.folder import Folder
from tools.local_airflow.rest import FINISHED_RUN, AirflowApi, wait_until
from tools.local_airflow.services import LocalAirflow

LIMIT_S = 300.0
"""Far above the time that anything takes: only a test that would never end reaches it."""
OPTIONS = {
    "SPARK_SUBMIT_OPTS": soon(),
    # The scheduler is found dead sooner than by default, so that a test of this ends sooner.
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "2",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "2",
    "AIRFLOW__CORE__PARALLELISM": "6",
    "AIRFLOW__TRIDENT__POLL_S": "1",
    "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[1]"}',
    "SPARK_LOCAL_IP": "127.0.0.1",
}


@dataclass(frozen=True)
class Scene:
    """One DAG and its topology, both named `name`, and the acts of tests on them."""

    name: str
    airflow: LocalAirflow
    ledger: Ledger
    folder: Path

    @property
    def api(self) -> AirflowApi:
        return self.airflow.api

    def task(self, verb: str) -> str:
        return f"{self.name}.{verb}"

    # ---- the files that tasks obey -----------------------------------------------------------------------------

    def tell(self, what: str) -> Path:
        path = self.folder / what
        path.touch()
        return path

    def held(self, txid: int, attempt: int) -> int:
        """Wait until this attempt is being processed and held; returns its process id."""
        here = self.folder / f"here-{txid}-{attempt}"
        self.until(here.exists, f"attempt {attempt} of transaction {txid} is at work")
        return int(here.read_text())

    # ---- acts --------------------------------------------------------------------------------------------------

    def trigger(self, *numbers: int) -> None:
        """Make runs one after the other, each when the one before has claimed: run tx-N gets transaction N."""
        for number in numbers:
            self.api.trigger(self.name, f"tx-{number}")
            self.until(lambda number=number: number in self.records(), f"transaction {number} is begun")
            assert self.records()[number].claim.run_id == f"tx-{number}"

    def command(self, *arguments: str) -> str:
        done = subprocess.run(
            self.airflow.command("trident", *arguments),
            env=self.airflow.environment,
            cwd=self.airflow.folder.work,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def kill_owner(self, txid: int) -> None:
        """SIGKILL the process that wrote the transaction's record last."""
        os.kill(self.records()[txid].owner.pid, signal.SIGKILL)

    # ---- what is there -----------------------------------------------------------------------------------------

    def records(self) -> dict[int, TxRecord]:
        self.airflow.processes.require_alive()
        return {record.txid: record for record in self.ledger.transactions()} if self._begun() else {}

    def statuses(self) -> list[Status]:
        return [record.status for _, record in sorted(self.records().items())]

    def words(self) -> Counter[str]:
        with closing(sqlite3.connect(self.folder / "words.db")) as connection:
            table = TABLES.of(self.name, "count")
            return Counter(dict(connection.execute(f"SELECT word, count FROM {table}")))

    def _begun(self) -> bool:
        try:
            self.ledger.topology()
        except UnknownTopologyError:
            return False
        return True

    # ---- waiting -----------------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], bool], what: str) -> None:
        if not wait_until(condition, timeout_s=LIMIT_S, poll_s=0.1):
            ledger = [(one.txid, str(one.status), one.attempt, one.error) for one in self.records().values()]
            raise AssertionError(f"never: {what}; ledger: {ledger}; runs: {self.api.runs(self.name)}")

    def until_finished(self) -> dict[str, str]:
        """Wait until no run is at work; returns the state of each."""
        self.until(lambda: all(state in FINISHED_RUN for state in self.api.runs(self.name).values()), "runs are over")
        return self.api.runs(self.name)

    def until_committed(self, count: int) -> None:
        self.until(lambda: self.statuses() == [Status.COMMITTED] * count, f"{count} transactions are committed")


@pytest.fixture(scope="package")
def local_airflow(tmp_path_factory: pytest.TempPathFactory, airflow_database: Path) -> Iterator[LocalAirflow]:
    """With a ZooKeeper of its own, because other tests have flooded and disturbed theirs."""
    root = tmp_path_factory.mktemp("system")
    folder = Folder(root)
    folder.make()
    give_database(folder, airflow_database)
    server = EmbeddedZooKeeper(folder.zookeeper)
    for name in (*batches.NAMES, *batches.SCRIPTS, batches.WEEK):
        (root / name).mkdir()
    plugins = folder.airflow / "plugins"
    plugins.mkdir()
    shutil.copy(Path(__file__).parent / "alarms.py", plugins)
    for file in ("dags.py", "batches.py", "scripts.py", "week.py"):
        shutil.copyfile(Path(__file__).parent / file, folder.dags / file)
    extra = {**SERVERS, **OPTIONS, "SYSTEM_TESTS": str(root), "AIRFLOW__TRIDENT__ROOT": "/system-tests"}
    with ExitStack() as stack:
        stack.callback(server.stop)
        airflow = LocalAirflow(folder, server.start().hosts, extra)
        stack.callback(airflow.processes.stop)
        airflow.start()
        airflow.wait_healthy()
        for name in (batches.NAMES[-1], batches.SCRIPTS[-1], batches.WEEK):
            airflow.wait_for_dag(name)
        yield airflow


@pytest.fixture
def scene(request: pytest.FixtureRequest, local_airflow: LocalAirflow) -> Iterator[Scene]:
    """The scene named by ``@pytest.mark.parametrize("scene", [...], indirect=True)``."""
    name: str = request.param
    with open_ledger(ZooKeeperSettings(hosts=local_airflow.zookeeper), name, root="/system-tests") as ledger:
        yield Scene(name, local_airflow, ledger, local_airflow.folder.root / name)
