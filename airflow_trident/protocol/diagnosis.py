"""Why a topology or a transaction makes no progress: the cause, the cure, and the actions for a person. Pure.

The page, the commands, waiting tasks and errors all print a :class:`Diagnosis`. No other module has these texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from airflow_trident.errors import GoneOverError
from airflow_trident.protocol.decide import (
    AlreadyCommitted,
    Blocked,
    Closed,
    CommitDecision,
    EmitAgain,
    Unknown,
    Wait,
    decide_commit,
)
from airflow_trident.protocol.outcomes import CoordinatorOutcome, OutcomeKind
from airflow_trident.protocol.records import NO_ATTEMPT, Command, LedgerView, Status, TxRecord
from airflow_trident.protocol.txids import Txids

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A topology as its reader sees it.

    :param outcome: of the last coordinator; None: there was none.
    :param records: the records that were read, by txid.
    :param stalled: txid -> why no task continues it.
    :param workers: why no worker runs a topology that is deployed on workers; None: one does, or it is not deployed.
    :param red_runs: are there failed runs whose transactions are all committed?
    """

    view: LedgerView
    outcome: CoordinatorOutcome | None = None
    records: Mapping[int, TxRecord] = field(default_factory=dict)
    stalled: Mapping[int, Stalled] = field(default_factory=dict)
    workers: Stalled | None = None
    red_runs: bool = False

    @property
    def name(self) -> str:
        return self.view.topology.name

    @property
    def lowest(self) -> int | None:
        """The transaction that all others wait for."""
        return self.view.lowest_uncommitted(self.view.next_txid)


# ---- commands ----------------------------------------------------------------------------------------------------


def backfill_of(topology: str, txid: int) -> str:
    return f"`airflow trident backfill {topology} --txid {txid}`"


def _backfill_failed(topology: str) -> str:
    return f"`airflow trident backfill {topology} --failed`"


def skip_of(topology: str, txid: int) -> str:
    return f"`airflow trident skip {topology} {txid}`"


def take_back_of(topology: str, txid: int) -> str:
    return f"`airflow trident take-back {topology} {txid}`"


def _typed(command: str) -> str:
    return command.strip("`")


# ---- a topology --------------------------------------------------------------------------------------------------


def diagnose(evidence: Evidence) -> tuple[Diagnosis, ...]:
    """The first diagnosis is the state of the topology; the others name what else a person should know."""
    refused = list(_gone_over(evidence))
    every = (
        *_failed(evidence),
        *refused,
        *_coordinator(evidence),
        *_commanded(evidence),
        *_without_workers(evidence),
        *(() if refused else _without_task(evidence)),
        _progress(evidence),
        *_left(evidence),
    )
    actions = _actions_of_topology(evidence)
    return tuple(replace(diagnosis, actions=actions) for diagnosis in every)


def unreadable(error: str) -> Diagnosis:
    return Diagnosis(state=Health.UNREADABLE, why=error)


def blocks(diagnoses: tuple[Diagnosis, ...]) -> tuple[Diagnosis, ...]:
    """The reasons why a topology is blocked; empty if it is not. A paused one is not."""
    return tuple(each for each in diagnoses if each.state is diagnoses[0].state and each.state in _ENDED_BY_PEOPLE)


def troubles(diagnoses: tuple[Diagnosis, ...]) -> tuple[Diagnosis, ...]:
    """All that a person has to act on. The command that pauses a topology is a person's own."""
    return tuple(
        each for each in diagnoses if each.state in _ENDED_BY_PEOPLE or (each.cure and each.state is not Health.PAUSED)
    )


_ENDED_BY_PEOPLE = (Health.UNREADABLE, Health.BLOCKED)


def _failed(evidence: Evidence) -> Iterator[Diagnosis]:
    txid = evidence.view.blocked_by(evidence.view.next_txid)
    if txid is not None:
        yield blocked(evidence.name, Blocked(txid), evidence.records.get(txid))


def is_gone_over(record: TxRecord) -> bool:
    """Did a state refuse the transaction because a commit had gone over it?"""
    return record.status is Status.COMMITTING and record.error.startswith(GoneOverError.__name__)


