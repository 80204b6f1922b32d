"""Deliberate defects of the production code: each removes one guard of the protocol. The simulation must find them.

A mutant that is not found is a hole in the simulation, or a guard that nothing needs.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from airflow_trident.contracts.state import Marker
from airflow_trident.errors import OutcomeUnknownError
from airflow_trident.ledger import transact
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.ledger.transact import Change, Prefetch, Transactor, Unchanged
from airflow_trident.ledger.verbs import attempts, begin, commits, common
from airflow_trident.ledger.verbs import topology as topology_module
from airflow_trident.ledger.znodes import Create, Op, Set, WriteRefusedError
from airflow_trident.protocol import codec, decide
from airflow_trident.protocol.records import CommitPointer, Exceptions, LedgerView, Status, TxRecord
from airflow_trident.runtime import commit, phases, state_agreement
from airflow_trident.runtime.commit import Committer
from airflow_trident.states.core import marker as marker_module
from tests.fixtures import single
from tests.simulation.history import Verdict, play

Patch = tuple[Any, str, Any]


@dataclass(frozen=True)
class Mutant:
    """`patches`: replacements in the code; `kind`: of the histories in which the defect shows."""

    patches: Sequence[Patch]
    kind: str = "transactional"

    @contextmanager
    def alive(self) -> Iterator[None]:
        with ExitStack() as stack:
            for where, name, instead in self.patches:
                stack.enter_context(mock.patch.object(where, name, instead))
            yield


MUTANTS: dict[str, Mutant] = {}
FOUND_FILE = Path(__file__).with_name("found.json")
FOUND: dict[str, int] = json.loads(FOUND_FILE.read_text(encoding="utf-8"))
"""Name of a defect -> the first seed from 0 that found it when all were last played."""


def mutant(name: str, kind: str = "transactional") -> Callable[[Callable[[], Sequence[Patch]]], None]:
    def register(make: Callable[[], Sequence[Patch]]) -> None:
        MUTANTS[name] = Mutant(make(), kind)

    return register


def first_found(one: Mutant, seeds: Iterable[int]) -> Verdict | None:
    """The first of these histories in which the defect breaks a promise."""
    with one.alive():
        verdicts = (play(seed, one.kind) for seed in seeds)
        return next((verdict for verdict in verdicts if verdict.broken), None)


def sees_only(committer: Committer, names: Collection[str]) -> Committer:
    """The same committer, but it sees only these states of the topology."""

    class Fewer:
        def __getattr__(self, name: str) -> Any:
            return getattr(committer.topology, name)

        @property
        def states(self) -> dict[str, Any]:
            return {name: spec for name, spec in committer.topology.states.items() if name in names}

    found = copy.copy(committer)
    object.__setattr__(found, "topology", Fewer())
    return found


def _forgiving(admit: Callable[..., Any]) -> Callable[..., Any]:
    """An `admit` that accepts any txid that it takes for the same transaction."""

    def admitted(marker: Marker | None, ticket: Any, **named: Any) -> Any:
        if marker is not None and marker.has(ticket.txid) and ticket.fence >= marker.fence:
            return replace(marker, fence=ticket.fence), marker_module.Verdict.SKIP
        return admit(marker, ticket, **named)

    return admitted


# ---- lost answers, conditions ----------------------------------------------------------------------------------


@mutant("a lost answer is taken for applied")
def _() -> Sequence[Patch]:
    return [(Transactor, "_is_marked", lambda self, witness, op, deadline: True)]


@mutant("a refused write is taken for applied")
def _() -> Sequence[Patch]:
    def applied(self: Transactor, ops: Sequence[Op], witness: str, op: str, deadline: float) -> bool:
        try:
            return original(self, ops, witness, op, deadline)
        except WriteRefusedError:
            return True

    def original(self: Transactor, ops: Sequence[Op], witness: str, op: str, deadline: float) -> bool:
        while True:
            try:
                self._znodes.multi(ops)
                return True
            except OutcomeUnknownError:
                if self._is_marked(witness, op, deadline):
                    return True

    return [(Transactor, "_applied", applied)]


@mutant("a write whose answer was lost is sent again without its conditions")
def _() -> Sequence[Patch]:
    def applied(self: Transactor, ops: Sequence[Op], witness: str, op: str, deadline: float) -> bool:
        while True:
            try:
                self._znodes.multi(ops)
                return True
            except WriteRefusedError:
                return False
            except OutcomeUnknownError:
                ops = [replace(one, version=-1) for one in ops if isinstance(one, Set)]

    return [(Transactor, "_applied", applied)]


@mutant("writes without versions")
def _() -> Sequence[Patch]:
    def unconditional(step: Change[Any], used: Any) -> list[Op]:
        return [write if isinstance(write, Create) else replace(write, version=-1) for write in step.writes]

    return [(transact, "conditional", unconditional)]


@mutant("what was looked at and not written is not checked")
def _() -> Sequence[Patch]:
    return [(transact, "conditional", lambda step, used: list(step.writes))]


# ---- coordinator -----------------------------------------------------------------------------------------------


@mutant("a claim is not remembered")
def _() -> Sequence[Patch]:
    def claimed_anew(snap: Any, batches: Any, **named: Any) -> Any:
        claims = [replace(claim, key=f"{claim.key}/{snap.op}") for claim in batches.claims]
        return original(snap, replace(batches, claims=claims), **named)

    original = begin.begin
    return [(Ledger.begin, "decide", claimed_anew)]


@mutant("no limit of pending transactions")
def _() -> Sequence[Patch]:
    original = decide.decide_begin
    return [(begin, "decide_begin", lambda view, max_pending: original(view, max_pending=1_000))]


@mutant("a new attempt decides the batch anew")
def _() -> Sequence[Patch]:
    def other(snap: Any, **named: Any) -> Any:
        step = original(snap, **named)
        record = step.result
        shorter = {name: {**one, "to": one["from"] + 1} for name, one in record.metadata.items()}
        record = replace(record, metadata=shorter)
        return replace(step, writes=(snap.set_tx(record), *step.writes[1:]), result=record)

    original = attempts._start
    return [(attempts, "_start", other)]


@mutant("the coordinator looks at the ledger before it looks at the states")
def _() -> Sequence[Patch]:
    original, markers_of = phases.coordinate, state_agreement.markers_of

    def coordinate(ledger: Any, topology: Any, claims: Any, **named: Any) -> Any:
        ledger.register(topology.definition())
        before = ledger.view(0)
        markers = markers_of(topology)
        state_agreement.require_ledger_ahead(topology.name, markers, before, ledger.records)
        return original(ledger, topology, claims, **named)

    return [(phases, "coordinate", coordinate)]


@mutant("nobody notices a restored ledger", "restored")
def _() -> Sequence[Patch]:
    return [
        (state_agreement, "require_ledger_ahead", lambda *_: None),
        (marker_module, "admit", _forgiving(marker_module.admit)),
    ]


# ---- emitter ---------------------------------------------------------------------------------------------------


@mutant("an attempt begins before it is durable")
def _() -> Sequence[Patch]:
    original = attempts._start

    def not_written(snap: Any, **named: Any) -> Any:
        return Unchanged(original(snap, **named).result)

    return [(attempts, "_start", not_written)]


@mutant("attempts begin at 0 again after FAILED")
def _() -> Sequence[Patch]:
    original = attempts._new_attempt

    def reset(snap: Any, tx: TxRecord, *more: Any, **named: Any) -> Any:
        return original(snap, replace(tx, attempt=-1) if tx.status is Status.FAILED else tx, *more, **named)

    return [(attempts, "_new_attempt", reset)]


@mutant("PROCESSED from any attempt")
def _() -> Sequence[Patch]:
    return [(common, "of_attempt", lambda snap, txid, attempt: common.existing(snap, txid))]


@mutant("FAILED from any attempt")
def _() -> Sequence[Patch]:
    def fail(snap: Any, txid: int, attempt: int, error: str, **named: Any) -> Any:
        return original(snap, txid, common.existing(snap, txid).attempt, error, **named)

    original = attempts.fail
    return [(Ledger.fail, "decide", fail)]


# ---- committer -------------------------------------------------------------------------------------------------


def _own_only(self: Committer, own: int, states: Any, take_over: bool, remembered: bool) -> list[int]:
    """A sweep without an order: otherwise the gate's check of the order would never refuse."""
    return [own] if self._try(self.ledger.view(own, remembered=remembered), own, states) else []


