"""Commits waiting transactions together: one step of the ledger opens the gate of all, each state takes all in one
step, and one step of the ledger says COMMITTED.

A group is not durable. A committer that finds an unfinished one commits its members alone, or in other groups, with the
same result: fences and markers decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from airflow_trident.contracts.state import Applied
from airflow_trident.errors import (
    FencedError,
    NewerRecordError,
    OtherPlanError,
    Outcome,
    StagingError,
    TransitionError,
    TridentError,
    UserCodeError,
    recorded_text,
    state_code,
)
from airflow_trident.ledger.base import Ledger
from airflow_trident.protocol.records import CommitTicket, LedgerView, TxRecord
from airflow_trident.protocol.statuses import Status
from airflow_trident.runtime.commit_group_choice import first_group, waiting_run
from airflow_trident.runtime.downstream import require_distinct_keys
from airflow_trident.runtime.milestones import Milestone, reached
from airflow_trident.runtime.open_states import OpenStates
from airflow_trident.runtime.phases import Attempts, Progress
from airflow_trident.runtime.staged_batches import (
    manifest_of,
    remove_old,
    require_same_plan,
    tell_other_code,
)
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest
from airflow_trident.topology.topology import Topology

if TYPE_CHECKING:
    import pyarrow as pa


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
    first one must be committed alone, and all others up to `upto`, too; `gated`: the tickets of these, whose gates are
    open."""

    committed: tuple[int, ...] = ()
    elsewhere: bool = False
    upto: int = 0
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
        self, view: LedgerView, is_free: Callable[[TxRecord], bool], most: int, *, remembered: bool
    ) -> tuple[TxRecord, ...]:
        """The transactions that can commit together, from that of `view` on, whose turn has come; empty: it goes alone.

        :param is_free: see :func:`~airflow_trident.runtime.commit_group_choice.waiting_run`.
        """
        tx = view.tx
        if tx is None or view.next_txid - 1 == tx.txid or not self.topology.compile().coalesces.commits:
            return ()
        found = waiting_run(chain([tx], self._above(view, remembered)), is_free, most)
        return found if len(found) > 1 else ()

    @staticmethod
    def is_followed(ledger: Ledger, records: Sequence[TxRecord], manifest: Manifest, most: int) -> bool:
        """Is the next transaction processed already, as far as is remembered, and may it go with these?"""
        txid = records[-1].txid + 1
        if len(records) >= most or manifest.inseparable or txid >= ledger.view(0, remembered=True).next_txid:
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
                views = (self.ledger.view(one, remembered=True).tx for one in range(txid, last + 1))
                yield from (tx for tx in views if tx is not None)
            else:
                yield from self.ledger.transactions(txid, last)
            txid, many = last + 1, many * FIRST_LOOK

    def commit(
        self, waiting: Sequence[TxRecord], states: OpenStates, held: Sequence[CommitTicket] = ()
    ) -> GroupEnd | None:
        """Gate, states, COMMITTED, for the first of these that go together; None: the first one goes alone.

        :param held: tickets of an open gate; used if they are those of the group.
        :raises TridentError: a store or the ledger does not answer. The next sweep goes on.
        """
        group, manifests = self._group_of(waiting)
        if len(group) < 2:
            return None
        txids = [one.txid for one in group]
        tickets = held if [one.txid for one in held] == txids else ()
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
        area, found = StagingArea(self.staging_root), dict[str, Manifest]()
        for record in waiting:
            if record.staged is None:
                break
            if record.staged.manifest not in found:
                try:
                    manifest = manifest_of(area, self.ledger, record.staged)
                    require_same_plan(manifest, self.topology.compile())
                except (StagingError, NewerRecordError, OtherPlanError):
                    break  # the committer that commits it alone emits it again, or says what is wrong
                found[record.staged.manifest] = manifest
        return first_group(waiting, found), found

    def _once(
        self,
        group: Sequence[TxRecord],
        manifests: Mapping[str, Manifest],
        states: OpenStates,
        tickets: Sequence[CommitTicket],
    ) -> GroupEnd | tuple[TxRecord, ...]:
        """Records: nobody took the group, as it now is, but another transaction's commit gave a state a higher fence
        meanwhile."""
        txids = [one.txid for one in group]
        try:
            tickets = tickets or self.ledger.gate(group, owner=self.attempts.owner)
            _told(Milestone.GATE_OPENED, tickets)
            self._apply(tickets, manifests, states)
            self._committed(tickets)
        except FencedError:
            return self._fenced(group, tickets)
        except TransitionError:
            return GroupEnd(upto=txids[-1], gated=tuple(tickets))  # somebody changed one of them meanwhile
        except TridentError as error:
            if error.outcome is not Outcome.FAIL and not isinstance(error, StagingError | UserCodeError):
                raise
            self.progress(f"{_named(txids)} cannot be committed in one step ({error}); committing them one by one")
            return GroupEnd(upto=txids[-1], gated=tuple(tickets))
        _told(Milestone.COMMITTED, tickets)
        self.progress(f"{_named([one.txid for one in tickets])} are committed in one step")
        return GroupEnd(committed=tuple(one.txid for one in tickets))

    def _fenced(self, group: Sequence[TxRecord], tickets: Sequence[CommitTicket]) -> GroupEnd | tuple[TxRecord, ...]:
        tx, many = self.ledger.view(group[0].txid).tx, len(tickets)
        if not tickets:  # one of them is not as it was looked at: each is looked at again, unless they are taken
            taken = tx is None or (tx.status is Status.COMMITTING and tx.fence != group[0].fence)
            return GroupEnd(elsewhere=True) if taken else GroupEnd(upto=group[-1].txid)
        if tx is None or tx.status is not Status.COMMITTING or tx.fence != tickets[0].fence:
            return GroupEnd(elsewhere=True)
        return (*(replace(one, fence=tx.fence) for one in group[:many]), *group[many:])

    def _apply(self, tickets: Sequence[CommitTicket], manifests: Mapping[str, Manifest], states: OpenStates) -> None:
        staged = self._staged(tickets, manifests)
        require_distinct_keys(self.topology.compile(), staged)
        opened = states.opened()
        for name in self.topology.states:
            batches = staged(name)
            with state_code(name, tickets[-1].txid):
                applied = opened[name].apply_group(tickets, batches)
            held = sum(one is Applied.ALREADY for one in applied)
            already = f" (it had {held} of them already)" if held else ""
            rows = sum(one.num_rows for one in batches)
            self.progress(f"{_named([one.txid for one in tickets])}: {rows} rows into state {name}{already}")
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
        staged = {one.staged.manifest: one.staged for one in tickets}
        known = {path: manifests.get(path) or manifest_of(area, self.ledger, staged[path]) for path in parts}
        for manifest in known.values():
            require_same_plan(manifest, plan)
            tell_other_code(manifest, plan, self.progress)
        for path, attempts in parts.items():
            area.require_members(known[path], attempts)
            area.require_there(known[path], schemas)

        def batches(state: str) -> list[pa.Table]:
            found: dict[int, pa.Table] = {}
            for path, attempts in parts.items():
                tables = area.read_each(known[path], attempts, state, schemas[state])
                if known[path].inseparable:
                    return tables
                found.update(zip(attempts, tables, strict=True))
            # Transactions that were processed together need not be neighbours: one between them had its own pass.
            return [found[ticket.txid] for ticket in tickets]

        return batches

    def _committed(self, tickets: Sequence[CommitTicket]) -> None:
        left = list(tickets[self.go_on(tickets) :])
        while left:
            left = left[len(self.ledger.committed(left, retention=self.retention).records) :]
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
