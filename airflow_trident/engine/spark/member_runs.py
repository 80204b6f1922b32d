"""Transforms of a group, and what is before them: planned for each transaction as in a run of its own.

A user's function may do anything with the DataFrame that it gets, so it gets the rows of one transaction at a time,
with that transaction's context, in a session of its own. Nothing of this runs: the results are united, each with the
position of its transaction, and become part of the group's jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_trident.engine.base import Job
from airflow_trident.engine.group_passes import blaming
from airflow_trident.engine.spark.dataframes import may_see_all
from airflow_trident.engine.spark.group_worker import MEMBER
from airflow_trident.engine.spark.run import PlanRun
from airflow_trident.engine.spark.sessions.session import Attached, Sibling
from airflow_trident.engine.spark.worker_notes import FolderNotes, Notes
from airflow_trident.plan.coalescing import before_transforms
from airflow_trident.plan.stages import Stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


TASKS = 2
"""As many tasks for each of a shuffle's partitions: one alone would wait for the slowest transaction."""

_NUMBERED_CODE = "spark.sql.codegen.useIdInClassName"
"""Spark numbers what it compiles by its place in the plan: then nothing is compiled once for all transactions."""
_ZIPPED_UNION = "spark.sql.unionOutputPartitioning"
"""Spark (since 4.1) unites frames of one partition each in one partition: one core then works for all transactions."""


class MemberRuns:
    """One run per transaction; none if no transform needs it. By key, a transform that works row by row gets the rows
    of all transactions at once, if it is told nothing of them.

    :param attached: a session that the group has for itself; the first transaction's functions get it.
    :param jobs: of one plan that may be processed in groups.
    :param tagged: do rows need the position of their transaction?
    """

    def __init__(self, attached: Attached, jobs: Sequence[Job], *, native: bool, tagged: bool) -> None:
        transforms = {stage.index: stage.transform for stage in jobs[0].plan.stages if stage.transform is not None}
        self._of_all = {index for index, node in transforms.items() if not tagged and may_see_all(node)}
        self._attached = attached
        self._jobs = jobs
        self._native = native
        self._tagged = tagged
        self._before = before_transforms(jobs[0].plan.stages, self._of_all)
        self._transforms = transforms.keys() - self._of_all
        self._runs: list[PlanRun] = []
        self._siblings: list[Sibling | None] = []
        self._notes: Notes = FolderNotes("")

    def begin(self, notes: Notes) -> None:
        """:param notes: of the group's pass."""
        if not self._transforms:
            return
        self._notes = notes
        for place, job in enumerate(self._jobs):
            sibling = Sibling.of(self._attached.session) if place else None
            attached = self._attached if sibling is None else replace(self._attached, session=sibling.session)
            for name in (_NUMBERED_CODE, _ZIPPED_UNION):
                attached.session.conf.set(name, "false")
            own = _NotesOfOne(notes, _begin_of(job))
            self._siblings.append(sibling)
            others = len(self._jobs) - 1
            self._runs.append(PlanRun(attached, job, native=self._native, notes=own, beside=others))

    def make(self, stage: Stage) -> DataFrame | None:
        """The rows of all transactions: after a transform, without the other nodes of its stage; of a whole stage, if
        other stages than a transform read it, too. None: what other stages need is not made here."""
        if stage.index in self._before:
            frames = self._each(stage)
            return self._united(frames) if stage.forks or stage.sinks else None
        if stage.index in self._transforms:
            alone = replace(stage, exchange=None, nodes=(), sinks=(), forks=False)
            return self._united(self._each(alone))
        return None

    def makes_whole(self, stage: Stage) -> bool:
        """Are all nodes of the stage run here?"""
        return stage.index in self._before

    def _each(self, stage: Stage) -> list[DataFrame]:
        frames = []
        for job, run, sibling in zip(self._jobs, self._runs, self._siblings, strict=True):
            deactivate = sibling.activated() if sibling is not None else None
            try:
                with blaming(job.slot.txid):
                    frames.append(run.frame(stage))
            finally:
                if deactivate is not None:
                    deactivate()
        return frames

    def _united(self, frames: Sequence[DataFrame]) -> DataFrame:
        """As a balanced tree, because Spark looks at both sides again with each union; in few partitions, because those
        of small transactions are small, and each task costs some milliseconds."""
        rows, literal = list(frames), self._attached.functions.lit
        if self._tagged:
            rows = [one.select("*", literal(str(place)).alias(MEMBER.name)) for place, one in enumerate(frames)]
        while len(rows) > 1:
            pairs = [rows[place : place + 2] for place in range(0, len(rows), 2)]
            rows = [pair[0].union(pair[1]) if len(pair) > 1 else pair[0] for pair in pairs]
        whole = rows[0].coalesce(TASKS * self._attached.partitions)
        if not self._tagged:
            return whole
        # Spark writes a number into the code that it makes, but not a text: so all transactions have the same code
        return whole.withColumn(MEMBER.name, whole[f"`{MEMBER.name}`"].cast(MEMBER.type))

    def require_same(self) -> None:
        """:raises SourceChangedError: what was read has changed; names the transaction."""
        for job, run in zip(self._jobs, self._runs, strict=False):
            with blaming(job.slot.txid):
                run.sources.require_same()

    def rows_read(self) -> list[int]:
        """Rows read here, of each transaction; -1 if unknown."""
        if not self._runs:
            return [0] * len(self._jobs)
        found = self._notes.all()
        return [run.rows_read(_of_one(found, _begin_of(job))) for job, run in zip(self._jobs, self._runs, strict=True)]

    def release(self) -> None:
        for run in self._runs:
            with suppress(Exception):
                run.release()


@dataclass(frozen=True)
class _NotesOfOne(Notes):
    """The notes of one transaction among those of its group."""

    notes: Notes
    begin: str

    def leave(self, name: str, text: str = "") -> None:
        self.notes.leave(f"{self.begin}{name}", text)

    def all(self) -> dict[str, str]:
        return _of_one(self.notes.all(), self.begin)


def _begin_of(job: Job) -> str:
    """What the names of a transaction's notes begin with."""
    return f"{job.slot.txid}-"


def _of_one(found: Mapping[str, str], begin: str) -> dict[str, str]:
    return {name.removeprefix(begin): text for name, text in found.items() if name.startswith(begin)}
