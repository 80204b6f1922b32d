"""Deliberate defects of states, and of the ends of transactions; see `mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

from airflow_trident.contracts.state import Marker
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.ledger.verbs import commits, common, topology
from airflow_trident.protocol.records import Exceptions
from airflow_trident.runtime import repair, state_agreement
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.open_resources import OpenStates
from airflow_trident.states.core import marker as marker_module
from tests.simulation.mutants import MUTANTS, Patch, mutant, sees_only

__all__ = ["MUTANTS"]


# ---- states ----------------------------------------------------------------------------------------------------


@mutant("a state skips the equal txid only (Storm's rule)")
def _() -> Sequence[Patch]:
    return [(Marker, "has", lambda self, txid: txid == self.high)]


@mutant("a state takes what is below its highest txid for applied (holes ignored)")
def _() -> Sequence[Patch]:
    return [(Marker, "has", lambda self, txid: txid <= self.high)]


@mutant("filling one hole fills its neighbours")
def _() -> Sequence[Patch]:
    def without(holes: Any, txid: int) -> Any:
        return tuple((first, last) for first, last in holes if not first <= txid <= last)

    return [(marker_module, "_without", without)]


@mutant("states are used although not all of them could be opened")
def _() -> Sequence[Patch]:
    def opened(self: OpenStates) -> Any:
        if not self._open:
            for name, state in self._each():
                self._open[name] = self._stack.enter_context(state)
        return self._open

    def apply(self: Committer, ticket: Any, states: Any) -> Any:
        return original(sees_only(self, states.opened()), ticket, states)

    original = Committer._apply
    return [(OpenStates, "opened", opened), (Committer, "_apply", apply)]


@mutant("data and marker are two steps")
def _() -> Sequence[Patch]:
    from tests.simulation.stores import OpenStore

    def apply(self: OpenStore, ticket: Any, batch: Any) -> Any:
        store = self.store
        marker, verdict = marker_module.admit(store.marker, ticket, state=self.spec.name, commutes=self.spec.commutes)
        wanted = verdict is not marker_module.Verdict.SKIP
        if wanted:
            store.records.update(batch.records)
        self.where.scheduler.step()
        store.marker = marker
        applied = marker_module_applied(wanted)
        self.where.played().applied(self.spec.name, store, ticket, batch, applied)
        return applied

    def marker_module_applied(wanted: bool) -> Any:
        from airflow_trident.contracts.state import Applied

        return Applied.APPLIED if wanted else Applied.ALREADY

    return [(OpenStore, "apply", apply)]


# ---- ends ------------------------------------------------------------------------------------------------------


@mutant("a transaction is skipped although a state may hold it")
def _() -> Sequence[Patch]:
    original = topology.skip

    def skip(snap: Any, txid: int, reason: str) -> Any:
        with mock.patch.object(common, "existing", lambda snap, txid: replace(existing(snap, txid), touched=False)):
            return original(snap, txid, reason)

    existing = common.existing
    return [(Ledger.skip, "decide", skip)]


@mutant("pruning takes what was skipped, too")
def _() -> Sequence[Patch]:
    def prune(snap: Any, upto: int, exceptions: Exceptions, retention: int, *, just_committed: int) -> Any:
        return original(snap, upto, Exceptions(), retention, just_committed=just_committed)

    original = commits.prune
    return [(commits, "prune", prune)]


@mutant("nothing is pruned")
def _() -> Sequence[Patch]:
    return [(commits, "prune", lambda *args, **named: [])]


@mutant("a late replay is not listed as late")
def _() -> Sequence[Patch]:
    original = common.exceptions_write
    return [
        (
            common,
            "exceptions_write",
            lambda snap, txid, to, *off: original(snap, txid, "" if to == "late" else to, *off),
        )
    ]


# ---- a restored ledger gives out numbers again -----------------------------------------------------------------


@mutant("a restored ledger is told by its numbers alone", "groups-restored")
def _() -> Sequence[Patch]:
    return [(state_agreement, "of_others", lambda *_: "")]


@mutant("a repair believes the numbers of the ledger", "groups-restored")
def _() -> Sequence[Patch]:
    return [(repair, "_is_behind", lambda *_: False)]
