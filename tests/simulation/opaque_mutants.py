"""Deliberate defects in the protocol for opaque spouts; see `mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

from airflow_trident.ledger.ledger import Ledger
from airflow_trident.ledger.verbs import attempts, begin, common, opaque, topology
from airflow_trident.protocol.records import TxRecord
from airflow_trident.protocol.topologies import Definition
from airflow_trident.states.core import marker as marker_module
from tests.simulation.mutants import Patch, mutant
from tests.simulation.state_mutants import MUTANTS
from tests.simulation.stores import Rows, Store

__all__ = ["MUTANTS"]


@mutant("a new batch leaves the later ones valid", "opaque")
def _() -> Sequence[Patch]:
    return [(attempts, "invalidated_above", lambda snap, txid: [])]


@mutant("what lost its batch may still commit", "opaque")
def _() -> Sequence[Patch]:
    def staged_still(definition: Definition, record: TxRecord) -> TxRecord:
        return replace(original(definition, record), status=record.status, attempt=record.attempt, staged=record.staged)

    original = opaque.invalidated
    return [(opaque, "invalidated", staged_still)]


@mutant("what is FAILED or SKIPPED keeps its batch", "opaque")
def _() -> Sequence[Patch]:
    def above(snap: Any, txid: int) -> list[TxRecord]:
        special = {*snap.exceptions().failed, *snap.exceptions().skipped}
        return [record for record in original(snap, txid) if record.txid not in special]

    original = attempts.invalidated_above
    return [(attempts, "invalidated_above", above)]


@mutant("what lost its batch is still listed as FAILED or SKIPPED", "opaque")
def _() -> Sequence[Patch]:
    original = common.exceptions_write
    return [(common, "exceptions_write", lambda snap, txid, to, *off: original(snap, txid, to))]


@mutant("a batch that was passed is chosen anew", "opaque")
def _() -> Sequence[Patch]:
    original = opaque.is_decided_anew
    return [(opaque, "is_decided_anew", lambda definition, record, committed: original(definition, record, 0))]


@mutant("a new batch goes on behind the wrong transaction", "opaque")
def _() -> Sequence[Patch]:
    def last_but_one(snap: Any, txid: int) -> TxRecord | None:
        return (snap.tx(txid - 2) if txid > 2 else None) or original(snap, txid)

    original = opaque.before
    return [(opaque, "before", last_but_one)]


@mutant("an attempt begins behind a transaction without a batch", "opaque")
def _() -> Sequence[Patch]:
    return [(opaque, "require_batch", lambda record, txid: record.position)]


@mutant("a transaction begins behind one without a batch", "opaque")
def _() -> Sequence[Patch]:
    def with_batch(snap: Any, txid: int) -> TxRecord | None:
        found = original(snap, txid)
        return None if found is None else replace(found, invalidated=False)

    original = begin.before
    return [(begin, "before", with_batch)]


@mutant("a transaction begins although the batch before it changes meanwhile", "opaque")
def _() -> Sequence[Patch]:
    def unchecked(snap: Any, old: Any, records: Any, *more: Any, **named: Any) -> Any:
        step = original(snap, old, records, *more, **named)
        return replace(step, unchecked=step.unchecked | {snap.paths.tx(records[0].txid - 1)})

    original = begin._new_transactions
    return [(begin, "_new_transactions", unchecked)]


@mutant("what has no batch can be skipped", "opaque")
def _() -> Sequence[Patch]:
    def skip(snap: Any, txid: int, reason: str) -> Any:
        with mock.patch.object(common, "existing", lambda snap, txid: replace(existing(snap, txid), invalidated=False)):
            return original(snap, txid, reason)

    original, existing = topology.skip, common.existing
    return [(Ledger.skip, "decide", skip)]


@mutant("the new batch of an attempt is not recorded", "opaque")
def _() -> Sequence[Patch]:
    def rewrite(snap: Any, record: TxRecord) -> Any:
        old = snap.tx(record.txid)
        if not record.invalidated and not old.invalidated:
            record = replace(record, metadata=old.metadata, carried=old.carried)
        return original(snap, record)

    original = attempts.rewrite
    return [(attempts, "rewrite", rewrite)]


@mutant("the previous value is not restored", "opaque")
def _() -> Sequence[Patch]:
    def take_in(self: Store, batch: Rows, *, replaces: bool, highest: bool) -> None:
        original(self, batch, replaces=False, highest=highest)

    original = Store.take_in
    return [(Store, "take_in", take_in)]


@mutant("a state takes a newer attempt's batch for the one that it has", "opaque")
def _() -> Sequence[Patch]:
    def admit(marker: Any, ticket: Any, **named: Any) -> Any:
        decided, verdict = original(marker, ticket, **named)
        skips = verdict is marker_module.Verdict.REPLACE
        return decided, marker_module.Verdict.SKIP if skips else verdict

    original = marker_module.admit
    return [(marker_module, "admit", admit)]


@mutant("a state adds a newer attempt's batch to the one that it has", "opaque")
def _() -> Sequence[Patch]:
    def admit(marker: Any, ticket: Any, **named: Any) -> Any:
        decided, verdict = original(marker, ticket, **named)
        adds = verdict is marker_module.Verdict.REPLACE
        return decided, marker_module.Verdict.APPLY if adds else verdict

    original = marker_module.admit
    return [(marker_module, "admit", admit)]
