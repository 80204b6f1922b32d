"""Waiting for other transactions: who waits, pure decisions about the wait, and the wait in a worker.

The trigger, which waits without a worker, uses the same decisions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_trident.protocol.decide import (
    AlreadyCommitted,
    Blocked,
    Closed,
    Commit,
    EmitAgain,
    Unknown,
    Wait,
    decide_commit,
)
from airflow_trident.protocol.records import LedgerView, Status
from airflow_trident.tasks.task_states import NO_ROOM, NOT_BEGUN

if TYPE_CHECKING:
    from airflow_trident.ledger.ledger import Ledger
    from airflow_trident.runtime.waiting import Look


EMIT, COMMIT = "emit", "commit"
"""Keys of :attr:`Claim.task_ids`."""


class Until(StrEnum):
    """The event that a wait is for."""

    TURN = "turn"
    """Every lower transaction is COMMITTED or SKIPPED."""
    READY = "ready"
    """Its turn has come and its own batch is staged."""
    PASSED = "passed"
    """The transaction itself is COMMITTED or SKIPPED, so one transaction less is pending."""


class Rank(IntEnum):
    """Added to `priority_weight`. Where slots are few, a task that waits goes behind each task that it may wait for.

    A turn sensor waits for the tasks of lower transactions. A coordinator waits for room, so for a turn, too. A
    committer waits only if there is no turn sensor in front of it.
    """

    READY = 0
    COORDINATE = 1
    TURN = 2
    COMMIT = 3
    WORK = 4
    COMMIT_AFTER_TURN = 5


WAITING = frozenset({Rank.COORDINATE, Rank.TURN, Rank.COMMIT, Rank.COMMIT_AFTER_TURN})
"""Of tasks that may wait in the triggerer."""


@dataclass(frozen=True, slots=True)
class TaskOfRun:
    """A task instance that may work on a transaction."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    def __str__(self) -> str:
        index = f"[{self.map_index}]" if self.map_index >= 0 else ""
        return f"task '{self.task_id}{index}' of run {self.run_id!r} of DAG {self.dag_id!r}"


@dataclass(frozen=True, slots=True)
class Asker:
    """A task instance that waits.

    :param behind: ids of the tasks behind it, which only start when it has ended.
    :param max_active_runs: of its DAG; 1 in the run of an Airflow backfill, whose limit is not known; 0: not known.
    :param commits: does it commit, or a task behind it? Else the end of its wait commits nothing.
    """

    task: TaskOfRun
    behind: frozenset[str]
    max_active_runs: int = 0
    commits: bool = True

    def holds_up(self, other: TaskOfRun, state: str | None) -> bool:
        """Can the other task only start when this one, or this run, has ended?

        :param state: of the other one, as :func:`airflow_trident.tasks.liveness.state_in` gives it.
        """
        same_run = (other.dag_id, other.run_id) == (self.task.dag_id, self.task.run_id)
        behind = same_run and other.task_id in self.behind and self.task.map_index in (-1, other.map_index)
        return state == NO_ROOM or (behind and state in NOT_BEGUN)


def told_by_dag(task: Any) -> tuple[frozenset[str], int]:
    """`behind` and `max_active_runs` of an asker.

    :param task: the task in its DAG, as a worker or a triggerer has it. None, or a task without a DAG, tells nothing.
    """
    if task is None or not task.has_dag():
        return frozenset(), 0
    return frozenset(task.get_flat_relative_ids(upstream=False)), task.dag.max_active_runs


def commits_behind(task: Any) -> bool:
    """Is there a task behind this one that can commit? Tasks with an engine have a staging folder. A triggerer sees
    that, too, though it only knows the fields that are templates.

    :param task: as for :func:`told_by_dag`; of one that tells nothing, it is taken to be so.
    """
    if task is None or not task.has_dag():
        return True
    behind = (task.dag.get_task(task_id) for task_id in task.get_flat_relative_ids(upstream=False))
    return any("staging_dir" in downstream_task.template_fields for downstream_task in behind)


def next_look(waited: timedelta, least_s: float) -> timedelta:
    """How long a task that waits without a triggerer stays away from its slot. It rises with the time that the task has
    waited: so any number of waiting tasks leaves slots free, whatever their weights are.

    :param least_s: the shortest absence in seconds.
    """
    return max(timedelta(seconds=least_s), waited / 4)


@dataclass(frozen=True, slots=True)
class Over:
    """The wait is over. `committed`: the transaction is already committed."""

    committed: bool = False


@dataclass(frozen=True, slots=True)
class Abandoned:
    """Transaction `by` is staged, or lost its batch, and nobody is left to commit it, so the next commit sweep must. Or
    the task that began its attempt only starts again when this wait has ended."""

    by: int
    why: str


WaitDecision: TypeAlias = Over | Wait | Blocked | Unknown


def decide_wait(view: LedgerView, txid: int, until: Until) -> WaitDecision:
    """Is the wait over, or useless (:class:`Blocked` by a FAILED transaction), or what must change first?"""
    if until is Until.PASSED and view.tx is not None and view.tx.status.lets_others_pass:
        return Over(committed=view.tx.status is Status.COMMITTED)
    decision = decide_commit(view, txid)
    if isinstance(decision, AlreadyCommitted):
        return Over(committed=True)
    if isinstance(decision, Closed):
        return Over()  # its committer reports it
    if isinstance(decision, Blocked) and decision.skipped:
        # Others pass it, perhaps those of its own run: its committer commits these, and reports this one.
        lower = view.waits_for(txid)
        return Over() if lower is None else Wait(on=lower, why=f"transaction {lower} is not committed yet")
    if isinstance(decision, Blocked | Unknown):
        return decision
    if until is Until.PASSED:
        return Wait(on=txid, why=f"transaction {txid} is not committed yet")
    # EmitAgain: the committer emits the batch again.
    if isinstance(decision, Commit | EmitAgain) or (until is Until.TURN and decision.on == txid):
        return Over()
    return decision


def wait_in_worker(
    ledger: Ledger,
    txid: int,
    until: Until,
    *,
    wait_s: float,
    look_every_s: float,
    look: Look[Abandoned],
    say: Callable[[str], None],
    review: Callable[[WaitDecision], WaitDecision] = lambda decision: decision,
) -> WaitDecision | Abandoned:
    """Block on the ledger's watch until the wait is over or useless, at most `wait_s` seconds.

    :param say: gets the text of :func:`diagnosis.waiting` whenever it changes.
    :param review: changes a decision that the ledger alone cannot make: see
        :func:`airflow_trident.tasks.liveness.unless_replayed`.
    """
    from airflow_trident.runtime.waiting import wait_while_undecided

    def decide() -> tuple[WaitDecision, LedgerView]:
        view = ledger.view(txid)
        return review(decide_wait(view, txid, until)), view

    return wait_while_undecided(ledger, txid, decide, wait_s=wait_s, look_every_s=look_every_s, look=look, say=say)