def _gone_over(evidence: Evidence) -> Iterator[Diagnosis]:
    """A state has a group that went over a transaction, which was taken up again afterwards, as after the restore of a
    ledger. The state refuses that transaction until it is skipped again."""
    lowest = None if evidence.lowest is None else evidence.records.get(evidence.lowest)
    if lowest is None or not is_gone_over(lowest):
        return
    over = max((txid for txid, above in evidence.records.items() if txid > lowest.txid and above.touched), default=None)
    if over is None:
        return
    name, txid = evidence.name, lowest.txid
    first = take_back_of(name, txid)
    yield Diagnosis(
        state=Health.BLOCKED,
        culprit=txid,
        why=f"a state refuses transaction {txid}, because the commit of transaction {over} went over it before",
        cure=f"Type {first}, then {skip_of(name, txid)}, {backfill_of(name, over)}, and at last "
        f"{backfill_of(name, txid)}",
        command=_typed(first),
    )


def _coordinator(evidence: Evidence) -> Iterator[Diagnosis]:
    outcome, view = evidence.outcome, evidence.view
    if outcome is None or not outcome.is_bad:
        return
    if outcome.kind is OutcomeKind.BLOCKED and view.blocked_by(view.next_txid) is not None:
        return  # that transaction says it
    ended = "failed" if outcome.kind is OutcomeKind.ERROR else "is blocked"
    detail = ": ".join(filter(None, (outcome.text, " ".join(outcome.error.split()))))
    yield Diagnosis(state=Health.BLOCKED, why=f"the coordinator {ended}, and begins nothing", detail=detail)


def paused(topology: str, command: Command) -> Diagnosis:
    """A topology whose lifecycle command is not `run` is paused."""
    resume = f"`airflow trident resume {topology}`"
    return Diagnosis(
        state=Health.PAUSED,
        why=f"its command is {command}, and no new transaction begins",
        cure=f"{resume} ends that.",
        command=_typed(resume),
    )


def _commanded(evidence: Evidence) -> Iterator[Diagnosis]:
    command = evidence.view.topology.command
    if command is not Command.RUN:
        yield paused(evidence.name, command)


def _without_workers(evidence: Evidence) -> Iterator[Diagnosis]:
    workers = evidence.workers
    if workers is not None:
        yield Diagnosis(state=Health.BLOCKED, why=workers.why, cure=workers.cure)


def _without_task(evidence: Evidence) -> Iterator[Diagnosis]:
    lowest = evidence.lowest
    if lowest is not None and lowest in evidence.stalled:
        yield _no_task(evidence, lowest)


def _no_task(evidence: Evidence, txid: int) -> Diagnosis:
    """No task works on it, and it holds up all others, or will."""
    stalled, record = evidence.stalled[txid], evidence.records.get(txid)
    status = f", which is {record.status}" if record is not None else ""
    backfill = backfill_of(evidence.name, txid)
    return Diagnosis(
        state=Health.BLOCKED if txid == evidence.lowest else Health.WAITING,
        culprit=txid,
        why=f"no task works on transaction {txid}{status}",
        detail=stalled.why,
        cure=f"{stalled.cure}, or type {backfill}" if stalled.cure else f"Type {backfill}",
        command=_typed(backfill),
    )


def _progress(evidence: Evidence) -> Diagnosis:
    view, lowest = evidence.view, evidence.lowest
    record = None if lowest is None else evidence.records.get(lowest)
    if record is not None and record.attempt > 0:
        why = f"transaction {record.txid} was attempted {record.attempt + 1} times"
        return Diagnosis(state=Health.BEHIND, culprit=lowest, why=why)
    if record is not None:
        return Diagnosis(state=Health.RUNNING, culprit=lowest, why=f"transaction {record.txid} is {record.status}")
    if lowest is not None:
        return Diagnosis(state=Health.RUNNING, culprit=lowest, why=f"{_named(view.pending)} under way")
    why = "all transactions are committed or skipped" if view.next_txid > 1 else "no transaction was begun yet"
    return Diagnosis(state=Health.IDLE, why=why)


def _named(count: int) -> str:
    return f"{count} transaction{'' if count == 1 else 's'} {'is' if count == 1 else 'are'}"


