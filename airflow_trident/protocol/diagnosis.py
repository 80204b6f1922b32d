"""Why a topology or a transaction makes no progress: the cause, the cure, and the actions for a person. Pure.

The page, the commands, waiting tasks and errors all print a :class:`Diagnosis`. No other module has these texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from airflow_trident.protocol.decide import (
    AlreadyCommitted,
    Blocked,
    Closed,
    CommitDecision,
    EmitAgain,
    Unknown,
    Wait,
)
from airflow_trident.protocol.records import NO_ATTEMPT, Command, LedgerView, Status, TxRecord

ERROR_SHOWN = 200
"""Characters of a transaction's error in a diagnosis: its record has the whole text."""


class PageAction(StrEnum):
    """The actions of the page, in the order of its buttons; all but the last are the command of the same name."""

    PAUSE = "pause"
    RESUME = "resume"
    BACKFILL = "backfill"
    SKIP = "skip"
    ACCEPT = "accept"
    """Accept a changed definition."""
    ACCEPT_SOURCE = "accept-source"
    BISECT = "bisect"
    CLOSE = "close"
    CLEAR_RUNS = "clear-runs"
    """Clear Airflow's failed runs whose transactions are all committed. No command: Airflow's Clear does it."""

    @property
    def needs_code(self) -> bool:
        """Does it need the topology's code, which the API server does not have?"""
        return self in (PageAction.BACKFILL, PageAction.ACCEPT, PageAction.ACCEPT_SOURCE, PageAction.BISECT)

    @property
    def about_one(self) -> bool:
        """Is it always about one transaction?"""
        return self in (PageAction.SKIP, PageAction.CLOSE, PageAction.ACCEPT_SOURCE, PageAction.BISECT)


class Health(StrEnum):
    """The state of a topology or transaction, the worst first."""

    UNREADABLE = "unreadable"
    BLOCKED = "blocked"
    """No data is begun or committed until a person acts."""
    BEHIND = "behind"
    """The lowest transaction is at its second attempt or a later one."""
    PAUSED = "paused"
    WAITING = "waiting"
    """A transaction waits for a lower one, or a person has to act on it; it holds up no other one."""
    RUNNING = "running"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Stalled:
    """Work that no task and no worker continues; `why` names the task or worker and its state. `cure`: what a person
    can do in Airflow, or type; "" if that is nothing."""

    why: str
    cure: str = ""

    def __str__(self) -> str:
        return f"{self.why}. {self.cure}" if self.cure else self.why


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """`culprit`: the transaction that holds up, None if it is none. `why`: a clause without data of users. `detail`:
    errors, names and places, for those who may see the culprit's DAG. `cure`: sentences, "" if there is nothing to do;
    `command`: the first command of it. `actions`: the buttons of the page."""

    state: Health
    culprit: int | None = None
    why: str = ""
    detail: str = ""
    cure: str = ""
    command: str = ""
    actions: tuple[PageAction, ...] = ()

    @property
    def text(self) -> str:
        """Why, with the detail."""
        return f"{self.why}: {self.detail}" if self.detail else self.why

    def __str__(self) -> str:
        return f"{self.text.rstrip('.')}. {self.cure}" if self.cure else self.text

    def of(self, topology: str) -> str:
        """The diagnosis where the topology is not named beside it."""
        return f"topology {topology}: {self}"


# ---- commands ----------------------------------------------------------------------------------------------------


def backfill_of(topology: str, txid: int) -> str:
    return f"`airflow trident backfill {topology} --txid {txid}`"


def skip_of(topology: str, txid: int) -> str:
    return f"`airflow trident skip {topology} {txid}`"


def take_back_of(topology: str, txid: int) -> str:
    return f"`airflow trident take-back {topology} {txid}`"


def _typed(command: str) -> str:
    return command.strip("`")


def paused(topology: str, command: Command) -> Diagnosis:
    """A topology whose lifecycle command is not `run` is paused."""
    resume = f"`airflow trident resume {topology}`"
    return Diagnosis(
        state=Health.PAUSED,
        why=f"its command is {command}, and no new transaction begins",
        cure=f"{resume} ends that.",
        command=_typed(resume),
    )


# ---- a transaction -----------------------------------------------------------------------------------------------


def why_not(decision: CommitDecision) -> str:
    """Why a transaction is not committed now."""
    match decision:
        case Unknown(next_txid=next_txid):
            return f"it was never begun (the next one is {next_txid})"
        case AlreadyCommitted():
            return "it is COMMITTED already"
        case Closed():
            return "it was closed for good"
        case Blocked(by=by):
            return f"transaction {by} is FAILED or SKIPPED and must be replayed or skipped first"
        case EmitAgain():
            return "it has no batch since a lower transaction was attempted again"
        case Wait(why=why):
            return why
    return "it has no staged batch"


