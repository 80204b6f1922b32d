"""Deliberate defects in the code that repairs a topology: states behind their ledger, commits that are taken back,
holes of transactions that may still come, commits that are taken over; see `mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airflow_trident.errors import HeldError
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.ledger.verbs import commits
from airflow_trident.operators import coordinating
from airflow_trident.protocol import codec, state_gaps
from airflow_trident.protocol.records import LedgerView, Owner
from airflow_trident.protocol.txids import Txids
from airflow_trident.runtime import state_agreement, waiting
from airflow_trident.states.core import marker as marker_module
from tests.simulation.mutants import Patch, mutant
from tests.simulation.shell_mutants import MUTANTS
from tests.simulation.stores import OpenStore

__all__ = ["MUTANTS"]


# ---- a state behind its ledger -------------------------------------------------------------------------------------


def _anything(*_: Any, **__: Any) -> None:
    """Accepts whatever a state holds."""


@mutant("nobody notices a state that is behind its ledger", "stores")
def _() -> Sequence[Patch]:
    return [
        (marker_module, "_require_whole", _anything),
        (state_agreement, "require_states_whole", _anything),
    ]


@mutant("a state forgets that it lacks what is skipped and not closed")
def _() -> Sequence[Patch]:
    def floor_of(view: LedgerView, txid: int) -> int:
        exceptions = replace(view.exceptions, skipped=Txids())
        return original(replace(view, exceptions=exceptions), txid)

    original = state_gaps.floor_of
    return [(state_gaps, "floor_of", floor_of)]


# ---- commits that are taken back -----------------------------------------------------------------------------------


@mutant("a commit is taken back and no state is asked", "taken-back")
def _() -> Sequence[Patch]:
    return [(OpenStore, "bar", _anything)]


@mutant("a commit is taken back although a state holds it", "taken-back")
def _() -> Sequence[Patch]:
    def bar(self: OpenStore, ticket: Any) -> None:
        try:
            original(self, ticket)
        except HeldError:
            self.store.marker = replace(self.store.marker, fence=ticket.fence)

    original = OpenStore.bar
    return [(OpenStore, "bar", bar)]


@mutant("a state does not note the fence by which a commit is taken back", "taken-back")
def _() -> Sequence[Patch]:
    def barred(marker: Any, ticket: Any, state: str) -> Any:
        found = original(marker, ticket, state)
        return replace(found, fence=0 if marker is None else marker.fence)

    original = marker_module._barred
    return [(marker_module, "_barred", barred)]


@mutant("a commit is taken back although a newer one has begun", "taken-back")
def _() -> Sequence[Patch]:
    def take_back(snap: Any, ticket: Any, reason: str) -> Any:
        tx = snap.tx(ticket.txid)
        return original(snap, ticket if tx is None else replace(ticket, fence=tx.fence), reason)

    original = commits.take_back
    return [(Ledger.take_back, "decide", take_back)]


@mutant("who takes a commit back becomes the owner of an attempt that somebody else is at", "taken-back")
def _() -> Sequence[Patch]:
    def bar(snap: Any, txid: int, *, owner: Any) -> Any:
        step = original(snap, txid, owner=owner)
        record = replace(codec.decode_tx(step.writes[0].data, step.writes[0].path), owner=Owner.of(owner))
        return replace(step, writes=(snap.set_tx(record), *step.writes[1:]))

    original = commits.bar
    return [(Ledger.bar, "decide", bar)]


# ---- commits that are taken over, claims ----------------------------------------------------------------------------


@mutant("a sweep takes over at once what another committer has begun")
def _() -> Sequence[Patch]:
    return [(waiting, "TAKEOVER_S", 0.0)]


@mutant("a sweep takes over what a slow committer has begun", "tasks")
def _() -> Sequence[Patch]:
    return [(waiting, "is_alive", lambda workers, owner: False)]


@mutant("the claims of all tasks of a run are one", "tasks")
def _() -> Sequence[Patch]:
    def claim_key(dag_id: str, task_id: str, *more: Any) -> str:
        return original(dag_id, "", *more)

    original = coordinating.claim_key
    return [(coordinating, "claim_key", claim_key)]
