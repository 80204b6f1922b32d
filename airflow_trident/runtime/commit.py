"""The commit phase: the sweep that commits, in order, every transaction whose turn has come.

Staged batches are durable, so any process can commit any of them. So a committer does not only commit its own
transaction: a late replay of transaction 2 also commits 3 and 4 that were processed meanwhile, and nobody waits in vain
for a task that has ended.

Decides which waiting transactions are committed in one step. Pure: the caller passes records and manifests.

Commits waiting transactions together: one step of the ledger opens the gate of all, each state takes all in one
step, and one step of the ledger says COMMITTED.

A group is not durable. A committer that finds an unfinished one commits its members alone, or in other groups, with the
same result: fences and markers decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from airflow_trident.contracts.state import Applied
from airflow_trident.engine.engine import Engine, quiet
from airflow_trident.errors import (
    FencedError,
    LateBatchError,
    NewerRecordError,
    OtherPlanError,
    Outcome,
    StagingError,
    TransitionError,
    TridentError,
    UserCodeError,
    guarded,
    recorded_text,
    state_code,
)
from airflow_trident.ledger.answers import StagedAttempt
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.names import DEFAULT_RETENTION
from airflow_trident.protocol.decide import (
    AlreadyCommitted,
    Blocked,
    Closed,
    Commit,
    CommitDecision,
    EmitAgain,
    Unknown,
    Wait,
    decide_commit,
)
from airflow_trident.protocol.records import CommitTicket, LedgerView, Status, TxRecord
from airflow_trident.runtime.downstream import (
    apply_downstream,
    note_overlooked,
    require_all_fed,
    require_distinct_keys,
    with_commit_time,
)
from airflow_trident.runtime.gates import broken_at_turn
from airflow_trident.runtime.milestones import Milestone, reached
from airflow_trident.runtime.open_resources import OpenStates
from airflow_trident.runtime.phases import (
    Attempts,
    Progress,
    no_transaction,
    note_failure,
    require_not_late,
    run_attempt,
    start_attempts,
)
from airflow_trident.runtime.staged_batches import (
    Batch,
    apply_batch,
    gone_again,
    manifest_of,
    reason_to_emit,
    remove_old,
    require_same_plan,
    rows_of,
    staged_batches,
    staged_by_other_plan,
    tell_other_code,
)
from airflow_trident.runtime.state_agreement import may_commit
from airflow_trident.runtime.waiting import is_as_left, is_left_to_its_committer
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest
from airflow_trident.topology.topology import Topology

if TYPE_CHECKING:
    import pyarrow as pa

MOST_TOGETHER = 200
"""The most transactions of one step of the ledger and of the states."""
MOST_ROWS = 1_000_000
"""The most rows of one step, for transactions that were staged apart: these rows are in memory together."""


def waiting_run(records: Iterable[TxRecord], is_free: Callable[[TxRecord], bool], limit: int) -> tuple[TxRecord, ...]:
    """The transactions that can commit one after the other, from the first one on, which can commit now.

    :param records: in txid order; those missing in between are committed.
    :param is_free: may a commit that somebody has begun be taken over?
    """
    run: list[TxRecord] = []
    for record in records:
        if len(run) == limit:
            break
        if record.status.lets_others_pass:
            continue
        is_staged = record.status is Status.PROCESSED or (record.status is Status.COMMITTING and is_free(record))
        if not is_staged or record.invalidated or record.staged is None:
            break
        run.append(record)
    return tuple(run)


def first_group(waiting: Sequence[TxRecord], manifests: Mapping[str, Manifest]) -> tuple[TxRecord, ...]:
    """The first of these that go together. A batch that was merged by key goes as a whole and alone, or not at all.

    :param waiting: staged, in txid order; at least one.
    :param manifests: path -> manifest, of those that can be read.
    """
    first = _manifest(waiting[0], manifests)
    if first is None:
        return tuple(waiting[:1])
    if first.inseparable:
        whole = tuple(waiting[: len(first.members)])
        attempts = [(member_record.txid, member_record.attempt) for member_record in whole]
        return whole if attempts == [(member.txid, member.attempt) for member in first.members] else whole[:1]
    group: list[TxRecord] = []
    rows = 0
    for record in waiting:
        manifest = _manifest(record, manifests)
        rows += sum(record.staged.rows.values()) if record.staged is not None else 0
        if manifest is None or manifest.inseparable or (group and rows > MOST_ROWS):
            break
        group.append(record)
    return tuple(group)


def _manifest(record: TxRecord, manifests: Mapping[str, Manifest]) -> Manifest | None:
    return None if record.staged is None else manifests.get(record.staged.manifest)


OVERTAKEN_TIMES = 100
"""How often a commit goes on with a new fence because another transaction's commit came in between; then it waits."""

