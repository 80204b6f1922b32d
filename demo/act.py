"""One DAG of a demonstration: triggers runs, lets things go wrong, and follows the ledger until all is committed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_trident.errors import TridentError, UnknownTopologyError
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.protocol.records import NO_ATTEMPT, Status, TxRecord
from demo.changes import changes, short, standing
from demo.folder import DemoFolder
from demo.screen import Colour, Screen
from demo.steps import Backfill, Clear, Finish, Trigger, Watch, new_run_ids, next_step
from demo.story import Play
from tools.local_airflow.rest import FINISHED_RUN
from tools.local_airflow.services import LocalAirflow

LOOK_S = 0.7
"""Time between two looks at the ledger and the runs. Each look takes CPU time that Airflow itself needs."""
CLEAR_AFTER_S = 4.0
"""How long the run to be cleared works first. By then Spark has started, or is about to."""
MAX_ACTS = 8
"""More triggers, backfills and clears than this without an end are an error of their own."""


@dataclass(slots=True)
class Act:
    """Performs `play` on its DAG, starting where earlier runs of the demonstration stopped."""

    folder: DemoFolder
    screen: Screen
    play: Play
    airflow: LocalAirflow
    ledger: Ledger
    records: dict[int, TxRecord] = field(default_factory=dict)
    _runs: dict[str, str] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)
    _at_work_since: float = 0.0

    def perform(self) -> None:
        """Go on to the end.

        :raises TridentError: there was no end.
        """
        self._begin()
        if isinstance(self._step(), Finish):
            self._run_again()
            return
        self._play()
        if self.play.clears is not None:
            self._clear_committed()

    def _begin(self) -> None:
        """Read how far earlier runs came, without showing that as news."""
        self._runs = self.airflow.api.runs(self.play.dag)
        self.records = _read(self.ledger)
        self._told = {kill.name for kill in self.play.kills if kill.marker(self.folder.kills).exists()}
        if self.records:
            committed = sum(record.status is Status.COMMITTED for record in self.records.values())
            self.screen.event("ledger", f"{len(self.records)} transactions of former runs, {committed} are committed")
        if any(state not in FINISHED_RUN for state in self._runs.values()):
            self.screen.event(
                "airflow", "goes on with what a former demo left (it takes 30 s to believe a scheduler dead)"
            )

    def _play(self) -> None:
        """Follow :func:`next_step` from the present state to the end."""
        acts = 0
        while True:
            step = self._step()
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
                self._trigger(step)
            elif isinstance(step, Backfill):
                self._backfill(step)
            else:
                self._clear(step)

    def _step(self) -> Trigger | Watch | Backfill | Clear | Finish:
        self.airflow.processes.require_alive()
        # The runs first: a run that is over has finished all its writes to the ledger.
        self._follow_runs(self.airflow.api.runs(self.play.dag))
        self._follow_ledger()
        return next_step(list(self.records.values()), self._runs, self.play.transactions)

    def _trigger(self, step: Trigger) -> None:
        for run_id in step.run_ids:
            self.airflow.api.trigger(self.play.dag, run_id)
            self._runs[run_id] = "queued"
        named = f"{step.run_ids[0]} to {step.run_ids[-1]}" if len(step.run_ids) > 1 else step.run_ids[0]
        self.screen.event("runs", f"{named} triggered; each starts a Spark of its own (10 to 30 s)")

    def _backfill(self, step: Backfill) -> None:
        waiting = [str(txid) for txid, record in self.records.items() if record.status is Status.PROCESSED]
        if waiting:
            self.screen.event("ledger", f"processed, and waiting for {step.txids[0]}: {', '.join(waiting)}")
        for txid in step.txids:
            self.folder.failure(txid).write_text(short(self.records[txid].error))
        repaired = self.play.repair(self.folder)
        if repaired is not None:
            self.screen.event("repair", repaired)
        self.screen.event("backfill", f"airflow trident backfill {self.play.dag} --failed")
        command = self.airflow.command("trident", "backfill", self.play.dag, "--failed")
        self.airflow.processes.run("backfill", command, self.airflow.environment, self._backfill_line)

    def _backfill_line(self, line: str) -> None:
        if line.startswith("transaction "):
            self.screen.event("backfill", line)

    def _clear(self, step: Clear) -> None:
        for run_id in step.run_ids:
            self.airflow.api.clear(self.play.dag, run_id, only_failed=True)
        done = all(record.status is Status.COMMITTED for record in self.records.values())
        why = ": they find their transactions committed and do nothing twice" if done else ""
        self.screen.event("clear", f"the failed tasks of {', '.join(step.run_ids)} run again{why}")

    def _run_again(self) -> None:
        """Everything was committed before: one more run must find nothing and change nothing."""
        before = dict(self.records)
        (run_id,) = new_run_ids(self._runs, 1)
        self.airflow.api.trigger(self.play.dag, run_id)
        self.screen.event("runs", f"{run_id} triggered: is there anything new in the input?")
        self._until_finished(run_id)
        self._require_unchanged(before, run_id)
        self.screen.event("runs", f"{run_id}: nothing new, and no transaction was begun", Colour.GREEN)

    def _clear_committed(self) -> None:
        """Clear a whole run of a committed transaction, as the button in Airflow does: that must change nothing."""
        before = dict(self.records)
        run_id = before[min(before)].claim.run_id
        self.airflow.api.clear(self.play.dag, run_id)
        self.screen.event("clear", f"{run_id}, whose transaction is committed: all its tasks run again")
        self._until_finished(run_id)
        self._require_unchanged(before, run_id)
        self.screen.event("clear", f"{run_id}: it found its transaction committed and did nothing twice", Colour.GREEN)
        self._run_again()

    def _until_finished(self, run_id: str) -> None:
        self._runs.pop(run_id, None)
        while self._runs.get(run_id) not in FINISHED_RUN:
            time.sleep(LOOK_S)
            self._step()

    def _require_unchanged(self, before: Mapping[int, TxRecord], run_id: str) -> None:
        if self.records != before:
            raise TridentError(f"run {run_id} changed the ledger although the input is the same", "Please report it.")

    # ---- following ---------------------------------------------------------------------------------------------

    def _follow_runs(self, runs: Mapping[str, str]) -> None:
        for run_id, state in runs.items():
            known = self._runs.get(run_id)
            if known is not None and known != state and state == "failed":
                self.screen.event("airflow", f"run {run_id} failed", Colour.YELLOW)
        self._runs = dict(runs)

    def _follow_ledger(self) -> None:
        now = _read(self.ledger)
        for kill in self.play.kills:
            if kill.name not in self._told and kill.marker(self.folder.kills).exists():
                self._told.add(kill.name)
                self.screen.event(f"tx {kill.txid}", kill.story, Colour.RED)
        for line in changes(self.records, now, read=self.play.lines, staged=self.play.staged):
            self.screen.event(f"tx {line.txid}", line.text, line.colour)
        self.records = now
        self._clear_running()

    def _clear_running(self) -> None:
        """Clear once the run whose transaction is being processed: its old try goes on for a while beside the next
        try."""
        record = self.records.get(self.play.clears or 0)
        if record is None or record.status is not Status.PROCESSING or record.attempt == NO_ATTEMPT:
            return
        self._at_work_since = self._at_work_since or self.screen.elapsed_s
        if self.screen.elapsed_s - self._at_work_since < CLEAR_AFTER_S or self.play.cleared(self.folder).exists():
            return
        self.play.cleared(self.folder).touch()
        self.airflow.api.clear(self.play.dag, record.claim.run_id)
        self.screen.event(f"tx {record.txid}", f"{record.claim.run_id} cleared while it processes it", Colour.RED)


def _read(ledger: Ledger) -> dict[int, TxRecord]:
    try:
        return {record.txid: record for record in ledger.transactions()}
    except UnknownTopologyError:
        return {}  # no run has begun anything yet