@mutant("the gate does not ask for the order")
def _() -> Sequence[Patch]:
    return [
        (LedgerView, "waits_for", lambda self, txid: None),
        (LedgerView, "blocked_by", lambda self, txid: None),
        (Committer, "_sweep", _own_only),
    ]


@mutant("a FAILED transaction lets others pass", "ordered")
def _() -> Sequence[Patch]:
    def waits_for(self: LedgerView, txid: int) -> int | None:
        away = {*self.exceptions.skipped, *self.exceptions.failed}
        return next((lower for lower in range(txid - 1, self.pointer.committed, -1) if lower not in away), None)

    return [
        (LedgerView, "waits_for", waits_for),
        (LedgerView, "blocked_by", lambda self, txid: None),
        (Committer, "_sweep", _own_only),
    ]


@mutant("the sweep commits what is still PROCESSING")
def _() -> Sequence[Patch]:
    original, moved = decide.decide_commit, common.moved

    def decide_commit(view: LedgerView, txid: int) -> Any:
        tx = view.tx
        if tx is not None and tx.status is Status.PROCESSING and tx.staged is not None:
            return original(replace(view, tx=replace(tx, status=Status.PROCESSED)), txid)
        return original(view, txid)

    def keep_staged(snap: Any, tx: TxRecord, status: Status, **changes: Any) -> TxRecord:
        if status is Status.PROCESSING and tx.staged is not None:
            changes["staged"] = tx.staged
        if status is Status.COMMITTING and tx.status is Status.PROCESSING:
            tx = replace(tx, status=Status.PROCESSED)
        return moved(snap, tx, status, **changes)

    return [
        (commits, "decide_commit", decide_commit),
        (commit, "decide_commit", decide_commit),
        (common, "moved", keep_staged),
    ]


