"""Deliberate defects of topologies that are bound to days: of requests, of the index, and of states that replace
a day; see `mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airflow_trident.contracts.state import StateSpec
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.ledger.transact import Unchanged
from airflow_trident.ledger.verbs import attempts, common
from airflow_trident.ledger.verbs import partitions as verbs
from airflow_trident.protocol import partition_keys
from airflow_trident.protocol.partition_keys import PartitionEntry, SeenPartition
from airflow_trident.protocol.records import Status, TxRecord
from airflow_trident.runtime import commit, partitions, phases
from tests.simulation.level_mutants import MUTANTS
from tests.simulation.mutants import Patch, mutant
from tests.simulation.stores import Store

__all__ = ["MUTANTS"]


def _unfinished(seen: SeenPartition) -> bool:
    return seen.tx is not None and not seen.tx.status.lets_others_pass


# ---- requests --------------------------------------------------------------------------------------------------


@mutant("a request that joins a transaction of its day does not look again", "bound")
def _() -> Sequence[Patch]:
    def asked(ledger: Any, sources: Any, request: Any, seen: SeenPartition) -> Any:
        if partition_keys.may_refresh(seen.entry, seen.tx):
            return ledger.join(seen.entry, sources.partition.key, claim=request.claim)
        return original(ledger, sources, request, seen)

    original = partitions._asked
    return [(partitions, "_asked", asked)]


@mutant("a request joins a transaction of its day whose commit has begun", "bound")
def _() -> Sequence[Patch]:
    def asked(ledger: Any, sources: Any, request: Any, seen: SeenPartition) -> Any:
        if _unfinished(seen) and not partition_keys.may_refresh(seen.entry, seen.tx):
            return ledger.join(seen.entry, sources.partition.key, claim=request.claim)
        return original(ledger, sources, request, seen)

    original = partitions._asked
    return [(partitions, "_asked", asked)]


@mutant("a day whose last transaction was skipped counts as committed", "bound")
def _() -> Sequence[Patch]:
    def seen(self: Ledger, key: str) -> SeenPartition:
        is_now = partition(self, key)
        if is_now.tx is not None and is_now.tx.status is Status.SKIPPED:
            return replace(is_now, committed=is_now.tx, committed_txid=is_now.tx.txid)
        return is_now

    partition = Ledger.partition
    return [(Ledger, "partition", seen)]


@mutant("a request that has joined a transaction does not remember it", "bound")
def _() -> Sequence[Patch]:
    def join(snap: Any, seen: PartitionEntry, key: str, *, claim: Any) -> Any:
        step = original(snap, seen, key, claim=claim)
        if isinstance(step, Unchanged):
            return step
        return replace(step, writes=tuple(step.writes[1:]), witness=snap.paths.period(key))

    original = verbs.join
    return [(Ledger.join, "decide", join)]


# ---- the index of keys -----------------------------------------------------------------------------------------


@mutant("a day begins whatever its index says", "bound")
def _() -> Sequence[Patch]:
    return [(partitions, "may_begin", lambda entry, tx: True), (verbs, "may_begin", lambda entry, tx: True)]


@mutant("a day begins with a look from before the last one", "bound")
def _() -> Sequence[Patch]:
    def is_as_seen(snap: Any, request: Any) -> bool:
        entry = snap.entry(request.partition.key)
        return partition_keys.may_begin(entry, verbs._last(snap, entry))

    from airflow_trident.ledger.verbs import begin

    return [(begin, "is_as_seen", is_as_seen)]


@mutant("the index keeps the sources of the first look", "bound")
def _() -> Sequence[Patch]:
    return [(verbs, "looked", lambda entry, src: replace(entry, looks=entry.looks + 1))]


@mutant("a closed transaction stays the last one of its day", "bound")
def _() -> Sequence[Patch]:
    return [(verbs.partition_keys, "closed", lambda entry, txid: entry)]


# ---- refresh ---------------------------------------------------------------------------------------------------


@mutant("a transaction takes its sources anew although a state may hold it", "bound")
def _() -> Sequence[Patch]:
    def may_refresh(entry: PartitionEntry, tx: TxRecord | None) -> bool:
        return tx is not None and entry.tx == tx.txid and not tx.status.lets_others_pass

    return [(partitions, "may_refresh", may_refresh), (verbs, "may_refresh", may_refresh)]


@mutant("a transaction that takes its sources anew keeps its attempt", "bound")
def _() -> Sequence[Patch]:
    def moved(snap: Any, tx: TxRecord, status: Status, **changes: Any) -> TxRecord:
        if "accepted" in changes:
            changes["attempt"] = tx.attempt
        return original(snap, tx, status, **changes)

    original = common.moved
    return [(common, "moved", moved)]


@mutant("a transaction that takes its sources anew keeps what it has staged", "bound")
def _() -> Sequence[Patch]:
    def moved(snap: Any, tx: TxRecord, status: Status, **changes: Any) -> TxRecord:
        if "accepted" in changes:
            changes["staged"] = tx.staged
        return original(snap, tx, status, **changes)

    original = common.moved
    return [(common, "moved", moved)]


# ---- older transactions of a day -------------------------------------------------------------------------------


def _never(*_: Any) -> None:
    """Refuses nothing."""


@mutant("an older transaction of a day is attempted beside a newer one", "bound")
def _() -> Sequence[Patch]:
    return [(verbs, "is_superseded", lambda entry, tx: False)]


@mutant("an older transaction of a day is committed after a newer one", "bound")
def _() -> Sequence[Patch]:
    return [
        (attempts, "require_may_come", _never),
        (verbs, "_closing", lambda snap, over: []),
        (StateSpec, "commutes", property(lambda self: True)),
        (phases, "require_not_late", _never),
        (commit, "require_not_late", _never),
    ]


@mutant("a passed transaction of a day is attempted again", "bound")
def _() -> Sequence[Patch]:
    def require_may_come(snap: Any, tx: TxRecord) -> None:
        if tx.partition is None or tx.txid > snap.pointer().committed:
            original(snap, tx)

    original = attempts.require_may_come
    return [(attempts, "require_may_come", require_may_come)]


# ---- states ----------------------------------------------------------------------------------------------------


@mutant("a state adds the batch of a day to what it has of it", "bound")
def _() -> Sequence[Patch]:
    return [(Store, "leave", lambda self, days: None)]


@mutant("a group replaces the days of its last transaction only", "groups-bound")
def _() -> Sequence[Patch]:
    from airflow_trident.states.core import groups

    def missing(self: Any, verdicts: Any) -> Any:
        parts = original(self, verdicts)
        last = [(replace(ticket, partitions=()), batch) for ticket, batch in parts[:-1]]
        return [*last, *parts[-1:]]

    original = groups.Group.missing
    return [(groups.Group, "missing", missing)]


@mutant("a ticket does not name its day", "bound")
def _() -> Sequence[Patch]:
    return [(TxRecord, "partitions", property(lambda self: ()))]