GoOn: TypeAlias = Callable[[Sequence[CommitTicket]], int]
"""Says COMMITTED for the first of these, in a step that also begins the next transactions. Returns for how many; 0:
nothing was done."""

FIRST_LOOK = 8
"""How many transactions behind one that can commit are read together at first; each next reading takes that many
times as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEnd:
    """`committed`: by this call, in order. If it is empty, others have taken the transactions (`elsewhere`), or the
    first one must be committed alone, and all others up to `through`, too; `gated`: the tickets of these, whose gates
    are open."""

    committed: tuple[int, ...] = ()
    elsewhere: bool = False
    through: int = 0
    gated: tuple[CommitTicket, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GroupCommitter:
    """Commits groups for :class:`~airflow_trident.runtime.commit.Committer`, and has the same members."""

    ledger: Ledger
    topology: Topology
    staging_root: str
    attempts: Attempts
    retention: int
    progress: Progress
    go_on: GoOn

    def waiting(
        self, view: LedgerView, is_free: Callable[[TxRecord], bool], limit: int, *, remembered: bool
    ) -> tuple[TxRecord, ...]:
        """The transactions that can commit together, from that of `view` on, whose turn has come; empty: it goes alone.

        :param is_free: see :func:`~airflow_trident.runtime.commit.waiting_run`.
        """
        tx = view.tx
        if tx is None or view.next_txid - 1 == tx.txid or not self.topology.compile().coalesces.commits:
            return ()
        run = waiting_run(chain([tx], self._above(view, remembered)), is_free, limit)
        return run if len(run) > 1 else ()

    @staticmethod
    def is_followed(ledger: Ledger, records: Sequence[TxRecord], manifest: Manifest, limit: int) -> bool:
        """Is the next transaction processed already, as far as is remembered, and may it go with these?"""
        txid = records[-1].txid + 1
        if len(records) >= limit or manifest.inseparable or txid >= ledger.view(0, remembered=True).next_txid:
            return False
        after = ledger.view(txid, remembered=True).tx
        return after is not None and after.status is Status.PROCESSED

    def _above(self, view: LedgerView, remembered: bool) -> Iterator[TxRecord]:
        """The records above that of `view`, read only when needed: mostly the first of them is not ready."""
        assert view.tx is not None
        txid, many = view.tx.txid + 1, FIRST_LOOK
        while txid < view.next_txid:
            last = min(txid + many, view.next_txid) - 1
            if remembered:
                views = (self.ledger.view(above, remembered=True).tx for above in range(txid, last + 1))
                yield from (tx for tx in views if tx is not None)
            else:
                yield from self.ledger.transactions(txid, last)
            txid, many = last + 1, many * FIRST_LOOK

    def commit(
        self, waiting: Sequence[TxRecord], states: OpenStates, open_tickets: Sequence[CommitTicket] = ()
    ) -> GroupEnd | None:
        """Gate, states, COMMITTED, for the first of these that go together; None: the first one goes alone.

        :param open_tickets: tickets of an open gate; used if they are those of the group.
        :raises TridentError: a store or the ledger does not answer. The next sweep goes on.
        """
        group, manifests = self._group_of(waiting)
        if len(group) < 2:
            return None
        txids = [record.txid for record in group]
        tickets = open_tickets if [ticket.txid for ticket in open_tickets] == txids else ()
        try:
            for _ in range(OVERTAKEN_TIMES):
                end = self._once(group, manifests, states, tickets)
                if isinstance(end, GroupEnd):
                    return end
                group, tickets = end, ()
        except BaseException as error:  # whatever it was: waiting people look for it
            note_error(self.ledger, txids[0], error, rows=self.attempts.rows_in_errors)
            raise
        return GroupEnd(elsewhere=True)

    def _group_of(self, waiting: Sequence[TxRecord]) -> tuple[tuple[TxRecord, ...], Mapping[str, Manifest]]:
        """The first of these that go together, and their manifests."""
        area, manifests = StagingArea(self.staging_root), dict[str, Manifest]()
        for record in waiting:
            if record.staged is None or broken_at_turn(self.topology.name, record, self.topology.compile()):
                break
            if record.staged.manifest not in manifests:
                try:
                    manifest = manifest_of(area, self.ledger, record.staged)
                    require_same_plan(manifest, self.topology.compile())
                except (StagingError, NewerRecordError, OtherPlanError):
                    break  # the committer that commits it alone emits it again, or says what is wrong
                manifests[record.staged.manifest] = manifest
        return first_group(waiting, manifests), manifests

    def _once(
        self,
        group: Sequence[TxRecord],
        manifests: Mapping[str, Manifest],
        states: OpenStates,
        tickets: Sequence[CommitTicket],
    ) -> GroupEnd | tuple[TxRecord, ...]:
        """Records: nobody took the group, as it now is, but another transaction's commit gave a state a higher fence
        meanwhile."""
        txids = [record.txid for record in group]
        try:
            tickets = tickets or self.ledger.gate(group, owner=self.attempts.owner)
            _told(Milestone.GATE_OPENED, tickets)
            self._apply(tickets, manifests, states)
            self._committed(tickets)
        except FencedError:
            return self._fenced(group, tickets)
        except TransitionError:
            return GroupEnd(through=txids[-1], gated=tuple(tickets))  # somebody changed one of them meanwhile
        except TridentError as error:
            if error.outcome is not Outcome.FAIL and not isinstance(error, StagingError | UserCodeError):
                raise
            self.progress(f"{_named(txids)} cannot be committed in one step ({error}); committing them one by one")
            return GroupEnd(through=txids[-1], gated=tuple(tickets))
        _told(Milestone.COMMITTED, tickets)
        self.progress(f"{_named([ticket.txid for ticket in tickets])} are committed in one step")
        return GroupEnd(committed=tuple(ticket.txid for ticket in tickets))

    def _fenced(self, group: Sequence[TxRecord], tickets: Sequence[CommitTicket]) -> GroupEnd | tuple[TxRecord, ...]:
        tx, many = self.ledger.view(group[0].txid).tx, len(tickets)
        if not tickets:  # one of them is not as it was looked at: each is looked at again, unless they are taken
            taken = tx is None or (tx.status is Status.COMMITTING and tx.fence != group[0].fence)
            return GroupEnd(elsewhere=True) if taken else GroupEnd(through=group[-1].txid)
        if tx is None or tx.status is not Status.COMMITTING or tx.fence != tickets[0].fence:
            return GroupEnd(elsewhere=True)
        return (*(replace(record, fence=tx.fence) for record in group[:many]), *group[many:])

    def _apply(self, tickets: Sequence[CommitTicket], manifests: Mapping[str, Manifest], states: OpenStates) -> None:
        staged = self._staged(tickets, manifests)
        require_distinct_keys(self.topology.compile(), staged)
        opened = states.opened()
        for name in self.topology.states:
            batches = staged(name)
            with state_code(name, tickets[-1].txid):
                applied = opened[name].apply_group(tickets, batches)
            skipped = sum(outcome is Applied.ALREADY for outcome in applied)
            already = f" (it had {skipped} of them already)" if skipped else ""
            rows = sum(batch.num_rows for batch in batches)
            self.progress(f"{_named([ticket.txid for ticket in tickets])}: {rows} rows into state {name}{already}")
            _told(Milestone.APPLIED, tickets)

    def _staged(
        self, tickets: Sequence[CommitTicket], manifests: Mapping[str, Manifest]
    ) -> Callable[[str], list[pa.Table]]:
        """Reads, for a state, the batches of the tickets, in their order, or one batch of all of them. Now it is only
        checked, at little cost, that all of them are there.

        :raises StagingError: they cannot be read, or cannot be separated.
        :raises OtherPlanError: another plan staged one of them.
        """
        plan = self.topology.compile()
        schemas = {sink.name: sink.schema for sink in plan.staged}
        area, parts = StagingArea(self.staging_root), dict[str, dict[int, int]]()
        for ticket in tickets:
            parts.setdefault(ticket.staged.manifest, {})[ticket.txid] = ticket.attempt
        staged = {member_ticket.staged.manifest: member_ticket.staged for member_ticket in tickets}
        by_path = {path: manifests.get(path) or manifest_of(area, self.ledger, staged[path]) for path in parts}
        for manifest in by_path.values():
            require_same_plan(manifest, plan)
            tell_other_code(manifest, plan, self.progress)
        for path, attempts in parts.items():
            area.require_members(by_path[path], attempts)
            area.require_there(by_path[path], schemas)

        def batches(state: str) -> list[pa.Table]:
            tables_by_txid: dict[int, pa.Table] = {}
            for path, attempts in parts.items():
                tables = area.read_each(by_path[path], attempts, state, schemas[state])
                if by_path[path].inseparable:
                    return tables
                tables_by_txid.update(zip(attempts, tables, strict=True))
            # Transactions that were processed together need not be neighbours: one between them had its own pass.
            return [tables_by_txid[ticket.txid] for ticket in tickets]

        return batches

    def _committed(self, tickets: Sequence[CommitTicket]) -> None:
        remaining = list(tickets[self.go_on(tickets) :])
        while remaining:
            remaining = remaining[len(self.ledger.committed(remaining, retention=self.retention).records) :]
        remove_old(StagingArea(self.staging_root), self.ledger, tickets, self.retention)


def note_error(ledger: Ledger, txid: int, error: BaseException, *, rows: bool) -> None:
    """Notes on the record how a commit failed, for people who wait.

    :param rows: see :class:`~airflow_trident.runtime.phases.Attempts`.
    """
    with suppress(TridentError):
        tx = ledger.view(txid).tx
        if tx is not None and tx.status is Status.COMMITTING:
            ledger.fail(txid, tx.attempt, recorded_text(error, rows=rows), retry=True)


def _told(milestone: Milestone, tickets: Sequence[CommitTicket]) -> None:
    for ticket in tickets:
        reached(milestone, ticket.txid)


def _named(txids: Sequence[int]) -> str:
    return f"transactions {txids[0]} to {txids[-1]} ({len(txids)} of them)"


EMIT_TRIES = 3
"""A committer emits another's transaction again at most this often; then it is FAILED, and nobody waits for it. It
takes up its own unfinished ones as often: else two tries of one task at once would supersede each other for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """`committed`: txids that this call committed, in order. `own`: the caller's transaction: AlreadyCommitted, by
    whomever, or what it waits for. `view`: the view that this was decided on."""

    committed: tuple[int, ...]
    own: AlreadyCommitted | Wait | Blocked
    view: LedgerView