@mutant("the fence does not rise")
def _() -> Sequence[Patch]:
    def gate(snap: Any, members: Any, **named: Any) -> Any:
        step = original(snap, members, **named)
        pointer = CommitPointer(committed=snap.pointer().committed, fence=max(1, snap.pointer().fence))
        writes = (*step.writes[:-1], snap.set(snap.paths.commit, codec.encode_pointer(pointer)))
        return replace(step, writes=writes, result=tuple(replace(one, fence=pointer.fence) for one in step.result))

    original = commits.gate
    return [(Ledger.gate, "decide", gate)]


@mutant("the pointer moves in a second step")
def _() -> Sequence[Patch]:
    def committed(self: Ledger, tickets: Any, **named: Any) -> Any:
        last = tickets[-1].txid

        def without(snap: Any) -> Any:
            step = commits.committed(snap, tickets, **named)
            if isinstance(step, Unchanged):
                return step
            return replace(step, writes=tuple(one for one in step.writes if one.path != snap.paths.commit))

        def pointer(snap: Any) -> Any:
            now = snap.pointer()
            write = snap.set(snap.paths.commit, codec.encode_pointer(replace(now, committed=max(now.committed, last))))
            return Change(writes=(write,), witness=snap.paths.head, result=None)

        answer = self.run(without, Prefetch(self.paths().about(last), self.paths().pruned()))
        self.run(pointer, Prefetch(self.paths().about(last)))
        return answer

    return [(Ledger, "committed", committed)]


@mutant("the pointer moves over what is not skipped")
def _() -> Sequence[Patch]:
    def over_all(upto: int, exceptions: Exceptions) -> int:
        return max([upto, *exceptions.skipped])

    return [(commits, "over_skipped", over_all), (topology_module, "over_skipped", over_all)]


@mutant("a late commit moves the pointer back")
def _() -> Sequence[Patch]:
    def committed(snap: Any, tickets: Any, **named: Any) -> Any:
        step, first = original(snap, tickets, **named), tickets[0].txid
        if isinstance(step, Unchanged) or first >= snap.pointer().committed:
            return step
        back = snap.set(snap.paths.commit, codec.encode_pointer(replace(snap.pointer(), committed=first)))
        return replace(step, writes=(*step.writes, back))

    original = commits.committed
    return [(Ledger.committed, "decide", committed)]


@mutant("COMMITTED before the states have it")
def _() -> Sequence[Patch]:
    original = Committer._apply

    def too_early(self: Committer, ticket: Any, states: Any) -> Any:
        single.committed(self.ledger, ticket, retention=self.retention)
        return original(self, ticket, states)

    return [(Committer, "_apply", too_early)]


@mutant("COMMITTED when the first state has it")
def _() -> Sequence[Patch]:
    def apply(self: Committer, ticket: Any, states: Any) -> Any:
        return original(sees_only(self, [next(iter(self.topology.states))]), ticket, states)

    original = Committer._apply
    return [(Committer, "_apply", apply)]
