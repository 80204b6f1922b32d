"""Runs a scenario: rounds of contenders, interleaved; each result is compared with the right one."""

from __future__ import annotations

import logging
import os
import shutil
import statistics
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_trident.engine.spark.sessions.archive import FOLDER_VARIABLE, make_archive
from airflow_trident.engine.spark.sessions.connect import EmbeddedConnectServer
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from benchmarks.data import Made, digest_of, digest_of_state, make
from benchmarks.measure import Run, run_contender
from benchmarks.ours import POSTGRES
from benchmarks.peers import CORES
from benchmarks.scenarios import CONTENDERS, PER_BATCH, Scenario

if TYPE_CHECKING:
    from tests.fixtures.hadoop import MiniHadoop
    from tests.fixtures.postgres import PostgresServer

PROCESSES_RUN = 4
"""If a contender runs the same process for every batch, only this number of batches is run."""


@dataclass(kw_only=True)
class Measured:
    """All runs of a scenario: contender -> runs, in order of rounds. `wrong`: contenders with another result."""

    scenario: Scenario
    runs: dict[str, list[Run]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def median(self, contender: str, measure: str) -> float:
        return statistics.median(getattr(run, measure) for run in self.runs[contender])

    def ratios(self, ours: str, theirs: str, measure: str) -> list[float]:
        """One ratio for each round: the machine's speed drifts, so only runs of the same round are compared."""
        pairs = zip(self.runs[ours], self.runs[theirs], strict=True)
        return [getattr(one, measure) / getattr(other, measure) for one, other in pairs]


class Bench:
    """A folder with the data, one ZooKeeper for all, and a Spark Connect server if it is needed."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._archives = folder / "archives"
        self._zookeeper = EmbeddedZooKeeper(folder / "zookeeper", heap_mb=512)
        self._connect = EmbeddedConnectServer(folder / "connect", master=f"local[{CORES}]", heap_mb=2048)
        self._cluster: MiniHadoop | None = None

    def __enter__(self) -> Bench:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._zookeeper.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._cluster is not None:
            self._cluster.close()
        self._connect.stop()
        self._zookeeper.stop()

    def measure(self, scenario: Scenario, rounds: int) -> Measured:
        made = make(scenario.corpus, self._folder / "data")
        measured = Measured(scenario=scenario, runs={name: [] for name in scenario.contenders})
        for number in range(rounds):
            turn = number % len(scenario.contenders)
            for name in (*scenario.contenders[turn:], *scenario.contenders[:turn]):
                run = self._run(name, made, measured)
                measured.runs[name].append(run)
                self._say(
                    f"  round {number + 1}/{rounds}  {name:<26} {run.wall_s:8.1f} s  (work {run.work_s:.1f} s)  "
                    f"{run.cpu_s:6.1f} s of CPU  {run.peak_mb:6.0f} MB"
                )
        return measured

    def _run(self, name: str, made: Made, measured: Measured) -> Run:
        function, options = CONTENDERS[name]
        folder = self._folder / f"run-{uuid.uuid4().hex[:8]}"
        folder.mkdir()
        asked = made.corpus.batches
        batches = min(asked, PROCESSES_RUN) if function in PER_BATCH else asked
        task: dict[str, Any] = {
            **options,
            "data": str(made.folder),
            "parquet": made.corpus.parquet,
            "batches": batches,
            "state": str(folder / "counts.db"),
            "checkpoint": str(folder / "checkpoint"),
            "staging": str(folder / "staging"),
            "zookeeper": self._zookeeper.hosts,
            "root": f"/bench-{folder.name}",
        }
        watched: tuple[int, ...] = ()
        if function in ("drain", "phases"):
            watched = (self._zookeeper.status().pid,)
        if options.get("connect"):
            task["connect"] = self._connect_url()
            watched = (*watched, self._connect.status().pid)
        if options.get("postgres"):
            task["postgres"] = f"b{uuid.uuid4().hex[:12]}"
            os.environ[f"AIRFLOW_CONN_{POSTGRES.upper()}"] = self._postgres().as_json
        if options.get("s3"):
            task["staging"] = f"{self._bucket()}/{folder.name}"
        if options.get("yarn"):
            task["yarn"] = os.environ["HADOOP_CONF_DIR"] = str(self._hadoop())
        self._use_archive(bool(options.get("archive")))
        try:
            run = run_contender(function, task, folder, also_watch=watched)
            if batches == asked and self._digest(task) != made.digest:
                measured.wrong.append(name)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if batches == asked:
            return run
        factor = asked / batches
        return Run(
            wall_s=run.wall_s * factor,
            work_s=run.work_s * factor,
            cpu_s=run.cpu_s * factor,
            peak_mb=run.peak_mb,
            facts={**run.facts, "reckoned_from": batches},
        )

    def _digest(self, task: dict[str, Any]) -> str:
        """The digest of what a contender left in its store."""
        if "postgres" not in task:
            return digest_of_state(Path(task["state"]))
        with self._postgres().connect() as connection:
            found = connection.execute(f'SELECT word, "count" FROM {task["postgres"]}.counts').fetchall()
        return digest_of([(word, int(count)) for word, count in found])

    @staticmethod
    def _postgres() -> PostgresServer:
        """The server of the tests: it syncs nothing, and runs until this process ends."""
        from tests.fixtures.postgres import running

        return running()

    @staticmethod
    def _bucket() -> str:
        """On a server in this process, whose work takes the contender's cores."""
        from tests.fixtures.object_store import lasting_bucket

        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it tells every request
        return lasting_bucket()

    def _hadoop(self) -> Path:
        """The configuration of a cluster that runs until this process ends."""
        if self._cluster is None:
            from tests.fixtures.hadoop import MiniHadoop

            folder = self._folder / f"hadoop-{uuid.uuid4().hex[:8]}"
            folder.mkdir()
            self._cluster = MiniHadoop(folder)
        return self._cluster.conf

    def _connect_url(self) -> str:
        self._connect.start()
        return self._connect.url

    def _use_archive(self, wanted: bool) -> None:
        os.environ[FOLDER_VARIABLE] = str(self._archives) if wanted else ""
        if wanted and make_archive()[1]:
            self._say("  made a class archive (once)")