@dataclass(frozen=True, kw_only=True)
class Committer:
    """What a commit needs. `engine` is called only when a staged batch is gone and must be emitted again.

    `takes_up`: did the caller itself begin the attempt of this PROCESSING transaction, and no longer works on it? Or
    does the one who began it only go on after the caller has ended? Then nobody else ends that attempt, so the
    transaction is emitted again when its turn has come.
    `most_together`: one step commits at most this many waiting transactions; 1: each alone.
    `go_on`: is asked first to say COMMITTED: it may begin the next transactions in the same step.
    """

    ledger: Ledger
    topology: Topology
    staging_root: str
    attempts: Attempts
    engine: Callable[[], Engine]
    retention: int = DEFAULT_RETENTION
    progress: Progress = quiet
    takes_up: Callable[[TxRecord], bool] = lambda _record: False
    most_together: int = MOST_TOGETHER
    go_on: GoOn = lambda _tickets: 0
    _emitted: Counter[int] = field(default_factory=Counter, init=False, repr=False)
    _fences: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    """Txid -> fence, of groups whose gate this committer opened and which it may commit one by one."""
    _held: list[CommitTicket] = field(default_factory=list, init=False, repr=False)
    """Tickets of a gate that was opened in the step that said PROCESSED, for the next sweep."""

    def commit(
        self,
        txid: int,
        *,
        take_over: bool = False,
        states: OpenStates | None = None,
        remembered: bool = False,
    ) -> SweepResult:
        """Sweeps: commits all that can be committed now. A caller that must wait waits elsewhere, and sweeps again.

        :param take_over: take over commits that other committers began: the caller knows that these are dead.
        :param states: open already, or kept open by the caller.
        :param remembered: see :meth:`Ledger.view`.
        :raises TransitionError: `txid` was never begun.
        :raises LedgerBehindStateError: a state holds what the ledger does not know.
        :raises StateBehindLedgerError: a state lacks what the ledger calls COMMITTED.
        """
        with OpenStates(self.topology) if states is None else nullcontext(states) as opened:
            committed = self._sweep(txid, opened, take_over, remembered)
        view = self.ledger.view(txid, remembered=remembered or txid in committed)
        return SweepResult(committed=tuple(committed), own=self._about(view, txid), view=view)

    def processed_at_gate(self, records: Sequence[TxRecord], manifest: Manifest, states: OpenStates) -> bool:
        """PROCESSED and COMMITTING in one step, if it is the turn of the transactions that a pass staged and they go
        together; the next sweep commits them. False: nothing was changed, or not all of them fitted into the step.

        :param records: rising, as they are when they are PROCESSED.
        :raises FencedError, TransitionError: somebody else has changed one of them.
        """
        first, many = records[0], len(records)
        path = first.staged.manifest if first.staged is not None else ""
        alone = many > 1 and (many > self.most_together or not self.topology.compile().coalesces.commits)
        if alone or first.txid <= self.ledger.view(0, remembered=True).pointer.committed:
            return False
        whole = len(first_group(records, {path: manifest})) == many
        if not whole or GroupCommitter.is_followed(self.ledger, records, manifest, self.most_together):
            return False  # one gate for both saves a step
        view = replace(self.ledger.view(first.txid, remembered=True), tx=first)
        try:
            with guarded("the states"):
                ready = may_commit(self.ledger, self.topology, view, first.txid, states)
            if ready is None:
                return False
        except TridentError:
            return False  # the sweep raises it again, when they are PROCESSED
        done = [
            StagedAttempt(txid=record.txid, attempt=record.attempt, staged=record.staged)
            for record in records
            if record.staged
        ]
        tickets = self.ledger.processed(done, gate_by=self.attempts.owner).tickets
        self._fences.update({ticket.txid: ticket.fence for ticket in tickets})
        self._held[:] = tickets if len(tickets) == many else ()
        return len(tickets) == many

    def _about(self, view: LedgerView, txid: int) -> AlreadyCommitted | Wait | Blocked:
        decision = decide_commit(view, txid)
        if isinstance(decision, Unknown | Closed):
            raise no_transaction(self.topology.name, decision, bound=self.topology.partitions is not None)
        if isinstance(decision, Commit | EmitAgain):
            return Wait(on=txid, why=f"another committer is at work on transaction {txid}")
        return decision

    def _sweep(self, target_txid: int, states: OpenStates, take_over: bool, remembered: bool) -> list[int]:
        """Commits from the pointer upwards until one is not ready; and the target if it is late, below the pointer."""
        done: list[int] = []
        first = self.ledger.view(target_txid, remembered=remembered, ahead=True)
        if first.tx is not None and target_txid <= first.pointer.committed:
            late = self._with_batch(first, target_txid, is_own=True)
            if late is not None and self._try(late, target_txid, states):
                done.append(target_txid)
        txid, alone, is_current = first.pointer.committed + 1, 0, not done
        while txid < first.next_txid:
            # The first view of the own transaction is valid as long as nothing was committed before it.
            view = (
                first
                if txid == target_txid and is_current
                else self.ledger.view(txid, remembered=remembered, ahead=True)
            )
            if view.tx is None or view.tx.status.lets_others_pass:
                txid += 1
                continue
            if txid != target_txid and not take_over and self._is_left(view.tx):
                break  # taking over would only fence them
            open_tickets = self._held_from(view.tx)
            end = (
                None
                if txid <= alone
                else self._together(view, target_txid, states, take_over, remembered, open_tickets)
            )
            if end is not None:
                alone, is_current = end.through, False
                done += end.committed
                if end.elsewhere:
                    break
                txid = done[-1] + 1 if end.committed else txid
                continue
            ready = self._with_batch(view, txid, is_own=txid == target_txid)
            if ready is None or not self._try(ready, txid, states, open_tickets if len(open_tickets) == 1 else ()):
                break
            done.append(txid)
            txid, is_current = txid + 1, False
        return done

    def _held_from(self, tx: TxRecord) -> tuple[CommitTicket, ...]:
        """The held tickets, if the first of them belongs to `tx`. They are used only once."""
        open_tickets = tuple(self._held)
        self._held.clear()
        return (
            open_tickets
            if open_tickets and (open_tickets[0].txid, open_tickets[0].fence) == (tx.txid, tx.fence)
            else ()
        )

    def _is_left(self, tx: TxRecord) -> bool:
        """Is its commit in other hands? Not if this committer opened its gate, as one of a group."""
        return tx.fence != self._fences.get(tx.txid, -1) and is_left_to_its_committer(self.ledger, tx)

    def _together(
        self,
        view: LedgerView,
        target_txid: int,
        states: OpenStates,
        take_over: bool,
        remembered: bool,
        open_tickets: Sequence[CommitTicket],
    ) -> GroupEnd | None:
        """Commits what can be committed in one step from here on; None: the first one goes alone."""
        tx = view.tx
        if tx is None or self.most_together < 2 or not isinstance(decide_commit(view, tx.txid), Commit):
            return None

        def is_free(record: TxRecord) -> bool:
            return take_over or record.txid == target_txid or not self._is_left(record)

        committer = GroupCommitter(
            ledger=self.ledger,
            topology=self.topology,
            staging_root=self.staging_root,
            attempts=self.attempts,
            retention=self.retention,
            progress=self.progress,
            go_on=self.go_on,
        )
        waiting = committer.waiting(view, is_free, len(open_tickets) or self.most_together, remembered=remembered)
        if not waiting or (not open_tickets and may_commit(self.ledger, self.topology, view, tx.txid, states) is None):
            return None
        end = committer.commit(waiting, states, open_tickets)
        if end is not None:
            self._fences.update({ticket.txid: ticket.fence for ticket in end.gated})
        return end

    def _with_batch(self, view: LedgerView, txid: int, *, is_own: bool) -> LedgerView | None:
        """The transaction's turn has come: emits it again if it lost its batch, another plan staged it, or the caller
        left it unfinished; None if that fails. A transaction that others work on stays as it is."""
        decision = decide_commit(view, txid)
        why = self._why_emit(decision, view.tx)
        if not why:
            return None if self._fails_at_turn(decision, view.tx, is_own=is_own) else view
        self.progress(f"transaction {txid}: {why}; emitting it again")
        return self.ledger.view(txid, ahead=True) if self._emit(txid, is_own=is_own) else None

    def _fails_at_turn(self, decision: CommitDecision, tx: TxRecord | None, *, is_own: bool) -> bool:
        """Does it break a rule that has another limit now?

        :raises GateFailedError: the caller's transaction does.
        """
        error = None
        if isinstance(decision, Commit) and tx is not None:
            error = broken_at_turn(self.topology.name, tx, self.topology.compile())
        if error is None or tx is None:
            return False
        note_failure(self.ledger, tx.txid, tx.attempt, error, self.attempts)
        if is_own:
            raise error
        self.progress(f"transaction {tx.txid}: {error}")
        return True

    def _why_emit(self, decision: CommitDecision, tx: TxRecord | None) -> str:
        if isinstance(decision, EmitAgain):
            return "it lost its batch when a lower one was attempted again"
        if tx is None:
            return ""
        if isinstance(decision, Wait) and decision.on == tx.txid and self.takes_up(tx):
            return "nobody else goes on with its last attempt now" if self._emitted[tx.txid] < EMIT_TRIES else ""
        if not isinstance(decision, Commit):
            return ""
        area = StagingArea(self.staging_root)
        others = staged_by_other_plan(area, self.ledger, tx, self.topology.compile())
        return f"another DAG file staged it, where {', '.join(others)} was something else" if others else ""

    def _try(self, view: LedgerView, txid: int, states: OpenStates, open_tickets: Sequence[CommitTicket] = ()) -> bool:
        """Commits one transaction if its turn has come; False if it has not, or a newer committer took it."""
        ready = view if open_tickets else may_commit(self.ledger, self.topology, view, txid, states)
        if ready is None:
            return False
        require_not_late(self.topology, txid, ready.pointer.committed)
        ticket, is_late = next(iter(open_tickets), None), txid <= ready.pointer.committed
        for _ in range(OVERTAKEN_TIMES):
            done = self._commit_now(ready, txid, states, ticket)
            if isinstance(done, bool):
                return done
            now = self.ledger.view(txid, ahead=True)
            if now.tx != done or (txid <= now.pointer.committed) != is_late:
                return False  # others are at it, or passed it: the next sweep sees how it stands
            looked = self._with_batch(now, txid, is_own=False)
            if looked is None:
                return False
            ready, ticket = looked, None
        return False

    def _commit_now(
        self, view: LedgerView, txid: int, states: OpenStates, ticket: CommitTicket | None
    ) -> bool | TxRecord:
        """Gate, unless there is a ticket; states, COMMITTED. False: others took it; its record: they did not, but
        another transaction's commit (late, or the one above a late one) gave a state a higher fence meanwhile, or it
        was emitted again since it was looked at."""
        try:
            if ticket is None:
                (ticket,) = self.ledger.gate([view.tx or txid], owner=self.attempts.owner)
            reached(Milestone.GATE_OPENED, txid)
            holds, late_rows = self._apply(ticket, states)
            if late_rows or not self.go_on([holds]):
                self.ledger.committed([holds], retention=self.retention, late_rows={txid: late_rows})
        except FencedError:
            tx = self.ledger.view(txid).tx
            # Without a ticket it was not as it was looked at: PROCESSED still, or again, it waits for any committer.
            expected = view.tx if ticket is None else ticket
            waits = Status.PROCESSED if ticket is None else Status.COMMITTING
            free = tx is not None and expected is not None and (tx.status, tx.fence) == (waits, expected.fence)
            return tx if tx is not None and free else False
        except LateBatchError as error:
            self._note(ticket, error)
            raise
        except TransitionError as error:
            if not is_as_left(self.ledger.view(txid).tx, view.tx, ticket):
                return False
            self._note(ticket, error)
            raise  # nobody changed it meanwhile: trying again does not help
        except BaseException as error:  # whatever it was: waiting people look for it
            self._note(ticket, error)
            raise
        reached(Milestone.COMMITTED, txid)
        remove_old(StagingArea(self.staging_root), self.ledger, [holds], self.retention)
        return True

    def _note(self, ticket: CommitTicket | None, error: BaseException) -> None:
        if ticket is not None:
            note_error(self.ledger, ticket.txid, error, rows=self.attempts.rows_in_errors)

    def _staged(self, ticket: CommitTicket) -> dict[str, Batch]:
        """:raises StagingError: the staged batch cannot be read. :raises OtherPlanError: another plan staged it."""
        area = StagingArea(self.staging_root)
        manifest, plan = manifest_of(area, self.ledger, ticket.staged), self.topology.compile()
        require_same_plan(manifest, plan)
        tell_other_code(manifest, plan, self.progress)
        return staged_batches(area, manifest, ticket, plan)

    def _apply(self, ticket: CommitTicket, states: OpenStates) -> tuple[CommitTicket, dict[str, int]]:
        """Applies the staged batch to every state. A batch that is gone is emitted again first, also if that shows only
        now: a state that has it says so. Returns the valid ticket and :attr:`TxRecord.late_rows`.

        :raises ConfigurationError: the staged batch is gone again after the last try.
        :raises TableChangedError: others have written to the batch's table again, each time after it was processed.
        """
        tries = 0
        while True:
            try:
                return ticket, self._into_states(ticket, self._staged(ticket), states)
            except StagingError as error:
                if tries == EMIT_TRIES:
                    raise gone_again(ticket, EMIT_TRIES, error) from error
                self.progress(f"transaction {ticket.txid}: {reason_to_emit(error)}; emitting it again")
            tries += 1
            ticket = self._emit_again(ticket)

    def _into_states(self, ticket: CommitTicket, batches: dict[str, Batch], states: OpenStates) -> dict[str, int]:
        plan = self.topology.compile()
        require_distinct_keys(plan, lambda name: [rows_of(batches[name])] if name in batches else [])
        opened, fed, late_rows = states.opened(), set[str](), dict[str, int]()

        def apply(name: str, batch: Batch) -> None:
            fed.add(name)
            spec = self.topology.states[name]
            if spec.updater is not None:
                batch = with_commit_time(spec, ticket, rows_of(batch))
            with state_code(name, ticket.txid):
                applied = apply_batch(opened[name], ticket, batch)
            already = " (it had them already)" if applied is Applied.ALREADY else ""
            self.progress(
                f"transaction {ticket.txid}, attempt {ticket.attempt}: {batch.num_rows} rows into state {name}{already}"
            )
            if late := note_overlooked(spec, opened[name], ticket.txid, self.progress):
                late_rows[name] = late

        for name in self.topology.states:
            if name in batches:
                apply(name, batches[name])
                reached(Milestone.APPLIED, ticket.txid)
        apply_downstream(plan, ticket, opened, batches, apply, self.progress)
        require_all_fed(self.topology, ticket, fed)
        return late_rows

    def _emit(self, txid: int, *, is_own: bool) -> bool:
        """Emits a transaction whose turn has come and that nobody works on: its emitter may have ended long ago.

        :param is_own: the caller's transaction: its failure is raised; another's is only noted.
        """
        self._emitted[txid] += 1
        attempts = self.attempts
        if not is_own and self._emitted[txid] >= EMIT_TRIES:
            attempts = replace(attempts, last_try=True)
        try:
            (record,) = start_attempts(self.ledger, self.topology, [txid], owner=attempts.owner)
            with self.engine() as engine:
                run_attempt(self.ledger, self.topology, record, engine, self.staging_root, attempts, self.progress)
        except (FencedError, TransitionError):
            return False  # somebody else works on it
        except TridentError as error:
            if is_own:
                raise
            self.progress(f"transaction {txid} could not be emitted again: {error}")
            return False
        return True

    def _emit_again(self, ticket: CommitTicket) -> CommitTicket:
        (record,) = start_attempts(self.ledger, self.topology, [ticket], owner=self.attempts.owner)
        with self.engine() as engine:
            run_attempt(self.ledger, self.topology, record, engine, self.staging_root, self.attempts, self.progress)
        (newer,) = self.ledger.gate([record], owner=self.attempts.owner)
        return newer
