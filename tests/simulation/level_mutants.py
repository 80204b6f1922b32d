"""Deliberate defects in the levels of the commit phase, commands that nobody sees, other versions; see `mutants`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from airflow_trident.contracts.state import Applied
from airflow_trident.protocol.durable_format import Format, unknown_fields
from airflow_trident.protocol.records import Owner, Status
from airflow_trident.runtime import backfill, commit, downstream, phases
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.downstream import apply_downstream
from airflow_trident.runtime.staged_batches import apply_batch
from tests.simulation.group_mutants import MUTANTS
from tests.simulation.mutants import Patch, mutant

__all__ = ["MUTANTS"]


# ---- levels --------------------------------------------------------------------------------------------------------


@mutant("a level reads before the state below it has the batch", "levels")
def _() -> Sequence[Patch]:
    def into_states(self: Committer, ticket: Any, batches: dict[str, Any], states: Any) -> dict[str, int]:
        opened, results = states.opened(), dict(batches)
        plan = self.topology.compile()
        apply_downstream(
            plan, ticket, opened, batches, lambda name, batch: results.update({name: batch}), self.progress
        )
        for name, batch in results.items():
            apply_batch(opened[name], ticket, batch)
        return {}

    return [(Committer, "_into_states", into_states)]


@mutant("a level is left out when the state below it has the batch already", "levels")
def _() -> Sequence[Patch]:
    def into_states(self: Committer, ticket: Any, batches: dict[str, Any], states: Any) -> dict[str, int]:
        opened = states.opened()
        said = [apply_batch(opened[name], ticket, batch) for name, batch in batches.items()]
        if Applied.APPLIED in said:
            _levels(self, ticket, batches, opened)
        return {}

    return [(Committer, "_into_states", into_states)]


@mutant("the next batch goes into a state before the levels are fed", "levels")
def _() -> Sequence[Patch]:
    def into_states(self: Committer, ticket: Any, batches: dict[str, Any], states: Any) -> dict[str, int]:
        opened, following = states.opened(), self.ledger.view(ticket.txid + 1).tx
        for name, batch in batches.items():
            apply_batch(opened[name], ticket, batch)
        if following is not None and following.status is Status.PROCESSED and following.staged is not None:
            early = replace(ticket, txid=following.txid, attempt=following.attempt, staged=following.staged)
            for name, batch in self._staged(early).items():
                apply_batch(opened[name], early, batch)
        _levels(self, ticket, batches, opened)
        return {}

    return [(Committer, "_into_states", into_states)]


@mutant("a level is fed with values that were read for an earlier transaction", "tasks-levels")
def _() -> Sequence[Patch]:
    class Remembering:
        def __init__(self, state: Any) -> None:
            self._state = state

        def get_many(self, keys: Sequence[tuple[Any, ...]]) -> list[Any]:
            known = vars(self._state).setdefault("known", {})
            known.update(zip(keys, self._state.get_many(keys), strict=True) if not known.keys() >= {*keys} else ())
            return [known[key] for key in keys]

    def new_values(spec: Any, state: Any, batch: Any) -> Any:
        return original(spec, Remembering(state), batch)

    original = downstream.new_values
    return [(downstream, "new_values", new_values)]


@mutant("a level takes the values of a newer attempt for those that it has", "levels-opaque")
def _() -> Sequence[Patch]:
    def apply(state: Any, ticket: Any, batch: Any) -> Applied:
        return original(state, replace(ticket, attempt=0) if state.spec.in_order else ticket, batch)

    original = apply_batch
    return [(commit, "apply_batch", apply)]


@mutant("a topology with levels takes late batches", "levels")
def _() -> Sequence[Patch]:
    return [(one, "require_not_late", lambda topology, txid, committed: None) for one in (commit, phases)]


def _levels(committer: Committer, ticket: Any, batches: dict[str, Any], opened: Any) -> None:
    def apply(name: str, batch: Any) -> None:
        apply_batch(opened[name], ticket, batch)

    apply_downstream(committer.topology.compile(), ticket, opened, batches, apply, committer.progress)


# ---- commands, versions -------------------------------------------------------------------------------


@mutant("a command is not listed while it works", "tasks")
def _() -> Sequence[Patch]:
    @contextmanager
    def at_work(ledger: Any, owner: Owner | str) -> Iterator[Owner]:
        yield Owner.of(owner)

    return [(backfill, "at_work", at_work)]


@mutant("records with unknown fields are refused", "versions")
def _() -> Sequence[Patch]:
    def build(self: Format, kind: Any, body: Any, where: str, **named: Any) -> Any:
        if unknown := unknown_fields(kind, body).keys() - {"op"}:
            raise self.damaged(where, f"nobody knows its fields {', '.join(unknown)}")
        return original(self, kind, body, where, **named)

    original = Format.build
    return [(Format, "build", build)]