def blocked(topology: str, decision: Blocked, record: TxRecord | None = None) -> Diagnosis:
    """A FAILED transaction blocks those above it; a SKIPPED one is not committed by its own task.

    :param record: of that transaction, if it was read.
    """
    txid, backfill = decision.by, backfill_of(topology, decision.by)
    if decision.skipped:
        return Diagnosis(
            state=Health.IDLE,
            culprit=txid,
            why=f"transaction {txid} is SKIPPED: others pass it, and it is not committed",
            cure=f"To apply it after all: {backfill}, or clear its run. A state that depends on the order of "
            "transactions takes it only until a later one commits.",
            command=_typed(backfill),
        )
    others = f", or let the others pass: {skip_of(topology, txid)}."
    if record is not None and record.touched:
        others = f"; if its commit can never succeed, {take_back_of(topology, txid)}."
    held_up = "nothing above it may commit before it"
    return Diagnosis(
        state=Health.WAITING if decision.passed else Health.BLOCKED,
        culprit=txid,
        why=f"transaction {txid} is FAILED, and {'later ones passed it' if decision.passed else held_up}",
        detail=_first_line(record),
        cure=f"Replay it ({backfill}, or clear its task){'.' if decision.passed else others}",
        command=_typed(backfill),
    )


def waiting(topology: str, txid: int, why: str, culprit: TxRecord | None) -> Diagnosis:
    """A waiting task names what it waits for, the owner of that transaction, and the ways to end the wait.

    :param culprit: the record of :meth:`LedgerView.lowest_uncommitted`, or of the transaction itself; None: not read.
    """
    if culprit is None:
        return Diagnosis(state=Health.WAITING, why=why)
    number, backfill = culprit.txid, backfill_of(topology, culprit.txid)
    attempt = f", attempt {culprit.attempt}" if culprit.attempt != NO_ATTEMPT else ", not attempted yet"
    by = f" by {culprit.owner}" if culprit.owner else ""
    error = f", last error: {_first_line(culprit)}" if culprit.error else ""
    cure = f"See `airflow trident ledger show {topology} {number}`"
    others = ""
    if not culprit.touched:
        others = f"; {skip_of(topology, number)} lets the others pass"
    elif culprit.error:
        others = f"; {take_back_of(topology, number)} if its commit can never succeed"
    is_own = number == txid
    return Diagnosis(
        state=Health.WAITING,
        culprit=number,
        why=why,
        detail=f"transaction {number} is {culprit.status}{attempt}{by}{error}",
        cure=f"{cure}." if is_own else f"{cure}; if nobody works on it, {backfill}{others}.",
        command="" if is_own else _typed(backfill),
    )


def _first_line(record: TxRecord | None) -> str:
    return record.error.splitlines()[0][:ERROR_SHOWN] if record is not None and record.error else ""


# ---- what may be done --------------------------------------------------------------------------------------------


def actions_of_topology(view: LedgerView, *, red_runs: bool) -> tuple[PageAction, ...]:
    """The actions that a person may ask for now.

    :param red_runs: are there failed runs whose transactions are all committed?
    """
    has_command = view.topology.command is not Command.RUN
    return _buttons(
        {
            PageAction.PAUSE: not has_command,
            PageAction.RESUME: has_command,
            PageAction.BACKFILL: view.next_txid > 1,
            PageAction.ACCEPT: True,
            PageAction.CLEAR_RUNS: red_runs,
        }
    )


def actions_of(view: LedgerView, record: TxRecord, *, is_stalled: bool) -> tuple[PageAction, ...]:
    """The actions that a person may ask for on a transaction; the ledger decides again when the action is done."""
    status = record.status
    is_open = not status.is_final and status is not Status.SKIPPED
    untouched = not record.touched and not record.invalidated
    is_left = status in (Status.FAILED, Status.SKIPPED)
    return _buttons(
        {
            PageAction.BACKFILL: is_left or is_stalled,
            PageAction.SKIP: is_open and untouched,
            PageAction.ACCEPT_SOURCE: is_left and untouched,
            PageAction.BISECT: status is Status.FAILED and not record.invalidated,
            PageAction.CLOSE: status is Status.SKIPPED and record.txid <= view.pointer.committed,
        }
    )


def _buttons(possible: Mapping[PageAction, bool]) -> tuple[PageAction, ...]:
    return tuple(action for action in PageAction if possible.get(action))
