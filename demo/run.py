"""The demonstration: starts everything, performs its acts, and compares the result."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from airflow_trident.errors import ConfigurationError
from demo.act import Act
from demo.folder import VARIABLE, DemoFolder
from demo.kills import kill_setting
from demo.screen import Screen
from demo.story import Play
from tools import kills
from tools.local_airflow.services import LocalAirflow, base_environment, processes_of

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class Demo:
    """One run of the demonstration in `folder`, which nobody else uses at the same time."""

    folder: DemoFolder
    screen: Screen
    plays: Sequence[Play]
    keep: bool = False

    def run(self) -> bool:
        """Returns True if the counts are equal.

        :raises TridentError: the demonstration could not come to its end; nothing is left running.
        """
        with ExitStack() as inputs:
            self._prepare(inputs)
            with ExitStack() as stack:
                acts = list(self._acts(stack))
                for act in acts:
                    if len(acts) > 1:
                        self.screen.title(act.play.story)
                    act.perform()
                if self.keep:
                    equal = self._report(acts)
                    self._stay(acts[0].airflow)
                    return equal
            return self._report(acts)

    def _report(self, acts: Sequence[Act]) -> bool:
        reports = [act.play.report(self.screen, self.folder, act.records) for act in acts]
        return all(reports)

    # ---- setting up --------------------------------------------------------------------------------------------

    def _prepare(self, stack: ExitStack) -> None:
        remains = processes_of(self.folder).kill_remains()
        if remains:
            self.screen.event("clean-up", f"stopped {remains} processes of a demo that was killed; going on from there")
        _empty(self.folder.work)  # a killed JVM leaves its files there
        for play in self.plays:
            for name in play.dag_files:
                (self.folder.dags / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(_dags_folder(play.dag_files) / name, self.folder.dags / name)
            self.screen.event("input", play.prepare(self.folder, stack))

    def _acts(self, stack: ExitStack) -> Iterator[Act]:
        """Start everything. When `stack` ends, all is stopped, the last one first, whatever happens."""
        from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
        from airflow_trident.ledger.open import open_ledger
        from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings

        os.environ.update(base_environment(self.folder))  # for Java: temporary files in the folder
        server = EmbeddedZooKeeper(self.folder.zookeeper)
        stack.callback(server.stop)
        hosts = server.start().hosts
        self.screen.event("zookeeper", f"a real server, on {hosts}")
        kills.write_plugin(self.folder.airflow)
        deaths = {kills.VARIABLE: ",".join(kill_setting(play.kills, self.folder.kills) for play in self.plays)}
        extra = {VARIABLE: str(self.folder.root)}
        for play in self.plays:
            extra |= play.environment(self.folder)
        airflow = LocalAirflow(self.folder, hosts, extra, for_tasks=deaths)
        stack.callback(self._stop, airflow)
        if not (self.folder.airflow / "migrated").exists():
            self.screen.event("airflow", "making its database (about 5 s)")
        airflow.migrate()
        self.screen.event("airflow", "starting API server, scheduler, DAG processor, triggerer (about 15 s)")
        airflow.start()
        airflow.wait_healthy()
        for play in self.plays:
            airflow.wait_for_dag(play.dag)
        self.screen.event("airflow", f"up: {airflow.api.url} (no login)")
        for play in self.plays:
            ledger = stack.enter_context(open_ledger(ZooKeeperSettings(hosts=hosts), play.dag))
            yield Act(self.folder, self.screen, play, airflow, ledger)

    def _stop(self, airflow: LocalAirflow) -> None:
        with _undisturbed():
            self.screen.event("stop", "stopping everything")
            airflow.processes.stop()

    def _stay(self, airflow: LocalAirflow) -> None:
        self.screen.title(f"Airflow goes on at {airflow.api.url} (no login). Ctrl-C stops it.")
        for play in self.plays:
            self.screen.line(f"The page of these transactions: {page_of(airflow.api.url, play.dag)}")
        try:
            while True:
                time.sleep(1)
                airflow.processes.require_alive()
        except KeyboardInterrupt:
            self.screen.line("")


def page_of(url: str, topology: str) -> str:
    """The address at which an Airflow at `url` shows a topology."""
    return f"{url}/plugin/transactions/trident/?topology={topology}"


def _dags_folder(names: Sequence[str]) -> Path:
    """:raises ConfigurationError: the example DAGs are not there."""
    folder = Path(__file__).parents[1] / "dags"
    if not all((folder / name).is_file() for name in names):
        raise ConfigurationError(
            f"the example DAGs are not in {folder}", "Run the demonstration from a clone of the repository."
        )
    return folder


def _empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore a second Ctrl-C: it must not leave half of the processes running."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
