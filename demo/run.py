"""The demonstration: starts everything, lets things go wrong, follows the ledger, and compares the result."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from airflow_trident.errors import ConfigurationError, TridentError, UnknownTopologyError
from airflow_trident.ledger.base import Ledger
from airflow_trident.protocol.records import TxRecord
from airflow_trident.protocol.statuses import Status
from demo.changes import changes, short, standing
from demo.folder import VARIABLE, DemoFolder
from demo.kills import KILLS, kill_setting
from demo.screen import Colour, Screen
from demo.steps import Backfill, Clear, Finish, Trigger, Watch, new_run_ids, next_step
from demo.story import Play
from tools import kills
from tools.local_airflow.rest import FINISHED_RUN
from tools.local_airflow.services import LocalAirflow, base_environment, processes_of

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK_S = 0.7
"""Between two looks at the ledger and the runs; each look costs Airflow some of the CPU that it needs itself."""
MAX_ACTS = 8
"""Triggering, backfilling or clearing more often than this without an end is an error of its own."""


@dataclass(slots=True)
class Demo:
    """One run of the demonstration in `folder`, which nobody else uses meanwhile."""

    folder: DemoFolder
    screen: Screen
    play: Play
    keep: bool = False
    records: dict[int, TxRecord] = field(default_factory=dict)
    _runs: dict[str, str] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)

    def run(self) -> bool:
        """True if the counts are equal.

        :raises TridentError: it could not come to its end; nothing is left running.
        """
        with ExitStack() as inputs:
            self._prepare(inputs)
            with ExitStack() as stack:
                airflow, ledger = self._services(stack)
                self._begin(airflow, ledger)
                if isinstance(self._step(airflow, ledger), Finish):
                    self._run_again(airflow, ledger)
                else:
                    self._play(airflow, ledger)
                if self.keep:
                    equal = self.play.report(self.screen, self.folder, self.records)
                    self._stay(airflow)
                    return equal
            return self.play.report(self.screen, self.folder, self.records)

    # ---- setting up --------------------------------------------------------------------------------------------

    def _prepare(self, stack: ExitStack) -> None:
        remains = processes_of(self.folder).kill_remains()
        if remains:
            self.screen.event("clean-up", f"stopped {remains} processes of a demo that was killed; going on from there")
        _empty(self.folder.work)  # a JVM that was killed leaves its files behind
        for name in self.play.dag_files:
            shutil.copyfile(_dags_folder(self.play.dag_files) / name, self.folder.dags / name)
        self.screen.event("input", self.play.prepare(self.folder, stack))

    def _services(self, stack: ExitStack) -> tuple[LocalAirflow, Ledger]:
        """Everything that runs; stopped, last one first, when `stack` is left, whatever happens."""
        from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
        from airflow_trident.ledger.open import open_ledger
        from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings

        os.environ.update(base_environment(self.folder))  # for Java: temporary files in the folder
        server = EmbeddedZooKeeper(self.folder.zookeeper)
        stack.callback(server.stop)
        hosts = server.start().hosts
        self.screen.event("zookeeper", f"a real server, on {hosts}")
        kills.write_plugin(self.folder.airflow)
        deaths = {kills.VARIABLE: kill_setting(self.folder.kills)}
        extra = {VARIABLE: str(self.folder.root), **self.play.environment(self.folder)}
        airflow = LocalAirflow(self.folder, hosts, extra, for_tasks=deaths)
        stack.callback(self._stop, airflow)
        if not (self.folder.airflow / "migrated").exists():
            self.screen.event("airflow", "making its database (about 5 s)")
        airflow.migrate()
        self.screen.event("airflow", "starting API server, scheduler, DAG processor, triggerer (about 15 s)")
        airflow.start()
        airflow.wait_healthy()
        airflow.wait_for_dag(self.play.dag)
        self.screen.event("airflow", f"up: {airflow.api.url} (no login)")
        return airflow, stack.enter_context(open_ledger(ZooKeeperSettings(hosts=hosts), self.play.dag))

    def _stop(self, airflow: LocalAirflow) -> None:
        with _undisturbed():
            self.screen.event("stop", "stopping everything")
            airflow.processes.stop()

    def _begin(self, airflow: LocalAirflow, ledger: Ledger) -> None:
        """Read how far former runs came, without telling it as news."""
        self._runs = airflow.api.runs(self.play.dag)
        self.records = _read(ledger)
        self._told = {kill.name for kill in KILLS if kill.marker(self.folder.kills).exists()}
        if self.records:
            committed = sum(record.status is Status.COMMITTED for record in self.records.values())
            self.screen.event("ledger", f"{len(self.records)} transactions of former runs, {committed} are committed")
        if any(state not in FINISHED_RUN for state in self._runs.values()):
            self.screen.event(
                "airflow", "goes on with what a former demo left (it takes 30 s to believe a scheduler dead)"
            )

    # ---- the play ----------------------------------------------------------------------------------------------

    def _play(self, airflow: LocalAirflow, ledger: Ledger) -> None:
        """From wherever it stands to the end, following :func:`next_step`."""
        acts = 0
        while True:
            step = self._step(airflow, ledger)
            if isinstance(step, Finish):
                return
            if isinstance(step, Watch):
                self.screen.passing(standing(self.records))
                time.sleep(LOOK_S)
                continue
            acts += 1
            if acts > MAX_ACTS:
                raise TridentError(
                    "not every transaction is committed, however often the runs are repeated",
                    f"The logs tell why; delete {self.folder.root} to begin anew.",
                )
            if isinstance(step, Trigger):
                self._trigger(airflow, step)
            elif isinstance(step, Backfill):
                self._backfill(airflow, step)
            else:
                self._clear(airflow, step)

    def _step(self, airflow: LocalAirflow, ledger: Ledger) -> Trigger | Watch | Backfill | Clear | Finish:
        airflow.processes.require_alive()
        # first the runs: a run that is over has written its last word into the ledger
        self._follow_runs(airflow.api.runs(self.play.dag))
        self._follow_ledger(ledger)
        return next_step(list(self.records.values()), self._runs, self.play.transactions)

    def _trigger(self, airflow: LocalAirflow, step: Trigger) -> None:
        for run_id in step.run_ids:
            airflow.api.trigger(self.play.dag, run_id)
            self._runs[run_id] = "queued"
        named = f"{step.run_ids[0]} to {step.run_ids[-1]}" if len(step.run_ids) > 1 else step.run_ids[0]
        self.screen.event(
            "runs", f"{named} triggered; three work at a time, each starts a Spark of its own (10 to 30 s)"
        )

    def _backfill(self, airflow: LocalAirflow, step: Backfill) -> None:
        waiting = [str(txid) for txid, record in self.records.items() if record.status is Status.PROCESSED]
        if waiting:
            self.screen.event("ledger", f"processed, and waiting for {step.txids[0]}: {', '.join(waiting)}")
        for txid in step.txids:
            self.folder.failure(txid).write_text(short(self.records[txid].error))
        repaired = self.play.repair(self.folder)
        if repaired is not None:
            self.screen.event("repair", repaired)
        self.screen.event("backfill", f"airflow trident backfill {self.play.dag} --failed")
        command = airflow.command("trident", "backfill", self.play.dag, "--failed")
        airflow.processes.run("backfill", command, airflow.environment, self._backfill_line)

    def _backfill_line(self, line: str) -> None:
        if line.startswith("transaction "):
            self.screen.event("backfill", line)

    def _clear(self, airflow: LocalAirflow, step: Clear) -> None:
        for run_id in step.run_ids:
            airflow.api.clear(self.play.dag, run_id, only_failed=True)
        done = all(record.status is Status.COMMITTED for record in self.records.values())
        why = ": they find their transactions committed and do nothing twice" if done else ""
        self.screen.event("clear", f"the failed tasks of {', '.join(step.run_ids)} run again{why}")

    def _run_again(self, airflow: LocalAirflow, ledger: Ledger) -> None:
        """Everything was committed before: one run must find nothing and change nothing."""
        before = dict(self.records)
        (run_id,) = new_run_ids(self._runs, 1)
        airflow.api.trigger(self.play.dag, run_id)
        self.screen.event("runs", f"{run_id} triggered: is there anything new in the input?")
        while self._runs.get(run_id) not in FINISHED_RUN:
            time.sleep(LOOK_S)
            self._step(airflow, ledger)
        if self.records != before:
            raise TridentError(f"run {run_id} changed the ledger although the input is the same", "Please report it.")
        self.screen.event("runs", f"{run_id}: the coordinator found nothing new and began no transaction", Colour.GREEN)

    def _stay(self, airflow: LocalAirflow) -> None:
        self.screen.title(f"Airflow goes on at {airflow.api.url} (no login). Ctrl-C stops it.")
        self.screen.line(f"The page of these transactions: {page_of(airflow.api.url, self.play.dag)}")
        try:
            while True:
                time.sleep(1)
                airflow.processes.require_alive()
        except KeyboardInterrupt:
            self.screen.line("")

    # ---- following ---------------------------------------------------------------------------------------------

    def _follow_runs(self, runs: Mapping[str, str]) -> None:
        for run_id, state in runs.items():
            known = self._runs.get(run_id)
            if known is not None and known != state and state == "failed":
                self.screen.event("airflow", f"run {run_id} failed", Colour.YELLOW)
        self._runs = dict(runs)

    def _follow_ledger(self, ledger: Ledger) -> None:
        now = _read(ledger)
        for kill in KILLS:
            if kill.name not in self._told and kill.marker(self.folder.kills).exists():
                self._told.add(kill.name)
                self.screen.event(f"tx {kill.txid}", kill.story, Colour.RED)
        for line in changes(self.records, now, read=self.play.lines, staged=self.play.staged):
            self.screen.event(f"tx {line.txid}", line.text, line.colour)
        self.records = now


def page_of(url: str, topology: str) -> str:
    """Where an Airflow at `url` shows a topology."""
    return f"{url}/plugin/transactions/trident/?topology={topology}"


def _read(ledger: Ledger) -> dict[int, TxRecord]:
    try:
        return {record.txid: record for record in ledger.transactions()}
    except UnknownTopologyError:
        return {}  # no run has begun anything yet


def _dags_folder(names: Sequence[str]) -> Path:
    """:raises ConfigurationError: the examples are not there."""
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
    """A second Ctrl-C must not leave half of the processes behind."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