def _left(evidence: Evidence) -> Iterator[Diagnosis]:
    """Transactions that a person has to finish, and that hold up no other one yet."""
    lists, passed = evidence.view.exceptions, evidence.view.pointer.committed
    command = _backfill_failed(evidence.name)
    above = sorted(txid for txid in lists.failed if txid > passed)[1:]
    below = sorted(txid for txid in lists.failed if txid <= passed)
    replayed = sorted({*lists.replaying, *lists.late})
    for txids, state, status, cure in (
        (above, Health.WAITING, "FAILED, too", f"Replay with {command}"),
        (below, Health.WAITING, "FAILED; later ones passed, and no state has this data", f"Replay with {command}"),
        (replayed, Health.RUNNING, "being replayed", f"If the process of the replay has ended, type {command}"),
    ):
        if txids:
            why = f"{_listed(txids)} {'are' if txids[1:] else 'is'} {status}"
            yield Diagnosis(state=state, culprit=txids[0], why=why, cure=cure, command=_typed(command))
    others = sorted(txid for txid in evidence.stalled if txid != evidence.lowest)
    if others:
        first = _no_task(evidence, others[0])
        yield replace(first, why=f"no task works on {_listed(others)}") if others[1:] else first


def _listed(txids: list[int]) -> str:
    return f"transaction{'s' if txids[1:] else ''} {Txids.of(*txids)}"


# ---- a transaction -----------------------------------------------------------------------------------------------


def diagnose_transaction(evidence: Evidence, record: TxRecord) -> Diagnosis:
    """Why a transaction does not commit now, and what a person may do with it. A waiting task says the same."""
    actions = _actions_of(evidence, record)
    return replace(_of_record(evidence, record), actions=actions)


def _of_record(evidence: Evidence, record: TxRecord) -> Diagnosis:
    txid, lowest, view = record.txid, evidence.lowest, replace(evidence.view, tx=record)
    match decide_commit(view, txid):
        case Blocked() as decision:
            culprit = record if decision.by == txid else evidence.records.get(decision.by)
            return blocked(evidence.name, decision, culprit)
        case _ if txid in evidence.stalled and not record.status.is_final:
            return _no_task(evidence, txid)
        case Wait(on=on) as decision if on != txid:
            if lowest is not None and lowest in evidence.stalled:
                return _no_task(evidence, lowest)
            return waiting(evidence.name, txid, decision.why, None if lowest is None else evidence.records.get(lowest))
        case decision:
            settled = record.status.is_final
            why = why_not(decision) if isinstance(decision, EmitAgain | Wait) or settled else _is(record)
            return Diagnosis(
                state=Health.IDLE if settled else Health.RUNNING, culprit=None if settled else txid, why=why
            )


def _is(record: TxRecord) -> str:
    return f"transaction {record.txid} is {record.status}"


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


def _actions_of_topology(evidence: Evidence) -> tuple[PageAction, ...]:
    has_command = evidence.view.topology.command is not Command.RUN
    return _buttons(
        {
            PageAction.PAUSE: not has_command,
            PageAction.RESUME: has_command,
            PageAction.BACKFILL: evidence.view.next_txid > 1,
            PageAction.ACCEPT: True,
            PageAction.CLEAR_RUNS: evidence.red_runs,
        }
    )


def _actions_of(evidence: Evidence, record: TxRecord) -> tuple[PageAction, ...]:
    """The ledger decides again when the action is done."""
    status = record.status
    is_open = not status.is_final and status is not Status.SKIPPED
    untouched = not record.touched and not record.invalidated
    is_left = status in (Status.FAILED, Status.SKIPPED)
    return _buttons(
        {
            PageAction.BACKFILL: is_left or record.txid in evidence.stalled,
            PageAction.SKIP: is_open and untouched,
            PageAction.ACCEPT_SOURCE: is_left and untouched,
            PageAction.BISECT: status is Status.FAILED and not record.invalidated,
            PageAction.CLOSE: status is Status.SKIPPED and record.txid <= evidence.view.pointer.committed,
        }
    )


def _buttons(possible: Mapping[PageAction, bool]) -> tuple[PageAction, ...]:
    return tuple(action for action in PageAction if possible.get(action))
