"""Repair: seeds a ledger that was wiped, or restored from an old copy, from what the states hold."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_trident.contracts.state import Marker
from airflow_trident.engine.base import quiet
from airflow_trident.errors import LedgerBehindStateError, TransitionError, UnknownTopologyError
from airflow_trident.ledger.backup.seeding import Seed, seed_from
from airflow_trident.ledger.znode_ledger import ZNodeLedger
from airflow_trident.runtime.phases import Progress
from airflow_trident.runtime.state_agreement import require_ledger_ahead
from airflow_trident.staging.area import StagingArea
from airflow_trident.topology.topology import Topology


def repair(
    ledger: ZNodeLedger, topology: Topology, staging_root: str, *, dry_run: bool = False, progress: Progress = quiet
) -> Seed:
    """Makes the ledger of `topology` agree with its states, and reports what that means.

    Nothing may run meanwhile: pause the DAG. Begun transactions that no state holds are forgotten; their records are
    read again, because the position goes back to the last transaction that every state has. Their staged batches are
    deleted, because their numbers are given out again.

    :raises TransitionError: no state holds anything, or the ledger is not behind: there is nothing to repair.
    :raises CorruptError: the states contradict each other.
    """
    held = {name: _held(topology, name) for name in topology.states}
    knowing = {name for name, spec in topology.states.items() if spec.factory.capabilities.knows_txids}
    seed = seed_from({name: one for name, one in held.items() if one.incarnation or name in knowing})
    if seed is None:
        raise TransitionError(
            f"no state of topology {topology.name!r} holds a transaction", "There is nothing to seed a ledger from."
        )
    last = seed.next_txid - 1
    progress(f"the states of topology {topology.name} hold transactions up to {last} (incarnation {seed.incarnation})")
    if seed.unfinished is not None:
        progress(
            f"transaction {last} is not in every state: `airflow trident backfill {topology.name} --failed` replays it"
        )
    for first, to in seed.lost:
        progress(f"transactions {first} to {to} were left out of a state; what their batches were is lost")
    if dry_run:
        progress("dry run: nothing was changed")
        return seed
    first = seed.next_txid if seed.unfinished is None else last

    def clean() -> None:
        # Whoever is killed after the ledger was written would not come here again.
        StagingArea(staging_root).remove_from(topology.name, seed.incarnation, first)

    ledger.seed(topology.definition(), seed, behind=_is_behind(ledger, topology, held), first=clean)
    progress(f"the ledger goes on at transaction {seed.next_txid}")
    return seed


def _is_behind(ledger: ZNodeLedger, topology: Topology, held: Mapping[str, Marker]) -> bool:
    """By the rule by which begins and commits refuse a ledger: what they refuse must have a cure."""
    markers = {name: one if one.incarnation else None for name, one in held.items()}
    try:
        require_ledger_ahead(topology.name, markers, ledger.view(0), ledger.transactions)
    except (LedgerBehindStateError, UnknownTopologyError):
        return True
    return False


def _held(topology: Topology, name: str) -> Marker:
    spec = topology.states[name]
    with spec.factory.make_state(spec) as state:
        return state.marker() or Marker(incarnation="", high=0, fence=0)
